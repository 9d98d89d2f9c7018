//! The link as endpoints use it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::VerbsLink;
use super::farewell::{self, Afterwards};
use crate::immediate::Notice;
use crate::link::credit::Purpose;
use crate::link::switching::{FastLink, Then};
use crate::link::{Arrived, Flushed, Interest, Link, LinkError, LinkKind};
use crate::ring::{Acknowledge, Mailbox, Position, Staging};

impl Link for VerbsLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Rdma
    }

    fn announces_whole_frames(&self) -> bool {
        true
    }

    fn flush(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        let mut state = self.state.lock();
        if let Some(failure) = self.inbox.failure() {
            return Err(failure.clone());
        }
        let bytes = staging.bytes(from, to);
        let places = match &state.connection {
            Some(connection) => connection.places(bytes.len()),
            None => return Err(LinkError::Closed("the link was closed")),
        };
        if !self.can_send(&state, places, Purpose::Frames) {
            // What has ended may not have been put down yet.
            drop(state);
            self.lane.look();
            state = self.state.lock();
        }
        let mut can_send = self.can_send(&state, places, Purpose::Frames);
        if !can_send {
            state.frames_wait = places;
            self.update_wants(&state);
            // Requests whose end was put down before this was said have woken nobody.
            can_send = self.can_send(&state, places, Purpose::Frames);
        }
        if !can_send {
            drop(state);
            self.attend_sleeper();
            return Ok(Flushed { until: from, blocked: true });
        }
        let rides_along =
            state.credit.notifications.is_due() && self.can_send(&state, places + 1, Purpose::Frames);
        let record = rides_along.then(|| state.credit.report());
        state.credit.rides_with(bytes);
        self.announced.store(to.0, Ordering::Release);
        self.post(&mut state, record, (staging.size().offset(from), bytes), Notice::Frames)?;
        state.frames_wait = 0;
        self.update_wants(&state);
        Ok(Flushed { until: to, blocked: false })
    }

    fn announced(&self, _sealed: Position) -> Position {
        Position(self.announced.load(Ordering::Acquire))
    }

    fn freed(&self, _sealed: Position) -> Result<Position, LinkError> {
        Ok(Position(self.peer_consumed.load(Ordering::Acquire)))
    }

    fn frees_by_header(&self) -> bool {
        true
    }

    fn poll(&self, mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError> {
        self.lane.look();
        let nothing = self.inbox.arrived() == self.seen.load(Ordering::Relaxed)
            && !self.ended.load(Ordering::Relaxed)
            && !self.report_waits.load(Ordering::Relaxed)
            && self.inbox.failure().is_none()
            && !self.inbox.is_disconnected();
        if nothing {
            return Ok(Arrived { produced: known });
        }
        let mut state = self.state.lock();
        if state.connection.is_none() {
            return Err(LinkError::Closed("the link was closed"));
        }
        let produced = self.read_news(&mut state, mailbox, known, false)?;
        self.report_if_due(&mut state);
        if produced == known {
            self.end_of(&state)?;
        }
        drop(state);
        if self.report_waits.load(Ordering::Relaxed) {
            self.attend_sleeper();
        }
        Ok(Arrived { produced })
    }

    fn arm(&self, cx: &mut Context<'_>, _interest: Interest) -> Poll<Result<(), LinkError>> {
        let state = self.state.lock();
        let completed = self.inbox.completed();
        if self.ended.load(Ordering::Relaxed) || self.end_of(&state).is_err() || self.is_unblocked(&state) {
            return Poll::Ready(Ok(()));
        }
        let waits = self.inbox.wants_send();
        drop(state);
        let seen = self.seen.load(Ordering::Relaxed);
        self.lane.sleep(self.queue_pair, cx.waker(), || {
            self.inbox.arrived() != seen
                || self.inbox.is_disconnected()
                || waits && self.inbox.completed() != completed
                // Frames came to wait meanwhile: for whoever decided to sleep they do not wait yet.
                || self.inbox.wants_send() != waits
        })
    }

    fn starve(&self, freed: Position) -> bool {
        if !self.inbox.starving.swap(true, Ordering::SeqCst) {
            // Somebody else may have been polling, and have left before the space comes.
            self.attend_sleeper();
        }
        self.peer_consumed.load(Ordering::Acquire) > freed.0
    }

    fn fed(&self) {
        self.inbox.starving.store(false, Ordering::SeqCst);
    }

    fn disarm(&self) {
        // Whoever sleeps still waits for space and for a blocked flush to go on; the lane keeps its waker for that.
        if self.inbox.armed.load(Ordering::Relaxed) {
            self.inbox.armed.store(false, Ordering::Relaxed);
        }
    }

    fn close(&self) {
        self.end(true, Afterwards::default());
    }
}

impl VerbsLink {
    /// Takes the link down, after a goodbye if one is due; frames that were flushed arrive before that.
    fn end(&self, says_goodbye: bool, afterwards: Afterwards) {
        // What has ended may not have been put down yet, and there must be a place for the goodbye.
        self.lane.look();
        let mut state = self.state.lock();
        if state.connection.is_none() {
            return;
        }
        self.ended.store(true, Ordering::Relaxed);
        let mut last = None;
        if says_goodbye
            && !state.waits
            && state.connection.as_ref().is_some_and(|connection| connection.up)
            && self.inbox.failure().is_none()
        {
            let places = Self::notice_places(&state);
            if self.can_send(&state, places, Purpose::Close) {
                let record = state.credit.report();
                last = self.post(&mut state, Some(record), (0, &[]), Notice::Close).ok();
            }
        }
        let Some(connection) = state.connection.take() else { return };
        let peer_closed = state.peer_closed;
        drop(state);
        self.lane.rouse(self.queue_pair);
        farewell::say(farewell::Farewell {
            lane: Arc::clone(&self.lane),
            inbox: Arc::clone(&self.inbox),
            seen: self.seen.load(Ordering::Relaxed),
            peer_closed,
            last,
            connection,
            afterwards,
        });
    }
}

impl FastLink for VerbsLink {
    fn begin(&self, from: Position) {
        self.announced.store(from.0, Ordering::Release);
        self.state.lock().waits = false;
    }

    fn take_down(&self, then: Then) {
        self.end(false, Afterwards::call(then));
    }

    fn said_goodbye(&self) -> bool {
        self.state.lock().peer_closed
    }

    fn close_then(&self, then: Then) {
        self.end(true, Afterwards::call(then));
    }

    fn sever(&self) {
        if let Some(connection) = &self.state.lock().connection {
            // Fails when it is broken already.
            let _ = connection.queue_pair.id().disconnect();
        }
    }
}

impl Acknowledge for VerbsLink {
    fn acknowledge(&self, consumed: Position) {
        let mut state = self.state.lock();
        state.credit.release(consumed);
        self.report_if_due(&mut state);
        drop(state);
        if self.report_waits.load(Ordering::Relaxed) {
            self.attend_sleeper();
        }
    }
}
