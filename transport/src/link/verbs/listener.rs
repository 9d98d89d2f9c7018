//! The accepting side: who asks for a connection with a ticket that is expected gets one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::bring_up::{BringUpError, Clock, Reports, Step, parameters};
use super::end::{End, Prepared, VerbsEnd};
use super::ticket::Ticket;
use crate::immediate::Epoch;
use crate::verbs::{Context, Event, EventChannel, EventKind, Id, VerbsError};

/// Connections that may wait to be accepted. Some iWARP devices do not cope with many.
const BACKLOG: i32 = 32;

/// A connection that a peer has asked for, with the right ticket.
#[derive(Debug)]
struct Incoming {
    id: Id,
    reads_served: u8,
    reads_sent: u8,
}

/// Tickets that are expected, by token.
type Expected = Mutex<HashMap<[u8; 16], Expecting>>;

#[derive(Debug)]
struct Expecting {
    ticket: Ticket,
    epoch: Epoch,
    arrived: oneshot::Sender<Incoming>,
}

/// Listens for RDMA connections on one address.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    expected: Arc<Expected>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens on the address that a device was opened for, on any free port. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bind(context: &Context) -> Result<Self, VerbsError> {
        let channel = EventChannel::new()?;
        let id = Id::new(&channel)?;
        id.bind(SocketAddr::new(context.address(), 0))?;
        id.listen(BACKLOG)?;
        let address = SocketAddr::new(context.address(), id.local_port());
        let expected = Arc::new(Expected::default());
        let reports = Reports::new(channel)?;
        let task = tokio::spawn(listen(id, reports, Arc::downgrade(&expected)));
        Ok(Self { address, expected, task })
    }

    /// Where it listens: a port of the connection manager, not of TCP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has ended, because its device has gone: then another one is needed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Expects one connection with this ticket. Whoever else asks is refused.
    #[must_use]
    pub fn expect(&self, ticket: Ticket, epoch: Epoch) -> Expectation {
        let (arrived, incoming) = oneshot::channel();
        let expecting = Expecting { ticket: ticket.clone(), epoch, arrived };
        self.expected.lock().insert(*ticket.token(), expecting);
        let expected = Arc::downgrade(&self.expected);
        Expectation { address: self.address, ticket, epoch, incoming, expected }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(id: Id, reports: Reports, expected: Weak<Expected>) {
    loop {
        let event = match reports.next().await {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "no more RDMA connections are accepted");
                break;
            }
        };
        let Some(expected) = expected.upgrade() else { break };
        if event.kind == EventKind::DEVICE_REMOVED {
            tracing::warn!(address = ?id.peer(), "the RDMA device was removed");
            break;
        }
        if event.request.is_some()
            && let Err(error) = admit(event, &expected)
        {
            tracing::debug!(%error, "an RDMA connection was not accepted");
        }
    }
}

/// Hands a connection that was asked for to whoever expects it, or refuses it.
fn admit(event: Event, expected: &Expected) -> Result<(), VerbsError> {
    let Some(mut id) = event.request else { return Ok(()) };
    let found = Ticket::token_in(&event.private_data).and_then(|token| {
        let mut expected = expected.lock();
        let admitted = expected.get(&token).is_some_and(|it| it.ticket.admits(&event.private_data, it.epoch));
        // A ticket is good for one connection.
        if admitted { expected.remove(&token) } else { None }
    });
    let Some(expecting) = found else { return id.reject() };
    id.migrate(&EventChannel::new()?)?;
    let incoming = Incoming { id, reads_served: event.reads_served, reads_sent: event.reads_sent };
    // Nobody there any more: dropping the id refuses the connection.
    let _ = expecting.arrived.send(incoming);
    Ok(())
}

/// The expectation that a peer connects. Dropped, it refuses it.
#[derive(Debug)]
pub struct Expectation {
    /// Where the listener listens.
    address: SocketAddr,
    ticket: Ticket,
    epoch: Epoch,
    incoming: oneshot::Receiver<Incoming>,
    expected: Weak<Expected>,
}

impl Expectation {
    /// Waits for the peer and accepts it.
    ///
    /// # Errors
    /// When the connection does not come up, for any of the reasons of [`BringUpError`], within the settings' time-out.
    pub async fn accept(mut self, prepared: Prepared, remote: &End) -> Result<VerbsEnd, BringUpError> {
        let (settings, context) = (prepared.settings.clone(), Arc::clone(prepared.lane.context()));
        let clock = Clock::new(self.address, settings.timeout);
        let incoming = async { (&mut self.incoming).await.map_err(|_| BringUpError::Ended) };
        let Incoming { id, reads_served, reads_sent } = clock.step(Step::Arrival, incoming).await?;
        if !context.is_device_of(&id) {
            let peer = id.peer().unwrap_or_else(|| SocketAddr::new(context.address(), 0));
            return Err(BringUpError::OtherDevice { peer, device: context.device_name().to_owned() });
        }
        let dressed = prepared.dress(id, remote)?;
        let answer = self.ticket.answer(self.epoch);
        let parameters = parameters(&answer, &settings, &context, reads_served, reads_sent);
        dressed.link.with_id(|id| id.accept(&parameters))?;
        let place = dressed.link.inbox.place();
        let established = dressed.reports.expect(EventKind::ESTABLISHED, "rdma_accept", place);
        clock.step(Step::Handshake, established).await?;
        let end = dressed.settle(parameters.reads_sent)?;
        clock.step(Step::Greeting, end.link.greeted(&end.mailbox)).await?;
        end.link.greet()?;
        Ok(end)
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        if let Some(expected) = self.expected.upgrade() {
            expected.lock().remove(self.ticket.token());
        }
    }
}
