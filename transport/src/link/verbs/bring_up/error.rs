//! Why an RDMA connection did not come up.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::link::LinkError;
use crate::link::verbs::lane::SeatError;
use crate::memory::MemoryError;
use crate::verbs::VerbsError;

/// What is waited for while an RDMA connection comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// A route to the peer.
    Route,
    /// The request to have left for the peer; over iWARP, to have reached it.
    Request,
    /// The peer's answer to the request.
    Answer,
    /// The peer's request.
    Arrival,
    /// What ends the connection manager's handshake.
    Handshake,
    /// A first message of the peer.
    Greeting,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "finding a route",
            Self::Request => "reaching the peer",
            Self::Answer => "being accepted",
            Self::Arrival => "the peer's connection",
            Self::Handshake => "the connection",
            Self::Greeting => "the peer's greeting",
        })
    }
}

impl Step {
    fn hint(self) -> &'static str {
        match self {
            Self::Route => "; does the host answer in this network (ip neigh)?",
            _ => {
                ". TCP reaches the other side and RDMA does not: look for a firewall (RoCE uses UDP port 4791) or a switch in between"
            }
        }
    }
}

/// Why an RDMA connection did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection came up and then died.
    #[error("the RDMA connection died before it was used: {0}")]
    Link(#[from] LinkError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The peer did not answer in time.
    #[error("the RDMA connection at {address} did not come up within {timeout:?}: {step} took too long{}", .step.hint())]
    TimedOut {
        /// Where the accepting side listens.
        address: SocketAddr,
        /// What was waited for.
        step: Step,
        /// The bound on everything.
        timeout: Duration,
    },
    /// The peer refused the connection.
    #[error(
        "{peer} refused the RDMA connection (reason {reason}): nobody listens there, or the ticket is unknown or used"
    )]
    Refused {
        /// Where the peer listens.
        peer: SocketAddr,
        /// What its side gave as reason.
        reason: i32,
    },
    /// Whoever accepted does not have the ticket.
    #[error("whoever accepted the RDMA connection at {peer} is not the server of this session")]
    Impostor {
        /// Where the connection went.
        peer: SocketAddr,
    },
    /// The connection belongs to another device than the memory.
    #[error(
        "the route to {peer} does not use {device}, where the memory is registered; check the routing table"
    )]
    OtherDevice {
        /// Where the connection goes.
        peer: SocketAddr,
        /// The device that was prepared.
        device: String,
    },
    /// The two ends' rings differ.
    #[error("this side's ring has {ours} bytes and the peer's {theirs}: they must be equal")]
    Ring {
        /// Bytes in this side's.
        ours: usize,
        /// Bytes in the peer's.
        theirs: usize,
    },
    /// What the peer says of its end cannot be.
    #[error("the peer describes its end of the RDMA connection implausibly: {0}")]
    Implausible(&'static str),
    /// The lane is full.
    #[error("{0}")]
    Full(String),
    /// The listener has ended.
    #[error("the RDMA listener, or the runtime under it, has ended")]
    Ended,
}

impl From<SeatError> for BringUpError {
    fn from(error: SeatError) -> Self {
        match error {
            SeatError::Full(_) => Self::Full(error.to_string()),
            SeatError::Verbs(error) => Self::Verbs(error),
            SeatError::Link(error) => Self::Link(error),
        }
    }
}
