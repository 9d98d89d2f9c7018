//! TCP and another link, the simulated one or RDMA, which take turns as soon as something is going on, again and again.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringmail_transport::bootstrap::frame_limit;
use ringmail_transport::endpoint::{Agreed, Endpoint};
use ringmail_transport::frame::Check;
use ringmail_transport::immediate::Epoch;
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::sim::{Faults, SimConfig, SimNet};
use ringmail_transport::link::switching::{FastLink, SwitchingLink};
use ringmail_transport::link::tcp::TcpLink;
use ringmail_transport::memory::Region;
use ringmail_transport::ring::{Mailbox, RingSize, Staging};

use crate::fabric::{Fabric, Wanted};
use crate::side::Side;

/// Most blocks that go by between two changes.
const BETWEEN: u64 = 600;

/// Makes fast links, the one for each end, over rings that are in use.
pub(crate) trait Source: Clone + Send + Sync + 'static {
    const KIND: LinkKind;
    /// Frames are copied out of the mailbox while there is such a link.
    const COPIES: bool;

    fn is_there(&self) -> bool {
        true
    }

    fn links(
        &self,
        epoch: u32,
        ends: &[End; 2],
    ) -> impl Future<Output = Option<[Arc<dyn FastLink>; 2]>> + Send;
}

pub(crate) struct Restless<S> {
    source: S,
    /// The first fast link is kept.
    settles: bool,
}

impl<S> Restless<S> {
    pub(crate) fn once(source: S) -> Self {
        Self { source, settles: true }
    }

    pub(crate) fn again_and_again(source: S) -> Self {
        Self { source, settles: false }
    }
}

impl<S: Source> Fabric for Restless<S> {
    const KIND: LinkKind = S::KIND;
    const FREED_BY_THE_PEER: bool = false;
    const REWRITABLE: bool = false;
    const IN_PLACE: bool = !S::COPIES;

    fn is_there(&self) -> bool {
        self.source.is_there()
    }

    async fn pair(&self, wanted: Wanted) -> (Side, Side) {
        let ring = RingSize::new(wanted.ring).unwrap();
        let check = if wanted.header_check { Check::Header } else { Check::Off };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (right, _) = listener.accept().unwrap();
        let sides = [left, right].map(|socket| {
            let (link, _) = SwitchingLink::new(TcpLink::new(OwnedFd::from(socket)).unwrap());
            let region = || Arc::new(Region::create(ring).unwrap());
            let mailbox = Arc::new(Mailbox::new(region(), Arc::clone(&link) as _, false));
            let agreed = Agreed { frame_limit: frame_limit(ring), check };
            Side::new(Endpoint::switching(Staging::new(region()), mailbox, link, agreed), None)
        });
        let ends = sides.each_ref().map(|side| End {
            link: Arc::clone(side.endpoint.switching_link().unwrap()),
            #[cfg(feature = "rdma")]
            staging: Arc::clone(side.endpoint.staging().region()),
            mailbox: Arc::clone(side.endpoint.mailbox().region()),
            endpoint: Arc::downgrade(&side.endpoint),
        });
        tokio::spawn(change(ends, self.source.clone(), self.settles));
        sides.into()
    }
}

pub(crate) struct End {
    pub(crate) link: Arc<SwitchingLink>,
    #[cfg(feature = "rdma")]
    pub(crate) staging: Arc<Region>,
    pub(crate) mailbox: Arc<Region>,
    endpoint: Weak<Endpoint>,
}

/// Waits until both ends have moved so many blocks; `false` when one of them has ended.
async fn traffic(ends: &[End; 2], blocks: u64) -> bool {
    let moved = || {
        let each = ends.each_ref().map(|end| Some(end.endpoint.upgrade()?.staging().sealed().0));
        each[0].zip(each[1]).map(|(left, right)| left + right)
    };
    let Some(before) = moved() else { return false };
    loop {
        match moved() {
            None => return false,
            Some(now) if now - before >= blocks => return true,
            Some(_) => tokio::time::sleep(Duration::from_micros(300)).await,
        }
    }
}

async fn change<S: Source>(ends: [End; 2], source: S, settles: bool) {
    let mut rng = fastrand::Rng::new();
    for epoch in 1.. {
        // The cases that send little are about TCP alone.
        if !traffic(&ends, 100 + rng.u64(0..BETWEEN)).await {
            return;
        }
        for end in &ends {
            end.link.settled().await;
            if !end.link.begin(epoch) {
                return;
            }
        }
        let Some(links) = source.links(epoch, &ends).await else { return };
        for (end, link) in ends.iter().zip(links) {
            end.link.install(link);
            if rng.bool() {
                tokio::time::sleep(Duration::from_micros(rng.u64(0..3000))).await;
            }
        }
        if settles || !traffic(&ends, rng.u64(0..BETWEEN)).await {
            return;
        }
        let end = &ends[rng.usize(0..2)];
        if rng.bool() { end.link.sever() } else { end.link.abandon("time for a change") }
    }
}

/// Simulated links.
#[derive(Clone)]
pub(crate) struct Simulation;

impl Source for Simulation {
    const KIND: LinkKind = LinkKind::Sim;
    const COPIES: bool = false;

    async fn links(&self, epoch: u32, ends: &[End; 2]) -> Option<[Arc<dyn FastLink>; 2]> {
        let config = SimConfig {
            seed: fastrand::u64(..),
            ring: ends[0].mailbox.size(),
            immediates: fastrand::bool(),
            send_queue: 8,
            notifications: 16,
            epoch: Epoch::new(epoch as u8),
            faults: Faults { tear: true, loss: 20, stall: 20, retries: 30, ..Faults::default() },
            ..SimConfig::default()
        };
        let (net, links) = SimNet::between(&config, ends.each_ref().map(|end| Arc::clone(&end.mailbox)));
        std::thread::spawn(move || net.run());
        Some(links.map(|link| link as Arc<dyn FastLink>))
    }
}

/// Or the cases would say nothing of it.
#[test]
fn links_change_in_the_middle_of_traffic() {
    crate::run(async {
        let (left, right) = Restless::again_and_again(Simulation).pair(Wanted::default()).await;
        let (_left, _right) = (left.drive(drop), right.drive(drop));
        let link = left.endpoint.switching_link().unwrap();
        let mut number = 0;
        while link.history().upgrades < 10 || link.history().fallbacks < 10 {
            left.send(crate::traffic::name(0, number), &[1; 200]).await.unwrap();
            right.send(crate::traffic::name(1, number), &[2; 2000]).await.unwrap();
            number += 1;
        }
    });
}
