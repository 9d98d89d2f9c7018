//! A lane: the queues that a number of links share, and whoever polls them.
//!
//! ```text
//!   queue pair ─┐                        ┌─▶ inbox of a link ─▶ its poll
//!   queue pair ─┼─▶ completion queue ────┼─▶ inbox of a link ─▶ wakes who sleeps on it
//!   queue pair ─┘        ▲               └─▶ …
//!        ▲               │ polled by whichever link looks, one at a time
//!        └── shared receive queue: one request without memory for each notification granted
//! ```
//!
//! While somebody polls, nothing else happens. Who goes to sleep arms the queue, looks once more, and sleeps; then the
//! queue's descriptor wakes the lane's pump, a task that puts down what has come and wakes those that it is for.
//!
//! A queue pair's number may be given to another as soon as it is destroyed. So a link leaves in one step that nobody can
//! poll in between: its queue pair is destroyed, what it left in the queue is taken out, and its seat is cleared.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::bring_up::READS;
use super::buffers::Shelves;
use super::desk::SLOTS;
use super::inbox::{Inbox, Worth};
use crate::link::credit::FEWEST_NOTIFICATIONS;
use crate::link::{LinkError, LinkKind};
use crate::verbs::{
    Completion, CompletionChannel, CompletionQueue, Context, EventChannel, EventKind, IdKey,
    ProtectionDomain, QueuePair, Remains, RequestKind, SharedReceiveQueue, Transport, VerbsError, Watched,
    watch,
};

/// How often the pump looks by itself: Soft-RoCE makes no event when a send request fails, if nobody waits for its end.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Fewest send requests that a link can work with: a frame's notification and a report, twice.
const FEWEST_SENDS: u32 = 16;

/// How large a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSettings {
    /// Links at most.
    pub links: u32,
    /// Send requests that each link may have on their way.
    pub sends: u32,
    /// Notifications that each link's peer may have on their way.
    pub notifications: u32,
}

impl Default for LaneSettings {
    /// One link, as a client has.
    fn default() -> Self {
        Self { links: 1, sends: 64, notifications: 64 }
    }
}

/// What a number of links share: one completion queue, one shared receive queue, and who polls them.
#[derive(Debug)]
pub struct Lane {
    poller: Mutex<Poller>,
    receives: OnceLock<Option<Arc<SharedReceiveQueue>>>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
    events: Arc<EventChannel>,
    settings: LaneSettings,
    /// Memory that its links keep for a while.
    pub(super) shelves: Shelves,
}

/// What only whoever polls may touch.
#[derive(Debug, Default)]
struct Poller {
    /// By queue pair, in order.
    seats: Vec<Seat>,
    listens: Listens,
    /// Seats on which somebody sleeps.
    sleepers: usize,
    /// Shared receive requests that belong to links that have left.
    surplus: u32,
    /// Shared receive requests to be posted again.
    spent: u32,
    wakers: Vec<Waker>,
    pump: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Seat {
    queue_pair: u32,
    id: IdKey,
    inbox: Arc<Inbox>,
    waker: Option<Waker>,
}

/// What makes the queue's descriptor readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Listens {
    #[default]
    Nothing,
    /// What the peer wants noticed, and failures.
    Solicited,
    /// The end of send requests, too.
    All,
}

