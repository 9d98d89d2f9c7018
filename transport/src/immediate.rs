//! The 32 bits that travel with a notification: as an RDMA immediate, or as a message of four bytes chained behind
//! the WRITE where there are no immediates.
//!
//! ```text
//!    31      28 27      24 23                                              0
//!   ┌──────────┬──────────┬─────────────────────────────────────────────────┐
//!   │  notice  │  epoch   │  producer position after this WRITE, low 24 bits │
//!   └──────────┴──────────┴─────────────────────────────────────────────────┘
//! ```
//!
//! It carries neither an offset nor a count. The position is absolute, so a notification that was merged with the
//! next, or lost, is made up for by any that follows; the receiver completes it from what it knows and checks it
//! against what is possible. Late completions of a link that has been replaced carry its epoch and are dropped.

use crate::ring::{Position, RingSize};

/// Bits of the position that travel.
const POSITION_BITS: u32 = 24;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;
// A position is told apart from those one ring before it and one ring behind it.
const _: () = assert!(2 * RingSize::MAX / crate::ring::BLOCK < 1 << POSITION_BITS);

/// What a notification is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Notice {
    /// Frames have been written.
    Frames = 1,
    /// The credit record has been written: space, notifications, or both.
    Credit = 2,
    /// Nothing more will come.
    Close = 3,
    /// Are you there?
    Probe = 4,
    /// The sender found a rule broken and has given the connection up.
    Error = 6,
}

impl Notice {
    /// Reads a notice from its number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Frames,
            2 => Self::Credit,
            3 => Self::Close,
            4 => Self::Probe,
            6 => Self::Error,
            _ => return None,
        })
    }
}

/// Which of the links that a session has run on; it wraps, because only neighbours have to be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(u8);

impl Epoch {
    /// An epoch by its number, of which the low four bits count.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number & 0xf)
    }

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// The number: 0 to 15.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The 32 bits of a notification, taken apart. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// What it is about.
    pub notice: Notice,
    /// The link that it was sent on.
    pub epoch: Epoch,
    /// Low bits of the producer position.
    produced: u32,
}

impl Immediate {
    /// A notification that everything before `produced` has been written.
    #[must_use]
    pub const fn new(notice: Notice, epoch: Epoch, produced: Position) -> Self {
        Self { notice, epoch, produced: produced.0 as u32 & POSITION_MASK }
    }

    /// The bits as they travel.
    #[must_use]
    pub const fn encode(self) -> u32 {
        (self.notice as u32) << 28 | (self.epoch.0 as u32) << POSITION_BITS | self.produced
    }

    /// Takes the bits apart; `None` when the notice is not known.
    #[must_use]
    pub fn decode(bits: u32) -> Option<Self> {
        Some(Self {
            notice: Notice::from_wire((bits >> 28) as u8)?,
            epoch: Epoch::new((bits >> POSITION_BITS) as u8),
            produced: bits & POSITION_MASK,
        })
    }

    /// The whole position, given that the receiver knows of everything before `known`: notifications arrive in order,
    /// so it is `known` or the next position after it that ends in these bits. Whether it is possible is for the
    /// mailbox to check.
    #[must_use]
    pub const fn produced(self, known: Position) -> Position {
        Position(known.0 + (self.produced.wrapping_sub(known.0 as u32) & POSITION_MASK) as u64)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// These bits are the protocol: a change here is a new protocol version.
    #[test]
    fn golden_bits() {
        let of =
            |notice, epoch, position| Immediate::new(notice, Epoch::new(epoch), Position(position)).encode();
        assert_eq!(of(Notice::Frames, 0, 0), 0x1000_0000);
        assert_eq!(of(Notice::Frames, 3, 0x0012_3456), 0x1312_3456);
        assert_eq!(of(Notice::Credit, 15, 0x00ff_ffff), 0x2fff_ffff);
        assert_eq!(of(Notice::Close, 1, 0x0100_0000), 0x3100_0000);
        assert_eq!(of(Notice::Probe, 16, 1), 0x4000_0001);
        assert_eq!(of(Notice::Error, 8, 3), 0x6800_0003);
    }

    #[test]
    fn unknown_notices_are_refused() {
        for number in [0u32, 5, 7, 8, 15] {
            assert_eq!(Immediate::decode(number << 28 | 0x00ab_cdef), None, "{number}");
        }
    }

    #[test]
    fn epochs_wrap() {
        assert_eq!(Epoch::new(15).next(), Epoch::new(0));
        assert_eq!(Epoch::default().next().number(), 1);
    }

    proptest! {
        #[test]
        fn a_position_up_to_two_rings_ahead_comes_back_whole(
            known in 0u64..1 << 40,
            ahead in 0u64..2 * (RingSize::MAX / crate::ring::BLOCK) as u64,
            notice in prop::sample::select(vec![1u8, 2, 3, 4, 6]),
            epoch in 0u8..16,
        ) {
            let produced = Position(known + ahead);
            let sent = Immediate::new(Notice::from_wire(notice).unwrap(), Epoch::new(epoch), produced);
            let arrived = Immediate::decode(sent.encode()).unwrap();
            prop_assert_eq!(arrived, sent);
            prop_assert_eq!(arrived.produced(Position(known)), produced);
        }

        /// A position that went back is not mistaken for one within the ring.
        #[test]
        fn a_position_that_goes_back_is_impossible(
            known in (1u64 << 24)..1 << 40,
            back in 1u64..=(RingSize::MAX / crate::ring::BLOCK) as u64,
        ) {
            let stale = Immediate::new(Notice::Frames, Epoch::default(), Position(known - back));
            let read = stale.produced(Position(known));
            prop_assert!(read.0 > known + (RingSize::MAX / crate::ring::BLOCK) as u64);
        }
    }
}
