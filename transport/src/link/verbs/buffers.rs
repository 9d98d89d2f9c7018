//! A connection's registered memory for large messages.
//!
//! Registering takes long, so memory that is not needed any more is kept for the next message, for a while. What may be in
//! use is bounded: beyond that, messages travel in fragments.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::rendezvous::{Lendable, Offer};
use crate::verbs::{Access, BufferError, Filled, ProtectionDomain, Remote, Sink, Source, Transport};

/// Bytes that a connection may lend at a time.
const MOST_LENT: u64 = 128 << 20;
/// Bytes that a connection may fetch at a time, those included that the application has not let go of.
const MOST_FETCHED: u64 = 256 << 20;
/// Bytes of each kind that are kept for the next messages.
const MOST_KEPT: u64 = 32 << 20;
/// How long they are kept.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// How long nothing is tried after memory could not be had.
const PAUSE: Duration = Duration::from_secs(1);
/// Memory comes in whole pages.
const PAGE: usize = 4096;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Buffers {
    domain: Arc<ProtectionDomain>,
    /// What reads need of the memory that they write to.
    access: Access,
    epoch: u32,
    stock: Mutex<Stock>,
}

#[derive(Debug)]
struct Stock {
    closed: bool,
    lent: Shelf<Source>,
    fetched: Shelf<Sink>,
    /// Memory could not be had: not before this is it tried again.
    pause: Option<Instant>,
}

impl Default for Stock {
    fn default() -> Self {
        Self { closed: false, lent: Shelf::new(MOST_LENT), fetched: Shelf::new(MOST_FETCHED), pause: None }
    }
}

/// Memory of one kind: what is kept, and how much is in use.
#[derive(Debug)]
struct Shelf<T> {
    kept: Kept<T>,
    /// Bytes in use, and how many may be.
    used: u64,
    most: u64,
}

impl<T: Piece> Shelf<T> {
    fn new(most: u64) -> Self {
        Self { kept: Kept::default(), used: 0, most }
    }

    /// Takes memory for so many bytes into use: a piece that was kept, or room for one of `fresh` bytes that is to be made;
    /// and how many bytes that is. `None` when too much is in use.
    fn take(&mut self, length: usize, fresh: usize) -> Option<(Option<T>, u64)> {
        let kept = self.kept.take(length);
        let bytes = kept.as_ref().map_or(fresh, T::length) as u64;
        if self.used + bytes > self.most {
            return None;
        }
        self.used += bytes;
        Some((kept, bytes))
    }

    /// A piece is not in use any more. What is not kept is returned.
    fn give_back(&mut self, piece: T, keep: bool) -> Vec<T> {
        self.used -= piece.length() as u64;
        if keep { self.kept.put(piece) } else { vec![piece] }
    }
}

/// Memory that has a length.
trait Piece {
    fn length(&self) -> usize;
}

impl Piece for Source {
    fn length(&self) -> usize {
        Self::length(self)
    }
}

impl Piece for Sink {
    fn length(&self) -> usize {
        Self::length(self)
    }
}

