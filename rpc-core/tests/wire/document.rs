//! The examples of `docs/protocol.md`, and just enough to send and receive such bytes.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

/// The bytes of the example with this name, as far as they are shown.
pub(crate) fn example(name: &str) -> Vec<u8> {
    let head = format!("```text {name}\n");
    let (_, rest) = DOCUMENT.split_once(&head).unwrap_or_else(|| panic!("no example {name:?}"));
    let (shown, _) = rest.split_once("```").expect("the end of the example");
    let digits: Vec<_> = shown.chars().filter_map(|digit| digit.to_digit(16)).collect();
    assert_eq!(digits.len() % 2, 0, "{name:?} has half a byte");
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// An example with some of its bytes replaced.
pub(crate) fn varied<const N: usize>(mut bytes: Vec<u8>, changes: [(usize, &[u8]); N]) -> Vec<u8> {
    for (at, change) in changes {
        bytes[at..at + change.len()].copy_from_slice(change);
    }
    bytes
}

/// A frame of 32 bytes.
pub(crate) fn bare(kind: u8, call: u64, sequence: u32) -> Vec<u8> {
    varied(vec![0; 32], [(0, &[32]), (4, &[kind]), (8, &call.to_le_bytes()), (24, &sequence.to_le_bytes())])
}

/// What the server measured differs from run to run.
pub(crate) fn without_time(frame: Vec<u8>) -> Vec<u8> {
    varied(frame, [(20, &[0; 4])])
}

/// Whether a frame is released before the answer to it leaves is nobody's business.
pub(crate) fn without_acknowledged(frame: Vec<u8>) -> Vec<u8> {
    varied(frame, [(16, &[0; 4])])
}

/// CRC-32C, bit by bit.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// One side of a connection.
pub(crate) struct Wire(pub(crate) TcpStream);

impl Wire {
    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("the other side reads");
    }

    /// Sends a frame, padded to its block.
    pub(crate) async fn send(&mut self, frame: &[u8]) {
        let mut blocks = frame.to_vec();
        // What pads it must not matter.
        blocks.resize(frame.len().next_multiple_of(64), 0xee);
        self.say(&blocks).await;
    }

    /// Receives a frame, without its padding.
    pub(crate) async fn receive(&mut self) -> Vec<u8> {
        let mut frame = vec![0; 64];
        self.0.read_exact(&mut frame).await.expect("a block");
        let length = u32::from_le_bytes(frame[..4].try_into().expect("four bytes")) as usize;
        frame.resize(length.next_multiple_of(64), 0);
        self.0.read_exact(&mut frame[64..]).await.expect("the rest of the frame");
        frame.truncate(length);
        frame
    }

    /// Receives a frame; `None` when the other side closes instead.
    pub(crate) async fn receive_or_end(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 64];
        self.0.read_exact(&mut frame).await.ok()?;
        let length = u32::from_le_bytes(frame[..4].try_into().expect("four bytes")) as usize;
        assert!(length <= 64, "a frame of {length} bytes");
        frame.truncate(length);
        Some(frame)
    }

    /// Receives the magic that begins each direction.
    pub(crate) async fn magic(&mut self) {
        let mut magic = [0; 8];
        self.0.read_exact(&mut magic).await.expect("the magic");
        assert_eq!(&magic, b"RINGMAIL");
    }

    /// Receives a message of the bootstrap.
    pub(crate) async fn message(&mut self) -> Vec<u8> {
        let length = self.0.read_u32_le().await.expect("a length");
        let mut message = vec![0; length as usize];
        self.0.read_exact(&mut message).await.expect("a message");
        message
    }

    /// The other side closes, without another word.
    pub(crate) async fn ends(&mut self) {
        match self.0.read(&mut [0; 64]).await {
            Ok(count) => assert_eq!(count, 0, "it has more to say"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}
