//! Bringing RDMA up for a connection.
//!
//! The device is the one that has the address which the TCP connection uses, on each side. What opens memory travels on
//! the TCP connection alone; the connection manager carries a proof that whoever connects knows this session. Whatever
//! fails here leaves the connection on TCP, with the reason.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::devices;
use super::hello::{self, Choice, Hello, RdmaAnswer, RdmaEnd, RdmaOffer};
use super::{BootstrapError, Refusal, Settings, Steps};
use crate::link::LinkKind;
use crate::link::verbs::{
    self, BringUpError, End, Expectation, Immediates, Lane, LaneSettings, Listener, Prepared, Ticket,
    VerbsEnd,
};
use crate::ring::RingSize;
use crate::verbs::{Context, ProtectionDomain};

/// Links that share a completion queue at a server.
const LINKS_PER_LANE: u32 = 128;

/// Contexts of this process, by the address that they were opened for.
static CONTEXTS: Mutex<Option<HashMap<IpAddr, Weak<Context>>>> = Mutex::new(None);

/// The device that has a local address.
async fn context(local: IpAddr) -> Result<Arc<Context>, String> {
    if local.is_loopback() {
        return Err(format!(
            "{local} is a loopback address, which no RDMA device has; connect to the address of a device"
        ));
    }
    let known = CONTEXTS.lock().get_or_insert_default().get(&local).and_then(Weak::upgrade);
    if let Some(known) = known {
        return Ok(known);
    }
    // System calls that may wait for the kernel's connection manager.
    let opened = tokio::task::spawn_blocking(move || devices::open(local)).await;
    let opened = opened.map_err(|error| error.to_string())??;
    CONTEXTS.lock().get_or_insert_default().insert(local, Arc::downgrade(&opened));
    Ok(opened)
}

fn local_address(socket: &TcpStream) -> Result<IpAddr, String> {
    let local = socket.local_addr().map_err(|error| error.to_string())?.ip();
    Ok(local.to_canonical())
}

/// Opening a device is not to take the time that TCP needs.
async fn in_time<T>(steps: &Steps, opening: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let bound = time_for_it(steps);
    let opened = tokio::time::timeout(bound, opening).await;
    opened.unwrap_or_else(|_| Err(format!("opening the RDMA device took more than {bound:?}")))
}

/// Half of the time that is left: the rest is for saying that it failed.
fn time_for_it(steps: &Steps) -> Duration {
    steps.deadline.saturating_duration_since(tokio::time::Instant::now()) / 2
}

pub(super) fn link_settings(settings: &Settings, ring: RingSize, timeout: Duration) -> verbs::Settings {
    let immediates = if settings.immediates { Immediates::WherePossible } else { Immediates::Never };
    verbs::Settings { ring, immediates, reads: settings.reads, timeout, ..verbs::Settings::default() }
}

impl From<End> for RdmaEnd {
    fn from(end: End) -> Self {
        let End {
            ring_address,
            ring_key,
            desk_address,
            desk_key,
            ring_bytes,
            notifications,
            immediates,
            reads,
        } = end;
        Self { ring_address, ring_key, desk_address, desk_key, ring_bytes, notifications, immediates, reads }
    }
}

impl From<RdmaEnd> for End {
    fn from(end: RdmaEnd) -> Self {
        let RdmaEnd {
            ring_address,
            ring_key,
            desk_address,
            desk_key,
            ring_bytes,
            notifications,
            immediates,
            reads,
        } = end;
        Self { ring_address, ring_key, desk_address, desk_key, ring_bytes, notifications, immediates, reads }
    }
}

/// A client's attempt to have RDMA: the device that it would use, or why not.
pub(super) struct Attempt(Result<Arc<Context>, String>);

