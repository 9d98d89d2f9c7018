//! The server: services on one address, over every link.

mod call;
mod connection;
mod excess;
mod handler;
mod handshakes;
mod lane;
mod listen;
mod pace;
mod serving;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ringmail_transport::bootstrap::{Acceptor, LinkPolicy, Settings};
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::ring::RingSize;
use tokio::net::TcpListener;
use tokio::sync::Notify;

pub use self::call::{Handling, PeerAddr, ServerCall};
use self::connection::Connection;
use self::handshakes::Handshakes;
use self::listen::listen;
use self::pace::Pace;
use self::serving::Serving;
use crate::address::Address;
use crate::codegen::Service;
use crate::error::ServeError;
use crate::wait::Wait;

/// Handshakes under way at a time, unless the server is told otherwise.
const MAX_HANDSHAKES: usize = 1024;

/// Serves generated services. Begin with [`Server::builder`].
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A builder with the default settings.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            services: Vec::new(),
            address: None,
            settings: Settings::default(),
            ring_bytes: RingSize::DEFAULT.bytes(),
            wait: Wait::default(),
            lanes: None,
            connect_info: false,
            grace: Duration::from_secs(10),
            max_handshakes: MAX_HANDSHAKES,
        }
    }
}

/// What a server will be.
pub struct ServerBuilder {
    services: Vec<Arc<dyn Service>>,
    address: Option<String>,
    settings: Settings,
    ring_bytes: usize,
    wait: Wait,
    lanes: Option<usize>,
    connect_info: bool,
    grace: Duration,
    max_handshakes: usize,
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.services.iter().map(|service| service.descriptor().name).collect();
        f.debug_struct("ServerBuilder")
            .field("services", &names)
            .field("address", &self.address)
            .field("settings", &self.settings)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Adds a service: a generated `GreeterServer::new(MyGreeter)`.
    #[must_use]
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Where to listen: `ringmail://0.0.0.0:7400`. Port 0 lets the kernel choose; see [`BoundServer::local_addr`].
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// How to wait for requests. Default: [`Wait::Adaptive`].
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Whether a kind of link may be used. Default: [`LinkPolicy::Prefer`] for all.
    #[must_use]
    pub fn link(mut self, kind: LinkKind, policy: LinkPolicy) -> Self {
        self.settings.links = self.settings.links.with(kind, policy);
        self
    }

    /// Size of each connection's rings in bytes, a power of two from 16 KiB to 64 MiB. Default: 256 KiB. A client that
    /// asks for less gets less.
    #[must_use]
    pub fn ring_size(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Largest request in bytes. Default: 64 MiB. Beyond it calls end with RESOURCE_EXHAUSTED.
    #[must_use]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.settings.max_message_bytes = bytes as u64;
        self
    }

    /// Most calls in progress on one connection. Default: 4,096. Clients wait before they exceed it.
    #[must_use]
    pub fn max_calls_per_connection(mut self, calls: u32) -> Self {
        self.settings.max_calls = calls;
        self
    }

    /// Bound on the handshake of a new connection. Default: 5 s.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How long a client's host may be silent before its connection is given up and its calls are cancelled; `None` for ever.
    /// Default: 20 s. See [`ChannelBuilder::keepalive`](crate::ChannelBuilder::keepalive).
    #[must_use]
    pub fn keepalive(mut self, silence: Option<Duration>) -> Self {
        self.settings.keepalive = silence;
        self
    }

    /// Most handshakes under way at a time. Default: 1,024. One more, and the oldest gives way.
    #[must_use]
    pub fn max_handshakes(mut self, handshakes: usize) -> Self {
        self.max_handshakes = handshakes;
        self
    }

