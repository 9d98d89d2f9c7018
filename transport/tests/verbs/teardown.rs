//! Ends in any order, over and over, leave nothing behind.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail_transport::link::Link;
use ringmail_transport::link::verbs::{Immediates, lingering};
use ringmail_transport::memory::mapped_bytes;
use ringmail_transport::verbs::MemoryRegion;

use crate::on_each;
use crate::pair::{Bench, receive, send, settings};

/// What a process can leak.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    registered: u64,
    mapped: usize,
    descriptors: usize,
    queue_pairs: usize,
}

impl Holdings {
    fn now() -> Self {
        Self {
            registered: MemoryRegion::registered_bytes(),
            mapped: mapped_bytes(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            queue_pairs: queue_pairs(),
        }
    }
}

/// Queue pairs and ids of this process that the kernel knows of.
fn queue_pairs() -> usize {
    let own = format!("pid {}", std::process::id());
    ["qp", "mr", "cm_id"]
        .iter()
        .map(|kind| {
            let output =
                std::process::Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains(&own)).count()
        })
        .sum()
}

async fn all_taken_down() {
    let deadline = Instant::now() + Duration::from_secs(20);
    while lingering() > 0 {
        assert!(Instant::now() < deadline, "{} links linger", lingering());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn in_any_order(address: IpAddr, rounds: u32) {
    let bench = Bench::new(address, 4, settings(Immediates::WherePossible));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut before = None;
    for round in 0..rounds {
        // What is made once, like the first thread of a runtime's pool, does not count.
        if round == 5 {
            all_taken_down().await;
            before = Some(Holdings::now());
        }
        let (left, right) = bench.pair().await;
        let links: [Arc<dyn Link>; 2] = [left.link.clone(), right.link.clone()];
        let mailboxes = [left.mailbox.clone(), right.mailbox.clone()];
        let ends = [left, right].map(|end| bench.endpoint(end));
        if rng.bool() {
            send(&ends[0], 0, &[1; 5000]).await;
            if rng.bool() {
                let mut kept = Vec::new();
                receive(&ends[1], rng.u32(0..100), &mut |frame| kept.push(frame)).await.unwrap();
            }
        }
        let mut pieces: Vec<Box<dyn std::any::Any + Send>> = Vec::new();
        pieces.extend(links.map(|link| Box::new(link) as _));
        pieces.extend(mailboxes.map(|mailbox| Box::new(mailbox) as _));
        pieces.extend(ends.map(|end| Box::new(end) as _));
        rng.shuffle(&mut pieces);
        for piece in pieces {
            drop(piece);
            if rng.u32(0..4) == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
    all_taken_down().await;
    assert_eq!(bench.lanes.each_ref().map(|lane| lane.links()), [0, 0]);
    assert_eq!(Some(Holdings::now()), before);
}

#[test]
fn a_thousand_ends_in_any_order_leave_nothing_behind() {
    let rounds = std::env::var("RINGMAIL_TEARDOWNS").map_or(60, |rounds| rounds.parse().expect("a number"));
    on_each(Duration::from_secs(900), async |address| {
        // The device's abilities are found out once, with what that needs.
        let before = Holdings::now();
        in_any_order(address, rounds).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let after = Holdings::now();
        assert_eq!((after.registered, after.queue_pairs), (before.registered, before.queue_pairs));
    });
}

#[test]
fn a_lane_that_goes_before_its_links_stays_until_they_are_gone() {
    on_each(Duration::from_secs(60), async |address| {
        let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
        let (left, right) = bench.pair().await;
        let [left, right] = [left, right].map(|end| bench.endpoint(end));
        let registered = MemoryRegion::registered_bytes();
        drop(bench);
        send(&left, 0, b"the lanes are still there").await;
        receive(&right, 0, &mut |frame| assert_eq!(frame.payload(), b"the lanes are still there"))
            .await
            .unwrap();
        drop(left);
        drop(right);
        all_taken_down().await;
        assert!(MemoryRegion::registered_bytes() < registered);
    });
}
