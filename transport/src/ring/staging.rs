//! The sender's ring: claim, encode in place, commit, and seal in order.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Advance, BLOCK, Blocks, Frontier, Position, RingSize};
use crate::frame::{Check, HEADER, Header, Kind};
use crate::memory::Region;
use crate::sync::{AtomicU64, Ordering};

/// Blocks that only control frames (cancel, window, go-away …) may claim, so that a ring full of data can still
/// be unblocked and closed.
const CONTROL_RESERVE: u64 = 16;

/// Which part of the ring a claim may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// All but the reserve.
    Data,
    /// All of it.
    Control,
}

/// Why a claim was not granted.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ClaimError {
    /// Not now: wait until the receiver has released something.
    #[error("the ring is full")]
    Full,
    /// Never: frames are limited to half a ring, so that one always fits while another is on its way.
    #[error(
        "a frame of {bytes} bytes does not fit a ring of {ring} bytes: at most half of it may be one frame"
    )]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes in the ring.
        ring: usize,
    },
}

/// The sender's ring.
///
/// Many producers claim; each encodes outside any lock; a frame leaves only when all frames claimed before it are
/// committed.
///
/// ```text
///      freed          flushed        committed              tail
///        │   on its way  │    to flush   │  being encoded     │    free
///  ──────┴───────────────┴───────────────┴────────────────────┴─────────▶ positions
/// ```
#[derive(Debug)]
pub struct Staging {
    region: Arc<Region>,
    committed: Frontier,
    tail: AtomicU64,
    freed: AtomicU64,
}

impl Staging {
    /// A ring in `region`, which this process must have created.
    #[must_use]
    pub fn new(region: Arc<Region>) -> Self {
        let size = region.size();
        Self { region, committed: Frontier::new(size), tail: AtomicU64::new(0), freed: AtomicU64::new(0) }
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

    /// Claims room for a frame of `bytes` bytes, header included.
    ///
    /// # Errors
    /// [`ClaimError::Full`] when the receiver has to release something first, [`ClaimError::TooLarge`] when waiting
    /// would not help.
    pub fn claim(&self, bytes: usize, room: Room) -> Result<Claim<'_>, ClaimError> {
        debug_assert!(bytes >= HEADER);
        let ring = self.size().blocks();
        let blocks = Blocks::holding(bytes)
            .filter(|blocks| blocks.0 <= ring.0 / 2)
            .ok_or(ClaimError::TooLarge { bytes, ring: ring.bytes() })?;
        let usable = u64::from(ring.0) - if room == Room::Data { CONTROL_RESERVE } else { 0 };
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            // Acquire: what the receiver released must have been read before it is written again.
            let freed = self.freed.load(Ordering::Acquire);
            if tail + u64::from(blocks.0) > freed + usable {
                return Err(ClaimError::Full);
            }
            match self.tail.compare_exchange_weak(
                tail,
                tail + u64::from(blocks.0),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Ok(Claim { staging: self, at: Position(tail), blocks, bytes, committed: false });
                }
                Err(now) => tail = now,
            }
        }
    }

    /// Goes inside to seal and flush what is committed; `None` when somebody is inside already and will do it.
    pub fn enter(&self) -> Option<Advance<'_>> {
        self.committed.enter()
    }

    /// How far sealed frames reach.
    #[must_use]
    pub fn sealed(&self) -> Position {
        self.committed.head()
    }

    /// How far has been claimed.
    #[must_use]
    pub fn claimed(&self) -> Position {
        Position(self.tail.load(Ordering::Relaxed))
    }

    /// Whether nothing is claimed that was not sealed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.tail.load(Ordering::Acquire) == self.committed.head().0
    }

    /// Position up to which space may be claimed again.
    #[must_use]
    pub fn freed(&self) -> Position {
        Position(self.freed.load(Ordering::Acquire))
    }

    /// Blocks claimed and not yet free again.
    #[must_use]
    pub fn occupied(&self) -> u64 {
        self.tail.load(Ordering::Relaxed).saturating_sub(self.freed.load(Ordering::Relaxed))
    }

    /// Gives space back up to `position`; whether that moved anything. The caller has checked that it is no further
    /// than what was flushed.
    pub fn free_to(&self, position: Position) -> bool {
        debug_assert!(position <= self.committed.head());
        self.freed.fetch_max(position.0, Ordering::AcqRel) < position.0
    }

    /// Fills in, in the frame at `at`, what is known only when it leaves. Only whoever is inside
    /// ([`Staging::enter`]) may call it, for a range that [`Advance::step`] just returned.
    pub(crate) fn seal(&self, at: Position, acknowledged: u32, sequence: u32, check: Check) {
        // SAFETY: the range at `at` is committed, at least one block long and not yet flushed: its claim is gone,
        // no reader has been told of it, and the caller alone is inside. The array is within the double mapping.
        let header =
            unsafe { self.region.ring().add(self.size().offset(at)).cast::<[u8; HEADER]>().as_mut() };
        Header::seal(header, acknowledged, sequence, check);
    }

    /// The end of the last frame that ends at or before `limit`, of those between two positions, of which `from` is the
    /// beginning of one. They must be sealed and not freed.
    pub(crate) fn last_frame_end(&self, from: Position, to: Position, limit: Position) -> Position {
        let bytes = self.bytes(from, to);
        let mut end = from;
        while let Some(length) = bytes.get((end.0 - from.0) as usize * BLOCK..).and_then(<[u8]>::first_chunk)
        {
            let blocks = Blocks::holding(u32::from_le_bytes(*length) as usize).expect("a 32-bit length");
            if end.plus(blocks) > limit {
                break;
            }
            end = end.plus(blocks);
        }
        end
    }

    /// The bytes between two positions, for a link to send. They must be sealed and not freed.
    pub(crate) fn bytes(&self, from: Position, to: Position) -> &[u8] {
        let blocks = to.since(from).expect("positions in order");
        assert!(blocks <= u64::from(self.size().blocks().0) && to <= self.sealed() && from >= self.freed());
        // SAFETY: the range is at most one ring long and so within the double mapping; it is sealed, so no claim
        // writes it, and it is not freed, so no claim can get it before the caller is done: the link frees it.
        unsafe {
            std::slice::from_raw_parts(
                self.region.ring().add(self.size().offset(from)).as_ptr(),
                blocks as usize * BLOCK,
            )
        }
    }
}