    /// Number of lanes: tasks (threads with [`Wait::Busy`]) that share the connections. Default: half the processors.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes.max(1));
        self
    }

    /// Whether requests carry a [`PeerAddr`] in their extensions. Default: off, since it costs allocations per call.
    #[must_use]
    pub fn connect_info(mut self, on: bool) -> Self {
        self.connect_info = on;
        self
    }

    /// Whether frame headers carry a CRC-32C. Default: off; the links check their bytes themselves. On when either
    /// side asks for it.
    #[must_use]
    pub fn header_check(mut self, on: bool) -> Self {
        self.settings.header_check = on;
        self
    }

    /// Whether RDMA writes may carry their notifications, where the devices of both sides can. Default: on. Off, each is
    /// followed by a message of four bytes, as on devices that cannot.
    #[must_use]
    pub fn rdma_immediates(mut self, on: bool) -> Self {
        self.settings.immediates = on;
        self
    }

    /// Whether large messages are read out of their sender's memory by RDMA READ, where the devices of both sides can. Default:
    /// on. Off, they travel in fragments through the rings.
    #[must_use]
    pub fn rdma_reads(mut self, on: bool) -> Self {
        self.settings.reads = on;
        self
    }

    /// How long calls in progress may take to finish on shutdown. Default: 10 s.
    #[must_use]
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Listens, without serving yet.
    ///
    /// # Errors
    /// When the address is unusable, or the services do not fit together.
    pub async fn bind(mut self) -> Result<BoundServer, ServeError> {
        self.settings.ring = RingSize::new(self.ring_bytes)?;
        self.settings.max_fragmented_bytes = fragmented_bytes(self.settings.max_message_bytes);
        let address = Address::parse(self.address.as_deref().ok_or(ServeError::NoAddress)?)?;
        let methods = methods(&self.services)?;
        let (listener, local) = listen(&address).await?;
        let shm = match (self.settings.links.shm, ShmListener::bind()) {
            (LinkPolicy::Off, _) => None,
            (_, Ok(shm)) => Some(shm),
            (LinkPolicy::Require, Err(error)) => return Err(ServeError::Shm(error.to_string())),
            (LinkPolicy::Prefer, Err(error)) => {
                tracing::warn!(%error, "shared memory cannot be offered");
                None
            }
        };
        let names = methods
            .iter()
            .map(|Method { service, method, .. }| {
                self.services[*service].descriptor().methods[*method].path.to_owned()
            })
            .collect();
        let shared = Arc::new(Shared {
            services: self.services,
            methods,
            max_message_bytes: self.settings.max_message_bytes as usize,
            max_fragmented_bytes: self.settings.max_fragmented_bytes,
            max_calls: self.settings.max_calls as usize,
            wait: self.wait,
            connect_info: self.connect_info,
            runtime: tokio::runtime::Handle::current(),
            connections: Mutex::default(),
            ended: Notify::new(),
        });
        let (shm, shm_socket) = shm.unzip();
        let acceptor = Arc::new(Acceptor::new(self.settings, names, shm));
        let lanes = self.lanes.unwrap_or_else(default_lanes);
        Ok(BoundServer {
            listener,
            local,
            shared,
            acceptor,
            shm_socket,
            lanes,
            grace: self.grace,
            max_handshakes: self.max_handshakes,
        })
    }

    /// Listens and serves until the future is dropped.
    ///
    /// # Errors
    /// As [`ServerBuilder::bind`].
    pub async fn serve(self) -> Result<(), ServeError> {
        self.bind().await?.serve().await
    }

    /// Listens and serves until `shutdown` is ready, then lets calls in progress finish.
    ///
    /// # Errors
    /// As [`ServerBuilder::bind`].
    pub async fn serve_with_shutdown(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        self.bind().await?.serve_with_shutdown(shutdown).await
    }
}

/// Bytes of requests in fragments that may be on their way on one connection: a few of the largest.
fn fragmented_bytes(max_message_bytes: u64) -> u64 {
    max_message_bytes.saturating_mul(4).max(64 * 1024 * 1024)
}

fn default_lanes() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

fn methods(services: &[Arc<dyn Service>]) -> Result<Vec<Method>, ServeError> {
    let mut methods = Vec::new();
    let mut names = HashMap::new();
    for (index, service) in services.iter().enumerate() {
        let descriptor = service.descriptor();
        if names.insert(descriptor.name, index).is_some() {
            return Err(ServeError::DuplicateService(descriptor.name));
        }
        let indices = 0..descriptor.methods.len();
        methods.extend(indices.map(|method| Method { service: index, method, pace: Pace::default() }));
    }
    if methods.len() > usize::from(u16::MAX) {
        return Err(ServeError::TooManyMethods(methods.len()));
    }
    Ok(methods)
}

/// Where a method is found, and how long its handlers take.
#[derive(Debug)]
struct Method {
    service: usize,
    method: usize,
    pace: Pace,
}

/// What all connections of a server share.
pub(crate) struct Shared {
    services: Vec<Arc<dyn Service>>,
    /// By the index in requests.
    methods: Vec<Method>,
    max_message_bytes: usize,
    max_fragmented_bytes: u64,
    max_calls: usize,
    wait: Wait,
    connect_info: bool,
    /// Where handlers run that are not ready at once.
    runtime: tokio::runtime::Handle,
    connections: Mutex<Vec<Weak<Connection>>>,
    /// Notified when a connection has ended.
    ended: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("methods", &self.methods.len()).finish_non_exhaustive()
    }
}

impl Shared {
    fn connection_ended(&self, connection: &Arc<Connection>) {
        self.connections.lock().retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(connection)));
        self.ended.notify_waiters();
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct BoundServer {
    listener: TcpListener,
    local: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Arc<Acceptor>,
    shm_socket: Option<tokio::net::UnixListener>,
    lanes: usize,
    grace: Duration,
    max_handshakes: usize,
}

impl BoundServer {
    /// The address that it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Breaks the RDMA connections under those that there are whenever it is called, as a fault would. For tests.
    #[doc(hidden)]
    pub fn rdma_severer(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            for connection in shared.connections.lock().iter().filter_map(Weak::upgrade) {
                if let Some(link) = connection.endpoint.switching_link() {
                    link.sever();
                }
            }
        }
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// When a polling thread cannot be started.
    pub async fn serve(self) -> Result<(), ServeError> {
        self.serve_with_shutdown(std::future::pending()).await
    }

    /// Serves until `shutdown` is ready, then tells the clients, lets calls in progress finish for a bounded time, and
    /// closes.
    ///
    /// # Errors
    /// When a polling thread cannot be started.
    pub async fn serve_with_shutdown(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self { listener, local, shared, acceptor, shm_socket, lanes, grace, max_handshakes } = self;
        let mut serving = Serving::new(&shared);
        serving.start_lanes(lanes)?;
        if let (Some(shm), Some(socket)) = (&acceptor.shm, shm_socket) {
            serving.tasks.spawn(Arc::clone(shm).run(socket, acceptor.settings.timeout));
        }
        tracing::info!(address = %local, "serving");
        tokio::pin!(shutdown);
        tokio::select! {
            () = &mut shutdown => {}
            () = serving.accept(&listener, &acceptor, Handshakes::new(max_handshakes)) => {}
        }
        drop(listener);
        tracing::info!(address = %local, "shutting down");
        serving.drain(grace).await;
        Ok(())
    }
}
