//! Protection domains, and memory that a device may touch.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys::{ibv_access_flags, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_mr, ibv_pd, ibv_reg_mr};
use rustix::process::{Resource, getrlimit};

use super::{Context, Place, Reason, VerbsError};

/// Bytes registered by this process now. Devices keep them in memory, and the kernel counts them against the
/// process's limit on locked memory.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// Memory registered in one protection domain can only be reached through queue pairs of the same one.
#[derive(Debug)]
pub struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows all calls on a protection domain from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new protection domain on a device.
    ///
    /// # Errors
    /// When the device has no more of them.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ibv_alloc_pd(context.raw()) })
            .ok_or_else(|| VerbsError::last("ibv_alloc_pd", context.place()))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything that was made in the domain holds an `Arc` of it and so is gone.
        let code = unsafe { ibv_dealloc_pd(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dealloc_pd");
    }
}

/// What a device may do with memory besides reading it for this side's own requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Local,
    /// Write to it for this side's own requests: receives and READs.
    LocalWrite,
    /// Let the peer write to it.
    RemoteWrite,
    /// Let the peer read it.
    RemoteRead,
}

impl Access {
    fn flags(self) -> i32 {
        let flags = match self {
            Self::Local => ibv_access_flags(0),
            Self::LocalWrite => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            // Whoever may write remotely must be able to locally.
            Self::RemoteWrite => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
            Self::RemoteRead => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        };
        flags.0 as i32
    }
}

/// Memory that can be registered.
///
/// # Safety
/// The range must stay mapped, readable and (for any access but [`Access::Local`] and [`Access::RemoteRead`])
/// writable for as long as the value lives, and whoever else accesses it must expect that a device reads and writes
/// it at any time.
pub unsafe trait Registrable: Send + Sync + fmt::Debug {
    /// Where it begins, and how many bytes it has.
    fn range(&self) -> (NonNull<u8>, usize);
}

/// Registered memory. It stays mapped, and pinned, while this lives.
#[derive(Debug)]
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    start: NonNull<u8>,
    length: usize,
    domain: Arc<ProtectionDomain>,
    _memory: Arc<dyn Registrable>,
}

// SAFETY: libibverbs allows all calls on a memory region from any thread; the memory itself is only touched by
// whoever keeps to the contract of `Registrable`.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers memory.
    ///
    /// # Errors
    /// When the device or the kernel refuses, most often because of the limit on locked memory.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        memory: Arc<dyn Registrable>,
        access: Access,
    ) -> Result<Arc<Self>, VerbsError> {
        let (start, length) = memory.range();
        let place = domain.context().place();
        if length as u64 > domain.context().limits().registration {
            return Err(VerbsError::new(
                "ibv_reg_mr",
                Reason::Lacks("room for a registration of this size"),
                place,
            ));
        }
        // SAFETY: the domain is alive and the range is mapped, both for as long as the region lives.
        let raw = unsafe { ibv_reg_mr(domain.raw(), start.as_ptr().cast(), length, access.flags()) };
        let raw = NonNull::new(raw).ok_or_else(|| Self::refused(length as u64, place))?;
        REGISTERED.fetch_add(length as u64, Ordering::Relaxed);
        Ok(Arc::new(Self { raw, start, length, domain: Arc::clone(domain), _memory: memory }))
    }

    /// Why the call before has registered nothing.
    fn refused(bytes: u64, place: &Arc<Place>) -> VerbsError {
        let error = VerbsError::last("ibv_reg_mr", place);
        let Some(errno) = error.errno() else { return error };
        let reason = Reason::Unregistered {
            errno,
            bytes,
            registered: Self::registered_bytes(),
            limit: getrlimit(Resource::Memlock).current,
        };
        VerbsError { reason, ..error }
    }

    /// Bytes registered by this process now.
    #[must_use]
    pub fn registered_bytes() -> u64 {
        REGISTERED.load(Ordering::Relaxed)
    }

    /// Where the memory begins, as the peer must address it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// How many bytes it has.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The key that the peer needs. It is no secret on its own: devices number them.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered, and libibverbs does not write the struct afterwards.
        unsafe { self.raw.as_ref().rkey }
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: as for the remote key.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold the regions that their requests name, so no request refers to it any more.
        let code = unsafe { ibv_dereg_mr(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dereg_mr");
        REGISTERED.fetch_sub(self.length as u64, Ordering::Relaxed);
    }
}
