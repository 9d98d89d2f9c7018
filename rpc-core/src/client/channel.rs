//! Channels: what clients call through. A channel has one connection at a time and makes a new one when that is lost.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use ringmail_transport::bootstrap::{self, BootstrapError, LinkPolicy, Refusal, Settings};
use ringmail_transport::link::switching::History;
use ringmail_transport::link::{DeviceCounts, LinkKind};
use ringmail_transport::ring::RingSize;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};
use tonic::Status;

use super::connection::Connection;
use super::driver;
use crate::address::Address;
use crate::error::{ConnectError, not_connected};
use crate::wait::Wait;
use crate::watch;

/// Pause after the first failed attempt to connect; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// Longest pause between attempts.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// A connection to a server that re-establishes itself. Cheap to clone; clones share the connection.
///
/// A connection lives on the tokio runtime of the call that made it, or, when that was made outside of any, on the
/// runtime of the connection before or of the channel's builder. Calls may come from anywhere.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    wait: Wait,
    timeout: Option<Duration>,
    /// The runtime that the channel was made on, if any.
    made_on: Option<Handle>,
    current: ArcSwapOption<Connection>,
    /// Held while connecting, so that many calls make one attempt.
    connecting: tokio::sync::Mutex<Backoff>,
}

#[derive(Debug)]
struct Target {
    address: Address,
    settings: Settings,
}

/// When the next attempt may be made, and why the last one failed.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
    until: Option<Instant>,
    last: Option<Status>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("target", &self.shared.target)
            .field("wait", &self.shared.wait)
            .finish()
    }
}

impl Channel {
    /// Connects to `ringmail://host:port` with the default settings.
    ///
    /// # Errors
    /// When nobody is there, or it is not a Ringmail server.
    pub async fn connect(address: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder(address).connect().await
    }

    /// A builder for a channel to `ringmail://host:port`.
    pub fn builder(address: impl Into<String>) -> ChannelBuilder {
        ChannelBuilder {
            address: address.into(),
            settings: Settings::default(),
            ring_bytes: RingSize::DEFAULT.bytes(),
            wait: Wait::default(),
            timeout: None,
        }
    }

    /// Which link the channel runs on at present, and why not on a better one. RDMA comes up while calls run on TCP already.
    #[must_use]
    pub fn link_info(&self) -> LinkInfo {
        let current = self.shared.current.load();
        let Some(connection) = current.as_ref().filter(|connection| connection.endpoint.failure().is_none())
        else {
            return LinkInfo {
                address: self.shared.target.address.to_string(),
                kind: None,
                peer: None,
                software: String::new(),
                ring_bytes: 0,
                refusals: Vec::new(),
                history: None,
                device: None,
            };
        };
        let kind = connection.endpoint.link_kind();
        let history = connection.endpoint.switching_link().map(|link| link.history());
        let mut refusals = connection.refusals.clone();
        if let Some(history) = &history
            && kind == LinkKind::Tcp
        {
            let reason = history.reason.clone().unwrap_or_else(|| "it is coming up".to_owned());
            refusals.push(Refusal { kind: LinkKind::Rdma, reason });
        }
        LinkInfo {
            address: self.shared.target.address.to_string(),
            kind: Some(kind),
            peer: Some(connection.peer),
            software: connection.software.clone(),
            ring_bytes: connection.endpoint.staging().size().bytes(),
            refusals,
            history,
            device: connection.endpoint.device_counts(),
        }
    }

    /// Breaks the RDMA connection under the channel, as a fault would. For tests.
    #[doc(hidden)]
    pub fn sever_rdma(&self) {
        if let Some(connection) = &*self.shared.current.load()
            && let Some(link) = connection.endpoint.switching_link()
        {
            link.sever();
        }
    }

    /// Whether the caller is on the runtime of the connection, whose timers are known to work.
    pub(super) fn runs_here(&self) -> bool {
        let current = self.shared.current.load();
        current.as_ref().is_some_and(|connection| {
            Handle::try_current().is_ok_and(|here| here.id() == connection.runtime.id())
        })
    }

    pub(super) fn default_timeout(&self) -> Option<Duration> {
        self.shared.timeout
    }

    /// The connection for a new call, made if need be.
    pub(super) async fn ready(&self) -> Result<Arc<Connection>, Status> {
        if let Some(connection) = &*self.shared.current.load()
            && connection.is_usable()
        {
            return Ok(Arc::clone(connection));
        }
        self.shared.reconnect().await
    }
}

