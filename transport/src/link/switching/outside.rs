//! What the endpoint, and those who bring a fast link up, have to do with the change of links.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};

use super::crossing::{Crossing, Own, Protection};
use super::sending::Way;
use super::{FastLink, History, MESSAGE_LIMIT, MESSAGES, SwitchingLink, Then};
use crate::frame::FrameError;
use crate::link::LinkError;
use crate::ring::Position;

/// A frame that is to be sent on behalf of the link.
#[derive(Debug)]
pub(crate) enum ToSend {
    /// A message for the peer's link.
    Message(Vec<u8>),
    /// SWITCH, of this epoch.
    Switch(u32),
}

impl SwitchingLink {
    /// Announces that a fast link will be [installed](Self::install) or [abandoned](Self::abandon), one that has this
    /// number with the peer as well. `false` when the last one is not done with yet.
    #[must_use]
    pub fn begin(&self, epoch: u32) -> bool {
        let mut crossing = self.crossing.lock();
        let settled = self.is_settled_at(&crossing);
        if settled {
            crossing.epoch = epoch;
            crossing.own = Own::Pending;
        }
        settled
    }

    /// The fast link that was announced is up, at the peer as well or soon: it takes over.
    pub fn install(&self, fast: Arc<dyn FastLink>) {
        let mut crossing = self.crossing.lock();
        // Looked at under the lock of the place that `close` empties.
        let mut place = self.fast.write();
        if crossing.own != Own::Pending || self.closed.load(Ordering::Acquire) {
            drop(place);
            return fast.take_down(Then::new(|| ()));
        }
        *place = Some(fast);
        drop(place);
        crossing.own = Own::Up;
        self.has_frames.store(true, Ordering::Release);
        drop(crossing);
        self.nudge();
    }

    /// The fast link that was announced does not come up. One that has come up meanwhile is given up.
    pub fn abandon(&self, reason: &str) {
        let mut crossing = self.crossing.lock();
        match crossing.own {
            Own::Pending => crossing.own = Own::Gone,
            Own::Up => return self.report_loss(reason),
            Own::Idle | Own::Closing | Own::Gone => {}
        }
        // Through the last one, which is being taken down, the peer may write for a while yet.
        if crossing.own != Own::Closing {
            crossing.protection.wanted = false;
        }
        drop(crossing);
        let mut history = self.history.lock();
        history.failures += 1;
        history.reason = Some(reason.to_owned());
        let failures = history.failures;
        drop(history);
        let (peer, device) = (&self.peer, self.device());
        tracing::warn!(%peer, device, reason, failures, "another link has not come up; staying on TCP");
        self.has_frames.store(true, Ordering::Release);
        self.changed.notify_waiters();
        self.nudge();
    }

    /// Gives the fast link up if it is up: the peer says that nothing comes of it.
    pub fn lose(&self, reason: &str) {
        if self.crossing.lock().own == Own::Up {
            self.report_loss(reason);
        }
    }

    /// Breaks what is under the fast link, as a fault would. For tests.
    #[doc(hidden)]
    pub fn sever(&self) {
        if let Some(fast) = &*self.fast.read() {
            fast.sever();
        }
    }

    /// Waits until no frame is held that the peer could change if it could write the mailbox: from here on all are copied
    /// out. Until the fast link is gone, or is abandoned.
    pub async fn protect(&self) {
        self.crossing.lock().protection.wanted = true;
        self.nudge();
        self.when(|link| {
            let Protection { complete, .. } = link.crossing.lock().protection;
            complete || link.is_closed()
        })
        .await;
    }

