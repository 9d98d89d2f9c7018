//! Going to sleep without missing what happens meanwhile.
//!
//! Each of these is the same bargain between one who waits and one who brings what is waited for:
//!
//! ```text
//!   waits                         brings
//!   says so                       brings it
//!   ── full fence ──              ── full fence ──
//!   is it there? stay awake       does somebody wait? wake him
//! ```
//!
//! Whichever fence comes first, the other side's second look comes after it and sees what was done before it. So no
//! wake-up is lost, and none is sent for nothing.

use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, fence};

/// Begins a new sleep in a word that counts them and is odd during each. What is waited for must be looked at
/// afterwards. Any thread of the process that the word belongs to may do so.
///
/// A new one even if the word is odd already: that sleep may have been ended by the peer, who ends each only once, and
/// whoever it woke may have been gone before this one waits.
#[inline]
pub(super) fn fall_asleep(word: &AtomicU32) {
    let mut sleep = word.load(Ordering::Relaxed);
    while let Err(now) =
        word.compare_exchange_weak(sleep, sleep.wrapping_add(1) | 1, Ordering::Relaxed, Ordering::Relaxed)
    {
        sleep = now;
    }
    fence(Ordering::SeqCst);
}

/// Makes a word that counts sleeps even, one sleep later, if it is odd.
#[inline]
pub(super) fn stay_awake(word: &AtomicU32) {
    let sleep = word.load(Ordering::Relaxed);
    if sleep % 2 == 1 {
        // Lost only to another thread that did the same.
        let _ = word.compare_exchange(sleep, sleep.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Ends each sleep of a peer once.
#[derive(Debug)]
pub(super) struct Rouser {
    /// The sleep that was ended last.
    ended: AtomicU32,
}

impl Rouser {
    pub(super) fn new() -> Self {
        Self { ended: AtomicU32::new(0) }
    }

    /// Calls `wake` if the word says that its owner sleeps and nobody has ended this sleep yet. What it waits for must
    /// have been stored before.
    #[inline]
    pub(super) fn rouse(&self, word: &AtomicU32, wake: impl FnOnce()) {
        fence(Ordering::SeqCst);
        // Acquire: what the sleeper did before, whoever is woken sees.
        let sleep = word.load(Ordering::Acquire);
        if sleep % 2 == 1 && self.ended.swap(sleep, Ordering::AcqRel) != sleep {
            wake();
        }
    }
}

/// Stops a reader whose ring is full until space is released.
#[derive(Debug)]
pub(super) struct Pause {
    paused: AtomicBool,
    resume: Mutex<Option<Waker>>,
}

impl Pause {
    pub(super) fn new() -> Self {
        Self { paused: AtomicBool::new(false), resume: Mutex::new(None) }
    }

    /// Pauses, unless there is room after all; whether it paused.
    pub(super) fn begin_unless(&self, has_room: impl FnOnce() -> bool) -> bool {
        self.paused.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if has_room() {
            self.paused.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Whether reading makes sense; if it does not the task is woken when it does.
    pub(super) fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.paused.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        *self.resume.lock() = Some(cx.waker().clone());
        // Whoever ended the pause before the waker was left has woken nobody.
        if self.paused.load(Ordering::Acquire) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Space has been released: ends the pause.
    pub(super) fn end(&self) {
        fence(Ordering::SeqCst);
        if self.paused.load(Ordering::Relaxed) && self.paused.swap(false, Ordering::AcqRel) {
            let waker = self.resume.lock().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use crate::counting::Wakes;
    use crate::ring::Starving;

    /// One waits for space while the peer releases some, twice. The waiting task, and the one that the peer wakes, do
    /// as the endpoint does.
    #[test]
    fn whoever_waits_for_space_gets_it_whenever_the_peer_releases_it() {
        loom::model(|| {
            let shared = Arc::new(Space {
                word: AtomicU32::new(0),
                consumed: AtomicU64::new(0),
                freed: AtomicU64::new(0),
                starving: Starving::new(),
                event: Mutex::new(false),
            });
            let peer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let rouser = Rouser::new();
                    for consumed in 1..=2 {
                        shared.consumed.store(consumed, Ordering::Release);
                        rouser.rouse(&shared.word, || *shared.event.lock() = true);
                    }
                })
            };
            let driver = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.wake_up())
            };
            let (wakes, waker) = Wakes::waker();
            // A task is polled at first, and once more whenever it was woken.
            let mut polls = 0;
            let mut got_it = false;
            let mut poll = |got_it: &mut bool| {
                let due = polls <= wakes.count();
                while !*got_it && polls <= wakes.count() {
                    polls = wakes.count() + 1;
                    *got_it = shared.poll(&waker);
                }
                due
            };
            poll(&mut got_it);
            peer.join().unwrap();
            driver.join().unwrap();
            // What has been set going comes to its end.
            while !got_it && (poll(&mut got_it) || shared.wake_up()) {}
            assert!(got_it, "hungry for ever");
        });
    }

    struct Space {
        word: AtomicU32,
        consumed: AtomicU64,
        freed: AtomicU64,
        starving: Starving,
        /// As strong as a system call.
        event: Mutex<bool>,
    }

    impl Space {
        fn refresh(&self) {
            let consumed = self.consumed.load(Ordering::Acquire);
            if self.freed.fetch_max(consumed, Ordering::AcqRel) < consumed {
                self.starving.wake(|| stay_awake(&self.word));
            }
        }

        /// Says that space is waited for; whether there is more already.
        fn starve(&self) -> bool {
            let freed = self.freed.load(Ordering::Acquire);
            fall_asleep(&self.word);
            self.consumed.load(Ordering::Acquire) > freed
        }

        /// The task that the peer wakes, which goes back to sleep; whether it was woken.
        fn wake_up(&self) -> bool {
            let woken = std::mem::take(&mut *self.event.lock());
            if woken && self.starving.is_anybody() {
                self.refresh();
                while self.starving.is_anybody() && self.starve() {
                    self.refresh();
                }
            }
            woken
        }

        /// The task that waits until two blocks are free.
        fn poll(&self, waker: &Waker) -> bool {
            let claim = || {
                self.refresh();
                self.freed.load(Ordering::Acquire) == 2
            };
            if claim() {
                return true;
            }
            self.starving.register(waker);
            loop {
                if claim() {
                    return true;
                }
                if !self.starve() {
                    return false;
                }
            }
        }
    }

    /// A side goes to sleep while the other produces twice.
    #[test]
    fn a_sleeper_is_woken_once_by_whatever_it_has_not_seen() {
        loom::model(|| {
            let (word, produced) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
            let wakes = Arc::new(Wakes::default());
            let producer = {
                let (word, produced, wakes) = (Arc::clone(&word), Arc::clone(&produced), Arc::clone(&wakes));
                thread::spawn(move || {
                    let rouser = Rouser::new();
                    for position in 1..=2 {
                        produced.store(position, Ordering::Release);
                        rouser.rouse(&word, || wakes.add());
                    }
                })
            };
            fall_asleep(&word);
            let asleep = produced.load(Ordering::Acquire) == 0;
            if !asleep {
                stay_awake(&word);
            }
            producer.join().unwrap();
            if asleep {
                assert_eq!(wakes.count(), 1, "asleep for ever, or woken twice");
            } else {
                assert!(wakes.count() <= 1);
            }
        });
    }

    /// The second sleep is another one: having been woken from the first does not count for it.
    #[test]
    fn each_sleep_is_ended_anew() {
        loom::model(|| {
            let (word, produced) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
            let wakes = Arc::new(Wakes::default());
            let producer = {
                let (word, produced, wakes) = (Arc::clone(&word), Arc::clone(&produced), Arc::clone(&wakes));
                thread::spawn(move || {
                    let rouser = Rouser::new();
                    for position in 1..=2 {
                        produced.store(position, Ordering::Release);
                        rouser.rouse(&word, || wakes.add());
                    }
                })
            };
            let mut asleep = false;
            let mut known = 0;
            for _ in 0..2 {
                fall_asleep(&word);
                let now = produced.load(Ordering::Acquire);
                asleep = now == known;
                known = now;
                if asleep && wakes.count() == 0 {
                    break;
                }
                stay_awake(&word);
            }
            producer.join().unwrap();
            if asleep && known < 2 {
                assert!(wakes.count() > 0, "asleep for ever at {known}");
            }
        });
    }

    #[test]
    fn a_paused_reader_resumes_when_space_is_released() {
        loom::model(|| {
            let (pause, released) = (Arc::new(Pause::new()), Arc::new(AtomicU64::new(0)));
            let releaser = {
                let (pause, released) = (Arc::clone(&pause), Arc::clone(&released));
                thread::spawn(move || {
                    released.store(1, Ordering::Release);
                    pause.end();
                })
            };
            let (wakes, waker) = Wakes::waker();
            let paused = pause.begin_unless(|| released.load(Ordering::Acquire) > 0);
            let asleep = paused && pause.poll_over(&Context::from_waker(&waker)).is_pending();
            releaser.join().unwrap();
            assert!(!asleep || wakes.count() == 1, "paused for ever");
        });
    }
}
