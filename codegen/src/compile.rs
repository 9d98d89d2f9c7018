//! The run: from files or descriptors to code.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use prost_build::Config;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::builder::Builder;
use crate::comments;
use crate::error::BuildError;
use crate::panics::caught;
use crate::paths;
use crate::source::{self, Descriptors, Sources};
use crate::stub::{Failure, Generator, MESSAGE_LINTS, Options};

/// Well-known types whose Rust types are not messages, as prost has them. Primitive types have their full paths, so
/// that tonic's generator does not take them for messages of the file.
const WELL_KNOWN: [(&str, &str); 10] = [
    ("BoolValue", "::core::primitive::bool"),
    ("BytesValue", "::std::vec::Vec<u8>"),
    ("DoubleValue", "::core::primitive::f64"),
    ("Empty", "()"),
    ("FloatValue", "::core::primitive::f32"),
    ("Int32Value", "::core::primitive::i32"),
    ("Int64Value", "::core::primitive::i64"),
    ("StringValue", "::std::string::String"),
    ("UInt32Value", "::core::primitive::u32"),
    ("UInt64Value", "::core::primitive::u64"),
];

impl Builder {
    /// Generates code for these files; imports are looked for in the include folders.
    ///
    /// # Errors
    /// When a file is missing or not valid, or the code cannot be written.
    pub fn compile_protos<P: AsRef<Path>, I: AsRef<Path>>(
        self,
        protos: &[P],
        includes: &[I],
    ) -> Result<(), BuildError> {
        let sources = Sources {
            protos: protos.iter().map(|path| path.as_ref().to_owned()).collect(),
            includes: includes.iter().map(|path| path.as_ref().to_owned()).collect(),
        };
        let first = sources.protos.first().ok_or(BuildError::NothingToDo)?;
        self.check_options()?;
        let folder = self.folder()?;
        let descriptors = if self.skip_protoc_run {
            let path = self.descriptor_path.as_deref().ok_or_else(|| BuildError::Option {
                option: "skip_protoc_run",
                value: "on".to_owned(),
                reason: "say where the descriptor set is with file_descriptor_set_path()".to_owned(),
            })?;
            self.rerun_if_changed(path);
            Descriptors::read(path)?
        } else {
            self.rerun_if_env_changed("PROTOC");
            sources.parse(&self.protoc_args, &folder)?
        };
        for file in &descriptors.set.file {
            if let Some(path) = sources.locate(file.name()) {
                self.rerun_if_changed(&path);
            }
        }
        let descriptor_path = self
            .descriptor_path
            .clone()
            .unwrap_or_else(|| folder.join(descriptor_name(first, &descriptors.set)));
        self.generate(descriptors, &folder, Some(&descriptor_path))
    }

    /// Generates code for descriptors that were made elsewhere. The descriptor set is written only where
    /// [`Builder::file_descriptor_set_path`] says.
    ///
    /// # Errors
    /// When the descriptors are not valid, or the code cannot be written.
    pub fn compile_fds(self, descriptors: FileDescriptorSet) -> Result<(), BuildError> {
        self.check_options()?;
        let (folder, descriptor_path) = (self.folder()?, self.descriptor_path.clone());
        self.generate(descriptors.into(), &folder, descriptor_path.as_deref())
    }

    fn generate(
        self,
        descriptors: Descriptors,
        folder: &Path,
        descriptor_path: Option<&Path>,
    ) -> Result<(), BuildError> {
        source::check(&descriptors.set)?;
        if let Some(path) = descriptor_path {
            write_if_changed(path, &descriptors.encoded)?;
        }
        let mut set = descriptors.set;
        comments::tame(&mut set);
        let failure = Failure::default();
        let mut config = self.config(folder, &failure);
        let generated = caught(|| config.compile_fds(set));
        // The generator's own word is better than that of a panic which may come of it.
        if let Some(error) = failure.borrow_mut().take() {
            return Err(error);
        }
        generated
            .map_err(|reason| BuildError::Generator { reason })?
            .map_err(|source| BuildError::File { path: folder.to_owned(), source })
    }

    fn folder(&self) -> Result<PathBuf, BuildError> {
        self.out_dir
            .clone()
            .or_else(|| std::env::var_os("OUT_DIR").map(PathBuf::from))
            .ok_or(BuildError::NoOutDir)
    }

