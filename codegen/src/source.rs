//! From `.proto` files to descriptors.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};
use protox::prost_reflect::DescriptorPool;

use crate::error::BuildError;
use crate::panics::caught;
use crate::text::{self, MAX_NESTING};

/// Descriptors of some files and of all that they import.
pub(crate) struct Descriptors {
    /// As they came, with the custom options that [`FileDescriptorSet`] does not keep.
    pub(crate) encoded: Vec<u8>,
    pub(crate) set: FileDescriptorSet,
}

impl Descriptors {
    /// Reads a descriptor set that was made elsewhere.
    pub(crate) fn read(path: &Path) -> Result<Self, BuildError> {
        let encoded =
            std::fs::read(path).map_err(|source| BuildError::File { path: path.to_owned(), source })?;
        let set = FileDescriptorSet::decode(encoded.as_slice()).map_err(|error| BuildError::Proto {
            place: path.display().to_string(),
            message: format!("this is not a descriptor set, as protoc writes it with -o: {error}"),
        })?;
        Ok(Self { encoded, set })
    }
}

impl From<FileDescriptorSet> for Descriptors {
    fn from(set: FileDescriptorSet) -> Self {
        Self { encoded: set.encode_to_vec(), set }
    }
}

/// Files, and the folders in which they and their imports are found.
pub(crate) struct Sources {
    pub(crate) protos: Vec<PathBuf>,
    pub(crate) includes: Vec<PathBuf>,
}

impl Sources {
    /// Parses the files, with `protoc` if the environment asks for it. It writes into this folder.
    pub(crate) fn parse(&self, protoc_args: &[String], folder: &Path) -> Result<Descriptors, BuildError> {
        match std::env::var_os("PROTOC") {
            Some(protoc) => self.run_protoc(Path::new(&protoc), protoc_args, folder),
            None => self.run_protox(),
        }
    }

    fn run_protox(&self) -> Result<Descriptors, BuildError> {
        let refused = Refused::default();
        let compiled = caught(|| {
            let mut found = ChainFileResolver::new();
            for folder in &self.includes {
                found.add(Include {
                    folder: folder.clone(),
                    files: IncludeFileResolver::new(folder.clone()),
                    refused: Rc::clone(&refused),
                });
            }
            found.add(GoogleFileResolver::new());
            let mut compiler = protox::Compiler::with_file_resolver(found);
            compiler.include_imports(true).include_source_info(true);
            compiler.open_files(&self.protos)?;
            Ok(Descriptors {
                encoded: compiler.encode_file_descriptor_set(),
                set: compiler.file_descriptor_set(),
            })
        });
        let compiled = compiled.map_err(|reason| BuildError::Generator { reason })?;
        compiled
            .map_err(|error: protox::Error| refused.borrow_mut().take().unwrap_or_else(|| readable(&error)))
    }

    fn run_protoc(&self, protoc: &Path, args: &[String], folder: &Path) -> Result<Descriptors, BuildError> {
        let failed = |message: String| BuildError::Protoc { protoc: protoc.display().to_string(), message };
        let output = folder.join("protoc_output.bin");
        let mut command = Command::new(protoc);
        command.arg("--include_imports").arg("--include_source_info").arg("-o").arg(&output);
        for include in &self.includes {
            command.arg("-I").arg(include);
        }
        let run =
            command.args(args).args(&self.protos).output().map_err(|error| failed(error.to_string()))?;
        if !run.status.success() {
            return Err(failed(String::from_utf8_lossy(&run.stderr).trim().to_owned()));
        }
        let descriptors = Descriptors::read(&output);
        // It is of no further use; if it cannot be removed it is overwritten next time.
        let _ = std::fs::remove_file(&output);
        let descriptors = descriptors?;
        // `protoc` accepts editions.
        let mut files = descriptors.set.file.iter().filter_map(|file| self.locate(file.name()));
        files.find_map(|path| text::refusal(&path)).map_or(Ok(descriptors), Err)
    }

    /// Where a file is that descriptors and errors name as it is imported.
    pub(crate) fn locate(&self, name: &str) -> Option<PathBuf> {
        let given = self.protos.iter().find(|path| path.ends_with(name)).cloned();
        given.or_else(|| self.includes.iter().map(|folder| folder.join(name)).find(|path| path.is_file()))
    }
}

/// The first file that was refused; the parser's errors cannot carry it.
type Refused = Rc<RefCell<Option<BuildError>>>;

/// An include folder whose files are looked at before they are parsed.
struct Include {
    folder: PathBuf,
    files: IncludeFileResolver,
    refused: Refused,
}

impl FileResolver for Include {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        self.files.resolve_path(path)
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if let Some(error) = text::refusal(&self.folder.join(name)) {
            let text = error.to_string();
            self.refused.borrow_mut().get_or_insert(error);
            return Err(protox::Error::new(text));
        }
        self.files.open_file(name)
    }
}

/// The parser's error with the place where it is, as compilers write it.
fn readable(error: &protox::Error) -> BuildError {
    // The parser's Debug form is `file:line:column: message` when it knows the place.
    let detailed = format!("{error:?}");
    let message = error.to_string();
    let place = detailed
        .strip_suffix(&message)
        .and_then(|place| place.strip_suffix(": "))
        .map(str::to_owned)
        .or_else(|| error.file().map(str::to_owned))
        .unwrap_or_else(|| "protobuf".to_owned());
    BuildError::Proto { place, message }
}

/// Checks what the code generator takes for granted, for descriptors from any source.
pub(crate) fn check(descriptors: &FileDescriptorSet) -> Result<(), BuildError> {
    for file in &descriptors.file {
        match file.syntax() {
            "" | "proto2" | "proto3" => {}
            "editions" => {
                return Err(BuildError::Editions {
                    file: file.name().to_owned(),
                    edition: "unknown".to_owned(),
                });
            }
            syntax => {
                return Err(BuildError::Proto {
                    place: file.name().to_owned(),
                    message: format!("the syntax {syntax:?} is not supported; write syntax = \"proto3\";"),
                });
            }
        }
    }
    for file in &descriptors.file {
        if nested_deeper(&file.message_type, MAX_NESTING) {
            return Err(BuildError::Proto {
                place: file.name().to_owned(),
                message: format!(
                    "messages are nested more than {MAX_NESTING} levels deep; declare the inner ones outside"
                ),
            });
        }
    }
    // Resolves every type name.
    let resolved = caught(|| DescriptorPool::from_file_descriptor_set(descriptors.clone()))
        .map_err(|reason| BuildError::Generator { reason })?;
    resolved
        .map(drop)
        .map_err(|error| BuildError::Proto { place: "descriptor set".to_owned(), message: error.to_string() })
}

fn nested_deeper(messages: &[DescriptorProto], levels: usize) -> bool {
    !messages.is_empty()
        && (levels == 0 || messages.iter().any(|message| nested_deeper(&message.nested_type, levels - 1)))
}
