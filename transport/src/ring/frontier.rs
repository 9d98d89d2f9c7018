//! How far the unbroken run of finished ranges reaches.

use std::fmt;

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
pub struct Frontier {
    size: RingSize,
    /// One entry a block: the length in blocks of the finished range that begins there, or 0.
    marks: Box<[AtomicU32]>,
    head: AtomicU64,
    /// 0: nobody is inside. Otherwise the number of entries since somebody went in.
    entries: AtomicU32,
}

impl fmt::Debug for Frontier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Thousands of marks would hide the rest.
        f.debug_struct("Frontier")
            .field("size", &self.size)
            .field("head", &self.head())
            .finish_non_exhaustive()
    }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn smallest() -> Frontier {
        Frontier::new(RingSize::new(RingSize::MIN).unwrap())
    }

    #[test]
    fn only_one_is_inside_and_learns_of_those_who_came_by() {
        let frontier = smallest();
        let advance = frontier.enter().unwrap();
        assert!(frontier.enter().is_none());
        frontier.mark(Position(0), Blocks(3));
        let mut advance = advance.leave().expect("somebody came by");
        assert_eq!(advance.step(), Some((Position(0), Blocks(3))));
        assert!(advance.leave().is_none());
        assert!(frontier.enter().is_some());
    }

    #[test]
    fn unwinding_gives_the_right_back() {
        let frontier = smallest();
        drop(frontier.enter());
        assert!(frontier.enter().is_some());
    }

    proptest! {
        /// Ranges of any length, finished in any order, lap after lap: the head is where the first unfinished one
        /// begins.
        #[test]
        fn the_head_stops_at_the_first_unfinished_range(
            lengths in prop::collection::vec(1u32..40, 1..120),
            choices in prop::collection::vec(any::<prop::sample::Index>(), 120),
        ) {
            let frontier = smallest();
            let blocks = u64::from(frontier.size.blocks().0);
            let (mut begun, mut finished) = (Vec::new(), Vec::new());
            let mut tail = Position(0);
            let mut waiting = lengths.into_iter().map(Blocks).peekable();
            for choice in choices {
                while let Some(length) = waiting.next_if(|length| tail.plus(*length).0 - frontier.head().0 <= blocks) {
                    begun.push((tail, length));
                    tail = tail.plus(length);
                }
                if begun.is_empty() {
                    break;
                }
                let (at, length) = begun.swap_remove(choice.index(begun.len()));
                frontier.mark(at, length);
                let mut advance = frontier.enter().unwrap();
                finished.extend(std::iter::from_fn(|| advance.step()));
                prop_assert!(advance.leave().is_none());
                let expected = begun.iter().map(|(at, _)| *at).min().unwrap_or(tail);
                prop_assert_eq!(frontier.head(), expected);
            }
            let mut next = Position(0);
            for (at, length) in finished {
                prop_assert_eq!(at, next);
                next = at.plus(length);
            }
            prop_assert_eq!(next, frontier.head());
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A frontier, what was put into each range before it was marked, and what was found there, in order. loom fails
    /// when two threads are inside at once, or one sees a mark and not what was done before it.
    struct Checked {
        frontier: Frontier,
        content: [UnsafeCell<u64>; 4],
        walked: UnsafeCell<Vec<(Position, u64)>>,
    }

    impl Checked {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                frontier: Frontier::new(RingSize::SMALLEST),
                content: std::array::from_fn(|_| UnsafeCell::new(0)),
                walked: UnsafeCell::new(Vec::new()),
            })
        }

        fn finish(&self, at: u64, blocks: u32) {
            self.content[at as usize].with_mut(|content| {
                // SAFETY: each place has one writer, which loom checks.
                unsafe { *content = at + 100 };
            });
            self.frontier.mark(Position(at), Blocks(blocks));
            self.walk(self.frontier.enter());
        }

        fn walk(&self, mut inside: Option<Advance<'_>>) {
            while let Some(mut advance) = inside {
                while let Some((at, _)) = advance.step() {
                    // SAFETY: the writer marked the place after it wrote, which loom checks.
                    let content = self.content[at.0 as usize].with(|content| unsafe { *content });
                    // SAFETY: one thread is inside at a time, which loom checks.
                    self.walked.with_mut(|walked| unsafe { (*walked).push((at, content)) });
                }
                inside = advance.leave();
            }
        }

        fn walked(&self) -> Vec<(Position, u64)> {
            // SAFETY: the other threads have been joined.
            self.walked.with(|walked| unsafe { (*walked).clone() })
        }
    }

    #[test]
    fn no_mark_is_lost_and_the_head_moves_in_order() {
        loom::model(|| {
            let checked = Checked::new();
            let others = [(1, 2), (3, 1)].map(|(at, blocks)| {
                let checked = Arc::clone(&checked);
                thread::spawn(move || checked.finish(at, blocks))
            });
            checked.finish(0, 1);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(checked.walked(), [(Position(0), 100), (Position(1), 101), (Position(3), 103)]);
            assert_eq!(checked.frontier.head(), Position(4));
        });
    }

    #[test]
    fn what_is_marked_while_somebody_holds_on_is_seen_when_he_leaves() {
        loom::model(|| {
            let checked = Checked::new();
            let other = {
                let checked = Arc::clone(&checked);
                thread::spawn(move || {
                    checked.finish(0, 1);
                    checked.finish(1, 1);
                })
            };
            let held = checked.frontier.enter();
            checked.walk(held);
            other.join().unwrap();
            assert_eq!(checked.walked().len(), 2);
        });
    }
}
