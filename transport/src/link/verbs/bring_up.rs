//! How an RDMA connection comes up.
//!
//! ```text
//!   connecting side                                   accepting side
//!   Prepared::end ───────── bootstrap connection ─────────▶ Listener::expect
//!   ◀────────────────────── (ends, ticket) ───────────────  Prepared::end
//!   resolve address, route
//!   connect {session, token, proof} ──────────────────────▶ proof? accept
//!   ◀──────────────────────────────────────── {proof}
//!   greeting ─────────────────────────────────────────────▶
//!   ◀───────────────────────────────────────────── greeting
//! ```
//!
//! The greetings are notifications like those of frames. They show that both directions carry something before a call
//! depends on it, and the connecting side's comes first because iWARP asks for that.

mod error;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

pub use self::error::{BringUpError, Step};
use super::buffers::Buffers;
use super::desk::CREDIT_BYTES;
use super::end::{End, Prepared, VerbsEnd};
use super::inbox::Inbox;
use super::ticket::Ticket;
use super::{Connection, Settings, VerbsLink, largest_write};
use crate::link::credit::{Credit, Notifications};
use crate::ring::{Mailbox, Staging};
use crate::verbs::{
    Capacity, ConnectParameters, Context, Event, EventChannel, EventKind, Id, Place, QueuePair, Reason,
    Receives, Remote, VerbsError, Watched, watch,
};

/// Bytes that a work request should be able to carry itself: a small call's frame.
const INLINE: u32 = 192;
/// Local ports that are tried when one is taken.
const PORTS_TRIED: u32 = 4;
/// RDMA READs at a time in each direction, where the devices can.
pub(super) const READS: u8 = 16;

/// Bounds all steps together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Where the accepting side listens, for errors.
    address: SocketAddr,
    timeout: Duration,
    deadline: Instant,
}

