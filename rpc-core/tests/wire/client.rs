//! A server, for Ringmail's client.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ringmail::{Channel, ChannelBuilder, Code, LinkKind, LinkPolicy, Request};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::document::{Wire, bare, crc32c, example, varied, without_acknowledged};
use crate::peers::within;
use crate::support::{EchoClient, Payload};

/// A `Hello` as the example, with one method (field 8).
fn hello() -> Vec<u8> {
    let example = example("hello");
    let path = b"/test.Echo/Echo";
    let mut body = example[12..].to_vec();
    body.extend([0x42, path.len() as u8]);
    body.extend(path);
    let mut hello = example[..8].to_vec();
    hello.extend((body.len() as u32).to_le_bytes());
    hello.extend(body);
    hello
}

/// Listens, and does `then` with the first connection, whose bootstrap is done. The connection stays open until that was
/// awaited.
pub(crate) async fn server<F, R>(then: F) -> (SocketAddr, JoinHandle<(R::Output, OwnedFd)>)
where
    F: FnOnce(Wire) -> R + Send + 'static,
    R: Future<Output: Send + 'static> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    let serving = tokio::spawn(async move {
        let mut wire = Wire(listener.accept().await.expect("accept").0);
        let open = wire.0.as_fd().try_clone_to_owned().expect("a descriptor");
        wire.magic().await;
        let theirs = wire.message().await;
        assert_eq!(theirs[..4], [0x08, 1, 0x10, 1], "versions 1 to 1 come first");
        wire.say(&hello()).await;
        let choice = wire.message().await;
        // Behind it comes why the link is no better one.
        assert!(choice.starts_with(&example("choice")[4..]), "{choice:?}");
        (then(wire).await, open)
    });
    (address, serving)
}

fn builder(address: SocketAddr) -> ChannelBuilder {
    Channel::builder(address.to_string()).link(LinkKind::Shm, LinkPolicy::Off)
}

