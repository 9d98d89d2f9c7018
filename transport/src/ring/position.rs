//! Units of a ring: blocks, absolute positions and ring sizes.

use std::fmt;

/// Bytes in a block: one cache line, so that two producers never write the same line.
pub const BLOCK: usize = 64;

/// A number of 64-byte blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocks(pub u32);

impl Blocks {
    /// The blocks that hold `bytes` bytes, rounded up; `None` when that does not fit 32 bits.
    #[must_use]
    pub fn holding(bytes: usize) -> Option<Self> {
        u32::try_from(bytes.div_ceil(BLOCK)).ok().map(Self)
    }

    /// This many blocks in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0 as usize * BLOCK
    }
}

/// An absolute position in a ring, in blocks since the connection began. At 100 million blocks a second it
/// would take 5,000 years to wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// The position `blocks` after this one.
    #[must_use]
    pub fn plus(self, blocks: Blocks) -> Self {
        Self(self.0 + u64::from(blocks.0))
    }

    /// Blocks from `earlier` to here; `None` when `earlier` is in fact later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }

    /// The whole position of which a peer sent only the low 32 bits, given that it is at most 2³² − 1 blocks
    /// after `known`.
    ///
    /// Whether such a position is possible is for the caller to check: this only undoes the truncation.
    #[must_use]
    pub fn from_low_bits(known: Self, low: u32) -> Self {
        Self(known.0 + u64::from(low.wrapping_sub(known.0 as u32)))
    }

    /// The low 32 bits, as they travel in a frame header.
    #[must_use]
    pub fn low_bits(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// The size of a ring: a power of two between [`RingSize::MIN`] and [`RingSize::MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    blocks: u32,
}

/// A ring size that is not a power of two within the limits.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a ring of {bytes} bytes is not possible: use a power of two between {} and {} bytes",
    RingSize::MIN,
    RingSize::MAX
)]
pub struct InvalidRingSize {
    /// What was asked for.
    pub bytes: u64,
}

impl RingSize {
    /// Smallest ring in bytes: what an idle connection should cost at most, with both directions, is 64 KiB.
    pub const MIN: usize = 16 * 1024;
    /// Largest ring in bytes: beyond it large messages gain nothing from living in the ring.
    pub const MAX: usize = 64 * 1024 * 1024;
    /// The default, 256 KiB: two thousand small calls in flight, and it fits a second-level cache.
    pub const DEFAULT: Self = Self { blocks: (256 * 1024 / BLOCK) as u32 };

    /// A ring of `bytes` bytes.
    ///
    /// # Errors
    /// When `bytes` is not a power of two within the limits.
    pub fn new(bytes: usize) -> Result<Self, InvalidRingSize> {
        if bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes) {
            Ok(Self { blocks: (bytes / BLOCK) as u32 })
        } else {
            Err(InvalidRingSize { bytes: bytes as u64 })
        }
    }

    /// A ring of one page: loom explores no more than a few places anyway, and pays for each.
    #[cfg(loom)]
    pub(crate) const SMALLEST: Self = Self { blocks: 4096 / BLOCK as u32 };

    /// Number of blocks in the ring.
    #[must_use]
    pub fn blocks(self) -> Blocks {
        Blocks(self.blocks)
    }

    /// Number of bytes in the ring.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.blocks().bytes()
    }

    /// Index of the block that `position` falls on.
    #[must_use]
    pub fn index(self, position: Position) -> usize {
        (position.0 & u64::from(self.blocks - 1)) as usize
    }

    /// Byte offset of `position` in the ring.
    #[must_use]
    pub fn offset(self, position: Position) -> usize {
        self.index(position) * BLOCK
    }
}

impl Default for RingSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn low_bits_come_back_as_the_nearest_later_position() {
        let known = Position(0xffff_fff0);
        assert_eq!(Position::from_low_bits(known, 0xffff_fff0), known);
        assert_eq!(Position::from_low_bits(known, 5), Position(0x1_0000_0005));
    }

    #[test]
    fn ring_sizes_are_powers_of_two_within_the_limits() {
        assert!(RingSize::new(16 * 1024).is_ok());
        assert!(RingSize::new(8 * 1024).is_err());
        assert!(RingSize::new(100_000).is_err());
        assert!(RingSize::new(128 * 1024 * 1024).unwrap_err().to_string().contains("power of two"));
        assert_eq!(RingSize::DEFAULT.offset(Position(4096 + 3)), 3 * BLOCK);
    }

    proptest::proptest! {
        #[test]
        fn low_bits_name_the_only_position_within_reach(known in 0u64..1 << 48, ahead in 0u64..1 << 32) {
            let whole = Position(known + ahead);
            proptest::prop_assert_eq!(Position::from_low_bits(Position(known), whole.low_bits()), whole);
        }

        #[test]
        fn blocks_hold_their_bytes_with_less_than_one_to_spare(bytes in 1usize..1 << 36) {
            let blocks = Blocks::holding(bytes).unwrap();
            proptest::prop_assert!(blocks.bytes() >= bytes && blocks.bytes() - bytes < BLOCK);
        }

        #[test]
        fn offsets_repeat_every_lap(bits in 14u32..=26, at in 0u64..1 << 40, laps in 0u64..1000) {
            let size = RingSize::new(1 << bits).unwrap();
            let later = Position(at + laps * u64::from(size.blocks().0));
            proptest::prop_assert_eq!(size.offset(later), size.offset(Position(at)));
            proptest::prop_assert!(size.offset(later) < size.bytes());
        }
    }
}
