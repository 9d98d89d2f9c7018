//! Messages that are lent, over TCP: where nothing can be read by RDMA, and a peer can still break the rules.

use std::time::{Duration, Instant};

use ringmail::Code;

use crate::document::{Wire, bare, example, varied, without_acknowledged, without_time};
use crate::peers::{Background, within};
use crate::support::server;
use crate::{client, server as at_server};

/// Bytes of the message, and what it begins with.
const LENGTH: usize = 40_004;

fn message() -> Vec<u8> {
    [&example("fragmented")[40..44], &[b'x'; LENGTH - 4]].concat()
}

/// The example, for a message of this length.
fn lent(kind: u8, length: u64, sequence: u8) -> Vec<u8> {
    varied(example("lent"), [(4, &[kind]), (24, &[sequence]), (32, &length.to_le_bytes())])
}

fn fragment(bytes: &[u8], sequence: u8) -> Vec<u8> {
    let length = (32 + bytes.len() as u32).to_le_bytes();
    let head = varied(example("fragment")[..32].to_vec(), [(0, &length), (24, &[sequence])]);
    [&head[..], bytes].concat()
}

/// Two frames of at most a block each, at once.
fn together(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut blocks = vec![0xee; 128];
    blocks[..first.len()].copy_from_slice(first);
    blocks[64..64 + second.len()].copy_from_slice(second);
    blocks
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_read_is_answered_so_and_comes_in_fragments() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = at_server::client(server.address, &example("hello")).await;
        wire.send(&lent(1, LENGTH as u64, 0)).await;
        let done = varied(example("not-read"), [(16, &[0])]);
        assert_eq!(without_acknowledged(wire.receive().await), done);
        let message = message();
        wire.send(&fragment(&message[..30_000], 1)).await;
        wire.send(&fragment(&message[30_000..], 2)).await;
        let begins = wire.receive().await;
        assert_eq!(begins[4..8], [2, 0x0c, 0, 0], "the echo");
        assert_eq!(begins[32..40], (LENGTH as u64).to_le_bytes());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_is_answered_for_and_its_call_can_end() {
    within(20, async {
        let server = Background::start(server());
        let mut wire = at_server::client(server.address, &example("hello")).await;
        wire.send(&lent(1, 1 << 40, 0)).await;
        let mut seen = [wire.receive().await, wire.receive().await];
        seen.sort_by_key(|frame| frame[4]);
        assert_eq!((seen[0][4], &seen[0][6..8]), (2, &(Code::ResourceExhausted as u16).to_le_bytes()[..]));
        assert_eq!((seen[1][4], &seen[1][6..16]), (9, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]));
        // One that is cancelled while it is lent.
        let first = lent(1, LENGTH as u64, 1);
        let cancel = varied(example("cancel"), [(8, &[0; 8]), (24, &[2])]);
        wire.say(&together(&first, &cancel)).await;
        let done = wire.receive().await;
        assert_eq!((done[4], done[6]), (9, 1));
        wire.send(&fragment(&message()[..30_000], 3)).await;
        wire.send(&varied(example("request"), [(8, &[5]), (24, &[4])])).await;
        let answer = without_acknowledged(without_time(wire.receive().await));
        assert_eq!((answer[4], answer[8]), (2, 5), "the fragment was ignored");
    })
    .await;
}

/// What breaks a rule, as the frames of one write, from a client or a server.
fn breaches(kind: u8) -> Vec<(&'static str, Vec<u8>)> {
    let good = || lent(kind, LENGTH as u64, 0);
    let second = lent(kind, LENGTH as u64, 1);
    let alone = |bytes: Vec<u8>| {
        let mut block = bytes;
        block.resize(64, 0xee);
        block
    };
    let piece = fragment(&[b'x'; 8], 1);
    vec![
        ("an offer has 24 bytes", alone(varied(good(), [(0, &[55])]))),
        ("an offer has 24 bytes", alone(varied([&good()[..], &[0]].concat(), [(0, &[57])]))),
        ("nothing is lent", alone(lent(kind, 0, 0))),
        ("beyond the memory of its sender", alone(varied(good(), [(40, &[255; 8])]))),
        ("there is no such epoch", alone(varied(good(), [(52, &[16])]))),
        ("lent and comes in fragments", alone(varied(good(), [(5, &[0x44])]))),
        ("of a call that is being read", together(&good(), &second)),
        ("to a call that is being read", together(&good(), &second)),
        ("a fragment of what is being read", together(&good(), &piece)),
        ("for a call that has lent nothing", alone(bare(9, 0, 0))),
        ("neither yes nor no", alone(varied(bare(9, 0, 0), [(6, &[2])]))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_lends_against_the_rules_is_closed() {
    within(20, async {
        let server = Background::start(server());
        for (rule, bytes) in breaches(1) {
            let mut wire = at_server::client(server.address, &example("hello")).await;
            wire.say(&bytes).await;
            // What was in order before may have been answered.
            let closed = async {
                while let Some(frame) = wire.receive_or_end().await {
                    assert_eq!(frame[4], 9, "{rule}");
                }
            };
            within(5, closed).await;
        }
        let mut wire = at_server::client(server.address, &example("hello")).await;
        wire.send(&example("request")).await;
        assert_eq!(without_time(wire.receive().await), example("response"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lends_against_the_rules_is_left_with_the_rule_named() {
    for (rule, bytes) in breaches(2) {
        if rule == "of a call that is being read" {
            // The other side's words for it.
            continue;
        }
        let (address, _serving) = client::server(async move |mut wire: Wire| {
            wire.receive().await;
            wire.say(&bytes).await;
            while wire.receive_or_end().await.is_some() {}
        })
        .await;
        let client = client::client(address).await;
        let began = Instant::now();
        let status = within(5, client.echo("hi")).await.expect_err(rule);
        // Told of it, not come upon by chance when the bound above looked.
        assert!(began.elapsed() < Duration::from_secs(4), "{rule}: {:?}", began.elapsed());
        assert!(status.message().contains(rule), "{rule:?} is not in {status}");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_cannot_be_read_comes_in_fragments_and_what_nobody_wants_is_answered_for() {
    within(20, async {
        let (address, serving) = client::server(async |mut wire| {
            wire.receive().await;
            // A call that the client does not know.
            wire.send(&varied(lent(2, LENGTH as u64, 0), [(8, &[7])])).await;
            let unknown = wire.receive().await;
            wire.send(&lent(2, LENGTH as u64, 1)).await;
            let done = wire.receive().await;
            let message = message();
            wire.send(&fragment(&message[..30_000], 2)).await;
            wire.send(&fragment(&message[30_000..], 3)).await;
            [unknown, done]
        })
        .await;
        let client = client::client(address).await;
        let echoed = client.echo("hi").await.expect("answered");
        assert!(echoed.len() == LENGTH - 4 && echoed.iter().all(|byte| *byte == b'x'));
        let [unknown, done] = serving.await.expect("server").0;
        let expected = |call, sequence| varied(example("not-read"), [(8, &[call][..]), (24, &[sequence])]);
        assert_eq!(without_acknowledged(unknown), expected(7, 1));
        assert_eq!(without_acknowledged(done), expected(0, 2));
    })
    .await;
}
