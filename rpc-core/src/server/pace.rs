//! How long a method's handlers keep the thread that receives.
//!
//! A handler is polled where its request was received: one that answers at once costs no hand-off to another thread.
//! One that computes keeps all other calls of the lane waiting meanwhile, on one processor. So a method whose handler
//! took long is given to the runtime from then on, until a few in a row were quick.
//!
//! A handler also seems long when its thread was taken from it meanwhile. So the first one only raises suspicion, and
//! those that follow are measured by the processor time of their thread, which costs a system call to ask.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Beyond this, handing a call to another thread costs less than it saves: a wake-up takes about as long.
pub(super) const LONG: Duration = Duration::from_micros(50);
/// Beyond this, a handler that is under suspicion is taken to keep its thread even without computing: it blocks.
const BLOCKS: Duration = Duration::from_millis(1);
/// How many calls a long one is remembered.
const SUSPICION: u32 = 8;
/// So many in a row have to be quick before a method that computes is polled where it is received again.
const QUICK_IN_A_ROW: u32 = 4;

/// Answers may wait for others so many times as long as it takes to send them.
const FLUSH_SHARE: u32 = 8;
/// But no longer than this.
const LONGEST_PATIENCE: Duration = Duration::from_millis(1);

/// What is known of one method's handlers.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Quick ones to come before the method is taken to compute no more (above [`SUSPICION`]), or nothing is held
    /// against it (0).
    quick_to_come: AtomicU32,
}

/// The beginning of a handler's first poll.
pub(super) struct Start {
    /// Processor time of this thread, if the method is under suspicion.
    worked: Option<Duration>,
}

impl Pace {
    /// Whether its handlers should be polled by the runtime from the start.
    pub(super) fn computes(&self) -> bool {
        self.quick_to_come.load(Ordering::Relaxed) > SUSPICION
    }

    /// To be called before a handler's first poll.
    pub(super) fn start(&self) -> Start {
        let suspected = (1..=SUSPICION).contains(&self.quick_to_come.load(Ordering::Relaxed));
        Start { worked: suspected.then(processor_time) }
    }

    /// Notes that a handler's first poll, which began with `start`, took so long by the clock.
    pub(super) fn took(&self, start: &Start, spent: Duration) {
        let long = match start.worked {
            _ if spent <= LONG => false,
            None => true,
            Some(before) => spent > BLOCKS || processor_time().saturating_sub(before) > LONG,
        };
        let known = self.quick_to_come.load(Ordering::Relaxed);
        let now = match (long, known) {
            (true, 0) => SUSPICION,
            (true, _) => SUSPICION + QUICK_IN_A_ROW,
            (false, known) => known.saturating_sub(1),
        };
        if now != known {
            self.quick_to_come.store(now, Ordering::Relaxed);
        }
    }

    /// Polls a handler for the first time, on a thread where nobody waits for it.
    pub(super) fn timed<T>(&self, poll: impl FnOnce() -> T) -> T {
        let (start, began) = (self.start(), Instant::now());
        let polled = poll();
        self.took(&start, began.elapsed());
        polled
    }
}

/// What it costs to send what is answered. Written by the lane alone.
#[derive(Debug, Default)]
pub(super) struct FlushCost(AtomicU64);

impl FlushCost {
    /// How long answers wait for others, so that sending them takes a small part of the time that making them does: many
    /// times longer where a flush is a system call into a slow device than where it is a store to shared memory.
    pub(super) fn patience(&self) -> Duration {
        (Duration::from_nanos(self.0.load(Ordering::Relaxed)) * FLUSH_SHARE).clamp(LONG, LONGEST_PATIENCE)
    }

    /// Notes that a flush took so long. One that was interrupted is forgotten after a few.
    pub(super) fn took(&self, time: Duration) {
        let nanos = u64::try_from(time.min(LONGEST_PATIENCE).as_nanos()).unwrap_or(u64::MAX);
        let known = self.0.load(Ordering::Relaxed);
        self.0.store(known - known / 8 + nanos / 8, Ordering::Relaxed);
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has handlers of these micros, of which a part is work.
    fn after(pace: &Pace, micros: u64) -> bool {
        pace.took(&Start { worked: None }, Duration::from_micros(micros));
        pace.computes()
    }

    #[test]
    fn long_handlers_mark_the_method_until_a_few_in_a_row_are_quick() {
        let pace = Pace::default();
        assert_eq!([10, 50, 51, 1, 1].map(|micros| after(&pace, micros)), [false; 5], "one is not enough");
        assert_eq!([60, 1, 1, 1].map(|micros| after(&pace, micros)), [true; 4]);
        assert_eq!([1, 1].map(|micros| after(&pace, micros)), [false; 2], "quick again");
        assert_eq!([60, 1].map(|micros| after(&pace, micros)), [true; 2], "not forgotten yet");
    }

    #[test]
    fn long_handlers_far_apart_do_not_mark_the_method() {
        let pace = Pace::default();
        for _ in 0..10 {
            after(&pace, 4000);
            for _ in 0..SUSPICION {
                assert!(!after(&pace, 1));
            }
        }
    }

    #[test]
    fn who_is_suspected_and_did_not_work_is_not_marked() {
        let pace = Pace::default();
        after(&pace, 100);
        for _ in 0..SUSPICION {
            let start = pace.start();
            assert!(start.worked.is_some());
            // As if the thread had been taken away.
            pace.took(&start, Duration::from_micros(300));
            assert!(!pace.computes());
        }
        assert!(pace.start().worked.is_none(), "forgotten");
    }

    #[test]
    fn who_is_suspected_and_works_or_blocks_is_marked() {
        for work in [true, false] {
            let pace = Pace::default();
            after(&pace, 100);
            let (start, began) = (pace.start(), Instant::now());
            if work {
                let before = processor_time();
                while processor_time() - before <= LONG {}
            } else {
                std::thread::sleep(BLOCKS * 2);
            }
            pace.took(&start, began.elapsed());
            assert!(pace.computes(), "work: {work}");
        }
    }

    #[test]
    fn answers_wait_longer_for_others_where_sending_costs_more() {
        let cost = FlushCost::default();
        assert_eq!(cost.patience(), LONG, "nothing is known yet");
        for _ in 0..100 {
            cost.took(Duration::from_micros(1));
        }
        assert_eq!(cost.patience(), LONG, "sending is cheap");
        for _ in 0..100 {
            cost.took(Duration::from_micros(40));
        }
        let patience = cost.patience();
        assert!(
            (Duration::from_micros(300)..=Duration::from_micros(320)).contains(&patience),
            "{patience:?}"
        );
        cost.took(Duration::from_secs(1));
        assert_eq!(cost.patience(), LONGEST_PATIENCE);
        for _ in 0..100 {
            cost.took(Duration::from_micros(1));
        }
        assert_eq!(cost.patience(), LONG, "forgotten");
    }
}