impl Clock {
    pub(super) fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self { address, timeout, deadline: Instant::now() + timeout }
    }

    pub(super) async fn step<T, E: Into<BringUpError>>(
        &self,
        step: Step,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BringUpError> {
        let Self { address, timeout, deadline } = *self;
        match tokio::time::timeout_at(deadline, work).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(BringUpError::TimedOut { address, step, timeout }),
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// An event channel that tasks can wait on.
#[derive(Debug)]
pub(super) struct Reports {
    channel: AsyncFd<Watched<EventChannel>>,
}

impl Reports {
    pub(super) fn new(channel: Arc<EventChannel>) -> Result<Self, VerbsError> {
        let channel = watch(channel)
            .map_err(|errno| VerbsError::new("epoll_ctl", Reason::System(errno), &Arc::default()))?;
        Ok(Self { channel })
    }

    pub(super) async fn next(&self) -> Result<Event, VerbsError> {
        loop {
            if let Some(event) = self.channel.get_ref().object().next_event()? {
                return Ok(event);
            }
            let ready = self.channel.readable().await;
            let Ok(mut ready) = ready else {
                let reason = Reason::System(Errno::CANCELED);
                return Err(VerbsError::new("waiting for an event", reason, &Arc::default()));
            };
            // Forgotten before the channel is asked again, so that nothing is missed.
            ready.clear_ready();
        }
    }

    /// The next event, which must be of this kind.
    pub(super) async fn expect(
        &self,
        kind: EventKind,
        verb: &'static str,
        place: &Arc<Place>,
    ) -> Result<Event, VerbsError> {
        let event = self.next().await?;
        if event.kind == kind {
            return Ok(event);
        }
        let reason = Reason::Event { kind: event.kind, status: event.status };
        Err(VerbsError::new(verb, reason, place))
    }
}

/// Finds device and route to a peer for a new id.
pub(super) async fn resolve(
    id: &Id,
    reports: &Reports,
    context: &Context,
    peer: SocketAddr,
    timeout: Duration,
) -> Result<(), VerbsError> {
    let place = Arc::new(Place { peer: Some(peer), ..(**context.place()).clone() });
    id.resolve_address(Some(context.address()), peer, timeout)?;
    reports.expect(EventKind::ADDRESS_RESOLVED, "rdma_resolve_addr", &place).await?;
    id.resolve_route(timeout)?;
    reports.expect(EventKind::ROUTE_RESOLVED, "rdma_resolve_route", &place).await?;
    Ok(())
}

/// An end that has everything but a peer.
pub(super) struct Dressed {
    staging: Staging,
    mailbox: Arc<Mailbox>,
    pub(super) link: Arc<VerbsLink>,
    pub(super) reports: Reports,
}

impl Prepared {
    /// Gives an id its queue pair, and the queue pair its memory, its place and its receive requests.
    pub(super) fn dress(self, id: Id, remote: &End) -> Result<Dressed, BringUpError> {
        remote.check(self.settings.ring)?;
        let immediates = self.immediates && remote.immediates;
        let shared = if immediates { self.lane.receives() } else { None };
        let shared_receives = shared.is_some();
        let receives = match shared {
            Some(queue) => Receives::Shared(Arc::clone(queue)),
            None => Receives::Own(self.notifications),
        };
        if id.set_ack_timeout(self.settings.ack_timeout).is_err() {
            tracing::debug!("the kernel does not let the acknowledgement time-out be set");
        }
        let reports = Reports::new(Arc::clone(id.channel()))?;
        let capacity = Capacity { sends: self.lane.settings().sends, inline: INLINE };
        let key = id.key();
        let mut queue_pair = QueuePair::new(id, &self.domain, self.lane.queue(), receives, capacity)?;
        if queue_pair.inline_limit() < CREDIT_BYTES {
            let reason = Reason::Lacks("inline data of 24 bytes");
            return Err(VerbsError::new("rdma_create_qp", reason, queue_pair.place()).into());
        }
        let staging = queue_pair.attach(self.staging_memory);
        let desk = queue_pair.attach(self.desk_memory);
        queue_pair.attach(self.mailbox_memory);
        let number = queue_pair.number();
        let inbox = Inbox::new(self.notifications, Arc::clone(&self.desk), Arc::clone(queue_pair.place()));
        let inbox = Arc::new(inbox);
        self.lane.admit(number, key, &inbox, shared_receives)?;
        let connection = Connection {
            queue_pair,
            sends: u64::from(self.lane.settings().sends),
            staging,
            desk,
            desk_memory: self.desk,
            immediates,
            shared_receives,
            peer_ring: Remote { address: remote.ring_address, key: remote.ring_key },
            peer_desk: Remote { address: remote.desk_address, key: remote.desk_key },
            largest_write: largest_write(self.lane.context().limits().message),
            up: false,
        };
        let notifications = Notifications::new(self.notifications, remote.notifications);
        let credit = Credit::new(notifications, self.settings.ring, self.settings.epoch);
        let buffers =
            (self.reads && remote.reads).then(|| Buffers::new(&self.domain, self.settings.epoch.number()));
        if let Some(buffers) = &buffers {
            self.lane.shelves.add(buffers);
        }
        let link = VerbsLink::new(self.lane, inbox, credit, connection, buffers, self.waits);
        // From here on, dropping the link takes everything down.
        let link = Arc::new(link);
        link.post_first_receives()?;
        let mailbox = Mailbox::new(self.mailbox, Arc::clone(&link) as _, self.settings.copies);
        Ok(Dressed { staging: Staging::new(self.staging), mailbox: Arc::new(mailbox), link, reports })
    }
}

impl Dressed {
    /// The connection is up, with so many RDMA READs at a time: its further events go to the lane.
    pub(super) fn settle(self, reads: u8) -> Result<VerbsEnd, BringUpError> {
        self.link.set_up(reads)?;
        Ok(VerbsEnd { staging: self.staging, mailbox: self.mailbox, link: self.link })
    }
}

pub(super) fn parameters<'a>(
    private_data: &'a [u8],
    settings: &Settings,
    context: &Context,
    served: u8,
    sent: u8,
) -> ConnectParameters<'a> {
    let limits = context.limits();
    ConnectParameters {
        private_data,
        reads_served: limits.reads_served.min(READS).min(served),
        reads_sent: limits.reads_sent.min(READS).min(sent),
        retries: settings.retries.min(ConnectParameters::MOST_RETRIES),
        not_ready_retries: settings.not_ready_retries,
    }
}

