//! Sending messages: in one frame if they fit, else lent to the peer or in fragments; and putting messages together again.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ringmail_transport::endpoint::{Endpoint, SendError};
use ringmail_transport::frame::{CallId, Flags, FrameError, HEADER, Header, Kind};
use ringmail_transport::rendezvous::{Fetch, Fetching, Lendable, Offer};
use ringmail_transport::ring::{Claim, ClaimError, Incoming, Room};

use crate::codec::Codec;
use crate::metadata_block::{Block, Entries};

/// Bytes in front of a fragmented payload for its total length.
pub(crate) const TOTAL: usize = 8;
/// Flags of messages that are not in their frame.
pub(crate) const LARGE: Flags = Flags::FRAGMENTED.with(Flags::LENT);

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

    /// Sends a message, waiting for room, lent or in fragments if need be. It is dropped as soon as it is encoded: from then on
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
        if let Some(mut memory) = endpoint.lend(length) {
            codec.encode(&message, memory.bytes_mut());
            drop(message);
            return self.lend(endpoint, Arc::from(memory)).await;
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

    /// Lets the peer read a message by itself; if it cannot, sends it in fragments. The memory is given back when the peer
    /// has answered, even if this is dropped before.
    async fn lend(&self, endpoint: &Endpoint, memory: Arc<dyn Lendable>) -> Result<(), SendError> {
        let length = HEADER + self.entries.len() + Offer::BYTES;
        let mut claim = endpoint.claim_wait(length, Room::Data).await?;
        let Some(answer) = endpoint.lent(self.call, &memory) else {
            drop(claim);
            return self.fragments(endpoint, memory.bytes()).await;
        };
        let block = HEADER + self.entries.len();
        self.entries.write(&mut claim[HEADER..block]);
        claim[block..].copy_from_slice(&memory.offer().encode());
        self.last_leaves();
        claim.commit(&self.header(length, self.flags().with(Flags::LENT)));
        endpoint.flush();
        if answer.wait(endpoint).await? {
            return Ok(());
        }
        self.pieces(endpoint, memory.bytes()).await
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
        self.pieces(endpoint, payload).await
    }

    /// Sends what is left of a message whose beginning has been sent.
    async fn pieces(&self, endpoint: &Endpoint, mut payload: &[u8]) -> Result<(), SendError> {
        let piece = endpoint.frame_limit() / 2;
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

/// A message that has not arrived yet as a whole: in fragments, or lent by the peer.
#[derive(Debug)]
pub(crate) struct Assembly {
    header: Header,
    /// The metadata block, if any, then as much of the message as has come in fragments.
    buffer: BytesMut,
    whole: usize,
    /// Where it lies, until it is being read.
    offer: Option<Offer>,
    /// While it is being read.
    fetching: Option<Fetching>,
}

impl Assembly {
    /// Begins with the first frame. `Err(Ok(total))` when the message exceeds `limit`.
    pub(crate) fn begin(frame: &Incoming, limit: u64) -> Result<Self, Result<u64, FrameError>> {
        let payload = frame.payload();
        let flags = frame.header().flags;
        let block = if flags.contains(Flags::METADATA) { Block::read(payload).map_err(Err)?.1 } else { 0 };
        let rest = &payload[block..];
        if flags.contains(LARGE) {
            return Err(Err(FrameError::BadRendezvous { rule: "it is lent and comes in fragments" }));
        }
        let offer = if flags.contains(Flags::LENT) { Some(Offer::decode(rest).map_err(Err)?) } else { None };
        let (total, first) = rest
            .split_first_chunk::<TOTAL>()
            .ok_or(Err(FrameError::BadFragment { rule: "the total length is missing" }))?;
        let first = if offer.is_some() { &[] } else { first };
        let total = u64::from_le_bytes(*total);
        if total > limit {
            return Err(Ok(total));
        }
        let whole = block + total as usize;
        if block + first.len() > whole {
            return Err(Err(FrameError::BadFragment { rule: "the first piece is longer than the whole" }));
        }
        // For what is lent there may be memory elsewhere.
        let mut buffer = BytesMut::with_capacity(if offer.is_some() { block } else { whole });
        buffer.extend_from_slice(&payload[..block]);
        buffer.extend_from_slice(first);
        let header = Header { flags: flags.without(LARGE), ..*frame.header() };
        Ok(Self { header, buffer, whole, offer, fetching: None })
    }

    /// Prepares to read what is lent; `None` if nothing is.
    pub(crate) fn fetch(&mut self, endpoint: &Endpoint) -> Result<Option<Fetch>, FrameError> {
        let Some(offer) = self.offer.take() else { return Ok(None) };
        let prefix = Bytes::copy_from_slice(&self.buffer);
        let (fetch, fetching) = endpoint.fetch(self.header.call, offer, prefix)?;
        self.fetching = Some(fetching);
        Ok(Some(fetch))
    }

    pub(crate) fn is_being_fetched(&self) -> bool {
        self.fetching.is_some()
    }

    /// Adds a fragment; whether that was the last.
    pub(crate) fn add(&mut self, frame: &Incoming) -> Result<bool, FrameError> {
        if self.is_being_fetched() {
            return Err(FrameError::BadRendezvous { rule: "a fragment of what is being read" });
        }
        if self.buffer.len() + frame.payload().len() > self.whole {
            return Err(FrameError::BadFragment { rule: "more bytes than were announced" });
        }
        self.buffer.reserve(self.whole - self.buffer.len());
        self.buffer.extend_from_slice(frame.payload());
        Ok(self.is_whole())
    }

    /// It has been read, with the metadata block before it: the message as one frame. Or it cannot be, and comes in
    /// fragments.
    pub(crate) fn landed(mut self, message: Option<Bytes>) -> Result<Incoming, Self> {
        self.fetching = None;
        match message {
            Some(message) => Ok(Incoming::assembled(self.header, message)),
            None => Err(self),
        }
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
        Incoming::assembled(self.header, self.buffer.freeze())
    }
}