/// What is kept, the longest unused first.
#[derive(Debug)]
struct Kept<T>(VecDeque<(Instant, T)>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Piece> Kept<T> {
    /// The smallest that is large enough, and not much too large.
    fn take(&mut self, length: usize) -> Option<T> {
        let fits = |piece: &T| (length..=length.saturating_mul(2)).contains(&piece.length());
        let found = self.0.iter().enumerate().filter(|(_, (_, piece))| fits(piece));
        let (at, _) = found.min_by_key(|(_, (_, piece))| piece.length())?;
        self.0.remove(at).map(|(_, piece)| piece)
    }

    /// Keeps one more; what there is no room for any more is returned.
    fn put(&mut self, piece: T) -> Vec<T> {
        self.0.push_back((Instant::now(), piece));
        let mut bytes: u64 = self.0.iter().map(|(_, piece)| piece.length() as u64).sum();
        let mut surplus = Vec::new();
        while bytes > MOST_KEPT
            && let Some((_, piece)) = self.0.pop_front()
        {
            bytes -= piece.length() as u64;
            surplus.push(piece);
        }
        surplus
    }

    /// Those that have not been used for long.
    fn stale(&mut self, now: Instant) -> Vec<T> {
        let count = self.0.iter().take_while(|(since, _)| now.duration_since(*since) >= KEPT_FOR).count();
        self.0.drain(..count).map(|(_, piece)| piece).collect()
    }
}

/// Steps of an eighth of the next power of two, so that messages of about the same length use the same memory.
fn rounded(length: usize) -> Option<usize> {
    length.checked_next_multiple_of((length.checked_next_power_of_two()? / 8).max(PAGE))
}

impl Buffers {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, epoch: u8) -> Arc<Self> {
        // Over iWARP what is read arrives as a write by the peer.
        let access = match domain.context().transport() {
            Transport::InfiniBand => Access::LocalWrite,
            Transport::Iwarp | Transport::Other => Access::RemoteWrite,
        };
        let domain = Arc::clone(domain);
        Arc::new(Self { domain, access, epoch: u32::from(epoch), stock: Mutex::default() })
    }

    /// Whether it belongs to the link of this epoch.
    pub(super) fn is_of(&self, epoch: u32) -> bool {
        self.epoch == epoch
    }

    /// Memory that the peer may read.
    pub(super) fn lend(self: &Arc<Self>, length: usize) -> Option<LentBuffer> {
        let wanted = rounded(length)?;
        let (kept, bytes) = self.stock.lock().usable()?.lent.take(length, wanted)?;
        let made = kept.map_or_else(|| Source::new(&self.domain, wanted), Ok);
        match made {
            Ok(source) => {
                let buffers = Arc::downgrade(self);
                Some(LentBuffer { source: Some(source), length, epoch: self.epoch, buffers })
            }
            Err(error) => {
                self.stock.lock().lent.used -= bytes;
                self.report(&error);
                None
            }
        }
    }

    /// Memory to read into, registered, beginning with these bytes.
    pub(super) fn sink(&self, prefix: &[u8], length: usize) -> Option<(Sink, Remains)> {
        let length = prefix.len().checked_add(length)?;
        let wanted = rounded(length)?;
        let (kept, bytes) = self.stock.lock().usable()?.fetched.take(length, wanted)?;
        let made = kept.map_or_else(|| Sink::new(wanted, self.access), Ok).and_then(|mut sink| {
            sink.begin_with(prefix);
            sink.register(&self.domain)?;
            Ok(sink)
        });
        match made {
            Ok(sink) => Some((sink, Remains { bytes, length })),
            Err(error) => {
                self.stock.lock().fetched.used -= bytes;
                self.report(&error);
                None
            }
        }
    }

    fn report(&self, error: &BufferError) {
        tracing::debug!(%error, "no memory for a large message: it travels in fragments");
        self.stock.lock().pause = Some(Instant::now() + PAUSE);
    }

    /// What was read, as bytes that give the memory back when they are dropped.
    pub(super) fn landed(self: &Arc<Self>, filled: Filled, remains: Remains) -> Bytes {
        let buffers = Arc::downgrade(self);
        Bytes::from_owner(LandedBuffer { filled: Some(filled), remains, buffers })
    }

    /// What is not to be read any more.
    pub(super) fn forget(&self, remains: Remains) {
        self.stock.lock().fetched.used -= remains.bytes;
    }

    /// Lets go of what has not been used for long.
    pub(super) fn trim(&self) {
        let now = Instant::now();
        let mut stock = self.stock.lock();
        let stale = (stock.lent.kept.stale(now), stock.fetched.kept.stale(now));
        drop(stock);
        drop(stale);
    }

    /// The queue pair is about to go: nothing is lent, fetched or kept any more.
    pub(super) fn close(&self) {
        let mut stock = self.stock.lock();
        stock.closed = true;
        let kept = (std::mem::take(&mut stock.lent.kept), std::mem::take(&mut stock.fetched.kept));
        drop(stock);
        drop(kept);
    }
}

impl Stock {
    /// Unless it is no use to ask for memory now.
    fn usable(&mut self) -> Option<&mut Self> {
        if self.pause.is_some_and(|until| Instant::now() >= until) {
            self.pause = None;
        }
        if self.closed || self.pause.is_some() { None } else { Some(self) }
    }
}

/// Those of the links of a lane, to be trimmed now and then.
#[derive(Debug, Default)]
pub(super) struct Shelves(Mutex<Vec<Weak<Buffers>>>);

impl Shelves {
    pub(super) fn add(&self, buffers: &Arc<Buffers>) {
        self.0.lock().push(Arc::downgrade(buffers));
    }

