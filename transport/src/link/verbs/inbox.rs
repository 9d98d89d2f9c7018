//! What a lane puts down for one of its links.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::desk::{Desk, SLOT_BYTES};
use crate::link::LinkError;
use crate::link::credit::NoticeError;
use crate::verbs::{Completion, CompletionStatus, Place, Reason, RequestKind, VerbsError};

/// Completions that belong to one link, as its lane found them. Only whoever polls the lane's queue writes it.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Notifications that have come, and the last of them: as many as the peer may have on their way.
    arrived: AtomicU64,
    words: Box<[AtomicU32]>,
    /// Where notifications are that came as messages.
    desk: Arc<Desk>,
    /// Send requests up to this number have ended, READs excepted.
    completed: AtomicU64,
    /// READs up to this number have ended.
    read: AtomicU64,
    /// The link waits for send requests to end.
    wants_send: AtomicBool,
    /// Whoever uses the link sleeps: the lane has the waker.
    pub(super) asleep: AtomicBool,
    /// … and is to be woken by whatever comes. If not, somebody else polls, and only what the sleeper waits for besides
    /// is worth waking it.
    pub(super) armed: AtomicBool,
    /// Somebody waits for space in the staging ring.
    pub(super) starving: AtomicBool,
    /// The connection manager says that the peer is gone.
    disconnected: AtomicBool,
    failure: OnceLock<LinkError>,
    place: Arc<Place>,
}

/// Whether whoever sleeps on a link should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    Waking,
    Nothing,
}

impl Inbox {
    pub(super) fn new(notifications: u32, desk: Arc<Desk>, place: Arc<Place>) -> Self {
        Self {
            arrived: AtomicU64::new(0),
            words: (0..notifications).map(|_| AtomicU32::new(0)).collect(),
            desk,
            completed: AtomicU64::new(0),
            read: AtomicU64::new(0),
            wants_send: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            starving: AtomicBool::new(false),
            disconnected: AtomicBool::new(false),
            failure: OnceLock::new(),
            place,
        }
    }

    /// Puts a completion down.
    pub(super) fn put(&self, completion: &Completion) -> Worth {
        if completion.status != CompletionStatus::SUCCESS {
            return self.fail(self.failure_of(completion));
        }
        match completion.request.kind() {
            kind @ (RequestKind::Sent(number) | RequestKind::Read(number)) => {
                if kind == RequestKind::Read(number) {
                    self.read.store(number, Ordering::Release);
                }
                // What was posted behind a READ may have ended before it.
                self.completed.fetch_max(number, Ordering::Release);
                // Against the fence of whoever says that it waits.
                fence(Ordering::SeqCst);
                if self.wants_send.load(Ordering::Relaxed) { Worth::Waking } else { Worth::Nothing }
            }
            RequestKind::Received(slot) => {
                let word = match completion.immediate {
                    Some(word) => word,
                    None if completion.bytes as usize == SLOT_BYTES => self.desk.word(slot),
                    None => return self.fail(NoticeError::Unknown { bits: completion.bytes }.into()),
                };
                let number = self.arrived.load(Ordering::Relaxed);
                self.words[(number % self.words.len() as u64) as usize].store(word, Ordering::Relaxed);
                self.arrived.store(number + 1, Ordering::Release);
                Worth::Waking
            }
        }
    }

    fn failure_of(&self, completion: &Completion) -> LinkError {
        let (status, vendor) = (completion.status, completion.vendor);
        if status == CompletionStatus::FLUSHED {
            // The queue pair failed without a request of ours that did: the peer took the connection down.
            return LinkError::PeerClosed;
        }
        let verb = match completion.request.kind() {
            RequestKind::Sent(_) => "a send request",
            RequestKind::Read(_) => "reading a message that the peer lends",
            RequestKind::Received(_) => "a receive request",
        };
        let reason = Reason::Completion { status, vendor };
        LinkError::Rdma(Arc::new(VerbsError::new(verb, reason, &self.place)))
    }

    /// Remembers why the link is dead; the first reason stays.
    pub(super) fn fail(&self, reason: LinkError) -> Worth {
        if self.failure.set(reason).is_ok() { Worth::Waking } else { Worth::Nothing }
    }

    pub(super) fn failure(&self) -> Option<&LinkError> {
        self.failure.get()
    }

    /// Whether what has been put down concerns whoever sleeps. Asked after it was put down: whoever comes to wait says so
    /// before looking at what has.
    pub(super) fn rouses(&self) -> bool {
        fence(Ordering::SeqCst);
        self.armed.load(Ordering::Relaxed)
            || self.starving.load(Ordering::Relaxed)
            || self.wants_send()
            || self.failure().is_some()
    }

    /// The connection manager says that the peer is gone.
    pub(super) fn disconnect(&self) -> Worth {
        if self.disconnected.swap(true, Ordering::AcqRel) { Worth::Nothing } else { Worth::Waking }
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Acquire)
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// The notification with this number. Only the last ones are there: as many as may be on their way.
    pub(super) fn word(&self, number: u64) -> u32 {
        self.words[(number % self.words.len() as u64) as usize].load(Ordering::Relaxed)
    }

    pub(super) fn depth(&self) -> u32 {
        self.words.len() as u32
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// READs up to this number have ended.
    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Acquire)
    }

    pub(super) fn wants_send(&self) -> bool {
        self.wants_send.load(Ordering::Relaxed)
    }

    pub(super) fn set_wants_send(&self, wants: bool) {
        if self.wants_send.load(Ordering::Relaxed) != wants {
            self.wants_send.store(wants, Ordering::Relaxed);
            // Whoever says so looks once more afterwards.
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.place
    }
}
