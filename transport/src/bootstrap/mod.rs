//! How a connection comes up: HELLO both ways, the choice of a link, and what is said when one is refused.
//!
//! ```text
//!   client                                                server
//!   TCP connect ─────────────────────────────────────────▶ accept
//!   magic, Hello {version range, limits, host} ──────────▶ check
//!   ◀───────────────── magic, Hello {…, methods, offers or refusals}
//!   (shm: unix socket, token, credentials, descriptors both ways)
//!   (rdma, if it is required: Choice {attempt}, RdmaAnswer, then the connection manager's handshake)
//!   Choice {link, refusals} ─────────────────────────────▶
//!   ◀───────────────────────── frames, on the chosen link ────────────▶
//! ```
//!
//! RDMA takes tens of milliseconds to come up. Where calls may run on TCP they begin there, and it takes over when it is up:
//! see the private module `upgrade`.
//!
//! Every step is under one time-out. Until the peer has said something valid it costs a few hundred bytes; a
//! message is at most [`hello::MESSAGE_LIMIT`] bytes. The TCP connection stays open whatever the link: its end is
//! how each side learns at once that the other process has died.

mod client;
#[cfg(feature = "rdma")]
mod devices;
pub mod hello;
mod hint;
mod keepalive;
mod policy;
#[cfg(feature = "rdma")]
mod rdma;
mod server;
mod stranger;
#[cfg(feature = "rdma")]
mod upgrade;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

pub use self::client::connect;
use self::hello::{Hello, Stranger, VERSION_MAX, VERSION_MIN};
pub use self::policy::{LinkPolicies, LinkPolicy, Refusal};
#[cfg(feature = "rdma")]
pub use self::rdma::RdmaHost;
pub use self::server::Acceptor;
use crate::endpoint::{Agreed, Endpoint};
use crate::frame::Check;
use crate::link::shm::{self, ShmLink};
#[cfg(feature = "rdma")]
use crate::link::switching::SwitchingLink;
use crate::link::tcp::TcpLink;
use crate::link::{Link, LinkKind};
use crate::memory::{MemoryError, Region};
use crate::ring::{InvalidRingSize, Mailbox, RingSize, Staging};

/// What one side wants of a connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ring size; the smaller of the two sides' is used.
    pub ring: RingSize,
    /// Largest message that this side accepts, in bytes.
    pub max_message_bytes: u64,
    /// Most calls at a time that this side accepts.
    pub max_calls: u32,
    /// Bytes of requests in fragments that this side, as a server, accepts to be on their way on a connection.
    pub max_fragmented_bytes: u64,
    /// Which links may be used.
    pub links: LinkPolicies,
    /// Whether frame headers carry a check; on when either side wants it.
    pub header_check: bool,
    /// Bound on the whole bootstrap.
    pub timeout: Duration,
    /// How long the peer's host may be silent on a connection whose link leaves this host; `None` for ever.
    pub keepalive: Option<Duration>,
    /// Whether RDMA writes may carry their notifications, where both devices can. Without, each is followed by a message
    /// of four bytes, as on devices that cannot.
    pub immediates: bool,
    /// Whether large messages are read out of the sender's memory by RDMA READ, where both devices can. Without, they travel
    /// in fragments.
    pub reads: bool,
    /// How long a client waits before it tries RDMA again for a connection that goes on over TCP, about; twice as long
    /// after each time that it did not last.
    pub settle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ring: RingSize::DEFAULT,
            max_message_bytes: 64 * 1024 * 1024,
            max_calls: 4096,
            max_fragmented_bytes: 256 * 1024 * 1024,
            links: LinkPolicies::default(),
            header_check: false,
            timeout: Duration::from_secs(5),
            keepalive: Some(keepalive::DEFAULT),
            immediates: true,
            reads: true,
            settle: Duration::from_secs(10),
        }
    }
}

