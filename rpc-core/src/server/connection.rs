//! One client's connection at the server: what arrives on it, and the calls that wait for something.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ringmail_transport::bootstrap::Established;
use ringmail_transport::endpoint::{Endpoint, Turn};
use ringmail_transport::frame::{CallId, Flags, FrameError, HEADER, Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::rendezvous::Landed;
use ringmail_transport::ring::{Incoming, Room};
use tokio::sync::Notify;
use tonic::Status;

use super::call::{Handling, Reply, ServerCall};
use super::handler::{caught, panicked};
use super::pace::FlushCost;
use super::{Method, Shared};
use crate::error::too_large;
use crate::fragment::{Assembly, LARGE};
use crate::wait::Spin;

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) endpoint: Endpoint,
    pub(super) peer: SocketAddr,
    pub(super) peer_max_message_bytes: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) spin: Spin,
    /// Calls whose handlers wait for something, by the id that the client gave them.
    pending: Mutex<HashMap<CallId, tokio::task::AbortHandle>>,
    /// How many those are, for a look without the lock.
    pending_calls: AtomicUsize,
    /// Requests that have not arrived yet as a whole.
    assemblies: Mutex<HashMap<CallId, Assembly>>,
    going_away: AtomicBool,
    /// Nanoseconds that the present turn has taken, as of the last answer. Written by the lane alone.
    turn_spent: AtomicU64,
    flush_cost: FlushCost,
    /// Ends the watch over the peer's life.
    ended: Arc<Notify>,
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) frames: usize,
    /// Tasks were spawned, which cannot run while this thread goes on polling.
    pub(super) spawned: bool,
    /// Time that handlers took of it.
    pub(super) spent: Duration,
}

impl Connection {
    pub(super) fn new(established: Established, shared: Arc<Shared>) -> Self {
        let Established { endpoint, peer, hello, .. } = established;
        Self {
            endpoint,
            peer,
            peer_max_message_bytes: hello.max_message_bytes,
            spin: Spin::new(shared.wait),
            shared,
            pending: Mutex::default(),
            pending_calls: AtomicUsize::new(0),
            assemblies: Mutex::default(),
            going_away: AtomicBool::new(false),
            turn_spent: AtomicU64::new(0),
            flush_cost: FlushCost::default(),
            ended: Arc::new(Notify::new()),
        }
    }

