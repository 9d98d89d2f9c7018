//! One side of a simulated connection: what a link over verbs does, with the simulated network under it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;

use super::SimConfig;
use super::net::{Data, Request, SimNet, Wire};
use crate::immediate::Notice;
use crate::link::credit::{Credit, Notifications, Purpose};
use crate::link::switching::{FastLink, Then};
use crate::link::{Arrived, Flushed, Interest, Link, LinkError, LinkKind};
use crate::ring::{Acknowledge, Mailbox, Position, Staging};

/// One side's link.
#[derive(Debug)]
pub struct SimLink {
    net: SimNet,
    side: usize,
    immediates: bool,
    send_queue: u64,
    /// How far has been posted, stored before it is.
    announced: AtomicU64,
    /// How far the peer has consumed, as its credit reports say.
    peer_consumed: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    credit: Credit,
    /// Nothing was sent, and nothing is to be, until the link has taken over.
    waits: bool,
    closed: bool,
    peer_closed: bool,
}

impl SimLink {
    pub(super) fn new(net: SimNet, side: usize, config: &SimConfig, waits: bool) -> Self {
        let notifications = Notifications::new(config.notifications, config.notifications);
        Self {
            net,
            side,
            immediates: config.immediates,
            send_queue: u64::from(config.send_queue),
            announced: AtomicU64::new(0),
            peer_consumed: AtomicU64::new(0),
            state: Mutex::new(State {
                credit: Credit::new(notifications, config.ring, config.epoch),
                waits,
                closed: false,
                peer_closed: false,
            }),
        }
    }

    /// The network that this link runs on.
    #[must_use]
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// Notifications of another epoch that were dropped.
    #[must_use]
    pub fn stale_notifications(&self) -> u64 {
        self.state.lock().credit.stale()
    }

    /// Places in the send queue. Those of work requests that nobody was told of are taken until a later one is.
    fn free_places(&self, wire: &Wire) -> u64 {
        self.send_queue - (wire.posted(self.side) - wire.ports[self.side].completed)
    }

    /// Work requests for bytes with a notification.
    fn places_for_a_notice(&self) -> u64 {
        if self.immediates { 1 } else { 2 }
    }

    fn can_send(&self, state: &State, wire: &Wire, purpose: Purpose) -> bool {
        self.free_places(wire) >= self.places_for_a_notice() && state.credit.notifications.may_send(purpose)
    }

    fn post(&self, wire: &mut Wire, data: Data, word: Option<u32>) {
        // Told of every half queue, so that there is always one to come while the queue is full.
        let signaled = (wire.posted(self.side) + 1).is_multiple_of((self.send_queue / 2).max(1));
        wire.post(self.side, Request { data, word, signaled });
    }

    /// Posts bytes and the notification that follows them.
    fn post_with_notice(&self, state: &mut State, wire: &mut Wire, data: Data, notice: Notice) {
        let produced = Position(self.announced.load(Ordering::Relaxed));
        let word = Some(state.credit.word(notice, produced));
        state.credit.notifications.send();
        if self.immediates {
            self.post(wire, data, word);
        } else {
            self.post(wire, data, None);
            self.post(wire, Data::None, word);
        }
    }

    /// Reports credit on its own if that is due. If it cannot be sent now, the next poll tries again, which will be when
    /// something has arrived or a work request has ended.
    fn report_if_due(&self, state: &mut State, wire: &mut Wire) {
        if state.closed || !state.is_report_due() {
            return;
        }
        if self.can_send(state, wire, Purpose::Credit) {
            let record = Data::Credit(state.credit.report());
            self.post_with_notice(state, wire, record, Notice::Credit);
        } else {
            wire.ports[self.side].wants_send = true;
        }
    }
}

impl State {
    fn is_report_due(&self) -> bool {
        self.credit.notifications.is_due() || self.credit.is_space_due()
    }
}

