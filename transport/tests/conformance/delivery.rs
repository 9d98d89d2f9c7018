//! Every frame arrives once, in order, intact.

use std::collections::BTreeMap;

use ringmail_transport::frame::{HEADER, Header, Kind};
use ringmail_transport::ring::{BLOCK, Incoming, RingSize, Room};
use tokio::sync::mpsc;

use crate::fabric::{Fabric, Wanted};
use crate::side::Side;
use crate::traffic::{check, name, payload};

/// Receives from a side until it ends; the frames' names go to the returned channel once their bytes are checked.
pub(crate) fn checked(side: &Side, longest: usize) -> mpsc::UnboundedReceiver<(u32, u32)> {
    let (names, arrived) = mpsc::unbounded_channel();
    side.drive(move |frame: Incoming| {
        check(&frame, longest);
        let call = frame.header().call;
        // Nobody listens any more when the case is over.
        let _ = names.send((call.index, call.generation));
    });
    arrived
}

async fn send_all(side: &Side, sender: u32, count: u32, longest: usize) {
    for number in 0..count {
        let call = name(sender, number);
        side.send(call, &payload(call, longest)).await.unwrap();
    }
}

pub(crate) async fn frames_arrive_once_in_order_and_intact<F: Fabric>(fabric: &F) {
    for (ring, header_check) in [(RingSize::MIN, false), (4 * RingSize::MIN, true), (256 * 1024, false)] {
        let (left, right) = fabric.pair(Wanted { ring, header_check }).await;
        let longest = left.endpoint.frame_limit() - HEADER;
        let count = 600;
        let (mut at_left, mut at_right) = (checked(&left, longest), checked(&right, longest));
        let expect = |sender| {
            move |arrived: Vec<(u32, u32)>| {
                assert_eq!(arrived, (0..count).map(|number| (sender, number)).collect::<Vec<_>>());
            }
        };
        let collect = async |arrived: &mut mpsc::UnboundedReceiver<_>| {
            let mut all = Vec::new();
            while all.len() < count as usize {
                all.push(arrived.recv().await.expect("the connection goes on"));
            }
            all
        };
        // Both ways at once: acknowledgements travel with frames of the other direction.
        let (.., from_right, from_left) = tokio::join!(
            send_all(&left, 1, count, longest),
            send_all(&right, 2, count, longest),
            collect(&mut at_left),
            collect(&mut at_right),
        );
        expect(2)(from_right);
        expect(1)(from_left);
        let laps = left.endpoint.staging().sealed().0 / u64::from(left.endpoint.staging().size().blocks().0);
        assert!(laps > 10, "only {laps} times around a ring of {ring} bytes");
    }
}

pub(crate) async fn frames_of_many_producers_arrive_once_and_in_each_ones_order<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let (producers, count, longest) = (8, 400, 700);
    let mut arrived = checked(&right, longest);
    let _acknowledgements = left.drive(|_| ());
    for producer in 0..producers {
        let side = left.handle();
        tokio::spawn(async move { send_all(&side, producer, count, longest).await });
    }
    let mut next = BTreeMap::new();
    for _ in 0..producers * count {
        let (producer, number) = arrived.recv().await.expect("the connection goes on");
        let next = next.entry(producer).or_insert(0);
        assert_eq!(number, *next, "of producer {producer}");
        *next += 1;
    }
    assert!(arrived.try_recv().is_err(), "a frame arrived twice");
}

pub(crate) async fn frames_of_every_length_around_a_block_arrive<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted { header_check: true, ..Wanted::default() }).await;
    let limit = left.endpoint.frame_limit();
    let lengths: Vec<usize> = (HEADER..=3 * BLOCK).chain([limit - BLOCK, limit - 1, limit]).collect();
    let _acknowledgements = left.drive(|_| ());
    let (lengths_seen, mut arrived) = mpsc::unbounded_channel();
    right.drive(move |frame| {
        let length = frame.header().length as usize;
        assert!(frame.payload().iter().all(|byte| *byte == length as u8));
        let _ = lengths_seen.send(length);
    });
    for length in &lengths {
        left.send(name(0, 0), &vec![*length as u8; length - HEADER]).await.unwrap();
    }
    for length in lengths {
        assert_eq!(arrived.recv().await, Some(length));
    }
    let room = Room::Data;
    let error = left.endpoint.claim(limit + 1, room).unwrap_err().to_string();
    assert!(error.contains("at most half"), "{error}");
}

pub(crate) async fn abandoned_claims_leave_no_trace<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let mut arrived = checked(&right, 200);
    let _acknowledgements = left.drive(|_| ());
    let mut rng = fastrand::Rng::with_seed(7);
    let mut sent = 0;
    for _ in 0..1000 {
        if rng.bool() {
            // Never used, and mostly larger than what is.
            let claim = left.endpoint.claim_wait(rng.usize(HEADER..1000), Room::Data).await.unwrap();
            drop(claim);
            left.endpoint.flush();
        } else {
            left.send(name(0, sent), &payload(name(0, sent), 200)).await.unwrap();
            sent += 1;
        }
    }
    for number in 0..sent {
        assert_eq!(arrived.recv().await, Some((0, number)));
    }
}

pub(crate) async fn commits_accumulate_while_the_flush_is_held<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let mut arrived = checked(&right, 16);
    let before = left.endpoint.flushes();
    let held = left.endpoint.hold().expect("nobody else flushes");
    for number in 0..50 {
        // Whoever flushes now leaves it to the holder.
        left.send(name(0, number), &payload(name(0, number), 16)).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(arrived.try_recv().is_err(), "a frame left while the flush was held");
    let early = left.endpoint.claim(HEADER, Room::Data).unwrap();
    left.endpoint.release(held);
    for number in 0..50 {
        assert_eq!(arrived.recv().await, Some((0, number)));
    }
    assert_eq!(left.endpoint.flushes(), before + 1, "all of them in one go");
    early.commit(&Header { call: name(0, 50), ..Header::new(Kind::Message, HEADER as u32) });
    drop(right);
}
