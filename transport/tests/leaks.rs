//! What connections leave behind: nothing. One test, because it counts what the whole process holds.

use std::sync::Arc;
use std::time::Duration;

use ringmail_transport::bootstrap::hello::Hello;
use ringmail_transport::bootstrap::{self, Acceptor, LinkPolicies, LinkPolicy, Settings, frame_limit};
use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{Check, HEADER, Header, Kind};
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::link::sim::{SimConfig, SimNet};
use ringmail_transport::memory::mapped_bytes;
use ringmail_transport::ring::{Incoming, RingSize, Room};
use tokio::net::{TcpListener, TcpStream};

const CYCLES: usize = 1000;

/// What this process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    rings: usize,
    mappings: usize,
}

fn holdings() -> Holdings {
    Holdings {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        rings: mapped_bytes(),
        // Of rings and windows on them: they are the only files of that name.
        mappings: std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:ringmail").count(),
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Names in places where shared memory and sockets are often left.
fn names() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["/dev/shm", "/tmp"] {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        names.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    names.retain(|name| name.contains("ringmail-") || name.starts_with("/dev/shm"));
    names.sort();
    names
}

struct Server {
    listener: TcpListener,
    shm: Arc<ShmListener>,
}

impl Server {
    async fn start() -> Self {
        let (shm, socket) = ShmListener::bind().unwrap();
        tokio::spawn(Arc::clone(&shm).run(socket, Duration::from_secs(5)));
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), shm }
    }

    fn settings(kind: LinkKind) -> Settings {
        let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
        let links = LinkPolicies::default().with(LinkKind::Shm, shm);
        let timeout = Duration::from_millis(500);
        Settings { ring: RingSize::new(RingSize::MIN).unwrap(), links, timeout, ..Settings::default() }
    }

    async fn pair(&self, kind: LinkKind) -> [(Endpoint, Option<TcpStream>); 2] {
        let settings = Self::settings(kind);
        let acceptor = Acceptor::new(settings.clone(), Vec::new(), Some(Arc::clone(&self.shm)));
        let address = self.listener.local_addr().unwrap();
        let accept = async {
            let (socket, peer) = self.listener.accept().await.unwrap();
            acceptor.accept(socket, peer).await.unwrap()
        };
        let (server, client) = tokio::join!(accept, bootstrap::connect(address, &settings));
        [client.unwrap(), server].map(|established| (established.endpoint, established.watch))
    }

    /// A client that goes in the middle of the handshake.
    async fn broken_off(&self, after: &[u8]) {
        let settings = Self::settings(LinkKind::Shm);
        let acceptor = Acceptor::new(settings, Vec::new(), Some(Arc::clone(&self.shm)));
        let mut client = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let (socket, peer) = self.listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut client, after).await.unwrap();
        drop(client);
        assert!(acceptor.accept(socket, peer).await.is_err());
    }
}

fn send(end: &Endpoint, bytes: usize) {
    end.claim(bytes, Room::Data).unwrap().commit(&Header::new(Kind::Message, bytes as u32));
    end.flush();
}

async fn receive(end: &Endpoint) -> Incoming {
    let mut came = None;
    while came.is_none() {
        if end.turn(&mut |frame| came = Some(frame)).unwrap() == Turn::Frames(0) {
            std::future::poll_fn(|cx| end.arm(cx)).await.unwrap();
            end.link().woken();
        }
    }
    came.unwrap()
}

/// One connection's life; how it ends depends on the cycle.
async fn live(ends: [(Endpoint, Option<TcpStream>); 2], cycle: usize, settle: impl Fn()) {
    let [(left, left_watch), (right, right_watch)] = ends;
    send(&left, HEADER + 3000);
    settle();
    let frame = receive(&right).await;
    send(&right, HEADER);
    settle();
    drop(receive(&left).await);
    match cycle % 4 {
        0 => drop((frame, left, left_watch)),
        // Frames, and parts of them, outlive their connection.
        1 => {
            let lent = frame.into_bytes();
            drop((left, left_watch, right, right_watch));
            assert_eq!(lent.len(), 3000);
            return;
        }
        2 => {
            // Never flushed, never received.
            drop(left.claim(HEADER, Room::Data));
            send(&right, HEADER + 2000);
            let held = left.hold();
            drop(held);
            drop((right, right_watch, left, left_watch, frame));
            return;
        }
        _ => {
            let lent = frame.into_bytes();
            right.mailbox().detach_lent();
            drop((left, left_watch));
            assert_eq!(lent.len(), 3000);
        }
    }
    drop((right, right_watch));
}

async fn cycle(server: &Server, number: usize) {
    for kind in [LinkKind::Shm, LinkKind::Tcp] {
        live(server.pair(kind).await, number, || ()).await;
    }
    let ring = RingSize::new(RingSize::MIN).unwrap();
    let (net, first, second) =
        SimNet::pair(SimConfig { ring, seed: number as u64, ..SimConfig::default() }).unwrap();
    let agreed = Agreed { frame_limit: frame_limit(ring), check: Check::Off };
    let ends = [first, second].map(|end| (end.into_endpoint(agreed), None));
    live(ends, number, || net.settle()).await;

    let hello = Hello {
        version_min: 1,
        version_max: 1,
        ring_bytes: 1 << 20,
        host: ringmail_transport::link::shm::same_host_identity().ok(),
        ..Hello::default()
    };
    let mut said = b"RINGMAIL".to_vec();
    said.extend((prost::Message::encoded_len(&hello) as u32).to_le_bytes());
    prost::Message::encode(&hello, &mut said).unwrap();
    server.broken_off(&said[..number % (said.len() + 1)]).await;
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let names_before = names();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let task = runtime.spawn(async {
        let server = Server::start().await;
        for number in 0..50 {
            cycle(&server, number).await;
        }
        let (before, resident) = (settled(None).await, resident_bytes());
        for number in 0..CYCLES {
            cycle(&server, number).await;
        }
        assert_eq!(settled(Some(before)).await, before);
        let growth = resident_bytes().saturating_sub(resident);
        assert!(growth < 4 << 20, "{growth} bytes more are resident after {CYCLES} cycles");
    });
    runtime.block_on(task).unwrap();
    drop(runtime);
    assert_eq!(mapped_bytes(), 0);
    assert_eq!(names(), names_before);
}

/// What is held once tasks in the background have ended, which has a bound.
async fn settled(expected: Option<Holdings>) -> Holdings {
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if expected.is_some_and(|expected| expected == holdings()) {
            break;
        }
    }
    holdings()
}
