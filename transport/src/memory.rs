//! Memory that rings live in: sealed, anonymous, mapped twice back to back.
//!
//! A [`Region`] is one `memfd`: a control page, then the ring. In the address space the ring appears twice, one
//! copy right behind the other, so that a frame across the ring's end is still one contiguous slice and no
//! pad record is ever needed:
//!
//! ```text
//!   file      │control│───── ring ─────│
//!   mapped    │control│───── ring ─────│───── ring ─────│
//! ```
//!
//! One process writes a region, its peer maps it read-only: after our own mapping exists the file is sealed
//! against shrinking, growing and *future writable mappings*. So neither side can take memory away from the
//! other (no `SIGBUS`), and what a peer may scribble on is exactly what it sends. The file has no name: when the
//! last process dies, however it dies, nothing is left.

pub(crate) mod lending;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::ring::RingSize;

/// Bytes in front of the ring for [`Control`]: one page, so that the ring stays page-aligned.
const CONTROL_BYTES: usize = 4096;

/// The seals that both sides rely on.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Bytes of ring memory that this process has mapped, its own and its peers'.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of ring memory (counted once, not per mapping) that this process holds now: its own regions and its
/// peers'. Falls back to what it was when connections end; tests watch it for leaks.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// Why ring memory could not be made or accepted.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error(
        "cannot make a ring of {bytes} bytes: {call} failed: {errno}; check the process's memory and open-file limits"
    )]
    System {
        /// The system call.
        call: &'static str,
        /// Size of the ring in bytes.
        bytes: usize,
        /// What the kernel said.
        errno: Errno,
    },
    /// The peer's file lacks a seal, so the peer could take memory away under us.
    #[error(
        "the peer's shared memory is not sealed (has {has:?}, needs {needs:?}); it runs an incompatible version or is hostile"
    )]
    Unsealed {
        /// Seals that the file has.
        has: SealFlags,
        /// Seals that it must have.
        needs: SealFlags,
    },
    /// The peer's file is not as large as it said.
    #[error("the peer's shared memory has {actual} bytes where its HELLO promised {promised}")]
    WrongSize {
        /// Bytes the file has.
        actual: u64,
        /// Bytes it should have.
        promised: u64,
    },
}

/// Shared words of a region, one writer each: the process that created the region. Each sits on a cache line of
/// its own.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Control {
    /// Position up to which the writer's staging ring may be read.
    pub produced: Line<AtomicU64>,
    /// Position up to which the writer has released the opposite ring.
    pub consumed: Line<AtomicU64>,
    /// Odd while the writer sleeps until something is produced for it; it grows with every sleep.
    pub sleeping: Line<AtomicU32>,
    /// Odd while the writer waits for space in its own ring; it grows with every wait.
    pub starving: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Control>() <= CONTROL_BYTES);

/// A value alone on its pair of cache lines (processors prefetch lines in pairs).
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line<T>(pub T);

/// One sealed memory file with a control page and a ring, mapped. See the [module](self).
#[derive(Debug)]
pub struct Region {
    file: OwnedFd,
    base: NonNull<u8>,
    size: RingSize,
}

