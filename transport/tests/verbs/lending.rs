//! Large messages that one side lends and the other reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringmail_transport::endpoint::{Endpoint, SendError};
use ringmail_transport::frame::{CallId, FrameError, HEADER, Header, Kind};
use ringmail_transport::link::verbs::{Immediates, lingering, reads};
use ringmail_transport::link::{Link, LinkError};
use ringmail_transport::rendezvous::{Fetching, Landed, Lendable, MOST_LENT, Offer};
use ringmail_transport::ring::Incoming;
use ringmail_transport::verbs::MemoryRegion;

use crate::on_each;
use crate::pair::{Bench, receive, send, settings};

const BOUND: Duration = Duration::from_secs(120);

fn call(index: u32) -> CallId {
    CallId { index, generation: 0 }
}

/// Bytes that are like no other message's.
fn message(seed: u64, length: usize) -> Vec<u8> {
    let mut block = vec![0; 1 << 16];
    fastrand::Rng::with_seed(seed).fill(&mut block);
    let mut bytes = block.repeat(length.div_ceil(block.len()));
    bytes.truncate(length);
    bytes
}

fn lend(endpoint: &Endpoint, bytes: &[u8]) -> Arc<dyn Lendable> {
    let mut memory = endpoint.lend(bytes.len()).expect("memory to lend");
    memory.bytes_mut().copy_from_slice(bytes);
    Arc::from(memory)
}

fn fetch(endpoint: &Endpoint, call: CallId, offer: Offer, prefix: &'static [u8]) -> Fetching {
    let (fetch, fetching) = endpoint.fetch(call, offer, Bytes::from_static(prefix)).expect("not too many");
    endpoint.begin_fetch(fetch);
    fetching
}

/// Receives until a fetch has ended; it sleeps in between, as those who are not in a hurry do.
async fn landed(endpoint: &Endpoint) -> Result<Landed, LinkError> {
    let mut found = None;
    loop {
        let turn = endpoint.turn(&mut |frame| panic!("{frame:?}"));
        if endpoint.land(&mut |landed| assert!(found.replace(landed).is_none(), "two at once")) > 0 {
            return Ok(found.take().expect("one"));
        }
        turn?;
        std::future::poll_fn(|cx| endpoint.arm(cx)).await?;
        endpoint.link().woken();
    }
}

/// The answer to what was lent.
async fn answer(endpoint: &Endpoint) {
    let mut answers = 0;
    receive(endpoint, 0, &mut |frame: Incoming| {
        assert_eq!(frame.header().kind, Kind::RendezvousDone);
        endpoint.answered(frame.header()).expect("it was lent");
        answers += 1;
    })
    .await
    .unwrap();
    assert_eq!(answers, 1);
}

