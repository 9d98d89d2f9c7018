//! FALLBACK: the one thing that travels on TCP, instead of frames, while a direction runs on the fast link.
//!
//! ```text
//!   0  1        4       8          16
//!   │1 │reserved│ epoch │ position │
//! ```

use crate::frame::FrameError;
use crate::ring::Position;

/// Bytes of the record.
pub(super) const BYTES: usize = 16;
/// What the first byte says.
const FALLBACK: u8 = 1;

/// The sender's fast link of this epoch is gone, and it has taken what was announced on it up to this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fallback {
    pub(super) epoch: u32,
    pub(super) position: Position,
}

impl Fallback {
    pub(super) fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = FALLBACK;
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..].copy_from_slice(&self.position.0.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; BYTES]) -> Result<Self, FrameError> {
        let [FALLBACK, 0, 0, 0, epoch @ .., _, _, _, _, _, _, _, _] = bytes else {
            return Err(FrameError::BadSwitch { rule: "what is not a record came behind SWITCH" });
        };
        let [_, _, _, _, _, _, _, _, position @ ..] = bytes;
        Ok(Self { epoch: u32::from_le_bytes(epoch), position: Position(u64::from_le_bytes(position)) })
    }
}

/// A record that is arriving.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: [u8; BYTES],
    filled: usize,
}

impl Arriving {
    /// Where the next bytes belong; empty when it is complete.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// The record, when it is complete.
    pub(super) fn record(&self) -> Result<Option<Fallback>, FrameError> {
        if self.filled == BYTES { Fallback::decode(self.bytes).map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These bytes are the protocol: a change here is a new protocol version.
    #[test]
    fn golden_bytes() {
        let fallback = Fallback { epoch: 0x0102_0304, position: Position(0x1112_1314_1516_1718) };
        let bytes = [1, 0, 0, 0, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11];
        assert_eq!(fallback.encode(), bytes);
        assert_eq!(Fallback::decode(bytes), Ok(fallback));
        for reserved in 0..4 {
            let mut changed = bytes;
            changed[reserved] ^= 2;
            assert!(Fallback::decode(changed).is_err());
        }
    }
}
