//! A thousand connections come and go in every way there is, and nothing stays behind. The only test of its process,
//! because it counts what the process holds.

mod peers;
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peers::{Background, Watched, within};
use ringmail::{Channel, LinkKind, LinkPolicy, Request};
use ringmail_transport::memory::mapped_bytes;
use support::{EchoClient, LINKS, Payload};

const SLOW: usize = 2;

#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    /// By kind.
    descriptors: BTreeMap<String, usize>,
    mapped: usize,
    abstract_sockets: usize,
}

impl Holdings {
    fn now() -> Self {
        let mut descriptors = BTreeMap::new();
        for entry in std::fs::read_dir("/proc/self/fd").expect("/proc").filter_map(Result::ok) {
            if let Ok(target) = std::fs::read_link(entry.path()) {
                let kind = target.to_string_lossy().split(":[").next().unwrap_or_default().to_owned();
                *descriptors.entry(kind).or_default() += 1;
            }
        }
        // The folder that is being read.
        descriptors.retain(|kind, _| !kind.starts_with("/proc/"));
        let ours = format!("@ringmail-{}-", std::process::id());
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("/proc");
        Self { descriptors, mapped: mapped_bytes(), abstract_sockets: sockets.matches(&ours).count() }
    }

    /// Waits until the process holds no more than this again.
    async fn come_back(&self, what: &str) {
        let patience = Instant::now() + Duration::from_secs(5);
        loop {
            let now = Self::now();
            if now == *self {
                return;
            }
            assert!(Instant::now() < patience, "after {what} there should be {self:#?}, not {now:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn connect(address: SocketAddr, kind: LinkKind) -> EchoClient {
    let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    let builder = Channel::builder(address.to_string()).link(LinkKind::Shm, shm);
    EchoClient::new(builder.connect().await.expect("connect"))
}

/// Everything that can be done to a connection.
async fn all_ways(address: SocketAddr, service: &Watched, cycles: usize) {
    for kind in LINKS {
        for _ in 0..cycles {
            // Dropped before its own tasks have begun.
            drop(connect(address, kind).await);
            // Dropped after a call.
            connect(address, kind).await.echo("x").await.expect("echo");
            // Dropped while a call is pending, and with what was lent still held.
            let client = connect(address, kind).await;
            let lent = client.echo(vec![5; 4000]).await.expect("echo");
            let mut pending = Box::pin(client.call(SLOW, Request::new(Payload::default())));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(pending.as_mut().poll(&mut cx).is_pending());
            drop(pending);
            drop(client);
            assert_eq!(lent, vec![5; 4000], "what was lent outlives the connection");
            drop(lent);
            // Refused by the client, after the server has made its offer.
            let refused = Channel::builder(address.to_string()).link(LinkKind::Rdma, LinkPolicy::Require);
            refused.connect().await.expect_err("no such link");
            // A stranger, and one that hangs up.
            let mut stranger = std::net::TcpStream::connect(address).expect("connect");
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("write");
            drop(stranger);
            drop(std::net::TcpStream::connect(address).expect("connect"));
        }
    }
    service.release.notify_waiters();
}

async fn nothing_is_left_behind(cycles: usize) {
    let before_server = Holdings::now();
    let service = Arc::new(Watched::default());
    let server = Background::start(service.server().handshake_timeout(Duration::from_secs(2)));
    let at_rest = Holdings::now();
    assert_eq!(at_rest.abstract_sockets, 1, "the server's own");
    all_ways(server.address, &service, 1).await;
    at_rest.come_back("one round of all ways").await;
    all_ways(server.address, &service, cycles).await;
    at_rest.come_back("a thousand connections").await;
    assert_eq!(service.begun.load(std::sync::atomic::Ordering::SeqCst), service.ended(), "handlers");
    drop(server);
    before_server.come_back("the server").await;
}

#[test]
fn connections_leave_nothing_behind() {
    // In each: 2 links, 3 good and 3 bad connections: 1,080 and as many.
    const CYCLES: usize = 180;
    for mut runtime in
        [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()]
    {
        let runtime = runtime.enable_all().build().expect("a runtime");
        // The descriptors of the blocking pool and of signals, if any, are made now.
        runtime.block_on(async { tokio::net::lookup_host("localhost:1").await.expect("localhost").count() });
        runtime.block_on(within(60, nothing_is_left_behind(CYCLES)));
    }
}
