//! What can be wrong with `.proto` files.

use std::io;
use std::path::PathBuf;

/// Why no code was generated.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum BuildError {
    /// A file is not valid protobuf, or an import is missing.
    #[error("{place}: {message}")]
    Proto {
        /// File, and line and column where they are known.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// A file uses editions.
    #[error(
        "{file}: protobuf editions (edition = \"{edition}\") are not supported; write syntax = \"proto3\"; instead"
    )]
    Editions {
        /// The file.
        file: String,
        /// The edition it names.
        edition: String,
    },
    /// A name in a file cannot become Rust.
    #[error("no code can be generated for the service {service}: {reason}")]
    Service {
        /// The service.
        service: String,
        /// What is in the way.
        reason: String,
    },
    /// An option has a value that cannot be used.
    #[error("the option {option} cannot be {value:?}: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The files are valid protobuf, but the libraries that make Rust of it cannot do it.
    #[error("no code can be generated from these files: {reason}")]
    Generator {
        /// What the library says.
        reason: String,
    },
    /// No `.proto` file was named.
    #[error("no .proto file was given: name at least one in compile_protos()")]
    NothingToDo,
    /// Not run from a build script, and no folder was set.
    #[error("OUT_DIR is not set: run this from build.rs, or say where to write with out_dir()")]
    NoOutDir,
    /// `protoc`, which `PROTOC` asks for, failed.
    #[error("{protoc} failed: {message}")]
    Protoc {
        /// The program.
        protoc: String,
        /// What it said.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A build script that returns an error prints it with `Debug`: make that readable.
impl std::fmt::Debug for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
