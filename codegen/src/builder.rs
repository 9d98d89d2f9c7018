//! The options.

use std::path::{Path, PathBuf};

use crate::paths::ByPath;
use crate::stub::StubAttributes;

/// Options of the code generator. Begin with [`configure`](crate::configure). They mirror those of
/// `tonic-prost-build`.
///
/// A `path` says where an option holds: `.` everywhere, `.package` and `.package.Message.field` there and inside,
/// `Message` or `Message.field` wherever a full name ends so.
#[derive(Clone, Debug)]
#[must_use = "nothing is generated until compile_protos() is called"]
pub struct Builder {
    pub(crate) out_dir: Option<PathBuf>,
    pub(crate) include_file: Option<PathBuf>,
    pub(crate) descriptor_path: Option<PathBuf>,
    pub(crate) runtime: String,
    pub(crate) build_client: bool,
    pub(crate) build_server: bool,
    pub(crate) grpc_client: bool,
    pub(crate) build_transport: bool,
    pub(crate) codec: Option<String>,
    pub(crate) grpc_codec: Option<String>,
    pub(crate) proto_path: Option<String>,
    /// `None`: all of them.
    pub(crate) bytes: Option<Vec<String>>,
    pub(crate) btree_map: Vec<String>,
    pub(crate) boxed: Vec<String>,
    pub(crate) extern_path: ByPath,
    pub(crate) type_attributes: ByPath,
    pub(crate) message_attributes: ByPath,
    pub(crate) enum_attributes: ByPath,
    pub(crate) field_attributes: ByPath,
    pub(crate) stub_attributes: StubAttributes,
    pub(crate) skip_debug: Vec<String>,
    pub(crate) disable_comments: Vec<String>,
    pub(crate) protoc_args: Vec<String>,
    pub(crate) skip_protoc_run: bool,
    pub(crate) compile_well_known_types: bool,
    pub(crate) emit_package: bool,
    pub(crate) emit_rerun_if_changed: bool,
    pub(crate) use_arc_self: bool,
    pub(crate) generate_default_stubs: bool,
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
            build_transport: false,
            codec: None,
            grpc_codec: None,
            proto_path: None,
            bytes: None,
            btree_map: Vec::new(),
            boxed: Vec::new(),
            extern_path: Vec::new(),
            type_attributes: Vec::new(),
            message_attributes: Vec::new(),
            enum_attributes: Vec::new(),
            field_attributes: Vec::new(),
            stub_attributes: StubAttributes::default(),
            skip_debug: Vec::new(),
            disable_comments: Vec::new(),
            protoc_args: Vec::new(),
            skip_protoc_run: false,
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

    /// Whether tonic's client has a `connect()` of its own, which needs tonic's feature `channel`. Default: no.
    pub fn build_transport(mut self, on: bool) -> Self {
        self.build_transport = on;
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

    /// Where the descriptor set goes that reflection serves. Default: `PACKAGE_descriptor.bin` in the output folder, for
    /// `ringmail::include_file_descriptor_set!("PACKAGE_descriptor")`; the package is the first file's, and its name
    /// if it has none.
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
    /// and has a `new()`. It is used on Ringmail's links; for gRPC see [`Builder::grpc_codec_path`].
    pub fn codec_path(mut self, path: impl AsRef<str>) -> Self {
        self.codec = Some(path.as_ref().to_owned());
        self
    }

    /// Type that makes codecs for gRPC, in place of `tonic_prost::ProstCodec`: tonic's `codec_path`.
    pub fn grpc_codec_path(mut self, path: impl AsRef<str>) -> Self {
        self.grpc_codec = Some(path.as_ref().to_owned());
        self
    }

    /// Module, seen from the stubs' modules, that has the messages. Default: `super`.
    pub fn proto_path(mut self, path: impl AsRef<str>) -> Self {
        self.proto_path = Some(path.as_ref().to_owned());
        self
    }

    /// Makes `bytes` fields under this path `bytes::Bytes`, and all others `Vec<u8>`; may be called again for more
    /// paths. Default: all are `Bytes`, which are decoded without a copy.
    pub fn bytes(mut self, path: impl AsRef<str>) -> Self {
        self.bytes.get_or_insert_default().push(path.as_ref().to_owned());
        self
    }

    /// Makes all `bytes` fields `Vec<u8>`, as tonic does by default.
    pub fn bytes_as_vec(mut self) -> Self {
        self.bytes = Some(Vec::new());
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

    /// Adds an attribute to the modules of servers.
    pub fn server_mod_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.stub_attributes.server_mod.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to server types.
    pub fn server_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.stub_attributes.server.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to server traits.
    pub fn trait_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.stub_attributes.server_trait.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the modules of clients, tonic's included.
    pub fn client_mod_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.stub_attributes.client_mod.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to client types, tonic's included.
    pub fn client_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.stub_attributes.client.push(pair(path, attribute));
        self
    }

    /// Leaves `Debug` out for messages under these paths.
    pub fn skip_debug<S: AsRef<str>>(mut self, paths: impl IntoIterator<Item = S>) -> Self {
        self.skip_debug.extend(paths.into_iter().map(|path| path.as_ref().to_owned()));
        self
    }

    /// Leaves the comments out of messages, services and methods under these paths.
    pub fn disable_comments<S: AsRef<str>>(mut self, paths: impl IntoIterator<Item = S>) -> Self {
        self.disable_comments.extend(paths.into_iter().map(|path| path.as_ref().to_owned()));
        self
    }

    /// Passes an argument to `protoc`, when the environment variable `PROTOC` asks for it.
    pub fn protoc_arg(mut self, argument: impl AsRef<str>) -> Self {
        self.protoc_args.push(argument.as_ref().to_owned());
        self
    }

    /// Takes the descriptors from the file at [`Builder::file_descriptor_set_path`] instead of parsing anything.
    pub fn skip_protoc_run(mut self) -> Self {
        self.skip_protoc_run = true;
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
}
