//! The connection manager: ids, which become connections, and the channels on which it reports about them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{
    ibv_context, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event, rdma_cm_event_type,
    rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect, rdma_event_channel, rdma_get_cm_event,
    rdma_get_src_port, rdma_listen, rdma_migrate_id, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route, rdma_set_option,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Place, VerbsError};

/// `RDMA_OPTION_ID`, the level of options on an id.
const OPTION_LEVEL_ID: i32 = 0;
/// `RDMA_OPTION_ID_ACK_TIMEOUT`.
const OPTION_ACK_TIMEOUT: i32 = 3;

/// Where the connection manager reports; each id has one.
#[derive(Debug)]
pub struct EventChannel {
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm allows all calls on a channel from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A new channel, which never blocks: wait for its descriptor to become readable.
    ///
    /// # Errors
    /// When the kernel has no connection manager, or no more descriptors.
    pub fn new() -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the call has no arguments.
        let raw = NonNull::new(unsafe { rdma_create_event_channel() })
            .ok_or_else(|| VerbsError::last("rdma_create_event_channel", &Arc::default()))?;
        let channel = Self { raw };
        let nonblocking = rustix::fs::fcntl_getfl(&channel)
            .and_then(|flags| rustix::fs::fcntl_setfl(&channel, flags | OFlags::NONBLOCK));
        nonblocking
            .map_err(|errno| VerbsError::new("fcntl", super::Reason::System(errno), &Arc::default()))?;
        Ok(Arc::new(channel))
    }

    /// The next event, if there is one. It is acknowledged at once, so that ids can be destroyed at any time.
    ///
    /// # Errors
    /// When the kernel refuses, or a connection that was coming up could not be brought to its next state.
    pub fn next_event(self: &Arc<Self>) -> Result<Option<Event>, VerbsError> {
        let mut raw: *mut rdma_cm_event = std::ptr::null_mut();
        // SAFETY: the channel is alive; on success the pointer is set to an event that is ours until acknowledged.
        let code = unsafe { rdma_get_cm_event(self.raw.as_ptr(), &raw mut raw) };
        if code != 0 {
            let error = VerbsError::last("rdma_get_cm_event", &Arc::default());
            return if error.errno() == Some(Errno::AGAIN) { Ok(None) } else { Err(error) };
        }
        // SAFETY: see above; of the union, `conn` is the part for connections, the only ones that we make.
        let event = unsafe { self.read_event(&*raw) };
        // SAFETY: the event came from `rdma_get_cm_event`, and what was in it has been copied.
        unsafe { rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }

    /// # Safety
    /// The event must be one that librdmacm has delivered for an id of `RDMA_PS_TCP`.
    unsafe fn read_event(self: &Arc<Self>, raw: &rdma_cm_event) -> Event {
        let kind = EventKind(raw.event);
        let mut event = Event {
            kind,
            status: raw.status,
            id: IdKey(raw.id as usize),
            request: None,
            private_data: Vec::new(),
            reads_served: 0,
            reads_sent: 0,
        };
        let connects = [EventKind::CONNECT_REQUEST, EventKind::ESTABLISHED, EventKind::REJECTED];
        if connects.contains(&kind) {
            // SAFETY: these events carry connection parameters.
            let parameters = unsafe { raw.param.conn };
            if !parameters.private_data.is_null() && parameters.private_data_len > 0 {
                // SAFETY: the private data are that long, and live until the event is acknowledged.
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        parameters.private_data.cast::<u8>(),
                        usize::from(parameters.private_data_len),
                    )
                };
                event.private_data = bytes.to_vec();
            }
            event.reads_served = parameters.responder_resources;
            event.reads_sent = parameters.initiator_depth;
        }
        if kind == EventKind::CONNECT_REQUEST {
            // A new id, which whoever gets the event owns.
            event.request = NonNull::new(raw.id).map(|raw| Id { raw, channel: Arc::clone(self) });
        }
        event
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: librdmacm does not write the struct after it was made.
        unsafe { self.raw.as_ref().fd }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: ids hold an `Arc` of their channel, so none is left on it; all events were acknowledged.
        unsafe { rdma_destroy_event_channel(self.raw.as_ptr()) }
    }
}

/// What kind of event was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind(rdma_cm_event_type::Type);

