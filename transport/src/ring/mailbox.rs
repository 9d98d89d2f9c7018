//! The receiver's ring: memory that the peer writes, frames in it, and their release in any order.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::{BLOCK, Blocks, Frontier, Position, RingSize};
use crate::frame::{Check, FrameError, HEADER, Header, Kind};
use crate::memory::Region;
use crate::memory::lending::{Loan, Window};
use crate::sync::{AtomicBool, Ordering};

/// Told when space in a mailbox has become free, to tell the peer.
pub trait Acknowledge: Send + Sync {
    /// Everything before `consumed` has been released.
    fn acknowledge(&self, consumed: Position);
}

/// The receiver's ring.
///
/// ```text
///    consumed            read             produced
///        │  held by frames │    to be read    │      free
///  ──────┴─────────────────┴──────────────────┴──────────▶ positions
/// ```
///
/// The peer may change these bytes at any time, whatever it has announced. Headers are copied out before they are
/// checked; payloads are checked by whoever decodes them, from a slice whose bounds are fixed.
pub struct Mailbox {
    region: Arc<Region>,
    released: Frontier,
    acknowledge: Arc<dyn Acknowledge>,
    /// Whether frames are copied out of the ring before they are handed out: for peers that are not trusted to
    /// leave them alone.
    copies: AtomicBool,
    /// Where frames are lent to the application; made when first needed, `None` when that failed.
    window: OnceLock<Option<Arc<Window>>>,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("region", &self.region).field("consumed", &self.consumed()).finish()
    }
}

impl Mailbox {
    /// A mailbox in `region`. With `copies`, the peer is not trusted to leave a frame alone that it has announced,
    /// and every frame is copied out first.
    pub fn new(region: Arc<Region>, acknowledge: Arc<dyn Acknowledge>, copies: bool) -> Self {
        let size = region.size();
        let copies = AtomicBool::new(copies);
        Self { region, released: Frontier::new(size), acknowledge, copies, window: OnceLock::new() }
    }

    /// Whether frames are copied out from now on. Only between two frames: whoever receives calls it.
    pub(crate) fn set_copies(&self, copies: bool) {
        self.copies.store(copies, Ordering::Relaxed);
    }

    /// Size of the ring.
    #[must_use]
    pub fn size(&self) -> RingSize {
        self.region.size()
    }

    /// The memory that the ring lives in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Position up to which everything has been released.
    #[must_use]
    pub fn consumed(&self) -> Position {
        self.released.head()
    }

    /// Checks that a peer that has produced `from` may have produced `to` by now.
    ///
    /// # Errors
    /// When the position went back or beyond one ring after what was released.
    pub fn check_produced(&self, from: Position, to: Position) -> Result<(), FrameError> {
        let until = self.consumed().plus(self.size().blocks());
        if to < from || to > until {
            Err(FrameError::BadPosition { produced: to, from, until })
        } else {
            Ok(())
        }
    }

    /// Copies the header at `at` out and checks it against what has been produced.
    ///
    /// # Errors
    /// The rule that the header breaks.
    pub(crate) fn header(&self, at: Position, limit: u32, check: Check) -> Result<Header, FrameError> {
        // SAFETY: any block's first 32 bytes lie within the mapping and are aligned to the block. The peer may be writing them, so they are
        // read as one volatile copy and never looked at again in place.
        let words = unsafe {
            self.region
                .ring()
                .add(self.size().offset(at))
                .cast::<[u64; HEADER / 8]>()
                .as_ptr()
                .read_volatile()
        };
        let mut bytes = [0; HEADER];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Header::decode(&bytes, limit, check)
    }

    /// Copies bytes at `at` out, which a device may be writing at the same time.
    pub(crate) fn copy(&self, at: Position, into: &mut [u8]) {
        assert!(into.len() <= BLOCK, "within one block");
        // SAFETY: one block from an offset below the ring's size lies within the mapping.
        let from = unsafe { self.region.ring().add(self.size().offset(at)) };
        for (offset, byte) in into.iter_mut().enumerate() {
            // SAFETY: as above; each byte is read once, as it happens to be.
            *byte = unsafe { from.add(offset).as_ptr().read_volatile() };
        }
    }

    /// Room from `received` bytes on, for a link that itself puts bytes into the mailbox: where to, and how many at
    /// most.
    pub(crate) fn room(&self, received: u64) -> (*mut u8, usize) {
        let ring = self.size().bytes() as u64;
        let used = received - self.consumed().0 * BLOCK as u64;
        // SAFETY: the offset is below the ring's size; with at most one ring of room the end is within the double
        // mapping.
        let start = unsafe { self.region.ring().add((received & (ring - 1)) as usize) };
        (start.as_ptr(), ring.saturating_sub(used) as usize)
    }

    fn window(&self) -> Option<&Arc<Window>> {
        let made = self.window.get_or_init(|| match Window::new(Arc::clone(&self.region)) {
            Ok(window) => Some(Arc::new(window)),
            Err(error) => {
                tracing::warn!(%error, "frames cannot be lent to the application and will be copied");
                None
            }
        });
        made.as_ref()
    }

