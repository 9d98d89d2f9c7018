//! A client, for Ringmail's server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail::codegen::BoxFuture;
use ringmail::{Code, Request, Response, Server, Status};
use tokio::net::TcpStream;

use crate::document::{Wire, bare, crc32c, example, varied, without_acknowledged, without_time};
use crate::peers::{Background, within};
use crate::support::{Echo, EchoServer, Payload, server};

/// Connects and chooses TCP.
pub(crate) async fn client(address: SocketAddr, hello: &[u8]) -> Wire {
    let mut wire = Wire(TcpStream::connect(address).await.expect("connect"));
    wire.say(hello).await;
    wire.magic().await;
    let theirs = wire.message().await;
    assert_eq!(theirs[..4], [0x08, 1, 0x10, 1], "versions 1 to 1 come first");
    wire.say(&example("choice")).await;
    wire
}

/// The example `hello`, which also asks for a check (field 7).
fn hello_with_check() -> Vec<u8> {
    let mut hello = varied(example("hello"), [(8, &[16])]);
    hello.extend([0x38, 1]);
    hello
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_as_documented() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        wire.send(&example("request")).await;
        assert_eq!(without_time(wire.receive().await), example("response"));
        // The second frame, of another call, while the first response is not yet acknowledged.
        wire.send(&varied(example("request"), [(8, &[9, 0, 0, 0, 4]), (24, &[1])])).await;
        let second = [(8, &[9, 0, 0, 0, 4][..]), (16, &[2]), (24, &[1])];
        assert_eq!(without_time(wire.receive().await), varied(example("response"), second));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_is_sent_with_message_details_and_metadata() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        wire.send(&varied(example("request"), [(6, &[1]), (34, b"no")])).await;
        assert_eq!(without_time(wire.receive().await), example("error"));
        // There is no method with index 3.
        wire.send(&varied(example("request"), [(6, &[3]), (24, &[1])])).await;
        assert_eq!(wire.receive().await[6..8], (Code::Unimplemented as u16).to_le_bytes());
    })
    .await;
}

/// Its handlers never end, and panic when they are given up.
struct Explosive;

struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("on being dropped");
    }
}

impl Echo for Explosive {
    fn echo<'a>(&'a self, _: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async {
            let _grenade = Grenade;
            std::future::pending().await
        })
    }
}

