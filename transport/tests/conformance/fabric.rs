//! Makes connected pairs of endpoints, one fabric for each kind of link.

use std::sync::Arc;
use std::time::Duration;

use ringmail_transport::bootstrap::{self, Acceptor, LinkPolicies, LinkPolicy, Settings, frame_limit};
use ringmail_transport::endpoint::Agreed;
use ringmail_transport::frame::Check;
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::link::sim::{Faults, SimConfig, SimEnd, SimNet};
use ringmail_transport::ring::RingSize;
use tokio::net::TcpListener;

use crate::side::Side;

/// What a case wants of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Bytes in each ring.
    pub(crate) ring: usize,
    /// Whether headers carry a check.
    pub(crate) header_check: bool,
}

impl Default for Wanted {
    /// The smallest ring, around which positions go most often.
    fn default() -> Self {
        Self { ring: RingSize::MIN, header_check: false }
    }
}

/// A kind of link, and how to get connected pairs over it.
pub(crate) trait Fabric: Sync {
    /// What kind it is.
    const KIND: LinkKind;
    /// Space in the staging ring comes back when the peer has released frames, not when they have left.
    const FREED_BY_THE_PEER: bool;
    /// The peer can write its frames after it has announced them.
    const REWRITABLE: bool;
    /// A frame that is held keeps its place in the mailbox: it is not a copy.
    const IN_PLACE: bool = true;

    /// Whether this host has what it takes. If not, it says so.
    fn is_there(&self) -> bool {
        true
    }

    /// Two connected ends.
    async fn pair(&self, wanted: Wanted) -> (Side, Side);
}

/// Links that come up through the real bootstrap, over the loopback interface.
pub(crate) struct Bootstrapped<const SHM: bool>;

impl Bootstrapped<true> {
    pub(crate) fn shm() -> Self {
        Self
    }
}

impl Bootstrapped<false> {
    pub(crate) fn tcp() -> Self {
        Self
    }
}

impl<const SHM: bool> Fabric for Bootstrapped<SHM> {
    const KIND: LinkKind = if SHM { LinkKind::Shm } else { LinkKind::Tcp };
    const FREED_BY_THE_PEER: bool = SHM;
    const REWRITABLE: bool = SHM;

    async fn pair(&self, wanted: Wanted) -> (Side, Side) {
        let settings = Settings {
            ring: RingSize::new(wanted.ring).unwrap(),
            header_check: wanted.header_check,
            links: LinkPolicies::default()
                .with(LinkKind::Shm, if SHM { LinkPolicy::Require } else { LinkPolicy::Off }),
            ..Settings::default()
        };
        let (shm, socket) = ShmListener::bind().unwrap();
        let running = tokio::spawn(Arc::clone(&shm).run(socket, Duration::from_secs(5)));
        let acceptor = Acceptor::new(settings.clone(), Vec::new(), Some(shm));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept = async {
            let (socket, peer) = listener.accept().await.unwrap();
            acceptor.accept(socket, peer).await.unwrap()
        };
        let (server, client) = tokio::join!(accept, bootstrap::connect(address, &settings));
        running.abort();
        let sides = [client.unwrap(), server].map(|established| {
            assert_eq!(established.endpoint.link_kind(), Self::KIND, "{:?}", established.refusals);
            Side::new(established.endpoint, established.watch)
        });
        sides.into()
    }
}

/// The simulated link, with a thread as the network card.
pub(crate) struct Simulated {
    immediates: bool,
    faults: Faults,
}

impl Simulated {
    pub(crate) fn with_immediates() -> Self {
        Self { immediates: true, faults: Faults::default() }
    }

    pub(crate) fn without_immediates() -> Self {
        Self { immediates: false, faults: Faults::default() }
    }

    /// All that a reliable connection survives. Nothing vanishes: a notification that does is made up for by the next,
    /// and a case may wait for the last.
    pub(crate) fn with_faults() -> Self {
        let faults = Faults { tear: true, loss: 20, stall: 20, retries: 30, ..Faults::default() };
        Self { immediates: false, faults }
    }
}

impl Fabric for Simulated {
    const KIND: LinkKind = LinkKind::Sim;
    const FREED_BY_THE_PEER: bool = true;
    const REWRITABLE: bool = true;

    async fn pair(&self, wanted: Wanted) -> (Side, Side) {
        let ring = RingSize::new(wanted.ring).unwrap();
        let config = SimConfig {
            seed: fastrand::u64(..),
            immediates: self.immediates,
            ring,
            send_queue: 8,
            notifications: 16,
            faults: self.faults.clone(),
            ..SimConfig::default()
        };
        let (net, first, second) = SimNet::pair(config).unwrap();
        let card = net.clone();
        std::thread::spawn(move || card.run());
        let check = if wanted.header_check { Check::Header } else { Check::Off };
        let agreed = Agreed { frame_limit: frame_limit(ring), check };
        let side = |end: SimEnd, side| Side::new(end.into_endpoint(agreed), None).with_net(net.clone(), side);
        (side(first, 0), side(second, 1))
    }
}
