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

/// Makes a word that counts sleeps odd. What is waited for must be looked at afterwards. Any thread of the process
/// that the word belongs to may do so.
#[inline]
pub(super) fn fall_asleep(word: &AtomicU32) {
    word.fetch_or(1, Ordering::Relaxed);
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
        let sleep = word.load(Ordering::Relaxed);
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
