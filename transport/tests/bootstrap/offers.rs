//! Who is offered shared memory, and who is told why not.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use ringmail_transport::bootstrap::hello::{Choice, Hello, HostIdentity, ShmOffer};
use ringmail_transport::bootstrap::{self, BootstrapError, LinkPolicies, LinkPolicy, Settings};
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::shm::{offer_refusal, same_host_identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::peer::{Server, TIMEOUT, answering, framed, settings};

fn own_identity() -> HostIdentity {
    same_host_identity().expect("/proc is mounted")
}

#[test]
fn only_processes_of_one_user_in_one_namespace_of_one_host_share_memory() {
    let own = own_identity();
    assert_eq!(offer_refusal(&own, &own), None);
    let refused = |change: fn(&mut HostIdentity)| {
        let mut peer = own.clone();
        change(&mut peer);
        offer_refusal(&own, &peer).expect("it was offered")
    };
    assert!(refused(|peer| peer.boot_id = "another".to_owned()).contains("another host"));
    let namespace = refused(|peer| peer.net_namespace = "net:[1]".to_owned());
    assert!(namespace.contains("net:[1]") && namespace.contains("share the namespace"), "{namespace}");
    let user = refused(|peer| peer.uid += 1);
    assert!(user.contains(&format!("uid {}", own.uid + 1)), "{user}");
}

/// What a server answers to a client with this identity.
async fn offer_to(host: Option<HostIdentity>) -> Hello {
    let server = Server::start(settings()).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let hello = Hello { version_min: 1, version_max: 1, ring_bytes: 16384, host, ..Hello::default() };
    client.write_all(&framed(true, &hello)).await.unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).await.unwrap();
    let mut answer = vec![0; u32::from_le_bytes(head[8..].try_into().unwrap()) as usize];
    client.read_exact(&mut answer).await.unwrap();
    bootstrap::hello::decode(&answer).unwrap()
}

#[tokio::test]
async fn the_server_says_why_it_offers_no_shared_memory() {
    let reason = |hello: Hello| {
        assert!(hello.shm.is_none());
        hello.refusals.into_iter().find(|refusal| refusal.link == "shm").expect("a reason").reason
    };
    let own = own_identity();
    assert!(offer_to(Some(own.clone())).await.shm.is_some());
    let elsewhere = HostIdentity { boot_id: "another".to_owned(), ..own.clone() };
    assert!(reason(offer_to(Some(elsewhere)).await).contains("another host"));
    let namespace = HostIdentity { net_namespace: "net:[1]".to_owned(), ..own };
    assert!(reason(offer_to(Some(namespace)).await).contains("namespace"));
    assert!(reason(offer_to(None).await).contains("/proc"));
}

#[tokio::test]
async fn a_link_that_was_not_offered_cannot_be_chosen() {
    for link in ["shm", "rdma", "telepathy"] {
        let server = Server::start(settings()).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        // Without an identity nothing is offered.
        let hello = Hello { version_min: 1, version_max: 1, ring_bytes: 16384, ..Hello::default() };
        client.write_all(&framed(true, &hello)).await.unwrap();
        let choice = Choice { link: link.to_owned(), ..Choice::default() };
        client.write_all(&framed(false, &choice)).await.unwrap();
        let error = server.outcome().await.expect_err("it got a link that was not offered");
        assert!(matches!(error, BootstrapError::Refused { .. }), "{link}: {error}");
    }
}

/// What a client with this policy makes of an offer of shared memory.
async fn connect_to(offer: ShmOffer, policy: LinkPolicy) -> Result<String, BootstrapError> {
    let (address, answered) = answering(|hello| Hello { shm: Some(offer), ..hello }).await;
    let links = LinkPolicies::default().with(LinkKind::Shm, policy);
    let connected = bootstrap::connect(address, &Settings { links, ..settings() }).await;
    drop(answered.await);
    connected.map(|established| {
        assert_eq!(established.endpoint.link_kind(), LinkKind::Tcp);
        established.refusals.iter().find(|refusal| refusal.kind == LinkKind::Shm).unwrap().reason.clone()
    })
}

fn offer(socket: &str) -> ShmOffer {
    ShmOffer { socket: socket.to_owned(), token: vec![7; 16] }
}

#[tokio::test]
async fn offers_that_lead_nowhere_leave_tcp_and_a_reason_or_an_error_if_required() {
    for (offer, expected) in [
        (offer("ringmail-nobody-listens-here"), "connect failed"),
        (ShmOffer { token: vec![1; 15], ..offer("x") }, "no valid token"),
        (offer(&"n".repeat(500)), "connect failed"),
    ] {
        let reason = connect_to(offer.clone(), LinkPolicy::Prefer).await.unwrap();
        assert!(reason.contains(expected), "{reason}");
        let error = connect_to(offer, LinkPolicy::Require).await.unwrap_err();
        assert!(matches!(error, BootstrapError::Required { kind: LinkKind::Shm, .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

fn listen(name: &str) -> UnixListener {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

fn unique(name: &str) -> String {
    format!("ringmail-test-{name}-{}-{}", std::process::id(), fastrand::u64(..))
}

#[tokio::test]
async fn a_shared_memory_socket_that_never_answers_does_not_hold_the_client() {
    let name = unique("silent");
    let _silent = listen(&name);
    let started = Instant::now();
    let outcome = connect_to(offer(&name), LinkPolicy::Require).await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("did not answer"), "{error}");
    assert!(started.elapsed() < 2 * TIMEOUT);
}

#[tokio::test]
async fn a_full_backlog_does_not_hold_the_clients_thread() {
    let name = unique("full");
    let listener = listen(&name);
    rustix::net::listen(&listener, 0).unwrap();
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    // One is waiting in the backlog; another would wait for it, in the kernel.
    let _waiting = UnixStream::connect_addr(&address).unwrap();
    let beats = tokio::spawn(async {
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let before = Instant::now();
            tokio::time::sleep(Duration::from_millis(5)).await;
            longest = longest.max(before.elapsed());
        }
        longest
    });
    let outcome = tokio::time::timeout(3 * TIMEOUT, connect_to(offer(&name), LinkPolicy::Require)).await;
    outcome.expect("the client is held").unwrap_err();
    // All this was one thread.
    let longest = beats.await.unwrap();
    assert!(longest < TIMEOUT, "the thread was held for {longest:?}");
}
