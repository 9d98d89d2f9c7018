//! The frame: a 32-byte header, then metadata (if any), then payload.
//!
//! There is one writer, [`Header::encode`], and one reader, [`Header::decode`]. The reader is given 32 bytes that
//! were copied out of the mailbox once, and checks every field before anybody acts on one.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | length of the whole frame without padding; at least 32 |
//! | 4 | kind |
//! | 5 | flags |
//! | 6–7 | method index in requests, gRPC status in responses, yes or no in answers to what was lent |
//! | 8–15 | call id: slab index, generation |
//! | 16–19 | acknowledged: low 32 bits of the sender's consumer position in the opposite ring |
//! | 20–23 | time in µs: remaining deadline in requests, the server's own time in responses |
//! | 24–27 | sequence: number of the frame on its session and direction |
//! | 28–31 | check: CRC-32C of the header with this field 0, or 0 when checks are off |
//!
//! All little endian. The next frame begins at the next 64-byte block.

use crate::ring::{BLOCK, Position};

/// Bytes in a header.
pub const HEADER: usize = 32;
const _: () = assert!(HEADER <= BLOCK && BLOCK.is_multiple_of(HEADER));
const _: () = assert!(size_of::<CallId>() == 8);

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Begins a call; carries the method, the deadline, metadata and (for unary) the request message.
    Request = 1,
    /// Ends a call from the server's side; carries the status, trailing metadata and (for unary) the response.
    Response = 2,
    /// One message of a stream, or initial metadata.
    Message = 3,
    /// The sender will send no more messages on this stream.
    HalfClose = 4,
    /// The caller has lost interest in the call.
    Cancel = 5,
    /// The receiver could not accept a frame of this call.
    Reset = 6,
    /// More bytes may be sent on this stream.
    Window = 7,
    /// A message that was lent has been read, or will not be; its memory may be used again.
    RendezvousDone = 9,
    /// Are you there?
    Ping = 10,
    /// Yes.
    Pong = 11,
    /// No new calls on this connection; those in flight will be finished.
    GoAway = 12,
    /// Last frame on this link: go on reading on the other.
    Switch = 13,
    /// A claim that was given up: nothing to see.
    Skip = 14,
    /// The next piece of a message too large for one frame.
    Fragment = 15,
    /// What the two links have to say to each other about one that is to take over.
    Upgrade = 16,
}

impl Kind {
    /// Reads a kind from its number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Message,
            4 => Self::HalfClose,
            5 => Self::Cancel,
            6 => Self::Reset,
            7 => Self::Window,
            9 => Self::RendezvousDone,
            10 => Self::Ping,
            11 => Self::Pong,
            12 => Self::GoAway,
            13 => Self::Switch,
            14 => Self::Skip,
            15 => Self::Fragment,
            16 => Self::Upgrade,
            _ => return None,
        })
    }
}

/// Flags of a frame: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The payload is preceded by a metadata block.
    pub const METADATA: Self = Self(1);
    /// The time field of a request is a deadline.
    pub const DEADLINE: Self = Self(1 << 1);
    /// The message does not fit: the payload is its total length (8 bytes) and its first bytes; the rest follows
    /// in [`Kind::Fragment`] frames of the same call.
    pub const FRAGMENTED: Self = Self(1 << 2);
    /// The sender of this frame sends no more messages on the stream.
    pub const END: Self = Self(1 << 3);
    /// The call may be executed more than once.
    pub const IDEMPOTENT: Self = Self(1 << 4);
    /// No response is wanted.
    pub const ONE_WAY: Self = Self(1 << 5);
    /// The message lies in the sender's memory: the payload says where ([`Offer`](crate::rendezvous::Offer)).
    pub const LENT: Self = Self(1 << 6);
    const ALL: u8 = 0x7f;

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any flag of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The flags as a byte on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Reads flags from the wire; `None` when an unknown bit is set.
    #[must_use]
    pub const fn from_wire(bits: u8) -> Option<Self> {
        if bits & !Self::ALL == 0 { Some(Self(bits)) } else { None }
    }
}

/// Names a call on its connection: where the caller keeps its state, and which use of that place it is, so that
/// what arrives late for an earlier call is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CallId {
    /// Index into the caller's table of calls.
    pub index: u32,
    /// How often that index has been used.
    pub generation: u32,
}