/// Why a connection did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The address could not be reached.
    #[error("cannot connect to {peer}: {source}; {}", hint::unreachable(.source))]
    Unreachable {
        /// The address tried.
        peer: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The peer did not finish in time.
    #[error("{peer} did not finish the handshake within {timeout:?}: {step}")]
    TimedOut {
        /// The peer's address.
        peer: String,
        /// The bound.
        timeout: Duration,
        /// What was waited for.
        step: &'static str,
    },
    /// The connection broke on the way.
    #[error("{peer} closed the connection or it broke while {step}: {source}")]
    Broken {
        /// The peer's address.
        peer: String,
        /// What was being done.
        step: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// Whoever is there speaks another protocol.
    #[error("{peer} speaks {protocol}, not the Ringmail protocol; {}", .protocol.hint())]
    Stranger {
        /// The peer's address.
        peer: String,
        /// What it seems to speak.
        protocol: Stranger,
    },
    /// Whoever is there sends back what it is sent.
    #[error(
        "{peer} sends back what it is sent: it is an echo service, or this client was connected to itself because nobody listens there; check that the server runs"
    )]
    Mirror {
        /// The peer's address.
        peer: String,
    },
    /// No common protocol version.
    #[error(
        "{peer} ({software}) speaks protocol versions {theirs_min} to {theirs_max}, this side {VERSION_MIN} to {VERSION_MAX}; upgrade the older one"
    )]
    Version {
        /// The peer's address.
        peer: String,
        /// The peer's software.
        software: String,
        /// Its oldest version.
        theirs_min: u32,
        /// Its newest version.
        theirs_max: u32,
    },
    /// The peer said why it will not talk to us.
    #[error("{peer} refused the connection: {reason}")]
    Refused {
        /// The peer's address.
        peer: String,
        /// Its reason.
        reason: String,
    },
    /// This process has no file descriptor left for the connection.
    #[error("there is no file descriptor left for {peer}; raise this process's `ulimit -n`")]
    NoDescriptors {
        /// The peer's address.
        peer: String,
    },
    /// The peer's limits make no sense.
    #[error("{peer} asked for an impossible ring: {source}")]
    Ring {
        /// The peer's address.
        peer: String,
        /// What is wrong.
        source: InvalidRingSize,
    },
    /// A link that is required cannot be had.
    #[error("the {kind} link to {peer} is required but not available: {reason}")]
    Required {
        /// The peer's address.
        peer: String,
        /// The link.
        kind: LinkKind,
        /// Why it cannot be had.
        reason: String,
    },
    /// No link is left that both sides allow.
    #[error("no link to {peer} is allowed: {reasons}")]
    NoLink {
        /// The peer's address.
        peer: String,
        /// Why each was not used.
        reasons: String,
    },
    /// Ring memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A connection that is up.
#[derive(Debug)]
pub struct Established {
    /// Its end on this side.
    pub endpoint: Endpoint,
    /// The peer's address.
    pub peer: SocketAddr,
    /// What the peer said.
    pub hello: Hello,
    /// Better links that are not used, and why.
    pub refusals: Vec<Refusal>,
    /// The TCP connection, when it is not itself the link: its end means that the peer is gone.
    pub watch: Option<TcpStream>,
}

/// Largest frame in bytes for a ring of this size: half of it, so that one always fits while another is on its way.
#[must_use]
pub fn frame_limit(ring: RingSize) -> u32 {
    (ring.bytes() / 2) as u32
}

/// This side's HELLO, and why it does not say which host this is, if it does not.
fn own_hello(settings: &Settings) -> (Hello, Option<String>) {
    let mut nonce = vec![0; 16];
    // A nonce that could not be drawn is sent as zeros: it is not yet used for anything secret.
    let _ = getrandom::fill(&mut nonce);
    let (host, problem) = match shm::same_host_identity() {
        Ok(host) => (Some(host), None),
        Err(error) => (None, Some(format!("could not tell which host it runs on: {error}"))),
    };
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        nonce,
        ring_bytes: settings.ring.bytes() as u32,
        max_message_bytes: settings.max_message_bytes,
        max_calls: settings.max_calls,
        header_check: settings.header_check,
        host,
        software: concat!("ringmail ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Hello::default()
    };
    (hello, problem)
}

/// Runs one side's bootstrap under its time-out, remembering which step it is at.
struct Steps {
    peer: String,
    timeout: Duration,
    deadline: tokio::time::Instant,
}

impl Steps {
    fn new(peer: String, timeout: Duration) -> Self {
        Self { peer, timeout, deadline: tokio::time::Instant::now() + timeout }
    }

    async fn step<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = io::Result<T>>,
    ) -> Result<T, BootstrapError> {
        let peer = || self.peer.clone();
        match tokio::time::timeout_at(self.deadline, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(BootstrapError::Broken { peer: peer(), step, source }),
            Err(_) => Err(BootstrapError::TimedOut { peer: peer(), timeout: self.timeout, step }),
        }
    }

    fn check_version(&self, hello: &Hello) -> Result<(), BootstrapError> {
        if hello.version_min <= VERSION_MAX && hello.version_max >= VERSION_MIN {
            return Ok(());
        }
        Err(BootstrapError::Version {
            peer: self.peer.clone(),
            software: hello.software_name(),
            theirs_min: hello.version_min,
            theirs_max: hello.version_max,
        })
    }

    fn agree(&self, settings: &Settings, hello: &Hello) -> Result<(RingSize, Agreed), BootstrapError> {
        let theirs = RingSize::new(hello.ring_bytes as usize)
            .map_err(|source| BootstrapError::Ring { peer: self.peer.clone(), source })?;
        let ring = if theirs.bytes() < settings.ring.bytes() { theirs } else { settings.ring };
        let check = if settings.header_check || hello.header_check { Check::Header } else { Check::Off };
        Ok((ring, Agreed { frame_limit: frame_limit(ring), check }))
    }
}