impl Attempt {
    /// Finds the device.
    pub(super) async fn prepare(steps: &Steps, settings: &Settings, socket: &TcpStream) -> Self {
        if let Some(reason) = settings.links.refusal(LinkKind::Rdma, "this side") {
            return Self(Err(reason));
        }
        let found = async { context(local_address(socket)?).await };
        Self(in_time(steps, found).await)
    }

    /// What HELLO says of it.
    pub(super) fn wish(&self) -> Option<RdmaOffer> {
        let device = self.0.as_ref().ok()?.device_name().to_owned();
        Some(RdmaOffer { device, ..RdmaOffer::default() })
    }

    /// What the server offers, if this side wants it and the offer is in order.
    ///
    /// # Errors
    /// Why there is nothing to be had, or wanted.
    pub(super) fn accept_offer(
        self,
        socket: &TcpStream,
        settings: &Settings,
        ring: RingSize,
        server: &Hello,
    ) -> Result<Offered, String> {
        let context = self.0?;
        let (address, secrets) = read_offer(server, socket)?;
        Ok(Offered { context, address, secrets, ring, settings: settings.clone() })
    }
}

/// RDMA as a server has offered it to this client.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) context: Arc<Context>,
    /// Of the server's connection manager.
    pub(super) address: SocketAddr,
    pub(super) secrets: Secrets,
    pub(super) ring: RingSize,
    pub(super) settings: Settings,
}

impl Offered {
    /// A lane and a protection domain of this connection's own.
    pub(super) fn place(&self) -> Result<(Arc<Lane>, Arc<ProtectionDomain>), BringUpError> {
        Ok((Lane::new(&self.context, LaneSettings::default())?, ProtectionDomain::new(&self.context)?))
    }

    /// Brings RDMA up within the handshake. Why it did not come up is in the inner result.
    ///
    /// # Errors
    /// When the TCP connection breaks.
    pub(super) async fn bring_up(
        self,
        steps: &Steps,
        socket: &mut TcpStream,
    ) -> Result<Result<VerbsEnd, String>, BootstrapError> {
        let settings = link_settings(&self.settings, self.ring, time_for_it(steps));
        let prepared = async {
            let (lane, domain) = self.place()?;
            Prepared::new(&lane, &domain, &settings).await
        };
        let prepared = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let attempt = Choice { attempt: Some(prepared.end().into()), ..Choice::default() };
        steps.step("asking for RDMA", hello::write(socket, false, &attempt)).await?;
        let answer: RdmaAnswer =
            steps.step("waiting for its end of the RDMA connection", hello::read(socket)).await?;
        let Some(end) = answer.end else {
            return Ok(Err(answer.refusal.chars().take(500).collect()));
        };
        let connected = verbs::connect(prepared, self.address, &end.into(), &self.secrets.ticket()).await;
        Ok(connected.map_err(|error| error.to_string()))
    }
}

/// What only the two ends of a session know.
#[derive(Clone)]
pub(super) struct Secrets {
    session: [u8; 16],
    token: [u8; 16],
    key: [u8; 32],
}

impl fmt::Debug for Secrets {
    /// Without token and key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Secrets {
    fn draw() -> Result<Self, getrandom::Error> {
        let mut secrets = Self { session: [0; 16], token: [0; 16], key: [0; 32] };
        getrandom::fill(&mut secrets.session)?;
        getrandom::fill(&mut secrets.token)?;
        getrandom::fill(&mut secrets.key)?;
        Ok(secrets)
    }

    /// The right to make one RDMA connection.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket::new(self.session, self.token, self.key)
    }

    /// The right to make another one.
    pub(super) fn ticket_with(&self, token: [u8; 16]) -> Ticket {
        Ticket::new(self.session, token, self.key)
    }
}

