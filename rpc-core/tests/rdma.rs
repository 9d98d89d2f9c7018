//! Calls over RDMA, on real devices: the lab's VM has Soft-RoCE and Soft-iWARP.
//!
//! `RINGMAIL_RDMA_ADDRESSES` names the addresses to test on, separated by commas; without it, all that this host has.
//! Where there are none the tests say so, which with `RINGMAIL_TEST_REQUIRE_RDMA=1` is a failure.
#![cfg(feature = "rdma")]
#![allow(clippy::print_stderr, clippy::print_stdout, unreachable_pub)]

mod confined;
mod large;
mod peers;
mod support;
mod upgrades;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::{Background, Watched, until, within};
use ringmail::{
    Channel, ChannelBuilder, Code, ConnectError, LinkKind, LinkPolicy, Request, ServerBuilder, Wait,
};
use support::{EchoClient, Payload, server};

use LinkPolicy::{Off, Prefer, Require};

/// What emulation makes of milliseconds.
const BOUND: u64 = 60;

fn addresses() -> Vec<IpAddr> {
    let named = std::env::var("RINGMAIL_RDMA_ADDRESSES").unwrap_or_default();
    let named: Vec<_> = named.split(',').filter_map(|address| address.trim().parse().ok()).collect();
    let found = if named.is_empty() {
        ringmail::rdma::local_addresses().into_iter().map(|(address, _)| address).collect()
    } else {
        named
    };
    if found.is_empty() {
        assert!(std::env::var_os("RINGMAIL_TEST_REQUIRE_RDMA").is_none(), "no RDMA device");
        eprintln!("*** skipped: this host has no RDMA device");
    }
    found
}

fn at(address: IpAddr, server: ServerBuilder) -> Background {
    Background::start(server.listen(SocketAddr::new(address, 0).to_string()))
}

fn builder(server: &Background) -> ChannelBuilder {
    Channel::builder(server.address.to_string()).link(LinkKind::Shm, Off)
}

async fn client(server: &Background) -> EchoClient {
    let channel = builder(server).link(LinkKind::Rdma, Require).connect().await.expect("RDMA");
    assert_eq!(channel.link_info().kind, Some(LinkKind::Rdma));
    EchoClient::new(channel)
}