async fn nothing_is_registered() {
    let patience = Instant::now() + Duration::from_secs(20);
    while lingering() > 0 || MemoryRegion::registered_bytes() > 0 {
        assert!(Instant::now() < patience, "{} bytes registered", MemoryRegion::registered_bytes());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn what_is_lent_arrives_as_it_is_behind_its_prefix_and_its_memory_is_used_again() {
    for immediates in [Immediates::WherePossible, Immediates::Never] {
        on_each(BOUND, async |address| {
            let bench = Bench::new(address, 1, settings(immediates));
            let (left, right) = bench.pair().await;
            let [left, right] = [left, right].map(|end| bench.endpoint(end));
            let mut addresses = Vec::new();
            let before = reads();
            let mut total = 0;
            for (number, length) in (0u32..).zip([262_144, 300_001, 1 << 20, (1 << 20) + 1, 5_000_000]) {
                let bytes = message(u64::from(number), length);
                let memory = lend(&left, &bytes);
                let answered = left.lent(call(number), &memory).expect("a place");
                let offer = memory.offer();
                let _wanted = fetch(&right, call(number), offer, b"block");
                let landed = landed(&right).await.unwrap();
                let read = landed.message.expect("it can be read");
                assert!(landed.call == call(number) && read[..5] == *b"block" && read[5..] == bytes);
                answer(&left).await;
                assert!(answered.wait(&left).await.unwrap());
                assert_eq!(left.lent_messages(), 0);
                addresses.push(offer.address);
                total += length as u64;
            }
            let after = reads();
            assert_eq!(after.bytes - before.bytes, total);
            assert!(after.posted - before.posted >= 5 + 20, "in chunks: {after:?}");
            // The same size again takes the same memory.
            let again = lend(&left, &message(9, 300_000)).offer();
            assert_eq!(again.address, addresses[1]);
            let registered = MemoryRegion::registered_bytes();
            tokio::time::sleep(Duration::from_secs(4)).await;
            let later = MemoryRegion::registered_bytes();
            assert!(later < registered / 2, "{registered} bytes, {later} after they were not used for long");
            drop((left, right));
            nothing_is_registered().await;
        });
    }
}

#[test]
fn frames_pass_while_much_is_read_and_all_of_it_arrives() {
    on_each(BOUND, async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let [left, right] = [left, right].map(|end| bench.endpoint(end));
        let messages: Vec<_> = (0..12).map(|number| message(number, 1 << (18 + number % 5))).collect();
        let mut waits = Vec::new();
        let mut memories = Vec::new();
        for (number, bytes) in (0..).zip(&messages) {
            let memory = lend(&left, bytes);
            waits.push(left.lent(call(number), &memory).expect("a place"));
            memories.push(fetch(&right, call(number), memory.offer(), b""));
        }
        let (mut frames, mut sent, mut arrived) = (0, 0, Vec::new());
        while arrived.len() < messages.len() || frames < 50 {
            right
                .turn(&mut |frame| {
                    assert_eq!(frame.payload(), b"in between");
                    frames += 1;
                })
                .unwrap();
            right.land(&mut |landed| arrived.push(landed));
            left.turn(&mut |frame| left.answered(frame.header()).expect("it was lent")).unwrap();
            // Never so many that it would wait for room, which nobody else here receives to make.
            if frames < 50 && sent < frames + 8 {
                send(&left, 100, b"in between").await;
                sent += 1;
            }
            tokio::task::yield_now().await;
        }
        for landed in &arrived {
            let bytes = landed.message.as_ref().expect("it can be read");
            assert!(*bytes == messages[landed.call.index as usize], "{}", landed.call.index);
        }
        for wait in waits {
            while left.lent_messages() > 0 {
                receive(&left, 0, &mut |frame| {
                    if frame.header().kind == Kind::RendezvousDone {
                        left.answered(frame.header()).expect("it was lent");
                    }
                })
                .await
                .unwrap();
            }
            assert!(wait.wait(&left).await.unwrap());
        }
        // Messages outlive the connection.
        drop((left, right, bench));
        assert!(arrived.iter().all(|landed| {
            landed.message.as_ref().is_some_and(|bytes| *bytes == messages[landed.call.index as usize])
        }));
        drop((arrived, memories));
        nothing_is_registered().await;
    });
}

#[test]
fn a_key_that_opens_nothing_costs_the_connection_of_whoever_offered_it() {
    on_each(BOUND, async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let [left, right] = [left, right].map(|end| bench.endpoint(end));
        let memory = lend(&left, &message(1, 1 << 20));
        let lies = Offer { key: memory.offer().key ^ 0x5500, ..memory.offer() };
        let _wanted = fetch(&right, call(1), lies, b"");
        let landed = landed(&right).await;
        match landed {
            Ok(landed) => assert_eq!(landed.message, None),
            Err(LinkError::Rdma(_) | LinkError::PeerClosed) => {}
            Err(error) => panic!("{error}"),
        }
        drop((left, right, memory));
        nothing_is_registered().await;
    });
}

