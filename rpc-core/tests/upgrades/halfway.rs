//! RDMA that fails after HELLO and before its first message has been answered: at a server that is required to have it, and
//! at one from which calls could go on over TCP.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ringmail::{Channel, LinkKind, LinkPolicy};
use ringmail_transport::bootstrap::hello::{Choice, Hello, RdmaAnswer, RdmaEnd, RdmaOffer, Upgrade};
use ringmail_transport::immediate::Epoch;
use ringmail_transport::link::verbs::{
    BringUpError, Lane, LaneSettings, Listener, Prepared, Settings, Ticket, VerbsEnd,
};
use ringmail_transport::verbs::{Context, MemoryRegion, ProtectionDomain};
use tokio::net::TcpListener;

use super::history;
use super::scripted::Script;
use crate::peers::{until, within};
use crate::{BOUND, addresses};

const TIMEOUT: Duration = Duration::from_secs(3);
/// What emulation adds.
const LATE: Duration = Duration::from_secs(2);

const SESSION: [u8; 16] = [1; 16];
const TOKEN: [u8; 16] = [2; 16];
const KEY: [u8; 32] = [3; 32];

/// A server's side of RDMA, which goes as far as it is wanted to.
struct Rdma {
    listener: Listener,
    lane: Arc<Lane>,
    domain: Arc<ProtectionDomain>,
    settings: Settings,
}

/// A connection that is on its way up.
type Accepting = Pin<Box<dyn Future<Output = Result<VerbsEnd, BringUpError>> + Send>>;

impl Rdma {
    fn new(address: IpAddr, epoch: u8) -> Self {
        let context = Context::for_address(address).expect("a device");
        Self {
            listener: Listener::bind(&context).expect("it listens"),
            lane: Lane::new(&context, LaneSettings::default()).expect("a lane"),
            domain: ProtectionDomain::new(&context).expect("a domain"),
            settings: Settings { epoch: Epoch::new(epoch), ..Settings::default() },
        }
    }

    /// Registers memory, and expects a client with this end.
    async fn expect(&self, client: RdmaEnd) -> (RdmaEnd, Accepting) {
        let prepared = Prepared::new(&self.lane, &self.domain, &self.settings).await.expect("memory");
        let end = prepared.end().into();
        let ticket = Ticket::new(SESSION, TOKEN, KEY);
        let expectation = self.listener.expect(ticket, self.settings.epoch);
        let client = client.into();
        (end, Box::pin(async move { expectation.accept(prepared, &client).await }))
    }
}

/// Goes on until the client has been accepted, and no further.
async fn until_accepted(accepting: &mut Accepting) {
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        // First there is nobody; then there is, and is accepted.
        polls += 1;
        assert!(accepting.as_mut().poll(cx).is_pending(), "it is up already");
        if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// How a server goes on when it is asked for its end of the RDMA connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    HangsUp,
    Refuses,
    SaysNothing,
    /// It answers, and nobody is there.
    Absent,
    /// It accepts the RDMA connection, and that is all.
    Accepts,
    /// It accepts it, and takes it down.
    AcceptsAndDrops,
}

async fn hello(listener: TcpListener, manager: SocketAddr) -> (Script, Choice) {
    let mut script = Script::accept(listener).await;
    let theirs: Hello = script.hear(true).await;
    let offer = RdmaOffer {
        device: "none".into(),
        address: manager.to_string(),
        session: SESSION.to_vec(),
        token: TOKEN.to_vec(),
        key: KEY.to_vec(),
    };
    let hello = Hello { host: None, rdma: Some(offer), methods: vec!["/test.Echo/Echo".into()], ..theirs };
    script.say(true, &Hello { nonce: vec![9; 16], ..hello }).await;
    let choice = script.hear(false).await;
    (script, choice)
}

/// A server at which RDMA is tried before there is a link; until the client goes.
async fn serve_required(listener: TcpListener, rdma: Rdma, then: Then) {
    let manager = rdma.manager(then);
    let (mut script, choice) = hello(listener, manager).await;
    let client = choice.attempt.expect("it requires RDMA");
    let (end, accepting) = rdma.expect(client).await;
    let answer = match then {
        Then::HangsUp => return,
        Then::Refuses => RdmaAnswer { refusal: "no queue pair is left".into(), ..RdmaAnswer::default() },
        _ => RdmaAnswer { end: Some(end), ..RdmaAnswer::default() },
    };
    if then != Then::SaysNothing {
        script.say(false, &answer).await;
    }
    let _held = then.go_on(accepting).await;
    script.until_closed().await;
}