/// Connects to a peer that expects the ticket.
///
/// # Errors
/// When the connection does not come up, for any of the reasons of [`BringUpError`], within the settings' time-out.
pub async fn connect(
    prepared: Prepared,
    peer: SocketAddr,
    remote: &End,
    ticket: &Ticket,
) -> Result<VerbsEnd, BringUpError> {
    let clock = Clock::new(peer, prepared.settings.timeout);
    for _ in 1..PORTS_TRIED {
        match connect_once(prepared.clone(), peer, remote, ticket, &clock).await {
            Err(BringUpError::Verbs(error)) if error.errno() == Some(Errno::ADDRINUSE) => {
                // The connection manager chooses a port, and Soft-iWARP then finds that a TCP socket of this host has it.
                tracing::debug!(%error, "trying another port");
            }
            other => return other,
        }
    }
    connect_once(prepared, peer, remote, ticket, &clock).await
}

async fn connect_once(
    prepared: Prepared,
    peer: SocketAddr,
    remote: &End,
    ticket: &Ticket,
    clock: &Clock,
) -> Result<VerbsEnd, BringUpError> {
    let (settings, context) = (prepared.settings.clone(), Arc::clone(prepared.lane.context()));
    let id = Id::new(&EventChannel::new()?)?;
    {
        // Its registration must be gone before the next one is made.
        let reports = Reports::new(Arc::clone(id.channel()))?;
        clock.step(Step::Route, resolve(&id, &reports, &context, peer, clock.left())).await?;
    }
    if !context.is_device_of(&id) {
        return Err(BringUpError::OtherDevice { peer, device: context.device_name().to_owned() });
    }
    let dressed = prepared.dress(id, remote)?;
    let request = ticket.request(settings.epoch);
    let connecting = {
        let (link, settings, context) = (Arc::clone(&dressed.link), settings.clone(), Arc::clone(&context));
        // Soft-iWARP connects TCP while it is called.
        tokio::task::spawn_blocking(move || {
            link.with_id(|id| id.connect(&parameters(&request, &settings, &context, READS, READS)))
        })
    };
    let connecting = async { connecting.await.unwrap_or(Err(BringUpError::Ended)) };
    clock.step(Step::Request, connecting).await.map_err(|error| match error {
        // On iWARP, where connections are TCP's.
        BringUpError::Verbs(error) if error.errno() == Some(Errno::CONNREFUSED) => {
            BringUpError::Refused { peer, reason: Errno::CONNREFUSED.raw_os_error() }
        }
        error => error,
    })?;
    let event = clock.step(Step::Answer, dressed.reports.next()).await?;
    match event.kind {
        EventKind::ESTABLISHED if ticket.recognises(&event.private_data, settings.epoch) => {}
        EventKind::ESTABLISHED => return Err(BringUpError::Impostor { peer }),
        EventKind::REJECTED => return Err(BringUpError::Refused { peer, reason: event.status }),
        kind => {
            let reason = Reason::Event { kind, status: event.status };
            return Err(VerbsError::new("rdma_connect", reason, dressed.link.inbox.place()).into());
        }
    }
    let own = parameters(&[], &settings, &context, READS, READS).reads_sent;
    // Over iWARP it is not always said: then the device keeps to what both can.
    let reads = if event.reads_sent > 0 { event.reads_sent.min(own) } else { own };
    let end = dressed.settle(reads)?;
    end.link.greet()?;
    clock.step(Step::Greeting, end.link.greeted(&end.mailbox)).await?;
    Ok(end)
}
