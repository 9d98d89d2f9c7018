//! The accepting side.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hello::{self, Choice, Hello, Stranger};
use super::{BootstrapError, Chosen, End, Established, Refusal, Rings, Settings, Steps, own_hello, stranger};
#[cfg(feature = "rdma")]
use super::{rdma, upgrade};
use crate::link::LinkKind;
use crate::link::shm::{self, ShmListener};
use crate::spare::Spare;

/// Bound on telling a client that it is turned away, while others wait for the same.
const TURNING_AWAY: Duration = Duration::from_millis(200);

/// What a client is told for whom there is no descriptor.
const NO_DESCRIPTORS: &str = "the server has no file descriptors left; raise its `ulimit -n`";

/// What a server brings to the bootstrap of each connection.
#[derive(Debug)]
pub struct Acceptor {
    /// Its settings.
    pub settings: Settings,
    /// Paths of its methods, in the order of their indices.
    pub methods: Vec<String>,
    /// Where clients on the same host hand over memory; `None` when that could not be set up.
    pub shm: Option<Arc<ShmListener>>,
    /// The descriptor with which clients are turned away when there are none left.
    pub spare: Spare,
    /// The devices through which clients are reached by RDMA.
    #[cfg(feature = "rdma")]
    pub rdma: Arc<super::RdmaHost>,
}

impl Acceptor {
    /// An acceptor with these settings, methods and, unless it could not be set up, listener for shared memory.
    #[must_use]
    pub fn new(settings: Settings, methods: Vec<String>, shm: Option<Arc<ShmListener>>) -> Self {
        Self {
            settings,
            methods,
            shm,
            spare: Spare::new(),
            #[cfg(feature = "rdma")]
            rdma: Arc::default(),
        }
    }

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
        if let Some(protocol) = steps.step("waiting for its first bytes", stranger::meet(&mut socket)).await?
        {
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
        // Had before anything is promised: a client that has chosen TCP takes the connection to be up.
        let rings = match Rings::new(ring) {
            Ok(rings) => rings,
            Err(error) => {
                ours.error = format!("the server {error}");
                steps.step("refusing it", hello::write(&mut socket, true, &ours)).await?;
                return Err(error.into());
            }
        };
        if !self.spares_are_kept() {
            ours.error = NO_DESCRIPTORS.to_owned();
            steps.step("refusing it", hello::write(&mut socket, true, &ours)).await?;
            return Err(BootstrapError::NoDescriptors { peer: steps.peer });
        }
        ours.methods.clone_from(&self.methods);
        ours.max_fragmented_bytes = settings.max_fragmented_bytes;
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
        #[cfg(feature = "rdma")]
        let expected = match self.rdma.offer(&steps, settings, ring, &socket, &theirs).await {
            rdma::Offer::Made { expected, offer } => {
                ours.rdma = Some(offer);
                Some(expected)
            }
            rdma::Offer::NotAsked => None,
            rdma::Offer::Refused(reason) => {
                ours.refusals.push(Refusal { kind: LinkKind::Rdma, reason }.to_wire());
                None
            }
        };
        if let Some(reason) = settings.links.refusal(LinkKind::Tcp, "the server") {
            ours.refusals.push(Refusal { kind: LinkKind::Tcp, reason }.to_wire());
        }
        steps.step("sending our HELLO", hello::write(&mut socket, true, &ours)).await?;
        let choice: Choice = steps.step("waiting for its choice of link", hello::read(&mut socket)).await?;
        #[cfg(feature = "rdma")]
        let (choice, mut accepted, offered) = match (choice.attempt, expected) {
            (Some(attempt), Some(expected)) => {
                let (choice, accepted) = expected.accept(&steps, &mut socket, &attempt).await?;
                (choice, Some(accepted), None)
            }
            (None, Some(expected)) if choice.upgrade => (choice, None, Some(expected.later())),
            _ => (choice, None, None),
        };
        #[cfg(not(feature = "rdma"))]
        let offered: Option<std::convert::Infallible> = None;
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
        let end = if choice.link == LinkKind::Shm.to_string() {
            let mut expected = expectation.ok_or_else(not_offered)?;
            let arrived =
                async { expected.end().await.ok_or_else(|| io::Error::other("its handshake failed")) };
            End::Shm(steps.step("waiting for its shared memory", arrived).await?)
        } else if choice.link == LinkKind::Tcp.to_string() {
            match offered {
                None if choice.upgrade => return Err(not_offered()),
                None => End::Tcp(rings),
                #[cfg(feature = "rdma")]
                Some(offered) => End::Upgradable(rings, upgrade::Side::Server(offered)),
            }
        } else {
            #[cfg(feature = "rdma")]
            if choice.link == LinkKind::Rdma.to_string()
                && let Some(accepted) = accepted.take()
            {
                let broken = |reason: String| BootstrapError::Broken {
                    peer: steps.peer.clone(),
                    step: "bringing RDMA up, which it takes to be up",
                    source: io::Error::other(reason),
                };
                End::Rdma(accepted.map_err(broken)?)
            } else {
                return Err(not_offered());
            }
            #[cfg(not(feature = "rdma"))]
            return Err(not_offered());
        };
        settings.links.verdict(end.kind(), &refusals, &steps.peer)?;
        let keepalive = settings.keepalive;
        let established =
            Chosen { socket, peer, hello: theirs, refusals, end, agreed, keepalive }.establish()?;
        // It has all that it will hold. What was kept for turning others away is not to be among that, for good.
        if self.spares_are_kept() {
            Ok(established)
        } else {
            Err(BootstrapError::NoDescriptors { peer: steps.peer })
        }
    }

    fn spares_are_kept(&self) -> bool {
        self.spare.is_kept() && self.shm.as_ref().is_none_or(|shm| shm.spare().is_kept())
    }

    /// Tells a client that there is no descriptor left for its connection, in the descriptor kept for that.
    pub async fn turn_away(&self, mut socket: TcpStream) {
        let (mut ours, _) = own_hello(&self.settings);
        ours.error = NO_DESCRIPTORS.to_owned();
        let said = async {
            hello::write(&mut socket, true, &ours).await?;
            socket.shutdown().await?;
            // Closed with something unread, it would be reset, and what was said be lost.
            while socket.read(&mut [0; 512]).await? > 0 {}
            io::Result::Ok(())
        };
        // Whoever does not listen is not waited for.
        let _ = tokio::time::timeout(TURNING_AWAY, said).await;
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
