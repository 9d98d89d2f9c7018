//! Space in the rings: held, lent, given back in any order, waited for.

use std::time::Duration;

use ringmail_transport::frame::{HEADER, Header, Kind};
use ringmail_transport::link::LinkKind;
use ringmail_transport::ring::{BLOCK, ClaimError, Incoming, Position, Room};
use tokio::sync::mpsc;

use crate::delivery::checked;
use crate::fabric::{Fabric, Wanted};
use crate::side::Side;
use crate::traffic::{check, name, payload};

/// Longest that a wake-up may take. Far more than any takes, and short enough to tell it from none.
const WAKE_UP: Duration = Duration::from_secs(10);

pub(crate) async fn frames_released_in_any_order_keep_their_bytes<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let (count, longest) = (3000, 900);
    let (done, mut released) = mpsc::unbounded_channel();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut held: Vec<Incoming> = Vec::new();
    right.drive(move |frame| {
        let newest = frame.header().call.generation;
        held.push(frame);
        // A frame may stay until eight have come behind it: more could fill the ring, and then none would.
        let leaves = |held: &mut Vec<Incoming>, at| {
            let frame = held.swap_remove(at);
            check(&frame, longest);
            let number = frame.header().call.generation;
            // Released before it is said.
            drop(frame);
            let _ = done.send(number);
        };
        while let Some(old) = held.iter().position(|frame| frame.header().call.generation + 8 < newest) {
            leaves(&mut held, old);
        }
        while !held.is_empty() && (newest == count - 1 || rng.u8(0..3) == 0) {
            let any = rng.usize(0..held.len());
            leaves(&mut held, any);
        }
    });
    let _acknowledgements = left.drive(|_| ());
    for number in 0..count {
        left.send(name(0, number), &payload(name(0, number), longest)).await.unwrap();
    }
    let mut numbers = Vec::new();
    while numbers.len() < count as usize {
        numbers.push(released.recv().await.expect("the connection goes on"));
    }
    assert!(!numbers.is_sorted(), "they were released in order");
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count));
    // What a link sends on its own behalf may still be on its way.
    let all_back = async {
        while right.endpoint.mailbox().consumed() != left.endpoint.staging().sealed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WAKE_UP, all_back).await.expect("space was not given back");
}