/// The header of a frame, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes in the whole frame, header included, padding not.
    pub length: u32,
    /// What the frame is.
    pub kind: Kind,
    /// Its flags.
    pub flags: Flags,
    /// Index into the server's method table in requests; gRPC status code in responses.
    pub method_or_status: u16,
    /// The call it belongs to.
    pub call: CallId,
    /// Low bits of the sender's consumer position in the opposite ring. Written when the frame is sealed.
    pub acknowledged: u32,
    /// Microseconds: remaining deadline in requests with [`Flags::DEADLINE`]; in responses the server's own time.
    pub time: u32,
    /// Number of the frame on its session and direction. Written when the frame is sealed.
    pub sequence: u32,
}

/// Whether headers carry a CRC-32C; negotiated in HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// The check field is 0: the link itself protects the bytes.
    #[default]
    Off,
    /// The check field is the CRC-32C of the header with that field 0.
    Header,
}

/// The rule that a received frame broke. Any of these ends the connection: a peer that breaks one is broken or
/// hostile, and what follows in its ring cannot be found any more.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// Shorter than a header.
    #[error("frame length {length} is below the {HEADER}-byte header")]
    TooShort {
        /// The length field.
        length: u32,
    },
    /// Longer than was agreed.
    #[error("frame length {length} exceeds the agreed {limit} bytes")]
    TooLong {
        /// The length field.
        length: u32,
        /// Largest frame agreed in HELLO.
        limit: u32,
    },
    /// Reaches beyond what the sender said it had written.
    #[error("a frame of {length} bytes at {at} reaches beyond what was announced, {produced}")]
    Unannounced {
        /// Where the frame begins.
        at: Position,
        /// The length field.
        length: u32,
        /// What the sender announced.
        produced: Position,
    },
    /// No such kind.
    #[error("frame kind {kind} is not known")]
    UnknownKind {
        /// The kind field.
        kind: u8,
    },
    /// A flag that is not defined.
    #[error("frame flags {flags:#010b} have an undefined bit set")]
    UnknownFlags {
        /// The flags field.
        flags: u8,
    },
    /// A kind that this side does not receive.
    #[error("a {kind:?} frame cannot be sent in this direction")]
    Misdirected {
        /// The kind.
        kind: Kind,
    },
    /// Not the next frame of the session.
    #[error("frame sequence {sequence} where {expected} was next")]
    OutOfSequence {
        /// The sequence field.
        sequence: u32,
        /// The number expected.
        expected: u32,
    },
    /// Header damaged.
    #[error(
        "header check {check:#010x} does not match the computed {computed:#010x}: the bytes were damaged"
    )]
    BadCheck {
        /// The check field.
        check: u32,
        /// CRC-32C of what arrived.
        computed: u32,
    },
    /// Acknowledges what was never sent.
    #[error("{acknowledged} acknowledged where only {sent} was sent")]
    BadAcknowledgement {
        /// What the peer claims to have consumed.
        acknowledged: Position,
        /// What was sent.
        sent: Position,
    },
    /// Announces more than the ring holds, or less than before.
    #[error("{produced} announced where {from} to {until} is possible")]
    BadPosition {
        /// What the peer claims to have produced.
        produced: Position,
        /// What it had announced before.
        from: Position,
        /// One ring beyond what this side has released.
        until: Position,
    },
    /// The metadata block does not fit its frame or is malformed.
    #[error("metadata block is malformed: {rule}")]
    BadMetadata {
        /// What is wrong with it.
        rule: &'static str,
    },
    /// Two links that take turns, in the wrong way.
    #[error("the change between links is wrong: {rule}")]
    BadSwitch {
        /// What is wrong with it.
        rule: &'static str,
    },
    /// A fragment without a beginning, or more bytes than were announced.
    #[error("fragments do not add up: {rule}")]
    BadFragment {
        /// What is wrong with it.
        rule: &'static str,
    },
    /// A message was lent in the wrong way, or an answer came to one that was not lent.
    #[error("the lending of a message is wrong: {rule}")]
    BadRendezvous {
        /// What is wrong with it.
        rule: &'static str,
    },
}

impl Header {
    /// A header with nothing but a kind, for a frame of `length` bytes in all.
    #[must_use]
    pub fn new(kind: Kind, length: u32) -> Self {
        Self {
            length,
            kind,
            flags: Flags::NONE,
            method_or_status: 0,
            call: CallId::default(),
            acknowledged: 0,
            time: 0,
            sequence: 0,
        }
    }

