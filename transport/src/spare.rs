//! A descriptor kept for when there are none left: to accept a connection with, and close it.
//!
//! Without it clients would wait in the listener's backlog until their patience ends, and learn nothing.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// Pause when nothing can be done about it.
const PAUSE: Duration = Duration::from_millis(50);

/// The descriptor.
#[derive(Debug)]
pub struct Spare(Option<File>);

impl Spare {
    /// Takes a descriptor to keep.
    #[must_use]
    pub fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Accepts one connection in its place and has it turned away. Pauses when there is none to accept.
    pub async fn turn_one_away<T>(
        &mut self,
        accept: impl Future<Output = io::Result<T>>,
        turn_away: impl AsyncFnOnce(T),
    ) {
        let kept = self.0.take();
        let accepted = match kept {
            Some(kept) => {
                drop(kept);
                // Not waited for: with none there, the next one may find descriptors enough.
                tokio::time::timeout(Duration::ZERO, accept).await
            }
            None => Ok(Err(Errno::MFILE.into())),
        };
        match accepted {
            Ok(Ok(accepted)) => turn_away(accepted).await,
            _ => tokio::time::sleep(PAUSE).await,
        }
        *self = Self::new();
    }
}

impl Default for Spare {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a call failed for want of a descriptor, of this process or in all.
#[must_use]
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].into_iter().any(|out| Some(out.raw_os_error()) == errno)
}