pub(crate) async fn client(address: SocketAddr) -> EchoClient {
    EchoClient::new(builder(address).connect().await.expect("connect"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_a_request_and_a_response() {
    within(20, async {
        let (address, serving) = server(async |mut wire| {
            assert_eq!(wire.receive().await, example("request"));
            wire.send(&example("response")).await;
            let second = wire.receive().await;
            wire.send(&varied(example("response"), [(12, &[1][..]), (16, &[2]), (24, &[1])])).await;
            second
        })
        .await;
        let channel = builder(address).connect().await.expect("connect");
        assert_eq!(channel.link_info().ring_bytes, 65_536);
        let client = EchoClient::new(channel);
        assert_eq!(client.echo("hi").await.expect("answered"), "hi");
        assert_eq!(client.echo("hi").await.expect("answered"), "hi");
        // It says that it has read the response, and counts frames and calls.
        let second = [(12, &[1][..]), (16, &[1]), (24, &[1])];
        assert_eq!(serving.await.expect("server").0, varied(example("request"), second));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_comes_with_message_details_and_metadata() {
    within(20, async {
        let (address, _serving) = server(async |mut wire| {
            wire.receive().await;
            wire.send(&example("error")).await;
            wire.ends().await;
        })
        .await;
        let client = client(address).await;
        let status = client.echo("hi").await.expect_err("an error");
        assert_eq!((status.code(), status.message()), (Code::DataLoss, "no"));
        assert_eq!(status.details(), b"\0details");
        assert_eq!(status.metadata().get("trailer").expect("metadata"), "t");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_and_metadata_travel_with_the_request() {
    within(20, async {
        let (address, serving) = server(async |mut wire| wire.receive().await).await;
        let mut request = Request::new(Payload { data: "hi".into() });
        request.set_timeout(Duration::from_millis(50));
        request.metadata_mut().insert("k", "v".parse().expect("a value"));
        let client = client(address).await;
        client.call(0, request).await.expect_err("nobody answers");
        let sent = serving.await.expect("server").0;
        let left = u32::from_le_bytes(sent[20..24].try_into().expect("four bytes"));
        assert!((1..=50_000).contains(&left), "{left} µs left");
        assert_eq!(varied(sent, [(20, &50_000u32.to_le_bytes())]), example("deadline"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_carry_a_check_if_either_side_wants_it() {
    within(20, async {
        let (address, serving) = server(async |mut wire| {
            let request = wire.receive().await;
            let mut response = example("response");
            let check = crc32c(&response[..28]);
            response = varied(response, [(28, &check.to_le_bytes())]);
            wire.send(&response).await;
            request
        })
        .await;
        let client = EchoClient::new(builder(address).header_check(true).connect().await.expect("connect"));
        assert_eq!(client.echo("hi").await.expect("answered"), "hi");
        assert_eq!(serving.await.expect("server").0, example("checked"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_comes_in_pieces() {
    within(20, async {
        let (address, serving) = server(async |mut wire| {
            let pieces = [wire.receive().await, wire.receive().await, wire.receive().await];
            wire.send(&example("response")).await;
            pieces
        })
        .await;
        let client = client(address).await;
        assert_eq!(client.echo(vec![b'x'; 40_000]).await.expect("answered"), "hi");
        let [first, second, last] = serving.await.expect("server").0;
        assert!(first.starts_with(&example("fragmented")), "{:x?}", &first[..48]);
        assert_eq!((first.len(), second.len(), last.len()), (16_384, 16_384, 7_340));
        assert!(last.starts_with(&example("fragment")), "{:x?}", &last[..36]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_a_call_up_says_so() {
    within(20, async {
        let (address, serving) = server(async |mut wire| {
            wire.receive().await;
            wire.receive().await
        })
        .await;
        let client = client(address).await;
        tokio::time::timeout(Duration::from_millis(20), client.echo("hi")).await.expect_err("nobody answers");
        assert_eq!(serving.await.expect("server").0, varied(example("cancel"), [(8, &[0; 8])]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_is_answered_a_skip_is_not_and_a_reset_ends_the_call() {
    within(20, async {
        let (address, serving) = server(async |mut wire| {
            wire.receive().await;
            wire.send(&bare(14, 0, 0)).await;
            wire.send(&bare(10, 0x0708_0000_0102, 1)).await;
            let pong = wire.receive().await;
            wire.send(&bare(6, 0, 2)).await;
            pong
        })
        .await;
        let client = client(address).await;
        let status = client.echo("hi").await.expect_err("it is given up");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let pong = serving.await.expect("server").0;
        assert_eq!(without_acknowledged(pong), bare(11, 0x0708_0000_0102, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_goaway_the_client_finishes_its_calls_and_closes() {
    within(20, async {
        let (address, serving) = server(async |mut wire| {
            wire.receive().await;
            wire.send(&bare(12, 0, 0)).await;
            wire.send(&varied(example("response"), [(24, &[1])])).await;
            wire.ends().await;
        })
        .await;
        let client = client(address).await;
        assert_eq!(client.echo("hi").await.expect("answered"), "hi");
        serving.await.expect("it closed");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_breaks_a_rule_is_left_with_the_rule_named() {
    let breaches: [(usize, &[u8], &str); 11] = [
        (0, &[31], "frame length 31 is below"),
        (0, &[1, 0x80], "frame length 32769 exceeds the agreed 32768"),
        (4, &[255], "frame kind 255 is not known"),
        (5, &[0x80], "flags 0b10000000"),
        (4, &[1], "Request frame cannot be sent in this direction"),
        (4, &[8], "frame kind 8 is not known"),
        (4, &[9], "RENDEZVOUS_DONE says neither yes nor no"),
        (24, &[7], "sequence 7 where 0 was next"),
        (16, &[255], "255 acknowledged where only"),
        (28, &[1], "header check"),
        (32, &[255; 4], "metadata block is malformed"),
    ];
    for (at, change, rule) in breaches {
        let (address, _serving) = server(async move |mut wire: Wire| {
            wire.receive().await;
            wire.send(&varied(example("error"), [(at, change)])).await;
            wire.ends().await;
        })
        .await;
        let client = client(address).await;
        let status = within(5, client.echo("hi")).await.expect_err(rule);
        assert!(status.message().contains(rule), "{rule:?} is not in {status}");
        if at < 32 {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains(&address.to_string()), "{status}");
        }
    }
}