// SAFETY: the mapping belongs to this value alone and is valid from any thread until drop; all access goes
// through atomics or through ranges that the ring algorithms hand to one owner at a time.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a region that this process writes.
    ///
    /// # Errors
    /// When the kernel refuses memory, file descriptors or seals.
    pub fn create(size: RingSize) -> Result<Self, MemoryError> {
        let fail = |call| move |errno| MemoryError::System { call, bytes: size.bytes(), errno };
        let file = rustix::fs::memfd_create("ringmail", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(fail("memfd_create"))?;
        rustix::fs::ftruncate(&file, Self::file_bytes(size)).map_err(fail("ftruncate"))?;
        let region = Self::map(file, size, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(&region.file, SEALS).map_err(fail("fcntl(F_ADD_SEALS)"))?;
        Ok(region)
    }

    /// Maps a region that a peer created, read-only, after checking its seals and size.
    ///
    /// # Errors
    /// When the file is not sealed, not of the promised size, or cannot be mapped.
    pub fn open(file: OwnedFd, size: RingSize) -> Result<Self, MemoryError> {
        let fail = |call| move |errno| MemoryError::System { call, bytes: size.bytes(), errno };
        // Seals first: afterwards the size can no longer change under us.
        let has = rustix::fs::fcntl_get_seals(&file).map_err(fail("fcntl(F_GET_SEALS)"))?;
        if !has.contains(SEALS) {
            return Err(MemoryError::Unsealed { has, needs: SEALS });
        }
        let stat = rustix::fs::fstat(&file).map_err(fail("fstat"))?;
        let (actual, promised) = (stat.st_size.unsigned_abs(), Self::file_bytes(size));
        if actual != promised {
            return Err(MemoryError::WrongSize { actual, promised });
        }
        Self::map(file, size, ProtFlags::READ)
    }

    fn file_bytes(size: RingSize) -> u64 {
        (CONTROL_BYTES + size.bytes()) as u64
    }

    fn mapped_length(size: RingSize) -> usize {
        CONTROL_BYTES + 2 * size.bytes()
    }

    fn map(file: OwnedFd, size: RingSize, protection: ProtFlags) -> Result<Self, MemoryError> {
        let fail = |call| move |errno| MemoryError::System { call, bytes: size.bytes(), errno };
        let ring = size.bytes();
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                Self::mapped_length(size),
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(fail("mmap (reserving addresses)"))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| fail("mmap")(Errno::NOMEM))?;
        MAPPED.fetch_add(ring, Ordering::Relaxed);
        // From here on dropping `region` unmaps the whole reservation.
        let region = Self { file, base, size };
        for (at, length, offset) in
            [(0, CONTROL_BYTES + ring, 0), (CONTROL_BYTES + ring, ring, CONTROL_BYTES as u64)]
        {
            // SAFETY: `at + length` lies within the reservation made above, which nothing else uses; MAP_FIXED
            // replaces just those pages.
            unsafe {
                rustix::mm::mmap(
                    base.as_ptr().add(at).cast(),
                    length,
                    protection,
                    MapFlags::SHARED | MapFlags::FIXED,
                    &region.file,
                    offset,
                )
            }
            .map_err(fail("mmap"))?;
        }
        Ok(region)
    }

    /// The memory file, to pass to a peer.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Size of the ring.
    #[must_use]
    pub fn size(&self) -> RingSize {
        self.size
    }

    /// The control words. On a peer's region they may only be loaded: the pages are mapped read-only.
    #[must_use]
    pub fn control(&self) -> &Control {
        // SAFETY: the mapping begins with a zero-initialised, page-aligned control page that lives as long as
        // `self`, and `Control` consists of atomics, for which every bit pattern is valid.
        unsafe { self.base.cast::<Control>().as_ref() }
    }

    /// Start of the first of the two ring mappings; valid for twice the ring's size.
    #[must_use]
    pub fn ring(&self) -> NonNull<u8> {
        // SAFETY: the control page is followed by the ring within the same reservation.
        unsafe { self.base.add(CONTROL_BYTES) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.size.bytes(), Ordering::Relaxed);
        // SAFETY: the reservation of this length was made in `map` and belongs to `self` alone; whoever holds
        // slices of it holds an `Arc` of the region.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), Self::mapped_length(self.size)) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_ring_appears_twice() {
        let size = RingSize::new(RingSize::MIN).unwrap();
        let region = Region::create(size).unwrap();
        let ring = region.ring();
        // SAFETY: both offsets lie within the double mapping, and only this thread uses it.
        unsafe {
            ring.add(size.bytes() - 1).write(7);
            ring.add(size.bytes()).write(8);
            assert_eq!(ring.add(2 * size.bytes() - 1).read(), 7);
            assert_eq!(ring.read(), 8);
        }
    }

    #[test]
    fn a_peer_can_read_but_neither_write_nor_resize() {
        let size = RingSize::new(RingSize::MIN).unwrap();
        let ours = Region::create(size).unwrap();
        ours.control().produced.0.store(42, Ordering::Release);
        let file = ours.file().try_clone_to_owned().unwrap();
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
        // SAFETY: the kernel chooses the address, and the mapping is expected to be refused.
        let writable = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        assert_eq!(writable.unwrap_err(), Errno::PERM);
        let theirs = Region::open(file, size).unwrap();
        assert_eq!(theirs.control().produced.0.load(Ordering::Acquire), 42);
    }

    #[test]
    fn unsealed_or_short_files_are_refused() {
        let size = RingSize::new(RingSize::MIN).unwrap();
        let plain = rustix::fs::memfd_create("plain", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(Region::open(plain, size), Err(MemoryError::Unsealed { .. })));
        let larger = RingSize::new(2 * RingSize::MIN).unwrap();
        let ours = Region::create(size).unwrap();
        let file = ours.file().try_clone_to_owned().unwrap();
        assert!(matches!(Region::open(file, larger), Err(MemoryError::WrongSize { .. })));
    }
}
