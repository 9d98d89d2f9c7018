//! The reader of frame headers: any 32 bytes, under any limit, with and without checks.
//!
//! Input: 4 bytes of limit, 1 byte that chooses the check, 32 bytes of header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringmail_transport::frame::{Check, HEADER, Header};

fuzz_target!(|input: (u32, bool, [u8; HEADER])| {
    let (limit, checked, mut bytes) = input;
    let check = if checked { Check::Header } else { Check::Off };

    // What is accepted has the agreed size and, written again, is the same bytes: the reader has lost nothing and
    // has let nothing through that the writer cannot say.
    let accepted = |bytes: &[u8; HEADER]| {
        let Ok(header) = Header::decode(bytes, limit, check) else {
            return false;
        };
        assert!(header.length as usize >= HEADER && header.length <= limit);
        let mut again = header.encode();
        Header::seal(&mut again, header.acknowledged, header.sequence, check);
        assert_eq!(&again, bytes);
        true
    };
    accepted(&bytes);

    // Random bytes hardly ever carry the right check, so the fields behind it are reached with a sealed copy. A
    // single damaged bit in that must then be noticed.
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (acknowledged, sequence, bit) = (word(16), word(24), bytes[28]);
    Header::seal(&mut bytes, acknowledged, sequence, check);
    if accepted(&bytes) && checked {
        bytes[usize::from(bit) / 8] ^= 1 << (bit % 8);
        assert!(Header::decode(&bytes, limit, check).is_err(), "a damaged bit {bit} was not noticed");
    }
});
