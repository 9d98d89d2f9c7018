//! An open device.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rdma_sys::{ibv_context, ibv_device_attr, ibv_port_attr, ibv_query_device, ibv_transport_type};
use rustix::io::Errno;

use super::manager::{EventChannel, Id};
use super::{Place, Reason, VerbsError};

/// The protocol family of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand, or RoCE: the same protocol over Ethernet.
    InfiniBand,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// Something that is neither.
    Other,
}

/// What a device and its port can do, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of a completion queue.
    pub completions: u32,
    /// Work requests in a queue of a queue pair.
    pub requests: u32,
    /// Receive requests in a shared receive queue; 0 when there are none.
    pub shared_receives: u32,
    /// RDMA READs that a queue pair may have on their way at the peer.
    pub reads_sent: u8,
    /// RDMA READs of the peer that a queue pair serves at a time.
    pub reads_served: u8,
    /// Bytes in one message.
    pub message: u32,
    /// Bytes in one registration.
    pub registration: u64,
}

/// A device, opened for one of its local addresses.
///
/// The connection manager decides which device and port an address belongs to, and opens it; a bound id keeps it
/// open for as long as this lives.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ibv_context>,
    address: IpAddr,
    port: u8,
    transport: Transport,
    limits: Limits,
    place: Arc<Place>,
    being_read: AtomicU64,
    /// Keeps the device open.
    _bound: Id,
}

// SAFETY: libibverbs allows all calls on a context from any thread at any time; the struct it points to is not
// written after it was opened.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device that a local address belongs to.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    pub fn for_address(address: IpAddr) -> Result<Arc<Self>, VerbsError> {
        if address.is_loopback() || address.is_unspecified() {
            // The connection manager would pick some device.
            return Err(VerbsError::new("rdma_bind_addr", Reason::System(Errno::NODEV), &Arc::default()));
        }
        let bound = Id::new(&EventChannel::new()?)?;
        bound.bind(SocketAddr::new(address, 0))?;
        let raw = bound.device().ok_or_else(|| {
            VerbsError::new("rdma_bind_addr", Reason::System(Errno::NODEV), &Arc::default())
        })?;
        // SAFETY: `bound` keeps the device open; libibverbs fills `device` and its fields in before it hands a
        // context out and leaves them alone.
        let (name, transport) = unsafe {
            let device = raw.as_ref().device;
            let name = CStr::from_ptr((*device).name.as_ptr()).to_string_lossy().into_owned();
            (name, (*device).transport_type)
        };
        let transport = match transport {
            ibv_transport_type::IBV_TRANSPORT_IB => Transport::InfiniBand,
            ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::Other,
        };
        let port = bound.port();
        let place = Place { device: Some(name), port: Some(port), gid: bound.gid(), ..Place::default() };
        let place = Arc::new(place);
        let limits = Self::query(raw, port, &place)?;
        let being_read = AtomicU64::new(0);
        Ok(Arc::new(Self { raw, address, port, transport, limits, place, being_read, _bound: bound }))
    }

    fn query(raw: NonNull<ibv_context>, port: u8, place: &Arc<Place>) -> Result<Limits, VerbsError> {
        let mut device = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the second argument is a struct of the expected type to be filled in.
        let code = unsafe { ibv_query_device(raw.as_ptr(), device.as_mut_ptr()) };
        VerbsError::check_verb(code, "ibv_query_device", place)?;
        // SAFETY: all of its fields are integers, for which zeros, what it began as, are valid too.
        let device = unsafe { device.assume_init() };
        let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: as for the device.
        let code = unsafe { rdma_sys::___ibv_query_port(raw.as_ptr(), port, attributes.as_mut_ptr()) };
        VerbsError::check_verb(code, "ibv_query_port", place)?;
        // SAFETY: as for the device.
        let attributes = unsafe { attributes.assume_init() };
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let few = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        Ok(Limits {
            completions: count(device.max_cqe),
            requests: count(device.max_qp_wr),
            shared_receives: count(device.max_srq_wr),
            reads_sent: few(device.max_qp_init_rd_atom),
            reads_served: few(device.max_qp_rd_atom),
            message: attributes.max_msg_sz,
            registration: device.max_mr_size,
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Whether an id belongs to the same device.
    #[must_use]
    pub fn is_device_of(&self, id: &Id) -> bool {
        id.device() == Some(self.raw)
    }

    /// The local address that it was opened for.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The device's name.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.place.device.as_deref().unwrap_or_default()
    }

    /// The port that the address belongs to.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The protocol family.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// What the device and the port can do.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes that are on their way to it by RDMA READ, for whoever keeps that within bounds.
    pub(crate) fn being_read(&self) -> &AtomicU64 {
        &self.being_read
    }

    /// Device, port and GID, for errors.
    #[must_use]
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }
}
