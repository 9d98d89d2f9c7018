//! Whether a device can write with an immediate. No attribute says so.
//!
//! Every InfiniBand and RoCE device must, unless it says that it does not. iWARP got immediates late: some devices have
//! them, some refuse the request when it is posted, and some would only fail later. So it is tried, once per device, on
//! a connection of the device with itself that is thrown away.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::bring_up::{BringUpError, Reports, resolve};
use super::desk::{CREDIT_BYTES, Desk, SLOT_BYTES, slot_offset};
use crate::verbs::{
    Access, Attached, Capacity, CompletionChannel, CompletionQueue, CompletionStatus, ConnectParameters,
    Context, Data, EventChannel, EventKind, Id, MemoryRegion, Operation, ProtectionDomain, QueuePair,
    Receives, Remote, SendRequest, Slice, Transport, VerbsError,
};

/// Longest that a trial may take; one takes milliseconds.
const TRIAL: Duration = Duration::from_secs(2);
/// What travels in a trial.
const WORD: u32 = 0x5249_4e47;

/// What is known of devices, by name.
static KNOWN: Mutex<Option<HashMap<String, bool>>> = Mutex::new(None);

/// Whether a device sends and takes immediates. Found out once and then remembered.
pub async fn sends_immediates(context: &Arc<Context>) -> bool {
    let device = context.device_name().to_owned();
    let known = KNOWN.lock().as_ref().and_then(|known| known.get(&device).copied());
    if let Some(known) = known {
        return known;
    }
    let (can, because) = find_out(context).await;
    tracing::info!(device, immediates = can, because, "RDMA device");
    KNOWN.lock().get_or_insert_default().insert(device, can);
    can
}

async fn find_out(context: &Arc<Context>) -> (bool, &'static str) {
    let declared = CompletionChannel::new(context)
        .and_then(|channel| CompletionQueue::new(&channel, 16))
        .and_then(|queue| Ok((ProtectionDomain::new(context)?, queue)))
        .map(|(domain, queue)| QueuePair::declares_immediates(&domain, &queue));
    match (context.transport(), declared) {
        (_, Ok(Some(false))) => (false, "the device says that it has none"),
        (Transport::InfiniBand, _) => (true, "the transport asks for it"),
        _ => match tokio::time::timeout(TRIAL, try_it(context)).await {
            Ok(Ok(true)) => (true, "a trial succeeded"),
            Ok(Ok(false)) => (false, "a trial failed"),
            Ok(Err(error)) => {
                tracing::debug!(%error, "whether the device has immediates could not be tried");
                (false, "it could not be tried")
            }
            Err(_) => (false, "a trial did not end"),
        },
    }
}

/// One end of the trial's connection.
struct TrialEnd {
    queue_pair: QueuePair,
    desk: Attached,
}

impl TrialEnd {
    fn new(
        id: Id,
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        memory: &Arc<MemoryRegion>,
    ) -> Result<Self, VerbsError> {
        let capacity = Capacity { sends: 4, inline: 0 };
        let mut queue_pair = QueuePair::new(id, domain, queue, Receives::Own(4), capacity)?;
        let desk = queue_pair.attach(Arc::clone(memory));
        let slot = Slice { region: desk, offset: slot_offset(0), length: SLOT_BYTES };
        queue_pair.post_receives((0..4).map(|number| (number, slot)))?;
        Ok(Self { queue_pair, desk })
    }
}

/// Writes to the device's own memory with an immediate; whether it came. The outcome is also `false` when the device
/// refuses the request.
pub(super) async fn try_it(context: &Arc<Context>) -> Result<bool, BringUpError> {
    let domain = ProtectionDomain::new(context)?;
    let memory = MemoryRegion::new(&domain, Desk::new()?.page(), Access::RemoteWrite)?;
    let queue = CompletionQueue::new(&CompletionChannel::new(context)?, 32)?;

    let accepting = EventChannel::new()?;
    let listener = Id::new(&accepting)?;
    listener.bind(SocketAddr::new(context.address(), 0))?;
    listener.listen(1)?;
    let address = SocketAddr::new(context.address(), listener.local_port());
    let accepting = Reports::new(accepting)?;

    let connecting = EventChannel::new()?;
    let id = Id::new(&connecting)?;
    let connecting = Reports::new(connecting)?;
    resolve(&id, &connecting, context, address, TRIAL).await?;
    let mut sender = TrialEnd::new(id, &domain, &queue, &memory)?;
    let parameters = ConnectParameters {
        private_data: &[],
        reads_served: 1,
        reads_sent: 1,
        retries: ConnectParameters::MOST_RETRIES,
        not_ready_retries: 0,
    };
    sender.queue_pair.id().connect(&parameters)?;
    let request = accepting.expect(EventKind::CONNECT_REQUEST, "rdma_listen", context.place()).await?.request;
    let Some(id) = request else { return Err(BringUpError::Ended) };
    // Held until the outcome is known.
    let receiver = TrialEnd::new(id, &domain, &queue, &memory)?;
    receiver.queue_pair.id().accept(&parameters)?;
    connecting.expect(EventKind::ESTABLISHED, "rdma_connect", context.place()).await?;

    let remote = Remote { address: memory.address(), key: memory.remote_key() };
    let posted = sender.queue_pair.post([SendRequest {
        operation: Operation::WriteWithImmediate(remote, WORD),
        data: Data::Slices(Slice { region: sender.desk, offset: 2048, length: CREDIT_BYTES }, None),
        signaled: true,
        solicited: true,
    }]);
    if let Err(error) = posted {
        tracing::debug!(%error, "the device refuses to write with an immediate");
        return Ok(false);
    }
    let number = receiver.queue_pair.number();
    loop {
        let mut outcome = None;
        queue.poll(|completion| {
            if completion.status != CompletionStatus::SUCCESS {
                outcome = Some(false);
            } else if completion.queue_pair == number {
                outcome = Some(completion.immediate == Some(WORD));
            }
        })?;
        match outcome {
            Some(outcome) => return Ok(outcome),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}
