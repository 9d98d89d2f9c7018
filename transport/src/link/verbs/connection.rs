//! What a connection posts: chains of work requests that end in a notification.

use std::sync::Arc;

use super::desk;
use super::inbox::Inbox;
use crate::ring::BLOCK;
use crate::verbs::{Attached, Data, Operation, QueuePair, Remote, SendRequest, Slice, VerbsError};

/// What ends when this side closes.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) queue_pair: QueuePair,
    /// Work requests that the send queue holds.
    pub(super) sends: u64,
    /// The staging ring, mapped once.
    pub(super) staging: Attached,
    /// The desk, of which the slots receive messages.
    pub(super) desk: Attached,
    pub(super) desk_memory: Arc<desk::Desk>,
    pub(super) immediates: bool,
    pub(super) shared_receives: bool,
    /// The peer's mailbox and desk.
    pub(super) peer_ring: Remote,
    pub(super) peer_desk: Remote,
    /// Bytes in one WRITE at most, whole blocks.
    pub(super) largest_write: usize,
    /// Established: there is somebody to say goodbye to.
    pub(super) up: bool,
}

impl Connection {
    /// Work requests for so many bytes of frames and their notification.
    pub(super) fn places(&self, bytes: usize) -> u64 {
        // With immediates a notification without frames is the record's WRITE.
        let writes = bytes.div_ceil(self.largest_write).max(1);
        writes as u64 + u64::from(!self.immediates)
    }

    /// Places in the send queue. Those of requests that were not to be reported are taken until a later one is.
    pub(super) fn free_places(&self, inbox: &Inbox) -> u64 {
        self.sends - (self.queue_pair.posted() - inbox.completed())
    }

    /// Posts what there is of a credit record and frames, then the notification. `frames` are bytes of the staging ring
    /// from an offset below the ring's size on.
    pub(super) fn post(
        &mut self,
        record: Option<&[u8; desk::CREDIT_BYTES]>,
        (offset, frames): (usize, &[u8]),
        word: u32,
        ends: bool,
    ) -> Result<u64, VerbsError> {
        let Self { queue_pair, sends, staging, immediates, peer_ring, peer_desk, largest_write, .. } = self;
        let (inline, ring) = (queue_pair.inline_limit(), queue_pair.region(*staging).length());
        let records = usize::from(record.is_some());
        let writes = records + frames.len().div_ceil(*largest_write);
        debug_assert!(writes > 0, "a notification needs something to ride on");
        let all = writes + usize::from(!*immediates);
        let posted = queue_pair.posted();
        let message = word.to_le_bytes();
        let request = |at: usize| {
            let (remote, data) = match record {
                Some(record) if at == 0 => (*peer_desk, Data::Inline(&record[..])),
                _ if at < writes => {
                    let start = (at - records) * *largest_write;
                    let bytes = &frames[start..frames.len().min(start + *largest_write)];
                    let from = (offset + start) % ring;
                    let remote = Remote { address: peer_ring.address + from as u64, key: peer_ring.key };
                    let data = if bytes.len() <= inline {
                        Data::Inline(bytes)
                    } else {
                        gather(*staging, ring, from, bytes.len())
                    };
                    (remote, data)
                }
                _ => (*peer_desk, Data::Inline(&message[..])),
            };
            let operation = match *immediates {
                true if at + 1 == writes => Operation::WriteWithImmediate(remote, word),
                false if at == writes => Operation::Send,
                _ => Operation::Write(remote),
            };
            let last = at + 1 == all;
            // Told of every half queue, so that there is always one to come while the queue is full.
            let signaled = (posted + 1 + at as u64).is_multiple_of(*sends / 2) || last && ends;
            SendRequest { operation, data, signaled, solicited: last }
        };
        queue_pair.post((0..all).map(request))
    }

    /// Posts the receive requests with these numbers (again), where the queue pair has its own.
    pub(super) fn post_receives(
        &mut self,
        numbers: std::ops::Range<u64>,
        depth: u32,
    ) -> Result<(), VerbsError> {
        if self.shared_receives {
            return Ok(());
        }
        let desk = self.desk;
        self.queue_pair.post_receives(numbers.map(|number| {
            let slot = (number % u64::from(depth)) as u32;
            (slot, Slice { region: desk, offset: desk::slot_offset(slot), length: desk::SLOT_BYTES })
        }))
    }
}

/// A piece of the staging ring, which is registered once: around its end it is two slices.
fn gather(staging: Attached, ring: usize, from: usize, length: usize) -> Data<'static> {
    let first = length.min(ring - from);
    let rest = (length > first).then_some(Slice { region: staging, offset: 0, length: length - first });
    Data::Slices(Slice { region: staging, offset: from, length: first }, rest)
}

/// Bytes in one WRITE at most: as the port allows, in whole blocks.
pub(super) fn largest_write(message: u32) -> usize {
    (message as usize).clamp(BLOCK, 1 << 30) / BLOCK * BLOCK
}
