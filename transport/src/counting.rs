//! Counts wake-ups in models of sleeping and waking.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// How often something was woken. Not loom's atomics: counting must not order what is counted.
#[derive(Debug, Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wakes {
    pub(crate) fn waker() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Self::default());
        (Arc::clone(&wakes), Waker::from(wakes))
    }

    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.add();
    }
}
