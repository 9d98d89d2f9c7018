//! How to wait for the peer: spin, sleep, or find out which is worth it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How a side waits for what arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Never sleep while something may arrive: lowest latency, one core per waiting side. A server polls on threads
    /// of its own.
    Busy,
    /// Always sleep: lowest processor use.
    Event,
    /// Spin for a bounded time when that has paid off lately, then sleep.
    #[default]
    Adaptive,
}

impl Wait {
    /// Whether a caller that is alone on its connection receives for itself.
    pub(crate) fn lets_callers_poll(self) -> bool {
        self != Self::Event
    }
}

/// Longest spin before sleeping, in adaptive mode. A thread hand-off costs 5 to 50 µs on virtual machines, so what
/// comes within this time is cheaper to wait for.
const LONGEST_SPIN: Duration = Duration::from_micros(100);
/// Failed spins in a row after which spinning stops.
const PATIENCE: u32 = 8;
/// How many waits without a spin go by before spinning is tried again.
const PROBE_EVERY: u32 = 64;
/// Longest spin of a busy caller before it lets other tasks of its thread run.
const BUSY_SLICE: Duration = Duration::from_micros(500);

/// Learns whether spinning pays. Shared by all who wait on one connection.
#[derive(Debug)]
pub(crate) struct Spin {
    mode: Wait,
    /// Failed spins in a row; beyond [`PATIENCE`] it counts waits without a spin.
    misses: AtomicU32,
}

impl Spin {
    pub(crate) fn new(mode: Wait) -> Self {
        Self { mode, misses: AtomicU32::new(0) }
    }

    pub(crate) fn mode(&self) -> Wait {
        self.mode
    }

    /// How long to spin now, at most.
    pub(crate) fn budget(&self) -> Duration {
        match self.mode {
            Wait::Busy => BUSY_SLICE,
            Wait::Event => Duration::ZERO,
            Wait::Adaptive => {
                let misses = self.misses.load(Ordering::Relaxed);
                if misses < PATIENCE {
                    return LONGEST_SPIN;
                }
                // A race between two waiters only shifts the next probe.
                if misses - PATIENCE == PROBE_EVERY - 1 {
                    self.misses.store(PATIENCE, Ordering::Relaxed);
                    LONGEST_SPIN
                } else {
                    self.misses.store(misses + 1, Ordering::Relaxed);
                    Duration::ZERO
                }
            }
        }
    }

    /// A spin ended with what it waited for.
    pub(crate) fn hit(&self) {
        if self.misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
        }
    }

    /// A spin ended without.
    pub(crate) fn miss(&self) {
        let misses = self.misses.load(Ordering::Relaxed);
        if misses < PATIENCE {
            self.misses.store(misses + 1, Ordering::Relaxed);
        }
    }

    /// A sleep ended after this time: had it been a spin, would it have paid?
    pub(crate) fn slept(&self, time: Duration) {
        if self.mode == Wait::Adaptive && time < LONGEST_SPIN {
            self.hit();
        }
    }
}

/// A bounded spin that looks at the clock only now and then.
#[derive(Debug)]
pub(crate) struct SpinUntil {
    end: Option<Instant>,
    budget: Duration,
    rounds: u32,
}

/// Rounds between looks at the clock: one costs about as much as twenty polls of shared memory.
const ROUNDS_PER_LOOK: u32 = 32;

impl SpinUntil {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { end: None, budget, rounds: 0 }
    }

    /// Spins one round; `false` when the time is up.
    pub(crate) fn again(&mut self) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        std::hint::spin_loop();
        self.rounds += 1;
        if self.rounds % ROUNDS_PER_LOOK != 0 {
            return true;
        }
        let now = Instant::now();
        now < *self.end.get_or_insert(now + self.budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_stops_when_it_does_not_pay_and_is_tried_again() {
        let spin = Spin::new(Wait::Adaptive);
        for _ in 0..PATIENCE {
            assert!(!spin.budget().is_zero());
            spin.miss();
        }
        let tried = (0..10 * PROBE_EVERY).filter(|_| !spin.budget().is_zero()).count();
        assert_eq!(tried, 10);
        spin.slept(Duration::from_micros(20));
        assert!(!spin.budget().is_zero());
    }

    #[test]
    fn event_never_spins_and_busy_always_does() {
        assert!(Spin::new(Wait::Event).budget().is_zero());
        let busy = Spin::new(Wait::Busy);
        for _ in 0..100 {
            busy.miss();
        }
        assert!(!busy.budget().is_zero());
    }
}
