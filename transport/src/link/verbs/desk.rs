//! The page on which the peer leaves what is not a frame.
//!
//! ```text
//!   0      24      64                              2112
//!   │credit│       │ notice slots, 4 bytes each │
//! ```
//!
//! The credit record says how far the peer has consumed our ring, and how many notifications it grants in all. The peer
//! writes it by RDMA, each report in the place of the one before. The slots receive the messages of four bytes that stand
//! in for immediates.

use std::sync::Arc;

use crate::link::credit::CreditRecord;
use crate::memory::MemoryError;
use crate::ring::Position;
use crate::verbs::Page;

/// Bytes of the credit record.
pub(super) const CREDIT_BYTES: usize = 24;
/// Where the slots begin: on a line of their own.
const SLOTS_AT: usize = 64;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 4;
/// Slots that there are.
pub(super) const SLOTS: u32 = 512;
/// Mixed into the check word, so that a page of zeros is not a record.
const CHECK: u64 = 0x5269_6e67_6d61_696c;

const _: () = assert!(SLOTS_AT + SLOTS as usize * SLOT_BYTES <= Page::BYTES);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Desk(Arc<Page>);

impl Desk {
    pub(super) fn new() -> Result<Self, MemoryError> {
        Ok(Self(Arc::new(Page::new()?)))
    }

    /// Its memory, to be registered.
    pub(super) fn page(&self) -> Arc<Page> {
        Arc::clone(&self.0)
    }

    /// What the peer has reported last. `None` before the first report, and while one is being written: its notification
    /// is still to come.
    pub(super) fn credit(&self) -> Option<CreditRecord> {
        decode(self.0.load_u64(0), self.0.load_u64(8), self.0.load_u64(16))
    }

    /// The message in a slot.
    pub(super) fn word(&self, slot: u32) -> u32 {
        assert!(slot < SLOTS);
        self.0.load_u32(slot_offset(slot))
    }
}

/// Where a slot begins.
pub(super) fn slot_offset(slot: u32) -> usize {
    SLOTS_AT + slot as usize * SLOT_BYTES
}

/// The credit record's bytes on the wire.
pub(super) fn encode(record: CreditRecord) -> [u8; CREDIT_BYTES] {
    let mut bytes = [0; CREDIT_BYTES];
    let words = [record.consumed.0, record.granted, check(record.consumed.0, record.granted)];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn decode(consumed: u64, granted: u64, checked: u64) -> Option<CreditRecord> {
    (checked == check(consumed, granted)).then_some(CreditRecord { consumed: Position(consumed), granted })
}

/// Tells a record of one piece from a mixture of two.
fn check(consumed: u64, granted: u64) -> u64 {
    consumed.rotate_left(23) ^ granted.rotate_left(47) ^ CHECK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(consumed: u64, granted: u64) -> CreditRecord {
        CreditRecord { consumed: Position(consumed), granted }
    }

    fn words(bytes: &[u8]) -> [u64; 3] {
        std::array::from_fn(|at| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap()))
    }

    /// These bytes are the protocol: a change here is a new protocol version.
    #[test]
    fn golden_bytes() {
        assert_eq!(
            encode(record(0x0102_0304_0506_0708, 0x1112_1314)),
            [
                0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x14, 0x13, 0x12, 0x11, 0, 0, 0, 0, 0xe4,
                0xe0, 0x61, 0xe9, 0x64, 0xed, 0xe1, 0xd9
            ]
        );
    }

    #[test]
    fn a_record_survives_and_a_mixture_of_two_does_not() {
        let (old, new) = (encode(record(700, 64)), encode(record(90_000, 81)));
        let [a, b, c] = words(&old);
        assert_eq!(decode(a, b, c), Some(record(700, 64)));
        for cut in 1..CREDIT_BYTES {
            let mixed = [&new[..cut], &old[cut..]].concat();
            let [a, b, c] = words(&mixed);
            let read = decode(a, b, c);
            assert!(read.is_none() || [&old[..], &new[..]].contains(&&mixed[..]), "cut at {cut}: {read:?}");
        }
    }

    #[test]
    fn an_empty_page_holds_no_record() {
        let desk = Desk::new().unwrap();
        assert_eq!(desk.credit(), None);
        assert_eq!(desk.word(SLOTS - 1), 0);
    }
}
