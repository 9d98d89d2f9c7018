//! RDMA on real devices, in the lab's VM: Soft-RoCE with and without immediates, Soft-iWARP, which has none.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ringmail_transport::bootstrap::frame_limit;
use ringmail_transport::endpoint::Agreed;
use ringmail_transport::frame::Check;
use ringmail_transport::immediate::Epoch;
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::switching::FastLink;
use ringmail_transport::link::verbs::{
    Immediates, Lane, LaneSettings, Listener, Prepared, Settings, Ticket, VerbsEnd, connect,
};
use ringmail_transport::ring::RingSize;
use ringmail_transport::verbs::{Context, ProtectionDomain, Transport};

use crate::device;
use crate::fabric::{Fabric, Wanted};
use crate::side::Side;
use crate::switching::{End, Source};

/// Both ends on one device. With `COPIES` frames are copied out of the mailbox before they are handed out.
pub(crate) struct Rdma<const COPIES: bool> {
    transport: Transport,
    immediates: Immediates,
    /// Of the device, if there is one.
    address: Option<IpAddr>,
}

impl Rdma<true> {
    pub(crate) fn on_roce() -> Self {
        Self::new(Transport::InfiniBand, Immediates::WherePossible)
    }
}

impl Rdma<false> {
    pub(crate) fn on_iwarp() -> Self {
        Self::new(Transport::Iwarp, Immediates::WherePossible)
    }

    pub(crate) fn on_roce_without_immediates() -> Self {
        Self::new(Transport::InfiniBand, Immediates::Never)
    }
}

/// The address of a device of this kind.
fn address_of(transport: Transport) -> Option<IpAddr> {
    device::addresses().into_iter().find(|address| {
        let context = Context::for_address(*address).unwrap_or_else(|error| panic!("{address}: {error}"));
        context.transport() == transport
    })
}

/// Whether there is one. If not, that is said.
fn is_there(address: Option<IpAddr>, transport: Transport) -> bool {
    assert!(
        address.is_some() || !device::is_required(),
        "no {transport:?} device among those in {}",
        device::VARIABLE
    );
    if address.is_none() {
        eprintln!("*** skipped, no RDMA device of transport {transport:?}");
    }
    address.is_some()
}

impl<const COPIES: bool> Rdma<COPIES> {
    fn new(transport: Transport, immediates: Immediates) -> Self {
        Self { transport, immediates, address: address_of(transport) }
    }
}

impl<const COPIES: bool> Fabric for Rdma<COPIES> {
    const KIND: LinkKind = LinkKind::Rdma;
    const FREED_BY_THE_PEER: bool = true;
    const REWRITABLE: bool = !COPIES;
    const IN_PLACE: bool = !COPIES;

    fn is_there(&self) -> bool {
        is_there(self.address, self.transport)
    }

    async fn pair(&self, wanted: Wanted) -> (Side, Side) {
        let settings = Settings {
            ring: RingSize::new(wanted.ring).unwrap(),
            immediates: self.immediates,
            // A notification that finds no receive request ends the connection.
            not_ready_retries: 0,
            copies: COPIES,
            timeout: Duration::from_secs(15),
            ..Settings::default()
        };
        let context = Context::for_address(self.address.unwrap()).unwrap();
        let listener = Listener::bind(&context).unwrap();
        // Small queues are full, and few notifications used up, most often.
        let lane = LaneSettings { links: 1, sends: 8, notifications: 16 };
        let prepare = async || {
            let domain = ProtectionDomain::new(&context).unwrap();
            Prepared::new(&Lane::new(&context, lane).unwrap(), &domain, &settings).await.unwrap()
        };
        let (connecting, accepting) = (prepare().await, prepare().await);
        let (left, right) = (connecting.end(), accepting.end());
        let ticket = Ticket::new([1; 16], [2; 16], [3; 32]);
        let expectation = listener.expect(ticket.clone(), settings.epoch);
        let ends = tokio::join!(
            connect(connecting, listener.address(), &right, &ticket),
            expectation.accept(accepting, &left)
        );
        let ends = [
            ends.0.unwrap_or_else(|error| panic!("{error}")),
            ends.1.unwrap_or_else(|error| panic!("{error}")),
        ];
        let check = if wanted.header_check { Check::Header } else { Check::Off };
        let agreed = Agreed { frame_limit: frame_limit(settings.ring), check };
        let expects_immediates =
            self.transport == Transport::InfiniBand && self.immediates == Immediates::WherePossible;
        ends.map(|end: VerbsEnd| {
            assert_eq!(end.link.uses_immediates(), expects_immediates);
            let link = Arc::clone(&end.link);
            Side::new(end.into_endpoint(agreed), None).with_rdma(link)
        })
        .into()
    }
}

/// RDMA links that take over from TCP.
#[derive(Clone)]
pub(crate) struct OverTcp {
    transport: Transport,
    address: Option<IpAddr>,
}

impl OverTcp {
    pub(crate) fn on_roce() -> Self {
        Self { transport: Transport::InfiniBand, address: address_of(Transport::InfiniBand) }
    }

    pub(crate) fn on_iwarp() -> Self {
        Self { transport: Transport::Iwarp, address: address_of(Transport::Iwarp) }
    }
}

impl Source for OverTcp {
    const KIND: LinkKind = LinkKind::Rdma;
    const COPIES: bool = true;

    fn is_there(&self) -> bool {
        is_there(self.address, self.transport)
    }

    async fn links(&self, epoch: u32, ends: &[End; 2]) -> Option<[Arc<dyn FastLink>; 2]> {
        let settings = Settings {
            ring: ends[0].mailbox.size(),
            epoch: Epoch::new(epoch as u8),
            not_ready_retries: 0,
            timeout: Duration::from_secs(15),
            ..Settings::default()
        };
        let context = Context::for_address(self.address?).unwrap();
        let listener = Listener::bind(&context).unwrap();
        let prepare = async |end: &End| {
            let lane = LaneSettings { links: 1, sends: 8, notifications: 16 };
            let lane = Lane::new(&context, lane).unwrap();
            let domain = ProtectionDomain::new(&context).unwrap();
            let prepared =
                Prepared::over(&lane, &domain, &settings, &end.staging, &end.mailbox).await.unwrap();
            // A case may keep frames for as long as it likes, or end.
            tokio::time::timeout(Duration::from_secs(5), end.link.protect()).await.ok()?;
            Some(prepared)
        };
        let (connecting, accepting) = (prepare(&ends[0]).await?, prepare(&ends[1]).await?);
        let (left, right) = (connecting.end(), accepting.end());
        let ticket = Ticket::new([1; 16], [epoch as u8; 16], [3; 32]);
        let expectation = listener.expect(ticket.clone(), settings.epoch);
        let (left, right) = tokio::join!(
            connect(connecting, listener.address(), &right, &ticket),
            expectation.accept(accepting, &left)
        );
        Some([left.unwrap().into_link(), right.unwrap().into_link()])
    }
}
