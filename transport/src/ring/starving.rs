//! Those who wait for space in a ring.

use std::task::Waker;

use crate::sync::{AtomicBool, Mutex, Ordering, fence};

/// Tasks that wait for space in a staging ring. Whoever frees some wakes them all: which of them it is enough for
/// only they know.
#[derive(Debug)]
pub(crate) struct Starving {
    anybody: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Starving {
    pub(crate) fn new() -> Self {
        Self { anybody: AtomicBool::new(false), wakers: Mutex::new(Vec::new()) }
    }

    /// Joins those who wait. Whether there is space must be looked at once more afterwards: what was freed before
    /// this call has woken nobody.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        drop(wakers);
        self.anybody.store(true, Ordering::Relaxed);
        // Against the fence in `wake`, or the link's after it has freed something.
        fence(Ordering::SeqCst);
    }

    /// Whether somebody waits.
    pub(crate) fn is_anybody(&self) -> bool {
        self.anybody.load(Ordering::Acquire)
    }

    /// Wakes all who wait, after `first` if there are any. What they wait for must have been stored before.
    pub(crate) fn wake(&self, first: impl FnOnce()) {
        fence(Ordering::SeqCst);
        if !self.anybody.load(Ordering::Relaxed) || !self.anybody.swap(false, Ordering::AcqRel) {
            return;
        }
        first();
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use crate::counting::Wakes;

    /// One waits for space while two free some, each for itself.
    #[test]
    fn whoever_waits_sees_the_space_or_is_woken() {
        loom::model(|| {
            let (starving, freed) = (Arc::new(Starving::new()), Arc::new(AtomicU64::new(0)));
            let free = [(), ()].map(|()| {
                let (starving, freed) = (Arc::clone(&starving), Arc::clone(&freed));
                thread::spawn(move || {
                    freed.fetch_add(1, Ordering::AcqRel);
                    starving.wake(|| ());
                })
            });
            let (wakes, waker) = Wakes::waker();
            starving.register(&waker);
            let seen = freed.load(Ordering::Acquire);
            free.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(seen == 2 || wakes.count() > 0, "hungry for ever: saw {seen} of 2");
        });
    }
}
