//! Two real processes. The second is this test binary again, told by the environment that it is the peer: it runs the
//! same test in the other role.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail_transport::bootstrap::{self, Acceptor, LinkPolicies, LinkPolicy, Settings};
use ringmail_transport::frame::HEADER;
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::link::{LinkError, LinkKind};
use ringmail_transport::ring::RingSize;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::delivery::checked;
use crate::side::Side;
use crate::traffic::{name, payload};

/// Tells the peer's process where to connect to.
const PEER_OF: &str = "RINGMAIL_TEST_PEER_OF";

fn settings(kind: LinkKind) -> Settings {
    let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    let links = LinkPolicies::default().with(LinkKind::Shm, shm);
    Settings { ring: RingSize::new(RingSize::MIN).unwrap(), links, ..Settings::default() }
}

/// Runs one of two roles: the peer's in the process that `own` has started.
fn in_two_processes<O, P>(kind: LinkKind, own: impl FnOnce(Host) -> O, peer: impl FnOnce(Side) -> P)
where
    O: Future<Output = ()>,
    P: Future<Output = ()>,
{
    crate::run(async {
        let Ok(address) = std::env::var(PEER_OF) else {
            return own(Host::start(kind).await).await;
        };
        let address: SocketAddr = address.parse().unwrap();
        let established = bootstrap::connect(address, &settings(kind)).await.unwrap();
        assert_eq!(established.endpoint.link_kind(), kind);
        peer(Side::new(established.endpoint, established.watch)).await;
    });
}

/// Bounds a step, so that one that hangs is known by its name.
async fn within<T>(step: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(8), work).await.unwrap_or_else(|_| panic!("{step}: this hangs"))
}

/// Starts peers and accepts their connections.
struct Host {
    listener: TcpListener,
    acceptor: Acceptor,
}

/// A process that does not outlive the test, whatever becomes of it.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    async fn start(kind: LinkKind) -> Self {
        let (shm, socket) = ShmListener::bind().unwrap();
        tokio::spawn(Arc::clone(&shm).run(socket, Duration::from_secs(5)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let acceptor = Acceptor::new(settings(kind), Vec::new(), Some(shm));
        Self { listener, acceptor }
    }

    async fn peer(&self) -> (Peer, Side) {
        let test = std::thread::current().name().expect("tests are named").to_owned();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--test-threads=1"])
            .env(PEER_OF, self.listener.local_addr().unwrap().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let child = Peer(child);
        let (socket, address) = self.listener.accept().await.unwrap();
        let established = self.acceptor.accept(socket, address).await.unwrap();
        (child, Side::new(established.endpoint, established.watch))
    }
}

/// Sends back what comes, until the other side has gone.
async fn echo(side: Side) {
    let (frames, mut arrived) = mpsc::unbounded_channel();
    let driver = side.drive(move |frame| {
        let _ = frames.send((frame.header().call, frame.payload().to_vec()));
    });
    while let Some((call, bytes)) = arrived.recv().await {
        if side.send(call, &bytes).await.is_err() {
            break;
        }
    }
    let error = driver.await.unwrap();
    assert!(matches!(error, LinkError::PeerClosed), "{error}");
}

fn frames_go_there_and_back_between_processes(kind: LinkKind) {
    let own = async |host: Host| {
        let (mut child, side) = host.peer().await;
        let longest = side.endpoint.frame_limit() - HEADER;
        let mut arrived = checked(&side, longest);
        let sender = side.handle();
        let sends = tokio::spawn(async move {
            for number in 0..2000 {
                sender.send(name(1, number), &payload(name(1, number), longest)).await.unwrap();
            }
        });
        for number in 0..2000 {
            assert_eq!(arrived.recv().await, Some((1, number)));
        }
        sends.await.unwrap();
        side.endpoint.fail(LinkError::Closed("the test is over"));
        drop((side, arrived));
        let status = tokio::task::spawn_blocking(move || child.0.wait().unwrap()).await.unwrap();
        assert!(status.success(), "the peer did not see a clean end");
    };
    in_two_processes(kind, own, echo);
}

/// Sends without end, or is silent, until it is killed.
async fn until_killed(side: Side) {
    let mut load = false;
    side.send(name(0, 0), &[]).await.unwrap();
    side.receive(&mut |frame| load = frame.header().call.index == 1).await.unwrap();
    let driver = side.drive(drop);
    while load && side.send(name(0, 1), &[9; 300]).await.is_ok() {}
    driver.await.unwrap();
}

fn a_killed_peer_is_noticed_at_once(kind: LinkKind) {
    let own = async |host: Host| {
        let mut delays = Vec::new();
        for round in 0..12 {
            let (mut child, side) = within("connecting", host.peer()).await;
            within("the first frame", side.receive(&mut drop)).await.unwrap();
            // Idle and in mid-load, in turn.
            side.send(name(round % 2, 0), &[]).await.unwrap();
            let driver = side.drive(drop);
            let waits = tokio::spawn({
                let side = side.handle();
                async move { while side.send(name(0, 0), &[1; 2000]).await.is_ok() {} }
            });
            tokio::time::sleep(Duration::from_millis(10)).await;
            let killed = Instant::now();
            child.0.kill().unwrap();
            let error = within("noticing the kill", driver).await.unwrap();
            delays.push(killed.elapsed());
            assert!(matches!(error, LinkError::PeerClosed), "{error}");
            tokio::time::timeout(Duration::from_secs(1), waits).await.expect("a sender still waits").unwrap();
            child.0.wait().unwrap();
        }
        delays.sort_unstable();
        // A busy machine may delay one or the other.
        assert!(delays[delays.len() / 2] < Duration::from_millis(50), "{delays:?}");
    };
    in_two_processes(kind, own, until_killed);
}

mod shm {
    use ringmail_transport::link::LinkKind;

    #[test]
    fn frames_go_there_and_back_between_processes() {
        super::frames_go_there_and_back_between_processes(LinkKind::Shm);
    }

    #[test]
    fn a_killed_peer_is_noticed_at_once() {
        super::a_killed_peer_is_noticed_at_once(LinkKind::Shm);
    }
}

mod tcp {
    use ringmail_transport::link::LinkKind;

    #[test]
    fn frames_go_there_and_back_between_processes() {
        super::frames_go_there_and_back_between_processes(LinkKind::Tcp);
    }

    #[test]
    fn a_killed_peer_is_noticed_at_once() {
        super::a_killed_peer_is_noticed_at_once(LinkKind::Tcp);
    }
}
