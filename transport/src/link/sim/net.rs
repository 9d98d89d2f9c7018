//! The simulated network: send queues, completion queues, virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex};

use super::{Faults, SimConfig};
use crate::link::LinkError;
use crate::link::credit::{CreditRecord, NoticeError};
use crate::link::switching::Then;
use crate::memory::Region;
use crate::ring::{BLOCK, Position};

/// Times the longest delay that pass before a lost work request is sent again.
const RETRY_DELAYS: u64 = 8;
/// Times the usual delay that a stalled work request takes.
const STALL: u64 = 100;
/// Most pieces that a torn WRITE lands in.
const PIECES: usize = 5;

/// What has happened on a network so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Work requests that ended well.
    pub requests: u64,
    /// Bytes of frames that landed, padding included.
    pub bytes: u64,
    /// Notifications that arrived.
    pub notifications: u64,
    /// Of these, credit reports.
    pub credit_reports: u64,
    /// Times that a work request was lost on the wire.
    pub losses: u64,
    /// Notifications that vanished.
    pub vanished: u64,
    /// Notifications that found no receive request: must stay 0.
    pub not_ready: u64,
    /// Wakers called.
    pub wakes: u64,
}

/// The network between two simulated ends: a handle, of which there can be several.
#[derive(Clone, Debug)]
pub struct SimNet {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wire: Mutex<Wire>,
    /// Told when there is something to carry out, or an end is gone.
    work: Condvar,
}

/// A work request as a link posts it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) data: Data,
    /// The notification at its end.
    pub(super) word: Option<u32>,
    /// The sender wants to know when it is done.
    pub(super) signaled: bool,
}

/// What a work request writes.
#[derive(Debug)]
pub(super) enum Data {
    None,
    /// A range of the staging ring, to the same place in the peer's mailbox.
    Frames {
        ring: Arc<Region>,
        from: Position,
        bytes: usize,
    },
    Credit(CreditRecord),
}

/// One side's queue pair, with the queues and the memory that belong to it.
#[derive(Debug)]
pub(super) struct Port {
    /// What the peer's WRITEs land in.
    mailbox: Arc<Region>,
    /// What the peer's credit reports land in.
    pub(super) credit: CreditRecord,
    posted: VecDeque<Posted>,
    /// Work requests that have left the send queue at its front.
    done: u64,
    /// Up to which of them the sender has been told.
    pub(super) completed: u64,
    /// Receive requests.
    pub(super) receives: u32,
    /// Completion queue of the notifications that have arrived.
    pub(super) arrived: VecDeque<u32>,
    /// Who sleeps on the completion queue.
    pub(super) waker: Option<Waker>,
    /// Whether completions of sends are worth waking for.
    pub(super) wants_send: bool,
    /// This side takes its end down without a goodbye, once everything that it has posted is done.
    leaves: bool,
    /// The peer has done so.
    pub(super) abandoned: bool,
    /// Falls silent: nothing leaves and nothing arrives any more.
    killed: bool,
    /// What is to be done when nothing is posted any more.
    afterwards: Option<Then>,
}

impl Port {
    fn call_if_empty(&mut self) {
        if self.posted.is_empty()
            && let Some(then) = self.afterwards.take()
        {
            then.call();
        }
    }
}

#[derive(Debug)]
struct Posted {
    request: Request,
    due: u64,
    losses: u32,
}

/// The network's whole state.
#[derive(Debug)]
pub(super) struct Wire {
    delay: (u64, u64),
    faults: Faults,
    rng: fastrand::Rng,
    now: u64,
    steps: u64,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    pub(super) ports: [Port; 2],
    pub(super) death: Option<LinkError>,
    statistics: Statistics,
    open_ends: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    due: u64,
    /// Events that are due at the same time happen in the order in which they were made.
    number: u64,
    what: What,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A piece of a work request's bytes lands at the peer of this side.
    Land { side: usize, request: u64, start: usize, end: usize },
    /// The work request at the front of this side's send queue ends.
    Finish { side: usize },
    /// The peer of this side learns that it is gone.
    Abandon { side: usize },
}

impl SimNet {
    pub(super) fn new(config: &SimConfig, mailboxes: [Arc<Region>; 2]) -> Self {
        let ports = mailboxes.map(|mailbox| Port {
            mailbox,
            credit: CreditRecord { consumed: Position(0), granted: u64::from(config.notifications) },
            posted: VecDeque::new(),
            done: 0,
            completed: 0,
            receives: config.notifications,
            arrived: VecDeque::new(),
            waker: None,
            wants_send: false,
            leaves: false,
            abandoned: false,
            killed: false,
            afterwards: None,
        });
        let wire = Wire {
            delay: config.delay,
            faults: config.faults.clone(),
            rng: fastrand::Rng::with_seed(config.seed),
            now: 0,
            steps: 0,
            events: BinaryHeap::new(),
            events_made: 0,
            ports,
            death: None,
            statistics: Statistics::default(),
            open_ends: 2,
        };
        Self { shared: Arc::new(Shared { wire: Mutex::new(wire), work: Condvar::new() }) }
    }

