//! Memory for large messages: what the peer reads, and what is read from it.

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Access, MemoryRegion, ProtectionDomain, Registrable, VerbsError};
use crate::memory::MemoryError;

/// Anonymous memory: shared, so that a fork leaves it where the device writes to.
#[derive(Debug)]
struct Area {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to this value alone; who may touch it when is up to `Source`, `Sink` and `Filled`, each of
// which is the only one of its area.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

// SAFETY: the memory is mapped readable and writable until drop. Devices write to it only while a queue pair holds the
// region of a `Sink`, and then nothing else touches it; what they read of it does not disturb anybody.
unsafe impl Registrable for Area {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.base, self.length)
    }
}

impl Area {
    fn new(length: usize) -> Result<Arc<Self>, MemoryError> {
        let fail = |errno| MemoryError::System { call: "mmap", bytes: length, errno };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        let base = NonNull::new(base.map_err(fail)?.cast()).ok_or_else(|| fail(Errno::NOMEM))?;
        Ok(Arc::new(Self { base, length }))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped by `new`, and its registration, which holds this value, is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Memory that the peer may read whenever it likes, and nobody may write by RDMA.
#[derive(Debug)]
pub(crate) struct Source {
    area: Arc<Area>,
    region: Arc<MemoryRegion>,
}

impl Source {
    /// Fresh memory of so many bytes.
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, length: usize) -> Result<Self, BufferError> {
        let area = Area::new(length)?;
        let region = MemoryRegion::new(domain, Arc::clone(&area) as _, Access::RemoteRead)?;
        Ok(Self { area, region })
    }

    pub(crate) fn length(&self) -> usize {
        self.area.length
    }

    /// Where it is, for the peer.
    pub(crate) fn remote(&self) -> super::Remote {
        super::Remote { address: self.region.address(), key: self.region.remote_key() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is mapped, initialised (anonymous memory is zeros at first), and only this value writes it,
        // which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.area.base.as_ptr(), self.area.length) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; devices only read it, and what they read then is the peer's problem.
        unsafe { std::slice::from_raw_parts_mut(self.area.base.as_ptr(), self.area.length) }
    }
}

/// Memory that a device may write for this side's own requests.
#[derive(Debug)]
pub(crate) struct Sink {
    area: Arc<Area>,
    /// `None` between two uses where the peer could write to it as well.
    region: Option<Arc<MemoryRegion>>,
    access: Access,
}

impl Sink {
    /// Fresh memory of so many bytes, not registered yet.
    pub(crate) fn new(length: usize, access: Access) -> Result<Self, BufferError> {
        Ok(Self { area: Area::new(length)?, region: None, access })
    }

    pub(crate) fn length(&self) -> usize {
        self.area.length
    }

    /// Registers it, if it is not.
    pub(crate) fn register(&mut self, domain: &Arc<ProtectionDomain>) -> Result<(), BufferError> {
        if self.region.is_none() {
            self.region = Some(MemoryRegion::new(domain, Arc::clone(&self.area) as _, self.access)?);
        }
        Ok(())
    }

    /// What requests may name, while it is registered.
    pub(crate) fn region(&self) -> Option<&Arc<MemoryRegion>> {
        self.region.as_ref()
    }

    /// Puts bytes at its beginning, before it is registered or read into for the first time.
    ///
    /// # Panics
    /// When it is shorter, or a request may be writing to it.
    pub(crate) fn begin_with(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.area.length);
        assert!(self.region.as_mut().is_none_or(|region| Arc::get_mut(region).is_some()), "it is in use");
        // SAFETY: the memory is mapped and that long; no request names it, since those hold its region, and `&mut self`
        // keeps anybody from posting one.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.area.base.as_ptr(), bytes.len());
        }
    }

    /// Ends writing to it: `None` if a request may still do so. Where the peer could write to it, it is not registered any
    /// more afterwards.
    pub(crate) fn fill(mut self) -> Option<Filled> {
        if let Some(region) = &mut self.region {
            // Requests hold the region that they name.
            Arc::get_mut(region)?;
        }
        if self.access == Access::RemoteWrite {
            self.region = None;
        }
        Some(Filled(self))
    }
}

/// Memory that nothing writes any more.
#[derive(Debug)]
pub(crate) struct Filled(Sink);

impl Filled {
    pub(crate) fn bytes(&self) -> &[u8] {
        let area = &self.0.area;
        // SAFETY: the memory is mapped and initialised. No request writes it, as `fill` has made sure and nobody can post
        // another, since its region is not handed out; nor can the peer, to whom it was never open or is not any more.
        unsafe { std::slice::from_raw_parts(area.base.as_ptr(), area.length) }
    }

    /// To be used for another message.
    pub(crate) fn into_sink(self) -> Sink {
        self.0
    }
}

/// Why there is no memory for a large message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BufferError {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_at_the_beginning_is_there_and_the_rest_is_zeros() {
        let mut sink = Sink::new(8192, Access::LocalWrite).unwrap();
        sink.begin_with(b"block");
        assert!(sink.region().is_none());
        let filled = sink.fill().expect("nobody writes");
        assert_eq!((&filled.bytes()[..5], filled.bytes().len()), (&b"block"[..], 8192));
        assert!(filled.bytes()[5..].iter().all(|byte| *byte == 0));
        assert_eq!(filled.into_sink().length(), 8192);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert!(matches!(Sink::new(usize::MAX / 2, Access::LocalWrite), Err(BufferError::Memory(_))));
    }
}
