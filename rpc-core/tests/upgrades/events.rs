//! What is said in `tracing` events of RDMA that comes up, is lost, comes back, and does not come up.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use ringmail::{Channel, LinkKind, LinkPolicy};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::scripted::{Answer, serve};
use super::{calls_until, history, is_on};
use crate::confined::Player;
use crate::peers::within;
use crate::support::{EchoClient, server};
use crate::{BOUND, addresses, at, builder};

/// An event: its level and its fields, of which one is the message.
#[derive(Clone, Debug)]
struct Said {
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

static SAID: Mutex<Vec<Said>> = Mutex::new(Vec::new());

struct Listener;

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        SAID.lock().expect("not poisoned").push(Said { level: *event.metadata().level(), fields });
    }
}

/// Listens to all threads of the process from now on; returns where what is said from here on begins.
fn listen() -> usize {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Listener);
        tracing::subscriber::set_global_default(subscriber).expect("nobody else listens");
    });
    SAID.lock().expect("not poisoned").len()
}

/// Whose peer, by its address.
#[derive(Clone, Copy)]
enum At {
    /// The server with this address, as its client says.
    Client(SocketAddr),
    /// A client, as the server with this address says.
    Server(SocketAddr),
}

impl At {
    fn is_of(self, said: &Said) -> bool {
        // Before there is a connection, its peer is an address that a channel was made for.
        let peer = said.fields.get("peer").or_else(|| said.fields.get("address"));
        let peer = peer.and_then(|peer| peer.trim_start_matches("ringmail://").parse::<SocketAddr>().ok());
        match self {
            Self::Client(server) => peer == Some(server),
            Self::Server(server) => peer.is_some_and(|peer| peer.ip() == server.ip() && peer != server),
        }
    }
}

/// Waits for an event on one side, with this message and fields that have these parts; its place.
async fn hear(from: usize, whose: At, level: Level, message: &str, fields: &[(&str, &str)]) -> usize {
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        let said = SAID.lock().expect("not poisoned")[from..].to_vec();
        let has = |said: &Said| {
            let has = |&(name, part): &(&str, &str)| {
                said.fields.get(name).is_some_and(|field| field.contains(part))
            };
            said.level == level && whose.is_of(said) && has(&("message", message)) && fields.iter().all(has)
        };
        if let Some(place) = said.iter().position(has) {
            return from + place + 1;
        }
        assert!(Instant::now() < patience, "no {level} {message:?} with {fields:?} in {said:#?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn device(address: std::net::IpAddr) -> String {
    let found = ringmail::rdma::local_addresses().into_iter().find(|(local, _)| *local == address);
    found.expect("a device has it").1
}

#[tokio::test(flavor = "multi_thread")]
async fn coming_up_being_lost_and_coming_back_are_said_on_both_sides() {
    for address in addresses() {
        within(BOUND, async {
            let begin = listen();
            let server = at(address, server());
            let settle = Duration::from_millis(300);
            let channel = builder(&server).rdma_settle_time(settle).connect().await.expect("TCP");
            let client = EchoClient::new(channel.clone());
            calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
            channel.sever_rdma();
            let back = |channel: &Channel| history(channel).upgrades == 2;
            calls_until("RDMA is back", &client, back).await;
            let device = &device(address)[..];
            for whose in [At::Client(server.address), At::Server(server.address)] {
                let next = hear(begin, whose, Level::INFO, "connection up", &[("link", "tcp")]).await;
                let rdma = [("link", "rdma"), ("device", device)];
                let up = [rdma[0], rdma[1], ("upgrades", "1")];
                let next = hear(next, whose, Level::INFO, "taken over from TCP", &up).await;
                let lost = [rdma[0], rdma[1], ("fallbacks", "1"), ("reason", " ")];
                let next = hear(next, whose, Level::WARN, "a link has died; going on over TCP", &lost).await;
                let back = [rdma[0], rdma[1], ("upgrades", "2")];
                hear(next, whose, Level::INFO, "taken over from TCP", &back).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rdma_that_does_not_come_up_is_said_with_the_reason() {
    for address in addresses() {
        within(BOUND, async {
            let begin = listen();
            let listener = tokio::net::TcpListener::bind((address, 0)).await.expect("listen");
            let there = listener.local_addr().expect("an address");
            let serving = tokio::spawn(serve(listener, address, Answer::No));
            let channel = Channel::builder(there.to_string()).link(LinkKind::Shm, LinkPolicy::Off);
            let _channel = channel.connect().await.expect("TCP");
            let _open = serving.await.expect("the script");
            let fields =
                [("device", &device(address)[..]), ("reason", "the device has gone"), ("failures", "1")];
            let message = "another link has not come up; staying on TCP";
            hear(begin, At::Client(there), Level::WARN, message, &fields).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_connection_that_requires_rdma_is_said() {
    for address in addresses() {
        within(BOUND, async {
            let begin = listen();
            let (mut server, [there, _]) = Player::serve("exec \"$@\"", address);
            let builder = Channel::builder(there.to_string()).link(LinkKind::Shm, LinkPolicy::Off);
            let builder = builder.connect_timeout(Duration::from_secs(15));
            let _channel = builder.link(LinkKind::Rdma, LinkPolicy::Require).connect().await.expect("RDMA");
            let whose = At::Client(there);
            let next = hear(begin, whose, Level::INFO, "connection up", &[("link", "rdma")]).await;
            server.kill();
            // Killed: a server that ends in good order is left by the client.
            let lost = [("link", "rdma"), ("reason", " ")];
            hear(next, whose, Level::INFO, "connection lost", &lost).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_said_with_the_reason() {
    for address in addresses() {
        within(BOUND, async {
            let begin = listen();
            // RDMA is not wanted here: the connection goes without.
            let unwilling = at(address, server().link(LinkKind::Rdma, LinkPolicy::Off));
            let _channel = builder(&unwilling).connect().await.expect("TCP");
            for whose in [At::Client(unwilling.address), At::Server(unwilling.address)] {
                let fields = [("link", "tcp"), ("refusals", "switched off on the server")];
                hear(begin, whose, Level::INFO, "connection up", &fields).await;
            }
            // It is required: there is no connection.
            let requires = at(address, server().link(LinkKind::Rdma, LinkPolicy::Require));
            let channel =
                builder(&requires).link(LinkKind::Rdma, LinkPolicy::Off).connect_lazy().expect("a channel");
            let status = EchoClient::new(channel).echo("too late").await.expect_err("it is refused");
            assert!(status.message().contains("the server requires rdma"), "{status}");
            let reason = [("error", "the server requires rdma")];
            hear(begin, At::Server(requires.address), Level::WARN, "refused a connection", &reason).await;
            hear(begin, At::Client(requires.address), Level::WARN, "connecting failed", &reason).await;
        })
        .await;
    }
}