/// A contiguous range of the ring that one producer may write. It becomes a frame when it is committed; dropped
/// without that, it becomes a skip frame, so that nothing behind it waits for ever.
#[derive(Debug)]
pub struct Claim<'a> {
    staging: &'a Staging,
    at: Position,
    blocks: Blocks,
    bytes: usize,
    committed: bool,
}

impl Claim<'_> {
    /// Where in the ring the frame is.
    #[must_use]
    pub fn position(&self) -> Position {
        self.at
    }

    /// The position behind the frame.
    pub(crate) fn end(&self) -> Position {
        self.at.plus(self.blocks)
    }

    /// Writes the header and makes the frame ready to leave. It leaves with the next flush.
    ///
    /// # Panics
    /// When the header's length is not the claim's.
    pub fn commit(mut self, header: &Header) {
        assert_eq!(header.length as usize, self.bytes, "a frame must be as long as its claim");
        self[..HEADER].copy_from_slice(&header.encode());
        self.committed = true;
        self.staging.committed.mark(self.at, self.blocks);
    }
}

impl Deref for Claim<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the claim owns this range of the double mapping alone until it is committed.
        unsafe {
            std::slice::from_raw_parts(
                self.staging.region.ring().add(self.staging.size().offset(self.at)).as_ptr(),
                self.bytes,
            )
        }
    }
}

