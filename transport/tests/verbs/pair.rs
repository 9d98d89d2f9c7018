//! Connected pairs within one process.

use std::net::IpAddr;
use std::sync::Arc;

use ringmail_transport::bootstrap::frame_limit;
use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{CallId, Check, HEADER, Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::link::verbs::{
    BringUpError, End, Immediates, Lane, LaneSettings, Listener, Prepared, Settings, Ticket, VerbsEnd,
    connect,
};
use ringmail_transport::ring::{Incoming, RingSize, Room};
use ringmail_transport::verbs::{Context, ProtectionDomain};

/// A ticket that nobody else has.
pub(crate) fn ticket() -> Ticket {
    let mut parts = [0; 64];
    fastrand::fill(&mut parts);
    let part = |from: usize| std::array::from_fn(|at| parts[from + at]);
    Ticket::new(part(0), part(16), std::array::from_fn(|at| parts[32 + at]))
}

/// Settings in which a mistake in counting notifications shows at once.
pub(crate) fn settings(immediates: Immediates) -> Settings {
    Settings {
        ring: RingSize::new(64 * 1024).unwrap(),
        immediates,
        not_ready_retries: 0,
        timeout: std::time::Duration::from_secs(20),
        ..Settings::default()
    }
}

/// What pairs are made on.
pub(crate) struct Bench {
    pub(crate) lanes: [Arc<Lane>; 2],
    pub(crate) domains: [Arc<ProtectionDomain>; 2],
    pub(crate) listener: Listener,
    pub(crate) settings: Settings,
}

impl Bench {
    /// Two lanes and two protection domains, so that the sides share nothing but the device.
    pub(crate) fn new(address: IpAddr, links: u32, settings: Settings) -> Self {
        let context = Context::for_address(address).unwrap();
        let lane = || Lane::new(&context, LaneSettings { links, ..LaneSettings::default() }).unwrap();
        let domain = || ProtectionDomain::new(&context).unwrap();
        Self {
            lanes: [lane(), lane()],
            domains: [domain(), domain()],
            listener: Listener::bind(&context).unwrap(),
            settings,
        }
    }

    pub(crate) async fn prepare(&self, side: usize) -> Prepared {
        Prepared::new(&self.lanes[side], &self.domains[side], &self.settings).await.unwrap()
    }

    /// A connected pair, in which the connecting side may be told something else than the truth about the other.
    pub(crate) async fn connect(
        &self,
        lie: impl FnOnce(&mut End),
    ) -> (Result<VerbsEnd, BringUpError>, Result<VerbsEnd, BringUpError>) {
        let ticket = ticket();
        let expectation = self.listener.expect(ticket.clone(), self.settings.epoch);
        let [connecting, accepting] = [self.prepare(0).await, self.prepare(1).await];
        let [left, mut right] = [connecting.end(), accepting.end()];
        lie(&mut right);
        tokio::join!(
            connect(connecting, self.listener.address(), &right, &ticket),
            expectation.accept(accepting, &left)
        )
    }

    pub(crate) async fn pair(&self) -> (VerbsEnd, VerbsEnd) {
        let (left, right) = self.connect(|_| ()).await;
        (left.unwrap_or_else(|error| panic!("{error}")), right.unwrap_or_else(|error| panic!("{error}")))
    }

    pub(crate) fn endpoint(&self, end: VerbsEnd) -> Endpoint {
        let agreed = Agreed { frame_limit: frame_limit(self.settings.ring), check: Check::Off };
        end.into_endpoint(agreed)
    }
}

/// Sends a frame with this payload.
pub(crate) async fn send(endpoint: &Endpoint, number: u32, payload: &[u8]) {
    let length = HEADER + payload.len();
    let mut claim = endpoint.claim_wait(length, Room::Data).await.unwrap();
    claim[HEADER..].copy_from_slice(payload);
    let call = CallId { index: number, generation: 0 };
    claim.commit(&Header { call, ..Header::new(Kind::Message, length as u32) });
    endpoint.flush();
}

/// Receives until at least one frame has come, after looking `spins` times before sleeping.
pub(crate) async fn receive(
    endpoint: &Endpoint,
    spins: u32,
    deliver: &mut (dyn FnMut(Incoming) + Send),
) -> Result<usize, LinkError> {
    let mut looks = 0;
    loop {
        if let Turn::Frames(frames @ 1..) = endpoint.turn(deliver)? {
            return Ok(frames);
        }
        looks += 1;
        if looks > spins {
            std::future::poll_fn(|cx| endpoint.arm(cx)).await?;
            endpoint.link().woken();
        }
    }
}
