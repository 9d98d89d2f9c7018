//! The examples of `docs/protocol.md` are what is sent and understood.

use std::io::Read;

use prost::Message;
use ringmail_transport::bootstrap::hello::Upgrade;
use ringmail_transport::frame::HEADER;
use ringmail_transport::ring::BLOCK;

use crate::hostile::{pending, switched, turns};

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

fn example(name: &str) -> Vec<u8> {
    let (_, rest) = DOCUMENT.split_once(&format!("```text {name}\n")).expect("no such example");
    let (shown, _) = rest.split_once("```").expect("the end of the example");
    let digits: Vec<_> = shown.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

#[test]
fn links_change_as_documented() {
    let (victim, mut peer) = switched();
    assert_eq!(peer.seen[..HEADER], example("switch"));
    let mut frame = example("switch");
    frame.resize(BLOCK, 0xee);
    peer.send(&frame);
    peer.send(&example("fallback"));
    turns(&victim, || victim.link.is_settled());
    let mut record = [0; 16];
    peer.socket.read_exact(&mut record).unwrap();
    assert_eq!(record[..], example("fallback"));
}

#[test]
fn what_is_said_of_a_link_is_as_documented() {
    let (mut victim, mut peer) = pending();
    let mut frame = example("upgrade");
    let message = Upgrade { epoch: 1, refusal: "no".to_owned(), ..Upgrade::default() };
    assert_eq!(Upgrade::decode(&frame[HEADER..]).unwrap(), message);
    victim.link.tell(message.encode_to_vec());
    victim.endpoint.turn(&mut drop).unwrap();
    let mut sent = vec![0; BLOCK];
    peer.socket.read_exact(&mut sent).unwrap();
    assert_eq!(sent[..frame.len()], frame);
    frame.resize(BLOCK, 0xee);
    peer.send(&frame);
    turns(&victim, || victim.endpoint.mailbox().consumed().0 > 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let told = runtime.block_on(victim.messages.next()).unwrap();
    assert_eq!(Upgrade::decode(told.as_slice()).unwrap(), message);
}
