//! Generates Ringmail stubs from `.proto` files; used from `build.rs`.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     ringmail_build::compile_protos("proto/greeter.proto")?;
//!     Ok(())
//! }
//! ```
//!
//! ```text
//! // src/main.rs
//! pub mod pb {
//!     ringmail::include_proto!("helloworld"); // the package
//! }
//! use pb::greeter_client::GreeterClient;
//! use pb::greeter_server::{Greeter, GreeterServer};
//! ```
//!
//! - The server trait is tonic 0.14's own, and so is `GreeterServer`, which additionally serves over Ringmail: the
//!   same `impl` and the same value work with both.
//! - The client has `&self` methods with tonic's names and is cheap to clone. Methods whose names its own would hide
//!   (`new`, `connect`, `clone` …) have an underscore behind them: `connect_`.
//! - No `protoc` is needed. If the environment variable `PROTOC` is set it is used nevertheless, and
//!   [`Builder::compile_fds`] takes descriptors from elsewhere.
//! - `bytes` fields are `bytes::Bytes` and are decoded without a copy; [`Builder::bytes_as_vec`] gives tonic's
//!   `Vec<u8>`.
//! - A descriptor set for reflection is written beside the code: see [`Builder::file_descriptor_set_path`].
//!
//! [`configure`] has the options, which are `tonic-prost-build`'s where those make sense.

mod builder;
mod comments;
mod compile;
mod error;
mod panics;
mod paths;
mod source;
mod stub;
mod text;

use std::path::Path;

pub use builder::Builder;
pub use error::BuildError;
pub use prost_types::FileDescriptorSet;

/// Generates code for one `.proto` file with the default options. Its folder is where imports are looked for.
///
/// # Errors
/// When the file, or one that it imports, is missing or not valid, or the code cannot be written.
pub fn compile_protos(proto: impl AsRef<Path>) -> Result<(), BuildError> {
    let proto = proto.as_ref();
    let folder = proto.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    configure().compile_protos(&[proto], &[folder])
}

/// A builder with the default options.
pub fn configure() -> Builder {
    Builder::default()
}
