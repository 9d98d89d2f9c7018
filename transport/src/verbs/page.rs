//! A page that a peer writes to.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::Registrable;
use crate::memory::MemoryError;

/// A page of shared, anonymous memory: shared, so that a fork leaves it where the device writes to.
#[derive(Debug)]
pub(crate) struct Page {
    base: NonNull<u8>,
}

// SAFETY: the page belongs to this value alone and is only accessed by atomic loads.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

// SAFETY: the page is mapped readable and writable until drop, and everybody who reads it expects it to change.
unsafe impl Registrable for Page {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.base, Self::BYTES)
    }
}

impl Page {
    /// The least that can be registered and shared with nothing else.
    pub(crate) const BYTES: usize = 4096;

    pub(crate) fn new() -> Result<Self, MemoryError> {
        let fail = |errno| MemoryError::System { call: "mmap", bytes: Self::BYTES, errno };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                Self::BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        let base = NonNull::new(base.map_err(fail)?.cast()).ok_or_else(|| fail(Errno::NOMEM))?;
        Ok(Self { base })
    }

    /// The little-endian word at an offset that is a multiple of eight.
    pub(crate) fn load_u64(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= Self::BYTES && offset.is_multiple_of(8));
        // SAFETY: the word is within the page and aligned; `Page` allows nothing but atomic access, and the device's
        // writes are not Rust's.
        let word = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast::<u64>()) };
        u64::from_le(word.load(Ordering::Relaxed))
    }

    /// The little-endian word at an offset that is a multiple of four.
    pub(crate) fn load_u32(&self, offset: usize) -> u32 {
        assert!(offset + 4 <= Self::BYTES && offset.is_multiple_of(4));
        // SAFETY: as for `load_u64`.
        let word = unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast::<u32>()) };
        u32::from_le(word.load(Ordering::Relaxed))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new`, and the registration, which holds this value, is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), Self::BYTES) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