fn read_offer(server: &Hello, socket: &TcpStream) -> Result<(SocketAddr, Secrets), String> {
    let Some(offer) = &server.rdma else {
        return Err(Refusal::said(server, LinkKind::Rdma).map_or_else(
            || "the server does not offer it (is it built with the cargo feature rdma?)".to_owned(),
            |said| said.reason,
        ));
    };
    let peer = socket.peer_addr().map_err(|error| error.to_string())?.ip().to_canonical();
    let address = read_address(&offer.address, peer)?;
    let secrets = (
        offer.session.as_slice().try_into(),
        offer.token.as_slice().try_into(),
        offer.key.as_slice().try_into(),
    );
    let (Ok(session), Ok(token), Ok(key)) = secrets else {
        return Err("the server's offer carries no valid secrets".to_owned());
    };
    Ok((address, Secrets { session, token, key }))
}

/// The address of a server's connection manager, which must be where the server was reached.
pub(super) fn read_address(text: &str, server: IpAddr) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "the server's offer carries no valid address".to_owned())?;
    if address.ip() == server {
        return Ok(address);
    }
    Err(format!("the server offers it at {}, which is not where it was connected to, {server}", address.ip()))
}

/// A server's RDMA devices, opened when the first connection comes in on their address.
#[derive(Debug, Default)]
pub struct RdmaHost {
    devices: Mutex<HashMap<IpAddr, Arc<Device>>>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Device {
    context: Arc<Context>,
    pub(super) listener: Listener,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// One for each peer that is connected, so that the device keeps each from the others' memory.
    domains: Mutex<HashMap<IpAddr, Weak<ProtectionDomain>>>,
}

impl Device {
    async fn open(local: IpAddr) -> Result<Self, String> {
        let context = context(local).await?;
        let listener = Listener::bind(&context).map_err(|error| error.to_string())?;
        Ok(Self { context, listener, lanes: Mutex::default(), domains: Mutex::default() })
    }

    fn lane(&self) -> Result<Arc<Lane>, BringUpError> {
        let mut lanes = self.lanes.lock();
        let free = lanes.iter().find(|lane| lane.links() < lane.settings().links as usize);
        if let Some(lane) = free {
            return Ok(Arc::clone(lane));
        }
        let settings = LaneSettings { links: LINKS_PER_LANE, ..LaneSettings::default() };
        let lane = Lane::new(&self.context, settings)?;
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }

    fn domain(&self, peer: IpAddr) -> Result<Arc<ProtectionDomain>, BringUpError> {
        let mut domains = self.domains.lock();
        if let Some(known) = domains.get(&peer).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let domain = ProtectionDomain::new(&self.context)?;
        domains.retain(|_, known| known.strong_count() > 0);
        domains.insert(peer, Arc::downgrade(&domain));
        Ok(domain)
    }
}

/// What a server says of RDMA to one client.
pub(super) enum Offer {
    Made { offer: RdmaOffer, expected: Box<Expected> },
    NotAsked,
    Refused(String),
}

/// A client that has been offered RDMA.
pub(super) struct Expected {
    device: Arc<Device>,
    expectation: Expectation,
    settings: verbs::Settings,
    client: Client,
}

/// Whom RDMA was offered to, and where.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) host: Arc<RdmaHost>,
    /// The address that it has connected to, and its own.
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    pub(super) secrets: Secrets,
    pub(super) ring: RingSize,
    pub(super) settings: Settings,
}

impl RdmaHost {
    pub(super) async fn device(&self, local: IpAddr) -> Result<Arc<Device>, String> {
        let known = self.devices.lock().get(&local).cloned();
        if let Some(known) = known.filter(|device| !device.listener.has_ended()) {
            return Ok(known);
        }
        let opened = Arc::new(Device::open(local).await?);
        self.devices.lock().insert(local, Arc::clone(&opened));
        Ok(opened)
    }