impl EventKind {
    /// The address has been resolved to a device.
    pub const ADDRESS_RESOLVED: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED);
    /// The route has been resolved.
    pub const ROUTE_RESOLVED: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED);
    /// A peer asks for a connection.
    pub const CONNECT_REQUEST: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST);
    /// The connection is up.
    pub const ESTABLISHED: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED);
    /// The peer does not want it.
    pub const REJECTED: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_REJECTED);
    /// The connection has ended.
    pub const DISCONNECTED: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED);
    /// The device has gone.
    pub const DEVICE_REMOVED: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL);
    /// The number of a queue pair that has ended may be used again.
    pub const TIMEWAIT_EXIT: Self = Self(rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT);

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// What the connection manager reports.
#[derive(Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// An error number, or what the peer gave as reason.
    pub status: i32,
    /// To which id.
    pub id: IdKey,
    /// With [`EventKind::CONNECT_REQUEST`]: the connection to accept or reject.
    pub request: Option<Id>,
    /// What the peer said when it asked, accepted or rejected; possibly padded with zeros.
    pub private_data: Vec<u8>,
    /// RDMA READs that this side is asked to serve at a time.
    pub reads_served: u8,
    /// RDMA READs that the peer serves at a time.
    pub reads_sent: u8,
}

/// Tells ids apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(usize);

/// What the two sides tell their devices when they connect.
#[derive(Clone, Debug)]
pub struct ConnectParameters<'a> {
    /// Goes to the peer: at most 56 bytes from the connecting side.
    pub private_data: &'a [u8],
    /// RDMA READs that this side serves at a time.
    pub reads_served: u8,
    /// RDMA READs that this side has on their way at a time.
    pub reads_sent: u8,
    /// How often a packet is sent again that is not acknowledged: at most 6, because some devices take 7 for
    /// ever.
    pub retries: u8,
    /// How often is tried again when the peer has no receive request.
    pub not_ready_retries: u8,
}

impl ConnectParameters<'_> {
    /// Most private data in bytes that the connecting side can send on every transport.
    pub const MOST_PRIVATE_DATA: usize = 56;
    /// Most retries that end on every device.
    pub const MOST_RETRIES: u8 = 6;

    fn raw(&self) -> rdma_conn_param {
        assert!(self.private_data.len() <= Self::MOST_PRIVATE_DATA && self.retries <= Self::MOST_RETRIES);
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.reads_served,
            initiator_depth: self.reads_sent,
            flow_control: 0,
            retry_count: self.retries,
            rnr_retry_count: self.not_ready_retries.min(7),
            srq: 0,
            qp_num: 0,
        }
    }
}