impl Shared {
    async fn reconnect(self: &Arc<Self>) -> Result<Arc<Connection>, Status> {
        let mut backoff = self.connecting.lock().await;
        if let Some(connection) = &*self.current.load()
            && connection.is_usable()
        {
            return Ok(Arc::clone(connection));
        }
        let now = Instant::now();
        if let (Some(until), Some(last)) = (backoff.until, &backoff.last)
            && now < until
        {
            let left = until - now;
            return Err(Status::new(
                last.code(),
                format!("{} (next attempt in {} ms)", last.message(), left.as_millis()),
            ));
        }
        match self.connect().await {
            Ok(connection) => {
                *backoff = Backoff::default();
                Ok(connection)
            }
            Err(error) => {
                let status = not_connected(&error);
                tracing::warn!(address = %self.target.address, %error, "connecting failed");
                // Where the next call comes from there may be a runtime to connect on.
                if !matches!(error, ConnectError::NoRuntime | ConnectError::Runtime { .. }) {
                    backoff.fail(status.clone());
                }
                Err(status)
            }
        }
    }

    /// The runtime to connect on.
    fn runtime(&self) -> Option<Handle> {
        let last = || self.current.load().as_ref().map(|connection| connection.runtime.clone());
        Handle::try_current().ok().or_else(last).or_else(|| self.made_on.clone())
    }

    /// Makes a connection, in a task of its own: the caller may be outside of any runtime, and what its runtime lacks ends
    /// the task alone.
    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, ConnectError> {
        let runtime = self.runtime().ok_or(ConnectError::NoRuntime)?;
        let shared = Arc::clone(self);
        // Dropped with the call that waits for it, it ends the task.
        let mut tasks = JoinSet::new();
        let attempt = async move {
            let connection = shared.establish().await?;
            // In the task: from here on nobody else may know of it.
            shared.current.store(Some(Arc::clone(&connection)));
            Ok(connection)
        };
        tasks.spawn_on(attempt, &runtime);
        match tasks.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(error)) => Err(ConnectError::Runtime { reason: why_not(error) }),
            None => unreachable!("a task was spawned"),
        }
    }

    async fn establish(&self) -> Result<Arc<Connection>, ConnectError> {
        let Target { address, settings } = &self.target;
        let addresses = tokio::time::timeout(settings.timeout, address.resolve()).await.map_err(|_| {
            BootstrapError::TimedOut {
                peer: address.to_string(),
                timeout: settings.timeout,
                step: "resolving its name",
            }
        })??;
        let mut last = None;
        for peer in addresses {
            match bootstrap::connect(peer, settings).await {
                Ok(mut established) => {
                    let watched = established.watch.take();
                    let connection =
                        Arc::new(Connection::new(established, self.wait, settings.max_message_bytes));
                    if let Some(socket) = watched {
                        let weak = Arc::downgrade(&connection);
                        let ended = Arc::clone(&connection.ended);
                        tokio::spawn(async move {
                            let why = watch::until_gone(&socket, &ended).await;
                            if let Some(connection) = weak.upgrade() {
                                connection.lost(why).await;
                            }
                        });
                    }
                    tokio::spawn(tokio::task::unconstrained(driver::drive(Arc::clone(&connection))));
                    return Ok(connection);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(
            || {
                crate::AddressError::Unresolved { address: address.to_string(), reason: "no address".into() }
                    .into()
            },
            ConnectError::from,
        ))
    }
}

/// Why a task did not end by itself.
fn why_not(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it has shut down".to_owned() };
    // tokio's own words: what is disabled, and what enables it.
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("connecting panicked").to_owned()
}

impl Backoff {
    fn fail(&mut self, status: Status) {
        let pause = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(LONGEST_BACKOFF);
        // Jitter of half either way, so that many clients of a server that comes back do not come at once.
        let jittered = pause.mul_f64(0.5 + fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + jittered);
        self.last = Some(status);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(connection) = self.current.swap(None) {
            connection.close("the channel was dropped");
        }
    }
}

/// Settings of a channel.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ChannelBuilder {
    address: String,
    settings: Settings,
    ring_bytes: usize,
    wait: Wait,
    timeout: Option<Duration>,
}