    /// Notified when the connection has ended on this side.
    pub(super) fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.ended)
    }

    /// Takes what has arrived, answers what can be answered at once, in one flush.
    pub(super) fn turn(self: &Arc<Self>) -> Result<Progress, LinkError> {
        let mut progress = Progress::default();
        let mut now = None;
        let mut flushed_after = Duration::ZERO;
        let turn = self.endpoint.turn(&mut |frame| {
            let now = *now.get_or_insert_with(|| self.begin_turn());
            let spawned = self.deliver(frame, now).unwrap_or_else(|error| {
                self.endpoint.fail(error.into());
                false
            });
            progress.spawned |= spawned;
            // What is answered waits for what comes after it only while that is cheaper than a flush of its own.
            let waited = self.turn_spent().saturating_sub(flushed_after);
            let flushed = self.endpoint.has_much() || waited > self.flush_cost.patience();
            if flushed {
                self.endpoint.flush();
            }
            if spawned || flushed {
                // Which takes time that the next handler does not.
                let rest = self.spend(now.elapsed());
                if flushed {
                    self.flush_cost.took(rest);
                    flushed_after = self.turn_spent();
                }
            }
        });
        let landed = self.endpoint.land(&mut |message| {
            let now = *now.get_or_insert_with(|| self.begin_turn());
            progress.spawned |= self.land(message, now);
        });
        if now.is_some() {
            self.endpoint.flush();
        }
        match turn? {
            Turn::Frames(frames) => {
                let frames = frames + landed;
                progress.frames = frames;
                if frames > 0 {
                    progress.spent = self.turn_spent();
                }
                if frames > 0 && self.endpoint.is_crowded() {
                    self.endpoint.mailbox().detach_lent();
                }
            }
            Turn::Busy => {}
        }
        Ok(progress)
    }

    /// A turn has something to do; when that is.
    fn begin_turn(&self) -> Instant {
        self.turn_spent.store(0, Ordering::Relaxed);
        Instant::now()
    }

    fn turn_spent(&self) -> Duration {
        Duration::from_nanos(self.turn_spent.load(Ordering::Relaxed))
    }

    /// Notes that the turn has taken so long when a handler was polled in it; how long that took.
    pub(super) fn spend(&self, spent: Duration) -> Duration {
        let before = self.turn_spent();
        self.turn_spent.store(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        spent.saturating_sub(before)
    }

    /// Acts on one frame; whether a task was spawned.
    fn deliver(self: &Arc<Self>, frame: Incoming, now: Instant) -> Result<bool, FrameError> {
        let header = *frame.header();
        match header.kind {
            Kind::Request if header.flags.intersects(LARGE) => self.begin_assembly(&frame, now),
            Kind::Request => Ok(self.begin_call(frame, now)),
            Kind::Fragment => self.add_fragment(&frame, now),
            Kind::Cancel => {
                self.assemblies.lock().remove(&header.call);
                self.endpoint.forget_lent(header.call);
                if let Some(call) = self.forget(header.call) {
                    call.abort();
                }
                Ok(false)
            }
            Kind::RendezvousDone => self.endpoint.answered(&header).map(|()| false),
            Kind::Ping => {
                self.pong(header.call);
                Ok(false)
            }
            Kind::Pong | Kind::GoAway => Ok(false),
            kind => Err(FrameError::Misdirected { kind }),
        }
    }

    fn begin_call(self: &Arc<Self>, frame: Incoming, now: Instant) -> bool {
        let call = frame.header().call;
        let reply = || Reply::new(self, call, now);
        let index = usize::from(frame.header().method_or_status);
        let Some(Method { service, method, .. }) = self.shared.methods.get(index) else {
            let status = Status::unimplemented(format!("this server has no method with index {index}"));
            return self.go_on(call, reply().error(status));
        };
        if self.pending_calls.load(Ordering::Relaxed) >= self.shared.max_calls {
            let status = Status::resource_exhausted(format!(
                "{} calls are in progress on this connection, which is the server's limit (max_calls_per_connection)",
                self.shared.max_calls
            ));
            return self.go_on(call, reply().error(status));
        }
        let service = &self.shared.services[*service];
        let descriptor = &service.descriptor().methods[*method];
        // Handlers are guarded by themselves; this is for codecs, which see what the peer sends.
        let begin = || service.call(*method, ServerCall::new(reply(), frame, descriptor, index));
        let handling =
            catch_unwind(AssertUnwindSafe(begin)).unwrap_or_else(|panic| reply().error(panicked(&*panic)));
        self.go_on(call, handling)
    }

    /// Gives what is left of a call to the runtime.
    fn go_on(self: &Arc<Self>, call: CallId, handling: Handling) -> bool {
        let Handling::Pending(rest) = handling else { return false };
        let connection = Arc::clone(self);
        // Locked until the entry is there, so that the task finds it when it ends.
        let mut pending = self.pending.lock();
        let task = self.shared.runtime.spawn(async move {
            // Handlers are guarded while they are polled; this is for codecs, and for what panics on being dropped. The
            // caller must learn of it, and the call's place must be given back.
            if let Err(panic) = caught(rest).await {
                let started = Instant::now();
                let reply = Reply { inline: false, ..Reply::new(&connection, call, started) };
                reply.error(panicked(&*panic)).finish().await;
            }
            connection.give_place_back(call);
        });
        if let Some(earlier) = pending.insert(call, task.abort_handle()) {
            // A client that uses an id twice hurts only itself.
            earlier.abort();
        }
        self.pending_calls.store(pending.len(), Ordering::Relaxed);
        true
    }

    fn forget(&self, call: CallId) -> Option<tokio::task::AbortHandle> {
        let mut pending = self.pending.lock();
        let forgotten = pending.remove(&call);
        self.pending_calls.store(pending.len(), Ordering::Relaxed);
        forgotten
    }

    /// Counts the call no more whose task asks. Before its answer leaves: the client counts it no more from then on.
    pub(super) fn give_place_back(&self, call: CallId) {
        let mut pending = self.pending.lock();
        // A client that uses an id twice must not have the later call forgotten for the earlier one.
        if pending.get(&call).is_some_and(|task| Some(task.id()) == tokio::task::try_id()) {
            pending.remove(&call);
            self.pending_calls.store(pending.len(), Ordering::Relaxed);
        }
    }

    fn begin_assembly(self: &Arc<Self>, frame: &Incoming, now: Instant) -> Result<bool, FrameError> {
        let limit = self.shared.max_message_bytes as u64;
        let call = frame.header().call;
        let is_lent = frame.header().flags.contains(Flags::LENT);
        let refuse = |status| {
            if is_lent {
                self.endpoint.refuse_fetch(call)?;
            }
            Ok(self.go_on(call, Reply::new(self, call, now).error(status)))
        };
        let mut assembly = match Assembly::begin(frame, limit) {
            Ok(assembly) => assembly,
            Err(Ok(total)) => {
                return refuse(too_large("request", total, limit, "of the server (max_message_size)"));
            }
            Err(Err(error)) => return Err(error),
        };
        let mut assemblies = self.assemblies.lock();
        if assemblies.get(&call).is_some_and(Assembly::is_being_fetched) {
            return Err(FrameError::BadRendezvous { rule: "another request of a call that is being read" });
        }
        let reserved: u64 = assemblies.values().map(Assembly::reserved).sum();
        let budget = self.shared.max_fragmented_bytes;
        if reserved.saturating_add(assembly.reserved()) > budget || assemblies.len() >= self.shared.max_calls
        {
            let count = assemblies.len();
            drop(assemblies);
            return refuse(Status::resource_exhausted(format!(
                "{count} large requests of {reserved} bytes are under way on this connection; with this one they \
                 would exceed the server's limit of {} requests or {budget} bytes",
                self.shared.max_calls
            )));
        }
        if assembly.is_whole() {
            drop(assemblies);
            return Ok(self.begin_call(assembly.finish(), now));
        }
        let fetch = assembly.fetch(&self.endpoint)?;
        assemblies.insert(call, assembly);
        drop(assemblies);
        if let Some(fetch) = fetch {
            self.endpoint.begin_fetch(fetch);
        }
        Ok(false)
    }

    /// What a client has lent was read, or could not be; whether a task was spawned.
    fn land(self: &Arc<Self>, Landed { call, message }: Landed, now: Instant) -> bool {
        let mut assemblies = self.assemblies.lock();
        // Not there any more: it was cancelled.
        if !assemblies.get(&call).is_some_and(Assembly::is_being_fetched) {
            return false;
        }
        match assemblies.remove(&call).map(|assembly| assembly.landed(message)) {
            Some(Ok(frame)) => {
                drop(assemblies);
                self.begin_call(frame, now)
            }
            Some(Err(assembly)) => {
                assemblies.insert(call, assembly);
                false
            }
            None => false,
        }
    }

    fn add_fragment(self: &Arc<Self>, frame: &Incoming, now: Instant) -> Result<bool, FrameError> {
        let call = frame.header().call;
        let mut assemblies = self.assemblies.lock();
        // A fragment without a beginning is the rest of a request that was refused or cancelled.
        let Some(assembly) = assemblies.get_mut(&call) else { return Ok(false) };
        if !assembly.add(frame)? {
            return Ok(false);
        }
        let whole = assemblies.remove(&call).map(Assembly::finish);
        drop(assemblies);
        Ok(whole.is_some_and(|frame| self.begin_call(frame, now)))
    }

    fn pong(&self, call: CallId) {
        let header = Header { call, ..Header::new(Kind::Pong, HEADER as u32) };
        // Without room there is traffic, which answers the question as well.
        if let Ok(claim) = self.endpoint.claim(header.length as usize, Room::Control) {
            claim.commit(&header);
            self.endpoint.flush();
        }
    }

    /// Tells the client to begin no more calls here: at once, or as soon as there is room for that.
    pub(super) fn go_away(self: &Arc<Self>) {
        if self.going_away.swap(true, Ordering::AcqRel) {
            return;
        }
        let header = Header::new(Kind::GoAway, HEADER as u32);
        if let Ok(claim) = self.endpoint.claim(HEADER, Room::Control) {
            claim.commit(&header);
            self.endpoint.flush();
            return;
        }
        let connection = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            // Fails only with the connection: then the client knows.
            if let Ok(claim) = connection.endpoint.claim_wait(HEADER, Room::Control).await {
                claim.commit(&header);
                connection.endpoint.flush();
            }
        });
    }

    /// Ends what was waiting: nobody is there to be answered.
    pub(super) fn abandon(&self) {
        self.ended.notify_one();
        self.assemblies.lock().clear();
        for (_, call) in self.pending.lock().drain() {
            call.abort();
        }
    }
}
