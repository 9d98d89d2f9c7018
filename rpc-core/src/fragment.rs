//! Sending messages: in one frame if they fit, else in fragments; and putting fragments together again.

use bytes::Bytes;
use ringmail_transport::endpoint::{Endpoint, SendError};
use ringmail_transport::frame::{CallId, Flags, FrameError, HEADER, Header, Kind};
use ringmail_transport::ring::{Claim, ClaimError, Incoming, Room};

use crate::codec::Codec;
use crate::metadata_block::{Block, Entries};

/// Bytes in front of a fragmented payload for its total length.
pub(crate) const TOTAL: usize = 8;

/// What a frame says besides its payload.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
    pub(crate) method_or_status: u16,
    pub(crate) call: CallId,
    pub(crate) time: u32,
    pub(crate) entries: Entries<'a>,
    /// Run before the last frame can leave, after which the peer may act on the whole.
    pub(crate) before_last: Option<&'a (dyn Fn() + Send + Sync)>,
}

/// How an attempt to send without waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The frame is committed.
    Committed,
    /// There is no room in the ring now.
    Full,
    /// It needs more than one frame.
    TooLarge,
}

impl Outgoing<'_> {
    /// Bytes at the receiver that a message of `length` bytes takes until its last fragment has arrived; 0 if it fits
    /// into one frame.
    pub(crate) fn fragmented_bytes(&self, endpoint: &Endpoint, length: usize) -> u64 {
        let whole = self.entries.len() + length;
        if HEADER + whole <= endpoint.frame_limit() { 0 } else { whole as u64 }
    }

    fn flags(&self) -> Flags {
        if self.entries.is_empty() { self.flags } else { self.flags.with(Flags::METADATA) }
    }

    fn header(&self, length: usize, flags: Flags) -> Header {
        Header {
            flags,
            method_or_status: self.method_or_status,
            call: self.call,
            time: self.time,
            ..Header::new(self.kind, length as u32)
        }
    }

    fn fill(&self, mut claim: Claim<'_>, encode: impl FnOnce(&mut [u8])) {
        let length = claim.len();
        let block = HEADER + self.entries.len();
        self.entries.write(&mut claim[HEADER..block]);
        encode(&mut claim[block..]);
        self.last_leaves();
        claim.commit(&self.header(length, self.flags()));
    }

    fn last_leaves(&self) {
        if let Some(before_last) = self.before_last {
            before_last();
        }
    }

    /// Encodes a message of `length` bytes into the ring if there is room now.
    pub(crate) fn try_message<C: Codec>(
        &self,
        endpoint: &Endpoint,
        codec: C,
        message: &C::Encode,
        length: usize,
    ) -> Attempt {
        let total = HEADER + self.entries.len() + length;
        if total > endpoint.frame_limit() {
            return Attempt::TooLarge;
        }
        match endpoint.claim(total, Room::Data) {
            Ok(claim) => {
                self.fill(claim, |slot| codec.encode(message, slot));
                Attempt::Committed
            }
            Err(ClaimError::Full) => Attempt::Full,
            Err(ClaimError::TooLarge { .. }) => Attempt::TooLarge,
        }
    }

    /// Sends a message, waiting for room and in fragments if need be. It is dropped as soon as it is encoded: from then on
    /// sending takes as long as the peer takes to receive.
    pub(crate) async fn message<C: Codec>(
        &self,
        endpoint: &Endpoint,
        codec: C,
        message: C::Encode,
        length: usize,
    ) -> Result<(), SendError> {
        let total = HEADER + self.entries.len() + length;
        if total <= endpoint.frame_limit() {
            let claim = endpoint.claim_wait(total, Room::Data).await?;
            self.fill(claim, |slot| codec.encode(&message, slot));
            endpoint.flush();
            return Ok(());
        }
        let mut bytes = vec![0; length];
        codec.encode(&message, &mut bytes);
        drop(message);
        self.fragments(endpoint, &bytes).await
    }

    /// Sends a frame without a message. Control frames may use the ring's reserve.
    pub(crate) async fn bare(&self, endpoint: &Endpoint) -> Result<(), SendError> {
        let claim = endpoint.claim_wait(HEADER + self.entries.len(), Room::Control).await?;
        self.fill(claim, |_| ());
        endpoint.flush();
        Ok(())
    }

    /// Sends a frame without a message if there is room now.
    pub(crate) fn try_bare(&self, endpoint: &Endpoint) -> Attempt {
        match endpoint.claim(HEADER + self.entries.len(), Room::Control) {
            Ok(claim) => {
                self.fill(claim, |_| ());
                Attempt::Committed
            }
            Err(ClaimError::Full) => Attempt::Full,
            Err(ClaimError::TooLarge { .. }) => Attempt::TooLarge,
        }
    }

    async fn fragments(&self, endpoint: &Endpoint, mut payload: &[u8]) -> Result<(), SendError> {
        // Half of what fits: while one piece is copied out at the peer, the next is copied in here.
        let piece = endpoint.frame_limit() / 2;
        let (block, total) = (self.entries.len(), payload.len() as u64);
        let first = piece.saturating_sub(HEADER + block + TOTAL).min(payload.len());
        let mut claim = endpoint.claim_wait(HEADER + block + TOTAL + first, Room::Data).await?;
        let length = claim.len();
        self.entries.write(&mut claim[HEADER..HEADER + block]);
        claim[HEADER + block..][..TOTAL].copy_from_slice(&total.to_le_bytes());
        claim[HEADER + block + TOTAL..].copy_from_slice(&payload[..first]);
        payload = &payload[first..];
        if payload.is_empty() {
            self.last_leaves();
        }
        claim.commit(&self.header(length, self.flags().with(Flags::FRAGMENTED)));
        endpoint.flush();
        while !payload.is_empty() {
            let next = (piece - HEADER).min(payload.len());
            let mut claim = endpoint.claim_wait(HEADER + next, Room::Data).await?;
            claim[HEADER..].copy_from_slice(&payload[..next]);
            payload = &payload[next..];
            if payload.is_empty() {
                self.last_leaves();
            }
            claim.commit(&Header { call: self.call, ..Header::new(Kind::Fragment, (HEADER + next) as u32) });
            endpoint.flush();
        }
        Ok(())
    }
}