/// With immediates where the device has them, and without.
async fn both_ways(server: &Background) -> [EchoClient; 2] {
    let without = builder(server).link(LinkKind::Rdma, Require).rdma_immediates(false);
    [client(server).await, EchoClient::new(without.connect().await.expect("RDMA without immediates"))]
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_every_size_come_back() {
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server());
            for client in both_ways(&server).await {
                for size in [0, 1, 31, 32, 33, 1000, 4096, 60_000, 131_072, 1_000_000, 5_000_000] {
                    let data: Bytes = (0..size).map(|at| (at % 251) as u8).collect();
                    assert_eq!(client.echo(data.clone()).await.expect("echo"), data, "{size} bytes");
                }
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_a_time_come_back_in_every_waiting_mode() {
    for address in addresses() {
        for wait in [Wait::Event, Wait::Adaptive, Wait::Busy] {
            within(BOUND, async {
                let server = at(address, server().wait(wait));
                let channel = builder(&server).link(LinkKind::Rdma, Require).wait(wait).connect().await;
                let client = EchoClient::new(channel.expect("RDMA"));
                let tasks: Vec<_> = (0..32u8)
                    .map(|task| {
                        let client = client.clone();
                        tokio::spawn(async move {
                            for call in 0..20u8 {
                                let data = vec![task ^ call; usize::from(task) * 40 + 1];
                                assert_eq!(client.echo(data.clone()).await.expect("echo"), data);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("task");
                }
            })
            .await;
        }
    }
}

/// Doorbells rung and notifications taken by the client, each per call, at `depth` calls at a time. What one side rings
/// for, the other is notified of.
async fn per_call(client: &EchoClient, channel: &Channel, depth: u32) -> (f64, f64) {
    const CALLS: u32 = 100;
    let counts = || channel.link_info().device.expect("over RDMA");
    let run = |calls| async move {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..depth {
            let client = client.clone();
            tasks.spawn(async move {
                for _ in 0..calls {
                    client.echo(&[7; 32][..]).await.expect("echo");
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("task");
        }
    };
    run(CALLS / 10).await;
    let before = counts();
    run(CALLS).await;
    let after = counts();
    let calls = f64::from(CALLS * depth);
    let per_call = |after, before| (after - before) as f64 / calls;
    (per_call(after.doorbells, before.doorbells), per_call(after.notifications, before.notifications))
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_a_time_share_doorbells_and_notifications() {
    for address in addresses() {
        for wait in [Wait::Event, Wait::Adaptive, Wait::Busy] {
            within(BOUND, async {
                let server = at(address, server().wait(wait));
                let channel = builder(&server).link(LinkKind::Rdma, Require).wait(wait).connect().await;
                let channel = channel.expect("RDMA");
                let client = EchoClient::new(channel.clone());
                // Where everybody spins for the same two processors, tasks that were given to another thread come too late
                // to leave with the rest.
                let most_doorbells = if wait == Wait::Busy { 1.01 } else { 0.15 };
                for (depth, most) in [(1, (1.01, 1.01)), (32, (most_doorbells, 0.125))] {
                    let mut attempts = Vec::new();
                    // Who is not given a processor for a while comes alone.
                    let met = loop {
                        let counts = per_call(&client, &channel, depth).await;
                        attempts.push(counts);
                        let met = counts.0 <= most.0 && counts.1 <= most.1;
                        if met || attempts.len() == 3 {
                            break met;
                        }
                    };
                    eprintln!("{address}, {wait:?}, depth {depth}: (doorbells, notifications) a call: {attempts:.3?}");
                    assert!(met, "{address}, {wait:?}, depth {depth}: {attempts:.3?}, at most {most:?}");
                }
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_metadata_and_deadlines_work_as_on_other_links() {
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server());
            let client = client(&server).await;
            let status =
                client.call(1, Request::new(Payload { data: "no".into() })).await.expect_err("it fails");
            assert_eq!((status.code(), status.message()), (Code::DataLoss, "no"));
            assert_eq!(status.metadata().get("trailer").map(|value| value.as_bytes()), Some(&b"t"[..]));
            let mut request = Request::new(Payload { data: vec![250].into() });
            request.set_timeout(Duration::from_millis(30));
            let status = client.call(2, request).await.expect_err("too slow");
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert_eq!(client.echo("after").await.expect("echo"), "after");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_is_noticed_and_a_new_one_is_reached_by_rdma_again() {
    for address in addresses() {
        within(BOUND, async {
            let service = Arc::new(Watched::default());
            let first = at(address, service.server().shutdown_grace(Duration::from_millis(50)));
            let client = client(&first).await;
            let waiting = tokio::spawn({
                let client = client.clone();
                async move { client.call(2, Request::new(Payload::default())).await }
            });
            until("the handler has begun", || service.begun() == 1).await;
            let address = first.address;
            drop(first);
            let status = waiting.await.expect("task").expect_err("the server is gone");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            let second = Background::start(server().listen(address.to_string()));
            let patience = Instant::now() + Duration::from_secs(20);
            while let Err(status) = client.echo("again").await {
                assert!(Instant::now() < patience, "{status}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(client.0.channel().link_info().kind, Some(LinkKind::Rdma));
            drop(second);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_want_rdma_or_cannot_have_it_gets_tcp_and_the_reason() {
    let reason = |channel: &Channel| {
        let info = channel.link_info();
        assert_eq!(info.kind, Some(LinkKind::Tcp));
        let refusal = info.refusals.into_iter().find(|refusal| refusal.kind == LinkKind::Rdma);
        refusal.expect("a reason").reason
    };
    // No device has a loopback address, on any host.
    within(BOUND, async {
        let local = Background::start(server());
        let channel = builder(&local).connect().await.expect("TCP");
        assert!(reason(&channel).contains("loopback"), "{}", reason(&channel));
        let error = builder(&local).link(LinkKind::Rdma, Require).connect().await.expect_err("no device");
        let text = error.to_string();
        assert!(matches!(error, ConnectError::Bootstrap(_)), "{text}");
        assert!(text.contains("required") && text.contains("loopback"), "{text}");
    })
    .await;
    for address in addresses() {
        within(BOUND, async {
            let unwilling = at(address, server().link(LinkKind::Rdma, Off));
            let channel = builder(&unwilling).link(LinkKind::Rdma, Prefer).connect().await.expect("TCP");
            assert_eq!(reason(&channel), "switched off on the server");
            let willing = at(address, server());
            let channel = builder(&willing).link(LinkKind::Rdma, Off).connect().await.expect("TCP");
            assert_eq!(reason(&channel), "switched off on this side");
            let client = EchoClient::new(channel);
            assert_eq!(client.echo("over TCP").await.expect("echo"), "over TCP");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_no_device_is_told_which_devices_there_are() {
    let devices = addresses();
    let Some(first) = devices.first() else { return };
    let ordinary = ringmail::fabric::local_addresses().expect("addresses").into_iter().find(|local| {
        local.address.is_ipv4() && !local.address.is_loopback() && !devices.contains(&local.address)
    });
    let Some(ordinary) = ordinary else {
        assert!(std::env::var_os("RINGMAIL_TEST_REQUIRE_RDMA").is_none(), "no address without RDMA");
        return eprintln!("*** skipped: all addresses of this host are of RDMA devices");
    };
    within(BOUND, async {
        let server = at(ordinary.address, server());
        let channel = builder(&server).connect().await.expect("TCP");
        let info = channel.link_info();
        let refusal = info.refusals.iter().find(|refusal| refusal.kind == LinkKind::Rdma).expect("a reason");
        let device = ringmail::fabric::Fabric::of_this_host().devices[0].name.clone();
        let interface = ordinary.interface.known().expect("an interface");
        for part in [&format!("{} is on {interface}", ordinary.address), &device, "connect over", "ACTIVE"] {
            assert!(refusal.reason.contains(part), "{part} is missing in: {}", refusal.reason);
        }
        eprintln!("{} ({first} would have it): {}", ordinary.address, refusal.reason);
    })
    .await;
}
