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

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::buffers::Buffers;
use super::desk::CREDIT_BYTES;
use super::end::{End, Prepared, VerbsEnd};
use super::inbox::Inbox;
use super::lane::SeatError;
use super::ticket::Ticket;
use super::{Connection, Settings, VerbsLink, largest_write};
use crate::link::LinkError;
use crate::link::credit::{Credit, Notifications};
use crate::memory::MemoryError;
use crate::ring::{Mailbox, Staging};
use crate::verbs::{
    Capacity, ConnectParameters, Context, Event, EventChannel, EventKind, Id, QueuePair, Reason, Receives,
    Remote, VerbsError, Watched, watch,
};

/// Bytes that a work request should be able to carry itself: a small call's frame.
const INLINE: u32 = 192;
/// Local ports that are tried when one is taken.
const PORTS_TRIED: u32 = 4;
/// RDMA READs at a time in each direction, where the devices can.
pub(super) const READS: u8 = 16;

/// Why an RDMA connection did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection came up and then died.
    #[error("the RDMA connection died before it was used: {0}")]
    Link(#[from] LinkError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The peer did not answer in time.
    #[error("the RDMA connection did not come up within {timeout:?}: {step} took too long")]
    TimedOut {
        /// What was waited for.
        step: &'static str,
        /// The bound on everything.
        timeout: Duration,
    },
    /// The peer refused the connection.
    #[error(
        "{peer} refused the RDMA connection (reason {reason}): nobody listens there, or the ticket is unknown or used"
    )]
    Refused {
        /// Where the peer listens.
        peer: SocketAddr,
        /// What its side gave as reason.
        reason: i32,
    },
    /// Whoever accepted does not have the ticket.
    #[error("whoever accepted the RDMA connection at {peer} is not the server of this session")]
    Impostor {
        /// Where the connection went.
        peer: SocketAddr,
    },
    /// The connection belongs to another device than the memory.
    #[error(
        "the route to {peer} does not use {device}, where the memory is registered; check the routing table"
    )]
    OtherDevice {
        /// Where the connection goes.
        peer: SocketAddr,
        /// The device that was prepared.
        device: String,
    },
    /// The two ends' rings differ.
    #[error("this side's ring has {ours} bytes and the peer's {theirs}: they must be equal")]
    Ring {
        /// Bytes in this side's.
        ours: usize,
        /// Bytes in the peer's.
        theirs: usize,
    },
    /// What the peer says of its end cannot be.
    #[error("the peer describes its end of the RDMA connection implausibly: {0}")]
    Implausible(&'static str),
    /// The lane is full.
    #[error("{0}")]
    Full(String),
    /// The listener has ended.
    #[error("the RDMA listener, or the runtime under it, has ended")]
    Ended,
}

impl From<SeatError> for BringUpError {
    fn from(error: SeatError) -> Self {
        match error {
            SeatError::Full(_) => Self::Full(error.to_string()),
            SeatError::Verbs(error) => Self::Verbs(error),
            SeatError::Link(error) => Self::Link(error),
        }
    }
}

/// Bounds all steps together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    timeout: Duration,
    deadline: Instant,
}

impl Clock {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now() + timeout }
    }

    pub(super) async fn step<T, E: Into<BringUpError>>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BringUpError> {
        match tokio::time::timeout_at(self.deadline, work).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(BringUpError::TimedOut { step, timeout: self.timeout }),
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
    pub(super) async fn expect(&self, kind: EventKind, verb: &'static str) -> Result<Event, VerbsError> {
        let event = self.next().await?;
        if event.kind == kind {
            return Ok(event);
        }
        let reason = Reason::Event { kind: event.kind, status: event.status };
        Err(VerbsError::new(verb, reason, &Arc::default()))
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
    id.resolve_address(Some(context.address()), peer, timeout)?;
    reports.expect(EventKind::ADDRESS_RESOLVED, "rdma_resolve_addr").await?;
    id.resolve_route(timeout)?;
    reports.expect(EventKind::ROUTE_RESOLVED, "rdma_resolve_route").await?;
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
    let clock = Clock::new(prepared.settings.timeout);
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
        clock.step("finding a route", resolve(&id, &reports, &context, peer, clock.left())).await?;
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
    clock.step("reaching the peer", connecting).await.map_err(|error| match error {
        // On iWARP, where connections are TCP's.
        BringUpError::Verbs(error) if error.errno() == Some(Errno::CONNREFUSED) => {
            BringUpError::Refused { peer, reason: Errno::CONNREFUSED.raw_os_error() }
        }
        error => error,
    })?;
    let event = clock.step("being accepted", dressed.reports.next()).await?;
    match event.kind {
        EventKind::ESTABLISHED if ticket.recognises(&event.private_data, settings.epoch) => {}
        EventKind::ESTABLISHED => return Err(BringUpError::Impostor { peer }),
        EventKind::REJECTED => return Err(BringUpError::Refused { peer, reason: event.status }),
        kind => {
            let reason = Reason::Event { kind, status: event.status };
            return Err(VerbsError::new("rdma_connect", reason, context.place()).into());
        }
    }
    let own = parameters(&[], &settings, &context, READS, READS).reads_sent;
    // Over iWARP it is not always said: then the device keeps to what both can.
    let reads = if event.reads_sent > 0 { event.reads_sent.min(own) } else { own };
    let end = dressed.settle(reads)?;
    end.link.greet()?;
    clock.step("the peer's greeting", end.link.greeted(&end.mailbox)).await?;
    Ok(end)
}