impl ChannelBuilder {
    /// How to wait for responses. Default: [`Wait::Adaptive`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Whether a kind of link may be used. Default: [`LinkPolicy::Prefer`] for all.
    pub fn link(mut self, kind: LinkKind, policy: LinkPolicy) -> Self {
        self.settings.links = self.settings.links.with(kind, policy);
        self
    }

    /// Size of the rings in bytes, a power of two from 16 KiB to 64 MiB. Default: 256 KiB. A server that allows less
    /// gives less.
    pub fn ring_size(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Bound on making a connection, name resolution and handshake each. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How long the server's host may be silent before the connection is given up, calls ending with UNAVAILABLE; `None` for
    /// ever. Default: 20 s; below 3 s it takes up to a second longer. The kernel watches over it with TCP's keepalive probes
    /// and TCP_USER_TIMEOUT, so a TCP connection also ends when the server's process takes nothing of what it is sent for that
    /// long. Over shared memory there is no such bound: the end of a process on the same host is noticed at once.
    pub fn keepalive(mut self, silence: Option<Duration>) -> Self {
        self.settings.keepalive = silence;
        self
    }

    /// Time-out of calls whose request does not set one. Default: none.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Largest response in bytes. Default: 64 MiB. Beyond it calls end with RESOURCE_EXHAUSTED.
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.settings.max_message_bytes = bytes as u64;
        self
    }

    /// Whether RDMA writes may carry their notifications, where the devices of both sides can. Default: on. Off, each is
    /// followed by a message of four bytes, as on devices that cannot.
    pub fn rdma_immediates(mut self, on: bool) -> Self {
        self.settings.immediates = on;
        self
    }

    /// Whether large messages are read out of their sender's memory by RDMA READ, where the devices of both sides can. Default:
    /// on. Off, they travel in fragments through the rings.
    pub fn rdma_reads(mut self, on: bool) -> Self {
        self.settings.reads = on;
        self
    }

    /// How long about, after RDMA was lost or did not come up, calls stay on TCP before it is tried again; twice as long
    /// after each time that it did not last. Default: 10 s.
    pub fn rdma_settle_time(mut self, settle: Duration) -> Self {
        self.settings.settle = settle;
        self
    }

    /// Whether frame headers carry a CRC-32C. Default: off. On when either side asks for it.
    pub fn header_check(mut self, on: bool) -> Self {
        self.settings.header_check = on;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// When nobody is there, or it is not a Ringmail server.
    pub async fn connect(self) -> Result<Channel, ConnectError> {
        let channel = self.build()?;
        channel.shared.connect().await?;
        Ok(channel)
    }

    /// A channel that connects when it is first used. Made within a tokio runtime, it can be used outside of one as well.
    ///
    /// # Errors
    /// When the address or the ring size is not possible.
    pub fn connect_lazy(self) -> Result<Channel, ConnectError> {
        self.build()
    }

    fn build(mut self) -> Result<Channel, ConnectError> {
        self.settings.ring = RingSize::new(self.ring_bytes)?;
        let target = Target { address: Address::parse(&self.address)?, settings: self.settings };
        Ok(Channel {
            shared: Arc::new(Shared {
                target,
                wait: self.wait,
                timeout: self.timeout,
                made_on: Handle::try_current().ok(),
                current: ArcSwapOption::empty(),
                connecting: tokio::sync::Mutex::default(),
            }),
        })
    }
}

/// Which link a channel runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// The address that the channel was made for.
    pub address: String,
    /// The link in use; `None` while there is no connection.
    pub kind: Option<LinkKind>,
    /// The server's socket address.
    pub peer: Option<SocketAddr>,
    /// The server's software, as it says itself.
    pub software: String,
    /// Size of each ring in bytes.
    pub ring_bytes: usize,
    /// Better links that are not used at present, and why.
    pub refusals: Vec<Refusal>,
    /// How often RDMA has taken over from TCP on this connection, was lost, and has not come up; `None` where it was not to
    /// be had, or is required.
    pub history: Option<History>,
    /// What the connection has asked of its RDMA device since RDMA last came up; `None` over other links.
    pub device: Option<DeviceCounts>,
}

impl fmt::Display for LinkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.peer) {
            (Some(kind), Some(peer)) => write!(f, "{kind} to {peer} ({})", self.software)?,
            _ => write!(f, "not connected to {}", self.address)?,
        }
        for refusal in &self.refusals {
            write!(f, "; no {refusal}")?;
        }
        Ok(())
    }
}
