//! One connection at the client: the calls in flight, and what arrives for them.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use ringmail_transport::bootstrap::{Established, Refusal};
use ringmail_transport::endpoint::{Endpoint, Turn};
use ringmail_transport::frame::{CallId, FrameError, HEADER, Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::ring::{Incoming, Room};
use rustc_hash::FxHashMap;
use slab::Slab;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tonic::Status;

use super::fragment_room::FragmentRoom;
use crate::error::connection_lost;
use crate::fragment::{Assembly, LARGE};
use crate::wait::{Spin, Wait};

/// One connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) endpoint: Endpoint,
    pub(crate) peer: SocketAddr,
    pub(crate) software: String,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) peer_max_message_bytes: u64,
    pub(super) max_message_bytes: u64,
    max_calls: usize,
    /// Looked up in every call; the names are the server's, which could only slow down its own clients.
    methods: FxHashMap<String, u16>,
    pub(crate) spin: Spin,
    pub(super) calls: Mutex<Calls>,
    in_flight: AtomicUsize,
    going_away: AtomicBool,
    /// Notified when a call has ended while others wait for a place.
    place_free: Notify,
    waiting_for_place: AtomicUsize,
    /// What the server can take of requests in fragments.
    fragments: FragmentRoom,
    /// Callers receive for themselves; the driver only looks in now and then.
    pub(super) callers_poll: AtomicBool,
    /// Grows with every poll by a caller.
    pub(super) caller_polls: AtomicU32,
    pub(super) driver: Notify,
    /// Calls that were given up while there was no room in the ring to say so. Not empty: a task waits for room.
    late_cancels: Mutex<Vec<CallId>>,
    /// The one that the connection was made on, so it has timers and I/O.
    pub(super) runtime: Handle,
    /// Ends the driver and the watch over the peer's life.
    pub(super) ended: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) slots: Slab<Slot>,
    next_generation: u32,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// What its request, being sent in fragments, has taken of the room for those.
    fragment_room: u32,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Waiting(Option<Waker>),
    Assembling(Option<Waker>, Assembly),
    Done(Outcome),
}

/// Counts a task that waits for a place, for as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How a call ended: with a response frame, or without.
pub(super) type Outcome = Result<Incoming, Status>;

/// What a call finds when it looks at its slot.
pub(super) enum Look {
    Ended(Outcome),
    Waiting,
}

impl Connection {
    pub(super) fn new(established: Established, wait: Wait, max_message_bytes: u64) -> Self {
        let Established { endpoint, peer, hello, refusals, .. } = established;
        let software = hello.software_name();
        let methods = hello.methods.into_iter().take(usize::from(u16::MAX)).zip(0..).collect();
        Self {
            endpoint,
            peer,
            software,
            refusals,
            peer_max_message_bytes: hello.max_message_bytes,
            max_message_bytes,
            max_calls: hello.max_calls.max(1) as usize,
            methods,
            spin: Spin::new(wait),
            calls: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            going_away: AtomicBool::new(false),
            place_free: Notify::new(),
            waiting_for_place: AtomicUsize::new(0),
            fragments: FragmentRoom::new(hello.max_fragmented_bytes),
            callers_poll: AtomicBool::new(false),
            caller_polls: AtomicU32::new(0),
            driver: Notify::new(),
            late_cancels: Mutex::default(),
            runtime: Handle::current(),
            ended: Arc::new(Notify::new()),
        }
    }

    /// Whether new calls may begin here.
    pub(crate) fn is_usable(&self) -> bool {
        !self.going_away.load(Ordering::Relaxed) && self.endpoint.failure().is_none()
    }