    pub(super) fn trim(&self) {
        let mut shelves = self.0.lock();
        shelves.retain(|buffers| buffers.strong_count() > 0);
        let buffers: Vec<_> = shelves.iter().filter_map(Weak::upgrade).collect();
        drop(shelves);
        buffers.iter().for_each(|buffers| buffers.trim());
    }
}

/// What a sink has taken of the bytes that may be fetched, and how many of its own count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains {
    bytes: u64,
    length: usize,
}

/// Memory that is lent to the peer.
#[derive(Debug)]
pub(super) struct LentBuffer {
    /// There until drop.
    source: Option<Source>,
    length: usize,
    epoch: u32,
    buffers: Weak<Buffers>,
}

impl Lendable for LentBuffer {
    fn bytes(&self) -> &[u8] {
        self.source.as_ref().map_or(&[], |source| &source.bytes()[..self.length])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        self.source.as_mut().map_or(&mut [], |source| &mut source.bytes_mut()[..length])
    }

    fn offer(&self) -> Offer {
        let Remote { address, key } =
            self.source.as_ref().map_or(Remote { address: 0, key: 0 }, Source::remote);
        Offer { length: self.length as u64, address, key, epoch: self.epoch }
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let (Some(source), Some(buffers)) = (self.source.take(), self.buffers.upgrade()) else { return };
        let mut stock = buffers.stock.lock();
        let keep = !stock.closed;
        let surplus = stock.lent.give_back(source, keep);
        drop(stock);
        drop(surplus);
    }
}

/// A message that was read, in the memory that it was read into.
#[derive(Debug)]
struct LandedBuffer {
    /// There until drop.
    filled: Option<Filled>,
    remains: Remains,
    buffers: Weak<Buffers>,
}

impl AsRef<[u8]> for LandedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.filled.as_ref().map_or(&[], |filled| &filled.bytes()[..self.remains.length])
    }
}

impl Drop for LandedBuffer {
    fn drop(&mut self) {
        let (Some(filled), Some(buffers)) = (self.filled.take(), self.buffers.upgrade()) else { return };
        let mut stock = buffers.stock.lock();
        let keep = !stock.closed;
        let surplus = stock.fetched.give_back(filled.into_sink(), keep);
        drop(stock);
        drop(surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Piece for usize {
        fn length(&self) -> usize {
            *self
        }
    }

    #[test]
    fn lengths_are_rounded_to_few_sizes() {
        for (length, size) in [
            (1, 4096),
            (262_144, 262_144),
            ((1 << 20) + 5, (1 << 20) + (1 << 18)),
            (1 << 26, 1 << 26),
            ((1 << 26) - 3, 1 << 26),
        ] {
            assert_eq!(rounded(length), Some(size), "{length}");
        }
        assert_eq!(rounded(usize::MAX), None);
    }

    #[test]
    fn the_smallest_that_fits_is_taken_and_none_that_is_much_too_large() {
        let mut kept = Kept::default();
        for length in [9000, 5000, 4000] {
            assert!(kept.put(length).is_empty());
        }
        assert_eq!(kept.take(4500), Some(5000));
        assert_eq!(kept.take(4400), None, "9000 is too large, 4000 too small");
        assert_eq!((kept.take(4000), kept.take(9000)), (Some(4000), Some(9000)));
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes_and_in_time() {
        let mut kept = Kept::default();
        let third = MOST_KEPT as usize / 3;
        for at in 0..3 {
            assert!(kept.put(third - at).is_empty());
        }
        assert_eq!(kept.put(third), [third]);
        let now = Instant::now();
        assert!(kept.stale(now).is_empty());
        assert_eq!(kept.stale(now + KEPT_FOR).len(), 3);
        assert!(kept.0.is_empty());
    }

    #[test]
    fn what_is_in_use_is_bounded_and_counted_by_what_is_taken() {
        let mut shelf = Shelf::new(10_000);
        assert_eq!(shelf.take(3000, 4000), Some((None, 4000)));
        assert!(shelf.give_back(4000, true).is_empty());
        assert_eq!(shelf.take(3000, 9000), Some((Some(4000), 4000)), "it was kept");
        assert_eq!(shelf.take(6000, 7000), None, "too much");
        assert_eq!(shelf.take(6000, 6000), Some((None, 6000)));
        assert_eq!(shelf.give_back(6000, false), [6000]);
        assert_eq!(shelf.used, 4000);
    }
}
