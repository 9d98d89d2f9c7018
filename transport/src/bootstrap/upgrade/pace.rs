//! How often RDMA is tried on a connection: by a client, of its own accord, and at a server, for a client that is not
//! trusted.

use std::time::Duration;

use tokio::time::Instant;

/// Most doublings of the pause between two attempts.
const DOUBLINGS: u32 = 6;
/// Attempts that a server lets a client make in a row on one connection…
const ATTEMPTS: u32 = 16;
/// … and time until it may make another one. A client that settles for as long as by default never waits for that.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long is waited between two attempts.
pub(super) struct Pace {
    settle: Duration,
    /// Since one has lasted.
    failures: u32,
}

impl Pace {
    pub(super) fn new(settle: Duration) -> Self {
        Self { settle, failures: 0 }
    }

    /// The pause after a link that has lived so long, if it came up at all.
    pub(super) fn pause(&mut self, lived: Option<Duration>) -> Duration {
        let of = |settle: Duration, failures: u32| settle.saturating_mul(1 << failures.min(DOUBLINGS));
        // One that has outlived the pause before it has lasted.
        if lived.is_some_and(|lived| lived >= of(self.settle, self.failures)) {
            self.failures = 0;
        }
        let pause = of(self.settle, self.failures);
        self.failures = self.failures.saturating_add(1);
        // A quarter either way, so that those who have lost a device together do not come back together.
        pause.mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

/// How often a client may have RDMA tried on one connection: queue pairs and registrations cost a server much, and asking
/// for them costs a client nothing.
pub(super) struct Allowance {
    left: u32,
    /// When the last one was added to what is left.
    added: Instant,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: ATTEMPTS, added: now }
    }

    /// Takes one.
    ///
    /// # Errors
    /// How long until there is another one, if there is none.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.added);
        let more = u32::try_from(passed.as_nanos() / AGAIN_AFTER.as_nanos()).unwrap_or(u32::MAX);
        if more >= ATTEMPTS - self.left {
            *self = Self::new(now);
        } else {
            self.left += more;
            self.added += AGAIN_AFTER * more;
        }
        if self.left == 0 {
            return Err(AGAIN_AFTER.saturating_sub(now.saturating_duration_since(self.added)));
        }
        self.left -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_while_links_do_not_last_and_are_bounded() {
        let settle = Duration::from_secs(10);
        let mut pace = Pace::new(settle);
        let mut around = |lived, times: u32| {
            let (pause, middle) = (pace.pause(lived), settle * times);
            assert!(pause >= middle.mul_f64(0.75) && pause <= middle.mul_f64(1.25), "{pause:?}");
        };
        for times in [1, 2, 4, 8, 16, 32, 64, 64] {
            around(None, times);
        }
        around(Some(settle), 64);
        around(Some(settle * 65), 1);
        around(Some(settle), 2);
        around(Some(settle * 4), 1);
    }

    #[test]
    fn a_client_has_some_attempts_and_then_one_now_and_then() {
        let began = Instant::now();
        let mut allowance = Allowance::new(began);
        let mut taken = |at: Duration| allowance.take(began + at);
        for _ in 0..ATTEMPTS {
            assert_eq!(taken(Duration::ZERO), Ok(()));
        }
        assert_eq!(taken(Duration::ZERO), Err(AGAIN_AFTER));
        assert_eq!(taken(AGAIN_AFTER / 4), Err(AGAIN_AFTER * 3 / 4));
        assert_eq!(taken(AGAIN_AFTER), Ok(()));
        assert!(taken(AGAIN_AFTER).is_err());
        // However fast it asks: in all, no more than these.
        let (mut granted, hour) = (0, Duration::from_secs(3600));
        for step in 1..=36_000 {
            granted += u32::from(taken(AGAIN_AFTER + hour * step / 36_000).is_ok());
        }
        assert_eq!(granted, (hour.as_secs() / AGAIN_AFTER.as_secs()) as u32);
        // What is not used is kept, up to what there was at first.
        for _ in 0..ATTEMPTS {
            assert_eq!(taken(hour * 24), Ok(()));
        }
        assert!(taken(hour * 24).is_err());
    }
}
