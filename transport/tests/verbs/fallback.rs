//! Messages that are lent on an RDMA link which has taken over from TCP, and dies.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringmail_transport::bootstrap::frame_limit;
use ringmail_transport::endpoint::{Agreed, Endpoint};
use ringmail_transport::frame::{CallId, Check, Kind};
use ringmail_transport::immediate::Epoch;
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::switching::SwitchingLink;
use ringmail_transport::link::tcp::TcpLink;
use ringmail_transport::link::verbs::{Immediates, Prepared, Settings, connect};
use ringmail_transport::memory::Region;
use ringmail_transport::rendezvous::{Landed, Lendable, Offer};
use ringmail_transport::ring::{Mailbox, RingSize, Staging};
use tokio::sync::mpsc;

use crate::on_each;
use crate::pair::{Bench, send, settings, ticket};

const CALL: CallId = CallId { index: 1, generation: 0 };

/// Two ends on TCP.
fn over_tcp(ring: RingSize) -> [(Arc<Endpoint>, Arc<SwitchingLink>); 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (right, _) = listener.accept().unwrap();
    [left, right].map(|socket| {
        let (link, _) = SwitchingLink::new(TcpLink::new(OwnedFd::from(socket)).unwrap());
        let region = || Arc::new(Region::create(ring).unwrap());
        let mailbox = Arc::new(Mailbox::new(region(), Arc::clone(&link) as _, false));
        let agreed = Agreed { frame_limit: frame_limit(ring), check: Check::Off };
        let endpoint = Endpoint::switching(Staging::new(region()), mailbox, Arc::clone(&link), agreed);
        (Arc::new(endpoint), link)
    })
}

/// What happens at an end.
#[derive(Debug)]
enum Event {
    Landed(Landed),
    /// Another frame than an answer.
    Frame,
}

/// Receives for as long as the connection lives.
fn drive(endpoint: &Arc<Endpoint>) -> mpsc::UnboundedReceiver<Event> {
    let (happened, events) = mpsc::unbounded_channel();
    let endpoint = Arc::clone(endpoint);
    tokio::spawn(async move {
        loop {
            let turn = endpoint.turn(&mut |frame| {
                if frame.header().kind == Kind::RendezvousDone {
                    endpoint.answered(frame.header()).expect("it was lent");
                } else {
                    let _ = happened.send(Event::Frame);
                }
            });
            endpoint.land(&mut |landed| {
                let _ = happened.send(Event::Landed(landed));
            });
            if turn.is_err() || std::future::poll_fn(|cx| endpoint.arm(cx)).await.is_err() {
                return;
            }
            endpoint.link().woken();
        }
    });
    events
}

/// RDMA takes over.
async fn upgrade(bench: &Bench, ends: &[(Arc<Endpoint>, Arc<SwitchingLink>); 2], epoch: u32) {
    let settings = Settings { epoch: Epoch::new(epoch as u8), ..bench.settings.clone() };
    let prepare = async |side: usize| {
        let (endpoint, link) = &ends[side];
        let (staging, mailbox) = (endpoint.staging().region(), endpoint.mailbox().region());
        let (lane, domain) = (&bench.lanes[side], &bench.domains[side]);
        link.settled().await;
        let prepared = Prepared::over(lane, domain, &settings, staging, mailbox).await.unwrap();
        link.protect().await;
        assert!(link.begin(epoch));
        prepared
    };
    let (connecting, accepting) = (prepare(0).await, prepare(1).await);
    let (left, right) = (connecting.end(), accepting.end());
    let ticket = ticket();
    let expectation = bench.listener.expect(ticket.clone(), settings.epoch);
    let (connected, accepted) = tokio::join!(
        connect(connecting, bench.listener.address(), &right, &ticket),
        expectation.accept(accepting, &left)
    );
    ends[0].1.install(connected.unwrap().into_link());
    ends[1].1.install(accepted.unwrap().into_link());
    let patience = Instant::now() + Duration::from_secs(10);
    while ends.iter().any(|(endpoint, _)| endpoint.link_kind() != LinkKind::Rdma) {
        assert!(Instant::now() < patience, "RDMA does not take over");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lends a message, tells the peer what `lie` makes of where it lies, and waits until that has been dealt with on both sides.
async fn lend(
    ends: &[(Arc<Endpoint>, Arc<SwitchingLink>); 2],
    events: &mut mpsc::UnboundedReceiver<Event>,
    lie: impl FnOnce(Offer) -> Offer,
) -> (bool, Option<Bytes>) {
    let mut memory = ends[0].0.lend(1 << 20).expect("memory to lend");
    memory.bytes_mut().fill(7);
    let memory: Arc<dyn Lendable> = Arc::from(memory);
    let answer = ends[0].0.lent(CALL, &memory).expect("a place");
    let (fetch, _wanted) = ends[1].0.fetch(CALL, lie(memory.offer()), Bytes::new()).expect("not too many");
    ends[1].0.begin_fetch(fetch);
    // Fetches are begun by whoever receives, who may be asleep here.
    send(&ends[0].0, 5, b"look").await;
    let (mut landed, mut frames) = (None, 0);
    while landed.is_none() || frames == 0 {
        match events.recv().await.expect("the connection lives") {
            Event::Landed(Landed { message, .. }) => assert!(landed.replace(message).is_none(), "twice"),
            Event::Frame => frames += 1,
        }
    }
    let landed = landed.expect("it has ended");
    (answer.wait(&ends[0].0).await.expect("the connection lives"), landed)
}

async fn a_bad_key(address: IpAddr) {
    let bench = Bench::new(address, 4, settings(Immediates::WherePossible));
    let ends = over_tcp(bench.settings.ring);
    let (_left, mut right) = (drive(&ends[0].0), drive(&ends[1].0));
    assert!(ends[0].0.lend(1 << 20).is_none(), "not over TCP");
    upgrade(&bench, &ends, 1).await;
    let (answer, message) = lend(&ends, &mut right, |offer| offer).await;
    assert!(
        answer && message.is_some_and(|bytes| bytes.len() == 1 << 20 && bytes.iter().all(|byte| *byte == 7))
    );

    let (answer, message) = lend(&ends, &mut right, |offer| Offer { key: offer.key ^ 0x5500, ..offer }).await;
    assert!(!answer && message.is_none());
    for (endpoint, link) in &ends {
        link.settled().await;
        assert_eq!((endpoint.link_kind(), link.history().fallbacks), (LinkKind::Tcp, 1));
        assert!(endpoint.failure().is_none() && endpoint.lend(1 << 20).is_none());
    }
    send(&ends[0].0, 9, b"still there").await;
    assert!(matches!(right.recv().await, Some(Event::Frame)));

    // A link comes up again, and what was lent on the one before is refused.
    upgrade(&bench, &ends, 2).await;
    let (answer, message) = lend(&ends, &mut right, |offer| Offer { epoch: 1, ..offer }).await;
    assert!(!answer && message.is_none());
    let (answer, message) = lend(&ends, &mut right, |offer| offer).await;
    assert!(answer && message.is_some());
    assert!(ends.iter().all(|(endpoint, _)| endpoint.link_kind() == LinkKind::Rdma));
}

#[test]
fn a_key_that_opens_nothing_costs_the_rdma_link_and_not_the_connection() {
    on_each(Duration::from_secs(60), a_bad_key);
}