    /// Works on the state; afterwards wakes those who `work` says.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Wire, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let mut wire = self.shared.wire.lock();
        let result = work(&mut wire, &mut wakers);
        wire.statistics.wakes += wakers.len() as u64;
        let has_work = !wire.events.is_empty();
        drop(wire);
        if has_work {
            self.shared.work.notify_one();
        }
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Carries out the next event. `false` when there is none: nothing will happen until a side does something.
    pub fn step(&self) -> bool {
        self.with(Wire::step)
    }

    /// Carries out events until there are none.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Carries out events as they come until both ends are gone: the network card for tests with threads.
    pub fn run(&self) {
        loop {
            while self.step() {}
            let mut wire = self.shared.wire.lock();
            if wire.open_ends == 0 {
                return;
            }
            if wire.events.is_empty() {
                self.shared.work.wait(&mut wire);
            }
        }
    }

    /// Virtual time, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.shared.wire.lock().now
    }

    /// Events carried out so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.wire.lock().steps
    }

    /// What has happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.wire.lock().statistics
    }

    /// Makes a side (0 or 1) fall silent, as if its process had been killed and its machine unplugged: the other learns
    /// of it by what it sends, after all retries.
    pub fn kill(&self, side: usize) {
        self.with(|wire, _| {
            wire.ports[side].killed = true;
            wire.ports[side].posted.clear();
            wire.ports[side].call_if_empty();
        });
    }

    /// The link dies for both sides.
    pub(super) fn sever(&self) {
        self.with(|wire, wakers| wire.die(LinkError::Simulated(wire.steps), wakers));
    }

    /// Puts a notification of any 32 bits on the completion queue of a side (0 or 1), as a peer could send it that does
    /// not keep to the rules. It takes a receive request.
    pub fn inject(&self, side: usize, bits: u32) {
        self.with(|wire, wakers| wire.notify(side, bits, wakers));
    }

    pub(super) fn end_closed(&self) {
        self.shared.wire.lock().open_ends -= 1;
        self.shared.work.notify_one();
    }
}

impl Wire {
    /// Puts a work request on a side's send queue. How long that may get is for the side to keep to.
    pub(super) fn post(&mut self, side: usize, request: Request) {
        if self.death.is_some() || self.ports[side].killed {
            return;
        }
        let due = self.now + self.draw_delay();
        let number = self.ports[side].done + self.ports[side].posted.len() as u64;
        if self.faults.tear
            && let Data::Frames { bytes, .. } = request.data
        {
            self.tear(side, number, bytes, due);
        }
        self.ports[side].posted.push_back(Posted { request, due, losses: 0 });
        if self.ports[side].posted.len() == 1 {
            self.schedule(due, What::Finish { side });
        }
    }

    /// Calls `then` as soon as nothing that a side has posted is left.
    pub(super) fn afterwards(&mut self, side: usize, then: Then) {
        self.ports[side].afterwards = Some(then);
        self.ports[side].call_if_empty();
    }

    /// Tells a side's peer that it is gone, some time after the last of what it has posted.
    pub(super) fn abandon(&mut self, side: usize) {
        self.ports[side].leaves = true;
        if self.ports[side].posted.is_empty() {
            let due = self.now + self.draw_delay();
            self.schedule(due, What::Abandon { side });
        }
    }

    /// Work requests that a side has posted so far.
    pub(super) fn posted(&self, side: usize) -> u64 {
        self.ports[side].done + self.ports[side].posted.len() as u64
    }

    fn draw_delay(&mut self) -> u64 {
        let (shortest, longest) = self.delay;
        let delay = self.rng.u64(shortest..=longest);
        if self.rng.u32(0..1000) < self.faults.stall { delay * STALL } else { delay }
    }

    fn schedule(&mut self, due: u64, what: What) {
        let number = self.events_made;
        self.events_made += 1;
        self.events.push(Reverse(Event { due, number, what }));
    }

    /// Lets the bytes land in pieces, at any time and in any order before the end.
    fn tear(&mut self, side: usize, request: u64, bytes: usize, due: u64) {
        let pieces = self.rng.usize(1..=PIECES);
        let mut cuts: Vec<usize> = (1..pieces).map(|_| self.rng.usize(0..=bytes)).collect();
        cuts.extend([0, bytes]);
        cuts.sort_unstable();
        for piece in cuts.windows(2).filter(|piece| piece[0] < piece[1]) {
            let at = self.rng.u64(self.now..=due);
            self.schedule(at, What::Land { side, request, start: piece[0], end: piece[1] });
        }
    }

