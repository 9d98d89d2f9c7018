//! Command-line options that both probe programs have.

use ringmail::{LinkKind, Wait};

/// A tokio runtime's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Runtime {
    /// Two worker threads.
    Multi,
    /// The thread that waits for the program's work.
    Current,
}

impl Runtime {
    /// Builds it.
    ///
    /// # Errors
    /// When threads or descriptors cannot be had.
    pub fn build(self) -> std::io::Result<tokio::runtime::Runtime> {
        match self {
            Self::Multi => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build(),
            Self::Current => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        }
    }
}

/// Reads a waiting mode.
///
/// # Errors
/// When it is none.
pub fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "busy" => Ok(Wait::Busy),
        "event" => Ok(Wait::Event),
        "adaptive" => Ok(Wait::Adaptive),
        _ => Err("must be busy, event or adaptive".to_owned()),
    }
}

/// Reads a kind of link.
///
/// # Errors
/// When it is none.
pub fn link(text: &str) -> Result<LinkKind, String> {
    [LinkKind::Shm, LinkKind::Tcp]
        .into_iter()
        .find(|kind| kind.to_string() == text)
        .ok_or_else(|| "must be shm or tcp".to_owned())
}
