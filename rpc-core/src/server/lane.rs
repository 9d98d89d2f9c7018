//! A lane: one task, or one thread, that polls a number of connections.
//!
//! A lane is the only one that receives on its connections. It polls those that were active lately in turn, as long
//! as that pays; the others are armed and cost nothing until they wake it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use slab::Slab;

use super::connection::{Connection, Progress};
use crate::wait::{SpinUntil, Wait};

/// Longest time that a lane on the application's runtime keeps its thread.
const LONGEST_TURN: Duration = Duration::from_millis(1);
/// Rounds between looks at the clock.
const ROUNDS_PER_LOOK: u32 = 256;

/// The outside of a lane: how connections come to it and how it is woken.
#[derive(Debug, Default)]
pub(super) struct LaneDoor {
    inbox: Mutex<Inbox>,
    /// There is something in the inbox.
    news: AtomicBool,
}

#[derive(Debug, Default)]
struct Inbox {
    arrived: Vec<Arc<Connection>>,
    woken: Vec<usize>,
    stop: bool,
    waker: Option<Waker>,
}

impl LaneDoor {
    pub(super) fn admit(&self, connection: Arc<Connection>) {
        self.tell(|inbox| inbox.arrived.push(connection));
    }

    /// Ends the lane; what it still serves is dropped.
    pub(super) fn stop(&self) {
        self.tell(|inbox| inbox.stop = true);
    }

    fn tell(&self, change: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock();
        change(&mut inbox);
        self.news.store(true, Ordering::Release);
        let waker = inbox.waker.clone();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Wakes a lane for one of its connections.
#[derive(Debug)]
struct SeatWaker {
    door: Arc<LaneDoor>,
    seat: usize,
    /// It is in the inbox already.
    queued: AtomicBool,
}

impl Wake for SeatWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.door.tell(|inbox| inbox.woken.push(self.seat));
        }
    }
}

#[derive(Debug)]
struct Seat {
    connection: Arc<Connection>,
    seat_waker: Arc<SeatWaker>,
    waker: Waker,
    active: bool,
    spin: SpinUntil,
}

/// What to do with a seat after looking at it.
enum Next {
    KeepPolling,
    Sleep,
    Remove,
}

/// The inside of a lane.
#[derive(Debug)]
pub(super) struct Lane {
    door: Arc<LaneDoor>,
    seats: Slab<Seat>,
    active: Vec<usize>,
    stop: bool,
    /// Has a thread of its own and need not let others run.
    own_thread: bool,
}

impl Lane {
    pub(super) fn new(door: Arc<LaneDoor>, own_thread: bool) -> Self {
        Self { door, seats: Slab::new(), active: Vec::new(), stop: false, own_thread }
    }

    /// Polls all active connections until none is active, it is told to stop, or other tasks should run.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut rounds = 0;
        let mut started = None;
        let mut spent = Duration::ZERO;
        self.listen(cx.waker());
        loop {
            if self.door.news.load(Ordering::Acquire) {
                self.read_news();
            }
            if self.stop {
                return Poll::Ready(());
            }
            let round = self.round();
            spent += round.spent;
            if self.active.is_empty() {
                if self.door.news.load(Ordering::Acquire) {
                    continue;
                }
                return Poll::Pending;
            }
            rounds += 1;
            let long = spent > LONGEST_TURN
                || rounds % ROUNDS_PER_LOOK == 0 && {
                    let now = Instant::now();
                    now.duration_since(*started.get_or_insert(now)) > LONGEST_TURN
                };
            if !self.own_thread && (round.spawned || long) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn listen(&self, waker: &Waker) {
        let mut inbox = self.door.inbox.lock();
        if !inbox.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            inbox.waker = Some(waker.clone());
        }
    }

    fn read_news(&mut self) {
        let mut inbox = self.door.inbox.lock();
        self.door.news.store(false, Ordering::Relaxed);
        self.stop |= inbox.stop;
        for connection in inbox.arrived.drain(..) {
            let entry = self.seats.vacant_entry();
            let seat = entry.key();
            let seat_waker =
                Arc::new(SeatWaker { door: Arc::clone(&self.door), seat, queued: AtomicBool::new(false) });
            let spin = SpinUntil::new(connection.spin.budget());
            let waker = Waker::from(Arc::clone(&seat_waker));
            entry.insert(Seat { connection, seat_waker, waker, active: true, spin });
            self.active.push(seat);
        }
        for seat in inbox.woken.drain(..) {
            // The seat may have been given to another connection since: then this is a look for nothing.
            let Some(found) = self.seats.get_mut(seat) else { continue };
            found.seat_waker.queued.store(false, Ordering::Release);
            found.connection.endpoint.link().woken();
            found.spin = SpinUntil::new(found.connection.spin.budget());
            if !found.active {
                found.active = true;
                self.active.push(seat);
            }
        }
    }

    /// Looks at each active connection once; what that did in all.
    fn round(&mut self) -> Progress {
        let mut round = Progress::default();
        let mut at = 0;
        while at < self.active.len() {
            let index = self.active[at];
            let seat = &mut self.seats[index];
            match seat.look(&mut round) {
                Next::KeepPolling => at += 1,
                Next::Sleep => {
                    seat.active = false;
                    self.active.swap_remove(at);
                }
                Next::Remove => {
                    self.active.swap_remove(at);
                    let seat = self.seats.remove(index);
                    seat.connection.abandon();
                    seat.connection.shared.connection_ended(&seat.connection);
                }
            }
        }
        round
    }
}

impl Seat {
    fn look(&mut self, round: &mut Progress) -> Next {
        let connection = &self.connection;
        match connection.turn() {
            Err(error) => {
                tracing::debug!(peer = %connection.peer, %error, "connection ended");
                return Next::Remove;
            }
            Ok(progress) if progress.frames > 0 => {
                round.frames += progress.frames;
                round.spawned |= progress.spawned;
                round.spent += progress.spent;
                if self.spin.began() {
                    connection.spin.hit();
                }
                self.spin = SpinUntil::new(connection.spin.budget());
                if self.spin.is_possible() {
                    return Next::KeepPolling;
                }
            }
            Ok(_) => {
                if self.spin.again() {
                    return Next::KeepPolling;
                }
                if connection.spin.mode() == Wait::Busy {
                    self.spin = SpinUntil::new(connection.spin.budget());
                    return Next::KeepPolling;
                }
                if self.spin.began() {
                    connection.spin.miss();
                }
            }
        }
        match connection.endpoint.arm(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(Ok(())) => Next::KeepPolling,
            Poll::Ready(Err(_)) => Next::Remove,
            Poll::Pending => Next::Sleep,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        for seat in self.seats.drain() {
            seat.connection.abandon();
            seat.connection.endpoint.fail(ringmail_transport::link::LinkError::Closed("the server stopped"));
            seat.connection.shared.connection_ended(&seat.connection);
        }
    }
}

/// Runs a lane on a thread of its own until it is stopped.
pub(super) fn run_on_thread(mut lane: Lane) {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    while lane.poll(&mut cx).is_pending() {
        std::thread::park();
    }
}