    /// Decides on an offer to a client that has said this.
    pub(super) async fn offer(
        self: &Arc<Self>,
        steps: &Steps,
        settings: &Settings,
        ring: RingSize,
        socket: &TcpStream,
        client: &Hello,
    ) -> Offer {
        if client.rdma.is_none() {
            return Offer::NotAsked;
        }
        if let Some(reason) = settings.links.refusal(LinkKind::Rdma, "the server") {
            return Offer::Refused(reason);
        }
        let local = match local_address(socket) {
            Ok(local) => local,
            Err(reason) => return Offer::Refused(format!("at the server, {reason}")),
        };
        let device = match in_time(steps, self.device(local)).await {
            Ok(device) => device,
            Err(reason) => return Offer::Refused(format!("at the server, {reason}")),
        };
        let Ok(peer) = socket.peer_addr() else { return Offer::NotAsked };
        let secrets = match Secrets::draw() {
            Ok(secrets) => secrets,
            Err(error) => return Offer::Refused(format!("the server could not draw secrets: {error}")),
        };
        let link_settings = link_settings(settings, ring, time_for_it(steps));
        let expectation = device.listener.expect(secrets.ticket(), link_settings.epoch);
        let offer = RdmaOffer {
            device: device.context.device_name().to_owned(),
            address: device.listener.address().to_string(),
            session: secrets.session.to_vec(),
            token: secrets.token.to_vec(),
            key: secrets.key.to_vec(),
        };
        let client = Client {
            host: Arc::clone(self),
            local,
            peer: peer.ip().to_canonical(),
            secrets,
            ring,
            settings: settings.clone(),
        };
        let expected = Expected { device, expectation, settings: link_settings, client };
        Offer::Made { offer, expected: Box::new(expected) }
    }
}

impl Device {
    pub(super) fn name(&self) -> &str {
        self.context.device_name()
    }

    /// A lane with room, and the protection domain for this peer.
    pub(super) fn place(&self, peer: IpAddr) -> Result<(Arc<Lane>, Arc<ProtectionDomain>), BringUpError> {
        Ok((self.lane()?, self.domain(peer)?))
    }
}

impl Expected {
    /// The client begins on TCP: then its token is of no use.
    pub(super) fn later(self) -> Client {
        self.client
    }

    /// Answers a client's attempt, and accepts its RDMA connection while its final choice is awaited.
    ///
    /// # Errors
    /// When the TCP connection breaks or the time is up.
    pub(super) async fn accept(
        self,
        steps: &Steps,
        socket: &mut TcpStream,
        client: &RdmaEnd,
    ) -> Result<(Choice, Result<VerbsEnd, String>), BootstrapError> {
        let prepared = async {
            let (lane, domain) = self.device.place(self.client.peer)?;
            Prepared::new(&lane, &domain, &self.settings).await
        };
        let (answer, prepared) = match prepared.await {
            Ok(prepared) => {
                let end = Some(prepared.end().into());
                (RdmaAnswer { end, refusal: String::new() }, Ok(prepared))
            }
            Err(error) => {
                let refusal = format!("at the server, {error}");
                (RdmaAnswer { end: None, refusal: refusal.clone() }, Err(refusal))
            }
        };
        steps.step("answering its attempt at RDMA", hello::write(socket, false, &answer)).await?;
        let choosing = hello::read::<Choice>(socket);
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                return Ok((steps.step("waiting for its choice of link", choosing).await?, Err(refusal)));
            }
        };
        let client = End::from(*client);
        let both = async {
            let accepting = self.expectation.accept(prepared, &client);
            tokio::pin!(accepting, choosing);
            let mut accepted = None;
            let choice = loop {
                tokio::select! {
                    biased;
                    result = &mut accepting, if accepted.is_none() => accepted = Some(result),
                    choice = &mut choosing => break choice?,
                }
            };
            let accepted = match accepted {
                Some(accepted) => accepted,
                // The client has seen the end of the handshake, so it is about to end here as well.
                None if choice.link == LinkKind::Rdma.to_string() => accepting.await,
                None => Err(BringUpError::Ended),
            };
            Ok((choice, accepted.map_err(|error| error.to_string())))
        };
        steps.step("waiting for its choice of link", both).await
    }
}
