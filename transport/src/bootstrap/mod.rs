//! How a connection comes up: HELLO both ways, the choice of a link, and what is said when one is refused.
//!
//! ```text
//!   client                                                server
//!   TCP connect ─────────────────────────────────────────▶ accept
//!   magic, Hello {version range, limits, host} ──────────▶ check
//!   ◀───────────────── magic, Hello {…, methods, shm offer or refusal}
//!   (shm: unix socket, token, credentials, descriptors both ways)
//!   Choice {link, refusals} ─────────────────────────────▶
//!   ◀───────────────────────── frames, on the chosen link ────────────▶
//! ```
//!
//! Every step is under one time-out. Until the peer has said something valid it costs a few hundred bytes; a
//! message is at most [`hello::MESSAGE_LIMIT`] bytes. The TCP connection stays open whatever the link: its end is
//! how each side learns at once that the other process has died.

pub mod hello;
mod policy;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::hello::{Choice, Hello, MAGIC, Stranger, VERSION_MAX, VERSION_MIN};
pub use self::policy::{LinkPolicies, LinkPolicy, Refusal};
use crate::endpoint::{Agreed, Endpoint};
use crate::frame::Check;
use crate::link::shm::{self, ShmLink, ShmListener, Token};
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
    /// Which links may be used.
    pub links: LinkPolicies,
    /// Whether frame headers carry a check; on when either side wants it.
    pub header_check: bool,
    /// Bound on the whole bootstrap.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ring: RingSize::DEFAULT,
            max_message_bytes: 64 * 1024 * 1024,
            max_calls: 4096,
            links: LinkPolicies::default(),
            header_check: false,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Why a connection did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The address could not be reached.
    #[error("cannot connect to {peer}: {source}; check that the server runs and listens there")]
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
    #[error("{peer} speaks {protocol}, not the Ringmail protocol; check the address and port")]
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

/// Bytes of a frame besides the payload of a message below the eager limit: header, metadata and their lengths.
pub const FRAME_OVERHEAD: usize = 16 * 1024;

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
            software: hello.software.clone(),
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

/// Connects to `peer` and brings up the best link that both sides allow.
///
/// # Errors
/// When there is nobody, nobody who speaks the protocol, or no link that both sides allow.
pub async fn connect(peer: SocketAddr, settings: &Settings) -> Result<Established, BootstrapError> {
    let steps = Steps::new(peer.to_string(), settings.timeout);
    let mut socket =
        steps.step("connecting", TcpStream::connect(peer)).await.map_err(|error| match error {
            BootstrapError::Broken { peer, source, .. } => BootstrapError::Unreachable { peer, source },
            error => error,
        })?;
    let _ = socket.set_nodelay(true);
    let (ours, host_problem) = own_hello(settings);
    steps.step("sending our HELLO", hello::write(&mut socket, true, &ours)).await?;
    let mut magic = [0; 8];
    steps.step("waiting for its HELLO", socket.read_exact(&mut magic)).await?;
    if &magic != MAGIC {
        let protocol = Stranger::from_first_bytes(&magic);
        return Err(BootstrapError::Stranger { peer: steps.peer, protocol });
    }
    let hello: Hello = steps.step("reading its HELLO", hello::read(&mut socket)).await?;
    // The kernel connects a socket to itself when it happens to choose the port that is dialled.
    if hello == ours && ours.nonce.iter().any(|byte| *byte != 0) {
        return Err(BootstrapError::Mirror { peer: steps.peer });
    }
    if !hello.error.is_empty() {
        return Err(BootstrapError::Refused { peer: steps.peer, reason: hello.error });
    }
    steps.check_version(&hello)?;
    let (ring, agreed) = steps.agree(settings, &hello)?;

    let mut refusals = Vec::new();
    let mut end = None;
    match shm_offer(&settings.links, host_problem, &hello) {
        Ok((name, token)) => {
            match tokio::time::timeout_at(steps.deadline, shm::connect(name, token, ring)).await {
                Ok(Ok(shm)) => end = Some(shm),
                Ok(Err(error)) => refusals.push(Refusal { kind: LinkKind::Shm, reason: error.to_string() }),
                Err(_) => refusals.push(Refusal {
                    kind: LinkKind::Shm,
                    reason: format!(
                        "the server did not answer on the shared-memory socket within {:?}",
                        steps.timeout
                    ),
                }),
            }
        }
        Err(reason) => refusals.push(Refusal { kind: LinkKind::Shm, reason }),
    }
    let kind = if end.is_some() { LinkKind::Shm } else { LinkKind::Tcp };
    let verdict = settings
        .links
        .verdict(kind, &refusals, &steps.peer)
        .and_then(|()| server_allows(kind, &hello, &refusals, &steps.peer));
    let choice = Choice {
        link: kind.to_string(),
        refusals: refusals.iter().map(Refusal::to_wire).collect(),
        error: verdict.as_ref().err().map(ToString::to_string).unwrap_or_default(),
    };
    steps.step("sending the choice of link", hello::write(&mut socket, false, &choice)).await?;
    verdict?;
    establish(&steps, socket, peer, hello, refusals, end, ring, agreed)
}