/// A server at which calls begin on TCP; what its client says in the end.
async fn serve_preferred(listener: TcpListener, rdma: Rdma, then: Then) -> (Upgrade, Script) {
    let manager = rdma.manager(then);
    let (mut script, choice) = hello(listener, manager).await;
    assert!(choice.upgrade, "{choice:?}");
    let wish = script.asked().await;
    let (end, accepting) = rdma.expect(wish.end.expect("its end")).await;
    let (end, token, address) = (Some(end), TOKEN.to_vec(), manager.to_string());
    script.upgrade(&Upgrade { epoch: wish.epoch, end, token, address, refusal: String::new() }).await;
    let _held = then.go_on(accepting).await;
    (script.asked().await, script)
}

impl Rdma {
    /// Where the connection manager is said to be.
    fn manager(&self, then: Then) -> SocketAddr {
        let address = self.listener.address();
        if then == Then::Absent { SocketAddr::new(address.ip(), 9) } else { address }
    }
}

impl Then {
    /// As far as this server goes. What is returned is to be held.
    async fn go_on(self, mut accepting: Accepting) -> Option<Accepting> {
        if !matches!(self, Self::Accepts | Self::AcceptsAndDrops) {
            return None;
        }
        until_accepted(&mut accepting).await;
        (self == Self::Accepts).then_some(accepting)
    }
}

fn builder(server: SocketAddr) -> ringmail::ChannelBuilder {
    Channel::builder(server.to_string()).link(LinkKind::Shm, LinkPolicy::Off).connect_timeout(TIMEOUT)
}

/// Whatever was registered and made is gone again.
async fn nothing_is_left() {
    until("links are taken down", || ringmail_transport::link::verbs::lingering() == 0).await;
    until("no memory is registered", || MemoryRegion::registered_bytes() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_is_required_the_connection_ends_with_the_reason_in_time() {
    for address in addresses() {
        for (then, reason) in [
            (Then::HangsUp, "closed the connection or it broke while waiting for its end of the RDMA"),
            (Then::Refuses, "is required but not available: no queue pair is left"),
            (Then::SaysNothing, "did not finish the handshake within 3s: waiting for its end of the RDMA"),
            (Then::Absent, "refused the RDMA connection"),
            (Then::Accepts, "the peer's greeting took too long"),
            (Then::AcceptsAndDrops, "died before it was used"),
        ] {
            within(BOUND, async {
                let listener = TcpListener::bind((address, 0)).await.expect("listen");
                let there = listener.local_addr().expect("an address");
                let serving = tokio::spawn(serve_required(listener, Rdma::new(address, 0), then));
                let started = Instant::now();
                let error = builder(there).link(LinkKind::Rdma, LinkPolicy::Require).connect().await;
                let (error, after) = (error.expect_err("there is no RDMA").to_string(), started.elapsed());
                eprintln!("{then:?}: after {after:?}: {error}");
                assert!(
                    error.contains(reason) && error.contains(&there.ip().to_string()),
                    "{then:?}: {error}"
                );
                assert!(after < TIMEOUT + LATE, "{then:?}: {after:?}");
                serving.await.expect("the script");
                nothing_is_left().await;
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_is_not_calls_stay_on_tcp_with_the_reason_in_time() {
    for address in addresses() {
        for (then, reason) in [
            (Then::Accepts, "the peer's greeting took too long"),
            (Then::AcceptsAndDrops, "died before it was used"),
        ] {
            within(BOUND, async {
                let listener = TcpListener::bind((address, 0)).await.expect("listen");
                let there = listener.local_addr().expect("an address");
                let serving = tokio::spawn(serve_preferred(listener, Rdma::new(address, 1), then));
                let started = Instant::now();
                let channel = builder(there).connect().await.expect("TCP");
                let (refusal, _script) = serving.await.expect("the script");
                until("it has failed", || history(&channel).failures == 1).await;
                let (info, after) = (channel.link_info(), started.elapsed());
                eprintln!("{then:?}: after {after:?}: {info}");
                assert_eq!(info.kind, Some(LinkKind::Tcp));
                assert!(info.to_string().contains(reason), "{then:?}: {info}");
                assert!(refusal.refusal.contains(reason), "{then:?}: {refusal:?}");
                assert!(after < TIMEOUT + LATE, "{then:?}: {after:?}");
                drop(channel);
                nothing_is_left().await;
            })
            .await;
        }
    }
}
