//! Heap allocations per frame in the transport alone: none.
#![allow(clippy::print_stderr)] // The figures measured are for whoever reads the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail_tests::allocations;
use ringmail_transport::bootstrap::{Acceptor, LinkPolicy, Settings, connect};
use ringmail_transport::endpoint::{Endpoint, Turn};
use ringmail_transport::frame::{Header, Kind};
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::ring::Room;
use tokio::net::{TcpListener, TcpStream};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const WARM_UP: u32 = 1_000;
/// Many times the ring, so that it wraps.
const FRAMES: u32 = 20_000;
const PATIENCE: Duration = Duration::from_secs(20);

struct Pair {
    client: Endpoint,
    server: Endpoint,
    /// Their ends would be the connection's.
    _watches: [Option<TcpStream>; 2],
}

async fn pair(kind: LinkKind) -> Pair {
    let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    let mut settings = Settings::default();
    settings.links = settings.links.with(LinkKind::Shm, shm);
    let (shm, socket) = ShmListener::bind().expect("bind");
    let serving = tokio::spawn(Arc::clone(&shm).run(socket, Duration::from_secs(5)));
    let acceptor = Acceptor::new(settings.clone(), Vec::new(), Some(shm));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    let accept = async {
        let (socket, peer) = listener.accept().await.expect("accept");
        acceptor.accept(socket, peer).await.expect("a connection")
    };
    let (server, client) = tokio::join!(accept, connect(address, &settings));
    let client = client.expect("a connection");
    serving.abort();
    assert_eq!(client.endpoint.link_kind(), kind);
    Pair { client: client.endpoint, server: server.endpoint, _watches: [client.watch, server.watch] }
}

/// Sends a frame of `bytes` bytes and receives it at the other end.
fn pass(from: &Endpoint, to: &Endpoint, bytes: usize) {
    let claim = from.claim(bytes, Room::Data).expect("there is room");
    claim.commit(&Header::new(Kind::Request, bytes as u32));
    from.flush();
    let (mut seen, until) = (0, Instant::now() + PATIENCE);
    while seen == 0 {
        assert!(Instant::now() < until, "the frame did not arrive");
        let turn = to.turn(&mut |frame| assert_eq!(frame.header().length as usize, bytes));
        if let Turn::Frames(frames) = turn.expect("the link lives") {
            seen += frames;
        }
    }
}

/// One test, because the allocator counts for the whole process.
#[tokio::test]
async fn frames_of_any_size_pass_without_an_allocation() {
    for kind in [LinkKind::Shm, LinkKind::Tcp] {
        let Pair { client, server, _watches } = pair(kind).await;
        let mut allocated = 0;
        for round in 0..WARM_UP + FRAMES {
            if round == WARM_UP {
                allocated = allocations::count();
            }
            let bytes = 32 + (round as usize * 997) % 20_000;
            pass(&client, &server, bytes);
            pass(&server, &client, bytes / 2 + 32);
        }
        let allocated = allocations::count() - allocated;
        eprintln!("{kind}: {allocated} allocations for {} frames", 2 * FRAMES);
        assert_eq!(allocated, 0, "{kind}");
    }
}