    /// The server's index for a method, if it has it.
    pub(super) fn method(&self, path: &str) -> Option<u16> {
        self.methods.get(path).copied()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Takes a place for a call, waiting for one if the server's limit is reached.
    pub(super) async fn begin(&self) -> CallId {
        if let Some(call) = self.try_begin() {
            return call;
        }
        let _waiting = Waiting::new(&self.waiting_for_place);
        loop {
            // Before the next look, so that a place that becomes free in between is not missed.
            let mut free = pin!(self.place_free.notified());
            free.as_mut().enable();
            if let Some(call) = self.try_begin() {
                return call;
            }
            free.await;
        }
    }

    fn try_begin(&self) -> Option<CallId> {
        let mut calls = self.calls.lock();
        if calls.slots.len() >= self.max_calls {
            return None;
        }
        let generation = calls.next_generation;
        calls.next_generation = generation.wrapping_add(1);
        let index = calls.slots.insert(Slot { generation, fragment_room: 0, state: State::Waiting(None) });
        self.in_flight.store(calls.slots.len(), Ordering::Relaxed);
        Some(CallId { index: index as u32, generation })
    }

    /// Waits until the server can take a request of so many bytes in fragments.
    pub(super) async fn take_fragment_room(&self, call: CallId, bytes: u64) {
        let taken = self.fragments.take(bytes).await;
        if let Some(slot) = self.calls.lock().slots.get_mut(call.index as usize) {
            slot.fragment_room = taken;
        }
    }

    /// Gives back what a request took that has been sent. Whatever is sent next comes behind its last fragment.
    pub(super) fn give_fragment_room_back(&self, call: CallId) {
        let mut calls = self.calls.lock();
        let Some(slot) = calls.slots.get_mut(call.index as usize) else { return };
        let taken = std::mem::take(&mut slot.fragment_room);
        drop(calls);
        self.fragments.give_back(taken);
    }

    /// Gives a call's place back.
    pub(super) fn end(&self, call: CallId) {
        let mut calls = self.calls.lock();
        // The state may hold a frame, whose release may wake others: dropped after the lock.
        let slot = calls.slots.try_remove(call.index as usize);
        let left = calls.slots.len();
        self.in_flight.store(left, Ordering::Relaxed);
        drop(calls);
        if let Some(slot) = &slot {
            self.fragments.give_back(slot.fragment_room);
        }
        drop(slot);
        if self.waiting_for_place.load(Ordering::SeqCst) > 0 {
            self.place_free.notify_one();
        }
        if left == 0 && self.going_away.load(Ordering::Relaxed) {
            self.close("the server is shutting down and all calls have ended");
        }
    }

    /// Tells the server that nobody waits for a call any more: at once, or as soon as there is room for that. It may hold
    /// a part of the request, and its handler may never end by itself. The place is given back behind that, since the
    /// server counts the call until then.
    pub(super) fn cancel(self: &Arc<Self>, call: CallId) {
        if let Ok(claim) = self.endpoint.claim(HEADER, Room::Control) {
            claim.commit(&cancellation(call));
            self.endpoint.flush();
            self.end(call);
            return;
        }
        let mut late = self.late_cancels.lock();
        late.push(call);
        if late.len() == 1 {
            let connection = Arc::clone(self);
            self.runtime.spawn(async move { connection.send_late_cancels().await });
        }
    }

    async fn send_late_cancels(&self) {
        // Somebody must receive what frees the ring.
        self.call_driver();
        loop {
            let Ok(claim) = self.endpoint.claim_wait(HEADER, Room::Control).await else {
                // With the connection all its calls end.
                let late = std::mem::take(&mut *self.late_cancels.lock());
                late.into_iter().for_each(|call| self.end(call));
                return;
            };
            let mut late = self.late_cancels.lock();
            let call = late.pop();
            let last = late.is_empty();
            drop(late);
            if let Some(call) = call {
                claim.commit(&cancellation(call));
                self.endpoint.flush();
                self.end(call);
            }
            if last {
                return;
            }
        }
    }

    /// Looks whether a call has ended; if not, leaves the waker.
    pub(super) fn look(&self, call: CallId, waker: Option<&Waker>) -> Look {
        let mut calls = self.calls.lock();
        let slot = &mut calls.slots[call.index as usize];
        match &mut slot.state {
            State::Done(_) => {
                let State::Done(outcome) = std::mem::replace(&mut slot.state, State::Waiting(None)) else {
                    unreachable!("it was done")
                };
                Look::Ended(outcome)
            }
            State::Waiting(known) | State::Assembling(known, _) => {
                if let Some(waker) = waker
                    && !known.as_ref().is_some_and(|known| known.will_wake(waker))
                {
                    *known = Some(waker.clone());
                }
                drop(calls);
                // A failure that came before the waker was left has woken nobody.
                match self.endpoint.failure() {
                    Some(reason) => Look::Ended(Err(connection_lost(&self.peer, reason))),
                    None => Look::Waiting,
                }
            }
        }
    }

    /// Takes what has arrived. Frames for `own`, if they end that call, are returned; others go to their calls.
    pub(super) fn turn(&self, own: Option<CallId>) -> Result<(Turn, Option<Incoming>), LinkError> {
        let mut ended = None;
        let turn = self.endpoint.turn(&mut |frame| {
            let header = frame.header();
            if header.kind == Kind::Response && Some(header.call) == own && !header.flags.intersects(LARGE) {
                ended = Some(frame);
                return;
            }
            if let Err(error) = self.deliver(frame) {
                self.endpoint.fail(error.into());
            }
        });
        let landed = self.endpoint.land(&mut |landed| self.land(landed));
        let turn = match turn {
            Ok(Turn::Frames(frames)) => Ok(Turn::Frames(frames + landed)),
            other => other,
        };
        if matches!(turn, Ok(Turn::Frames(1..))) && self.endpoint.is_crowded() {
            self.make_room();
        }
        match turn {
            Ok(turn) => Ok((turn, ended)),
            // The answer came before the end did.
            Err(_) if ended.is_some() => Ok((Turn::Frames(1), ended)),
            Err(error) => {
                self.fail_calls(&error);
                Err(error)
            }
        }
    }

    fn deliver(&self, frame: Incoming) -> Result<(), FrameError> {
        match frame.header().kind {
            Kind::Response | Kind::Fragment => self.deliver_response(frame),
            Kind::RendezvousDone => self.endpoint.answered(frame.header()),
            Kind::Reset => {
                let status = Status::unavailable(format!("{} gave the call up", self.peer));
                self.finish(frame.header().call, Err(status));
                Ok(())
            }
            Kind::Ping => {
                let header = Header { call: frame.header().call, ..Header::new(Kind::Pong, HEADER as u32) };
                // Without room there is traffic, which answers the question as well.
                if let Ok(claim) = self.endpoint.claim(header.length as usize, Room::Control) {
                    claim.commit(&header);
                    self.endpoint.flush();
                }
                Ok(())
            }
            Kind::Pong => Ok(()),
            Kind::GoAway => {
                self.going_away.store(true, Ordering::Relaxed);
                tracing::debug!(peer = %self.peer, "the server is shutting down");
                if self.in_flight() == 0 {
                    self.close("the server is shutting down");
                }
                Ok(())
            }
            kind => Err(FrameError::Misdirected { kind }),
        }
    }

    /// Copies out what is kept in the mailbox: responses that nobody has taken yet, and what the application has
    /// borrowed.
    fn make_room(&self) {
        for (_, slot) in &mut self.calls.lock().slots {
            if let State::Done(Ok(frame)) = &mut slot.state {
                frame.detach();
            }
        }
        self.endpoint.mailbox().detach_lent();
    }

    fn finish(&self, call: CallId, outcome: Outcome) {
        let mut calls = self.calls.lock();
        let Some(slot) = calls.slots.get_mut(call.index as usize) else { return };
        if slot.generation != call.generation {
            return;
        }
        let before = std::mem::replace(&mut slot.state, State::Done(outcome));
        drop(calls);
        if let State::Waiting(Some(waker)) | State::Assembling(Some(waker), _) = before {
            waker.wake();
        }
    }

    /// Ends all calls: the connection is dead.
    fn fail_calls(&self, reason: &LinkError) {
        let mut wakers = Vec::new();
        for (_, slot) in &mut self.calls.lock().slots {
            if matches!(slot.state, State::Done(_)) {
                continue;
            }
            let outcome = State::Done(Err(connection_lost(&self.peer, reason)));
            if let State::Waiting(Some(waker)) | State::Assembling(Some(waker), _) =
                std::mem::replace(&mut slot.state, outcome)
            {
                wakers.push(waker);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        // Kept for the watch if that has not begun yet, or is not at it.
        self.ended.notify_one();
        self.driver.notify_one();
    }

    /// Ends the connection because of `reason`.
    pub(super) fn fail(&self, reason: LinkError) {
        self.endpoint.fail(reason);
        if let Some(reason) = self.endpoint.failure() {
            self.fail_calls(reason);
        }
    }

    /// Ends the connection because the peer has gone. What it had answered before is delivered first.
    pub(super) async fn lost(&self, why: LinkError) {
        self.endpoint.fail(why);
        // The turn that finds nothing any more fails the calls.
        while let Ok((turn, _)) = self.turn(None) {
            if turn == Turn::Busy {
                // A caller receives. It learns of the end from its next turn.
                tokio::task::yield_now().await;
            }
        }
    }

    pub(super) fn close(&self, reason: &'static str) {
        self.fail(LinkError::Closed(reason));
    }

    /// Has the driver take over what callers did for themselves.
    pub(super) fn call_driver(&self) {
        if self.callers_poll.swap(false, Ordering::SeqCst) {
            self.driver.notify_one();
        }
    }
}

fn cancellation(call: CallId) -> Header {
    Header { call, ..Header::new(Kind::Cancel, HEADER as u32) }
}