/// Why a link found no place on a lane.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeatError {
    #[error("the lane serves {0} links already, as many as it was made for; make another one")]
    Full(u32),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl Lane {
    /// A lane on a device, for at most as many links as asked for, or as the device's queues can serve.
    ///
    /// # Errors
    /// When the device has no room for its queues.
    pub fn new(context: &Arc<Context>, wanted: LaneSettings) -> Result<Arc<Self>, VerbsError> {
        let limits = context.limits();
        let sends = wanted.sends.clamp(FEWEST_SENDS, limits.requests.max(FEWEST_SENDS));
        let notifications =
            wanted.notifications.clamp(FEWEST_NOTIFICATIONS, SLOTS.min(limits.requests.max(8)));
        // All requests of a queue pair that fails end at once, those that were not to be reported too.
        // READs end at their own pace: their places may have been taken again.
        let each = sends + notifications + u32::from(READS);
        let links = wanted.links.clamp(1, (limits.completions / each).max(1));
        let settings = LaneSettings { links, sends, notifications };
        let channel = CompletionChannel::new(context)?;
        Ok(Arc::new(Self {
            poller: Mutex::default(),
            receives: OnceLock::new(),
            domain: ProtectionDomain::new(context)?,
            queue: CompletionQueue::new(&channel, links * each)?,
            events: EventChannel::new()?,
            settings,
            shelves: Shelves::default(),
        }))
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.queue.context()
    }

    /// How large it is.
    #[must_use]
    pub fn settings(&self) -> LaneSettings {
        self.settings
    }

    /// Links that it serves now.
    #[must_use]
    pub fn links(&self) -> usize {
        self.poller.lock().seats.len()
    }

    pub(super) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Where connections report once they are up.
    pub(super) fn events(&self) -> &Arc<EventChannel> {
        &self.events
    }

    /// Receive requests for immediates, made when the first link wants some; `None` when the device has no such queue
    /// that is long enough.
    pub(super) fn receives(&self) -> Option<&Arc<SharedReceiveQueue>> {
        let made = self.receives.get_or_init(|| {
            let requests = self.settings.links * self.settings.notifications;
            if self.context().limits().shared_receives < requests {
                return None;
            }
            match SharedReceiveQueue::new(&self.domain, requests) {
                Ok(queue) => Some(queue),
                Err(error) => {
                    tracing::debug!(%error, "links get receive queues of their own");
                    None
                }
            }
        });
        made.as_ref()
    }

    /// Gives a link its place, and the shared receive requests that it grants its peer.
    pub(super) fn admit(
        self: &Arc<Self>,
        queue_pair: u32,
        id: IdKey,
        inbox: &Arc<Inbox>,
        shares_receives: bool,
    ) -> Result<(), SeatError> {
        let mut poller = self.poller.lock();
        if poller.seats.len() >= self.settings.links as usize {
            return Err(SeatError::Full(self.settings.links));
        }
        self.ensure_pump(&mut poller)?;
        if shares_receives && let Some(receives) = self.receives() {
            let reused = poller.surplus.min(inbox.depth());
            receives.post(inbox.depth() - reused)?;
            poller.surplus -= reused;
        }
        let at = poller.seats.partition_point(|seat| seat.queue_pair < queue_pair);
        poller.seats.insert(at, Seat { queue_pair, id, inbox: Arc::clone(inbox), waker: None });
        Ok(())
    }

    /// Takes a link's place away and destroys its queue pair.
    pub(super) fn dismiss(self: &Arc<Self>, queue_pair: QueuePair, shared_receives: bool) -> Remains {
        let number = queue_pair.number();
        self.with(|lane, poller| {
            // Some devices take back what is in the completion queue when the queue pair is destroyed, and the shared
            // receive requests with it. So it is stopped first, and what has come is taken. Fails when it never was
            // connected, or the peer has disconnected.
            let _ = queue_pair.id().disconnect();
            lane.reap(poller);
            let remains = queue_pair.destroy();
            lane.reap(poller);
            let Ok(at) = poller.find(number) else { return remains };
            let seat = poller.seats.remove(at);
            poller.sleepers -= usize::from(seat.waker.is_some());
            seat.inbox.armed.store(false, Ordering::Relaxed);
            seat.inbox.asleep.store(false, Ordering::Relaxed);
            if shared_receives {
                poller.surplus += seat.inbox.depth();
            }
            remains
        })
    }

    /// Puts down what has come, unless somebody else is doing so.
    #[inline]
    pub(super) fn look(&self) {
        let Some(mut poller) = self.poller.try_lock() else { return };
        self.reap(&mut poller);
        if !poller.wakers.is_empty() {
            let wakers = std::mem::take(&mut poller.wakers);
            drop(poller);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Works under the lock, then wakes those whom that concerns.
    fn with<T>(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>, &mut Poller) -> T) -> T {
        let mut poller = self.poller.lock();
        let result = work(self, &mut poller);
        let wakers = std::mem::take(&mut poller.wakers);
        drop(poller);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Lets a link's user sleep, unless `is_ready` finds, after everything was put down, that there is something to do.
    pub(super) fn sleep(
        self: &Arc<Self>,
        queue_pair: u32,
        waker: &Waker,
        is_ready: impl FnOnce() -> bool,
    ) -> Poll<Result<(), LinkError>> {
        self.with(|lane, poller| {
            if let Err(error) = lane.ensure_pump(poller) {
                return Poll::Ready(Err(error));
            }
            let Ok(at) = poller.find(queue_pair) else { return Poll::Ready(Ok(())) };
            let wanted = poller.seats[at].listens();
            lane.listen(poller, wanted);
            lane.reap(poller);
            if is_ready() || poller.seats[at].inbox.failure().is_some() {
                return Poll::Ready(Ok(()));
            }
            let seat = &mut poller.seats[at];
            seat.inbox.armed.store(true, Ordering::Relaxed);
            seat.inbox.asleep.store(true, Ordering::Relaxed);
            if seat.waker.replace(waker.clone()).is_none() {
                poller.sleepers += 1;
            }
            Poll::Pending
        })
    }

    /// A link has come to wait for something while its user may be asleep, not to be woken by what arrives: listens. What
    /// has been put down and not read, `unread`, may be what it waits for.
    pub(super) fn attend(self: &Arc<Self>, queue_pair: u32, unread: impl FnOnce() -> bool) {
        self.with(|lane, poller| {
            let Ok(at) = poller.find(queue_pair) else { return };
            if poller.seats[at].waker.is_none() {
                return;
            }
            let wanted = poller.seats[at].listens();
            lane.listen(poller, wanted);
            lane.reap(poller);
            if unread() {
                poller.wake(at);
            }
        });
    }

    /// Wakes a link's user, because the link itself has changed.
    pub(super) fn rouse(self: &Arc<Self>, queue_pair: u32) {
        self.with(|_, poller| {
            if let Ok(at) = poller.find(queue_pair) {
                poller.wake(at);
            }
        });
    }

    /// The queue's descriptor, or the connection manager's, was readable.
    fn pump(self: &Arc<Self>) {
        self.with(|lane, poller| {
            if let Err(error) = lane.queue.drain_events() {
                lane.fail(poller, error);
            }
            poller.listens = Listens::Nothing;
            lane.reap(poller);
            lane.take_events(poller);
            if poller.sleepers > 0 {
                let asleep = poller.seats.iter().filter(|seat| seat.waker.is_some() && seat.inbox.rouses());
                let wanted = asleep.map(Seat::listens).max().unwrap_or_default();
                lane.listen(poller, wanted);
                lane.reap(poller);
            }
        });
    }

    fn listen(&self, poller: &mut Poller, mut wanted: Listens) {
        if wanted == Listens::Solicited && self.context().transport() == Transport::Iwarp {
            // Soft-iWARP makes no event when a solicited message arrives, only for solicited requests of its own.
            wanted = Listens::All;
        }
        if poller.listens < wanted {
            match self.queue.arm(wanted == Listens::Solicited) {
                Ok(()) => poller.listens = wanted,
                Err(error) => self.fail(poller, error),
            }
        }
    }

    /// Takes all completions there are and puts them down.
    #[inline]
    fn reap(&self, poller: &mut Poller) {
        loop {
            match self.queue.poll(|completion| poller.put(&completion)) {
                Ok((0, _)) => break,
                Ok((_, more)) => {
                    self.post_again(poller);
                    if !more {
                        break;
                    }
                }
                Err(error) => return self.fail(poller, error),
            }
        }
    }

    fn post_again(&self, poller: &mut Poller) {
        let surplus = poller.surplus.min(poller.spent);
        poller.surplus -= surplus;
        let spent = std::mem::take(&mut poller.spent) - surplus;
        if spent > 0
            && let Some(receives) = self.receives()
            && let Err(error) = receives.post(spent)
        {
            self.fail(poller, error);
        }
    }

    fn take_events(&self, poller: &mut Poller) {
        loop {
            match self.events.next_event() {
                Ok(None) => return,
                Ok(Some(event)) => {
                    let ends = [EventKind::DISCONNECTED, EventKind::DEVICE_REMOVED].contains(&event.kind);
                    let seat = poller.seats.iter().position(|seat| seat.id == event.id);
                    if let (true, Some(at)) = (ends, seat)
                        && poller.seats[at].inbox.disconnect() == Worth::Waking
                    {
                        poller.wake(at);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the connection manager's events cannot be read");
                    return;
                }
            }
        }
    }

    /// The queue itself is broken, and with it all links.
    fn fail(&self, poller: &mut Poller, error: VerbsError) {
        let error = LinkError::Rdma(Arc::new(error));
        for at in 0..poller.seats.len() {
            if poller.seats[at].inbox.fail(error.clone()) == Worth::Waking {
                poller.wake(at);
            }
        }
    }

    /// The pump runs on the runtime that was entered when it was needed; when that has ended, on the next.
    fn ensure_pump(self: &Arc<Self>, poller: &mut Poller) -> Result<(), LinkError> {
        if poller.pump.as_ref().is_some_and(|pump| !pump.is_finished()) {
            return Ok(());
        }
        let failed = |errno| LinkError::System { kind: LinkKind::Rdma, call: "epoll_ctl", errno };
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|_| LinkError::Closed("an RDMA link needs a tokio runtime"))?;
        let completions = watch(Arc::clone(self.queue.channel())).map_err(failed)?;
        let events = watch(Arc::clone(&self.events)).map_err(failed)?;
        poller.pump = Some(runtime.spawn(run_pump(Arc::downgrade(self), completions, events)));
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(pump) = self.poller.get_mut().pump.take() {
            pump.abort();
        }
    }
}

impl Poller {
    fn find(&self, queue_pair: u32) -> Result<usize, usize> {
        self.seats.binary_search_by_key(&queue_pair, |seat| seat.queue_pair)
    }

    #[inline]
    fn put(&mut self, completion: &Completion) {
        let found = self.find(completion.queue_pair);
        // A message has its request from the queue pair itself, which posts it again when it has read it.
        if completion.request == SharedReceiveQueue::REQUEST {
            self.spent += 1;
        }
        // Whose seat is gone left before this was taken, and that took everything of it out: not for anybody.
        let Ok(at) = found else {
            debug_assert!(matches!(completion.request.kind(), RequestKind::Received(_)), "{completion:?}");
            return;
        };
        let inbox = &self.seats[at].inbox;
        if inbox.put(completion) == Worth::Waking && inbox.rouses() {
            self.wake(at);
        }
    }

    fn wake(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if let Some(waker) = seat.waker.take() {
            seat.inbox.armed.store(false, Ordering::Relaxed);
            seat.inbox.asleep.store(false, Ordering::Relaxed);
            self.sleepers -= 1;
            self.wakers.push(waker);
        }
    }
}

impl Seat {
    fn listens(&self) -> Listens {
        if self.inbox.wants_send() { Listens::All } else { Listens::Solicited }
    }
}

async fn run_pump(
    lane: Weak<Lane>,
    completions: AsyncFd<Watched<CompletionChannel>>,
    events: AsyncFd<Watched<EventChannel>>,
) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let woken = tokio::select! {
            woken = completions.readable() => woken.map(|mut guard| guard.clear_ready()),
            woken = events.readable() => woken.map(|mut guard| guard.clear_ready()),
            _ = looks.tick() => match lane.upgrade() {
                Some(lane) => {
                    lane.look();
                    lane.shelves.trim();
                    continue;
                }
                None => return,
            },
        };
        // Edge-triggered: readiness was forgotten before the descriptor is drained, so nothing is missed.
        match (woken, lane.upgrade()) {
            (Ok(()), Some(lane)) => lane.pump(),
            _ => return,
        }
    }
}