#[test]
fn what_cannot_be_read_is_refused_at_once() {
    on_each(BOUND, async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let [left, right] = [left, right].map(|end| bench.endpoint(end));
        assert!(left.lend(1000).is_none(), "too short to be worth it");
        let memory = lend(&left, &message(1, 1 << 20));
        for offer in [
            Offer { epoch: 1, ..memory.offer() },
            // More than there may be memory for.
            Offer { length: 1 << 40, ..memory.offer() },
        ] {
            let before = reads();
            let answered = left.lent(call(7), &memory).expect("a place");
            assert!(left.lent(call(7), &memory).is_none(), "the same call again");
            let _wanted = fetch(&right, call(7), offer, b"");
            assert_eq!(landed(&right).await.unwrap().message, None);
            answer(&left).await;
            assert!(!answered.wait(&left).await.unwrap());
            assert_eq!(reads(), before);
        }
        // A side that has lent as much as it may sends in fragments.
        let mut lent = Vec::new();
        while let Some(memory) = left.lend(16 << 20) {
            lent.push(memory);
            assert!(lent.len() <= 8);
        }
        assert!(!lent.is_empty());
        drop(lent);
        // Answers that find no room are kept, but not without bound.
        for number in 0..MOST_LENT as u32 {
            drop(right.fetch(call(number), memory.offer(), Bytes::new()).expect("not too many"));
        }
        let too_many = right.fetch(call(0), memory.offer(), Bytes::new()).err();
        assert!(matches!(too_many, Some(FrameError::BadRendezvous { .. })), "{too_many:?}");
        let never = Header { call: call(7), ..Header::new(Kind::RendezvousDone, HEADER as u32) };
        assert!(matches!(left.answered(&never), Err(FrameError::BadRendezvous { .. })));
    });
}

#[test]
fn what_nobody_waits_for_is_not_read_to_its_end() {
    on_each(BOUND, async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let [left, right] = [left, right].map(|end| bench.endpoint(end));
        let bytes = message(3, 60 << 20);
        let memory = lend(&left, &bytes);
        let before = reads();
        let answered = left.lent(call(1), &memory).expect("a place");
        let wanted = fetch(&right, call(1), memory.offer(), b"");
        drop(wanted);
        assert_eq!(landed(&right).await.unwrap().message, None);
        answer(&left).await;
        assert!(!answered.wait(&left).await.unwrap());
        let read = reads().bytes - before.bytes;
        assert!(read <= 20 << 20, "{read} bytes were read");
        // The same again, and its sender has heard that nobody waits: it need not send fragments.
        let answered = left.lent(call(1), &memory).expect("a place");
        drop(fetch(&right, call(1), memory.offer(), b""));
        left.forget_lent(call(1));
        assert_eq!((landed(&right).await.unwrap().message, left.lent_messages()), (None, 1));
        answer(&left).await;
        assert!(matches!(answered.wait(&left).await, Err(SendError::Dead(_))));
        // The budget was given back: another one is read in full.
        let _wanted = fetch(&right, call(2), memory.offer(), b"");
        let landed = landed(&right).await.unwrap();
        assert!(landed.message.is_some_and(|read| read == bytes));
    });
}

#[test]
fn a_connection_that_dies_ends_what_is_lent_and_what_is_read() {
    on_each(BOUND, async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let links = [left.link.clone(), right.link.clone()];
        let [left, right] = [left, right].map(|end| bench.endpoint(end));
        let memory = lend(&left, &message(3, 60 << 20));
        let answered = left.lent(call(1), &memory).expect("a place");
        let _wanted = fetch(&right, call(1), memory.offer(), b"");
        // Whoever sends it may have given up.
        drop(memory);
        ringmail_transport::link::switching::FastLink::sever(&*links[0]);
        match landed(&right).await {
            Ok(landed) => assert_eq!(landed.message, None),
            Err(LinkError::Rdma(_) | LinkError::PeerClosed) => {}
            Err(error) => panic!("{error}"),
        }
        while left.turn(&mut drop).is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(answered.wait(&left).await, Err(SendError::Dead(_))));
        assert!(links[0].lend(1 << 20).is_none(), "the queue pair is gone");
        drop((left, right, links));
        nothing_is_registered().await;
    });
}
