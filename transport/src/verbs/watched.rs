//! Descriptors of verbs objects, watched by the runtime.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Keeps what a descriptor belongs to alive while the runtime watches it.
#[derive(Debug)]
pub(crate) struct Watched<T>(Arc<T>);

impl<T> Watched<T> {
    pub(crate) fn object(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: AsRawFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Watches an object's descriptor, a channel's, in the runtime that was entered.
pub(crate) fn watch<T: AsRawFd>(object: Arc<T>) -> Result<AsyncFd<Watched<T>>, Errno> {
    // SAFETY: channels have the same descriptor, open, for as long as they live, and the `Arc` keeps this one alive for as
    // long as the registration exists.
    let watched = unsafe { AsyncFd::register_with_interest(Watched(object), Interest::READABLE) };
    watched.map_err(|error| Errno::from_io_error(&error.into_parts().1).unwrap_or(Errno::INVAL))
}