fn shm_offer<'a>(
    links: &LinkPolicies,
    host_problem: Option<String>,
    hello: &'a Hello,
) -> Result<(&'a str, Token), String> {
    if let Some(reason) = links.refusal(LinkKind::Shm, "this side") {
        return Err(reason);
    }
    if let Some(problem) = host_problem {
        // The server can only say that it was told nothing.
        return Err(format!("this process {problem}"));
    }
    match &hello.shm {
        Some(offer) => match offer.token.as_slice().try_into() {
            Ok(token) => Ok((&offer.socket, Token(token))),
            Err(_) => Err("the server's offer carries no valid token".to_owned()),
        },
        None => {
            let said = hello.refusals.iter().find(|refusal| refusal.link == LinkKind::Shm.to_string());
            Err(said
                .map_or_else(|| "the server does not offer it".to_owned(), |refusal| refusal.reason.clone()))
        }
    }
}

/// Whether the server has not refused the link that is left.
fn server_allows(
    chosen: LinkKind,
    hello: &Hello,
    refusals: &[Refusal],
    peer: &str,
) -> Result<(), BootstrapError> {
    let said = hello.refusals.iter().filter_map(Refusal::from_wire).find(|refusal| refusal.kind == chosen);
    let Some(refused) = said else { return Ok(()) };
    let reasons: Vec<_> = refusals.iter().chain([&refused]).map(ToString::to_string).collect();
    Err(BootstrapError::NoLink { peer: peer.to_owned(), reasons: reasons.join("; ") })
}

/// What a server brings to the bootstrap of each connection.
#[derive(Debug)]
pub struct Acceptor {
    /// Its settings.
    pub settings: Settings,
    /// Paths of its methods, in the order of their indices.
    pub methods: Vec<String>,
    /// Where clients on the same host hand over memory; `None` when that could not be set up.
    pub shm: Option<Arc<ShmListener>>,
}