/// Here the deadline is the server's alone. Ringmail's client would cancel the call as well, which gives its place back in
/// another way.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_when_its_deadline_ends_it_gives_its_place_back() {
    within(20, async {
        let service = EchoServer(Arc::new(Explosive));
        let server = Background::start(
            Server::builder().max_calls_per_connection(1).add_service(service).listen("127.0.0.1:0"),
        );
        let mut wire = client(server.address, &example("hello")).await;
        for call in 0..3 {
            wire.send(&varied(example("deadline"), [(8, &[9, 0, 0, 0, call]), (24, &[call])])).await;
            let answer = wire.receive().await;
            assert_eq!(answer[6..8], (Code::Internal as u16).to_le_bytes(), "call {call}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_arrives_and_a_deadline_ends_the_call() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        // The echo sends metadata back.
        wire.send(&example("deadline")).await;
        let answer = wire.receive().await;
        assert_eq!(answer[4..8], [2, 0x09, 0, 0], "a response with metadata");
        assert_eq!(answer[32..], example("deadline")[32..]);
        // The slow method would take 200 ms.
        let started = Instant::now();
        wire.send(&varied(example("deadline"), [(6, &[2]), (24, &[1]), (46, &[200])])).await;
        let answer = wire.receive().await;
        assert_eq!(answer[6..8], (Code::DeadlineExceeded as u16).to_le_bytes());
        assert!(started.elapsed() >= Duration::from_millis(50), "{:?}", started.elapsed());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_checks_headers_and_sends_checks_if_asked() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &hello_with_check()).await;
        wire.send(&example("checked")).await;
        let answer = wire.receive().await;
        assert_eq!(answer[28..32], crc32c(&answer[..28]).to_le_bytes());
        assert_eq!(answer[32..], example("response")[32..]);
        wire.send(&varied(example("checked"), [(24, &[1])])).await;
        wire.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_is_put_together_and_its_answer_comes_in_pieces() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        let message = [&example("fragmented")[40..44], &[b'x'; 40_000]].concat();
        let first = [&example("fragmented")[..40], &message[..16_344]].concat();
        wire.send(&first).await;
        // A call beside it.
        wire.send(&varied(example("request"), [(8, &[1]), (24, &[1])])).await;
        assert_eq!(wire.receive().await[8], 1);
        let head = varied(example("fragment"), [(0, &(32 + 23_660u32).to_le_bytes())]);
        let rest = [&head[..32], &message[16_344..]].concat();
        wire.send(&rest).await;

        let begins = wire.receive().await;
        assert_eq!(begins[4..8], [2, 0x0c, 0, 0], "a fragmented response");
        assert_eq!(begins[32..40], 40_004u64.to_le_bytes());
        let mut echoed = begins[40..].to_vec();
        while echoed.len() < 40_004 {
            let piece = wire.receive().await;
            assert_eq!(piece[4..16], example("fragment")[4..16]);
            echoed.extend(&piece[32..]);
        }
        assert!(echoed == message, "another message came back");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_need_not_answer_does_not_disturb_it() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        wire.send(&bare(14, 0, 0)).await;
        // A call that it does not know.
        wire.send(&example("cancel")).await;
        wire.send(&varied(example("fragment"), [(0, &[36, 0])])).await;
        wire.send(&bare(11, 5, 3)).await;
        wire.send(&bare(12, 0, 4)).await;
        wire.send(&bare(10, 0x0708_0000_0102, 5)).await;
        assert_eq!(without_acknowledged(wire.receive().await), bare(11, 0x0708_0000_0102, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_not_answered() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        // 200 ms in the slow method, given up at once.
        wire.send(&varied(example("request"), [(6, &[2]), (34, &[200])])).await;
        wire.send(&varied(example("cancel"), [(8, &[0; 8])])).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
        wire.send(&bare(10, 5, 2)).await;
        assert_eq!(wire.receive().await[4], 11, "a pong, not a response");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_announced() {
    within(20, async {
        let mut server = Background::start(server());
        let mut wire = client(server.address, &example("hello")).await;
        // A quarter of a second in the slow method.
        wire.send(&varied(example("request"), [(6, &[2]), (34, &[250])])).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.stop();
        assert_eq!(without_acknowledged(wire.receive().await), bare(12, 0, 0));
        assert_eq!(wire.receive().await[4..8], [2, 0x08, 0, 0], "the call is finished");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_not_offered_cannot_be_chosen() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = Wire(TcpStream::connect(server.address).await.expect("connect"));
        // The example says nothing of its host, so shared memory is not offered.
        wire.say(&example("hello")).await;
        wire.magic().await;
        wire.message().await;
        wire.say(&varied(example("choice"), [(6, b"shm")])).await;
        wire.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_breaks_a_rule_is_closed() {
    within(20, async {
        let server = Background::start(server());
        let breaches: [(usize, &[u8]); 9] = [
            (0, &[31]),
            (0, &[1, 0x80]),
            (4, &[2]),
            (4, &[3]),
            (4, &[16]),
            (5, &[0x80]),
            (16, &[1]),
            (24, &[1]),
            (32, &[255; 4]),
        ];
        for breach in breaches {
            let mut wire = client(server.address, &example("hello")).await;
            wire.send(&varied(example("deadline"), [breach])).await;
            wire.ends().await;
        }
        let mut wire = client(server.address, &example("hello")).await;
        wire.send(&example("request")).await;
        assert_eq!(without_time(wire.receive().await), example("response"));
    })
    .await;
}
