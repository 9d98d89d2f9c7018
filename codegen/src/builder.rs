//! The options, and the run.

use std::path::{Path, PathBuf};

use prost::Message;
use prost_build::Config;
use prost_types::FileDescriptorSet;

use crate::error::BuildError;
use crate::generator::{Failure, Generator, Options};
use crate::source;

/// Well-known types whose Rust types are not messages, as prost has them.
const WELL_KNOWN: [(&str, &str); 10] = [
    ("BoolValue", "bool"),
    ("BytesValue", "::std::vec::Vec<u8>"),
    ("DoubleValue", "f64"),
    ("Empty", "()"),
    ("FloatValue", "f32"),
    ("Int32Value", "i32"),
    ("Int64Value", "i64"),
    ("StringValue", "::std::string::String"),
    ("UInt32Value", "u32"),
    ("UInt64Value", "u64"),
];

/// Options of the code generator. Begin with [`configure`](crate::configure). They mirror those of
/// `tonic-prost-build`; `path` arguments are protobuf paths: `.` for everything, `.package`, `.package.Message.field`.
#[derive(Clone, Debug)]
#[must_use = "nothing is generated until compile_protos() is called"]
pub struct Builder {
    out_dir: Option<PathBuf>,
    include_file: Option<PathBuf>,
    descriptor_path: Option<PathBuf>,
    runtime: String,
    build_client: bool,
    build_server: bool,
    grpc_client: bool,
    codec: Option<String>,
    bytes: Option<Vec<String>>,
    btree_map: Vec<String>,
    boxed: Vec<String>,
    extern_path: Vec<(String, String)>,
    type_attributes: Vec<(String, String)>,
    message_attributes: Vec<(String, String)>,
    enum_attributes: Vec<(String, String)>,
    field_attributes: Vec<(String, String)>,
    server_attributes: Vec<(String, String)>,
    trait_attributes: Vec<(String, String)>,
    client_attributes: Vec<(String, String)>,
    skip_debug: Vec<String>,
    disable_comments: Vec<String>,
    protoc_args: Vec<String>,
    compile_well_known_types: bool,
    emit_package: bool,
    emit_rerun_if_changed: bool,
    use_arc_self: bool,
    generate_default_stubs: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            out_dir: None,
            include_file: None,
            descriptor_path: None,
            runtime: "::ringmail".to_owned(),
            build_client: true,
            build_server: true,
            grpc_client: false,
            codec: None,
            bytes: Some(vec![".".to_owned()]),
            btree_map: Vec::new(),
            boxed: Vec::new(),
            extern_path: Vec::new(),
            type_attributes: Vec::new(),
            message_attributes: Vec::new(),
            enum_attributes: Vec::new(),
            field_attributes: Vec::new(),
            server_attributes: Vec::new(),
            trait_attributes: Vec::new(),
            client_attributes: Vec::new(),
            skip_debug: Vec::new(),
            disable_comments: Vec::new(),
            protoc_args: Vec::new(),
            compile_well_known_types: false,
            emit_package: true,
            emit_rerun_if_changed: std::env::var_os("CARGO").is_some(),
            use_arc_self: false,
            generate_default_stubs: false,
        }
    }
}

fn pair(path: impl AsRef<str>, value: impl AsRef<str>) -> (String, String) {
    (path.as_ref().to_owned(), value.as_ref().to_owned())
}

impl Builder {
    /// Whether clients are generated. Default: yes.
    pub fn build_client(mut self, on: bool) -> Self {
        self.build_client = on;
        self
    }

    /// Whether servers are generated. Default: yes.
    pub fn build_server(mut self, on: bool) -> Self {
        self.build_server = on;
        self
    }

    /// Whether tonic's own client is generated too, as `greeter_grpc_client::GreeterClient`, to call gRPC servers.
    /// Default: no.
    pub fn build_grpc_client(mut self, on: bool) -> Self {
        self.grpc_client = on;
        self
    }