    /// Refuses what the libraries below would panic on, or write into the code as it is.
    fn check_options(&self) -> Result<(), BuildError> {
        let stub = &self.stub_attributes;
        let attributes = [
            ("type_attribute", &self.type_attributes),
            ("message_attribute", &self.message_attributes),
            ("enum_attribute", &self.enum_attributes),
            ("field_attribute", &self.field_attributes),
            ("server_mod_attribute", &stub.server_mod),
            ("server_attribute", &stub.server),
            ("trait_attribute", &stub.server_trait),
            ("client_mod_attribute", &stub.client_mod),
            ("client_attribute", &stub.client),
        ];
        for (option, values) in attributes {
            for (_, value) in values {
                paths::attributes(value).map_err(|error| bad(option, value, error))?;
            }
        }
        let rust_paths = [
            ("runtime_path", Some(&self.runtime)),
            ("codec_path", self.codec.as_ref()),
            ("grpc_codec_path", self.grpc_codec.as_ref()),
            ("proto_path", self.proto_path.as_ref()),
        ];
        for (option, value) in rust_paths {
            if let Some(value) = value {
                syn::parse_str::<syn::Path>(value).map_err(|error| bad(option, value, error))?;
            }
        }
        let mut seen = HashSet::new();
        for (proto, rust) in &self.extern_path {
            let absolute =
                proto.strip_prefix('.').is_some_and(|path| path.split('.').all(|part| !part.is_empty()));
            if !absolute {
                return Err(bad("extern_path", proto, "write a full protobuf path, with a dot in front"));
            }
            if !seen.insert(proto) {
                return Err(bad("extern_path", proto, "it is given twice"));
            }
            syn::parse_str::<syn::Type>(rust).map_err(|error| bad("extern_path", rust, error))?;
        }
        Ok(())
    }

    fn config(self, folder: &Path, failure: &Failure) -> Config {
        let mut config = Config::new();
        config.out_dir(folder);
        config.prost_path(format!("{}::codegen::prost", self.runtime));
        config.type_attribute(".", format!("#[allow({MESSAGE_LINTS})]"));
        // prost's own mapping is turned off, and given below as paths through `ringmail`, so that users need not depend
        // on `prost-types`.
        config.compile_well_known_types();
        if !self.compile_well_known_types {
            let names = [("".to_owned(), format!("{}::codegen::prost_types", self.runtime))]
                .into_iter()
                .chain(WELL_KNOWN.map(|(name, rust)| (format!(".{name}"), rust.to_owned())));
            for (name, rust) in names {
                let proto = format!(".google.protobuf{name}");
                if !self.extern_path.iter().any(|(given, _)| *given == proto) {
                    config.extern_path(proto, rust);
                }
            }
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
        match &self.bytes {
            Some(paths) => config.bytes(paths),
            None => config.bytes(["."]),
        };
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
            // Always: the trait is what the stubs are written from.
            .build_server(true)
            .build_transport(self.build_transport)
            .compile_well_known_types(true)
            .use_arc_self(self.use_arc_self)
            .generate_default_stubs(self.generate_default_stubs);
        if let Some(path) = &self.proto_path {
            tonic = tonic.proto_path(path);
        }
        if let Some(path) = &self.grpc_codec {
            tonic = tonic.codec_path(path);
        }
        let codec = self.codec.unwrap_or_else(|| format!("{}::codegen::ProstCodec", self.runtime));
        let options = Options {
            runtime: self.runtime,
            client: self.build_client,
            server: self.build_server,
            grpc_client: self.grpc_client,
            arc_self: self.use_arc_self,
            emit_package: self.emit_package,
            codec,
            disable_comments: self.disable_comments,
            attributes: self.stub_attributes,
        };
        Generator::new(tonic.service_generator(), options, Failure::clone(failure))
    }

    #[allow(clippy::print_stdout)] // This is how a build script speaks to cargo.
    fn rerun_if_changed(&self, path: &Path) {
        if self.emit_rerun_if_changed {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }

    #[allow(clippy::print_stdout)] // This is how a build script speaks to cargo.
    fn rerun_if_env_changed(&self, variable: &str) {
        if self.emit_rerun_if_changed {
            println!("cargo:rerun-if-env-changed={variable}");
        }
    }
}

fn bad(option: &'static str, value: &str, reason: impl std::fmt::Display) -> BuildError {
    BuildError::Option { option, value: value.to_owned(), reason: reason.to_string() }
}

/// `PACKAGE_descriptor.bin`, beside `PACKAGE.rs`.
fn descriptor_name(first: &Path, set: &FileDescriptorSet) -> String {
    let file =
        set.file.iter().filter(|file| first.ends_with(file.name())).max_by_key(|file| file.name().len());
    let package =
        file.or(set.file.last()).map(FileDescriptorProto::package).filter(|package| !package.is_empty());
    let name = package.map_or_else(|| first.file_stem().unwrap_or_default().to_string_lossy(), Into::into);
    format!("{name}_descriptor.bin")
}

/// Leaves the file's time alone when nothing changed, so that cargo does not compile again what includes it.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), BuildError> {
    if std::fs::read(path).is_ok_and(|current| current == content) {
        return Ok(());
    }
    std::fs::write(path, content).map_err(|source| BuildError::File { path: path.to_owned(), source })
}