/// Sends until there is no more room.
async fn fill(side: &Side, bytes: usize) -> u32 {
    let mut frames = 0;
    loop {
        match side.endpoint.claim(bytes, Room::Data) {
            Ok(claim) => {
                claim.commit(&Header { call: name(9, frames), ..Header::new(Kind::Message, bytes as u32) });
                side.endpoint.flush();
                frames += 1;
            }
            Err(ClaimError::Full) => {
                // Some links need a moment to push on what is already theirs.
                let room = async {
                    while side.endpoint.claim(bytes, Room::Data).is_err() {
                        let _ = side.turn(&mut |_| ());
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                if tokio::time::timeout(Duration::from_millis(30), room).await.is_err() {
                    return frames;
                }
                side.endpoint.flush();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) async fn space_comes_back_only_in_order<F: Fabric>(fabric: &F) {
    if !F::IN_PLACE {
        // What is held holds no space.
        return;
    }
    let (left, right) = fabric.pair(Wanted::default()).await;
    left.send(name(0, 0), &[1; 100]).await.unwrap();
    let mut first = None;
    right.receive(&mut |frame| first = Some(frame)).await.unwrap();
    let first = first.unwrap();
    // Everything behind it is released at once.
    let _rest = right.drive(drop);
    fill(&left, 500).await;
    assert_eq!(right.endpoint.mailbox().consumed(), Position(0));
    if F::FREED_BY_THE_PEER {
        assert_eq!(left.endpoint.staging().freed(), Position(0));
    }
    let waits = tokio::spawn({
        let left = left.handle();
        async move { left.send(name(0, 1), &[2; 1000]).await }
    });
    let _acknowledgements = left.drive(|_| ());
    tokio::time::sleep(Duration::from_millis(20)).await;
    // How much the kernel takes on the way is its own affair, and may grow.
    assert!(!F::FREED_BY_THE_PEER || !waits.is_finished(), "there was room after all");
    assert_eq!(first.payload(), [1; 100]);
    drop(first);
    tokio::time::timeout(WAKE_UP, waits).await.expect("a wake-up was lost").unwrap().unwrap();
}

pub(crate) async fn lent_payloads_do_not_stop_the_ring<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let longest = 2000;
    let (kept, mut lent) = mpsc::unbounded_channel();
    right.drive(move |frame| {
        let _ = kept.send((frame.header().call, frame.into_bytes()));
    });
    let _acknowledgements = left.drive(|_| ());
    let count = 400;
    for number in 0..count {
        left.send(name(0, number), &payload(name(0, number), longest)).await.unwrap();
    }
    let mut borrowed = Vec::new();
    for _ in 0..count {
        borrowed.push(lent.recv().await.expect("the connection goes on"));
    }
    // Many times the ring, all of it still there.
    assert!(
        borrowed.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
            > 5 * right.endpoint.mailbox().size().bytes()
    );
    for (number, (call, bytes)) in borrowed.into_iter().enumerate() {
        assert_eq!(call, name(0, number as u32));
        assert!(bytes == payload(call, longest), "{call:?} changed while it was lent");
    }
}

pub(crate) async fn whoever_waits_for_space_is_woken_when_there_is_some<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let _acknowledgements = left.drive(|_| ());
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..40 {
        fill(&left, 700).await;
        let waits = tokio::spawn({
            let (left, bytes) = (left.handle(), rng.usize(0..left.endpoint.frame_limit() - HEADER));
            async move { left.send(name(1, round), &vec![3; bytes]).await }
        });
        // From before it waits to long after.
        for _ in 0..rng.u32(0..50) {
            tokio::task::yield_now().await;
        }
        let reads = async {
            let mut waited_for = false;
            while !waited_for {
                right
                    .receive(&mut |frame| waited_for |= frame.header().call == name(1, round))
                    .await
                    .unwrap();
            }
        };
        let both = async { tokio::join!(reads, waits).1 };
        let sent = tokio::time::timeout(WAKE_UP, both).await;
        sent.unwrap_or_else(|_| panic!("a wake-up was lost in round {round}")).unwrap().unwrap();
    }
}

pub(crate) async fn many_who_wait_for_space_all_get_some<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let _acknowledgements = left.drive(|_| ());
    let longest = left.endpoint.frame_limit() - HEADER;
    let (tasks, each) = (12, 40);
    let senders: Vec<_> = (0..tasks)
        .map(|task| {
            let left = left.handle();
            tokio::spawn(async move {
                for number in 0..each {
                    left.send(name(task, number), &payload(name(task, number), longest)).await.unwrap();
                }
            })
        })
        .collect();
    let mut arrived = checked(&right, longest);
    for _ in 0..tasks * each {
        arrived.recv().await.expect("the connection goes on");
    }
    for sender in senders {
        sender.await.unwrap();
    }
}

/// Sends so much that every buffer on the way is full several times over.
fn flood(side: &Side, bytes: usize) -> tokio::task::JoinHandle<u32> {
    let side = side.handle();
    tokio::spawn(async move {
        let (mut sent, mut number) = (0, 0);
        while sent < bytes {
            let payload = payload(name(0, number), 4000);
            sent += payload.len();
            side.send(name(0, number), &payload).await.unwrap();
            number += 1;
        }
        number
    })
}

/// How much that is. RDMA has no buffers but the ring, of which 64 KiB are used.
const fn enough<F: Fabric>() -> usize {
    if matches!(F::KIND, LinkKind::Rdma) { 1024 * 1024 } else { 12 * 1024 * 1024 }
}

pub(crate) async fn a_blocked_flush_resumes_when_the_receiver_reads<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted { ring: 64 * 1024, ..Wanted::default() }).await;
    let sender = flood(&left, enough::<F>());
    let _acknowledgements = left.drive(|_| ());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!sender.is_finished(), "{} bytes went through with nobody reading", enough::<F>());
    let mut arrived = checked(&right, 4000);
    let count = sender.await.unwrap();
    for number in 0..count {
        assert_eq!(arrived.recv().await, Some((0, number)));
    }
}

pub(crate) async fn both_sides_can_be_full_at_once<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted { ring: 64 * 1024, ..Wanted::default() }).await;
    let senders = [flood(&left, enough::<F>()), flood(&right, enough::<F>())];
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(senders.iter().all(|sender| !sender.is_finished()));
    let arrived = [checked(&left, 4000), checked(&right, 4000)];
    for (sender, mut arrived) in senders.into_iter().zip(arrived) {
        let count = sender.await.unwrap();
        for number in 0..count {
            assert_eq!(arrived.recv().await, Some((0, number)));
        }
    }
}

pub(crate) async fn a_full_ring_leaves_room_for_control_frames<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let filled = fill(&left, BLOCK).await;
    let control = Header { call: name(7, 7), ..Header::new(Kind::GoAway, HEADER as u32) };
    left.endpoint.claim(HEADER, Room::Control).unwrap().commit(&control);
    left.endpoint.flush();
    let _acknowledgements = left.drive(|_| ());
    let mut came = 0;
    let mut last = None;
    while last != Some(Kind::GoAway) {
        right
            .receive(&mut |frame| {
                came += 1;
                last = Some(frame.header().kind);
            })
            .await
            .unwrap();
    }
    // `fill` also abandons claims, which come as nothing.
    assert_eq!(came, filled + 1);
}
