//! Rings as memory that can be registered.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Registrable;
use crate::memory::Region;

/// A ring, mapped once: what this side sends from.
#[derive(Debug)]
pub(crate) struct Once(pub(crate) Arc<Region>);

// SAFETY: the ring stays mapped for as long as the region lives. It is only read by the device, which the staging ring's
// rules provide for: what is on its way is not written before the peer has released it.
unsafe impl Registrable for Once {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.0.ring(), self.0.size().bytes())
    }
}

/// A ring, mapped twice: what the peer writes to.
#[derive(Debug)]
pub(crate) struct Twice(pub(crate) Arc<Region>);

// SAFETY: the ring is mapped twice, back to back, readable and writable, for as long as the region lives. The mailbox
// expects that the peer changes it at any time.
unsafe impl Registrable for Twice {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.0.ring(), 2 * self.0.size().bytes())
    }
}
