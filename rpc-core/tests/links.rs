//! Which link is used, under every pair of policies, and what is said of those that are not.

mod peers;
mod support;

use peers::{Background, within};
use prost::Message;
use ringmail::{Channel, Code, ConnectError, LinkKind, LinkPolicy, Request};
use ringmail_transport::bootstrap::hello::{Hello, HostIdentity, MAGIC};
use support::{EchoClient, Payload, server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use LinkPolicy::{Off, Prefer, Require};

/// What comes of a client's and a server's policy for shared memory.
enum Expected {
    Shm,
    /// TCP, and the reason why not shared memory.
    Tcp(&'static str),
    /// An error that says this.
    Refused(&'static str),
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pair_of_policies_has_its_link_or_its_reason() {
    const HERE: &str = "switched off on this side";
    const THERE: &str = "switched off on the server";
    let cases = [
        (Prefer, Prefer, Expected::Shm),
        (Prefer, Require, Expected::Shm),
        (Prefer, Off, Expected::Tcp(THERE)),
        (Require, Prefer, Expected::Shm),
        (Require, Require, Expected::Shm),
        (Require, Off, Expected::Refused(THERE)),
        (Off, Prefer, Expected::Tcp(HERE)),
        (Off, Require, Expected::Refused("tcp: the server requires shm")),
        (Off, Off, Expected::Tcp(HERE)),
    ];
    within(60, async {
        for (client, server_policy, expected) in cases {
            let case = format!("client {client:?}, server {server_policy:?}");
            let server = Background::start(server().link(LinkKind::Shm, server_policy));
            let address = server.address.to_string();
            let builder = Channel::builder(address.as_str()).link(LinkKind::Shm, client);
            // A lazy channel tells its calls what connecting at once tells the application.
            let lazy = EchoClient::new(builder.clone().connect_lazy().expect("an address"));
            match (builder.connect().await, expected) {
                (Ok(channel), Expected::Shm) => {
                    let info = channel.link_info();
                    assert_eq!(info.kind, Some(LinkKind::Shm), "{case}: {info}");
                    assert_eq!(info.refusals, [], "{case}");
                    assert!(info.to_string().starts_with(&format!("shm to {address} (ringmail ")), "{info}");
                    assert_eq!(lazy.echo("x").await.expect("echo"), "x", "{case}");
                }
                (Ok(channel), Expected::Tcp(reason)) => {
                    let info = channel.link_info();
                    assert_eq!(info.kind, Some(LinkKind::Tcp), "{case}: {info}");
                    let [refusal] = &info.refusals[..] else { panic!("{case}: {info:?}") };
                    assert_eq!(refusal.kind, LinkKind::Shm, "{case}");
                    assert!(refusal.reason.contains(reason), "{case}: {refusal}");
                    assert!(info.to_string().contains(&format!("no shm: {}", refusal.reason)), "{info}");
                    assert_eq!(lazy.echo("x").await.expect("echo"), "x", "{case}");
                }
                (Err(error), Expected::Refused(reason)) => {
                    let text = error.to_string();
                    assert!(text.contains(reason) && text.contains(&address), "{case}: {text}");
                    let status = lazy.echo("x").await.expect_err("refused as well");
                    assert_eq!(status.code(), Code::Unavailable, "{case}: {status}");
                    let message = status.message();
                    assert!(message.contains(reason) && message.contains(&address), "{case}: {status}");
                }
                (Ok(channel), Expected::Refused(_)) => panic!("{case}: {}", channel.link_info()),
                (Err(error), _) => panic!("{case}: {error}"),
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_link_the_error_gives_the_reason_for_each() {
    within(20, async {
        let server = Background::start(server());
        let builder = Channel::builder(server.address.to_string());
        let error = builder
            .link(LinkKind::Shm, Off)
            .link(LinkKind::Tcp, Off)
            .connect()
            .await
            .expect_err("nothing is allowed");
        let text = error.to_string();
        assert!(matches!(error, ConnectError::Bootstrap(_)), "{error:?}");
        for part in
            [server.address.to_string().as_str(), "tcp is switched off", "shm: switched off on this side"]
        {
            assert!(text.contains(part), "{text}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_can_refuse_tcp_and_says_so_to_clients_that_have_nothing_else() {
    within(20, async {
        let server = Background::start(server().link(LinkKind::Tcp, Off));
        let builder = || Channel::builder(server.address.to_string());
        assert_eq!(builder().connect().await.expect("connect").link_info().kind, Some(LinkKind::Shm));
        let error = builder().link(LinkKind::Shm, Off).connect().await.expect_err("nothing is left");
        let text = error.to_string();
        for part in ["shm: switched off on this side", "tcp: switched off on the server"] {
            assert!(text.contains(part), "{text}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_this_host_lacks_cannot_be_required() {
    within(20, async {
        let server = Background::start(server());
        let builder = Channel::builder(server.address.to_string()).link(LinkKind::Rdma, Require);
        let lazy = EchoClient::new(builder.clone().connect_lazy().expect("an address"));
        let text = builder.connect().await.expect_err("no such link").to_string();
        assert!(text.contains("rdma") && text.contains(&server.address.to_string()), "{text}");
        let status = lazy.call(0, Request::new(Payload::default())).await.expect_err("no such link");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), text, "calls are told the same");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_tcp_is_required_shared_memory_is_not_taken() {
    within(20, async {
        let server = Background::start(server());
        let builder = Channel::builder(server.address.to_string()).link(LinkKind::Tcp, Require);
        let info = builder.connect().await.expect("TCP is always there").link_info();
        assert_eq!(info.kind, Some(LinkKind::Tcp));
        assert_eq!(info.to_string().split_once("; ").expect("a refusal").1, "no shm: this side requires tcp");

        let server = Background::start(support::server().link(LinkKind::Tcp, Require));
        let channel = Channel::connect(server.address.to_string()).await.expect("TCP is always there");
        let info = channel.link_info();
        assert_eq!(info.kind, Some(LinkKind::Tcp));
        assert_eq!(
            info.to_string().split_once("; ").expect("a refusal").1,
            "no shm: the server requires tcp"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_checks_are_on_when_either_side_wants_them() {
    within(20, async {
        for (client, at_server) in [(true, false), (false, true), (true, true)] {
            let server = Background::start(server().header_check(at_server));
            for policy in [Require, Off] {
                let builder = Channel::builder(server.address.to_string()).header_check(client);
                let channel = builder.link(LinkKind::Shm, policy).connect().await.expect("connect");
                let client = EchoClient::new(channel);
                for bytes in [0, 100, 300_000] {
                    assert_eq!(client.echo(vec![9; bytes]).await.expect("echo").len(), bytes);
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_smaller_ring_of_the_two_sides_is_used() {
    within(20, async {
        for (client, at_server, agreed) in [(64, 256, 64), (256, 64, 64), (1024, 1024, 1024), (16, 65536, 16)]
        {
            let server = Background::start(server().ring_size(at_server << 10));
            for policy in [Require, Off] {
                let builder = Channel::builder(server.address.to_string()).ring_size(client << 10);
                let channel = builder.link(LinkKind::Shm, policy).connect().await.expect("connect");
                assert_eq!(channel.link_info().ring_bytes, agreed << 10);
                let client = EchoClient::new(channel);
                assert_eq!(client.echo(vec![9; 200_000]).await.expect("echo").len(), 200_000);
            }
        }
    })
    .await;
}

/// A server's HELLO to a client that says it runs at `host`.
async fn hello_to(address: std::net::SocketAddr, host: Option<HostIdentity>) -> Hello {
    let mut socket = TcpStream::connect(address).await.expect("connect");
    let hello = Hello { version_min: 1, version_max: 1, ring_bytes: 1 << 16, host, ..Hello::default() };
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(hello.encoded_len() as u32).to_le_bytes());
    hello.encode(&mut bytes).expect("room");
    socket.write_all(&bytes).await.expect("write");
    let mut magic = [0; 8];
    socket.read_exact(&mut magic).await.expect("magic");
    assert_eq!(&magic, MAGIC);
    let mut answer = vec![0; socket.read_u32_le().await.expect("length") as usize];
    socket.read_exact(&mut answer).await.expect("message");
    Hello::decode(&answer[..]).expect("a HELLO")
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_is_offered_only_to_processes_of_the_same_user_on_the_same_host() {
    within(20, async {
        let server = Background::start(server());
        let here = ringmail_transport::link::shm::same_host_identity().expect("/proc");
        let hello = hello_to(server.address, Some(here.clone())).await;
        assert!(hello.shm.is_some() && hello.refusals.is_empty(), "{hello:?}");
        let namespace = "net:[1]".to_owned();
        for (host, reason) in [
            (Some(HostIdentity { boot_id: "other".into(), ..here.clone() }), "another host"),
            (
                Some(HostIdentity { net_namespace: namespace, ..here.clone() }),
                "another network namespace (net:[1]",
            ),
            (
                Some(HostIdentity { uid: here.uid + 1, ..here.clone() }),
                "only used between processes of one user",
            ),
            (None, "could not tell which host"),
        ] {
            let hello = hello_to(server.address, host).await;
            assert_eq!(hello.shm, None, "{reason}");
            let [refusal] = &hello.refusals[..] else { panic!("{hello:?}") };
            assert!(refusal.link == "shm" && refusal.reason.contains(reason), "{refusal:?}");
        }
    })
    .await;
}
