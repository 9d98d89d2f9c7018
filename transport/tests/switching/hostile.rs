//! A peer that writes to TCP whatever it wants, against one side that has a fast link, or is getting one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail_transport::frame::{CallId, Check, FrameError, HEADER, Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::link::sim::{SimConfig, SimLink, SimNet};
use ringmail_transport::link::switching::MESSAGE_LIMIT;
use ringmail_transport::ring::BLOCK;

use crate::world::{End, ring, sockets};

/// Position behind the victim's SWITCH, its only frame.
const SWITCHED: u64 = 1;

pub(crate) struct Peer {
    pub(crate) socket: TcpStream,
    sequence: u32,
    /// The first block that it has received.
    pub(crate) seen: [u8; BLOCK],
    /// What it does not use of the fast link.
    _fast: Option<Arc<SimLink>>,
}

impl Peer {
    fn frame(&mut self, kind: Kind, index: u32, payload: &[u8]) -> Vec<u8> {
        let length = (HEADER + payload.len()) as u32;
        let call = CallId { index, generation: 0 };
        let mut head = Header { call, ..Header::new(kind, length) }.encode();
        Header::seal(&mut head, 0, self.sequence, Check::Off);
        self.sequence += 1;
        let mut bytes = [&head[..], payload].concat();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn switch(&mut self, epoch: u32) {
        let frame = self.frame(Kind::Switch, epoch, &[]);
        self.send(&frame);
    }
}

fn fallback(epoch: u32, position: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = 1;
    bytes[4..8].copy_from_slice(&epoch.to_le_bytes());
    bytes[8..].copy_from_slice(&position.to_le_bytes());
    bytes
}

/// A victim that has been told that link 1 is to come.
pub(crate) fn pending() -> (End, Peer) {
    let [left, right] = sockets();
    let victim = End::new(left, Check::Off);
    assert!(victim.link.begin(1));
    right.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    (victim, Peer { socket: right, sequence: 0, seen: [0; BLOCK], _fast: None })
}

/// A victim whose link 1 is up and has sent SWITCH.
pub(crate) fn switched() -> (End, Peer) {
    let (victim, mut peer) = pending();
    let config = SimConfig { ring: ring(), ..SimConfig::default() };
    let region = Arc::clone(victim.endpoint.mailbox().region());
    let (_, [own, peers]) = SimNet::between(&config, [Arc::clone(&region), region]);
    victim.link.install(own);
    peer._fast = Some(peers);
    victim.endpoint.turn(&mut drop).unwrap();
    peer.socket.read_exact(&mut peer.seen).unwrap();
    assert_eq!((peer.seen[4], peer.seen[8]), (Kind::Switch as u8, 1));
    (victim, peer)
}

/// What ends the connection, which must be soon.
fn end_of(victim: &End) -> FrameError {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        match victim.endpoint.turn(&mut drop) {
            Ok(_) => std::thread::yield_now(),
            Err(LinkError::Protocol(error)) => return error,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing is wrong with it");
}

pub(crate) fn turns(victim: &End, until: impl Fn() -> bool) {
    let started = Instant::now();
    while !until() {
        assert!(started.elapsed() < Duration::from_secs(5));
        victim.endpoint.turn(&mut drop).unwrap();
    }
}

#[track_caller]
fn breaks_a_rule((victim, _): &(End, Peer), rule: &str) {
    let error = end_of(victim);
    assert!(matches!(error, FrameError::BadSwitch { .. }), "{error}");
    assert!(error.to_string().contains(rule), "{error}");
}

#[test]
fn switch_that_nobody_waits_for_ends_the_connection() {
    let [left, right] = sockets();
    let mut pair =
        (End::new(left, Check::Off), Peer { socket: right, sequence: 0, seen: [0; BLOCK], _fast: None });
    pair.1.switch(0);
    breaks_a_rule(&pair, "no other link was to take over");
}

#[test]
fn switch_of_another_epoch_ends_the_connection() {
    for epoch in [0, 2, u32::MAX] {
        let mut pair = pending();
        pair.1.switch(epoch);
        breaks_a_rule(&pair, "another epoch");
    }
}

#[test]
fn what_is_not_fallback_behind_switch_ends_the_connection() {
    for (bytes, rule) in [
        (&[7; 16][..], "not a record"),
        (&fallback(2, SWITCHED)[..], "another epoch"),
        // Together with SWITCH, or not.
        (&[1; 17][..], "more than FALLBACK"),
        (&[1; 4000][..], "more than FALLBACK"),
    ] {
        let mut pair = switched();
        let frame = pair.1.frame(Kind::Switch, 1, &[]);
        pair.1.send(&[&frame, bytes].concat());
        breaks_a_rule(&pair, rule);
        if bytes.len() == 16 {
            let mut pair = switched();
            pair.1.switch(1);
            pair.0.endpoint.turn(&mut drop).unwrap();
            pair.1.send(&bytes[..9]);
            pair.0.endpoint.turn(&mut drop).unwrap();
            pair.1.send(&bytes[9..]);
            breaks_a_rule(&pair, rule);
        }
    }
}

#[test]
fn fallback_to_where_nothing_was_sent_or_is_left_ends_the_connection() {
    for position in [0, SWITCHED + 1, SWITCHED + 1000, u64::MAX] {
        let (victim, mut peer) = switched();
        peer.switch(1);
        peer.send(&fallback(1, position));
        let error = end_of(&victim);
        assert!(matches!(error, FrameError::BadAcknowledgement { .. }), "{position}: {error}");
    }
}

#[test]
fn fallback_before_the_other_side_has_switched_ends_the_connection() {
    let mut pair = pending();
    pair.1.switch(1);
    pair.1.send(&fallback(1, 0));
    breaks_a_rule(&pair, "before its sender can have seen SWITCH");
}

#[test]
fn a_crossing_by_the_rules_comes_to_its_end_and_the_epoch_is_used_up() {
    let mut pair = switched();
    pair.1.switch(1);
    pair.1.send(&fallback(1, SWITCHED));
    let mut answer = [0; 16];
    turns(&pair.0, || pair.0.link.is_settled());
    pair.1.socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer, fallback(1, 1));
    pair.1.switch(1);
    breaks_a_rule(&pair, "no other link was to take over");
}

#[test]
fn messages_arrive_and_are_bounded_in_size_and_number() {
    let (mut victim, mut peer) = pending();
    let longest = peer.frame(Kind::Upgrade, 0, &[9; MESSAGE_LIMIT]);
    peer.send(&longest);
    turns(&victim, || victim.endpoint.mailbox().consumed().0 > 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(victim.messages.next()), Some(vec![9; MESSAGE_LIMIT]));
    victim.link.tell(vec![3; 70]);
    victim.endpoint.turn(&mut drop).unwrap();
    let mut frame = [0; 2 * BLOCK];
    peer.socket.read_exact(&mut frame).unwrap();
    assert_eq!((frame[4], &frame[HEADER..HEADER + 70]), (Kind::Upgrade as u8, &[3; 70][..]));

    let mut pair = pending();
    let longer = pair.1.frame(Kind::Upgrade, 0, &[9; MESSAGE_LIMIT + 1]);
    pair.1.send(&longer);
    breaks_a_rule(&pair, "too long");

    let mut pair = pending();
    for _ in 0..5 {
        let message = pair.1.frame(Kind::Upgrade, 0, &[1]);
        pair.1.send(&message);
    }
    breaks_a_rule(&pair, "too many");
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_connection() {
    let (victim, mut peer) = switched();
    peer.switch(1);
    turns(&victim, || victim.endpoint.mailbox().consumed().0 == 1);
    peer.send(&fallback(1, SWITCHED));
    turns(&victim, || victim.link.is_settled());
    let mut head = Header::new(Kind::Message, HEADER as u32).encode();
    Header::seal(&mut head, 500, peer.sequence, Check::Off);
    peer.send(&head);
    peer.send(&[0; BLOCK - HEADER]);
    assert!(matches!(end_of(&victim), FrameError::BadAcknowledgement { .. }));
}

#[test]
fn the_end_of_tcp_is_the_end_of_the_connection() {
    for has_switched in [false, true] {
        let (victim, mut peer) = switched();
        if has_switched {
            peer.switch(1);
            victim.endpoint.turn(&mut drop).unwrap();
        }
        drop(peer.socket);
        let started = Instant::now();
        let error = loop {
            assert!(started.elapsed() < Duration::from_secs(5), "it goes on without TCP");
            if let Err(error) = victim.endpoint.turn(&mut drop) {
                break error;
            }
        };
        assert!(matches!(error, LinkError::PeerClosed), "{error}");
    }
}
