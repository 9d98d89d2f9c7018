//! Links: how one peer's staging ring and the other's mailbox are made equal.
//!
//! | link | "make it equal" | "notify" | free space comes back by |
//! |---|---|---|---|
//! | [`shm`] | nothing: the peer's mailbox *is* the staging ring | a position, and a wake-up if the peer sleeps | the peer's position |
//! | [`tcp`] | the bytes are streamed, from staging into the mailbox | they arrive | the kernel's socket buffer |
//! | `verbs` (feature `rdma`) | one RDMA WRITE | its immediate, or a message of four bytes behind it | the acknowledged position |
//! | [`switching`] | TCP, and another link that takes over from it | as theirs | as theirs |
//! | [`sim`] | a copy on a seeded schedule, with faults | a queue | an acknowledgement, as with RDMA |
//!
//! The trait is written for RDMA, the most demanding: memory is registered before use and stays put; positions are
//! absolute; notifications are a resource of their own, apart from space; and a full send queue is back-pressure
//! that ends by itself, not an error.

mod credit;
#[cfg(not(loom))]
mod readiness;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
pub mod sim;
mod sleep;
#[cfg(not(loom))]
pub mod switching;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(all(feature = "rdma", not(loom)))]
pub mod verbs;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;

pub use self::credit::{BadGrant, NoticeError};
use crate::frame::FrameError;
use crate::memory::MemoryError;
use crate::rendezvous::{Fetch, Lendable};
use crate::ring::{Acknowledge, Mailbox, Position, Staging};

/// The kinds of link, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LinkKind {
    /// Shared memory, between processes on one host.
    Shm,
    /// RDMA through verbs: InfiniBand, RoCE, iWARP.
    Rdma,
    /// TCP: always there.
    Tcp,
    /// Simulated, for tests.
    Sim,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Sim => "sim",
        })
    }
}

/// Why a link ended. Everything that was in flight on the connection ends with it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer closed the connection or its process ended.
    #[error("the peer closed the connection or its process ended")]
    PeerClosed,
    /// The peer's host does not acknowledge any more what it is sent, or the network says that it cannot be reached.
    #[error(
        "the peer's host has fallen silent for longer than the keepalive time ({errno}): it is down, or the network to it is cut"
    )]
    Silent {
        /// What the kernel said.
        errno: Errno,
    },
    /// This side closed it.
    #[error("the connection was closed on this side: {0}")]
    Closed(&'static str),
    /// A system call failed.
    #[error("{call} failed on the {kind} link: {errno}")]
    System {
        /// On which kind of link.
        kind: LinkKind,
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The peer broke a rule of the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] FrameError),
    /// Notifications broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Notice(#[from] NoticeError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(Arc<MemoryError>),
    /// A verbs call or a work request failed.
    #[cfg(all(feature = "rdma", not(loom)))]
    #[error(transparent)]
    Rdma(Arc<crate::verbs::VerbsError>),
    /// The simulated link was told to fail here.
    #[error("the simulated link died at step {0}")]
    Simulated(u64),
}

/// What a flush achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// Everything before this position is on its way and needs no further call.
    pub until: Position,
    /// The link cannot take more now (a full send queue, no notification credit, a full socket buffer). It wakes
    /// whoever armed it when that has changed.
    pub blocked: bool,
}

/// What has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Position up to which the mailbox may be read.
    pub produced: Position,
}

/// What a link has asked of its device so far, and was told by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounts {
    /// Times that work requests were handed over: doorbells, or system calls where the device is software.
    pub doorbells: u64,
    /// Notifications of the peer that have come: receive completions.
    pub notifications: u64,
}

/// One connection's link. Calls to `flush` never overlap each other, nor do calls to `poll`; a `flush` and a `poll`
/// may.
pub trait Link: Acknowledge + fmt::Debug {
    /// What kind of link this is.
    fn kind(&self) -> LinkKind;

    /// Whether what `poll` announces always ends at the end of a frame. If not, a frame may be announced in parts.
    fn announces_whole_frames(&self) -> bool;

    /// Puts the sealed bytes of `staging` from `from` to `to` on their way, as far as possible.
    ///
    /// # Errors
    /// When the link is dead.
    fn flush(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError>;

    /// Position up to which the peer can have been told of frames, and so can have consumed them. At most what was
    /// `sealed`; for links where space comes back only as fast as bytes leave, that is close enough.
    fn announced(&self, sealed: Position) -> Position {
        sealed
    }

    /// Position up to which the staging ring may be used again, as far as the link itself knows; the peer cannot
    /// have consumed more than was `sealed`. Positions also arrive in frame headers; links that need those say so
    /// with [`Link::frees_by_header`].
    ///
    /// # Errors
    /// When the peer claims something impossible.
    fn freed(&self, sealed: Position) -> Result<Position, LinkError>;

    /// Whether the acknowledged position in arriving headers is what frees the staging ring.
    fn frees_by_header(&self) -> bool;

    /// Looks for what has arrived since `known`, without waiting.
    ///
    /// # Errors
    /// When the link is dead or the peer announces something impossible.
    fn poll(&self, mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError>;

    /// Arranges that the task is woken when something arrives, when a blocked link can take more, and when space has
    /// become free after [`Link::starve`]. `Ready` when that is so already: poll again before arming again. Must be
    /// called within a tokio runtime.
    fn arm(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>>;

    /// The task that was armed has been woken and will poll next: forgets the events that woke it, so that arming
    /// again does not find them.
    fn woken(&self) {}

    /// Says that somebody waits for space in the staging ring, of which everything before `freed` is known to be free:
    /// the armed task is to be woken when there is more. `true` when there is more already. Any thread may call it.
    fn starve(&self, freed: Position) -> bool;

    /// Takes back what [`Link::starve`] said.
    fn fed(&self);

    /// Takes back what [`Link::arm`] arranged, so that the peer need not wake anybody. Cheap when not armed. Does not
    /// overlap `arm` or `poll`.
    fn disarm(&self);

    /// Gives up what it costs to be armed again quickly, because this side is polling and being told of each
    /// arrival costs more than it brings. Only a hint.
    fn rest(&self) {}

    /// What it has asked of its device; `None` without one.
    fn device_counts(&self) -> Option<DeviceCounts> {
        None
    }

    /// Memory for a message of so many bytes that the peer can read by itself. `None` when there is no such memory now, the
    /// peer cannot, or it is not worth it for so few bytes; most links never have any.
    fn lend(&self, bytes: usize) -> Option<Box<dyn Lendable>> {
        let _ = bytes;
        None
    }

    /// Begins to read what the peer lends. Dropping it says that it cannot be read, which most links can never.
    fn fetch(&self, fetch: Fetch) {
        drop(fetch);
    }

    /// Ends the link; both sides notice.
    fn close(&self);
}

/// What an armed link waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// How far has been seen of what arrived.
    pub known: Position,
    /// Whether a flush is blocked.
    pub blocked: bool,
}