    /// Folder that the code is written to. Default: `OUT_DIR`, which cargo sets for build scripts.
    pub fn out_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.out_dir = Some(folder.as_ref().to_owned());
        self
    }

    /// Name of a file, in the output folder, that includes the code of all packages as nested modules.
    pub fn include_file(mut self, path: impl AsRef<Path>) -> Self {
        self.include_file = Some(path.as_ref().to_owned());
        self
    }

    /// Where the descriptor set goes that reflection serves. Default: `NAME_descriptor.bin` in the output folder, where
    /// `NAME` is the first `.proto` file's, for `ringmail::include_file_descriptor_set!("NAME_descriptor")`.
    pub fn file_descriptor_set_path(mut self, path: impl AsRef<Path>) -> Self {
        self.descriptor_path = Some(path.as_ref().to_owned());
        self
    }

    /// Path under which the generated code finds the `ringmail` crate. Default: `::ringmail`.
    pub fn runtime_path(mut self, path: impl AsRef<str>) -> Self {
        self.runtime = path.as_ref().to_owned();
        self
    }

    /// Type that makes codecs, in place of `ringmail::codegen::ProstCodec`: it takes the encoded and the decoded type
    /// and has a `new()`.
    pub fn codec_path(mut self, path: impl AsRef<str>) -> Self {
        self.codec = Some(path.as_ref().to_owned());
        self
    }

    /// Makes `bytes` fields under this path `bytes::Bytes`, and all others `Vec<u8>`; may be called again for more
    /// paths. Default: all are `Bytes`, which are decoded without a copy.
    pub fn bytes(mut self, path: impl AsRef<str>) -> Self {
        match &mut self.bytes {
            Some(paths) if paths.as_slice() != ["."] => paths.push(path.as_ref().to_owned()),
            paths => *paths = Some(vec![path.as_ref().to_owned()]),
        }
        self
    }

    /// Makes all `bytes` fields `Vec<u8>`, as tonic does by default.
    pub fn bytes_as_vec(mut self) -> Self {
        self.bytes = None;
        self
    }

    /// Makes `map` fields under this path `BTreeMap`.
    pub fn btree_map(mut self, path: impl AsRef<str>) -> Self {
        self.btree_map.push(path.as_ref().to_owned());
        self
    }

    /// Boxes fields under this path.
    pub fn boxed(mut self, path: impl AsRef<str>) -> Self {
        self.boxed.push(path.as_ref().to_owned());
        self
    }

    /// Uses an existing Rust path for a protobuf package or type.
    pub fn extern_path(mut self, proto_path: impl AsRef<str>, rust_path: impl AsRef<str>) -> Self {
        self.extern_path.push(pair(proto_path, rust_path));
        self
    }

    /// Adds an attribute to messages, enums and oneofs.
    pub fn type_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.type_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to messages.
    pub fn message_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.message_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to enums and oneofs.
    pub fn enum_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.enum_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to fields.
    pub fn field_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.field_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to server types.
    pub fn server_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.server_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to server traits.
    pub fn trait_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.trait_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to client types.
    pub fn client_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.client_attributes.push(pair(path, attribute));
        self
    }

    /// Leaves `Debug` out for messages under this path.
    pub fn skip_debug(mut self, path: impl AsRef<str>) -> Self {
        self.skip_debug.push(path.as_ref().to_owned());
        self
    }

    /// Leaves the comments out of messages and services under this path.
    pub fn disable_comments(mut self, path: impl AsRef<str>) -> Self {
        self.disable_comments.push(path.as_ref().to_owned());
        self
    }

    /// Passes an argument to `protoc`, when the environment variable `PROTOC` asks for it.
    pub fn protoc_arg(mut self, argument: impl AsRef<str>) -> Self {
        self.protoc_args.push(argument.as_ref().to_owned());
        self
    }

    /// Generates code for `google.protobuf` too, instead of using `prost-types`. Default: no.
    pub fn compile_well_known_types(mut self, on: bool) -> Self {
        self.compile_well_known_types = on;
        self
    }

    /// Whether method paths contain the package. Default: yes.
    pub fn emit_package(mut self, on: bool) -> Self {
        self.emit_package = on;
        self
    }

    /// Whether cargo is told to run the build script again when a file changes. Default: yes, under cargo.
    pub fn emit_rerun_if_changed(mut self, on: bool) -> Self {
        self.emit_rerun_if_changed = on;
        self
    }

    /// Whether server traits take `self: Arc<Self>`. Default: no.
    pub fn use_arc_self(mut self, on: bool) -> Self {
        self.use_arc_self = on;
        self
    }

    /// Whether server traits have default methods that return UNIMPLEMENTED. Default: no.
    pub fn generate_default_stubs(mut self, on: bool) -> Self {
        self.generate_default_stubs = on;
        self
    }

    /// Generates code for these files; imports are looked for in the include folders.
    ///
    /// # Errors
    /// When a file is missing or not valid, or the code cannot be written.
    pub fn compile_protos<P: AsRef<Path>, I: AsRef<Path>>(
        mut self,
        protos: &[P],
        includes: &[I],
    ) -> Result<(), BuildError> {
        let owned = |path: &Path| path.to_owned();
        let protos: Vec<_> = protos.iter().map(|path| owned(path.as_ref())).collect();
        let includes: Vec<_> = includes.iter().map(|path| owned(path.as_ref())).collect();
        let first = protos.first().ok_or(BuildError::NothingToDo)?;
        if self.emit_rerun_if_changed {
            for path in protos.iter().chain(&includes) {
                rerun_if_changed(path);
            }
        }
        if self.descriptor_path.is_none() {
            let stem = first.file_stem().unwrap_or_default().to_string_lossy();
            self.descriptor_path = Some(self.folder()?.join(format!("{stem}_descriptor.bin")));
        }
        let descriptors = source::descriptors(&protos, &includes, &self.protoc_args)?;
        self.compile_fds(descriptors)
    }

    /// Generates code for descriptors that were made elsewhere. The descriptor set is written only where
    /// [`Builder::file_descriptor_set_path`] says.
    ///
    /// # Errors
    /// When the descriptors are not valid, or the code cannot be written.
    pub fn compile_fds(self, descriptors: FileDescriptorSet) -> Result<(), BuildError> {
        source::check(&descriptors)?;
        let folder = self.folder()?;
        if let Some(path) = &self.descriptor_path {
            let write = std::fs::write(path, descriptors.encode_to_vec());
            write.map_err(|source| BuildError::File { path: path.clone(), source })?;
        }
        let failure = Failure::default();
        let mut config = self.config(&folder, &failure);
        config.compile_fds(descriptors).map_err(|source| BuildError::File { path: folder, source })?;
        let failed = failure.borrow_mut().take();
        failed.map_or(Ok(()), Err)
    }

    fn folder(&self) -> Result<PathBuf, BuildError> {
        self.out_dir
            .clone()
            .or_else(|| std::env::var_os("OUT_DIR").map(PathBuf::from))
            .ok_or(BuildError::NoOutDir)
    }

    fn config(self, folder: &Path, failure: &Failure) -> Config {
        let mut config = Config::new();
        config.out_dir(folder);
        config.prost_path(format!("{}::codegen::prost", self.runtime));
        config.type_attribute(".", "#[allow(clippy::all, clippy::nursery, clippy::pedantic)]");
        if !self.compile_well_known_types {
            // prost's own mapping, but through `ringmail`, so that users need not depend on `prost-types`.
            config.compile_well_known_types();
            config.extern_path(".google.protobuf", format!("{}::codegen::prost_types", self.runtime));
            for (name, rust) in WELL_KNOWN {
                config.extern_path(format!(".google.protobuf.{name}"), rust);
            }
        } else {
            config.compile_well_known_types();
        }
        for (proto, rust) in &self.extern_path {
            config.extern_path(proto, rust);
        }
        for (path, attribute) in &self.type_attributes {
            config.type_attribute(path, attribute);
        }
        for (path, attribute) in &self.message_attributes {
            config.message_attribute(path, attribute);
        }
        for (path, attribute) in &self.enum_attributes {
            config.enum_attribute(path, attribute);
        }
        for (path, attribute) in &self.field_attributes {
            config.field_attribute(path, attribute);
        }
        for path in &self.boxed {
            config.boxed(path);
        }
        config.btree_map(&self.btree_map);
        config.bytes(self.bytes.as_deref().unwrap_or_default());
        config.skip_debug(&self.skip_debug);
        config.disable_comments(&self.disable_comments);
        if let Some(path) = &self.include_file {
            config.include_file(path);
        }
        if self.build_client || self.build_server || self.grpc_client {
            config.service_generator(Box::new(self.generator(failure)));
        }
        config
    }

    fn generator(self, failure: &Failure) -> Generator {
        let mut tonic = tonic_prost_build::configure()
            .build_client(self.grpc_client)
            .build_server(true)
            .build_transport(false)
            .compile_well_known_types(true)
            .use_arc_self(self.use_arc_self)
            .generate_default_stubs(self.generate_default_stubs)
            .disable_comments(&self.disable_comments);
        for (path, attribute) in &self.server_attributes {
            tonic = tonic.server_attribute(path, attribute);
        }
        for (path, attribute) in &self.trait_attributes {
            tonic = tonic.trait_attribute(path, attribute);
        }
        let codec = self.codec.unwrap_or_else(|| format!("{}::codegen::ProstCodec", self.runtime));
        Generator {
            tonic: tonic.service_generator(),
            options: Options {
                runtime: self.runtime,
                client: self.build_client,
                server: self.build_server,
                grpc_client: self.grpc_client,
                arc_self: self.use_arc_self,
                emit_package: self.emit_package,
                codec,
                client_attributes: self.client_attributes,
            },
            failure: Failure::clone(failure),
        }
    }
}

#[allow(clippy::print_stdout)] // This is how a build script speaks to cargo.
fn rerun_if_changed(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}