    fn step(&mut self, wakers: &mut Vec<Waker>) -> bool {
        let Some(Reverse(event)) = self.events.pop() else { return false };
        self.now = self.now.max(event.due);
        self.steps += 1;
        if self.faults.dies_at == Some(self.steps) {
            self.die(LinkError::Simulated(self.steps), wakers);
            return true;
        }
        match event.what {
            What::Land { side, request, start, end } => {
                let port = &self.ports[side];
                // It may have been taken back: by a kill, or by the link's death.
                let found = request.checked_sub(port.done).and_then(|at| port.posted.get(at as usize));
                if let Some(posted) = found
                    && !self.ports[1 - side].killed
                {
                    land(&posted.request.data, start..end, &self.ports[1 - side].mailbox);
                }
            }
            What::Finish { side } => self.finish(side, wakers),
            What::Abandon { side } => {
                let peer = &mut self.ports[1 - side];
                peer.abandoned = true;
                wakers.extend(peer.waker.take());
            }
        }
        true
    }

    fn finish(&mut self, side: usize, wakers: &mut Vec<Waker>) {
        let peer_killed = self.ports[1 - side].killed;
        let Some(front) = self.ports[side].posted.front_mut() else { return };
        if peer_killed || self.rng.u32(0..1000) < self.faults.loss {
            front.losses += 1;
            self.statistics.losses += 1;
            if front.losses > self.faults.retries {
                let steps = self.steps;
                self.die(LinkError::Simulated(steps), wakers);
                return;
            }
            front.due = self.now + RETRY_DELAYS * self.delay.1;
            let (due, number) = (front.due, self.ports[side].done);
            // What is sent again lands again, with the bytes that are there then.
            if self.faults.tear
                && let Data::Frames { bytes, .. } = self.ports[side].posted[0].request.data
            {
                self.tear(side, number, bytes, due);
            }
            self.schedule(due, What::Finish { side });
            return;
        }
        let Some(Posted { request, .. }) = self.ports[side].posted.pop_front() else { return };
        self.ports[side].done += 1;
        self.statistics.requests += 1;
        match &request.data {
            Data::None => {}
            Data::Frames { bytes, .. } => {
                self.statistics.bytes += *bytes as u64;
                if !self.faults.tear {
                    land(&request.data, 0..*bytes, &self.ports[1 - side].mailbox);
                }
            }
            Data::Credit(record) => self.ports[1 - side].credit = *record,
        }
        if request.signaled {
            let port = &mut self.ports[side];
            port.completed = port.done;
            if port.wants_send {
                port.wants_send = false;
                wakers.extend(port.waker.take());
            }
        }
        if let Some(bits) = request.word {
            self.statistics.credit_reports += u64::from(matches!(request.data, Data::Credit(_)));
            if self.faults.vanishing > 0 && self.ports[1 - side].receives > 0 && self.rng.u32(0..8) == 0 {
                self.faults.vanishing -= 1;
                self.statistics.vanished += 1;
                self.ports[1 - side].receives -= 1;
            } else {
                self.notify(1 - side, bits, wakers);
            }
        }
        self.ports[side].call_if_empty();
        if let Some(next) = self.ports[side].posted.front() {
            let due = next.due.max(self.now);
            self.schedule(due, What::Finish { side });
        } else if self.ports[side].leaves {
            self.abandon(side);
        }
    }

    fn notify(&mut self, side: usize, bits: u32, wakers: &mut Vec<Waker>) {
        let port = &mut self.ports[side];
        if port.receives == 0 {
            self.statistics.not_ready += 1;
            self.die(NoticeError::NotReady.into(), wakers);
            return;
        }
        port.receives -= 1;
        port.arrived.push_back(bits);
        self.statistics.notifications += 1;
        wakers.extend(port.waker.take());
    }

    fn die(&mut self, reason: LinkError, wakers: &mut Vec<Waker>) {
        self.death.get_or_insert(reason);
        self.events.clear();
        for port in &mut self.ports {
            port.posted.clear();
            port.call_if_empty();
            wakers.extend(port.waker.take());
        }
    }
}

/// Copies a piece of what a work request writes to where it belongs, which for frames is the same place in the peer's
/// mailbox.
fn land(data: &Data, piece: Range<usize>, mailbox: &Region) {
    let Data::Frames { ring, from, bytes } = data else { return };
    assert!(piece.end <= *bytes && *bytes <= mailbox.size().bytes() && ring.size() == mailbox.size());
    let at = from.0 as usize * BLOCK % mailbox.size().bytes() + piece.start;
    // SAFETY: an offset below the ring's size and at most one ring of bytes stay within the double mappings. The sender
    // does not write the range before the receiver has acknowledged it, which it does after the end of this request;
    // the receiver does not look at it before it is notified, which happens after this. A peer that breaks these rules
    // does to a test what it would do to the receiver's memory through a real network card.
    unsafe {
        std::ptr::copy_nonoverlapping(
            ring.ring().add(at).as_ptr(),
            mailbox.ring().add(at).as_ptr(),
            piece.len(),
        );
    }
}
