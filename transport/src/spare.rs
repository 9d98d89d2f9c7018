//! A descriptor kept for when there are none left: to accept a connection with, and close it.
//!
//! Without it clients would wait in the listener's backlog until their patience ends, and learn nothing. While it is in
//! use, others may take what is free: whoever may keep descriptors for long asks first whether it
//! [is kept](Spare::is_kept), and goes without them if not.

use std::fs::File;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

/// Pause when nothing can be done about it.
const PAUSE: Duration = Duration::from_millis(50);

/// The descriptor.
#[derive(Debug)]
pub struct Spare(Mutex<Option<File>>);

impl Spare {
    /// Takes a descriptor to keep.
    #[must_use]
    pub fn new() -> Self {
        let spare = Self(Mutex::new(None));
        spare.is_kept();
        spare
    }

    /// Whether there is a descriptor kept, or one to be kept from now on.
    pub fn is_kept(&self) -> bool {
        let mut kept = self.0.lock();
        if kept.is_none() {
            *kept = File::open("/dev/null").ok();
        }
        kept.is_some()
    }

    /// Accepts one connection in its place and has it turned away. Pauses when there is none to accept.
    pub async fn turn_one_away<T>(
        &self,
        accept: impl Future<Output = io::Result<T>>,
        turn_away: impl AsyncFnOnce(T),
    ) {
        let kept = self.0.lock().take();
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
        self.is_kept();
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