impl DerefMut for Claim<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes it the only slice.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.staging.region.ring().add(self.staging.size().offset(self.at)).as_ptr(),
                self.bytes,
            )
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.committed {
            let header = Header::new(Kind::Skip, self.bytes as u32).encode();
            self[..HEADER].copy_from_slice(&header);
            self.staging.committed.mark(self.at, self.blocks);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn staging() -> Staging {
        Staging::new(Arc::new(Region::create(RingSize::new(RingSize::MIN).unwrap()).unwrap()))
    }

    fn advance(staging: &Staging) -> Vec<(Position, Blocks)> {
        let mut advance = staging.enter().unwrap();
        let steps = std::iter::from_fn(|| advance.step()).collect();
        assert!(advance.leave().is_none());
        steps
    }

    #[test]
    fn frames_leave_in_the_order_of_their_claims() {
        let staging = staging();
        let first = staging.claim(100, Room::Data).unwrap();
        let second = staging.claim(40, Room::Data).unwrap();
        second.commit(&Header::new(Kind::Ping, 40));
        assert!(advance(&staging).is_empty());
        first.commit(&Header::new(Kind::Ping, 100));
        assert_eq!(advance(&staging), [(Position(0), Blocks(2)), (Position(2), Blocks(1))]);
    }

    #[test]
    fn a_dropped_claim_becomes_a_skip() {
        let staging = staging();
        drop(staging.claim(100, Room::Data).unwrap());
        assert_eq!(advance(&staging), [(Position(0), Blocks(2))]);
        let bytes = staging.bytes(Position(0), Position(2));
        let header = Header::decode(bytes[..HEADER].try_into().unwrap(), 4096, Check::Off).unwrap();
        assert_eq!((header.kind, header.length), (Kind::Skip, 100));
    }

    #[test]
    fn data_leaves_the_reserve_to_control_frames() {
        let staging = staging();
        while let Ok(claim) = staging.claim(BLOCK, Room::Data) {
            claim.commit(&Header::new(Kind::Ping, BLOCK as u32));
        }
        assert_eq!(staging.occupied(), u64::from(staging.size().blocks().0) - CONTROL_RESERVE);
        for _ in 0..CONTROL_RESERVE {
            staging.claim(BLOCK, Room::Control).unwrap().commit(&Header::new(Kind::Ping, BLOCK as u32));
        }
        assert_eq!(staging.claim(BLOCK, Room::Control).unwrap_err(), ClaimError::Full);
        advance(&staging);
        assert!(staging.free_to(Position(1)));
        assert!(staging.claim(BLOCK, Room::Control).is_ok());
    }

    #[test]
    fn what_can_never_fit_says_so() {
        let staging = staging();
        let ring = staging.size().bytes();
        assert_eq!(
            staging.claim(ring / 2 + 1, Room::Data).unwrap_err(),
            ClaimError::TooLarge { bytes: ring / 2 + 1, ring }
        );
        assert!(staging.claim(ring / 2, Room::Data).is_ok());
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A staging ring and how far it was handed to a link, as [`Endpoint`](crate::endpoint) does it.
    struct Sender {
        staging: Staging,
        flushed: AtomicU64,
    }

    impl Sender {
        /// The memory is made once: loom runs the rest of it many thousand times.
        fn new(region: &std::sync::Arc<Region>) -> Arc<Self> {
            Arc::new(Self {
                staging: Staging::new(std::sync::Arc::clone(region)),
                flushed: AtomicU64::new(0),
            })
        }

        fn send(&self, bytes: usize) {
            self.staging.claim(bytes, Room::Data).unwrap().commit(&Header::new(Kind::Ping, bytes as u32));
            self.release(self.staging.enter());
        }

        fn release(&self, mut inside: Option<Advance<'_>>) {
            while let Some(mut advance) = inside {
                while let Some((at, blocks)) = advance.step() {
                    let before = self.flushed.swap(at.plus(blocks).0, Ordering::Relaxed);
                    assert_eq!(before, at.0, "a frame left out of order");
                }
                inside = advance.leave();
            }
        }
    }

    fn region() -> std::sync::Arc<Region> {
        std::sync::Arc::new(Region::create(RingSize::SMALLEST).unwrap())
    }

    #[test]
    fn every_committed_frame_leaves_whoever_flushes() {
        let region = region();
        loom::model(move || {
            let sender = Sender::new(&region);
            let others = [40, 100].map(|bytes| {
                let sender = Arc::clone(&sender);
                thread::spawn(move || sender.send(bytes))
            });
            drop(sender.staging.claim(70, Room::Data).unwrap());
            sender.release(sender.staging.enter());
            others.into_iter().for_each(|other| other.join().unwrap());
            assert!(sender.staging.is_settled());
            assert_eq!(sender.flushed.load(Ordering::Relaxed), 5);
        });
    }

    #[test]
    fn what_is_committed_while_the_flush_is_held_leaves_with_it() {
        let region = region();
        loom::model(move || {
            let sender = Sender::new(&region);
            let other = {
                let sender = Arc::clone(&sender);
                thread::spawn(move || sender.send(40))
            };
            let held = sender.staging.enter();
            sender.staging.claim(40, Room::Data).unwrap().commit(&Header::new(Kind::Ping, 40));
            sender.release(held.or_else(|| sender.staging.enter()));
            other.join().unwrap();
            assert_eq!(sender.flushed.load(Ordering::Relaxed), 2);
        });
    }

    /// Two producers race for the last place while the receiver frees another.
    #[test]
    fn space_is_given_to_one_producer_at_a_time() {
        let region = region();
        loom::model(move || {
            let sender = Sender::new(&region);
            let usable = u64::from(RingSize::SMALLEST.blocks().0) - CONTROL_RESERVE;
            for _ in 0..2 {
                let half = usable as usize / 2 * BLOCK;
                sender.staging.claim(half, Room::Data).unwrap().commit(&Header::new(Kind::Ping, half as u32));
            }
            sender.release(sender.staging.enter());
            let claim =
                |sender: &Sender| sender.staging.claim(40, Room::Data).map(|claim| claim.position().0);
            let other = {
                let sender = Arc::clone(&sender);
                thread::spawn(move || claim(&sender).ok())
            };
            sender.staging.free_to(Position(1));
            let own = claim(&sender).ok();
            let other = other.join().unwrap();
            assert_eq!(own.into_iter().chain(other).collect::<Vec<_>>(), [usable], "one place, one producer");
        });
    }
}
