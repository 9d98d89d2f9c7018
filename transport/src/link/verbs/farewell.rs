//! Closing without losing what is on its way.
//!
//! Destroying a queue pair ends all of its requests, and the peer would never see the last frames. So a link that is closed
//! says so, and its queue pair is kept until its requests have ended and the peer has said that it closes too; on iWARP
//! the first alone would only mean that the bytes are in this host's TCP. Whoever closes does not wait for that: a thread
//! that exists only while there is something to wait for sees to it. It also spares others the system calls that
//! destroying queue pairs and registrations takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Connection;
use super::inbox::Inbox;
use super::lane::Lane;
use crate::immediate::{Immediate, Notice};
use crate::link::switching::Then;
use crate::verbs::Remains;

/// Longest wait for the peer. One that is alive but busy sees the end later, when the connection manager tells it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// A link that has been closed and not yet taken down.
#[derive(Debug)]
pub(super) struct Farewell {
    pub(super) lane: Arc<Lane>,
    pub(super) inbox: Arc<Inbox>,
    /// Notifications read so far.
    pub(super) seen: u64,
    pub(super) peer_closed: bool,
    /// The request that says goodbye, if it could be posted.
    pub(super) last: Option<u64>,
    pub(super) connection: Connection,
    pub(super) afterwards: Afterwards,
}

/// Called when a link has been taken down and its memory is not registered any more.
#[derive(Debug, Default)]
pub(super) struct Afterwards(Option<Then>);

impl Afterwards {
    pub(super) fn call(then: Then) -> Self {
        Self(Some(then))
    }
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then.call();
        }
    }
}

#[derive(Debug)]
struct Waiting {
    entries: Vec<(Farewell, Instant)>,
    /// How many there are, those that the thread has taken to look at included.
    count: usize,
    has_thread: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { entries: Vec::new(), count: 0, has_thread: false });

/// Links that have been closed and not yet taken down.
#[must_use]
pub fn lingering() -> usize {
    WAITING.lock().count
}

/// Takes a link down, as soon as that loses nothing.
pub(super) fn say(farewell: Farewell) {
    let mut waiting = WAITING.lock();
    waiting.entries.push((farewell, Instant::now() + PATIENCE));
    waiting.count += 1;
    if !waiting.has_thread {
        waiting.has_thread = spawn(wait);
        if !waiting.has_thread {
            // Rather lose frames than leave what nobody takes down.
            let entries = std::mem::take(&mut waiting.entries);
            drop(waiting);
            entries.into_iter().for_each(|(farewell, _)| farewell.take_down());
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name("ringmail-close".to_owned()).spawn(work).is_ok()
}

fn wait() {
    loop {
        let mut waiting = WAITING.lock();
        if waiting.entries.is_empty() {
            waiting.has_thread = false;
            return;
        }
        let entries = std::mem::take(&mut waiting.entries);
        drop(waiting);
        let mut left = Vec::with_capacity(entries.len());
        for (mut farewell, until) in entries {
            farewell.lane.look();
            if farewell.is_over() || Instant::now() >= until {
                farewell.take_down();
            } else {
                left.push((farewell, until));
            }
        }
        if !left.is_empty() {
            WAITING.lock().entries.append(&mut left);
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Farewell {
    fn is_over(&mut self) -> bool {
        let Some(last) = self.last else { return true };
        if self.inbox.failure().is_some() || self.inbox.is_disconnected() {
            return true;
        }
        let arrived = self.inbox.arrived();
        if arrived - self.seen > u64::from(self.inbox.depth()) {
            // More than was granted, which ends a connection too.
            return true;
        }
        for number in self.seen..arrived {
            let notice = Immediate::decode(self.inbox.word(number)).map(|immediate| immediate.notice);
            self.peer_closed |= matches!(notice, Some(Notice::Close | Notice::Error));
        }
        self.seen = arrived;
        self.peer_closed && self.inbox.completed() >= last
    }

    fn take_down(self) {
        let Connection { queue_pair, shared_receives, up, .. } = self.connection;
        let remains = self.lane.dismiss(queue_pair, shared_receives);
        let burial = Burial { remains: Some(remains), _afterwards: self.afterwards };
        if up {
            drop(burial);
        } else {
            // While it was coming up, the connection manager may take seconds to give it up: not for others to wait for.
            // Without a thread the closure is dropped here, and what it holds.
            spawn(move || drop(burial));
        }
    }
}

/// Counts until the last of a link is gone.
struct Burial {
    remains: Option<Remains>,
    _afterwards: Afterwards,
}

impl Drop for Burial {
    fn drop(&mut self) {
        drop(self.remains.take());
        WAITING.lock().count -= 1;
    }
}
