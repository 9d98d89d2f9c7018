//! How far the unbroken run of finished ranges reaches.

use super::{Blocks, Position, RingSize};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Ranges of a ring are marked finished in any order, by any thread; the head moves over them in order.
///
/// Marking is one store. Moving the head is done by one thread at a time, without a lock that others wait
/// for: a thread that finds somebody at it leaves a note (it raises `entries`) and goes on; whoever is
/// inside sees the note before leaving, and goes round again. So every mark is seen by somebody, nobody
/// waits, and work that belongs to the moving of the head (sealing frames, one system call for many of
/// them) is naturally batched.
///
/// ```
/// use ringmail_transport::ring::{Blocks, Frontier, Position, RingSize};
///
/// let frontier = Frontier::new(RingSize::DEFAULT);
/// frontier.mark(Position(2), Blocks(1)); // finished out of order:
/// let mut advance = frontier.enter().expect("nobody else is inside");
/// assert_eq!(advance.step(), None); // …so the head stays
/// frontier.mark(Position(0), Blocks(2));
/// assert_eq!(advance.step(), Some((Position(0), Blocks(2))));
/// assert_eq!(advance.step(), Some((Position(2), Blocks(1))));
/// assert!(advance.leave().is_none());
/// assert_eq!(frontier.head(), Position(3));
/// ```
#[derive(Debug)]
pub struct Frontier {
    size: RingSize,
    /// One entry a block: the length in blocks of the finished range that begins there, or 0.
    marks: Box<[AtomicU32]>,
    head: AtomicU64,
    /// 0: nobody is inside. Otherwise the number of entries since somebody went in.
    entries: AtomicU32,
}

impl Frontier {
    /// A frontier at position 0 of a ring of this size.
    #[must_use]
    pub fn new(size: RingSize) -> Self {
        Self {
            size,
            marks: (0..size.blocks().0).map(|_| AtomicU32::new(0)).collect(),
            head: AtomicU64::new(0),
            entries: AtomicU32::new(0),
        }
    }

    /// How far the unbroken run of finished ranges has been walked.
    #[must_use]
    pub fn head(&self) -> Position {
        Position(self.head.load(Ordering::Acquire))
    }

    /// Marks the range of `blocks` blocks at `at` finished. It must not overlap another range between the head
    /// and one ring beyond it, and `blocks` must not be 0.
    pub fn mark(&self, at: Position, blocks: Blocks) {
        debug_assert!(blocks.0 > 0, "an empty range cannot be finished");
        let mark = &self.marks[self.size.index(at)];
        debug_assert_eq!(mark.load(Ordering::Relaxed), 0, "a range was finished twice");
        mark.store(blocks.0, Ordering::Release);
    }

    /// Goes inside to move the head. `None` when somebody is inside already: they will see what was marked
    /// before this call.
    pub fn enter(&self) -> Option<Advance<'_>> {
        if self.entries.fetch_add(1, Ordering::AcqRel) == 0 {
            Some(Advance { frontier: self, seen: 1 })
        } else {
            None
        }
    }
}

/// The right to move the head of a [`Frontier`]; there is at most one.
///
/// Dropping it without [`leave`](Advance::leave) gives the right back without looking again, which is only for
/// unwinding.
#[derive(Debug)]
pub struct Advance<'a> {
    frontier: &'a Frontier,
    /// Entries noticed so far.
    seen: u32,
}

impl Advance<'_> {
    /// Moves the head over the next finished range and returns it; `None` at the first unfinished one.
    pub fn step(&mut self) -> Option<(Position, Blocks)> {
        let head = Position(self.frontier.head.load(Ordering::Relaxed));
        let mark = &self.frontier.marks[self.frontier.size.index(head)];
        let blocks = Blocks(mark.load(Ordering::Acquire));
        if blocks.0 == 0 {
            return None;
        }
        mark.store(0, Ordering::Relaxed);
        self.frontier.head.store(head.plus(blocks).0, Ordering::Release);
        Some((head, blocks))
    }

    /// Leaves. Gives the right back as `Some` when somebody came by meanwhile: their mark may not have been
    /// seen, so step again and then leave again.
    #[must_use = "when it comes back, step again"]
    pub fn leave(mut self) -> Option<Self> {
        match self.frontier.entries.compare_exchange(self.seen, 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                std::mem::forget(self);
                None
            }
            Err(now) => {
                self.seen = now;
                Some(self)
            }
        }
    }
}

impl Drop for Advance<'_> {
    fn drop(&mut self) {
        self.frontier.entries.store(0, Ordering::Release);
    }
}
