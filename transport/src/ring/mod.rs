//! The byte ring: positions, claiming and committing, releasing out of order.
//!
//! A ring is a power-of-two number of 64-byte blocks. The producer claims a contiguous range at the tail,
//! encodes into it and commits it; the ring becomes visible to the consumer only up to the first range
//! that is still being encoded. The consumer releases ranges in any order; the producer may reuse space
//! only up to the first range that is still held.
//!
//! Both halves are the same question, *how far does the unbroken run of finished ranges reach?*, and one
//! type answers it: [`Frontier`].

mod frontier;
mod mailbox;
mod position;
mod staging;
mod starving;

pub use frontier::{Advance, Frontier};
pub use mailbox::{Acknowledge, Incoming, Mailbox};
pub use position::{BLOCK, Blocks, InvalidRingSize, Position, RingSize};
pub use staging::{Claim, ClaimError, Room, Staging};
pub(crate) use starving::Starving;