    /// The header's bytes, with the check field 0. Sealing fills in what is known only when the frame leaves.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.flags.0;
        bytes[6..8].copy_from_slice(&self.method_or_status.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.call.index.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.call.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.time.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// The acknowledged field in the bytes of an encoded header, of which this side is the writer.
    pub(crate) fn acknowledged_in(bytes: &[u8; HEADER]) -> u32 {
        u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]])
    }

    /// Fills in, in the bytes of an encoded header, what is known only when the frame leaves.
    pub fn seal(bytes: &mut [u8; HEADER], acknowledged: u32, sequence: u32, check: Check) {
        bytes[16..20].copy_from_slice(&acknowledged.to_le_bytes());
        bytes[24..28].copy_from_slice(&sequence.to_le_bytes());
        let check = match check {
            Check::Off => 0,
            Check::Header => crc32c::crc32c(&bytes[..28]),
        };
        bytes[28..32].copy_from_slice(&check.to_le_bytes());
    }

    /// Reads a header from bytes that nobody else can change, and checks every field that can be checked without
    /// knowing the connection's state.
    ///
    /// # Errors
    /// The first rule that the header breaks.
    pub fn decode(bytes: &[u8; HEADER], limit: u32, check: Check) -> Result<Self, FrameError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let computed = match check {
            Check::Off => 0,
            Check::Header => crc32c::crc32c(&bytes[..28]),
        };
        if word(28) != computed {
            return Err(FrameError::BadCheck { check: word(28), computed });
        }
        let length = word(0);
        if (length as usize) < HEADER {
            return Err(FrameError::TooShort { length });
        }
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        Ok(Self {
            length,
            kind: Kind::from_wire(bytes[4]).ok_or(FrameError::UnknownKind { kind: bytes[4] })?,
            flags: Flags::from_wire(bytes[5]).ok_or(FrameError::UnknownFlags { flags: bytes[5] })?,
            method_or_status: u16::from_le_bytes([bytes[6], bytes[7]]),
            call: CallId { index: word(8), generation: word(12) },
            acknowledged: word(16),
            time: word(20),
            sequence: word(24),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            length: 0x0102,
            kind: Kind::Request,
            flags: Flags::METADATA.with(Flags::DEADLINE),
            method_or_status: 0x0304,
            call: CallId { index: 0x0506_0708, generation: 0x090a_0b0c },
            acknowledged: 0x0d0e_0f10,
            time: 0x1112_1314,
            sequence: 0x1516_1718,
        }
    }

    /// These bytes are the protocol: a change here is a new protocol version.
    #[test]
    fn golden_bytes() {
        let golden = [
            0x02, 0x01, 0x00, 0x00, 0x01, 0x03, 0x04, 0x03, 0x08, 0x07, 0x06, 0x05, 0x0c, 0x0b, 0x0a, 0x09,
            0x10, 0x0f, 0x0e, 0x0d, 0x14, 0x13, 0x12, 0x11, 0x18, 0x17, 0x16, 0x15, 0x00, 0x00, 0x00, 0x00,
        ];
        assert_eq!(sample().encode(), golden);
        assert_eq!(Header::decode(&golden, 4096, Check::Off), Ok(sample()));
    }

    #[test]
    fn golden_check_is_the_castagnoli_crc() {
        let mut bytes = sample().encode();
        Header::seal(&mut bytes, 1, 2, Check::Header);
        let check = u32::from_le_bytes(bytes[28..].try_into().unwrap());
        // CRC-32C of the 28 bytes, bit by bit from the reflected polynomial 0x82f63b78.
        let mut crc = !0u32;
        for byte in &bytes[..28] {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        assert_eq!(check, !crc);
        assert_eq!(
            Header::decode(&bytes, 4096, Check::Header),
            Ok(Header { acknowledged: 1, sequence: 2, ..sample() })
        );
    }

    #[test]
    fn each_bad_field_names_its_rule() {
        let good = sample().encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Header::decode(&bytes, 4096, Check::Off).unwrap_err()
        };
        assert_eq!(with(4, 0), FrameError::UnknownKind { kind: 0 });
        assert_eq!(with(4, 200), FrameError::UnknownKind { kind: 200 });
        assert_eq!(with(5, 0x80), FrameError::UnknownFlags { flags: 0x80 });
        assert_eq!(with(2, 1), FrameError::TooLong { length: 0x1_0102, limit: 4096 });
        assert!(matches!(with(30, 1), FrameError::BadCheck { computed: 0, .. }));
        let mut short = good;
        short[..4].copy_from_slice(&31u32.to_le_bytes());
        assert_eq!(Header::decode(&short, 4096, Check::Off), Err(FrameError::TooShort { length: 31 }));
    }

    #[test]
    fn every_single_bit_flip_is_noticed_when_checks_are_on() {
        let mut bytes = sample().encode();
        Header::seal(&mut bytes, 1, 2, Check::Header);
        for bit in 0..HEADER * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged, 4096, Check::Header).is_err(), "bit {bit}");
        }
    }
}