impl Acceptor {
    /// Brings up a connection that was just accepted.
    ///
    /// # Errors
    /// When the peer speaks another protocol or version, falls silent, or no link is allowed by both sides.
    pub async fn accept(
        &self,
        mut socket: TcpStream,
        peer: SocketAddr,
    ) -> Result<Established, BootstrapError> {
        let settings = &self.settings;
        let steps = Steps::new(peer.to_string(), settings.timeout);
        let _ = socket.set_nodelay(true);
        let mut magic = [0; 8];
        steps.step("waiting for its first bytes", socket.read_exact(&mut magic)).await?;
        if &magic != MAGIC {
            let protocol = Stranger::from_first_bytes(&magic);
            farewell(&mut socket, protocol).await;
            return Err(BootstrapError::Stranger { peer: steps.peer, protocol });
        }
        let theirs: Hello = steps.step("reading its HELLO", hello::read(&mut socket)).await?;
        let (mut ours, host_problem) = own_hello(settings);
        let agreed = steps.check_version(&theirs).and_then(|()| steps.agree(settings, &theirs));
        let (ring, agreed) = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                ours.error = error.to_string();
                steps.step("refusing it", hello::write(&mut socket, true, &ours)).await?;
                return Err(error);
            }
        };
        ours.methods.clone_from(&self.methods);
        let mut expectation = None;
        match self.offer_shm(&ours, host_problem, &theirs) {
            Ok(listener) => match listener.expect(ring) {
                Ok(expected) => {
                    let token = expected.token().0.to_vec();
                    ours.shm = Some(hello::ShmOffer { socket: listener.name().to_owned(), token });
                    expectation = Some(expected);
                }
                Err(error) => {
                    ours.refusals.push(Refusal { kind: LinkKind::Shm, reason: error.to_string() }.to_wire());
                }
            },
            Err(reason) => ours.refusals.push(Refusal { kind: LinkKind::Shm, reason }.to_wire()),
        }
        if let Some(reason) = settings.links.refusal(LinkKind::Tcp, "the server") {
            ours.refusals.push(Refusal { kind: LinkKind::Tcp, reason }.to_wire());
        }
        steps.step("sending our HELLO", hello::write(&mut socket, true, &ours)).await?;
        let choice: Choice = steps.step("waiting for its choice of link", hello::read(&mut socket)).await?;
        if !choice.error.is_empty() {
            return Err(BootstrapError::Refused { peer: steps.peer, reason: choice.error });
        }
        let refusals: Vec<_> = choice.refusals.iter().filter_map(Refusal::from_wire).collect();
        let not_offered = || BootstrapError::Refused {
            peer: steps.peer.clone(),
            reason: format!(
                "it chose a link not offered, {:?}",
                choice.link.chars().take(40).collect::<String>()
            ),
        };
        let mut end = None;
        if choice.link == LinkKind::Shm.to_string() {
            let mut expected = expectation.ok_or_else(not_offered)?;
            let arrived =
                async { expected.end().await.ok_or_else(|| io::Error::other("its handshake failed")) };
            end = Some(steps.step("waiting for its shared memory", arrived).await?);
        } else if choice.link != LinkKind::Tcp.to_string() {
            return Err(not_offered());
        }
        let kind = if end.is_some() { LinkKind::Shm } else { LinkKind::Tcp };
        settings.links.verdict(kind, &refusals, &steps.peer)?;
        establish(&steps, socket, peer, theirs, refusals, end, ring, agreed)
    }

    fn offer_shm(
        &self,
        ours: &Hello,
        host_problem: Option<String>,
        theirs: &Hello,
    ) -> Result<&Arc<ShmListener>, String> {
        if let Some(reason) = self.settings.links.refusal(LinkKind::Shm, "the server") {
            return Err(reason);
        }
        let listener = self.shm.as_ref().ok_or("the server could not set up its shared-memory socket")?;
        match (&ours.host, &theirs.host) {
            (Some(own), Some(peer)) => match shm::offer_refusal(own, peer) {
                None => Ok(listener),
                Some(reason) => Err(reason),
            },
            (Some(_), None) => {
                Err("the client could not tell which host it runs on (is /proc mounted there?)".to_owned())
            }
            (None, _) => Err(format!("the server {}", host_problem.unwrap_or_default())),
        }
    }
}

/// Tells a stranger, in its own words where we can, that this is the wrong port.
async fn farewell(socket: &mut TcpStream, protocol: Stranger) {
    if protocol == Stranger::Http1 {
        let body = "This port speaks the Ringmail protocol, not HTTP.\n";
        let answer = format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        // It may have gone already; there is nobody left to tell then.
        let _ = socket.write_all(answer.as_bytes()).await;
        let _ = socket.shutdown().await;
    }
}

#[allow(clippy::too_many_arguments)]
fn establish(
    steps: &Steps,
    socket: TcpStream,
    peer: SocketAddr,
    hello: Hello,
    refusals: Vec<Refusal>,
    end: Option<shm::ShmEnd>,
    ring: RingSize,
    agreed: Agreed,
) -> Result<Established, BootstrapError> {
    let (staging, mailbox, link, watch): (_, _, Arc<dyn Link>, _) = match end {
        Some(end) => {
            let staging = Staging::new(Arc::clone(&end.ours));
            let link = Arc::new(ShmLink::new(end));
            let mailbox = Mailbox::new(Arc::clone(link.mailbox_region()), Arc::clone(&link) as _, false);
            (staging, mailbox, link, Some(socket))
        }
        None => {
            let broken =
                |source| BootstrapError::Broken { peer: steps.peer.clone(), step: "setting up TCP", source };
            let socket = OwnedFd::from(socket.into_std().map_err(broken)?);
            let link = Arc::new(TcpLink::new(socket).map_err(broken)?);
            let staging = Staging::new(Arc::new(Region::create(ring)?));
            let mailbox = Mailbox::new(Arc::new(Region::create(ring)?), Arc::clone(&link) as _, false);
            (staging, mailbox, link, None)
        }
    };
    tracing::info!(peer = %peer, link = %link.kind(), ?refusals, "connection up");
    let endpoint = Endpoint::new(staging, Arc::new(mailbox), link, agreed);
    Ok(Established { endpoint, peer, hello, refusals, watch })
}
