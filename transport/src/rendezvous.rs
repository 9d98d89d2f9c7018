//! Large messages that are not sent but lent: the sender says where the message lies in its memory, and the receiver reads
//! it from there, by RDMA READ, when it has room for it.
//!
//! ```text
//!   sender                                             receiver
//!   encodes into memory that the peer may read
//!   REQUEST or RESPONSE, LENT {where} ────────────────▶ room for it?
//!   ◀═══════════════════════════ READ, READ, … ════════ into memory of its own
//!   ◀──────────────────────────────── RENDEZVOUS_DONE
//!   uses the memory again
//! ```
//!
//! Every message that is lent is answered by one RENDEZVOUS_DONE, whatever becomes of its call, and only then is its memory
//! used again. If the receiver could not read it, the answer says so, and the message follows in fragments: nothing is lost
//! when the link under it dies half-way.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::frame::{CallId, FrameError};

/// Messages that may be lent in one direction of a connection and not be answered.
pub const MOST_LENT: usize = 1024;

/// Where a lent message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes in the message.
    pub length: u64,
    /// Where it begins in the sender's memory.
    pub address: u64,
    /// The key to it.
    pub key: u32,
    /// Epoch of the link by which it can be read, modulo 16.
    pub epoch: u32,
}

impl Offer {
    /// Bytes of an offer in a frame.
    pub const BYTES: usize = 24;

    /// The offer as it stands in a frame, behind the metadata block.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.key.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Reads an offer, which must be all that is left of a frame.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let bad = |rule| Err(FrameError::BadRendezvous { rule });
        let Ok(bytes) = <[u8; Self::BYTES]>::try_from(bytes) else {
            return bad("an offer has 24 bytes");
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let offer = Self { length: long(0), address: long(8), key: word(16), epoch: word(20) };
        if offer.length == 0 {
            return bad("nothing is lent");
        }
        if offer.address.checked_add(offer.length).is_none() {
            return bad("what is lent reaches beyond the memory of its sender");
        }
        if offer.epoch > 15 {
            return bad("there is no such epoch");
        }
        Ok(offer)
    }
}

/// Memory of this side that the peer can read by itself. Dropped, it may be used for another message.
pub trait Lendable: Send + Sync + fmt::Debug {
    /// What is in it.
    fn bytes(&self) -> &[u8];

    /// To fill it, before the peer is told of it.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// What to tell the peer.
    fn offer(&self) -> Offer;
}

/// A message that is to be read out of the peer's memory. Dropped, it was not.
#[derive(Debug)]
pub struct Fetch {
    offer: Offer,
    prefix: Bytes,
    call: CallId,
    wanted: Arc<AtomicBool>,
    landings: Arc<Landings>,
    /// It has been told how it ended.
    told: bool,
}

impl Fetch {
    pub(crate) fn new(
        call: CallId,
        offer: Offer,
        prefix: Bytes,
        landings: &Arc<Landings>,
    ) -> (Self, Fetching) {
        let wanted = Arc::new(AtomicBool::new(true));
        let fetching = Fetching(Arc::clone(&wanted));
        (Self { offer, prefix, call, wanted, landings: Arc::clone(landings), told: false }, fetching)
    }

    /// Where it lies.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// What is to stand before it in one piece of memory.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Whether somebody still waits for it.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// It has been read: this is what stands before it, and it.
    pub fn succeed(mut self, message: Bytes) {
        self.told = true;
        self.landings.put(Landed { call: self.call, message: Some(message) });
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if !self.told {
            self.landings.put(Landed { call: self.call, message: None });
        }
    }
}

/// Held by whoever waits for a [`Fetch`]; dropped, no more of it is read.
#[derive(Debug)]
pub struct Fetching(Arc<AtomicBool>);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// How a fetch has ended.
#[derive(Debug)]
pub struct Landed {
    /// Which call's it was.
    pub call: CallId,
    /// What was to stand before the message, and the message; `None` if it could not be read and will come in fragments.
    pub message: Option<Bytes>,
}

/// Fetches that have ended, for whoever receives on the connection.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    any: AtomicBool,
    landed: Mutex<VecDeque<Landed>>,
}

impl Landings {
    fn put(&self, landed: Landed) {
        self.landed.lock().push_back(landed);
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<Landed> {
        if !self.is_any() {
            return None;
        }
        let mut queue = self.landed.lock();
        let landed = queue.pop_front();
        self.any.store(!queue.is_empty(), Ordering::Release);
        landed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer =
        Offer { length: 0x0102_0304, address: 0x1112_1314_1516_1718, key: 0x2122_2324, epoch: 3 };

    /// These bytes are the protocol: a change here is a new protocol version.
    #[test]
    fn golden_bytes() {
        let bytes = [
            4, 3, 2, 1, 0, 0, 0, 0, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21,
            3, 0, 0, 0,
        ];
        assert_eq!(OFFER.encode(), bytes);
        assert_eq!(Offer::decode(&bytes), Ok(OFFER));
    }

    #[test]
    fn what_cannot_be_lent_is_no_offer() {
        let rule = |offer: Offer| match Offer::decode(&offer.encode()) {
            Err(FrameError::BadRendezvous { rule }) => rule,
            other => panic!("{other:?}"),
        };
        assert_eq!(rule(Offer { length: 0, ..OFFER }), "nothing is lent");
        let beyond = "what is lent reaches beyond the memory of its sender";
        assert_eq!(rule(Offer { length: u64::MAX - OFFER.address + 1, ..OFFER }), beyond);
        assert_eq!(rule(Offer { epoch: 16, ..OFFER }), "there is no such epoch");
        let last = Offer { length: u64::MAX - OFFER.address, ..OFFER };
        assert_eq!(Offer::decode(&last.encode()), Ok(last));
        for length in [0, 8, 23] {
            assert!(Offer::decode(&OFFER.encode()[..length]).is_err(), "{length} bytes");
        }
        assert!(Offer::decode(&[&OFFER.encode()[..], &[0]].concat()).is_err(), "25 bytes");
    }

    #[test]
    fn a_fetch_ends_once_however_it_ends() {
        let landings = Arc::new(Landings::default());
        let call = |index| CallId { index, generation: 0 };
        let (lost, _waits) = Fetch::new(call(1), OFFER, Bytes::new(), &landings);
        let (read, waits) = Fetch::new(call(2), OFFER, Bytes::new(), &landings);
        assert!(read.is_wanted() && landings.take().is_none());
        drop(waits);
        assert!(!read.is_wanted());
        drop(lost);
        read.succeed(Bytes::from_static(b"it"));
        let first = landings.take().expect("the first");
        assert_eq!((first.call, first.message), (call(1), None));
        let second = landings.take().expect("the second");
        assert_eq!((second.call, second.message.as_deref()), (call(2), Some(&b"it"[..])));
        assert!(landings.take().is_none());
    }
}
