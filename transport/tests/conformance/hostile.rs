//! A peer that breaks the rules: the connection ends, and says which rule it was.

use std::time::Duration;

use ringmail_transport::endpoint::SendError;
use ringmail_transport::frame::{Check, FrameError, HEADER, Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::ring::{BLOCK, Incoming, Position};

use crate::fabric::{Fabric, Wanted};
use crate::raw::{Raw, plain, sealed};
use crate::side::Side;
use crate::traffic::name;

async fn victim_and_raw<F: Fabric>(fabric: &F) -> (Side, Raw) {
    let (victim, raw) = fabric.pair(Wanted::default()).await;
    (victim, Raw::new(raw))
}

/// Receives until the connection ends because a rule was broken, and checks that it stays so.
async fn broken_rule(victim: &Side) -> FrameError {
    let refused = async {
        loop {
            if let Err(error) = victim.receive(&mut drop).await {
                return error;
            }
        }
    };
    let error =
        tokio::time::timeout(Duration::from_secs(5), refused).await.expect("the peer gets away with it");
    let LinkError::Protocol(rule) = error else { panic!("{error}") };
    assert!(error.to_string().contains(&rule.to_string()), "{error}");
    match victim.endpoint.failure() {
        Some(LinkError::Protocol(kept)) => assert_eq!(*kept, rule),
        other => panic!("{other:?}"),
    }
    assert!(victim.turn(&mut |_| panic!("a frame came after the end")).is_err());
    let sent = victim.send(name(0, 0), &[]).await;
    assert!(sent.is_ok() || matches!(sent, Err(SendError::Dead(_))));
    rule
}

/// What a frame with this header does to the connection, when it is the first.
async fn first_frame<F: Fabric>(fabric: &F, change: impl FnOnce(&mut Vec<u8>)) -> FrameError {
    let (victim, raw) = victim_and_raw(fabric).await;
    let mut bytes = plain(0);
    change(&mut bytes);
    raw.announce(&bytes);
    broken_rule(&victim).await
}

pub(crate) async fn a_length_below_the_header_ends_the_connection<F: Fabric>(fabric: &F) {
    for length in [0u32, 1, 31] {
        let rule = first_frame(fabric, |bytes| bytes[..4].copy_from_slice(&length.to_le_bytes())).await;
        assert_eq!(rule, FrameError::TooShort { length });
    }
}

pub(crate) async fn a_length_beyond_the_agreed_limit_ends_the_connection<F: Fabric>(fabric: &F) {
    let limit = (Wanted::default().ring / 2) as u32;
    for length in [limit + 1, u32::MAX] {
        let rule = first_frame(fabric, |bytes| bytes[..4].copy_from_slice(&length.to_le_bytes())).await;
        assert_eq!(rule, FrameError::TooLong { length, limit });
    }
}

pub(crate) async fn an_unknown_kind_ends_the_connection<F: Fabric>(fabric: &F) {
    for kind in [0, 17, 255] {
        assert_eq!(first_frame(fabric, |bytes| bytes[4] = kind).await, FrameError::UnknownKind { kind });
    }
}

pub(crate) async fn an_undefined_flag_ends_the_connection<F: Fabric>(fabric: &F) {
    assert_eq!(first_frame(fabric, |bytes| bytes[5] = 0x80).await, FrameError::UnknownFlags { flags: 0x80 });
}

pub(crate) async fn a_frame_out_of_sequence_ends_the_connection<F: Fabric>(fabric: &F) {
    let rule = first_frame(fabric, |bytes| *bytes = plain(1)).await;
    assert_eq!(rule, FrameError::OutOfSequence { sequence: 1, expected: 0 });
}

pub(crate) async fn a_repeated_frame_ends_the_connection<F: Fabric>(fabric: &F) {
    let (victim, raw) = victim_and_raw(fabric).await;
    raw.announce(&plain(0));
    victim.receive(&mut drop).await.unwrap();
    raw.announce(&plain(0));
    assert_eq!(broken_rule(&victim).await, FrameError::OutOfSequence { sequence: 0, expected: 1 });
}

fn acknowledging(acknowledged: u32, sequence: u32) -> Vec<u8> {
    sealed(Header::new(Kind::Message, HEADER as u32), acknowledged, sequence, Check::Off, &[])
}

pub(crate) async fn an_acknowledgement_of_what_was_never_sent_ends_the_connection<F: Fabric>(fabric: &F) {
    let (victim, raw) = victim_and_raw(fabric).await;
    victim.send(name(0, 0), &[1; 3 * BLOCK - HEADER]).await.unwrap();
    raw.announce(&acknowledging(3, 0));
    victim.receive(&mut drop).await.unwrap();
    raw.announce(&acknowledging(4, 1));
    let rule = broken_rule(&victim).await;
    assert_eq!(rule, FrameError::BadAcknowledgement { acknowledged: Position(4), sent: Position(3) });
}

pub(crate) async fn an_acknowledgement_that_goes_back_ends_the_connection<F: Fabric>(fabric: &F) {
    let (victim, raw) = victim_and_raw(fabric).await;
    victim.send(name(0, 0), &[1; 3 * BLOCK - HEADER]).await.unwrap();
    raw.announce(&acknowledging(3, 0));
    victim.receive(&mut drop).await.unwrap();
    raw.announce(&acknowledging(2, 1));
    let rule = broken_rule(&victim).await;
    // Its low bits are taken for those of a position almost 2³² ahead.
    let acknowledged = Position((1 << 32) + 2);
    assert_eq!(rule, FrameError::BadAcknowledgement { acknowledged, sent: Position(3) });
}

pub(crate) async fn a_damaged_header_ends_the_connection_when_checks_are_on<F: Fabric>(fabric: &F) {
    for header_check in [false, true] {
        let (victim, raw) = fabric.pair(Wanted { header_check, ..Wanted::default() }).await;
        let raw = Raw::new(raw);
        let check = if header_check { Check::Header } else { Check::Off };
        let mut bytes = sealed(Header::new(Kind::Message, HEADER as u32), 0, 0, check, &[]);
        raw.announce(&bytes);
        victim.receive(&mut drop).await.unwrap();
        bytes = sealed(Header::new(Kind::Message, HEADER as u32), 0, 1, check, &[]);
        // A bit of the call id: any value of it is possible.
        bytes[9] ^= 4;
        raw.announce(&bytes);
        if header_check {
            let rule = broken_rule(&victim).await;
            assert!(matches!(rule, FrameError::BadCheck { .. }), "{rule}");
        } else {
            let mut call = None;
            victim.receive(&mut |frame| call = Some(frame.header().call)).await.unwrap();
            assert_eq!(call.unwrap().index, 4 << 8);
        }
    }
}

pub(crate) async fn a_frame_beyond_what_was_announced_is_not_delivered<F: Fabric>(fabric: &F) {
    let (victim, raw) = victim_and_raw(fabric).await;
    let length = 3 * BLOCK as u32;
    let whole = sealed(Header::new(Kind::Message, length), 0, 0, Check::Off, &[5; 3 * BLOCK - HEADER]);
    let at = raw.announce(&whole[..BLOCK]);
    if victim.endpoint.link().announces_whole_frames() {
        let rule = broken_rule(&victim).await;
        assert_eq!(rule, FrameError::Unannounced { at, length, produced: Position(1) });
    } else {
        // There it is only not complete yet.
        let early = tokio::time::timeout(Duration::from_millis(50), victim.receive(&mut drop)).await;
        assert!(early.is_err(), "a part of a frame was delivered");
        raw.announce(&whole[BLOCK..]);
        let mut came = None;
        victim.receive(&mut |frame| came = Some(frame.payload().to_vec())).await.unwrap();
        assert_eq!(came.unwrap(), [5; 3 * BLOCK - HEADER]);
    }
}

pub(crate) async fn an_impossible_position_ends_the_connection<F: Fabric>(fabric: &F) {
    let blocks = (Wanted::default().ring / BLOCK) as u64;
    for wrong in [blocks + 2, 0] {
        let (victim, raw) = victim_and_raw(fabric).await;
        raw.announce(&plain(0));
        victim.receive(&mut drop).await.unwrap();
        // One block was announced and released: from there one ring ahead is possible, and nothing before.
        if !raw.side.misannounce(Position(wrong)) {
            a_mailbox_is_never_overrun(&victim, &raw).await;
            continue;
        }
        let rule = broken_rule(&victim).await;
        let FrameError::BadPosition { produced, from, until } = rule else { panic!("{rule}") };
        assert!(produced < from || produced > until, "{rule}");
        assert_eq!((from, until), (Position(1), Position(1 + blocks)));
    }
}

/// Where positions are not told, a peer may send as much as it likes: what has no room is not taken.
async fn a_mailbox_is_never_overrun(victim: &Side, raw: &Raw) {
    let mut held: Vec<Incoming> = Vec::new();
    for sequence in 1..1000 {
        let mut bytes = plain(sequence);
        bytes.resize(BLOCK, sequence as u8);
        raw.announce(&bytes);
        victim.turn(&mut |frame| held.push(frame)).unwrap();
    }
    let blocks = victim.endpoint.mailbox().size().blocks().0 as usize;
    assert!(held.len() <= blocks, "{} frames in {blocks} blocks", held.len());
    assert!((1..).zip(&held).all(|(sequence, frame)| frame.header().sequence == sequence));
}

pub(crate) async fn changes_after_the_announcement_cannot_move_a_frames_bounds<F: Fabric>(fabric: &F) {
    let (victim, raw) = victim_and_raw(fabric).await;
    let frame = |length: u32, byte: u8| {
        sealed(Header::new(Kind::Message, length), 0, 0, Check::Off, &[byte; 100 - HEADER])
    };
    let at = raw.announce(&frame(100, 1));
    let mut came = None;
    victim.receive(&mut |frame| came = Some(frame)).await.unwrap();
    let came = came.unwrap();
    let before = *came.header();
    raw.overwrite(at, &frame(u32::MAX, 2));
    if F::REWRITABLE {
        raw.send(at);
        // Wherever the bytes live, they have changed by then.
        tokio::time::timeout(Duration::from_secs(5), async {
            while came.payload()[0] == 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .expect("the peer could not change its frame");
        assert_eq!(came.payload(), [2; 100 - HEADER]);
    } else {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(came.payload(), [1; 100 - HEADER]);
    }
    assert_eq!(*came.header(), before);
    drop(came);
    // The next frame is looked for behind the first as it was.
    raw.announce(&plain(1));
    victim.receive(&mut drop).await.unwrap();
}

pub(crate) async fn random_bytes_are_refused_or_delivered_and_never_worse<F: Fabric>(fabric: &F) {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..60 {
        let (victim, raw) = victim_and_raw(fabric).await;
        for sequence in 0..20 {
            // Mostly right, or nothing would get past the first check.
            let length = rng.u32(HEADER as u32..600);
            let kind = Kind::from_wire(rng.u8(1..17)).unwrap_or(Kind::Message);
            let payload: Vec<u8> = (HEADER as u32..length).map(|_| rng.u8(..)).collect();
            let mut bytes = sealed(Header::new(kind, length), 0, sequence, Check::Off, &payload);
            if rng.u8(0..3) == 0 {
                let at = rng.usize(0..bytes.len());
                bytes[at] ^= 1 << rng.u8(0..8);
            }
            raw.announce(&bytes);
            tokio::task::yield_now().await;
            let looked = victim.turn(&mut |frame| {
                assert_eq!(frame.payload().len(), frame.header().length as usize - HEADER);
                assert!(frame.header().length <= victim.endpoint.frame_limit() as u32);
            });
            match looked {
                Ok(_) => {}
                Err(LinkError::Protocol(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