/// How far a connection has come when its link is chosen.
struct Chosen {
    socket: TcpStream,
    peer: SocketAddr,
    hello: Hello,
    refusals: Vec<Refusal>,
    end: End,
    agreed: Agreed,
    keepalive: Option<Duration>,
}

/// This side's end of the link.
enum End {
    /// Made of the bootstrap's own connection.
    Tcp(Rings),
    /// The same, and RDMA is to take over.
    #[cfg(feature = "rdma")]
    Upgradable(Rings, upgrade::Side),
    Shm(shm::ShmEnd),
    #[cfg(feature = "rdma")]
    Rdma(crate::link::verbs::VerbsEnd),
}

impl End {
    fn kind(&self) -> LinkKind {
        match self {
            Self::Tcp(_) => LinkKind::Tcp,
            #[cfg(feature = "rdma")]
            Self::Upgradable(..) => LinkKind::Tcp,
            Self::Shm(_) => LinkKind::Shm,
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => LinkKind::Rdma,
        }
    }
}

/// Memory of this process alone, for a link that copies.
struct Rings {
    staging: Region,
    mailbox: Region,
}

impl Rings {
    fn new(size: RingSize) -> Result<Self, MemoryError> {
        Ok(Self { staging: Region::create(size)?, mailbox: Region::create(size)? })
    }

    fn over<L: Link + 'static>(self, link: &Arc<L>) -> (Staging, Arc<Mailbox>) {
        let staging = Staging::new(Arc::new(self.staging));
        let mailbox = Mailbox::new(Arc::new(self.mailbox), Arc::clone(link) as _, false);
        (staging, Arc::new(mailbox))
    }
}

impl End {
    /// Whether another link is to take over later.
    fn is_upgradable(&self) -> bool {
        match self {
            #[cfg(feature = "rdma")]
            Self::Upgradable(..) => true,
            _ => false,
        }
    }
}

impl Chosen {
    fn establish(self) -> Result<Established, BootstrapError> {
        let Self { socket, peer, hello, refusals, end, agreed, keepalive } = self;
        // Between processes of one host, a network interface that is down is no reason to part.
        if let Some(silence) = keepalive.filter(|_| !matches!(end, End::Shm(_))) {
            keepalive::set(&socket, silence);
        }
        tracing::info!(peer = %peer, link = %end.kind(), ?refusals, "connection up");
        let (endpoint, watch) = match end {
            End::Shm(end) => {
                let staging = Staging::new(Arc::clone(&end.ours));
                let link = Arc::new(ShmLink::new(end));
                let mailbox = Mailbox::new(Arc::clone(link.mailbox_region()), Arc::clone(&link) as _, false);
                (Endpoint::new(staging, Arc::new(mailbox), link, agreed), Some(socket))
            }
            #[cfg(feature = "rdma")]
            End::Rdma(end) => (end.into_endpoint(agreed), Some(socket)),
            End::Tcp(rings) => {
                let link = Arc::new(tcp_link(socket, peer)?);
                let (staging, mailbox) = rings.over(&link);
                (Endpoint::new(staging, mailbox, link, agreed), None)
            }
            #[cfg(feature = "rdma")]
            End::Upgradable(rings, side) => {
                let (link, messages) = SwitchingLink::new(tcp_link(socket, peer)?);
                let (staging, mailbox) = rings.over(&link);
                side.start(&link, messages, &staging, &mailbox);
                (Endpoint::switching(staging, mailbox, link, agreed), None)
            }
        };
        Ok(Established { endpoint, peer, hello, refusals, watch })
    }
}

fn tcp_link(socket: TcpStream, peer: SocketAddr) -> Result<TcpLink, BootstrapError> {
    let link = socket.into_std().and_then(|socket| TcpLink::new(OwnedFd::from(socket)));
    link.map_err(|source| BootstrapError::Broken { peer: peer.to_string(), step: "setting up TCP", source })
}