/// An id of the connection manager: a listener, or a connection with its queue pair.
#[derive(Debug)]
pub struct Id {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm guards an id's state by a lock of its own; what it leaves unguarded (the struct's fields) changes
// only in calls that take `&mut self` or are answered by an event, which one task waits for.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    /// A new id for reliable connections.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self, VerbsError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is alive, and the second argument is where the id goes.
        let code = unsafe {
            rdma_create_id(
                channel.raw.as_ptr(),
                &raw mut raw,
                std::ptr::null_mut(),
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        VerbsError::check_manager(code, "rdma_create_id", &Arc::default())?;
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("rdma_create_id", &Arc::default()))?;
        Ok(Self { raw, channel: Arc::clone(channel) })
    }

    pub(super) fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Tells it apart from others.
    #[must_use]
    pub fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr() as usize)
    }

    /// Where it reports.
    #[must_use]
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    pub(super) fn device(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the id is alive; the field is set when an address is bound or resolved.
        NonNull::new(unsafe { self.raw.as_ref().verbs })
    }

    pub(super) fn port(&self) -> u8 {
        // SAFETY: the id is alive.
        unsafe { self.raw.as_ref().port_num }
    }

    /// The GID that it sends from, once there is a device.
    #[must_use]
    pub fn gid(&self) -> Option<Ipv6Addr> {
        self.device()?;
        // SAFETY: the id is alive and bound, which is when librdmacm has filled its addresses in; a GID is 16 bytes.
        let raw = unsafe { self.raw.as_ref().route.addr.addr.ibaddr.sgid.raw };
        Some(Ipv6Addr::from(raw))
    }

    /// The peer's address, once it is known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive; its address family says which part of the union is valid, and the port's bytes are in
        // network order.
        unsafe {
            let address = &self.raw.as_ref().route.addr.dst_addr_union;
            match i32::from(address.dst_addr.sa_family) {
                libc::AF_INET => {
                    let address = address.dst_sin;
                    let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
                    Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(address.sin_port)))
                }
                libc::AF_INET6 => {
                    let address = address.dst_sin6;
                    let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                    Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(address.sin6_port)))
                }
                _ => None,
            }
        }
    }

    /// All that is known of where it is.
    #[must_use]
    pub fn place(&self, context: Option<&Place>) -> Place {
        Place { peer: self.peer(), ..context.cloned().unwrap_or_default() }
    }

    fn check(&self, code: i32, verb: &'static str) -> Result<(), VerbsError> {
        VerbsError::check_manager(code, verb, &Arc::new(self.place(None)))
    }

    /// Binds it to a local address, and so to a device.
    ///
    /// # Errors
    /// When the address belongs to no RDMA device, or the port is taken.
    pub fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let mut raw = RawAddress::new(address);
        // SAFETY: the id is alive and the address is of the family that it says.
        let code = unsafe { rdma_bind_addr(self.raw.as_ptr(), raw.as_mut_ptr()) };
        self.check(code, "rdma_bind_addr")
    }

    /// Listens for connections.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        // SAFETY: the id is alive.
        self.check(unsafe { rdma_listen(self.raw.as_ptr(), backlog) }, "rdma_listen")
    }

    /// The local port that it is bound to.
    #[must_use]
    pub fn local_port(&self) -> u16 {
        // SAFETY: the id is alive.
        u16::from_be(unsafe { rdma_get_src_port(self.raw.as_ptr()) })
    }

    /// Begins to find the device for a destination; [`EventKind::ADDRESS_RESOLVED`] ends it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resolve_address(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let mut source = from.map(|from| RawAddress::new(SocketAddr::new(from, 0)));
        let mut destination = RawAddress::new(to);
        // SAFETY: the id is alive and both addresses are of the family that they say, or null.
        let code = unsafe {
            rdma_resolve_addr(
                self.raw.as_ptr(),
                source.as_mut().map_or(std::ptr::null_mut(), RawAddress::as_mut_ptr),
                destination.as_mut_ptr(),
                milliseconds(timeout),
            )
        };
        self.check(code, "rdma_resolve_addr")
    }

    /// Begins to find the route; [`EventKind::ROUTE_RESOLVED`] ends it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        // SAFETY: the id is alive.
        let code = unsafe { rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) };
        self.check(code, "rdma_resolve_route")
    }

    /// How long the device waits for an acknowledgement before it sends again: 4.096 µs times two to this power.
    /// Without it, the connection manager guesses, and guesses seconds.
    ///
    /// # Errors
    /// When the kernel is too old to know the option, which harms nothing but the time that death takes to notice.
    pub fn set_ack_timeout(&self, power: u8) -> Result<(), VerbsError> {
        let mut value = power;
        // SAFETY: the id is alive and the option is one byte.
        let code = unsafe {
            rdma_set_option(
                self.raw.as_ptr(),
                OPTION_LEVEL_ID,
                OPTION_ACK_TIMEOUT,
                (&raw mut value).cast(),
                size_of::<u8>(),
            )
        };
        self.check(code, "rdma_set_option")
    }

    /// Asks the peer for a connection; [`EventKind::ESTABLISHED`] ends it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), VerbsError> {
        let mut raw = parameters.raw();
        // SAFETY: the id is alive; the parameters point to private data of the length that they say, which is copied.
        self.check(unsafe { rdma_connect(self.raw.as_ptr(), &raw mut raw) }, "rdma_connect")
    }

    /// Accepts a connection that a peer asked for; [`EventKind::ESTABLISHED`] ends it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), VerbsError> {
        let mut raw = parameters.raw();
        // SAFETY: as for `connect`.
        self.check(unsafe { rdma_accept(self.raw.as_ptr(), &raw mut raw) }, "rdma_accept")
    }

    /// Rejects a connection that a peer asked for.
    ///
    /// # Errors
    /// When the kernel refuses, for example because the peer has given up.
    pub fn reject(&self) -> Result<(), VerbsError> {
        // SAFETY: the id is alive, and no private data are passed.
        self.check(unsafe { rdma_reject(self.raw.as_ptr(), std::ptr::null(), 0) }, "rdma_reject")
    }

    /// Ends the connection: the queue pair fails, and the peer is told.
    ///
    /// # Errors
    /// When it is not up.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        // SAFETY: the id is alive.
        self.check(unsafe { rdma_disconnect(self.raw.as_ptr()) }, "rdma_disconnect")
    }

    /// Lets it report on another channel from now on; events that nobody has taken yet move along.
    ///
    /// # Errors
    /// When the kernel refuses; then it stays where it was.
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<(), VerbsError> {
        // SAFETY: id and channel are alive. The call waits for events that were taken to be acknowledged, and they are as
        // soon as they are taken.
        let code = unsafe { rdma_migrate_id(self.raw.as_ptr(), channel.raw.as_ptr()) };
        self.check(code, "rdma_migrate_id")?;
        self.channel = Arc::clone(channel);
        Ok(())
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: a queue pair holds its id, so it is gone already; the channel is still there; all events that were
        // taken have been acknowledged.
        unsafe { rdma_destroy_id(self.raw.as_ptr()) };
    }
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// A socket address as C wants it.
enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddress {
    fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(address) => (&raw mut *address).cast(),
            Self::V6(address) => (&raw mut *address).cast(),
        }
    }
}