    /// Gives frames that the application has borrowed private copies, and so releases their space.
    pub fn detach_lent(&self) {
        if let Some(Some(window)) = self.window.get() {
            for (at, blocks) in window.detach_all() {
                self.release(at, blocks);
            }
        }
    }

    fn release(&self, at: Position, blocks: Blocks) {
        self.released.mark(at, blocks);
        let mut inside = self.released.enter();
        while let Some(mut advance) = inside {
            let mut moved = false;
            while advance.step().is_some() {
                moved = true;
            }
            if moved {
                self.acknowledge.acknowledge(self.released.head());
            }
            inside = advance.leave();
        }
    }
}

/// A frame that has arrived. Dropping it releases its space in the ring.
pub struct Incoming {
    header: Header,
    body: Body,
    /// The part of the frame that has not been split off.
    range: Range<usize>,
}

enum Body {
    /// In the ring, held until drop.
    Ring { mailbox: Arc<Mailbox>, at: Position, blocks: Blocks },
    /// Copied out, or put together from fragments.
    Owned(Bytes),
}

impl Incoming {
    /// Takes hold of the frame with this (checked) header at `at`.
    pub(crate) fn new(mailbox: &Arc<Mailbox>, at: Position, header: Header) -> Self {
        let length = header.length as usize;
        let blocks = Blocks::holding(length).expect("a 32-bit length");
        let held = Self {
            header,
            body: Body::Ring { mailbox: Arc::clone(mailbox), at, blocks },
            range: HEADER..length,
        };
        if mailbox.copies.load(Ordering::Relaxed) && header.kind != Kind::Skip {
            let copy = Bytes::copy_from_slice(held.payload());
            return Self { header, range: 0..copy.len(), body: Body::Owned(copy) };
        }
        held
    }

    /// A frame whose payload does not live in a ring: put together from fragments.
    #[must_use]
    pub fn assembled(header: Header, payload: Bytes) -> Self {
        Self { header, range: 0..payload.len(), body: Body::Owned(payload) }
    }

    /// The frame's header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes behind the header that have not been split off.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.all()[self.range.clone()]
    }

    /// Whether the payload still occupies the ring.
    #[must_use]
    pub fn holds_ring(&self) -> bool {
        matches!(self.body, Body::Ring { .. })
    }

    /// Whether it is wise to let the application hold this frame: there is room enough in the ring behind it.
    #[must_use]
    pub fn may_be_lent(&self) -> bool {
        match &self.body {
            Body::Owned(_) => true,
            Body::Ring { mailbox, at, .. } => at
                .since(mailbox.consumed())
                .is_some_and(|held| held < u64::from(mailbox.size().blocks().0) / 4),
        }
    }

    /// Drops the first `bytes` bytes of the payload.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.range.len());
        self.range.start += bytes;
    }

    /// The payload as shared bytes, without a copy where that is possible: the space in the ring is released when the
    /// last clone of them is dropped, or when the ring needs it ([`Mailbox::detach_lent`]).
    #[must_use]
    pub fn into_bytes(mut self) -> Bytes {
        let range = self.range.clone();
        let loan = match &self.body {
            Body::Owned(bytes) => return bytes.slice(range),
            Body::Ring { mailbox, at, blocks } => {
                mailbox.window().and_then(|window| window.lend(*at, *blocks, range.start, range.len()))
            }
        };
        let Some(loan) = loan else { return Bytes::copy_from_slice(self.payload()) };
        // From here on the loan, not the frame, holds the space.
        match std::mem::replace(&mut self.body, Body::Owned(Bytes::new())) {
            Body::Ring { mailbox, .. } => Bytes::from_owner(Lent { loan, mailbox }),
            Body::Owned(_) => unreachable!("a loan is of a frame in the ring"),
        }
    }

    /// Copies the payload out of the ring and releases its space there, if it is still in it.
    pub fn detach(&mut self) {
        if self.holds_ring() {
            let copy = Bytes::copy_from_slice(self.payload());
            *self = Self { header: self.header, range: 0..copy.len(), body: Body::Owned(copy) };
        }
    }

    fn all(&self) -> &[u8] {
        match &self.body {
            Body::Owned(bytes) => bytes,
            // SAFETY: the header's length was checked to be at most half a ring, so the range is within the double
            // mapping, which `mailbox` keeps alive. This side writes it again only after it has been released,
            // which happens on drop. A peer with the memory mapped could write it: such peers are either trusted
            // (same user, who could attach a debugger as well) or have their frames copied out first.
            Body::Ring { mailbox, at, .. } => unsafe {
                std::slice::from_raw_parts(
                    mailbox.region.ring().add(mailbox.size().offset(*at)).as_ptr(),
                    self.header.length as usize,
                )
            },
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("header", &self.header)
            .field("payload_bytes", &self.range.len())
            .field("holds_ring", &self.holds_ring())
            .finish()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Body::Ring { mailbox, at, blocks } = &self.body {
            mailbox.release(*at, *blocks);
        }
    }
}

/// A frame that the application has borrowed.
struct Lent {
    loan: Loan,
    mailbox: Arc<Mailbox>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.loan.as_slice()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some((at, blocks)) = self.loan.end() {
            self.mailbox.release(at, blocks);
        }
    }
}
