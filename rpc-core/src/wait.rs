//! How to wait for the peer: spin, sleep, or find out which is worth it.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
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
const LONGEST_SPIN: Duration = Duration::from_micros(50);
/// Longest spin of a busy caller before it lets other tasks of its thread run.
const BUSY_SLICE: Duration = Duration::from_micros(500);
/// What a spin costs that ends without what it waited for, in spins that end with it: the whole budget is lost, and
/// whoever should have answered may have needed the processor.
const MISS: i32 = 8;
/// Most that successes can outweigh failures to come.
const BEST: i32 = 2 * MISS;
/// Waits without a spin after which spinning is tried again, at first; it doubles with each trial that fails.
const FIRST_PROBE: u32 = 16;
/// At most so many.
const LAST_PROBE: u32 = 1024;

/// Learns whether spinning pays. Shared by all who wait on one connection; a race between two of them only shifts
/// what is learned a little.
#[derive(Debug)]
pub(crate) struct Spin {
    mode: Wait,
    /// Above 0: spinning pays.
    score: AtomicI32,
    /// Waits without a spin until the next trial.
    until_probe: AtomicU32,
    probe_every: AtomicU32,
}

impl Spin {
    pub(crate) fn new(mode: Wait) -> Self {
        // A single processor is needed by whoever answers.
        let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let mode = if mode == Wait::Adaptive && alone { Wait::Event } else { mode };
        Self {
            mode,
            score: AtomicI32::new(BEST),
            until_probe: AtomicU32::new(FIRST_PROBE),
            probe_every: AtomicU32::new(FIRST_PROBE),
        }
    }

    pub(crate) fn mode(&self) -> Wait {
        self.mode
    }

    /// How long to spin now, at most.
    pub(crate) fn budget(&self) -> Duration {
        match self.mode {
            Wait::Busy => BUSY_SLICE,
            Wait::Event => Duration::ZERO,
            Wait::Adaptive if self.score.load(Ordering::Relaxed) > 0 => LONGEST_SPIN,
            Wait::Adaptive => {
                let left = self.until_probe.load(Ordering::Relaxed);
                self.until_probe.store(left.saturating_sub(1), Ordering::Relaxed);
                if left == 0 { LONGEST_SPIN } else { Duration::ZERO }
            }
        }
    }

    /// A spin ended with what it waited for.
    pub(crate) fn hit(&self) {
        let score = self.score.load(Ordering::Relaxed);
        if score <= 0 {
            self.probe_every.store(FIRST_PROBE, Ordering::Relaxed);
        }
        if score < BEST {
            self.score.store(score.max(0) + 1, Ordering::Relaxed);
        }
    }

    /// A spin ended without.
    pub(crate) fn miss(&self) {
        let score = self.score.load(Ordering::Relaxed) - MISS;
        self.score.store(score.max(0), Ordering::Relaxed);
        if score <= 0 {
            let every = self.probe_every.load(Ordering::Relaxed);
            self.until_probe.store(every, Ordering::Relaxed);
            self.probe_every.store((every * 2).min(LAST_PROBE), Ordering::Relaxed);
        }
    }
}

/// A bounded spin that looks at the clock only now and then.
#[derive(Debug)]
pub(crate) struct SpinUntil {
    started: Option<Instant>,
    budget: Duration,
    rounds: u32,
}

/// Rounds between looks at the clock: one costs about as much as several polls of shared memory.
const ROUNDS_PER_LOOK: u32 = 64;

impl SpinUntil {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { started: None, budget, rounds: 0 }
    }

    /// Whether there is any time to spin.
    pub(crate) fn is_possible(&self) -> bool {
        !self.budget.is_zero()
    }

    /// Whether it has spun at all.
    pub(crate) fn began(&self) -> bool {
        self.rounds > 0
    }

    /// Spins one round; `false` when the time is up.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if !self.rounds.is_multiple_of(ROUNDS_PER_LOOK) {
            return !self.budget.is_zero();
        }
        self.look_at_the_clock()
    }

    #[cold]
    fn look_at_the_clock(&mut self) -> bool {
        let now = Instant::now();
        let spun = now - *self.started.get_or_insert(now);
        if spun > LONGEST_SPIN && spun < self.budget {
            // Only a busy wait is this long. Whoever is to answer may be waiting for this processor.
            std::thread::yield_now();
        }
        spun < self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_stops_when_it_does_not_pay_and_is_tried_ever_more_rarely() {
        let spin = Spin { mode: Wait::Adaptive, ..Spin::new(Wait::Busy) };
        let mut trials = Vec::new();
        for wait in 0..4000 {
            if !spin.budget().is_zero() {
                trials.push(wait);
                spin.miss();
            }
        }
        assert!(trials.len() < 12, "{trials:?}");
        assert!(trials.windows(3).all(|t| t[2] - t[1] >= t[1] - t[0]), "{trials:?}");
        // A trial that succeeds brings it back.
        while spin.budget().is_zero() {}
        spin.hit();
        assert!((0..10).all(|_| !spin.budget().is_zero()));
    }

    #[test]
    fn one_miss_in_eight_is_too_many_and_one_in_twenty_is_not() {
        let spins = |miss_every: usize| {
            let spin = Spin { mode: Wait::Adaptive, ..Spin::new(Wait::Busy) };
            let mut spun = 0;
            for wait in 1..=1000 {
                if spin.budget().is_zero() {
                    continue;
                }
                spun += 1;
                if wait % miss_every == 0 { spin.miss() } else { spin.hit() }
            }
            spun
        };
        assert!(spins(5) < 700, "{}", spins(5));
        assert_eq!(spins(20), 1000);
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
