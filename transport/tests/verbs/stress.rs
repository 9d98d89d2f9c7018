//! Many messages of random size, in both immediate modes.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringmail_transport::endpoint::Endpoint;
use ringmail_transport::link::Link as _;
use ringmail_transport::link::verbs::Immediates;
use ringmail_transport::ring::Incoming;
use tokio::sync::Barrier;

use crate::on_each;
use crate::pair::{Bench, receive, send, settings};

/// Messages each way, a tenth of the million that a long run takes (`RINGMAIL_STRESS_MESSAGES`).
fn messages() -> u32 {
    std::env::var("RINGMAIL_STRESS_MESSAGES").map_or(20_000, |count| count.parse().expect("a number"))
}

/// A message's payload follows from its number.
pub(crate) fn payload(number: u32, longest: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(number));
    let length = match rng.u32(0..40) {
        0 => rng.usize(0..=longest),
        _ => rng.usize(0..=200),
    };
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}

/// Counters of the device that say that a peer was not ready.
pub(crate) fn not_ready_events(address: IpAddr) -> Vec<(String, u64)> {
    let context = ringmail_transport::verbs::Context::for_address(address).unwrap();
    let folder =
        format!("/sys/class/infiniband/{}/ports/{}/hw_counters", context.device_name(), context.port());
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut counters: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("rnr"))
        .filter_map(|entry| {
            let value = std::fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), value))
        })
        .collect();
    counters.sort();
    counters
}

async fn sends(endpoint: Arc<Endpoint>, count: u32) {
    let longest = endpoint.frame_limit() - 64;
    for number in 0..count {
        send(&endpoint, number, &payload(number, longest)).await;
    }
}

/// Receives so many messages, and goes on until the other side has received its own, which may wait for what arrives.
async fn receives(endpoint: Arc<Endpoint>, count: u32, spins: u32, both: Arc<Barrier>) {
    let longest = endpoint.frame_limit() - 64;
    let next = AtomicU32::new(0);
    let mut check = |frame: Incoming| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        assert_eq!(frame.header().call.index, number);
        assert!(frame.payload() == payload(number, longest), "message {number} arrived damaged");
    };
    while next.load(Ordering::Relaxed) < count {
        receive(&endpoint, spins, &mut check).await.unwrap();
    }
    tokio::select! {
        result = receive(&endpoint, spins, &mut check) => panic!("more than was sent: {result:?}"),
        _ = both.wait() => {}
    }
}

async fn both_ways(address: IpAddr, immediates: Immediates, spins: u32) {
    let before = not_ready_events(address);
    let bench = Bench::new(address, 1, settings(immediates));
    let (left, right) = bench.pair().await;
    let links = [Arc::clone(&left.link), Arc::clone(&right.link)];
    let ends = [left, right].map(|end| Arc::new(bench.endpoint(end)));
    let count = messages();
    let mut tasks = tokio::task::JoinSet::new();
    let both = Arc::new(Barrier::new(2));
    for end in &ends {
        tasks.spawn(sends(Arc::clone(end), count));
        tasks.spawn(receives(Arc::clone(end), count, spins, Arc::clone(&both)));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for link in links {
        let counts = link.device_counts().unwrap();
        eprintln!("{}: {count} messages, {counts:?}", link.place());
        assert_eq!(link.stale_notifications(), 0);
    }
    let after = not_ready_events(address);
    assert_eq!(after, before, "a peer was not ready");
}

#[test]
fn messages_of_random_size_arrive_with_immediates() {
    on_each(Duration::from_secs(3000), async |address| {
        both_ways(address, Immediates::WherePossible, 200).await;
    });
}

#[test]
fn messages_of_random_size_arrive_without_immediates() {
    on_each(Duration::from_secs(3000), async |address| both_ways(address, Immediates::Never, 200).await);
}

#[test]
fn messages_of_random_size_arrive_to_sleepers() {
    on_each(Duration::from_secs(3000), async |address| {
        both_ways(address, Immediates::WherePossible, 0).await;
    });
}

#[test]
fn a_ping_pong_takes_one_post_and_one_notification_each_way() {
    on_each(Duration::from_secs(120), async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let links = [Arc::clone(&left.link), Arc::clone(&right.link)];
        let [left, right] = [left, right].map(|end| Arc::new(bench.endpoint(end)));
        let rounds = 2_000;
        let before = links.each_ref().map(|link| link.device_counts().unwrap());
        let echo = tokio::spawn(async move {
            for number in 0..rounds {
                receive(&right, u32::MAX, &mut drop).await.unwrap();
                send(&right, number, &[7; 32]).await;
            }
            right
        });
        let started = std::time::Instant::now();
        for number in 0..rounds {
            send(&left, number, &[7; 32]).await;
            receive(&left, u32::MAX, &mut drop).await.unwrap();
        }
        eprintln!("{}: {:?} a round trip", links[0].place(), started.elapsed() / rounds);
        let _right = echo.await.unwrap();
        for (link, before) in links.iter().zip(before) {
            // Headers acknowledge, and reports of credit ride along: nothing else is sent.
            let counts = link.device_counts().unwrap();
            assert_eq!(counts.doorbells - before.doorbells, u64::from(rounds));
            assert_eq!(counts.notifications - before.notifications, u64::from(rounds));
        }
    });
}
