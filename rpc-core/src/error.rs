//! What can go wrong, and the one place where it becomes a gRPC status.

use std::io;

use ringmail_transport::bootstrap::BootstrapError;
use ringmail_transport::link::LinkError;
use tonic::Status;

/// An address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Not an address.
    #[error("{address:?} is not an address like ringmail://host:port: {rule}")]
    Invalid {
        /// What was given.
        address: String,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// The name does not resolve.
    #[error("{address} cannot be resolved: {reason}")]
    Unresolved {
        /// Host and port.
        address: String,
        /// What the resolver said.
        reason: String,
    },
}

/// Why a channel has no connection.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No connection came up.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The ring size is not possible.
    #[error(transparent)]
    Ring(#[from] ringmail_transport::ring::InvalidRingSize),
    /// There is no tokio runtime to connect on.
    #[error(
        "there is no tokio runtime to connect on: make the channel within one (in an async fn that it runs, or after Runtime::enter)"
    )]
    NoRuntime,
    /// The tokio runtime cannot be connected on.
    #[error("the tokio runtime cannot be connected on: {reason}")]
    Runtime {
        /// What is the matter with it.
        reason: String,
    },
}

/// Why a server does not run.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No address was given.
    #[error("the server has no address: call listen(\"ringmail://0.0.0.0:7400\")")]
    NoAddress,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Two services have the same name.
    #[error("the service {0} was added twice")]
    DuplicateService(&'static str),
    /// More methods than a method index can tell apart.
    #[error("the services have {0} methods together; at most 65,535 are possible on one address")]
    TooManyMethods(usize),
    /// The ring size is not possible.
    #[error(transparent)]
    Ring(#[from] ringmail_transport::ring::InvalidRingSize),
    /// Shared memory is required but cannot be offered.
    #[error("shared memory is required but cannot be offered: {0}")]
    Shm(String),
    /// A thread for busy polling could not be started.
    #[error("cannot start a polling thread: {0}")]
    Thread(io::Error),
}

/// A `main` that returns an error prints it with `Debug`: that is where most people see these.
impl std::fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// As for [`ConnectError`].
impl std::fmt::Debug for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A dead connection, to its calls.
pub(crate) fn connection_lost(peer: &impl std::fmt::Display, reason: &LinkError) -> Status {
    Status::unavailable(format!("the connection to {peer} was lost: {reason}"))
}

/// No connection, to a call.
pub(crate) fn not_connected(error: &ConnectError) -> Status {
    match error {
        ConnectError::Address(AddressError::Invalid { .. }) | ConnectError::Ring(_) => {
            Status::invalid_argument(error.to_string())
        }
        ConnectError::NoRuntime | ConnectError::Runtime { .. } => {
            Status::failed_precondition(error.to_string())
        }
        _ => Status::unavailable(error.to_string()),
    }
}

pub(crate) fn deadline_exceeded(at: &str) -> Status {
    Status::deadline_exceeded(format!("the deadline passed {at}"))
}

/// A message that exceeds a limit. `whose` names the side whose limit it is and what raises it.
pub(crate) fn too_large(what: &str, bytes: u64, limit: u64, whose: &str) -> Status {
    Status::resource_exhausted(format!(
        "the {what} of {bytes} bytes exceeds the limit of {limit} bytes {whose}"
    ))
}