impl Link for SimLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Sim
    }

    fn announces_whole_frames(&self) -> bool {
        true
    }

    fn flush(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        let mut state = self.state.lock();
        self.net.with(|wire, _| {
            if let Some(death) = &wire.death {
                return Err(death.clone());
            }
            if !self.can_send(&state, wire, Purpose::Frames) {
                wire.ports[self.side].wants_send = true;
                return Ok(Flushed { until: from, blocked: true });
            }
            if state.credit.notifications.is_due() && self.free_places(wire) > self.places_for_a_notice() {
                // Rides along: what follows notifies of it too.
                self.post(wire, Data::Credit(state.credit.report()), None);
            }
            let bytes = staging.bytes(from, to);
            state.credit.rides_with(bytes);
            self.announced.store(to.0, Ordering::Release);
            let frames = Data::Frames { ring: staging.region().clone(), from, bytes: bytes.len() };
            self.post_with_notice(&mut state, wire, frames, Notice::Frames);
            Ok(Flushed { until: to, blocked: false })
        })
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
        let mut state = self.state.lock();
        if state.closed {
            return Err(LinkError::Closed("the link was closed"));
        }
        let mut produced = known;
        self.net.with(|wire, _| {
            let port = &mut wire.ports[self.side];
            let notified = !port.arrived.is_empty();
            while let Some(bits) = port.arrived.pop_front() {
                // At once, whatever becomes of the frames.
                port.receives += 1;
                if let Some((notice, to)) = state.credit.read(bits, mailbox, produced)? {
                    produced = to;
                    state.peer_closed |= matches!(notice, Notice::Close | Notice::Error);
                }
            }
            if notified {
                let sent = Position(self.announced.load(Ordering::Relaxed));
                let consumed = state.credit.accept(port.credit, sent)?;
                self.peer_consumed.fetch_max(consumed.0, Ordering::AcqRel);
            }
            state.peer_closed |= port.abandoned;
            self.report_if_due(&mut state, wire);
            if produced == known {
                if let Some(death) = &wire.death {
                    return Err(death.clone());
                }
                if state.peer_closed {
                    return Err(LinkError::PeerClosed);
                }
            }
            Ok(Arrived { produced })
        })
    }

    fn arm(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>> {
        let state = self.state.lock();
        self.net.with(|wire, _| {
            let ended = state.closed || state.peer_closed || wire.death.is_some();
            let blocked = interest.blocked && self.can_send(&state, wire, Purpose::Frames);
            let reports = state.is_report_due();
            let unblocked = blocked || reports && self.can_send(&state, wire, Purpose::Credit);
            let port = &mut wire.ports[self.side];
            if ended || unblocked || port.abandoned || !port.arrived.is_empty() {
                return Poll::Ready(Ok(()));
            }
            port.wants_send |= interest.blocked || reports;
            port.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn starve(&self, freed: Position) -> bool {
        self.peer_consumed.load(Ordering::Acquire) > freed.0
    }

    fn fed(&self) {}

    fn disarm(&self) {
        // A completion queue that is armed stays so until its next event.
    }

    fn close(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        if state.waits {
            // The peer may count on another link; to it this one has ended without a word.
            return self.net.kill(self.side);
        }
        self.net.with(|wire, wakers| {
            wakers.extend(wire.ports[self.side].waker.take());
            if self.can_send(&state, wire, Purpose::Close) {
                self.post_with_notice(&mut state, wire, Data::None, Notice::Close);
            } else {
                wire.abandon(self.side);
            }
        });
    }
}

impl FastLink for SimLink {
    fn begin(&self, from: Position) {
        self.announced.store(from.0, Ordering::Release);
        self.state.lock().waits = false;
    }

    fn take_down(&self, then: Then) {
        // The peer is not told.
        self.net.kill(self.side);
        then.call();
    }

    fn said_goodbye(&self) -> bool {
        self.state.lock().peer_closed
    }

    fn close_then(&self, then: Then) {
        self.close();
        self.net.with(|wire, _| wire.afterwards(self.side, then));
    }

    fn sever(&self) {
        self.net.sever();
    }
}

impl Acknowledge for SimLink {
    fn acknowledge(&self, consumed: Position) {
        let mut state = self.state.lock();
        state.credit.release(consumed);
        self.net.with(|wire, _| self.report_if_due(&mut state, wire));
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.close();
        self.net.end_closed();
    }
}
