//! The readers of what a peer says before frames flow (its first eight bytes, its HELLO, its choice of a link) and of
//! what it says about another link later.
//!
//! Input: 1 byte that chooses the reader, the rest is what the peer said.

#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use ringmail_transport::bootstrap::hello::{self, Choice, Hello, Stranger, Upgrade};

/// What was understood can be said again and is then understood the same.
fn read<M: Message + Default + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = hello::decode::<M>(bytes) {
        let again =
            hello::decode::<M>(&message.encode_to_vec()).expect("a message that was written is readable");
        assert_eq!(again, message);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((reader, bytes)) = input.split_first() else {
        return;
    };
    match reader % 4 {
        0 => read::<Hello>(bytes),
        1 => read::<Choice>(bytes),
        3 => read::<Upgrade>(bytes),
        _ => {
            let first = &bytes[..bytes.len().min(hello::MAGIC.len())];
            let stranger = Stranger::from_first_bytes(first);
            assert!(!stranger.to_string().is_empty());
            // Our own magic must never be taken for another protocol.
            assert!(first != hello::MAGIC.as_slice() || stranger == Stranger::Unknown);
        }
    }
});