/// A message of which not all fragments have arrived.
#[derive(Debug)]
pub(crate) struct Assembly {
    header: Header,
    /// The metadata block, if any, then the payload.
    buffer: Vec<u8>,
    whole: usize,
}

impl Assembly {
    /// Begins with the first frame. `Err(Ok(total))` when the message exceeds `limit`.
    pub(crate) fn begin(frame: &Incoming, limit: u64) -> Result<Self, Result<u64, FrameError>> {
        let payload = frame.payload();
        let block = if frame.header().flags.contains(Flags::METADATA) {
            Block::read(payload).map_err(Err)?.1
        } else {
            0
        };
        let (total, first) = payload[block..]
            .split_first_chunk::<TOTAL>()
            .ok_or(Err(FrameError::BadFragment { rule: "the total length is missing" }))?;
        let total = u64::from_le_bytes(*total);
        if total > limit {
            return Err(Ok(total));
        }
        let whole = block + total as usize;
        if block + first.len() > whole {
            return Err(Err(FrameError::BadFragment { rule: "the first piece is longer than the whole" }));
        }
        let mut buffer = Vec::with_capacity(whole);
        buffer.extend_from_slice(&payload[..block]);
        buffer.extend_from_slice(first);
        let header = Header { flags: frame.header().flags.without(Flags::FRAGMENTED), ..*frame.header() };
        Ok(Self { header, buffer, whole })
    }

    /// Adds a fragment; whether that was the last.
    pub(crate) fn add(&mut self, frame: &Incoming) -> Result<bool, FrameError> {
        if self.buffer.len() + frame.payload().len() > self.whole {
            return Err(FrameError::BadFragment { rule: "more bytes than were announced" });
        }
        self.buffer.extend_from_slice(frame.payload());
        Ok(self.is_whole())
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.buffer.len() == self.whole
    }

    /// Bytes of memory that it may come to hold.
    pub(crate) fn reserved(&self) -> u64 {
        self.whole as u64
    }

    /// The message as one frame.
    pub(crate) fn finish(self) -> Incoming {
        Incoming::assembled(self.header, Bytes::from(self.buffer))
    }
}