    /// Whether no fast link is up, coming up or going down.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_settled_at(&self.crossing.lock())
    }

    fn is_settled_at(&self, crossing: &Crossing) -> bool {
        crossing.is_settled() && self.sending.lock().way == Way::Base
    }

    /// Waits until that is so, or the connection has ended.
    pub async fn settled(&self) {
        self.when(|link| link.is_closed() || link.is_settled()).await;
    }

    async fn when(&self, holds: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if holds(self) {
                return;
            }
            changed.await;
        }
    }

    /// Says on which device the fast link is, or will be, for events. The first name stays.
    pub fn name_device(&self, device: &str) {
        self.device.get_or_init(|| device.to_owned());
    }

    pub(super) fn device(&self) -> &str {
        self.device.get().map_or("unknown", String::as_str)
    }

    /// Whether the connection has ended on this side.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How the links have taken turns so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }

    /// Sends a message to those who bring the peer's fast link up.
    ///
    /// # Panics
    /// When it is longer than [`MESSAGE_LIMIT`].
    pub fn tell(&self, message: Vec<u8>) {
        assert!(message.len() <= MESSAGE_LIMIT);
        let mut outbox = self.outbox.lock();
        // To a peer that does not read, the last ones matter.
        if outbox.len() >= MESSAGES {
            outbox.pop_front();
        }
        outbox.push_back(message);
        drop(outbox);
        self.has_frames.store(true, Ordering::Release);
        self.nudge();
    }

    /// Such a message has come.
    pub(crate) fn told(&self, message: &[u8]) -> Result<(), LinkError> {
        if message.len() > MESSAGE_LIMIT {
            return Err(FrameError::BadSwitch { rule: "a message about it is too long" }.into());
        }
        let full = match &*self.inbox.lock() {
            // Nobody listens any more: then it does not matter.
            None => false,
            Some(inbox) => matches!(
                inbox.try_send(message.to_vec()),
                Err(tokio::sync::mpsc::error::TrySendError::Full(_))
            ),
        };
        if full {
            return Err(FrameError::BadSwitch { rule: "too many messages about it" }.into());
        }
        Ok(())
    }

    /// What is to be sent in a frame next.
    pub(crate) fn to_send(&self) -> Option<ToSend> {
        if !self.has_frames.load(Ordering::Acquire) {
            return None;
        }
        self.no_room.store(false, Ordering::Relaxed);
        // Before looking: whatever comes after that says so again.
        self.has_frames.store(false, Ordering::SeqCst);
        let message = self.outbox.lock().pop_front().map(ToSend::Message);
        let next = message.or_else(|| {
            let crossing = self.crossing.lock();
            crossing.wants_switch().then_some(ToSend::Switch(crossing.epoch))
        });
        if next.is_some() {
            self.has_frames.store(true, Ordering::Release);
        }
        next
    }

    /// There was no room for it. Whoever makes some uses the [waker](Self::waker).
    pub(crate) fn found_no_room(&self, frame: ToSend) {
        if let ToSend::Message(message) = frame {
            self.outbox.lock().push_front(message);
        }
        self.no_room.store(true, Ordering::Relaxed);
    }

    /// Wakes whoever receives.
    pub(crate) fn waker(&self) -> Waker {
        self.this.upgrade().map_or_else(|| Waker::noop().clone(), Waker::from)
    }

    /// Whether a flush is due though nothing is new in the ring.
    pub(crate) fn wants_flush(&self) -> bool {
        self.wants_flush.load(Ordering::Acquire)
    }

    /// The peer says that it has consumed this side's ring so far; whether that frees it.
    pub(crate) fn accept(&self, acknowledged: Position, sealed: Position) -> Result<bool, FrameError> {
        let (sent, frees) = self.announced_and_frees(sealed);
        if acknowledged > sent {
            return Err(FrameError::BadAcknowledgement { acknowledged, sent });
        }
        if self.peer_consumed.load(Ordering::Relaxed) < acknowledged.0 {
            self.peer_consumed.fetch_max(acknowledged.0, Ordering::AcqRel);
        }
        Ok(frees)
    }

    pub(super) fn report_loss(&self, reason: &str) {
        self.news.lock().lost.get_or_insert_with(|| reason.to_owned());
        self.nudge();
    }

    /// Whoever receives has something to look at.
    pub(super) fn nudge(&self) {
        self.has_news.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wake for SwitchingLink {
    fn wake(self: Arc<Self>) {
        self.nudge();
    }
}
