//! A server that is killed in the middle of calls over RDMA.

use std::time::{Duration, Instant};

use ringmail::{Channel, Code, LinkKind, LinkPolicy, Request};

use super::{Player, TIMEOUT};
use crate::peers::within;
use crate::support::{EchoClient, Payload};
use crate::upgrades::{calls_until, is_on};
use crate::{BOUND, addresses};

/// From the kill to the end of the last call that was pending, in a VM that is slow.
const NOTICED: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_server_that_is_killed_end_as_unavailable_and_its_successor_has_rdma() {
    for (at, address) in addresses().into_iter().enumerate() {
        let policies = [LinkPolicy::Prefer, LinkPolicy::Require];
        for policy in policies.into_iter().take(if at == 0 { 2 } else { 1 }) {
            within(BOUND, kill_one(address, policy)).await;
        }
    }
}

async fn kill_one(address: std::net::IpAddr, policy: LinkPolicy) {
    let (mut first, [server, _]) = Player::serve("exec \"$@\"", address);
    let channel = Channel::builder(server.to_string())
        .link(LinkKind::Shm, LinkPolicy::Off)
        .link(LinkKind::Rdma, policy)
        .connect_timeout(TIMEOUT)
        .connect()
        .await
        .expect("connect");
    let client = EchoClient::new(channel.clone());
    calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
    let tasks: Vec<_> = (0..8u8)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                loop {
                    // Some wait in their handlers, others are on their way.
                    let data = if task < 4 { vec![250] } else { vec![task; 20_000] };
                    let call = client.call(
                        if task < 4 { 2 } else { 0 },
                        Request::new(Payload { data: data.clone().into() }),
                    );
                    match call.await {
                        Ok(response) => assert_eq!(response.into_inner().data, data),
                        Err(status) => return (status, Instant::now()),
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    first.kill();
    let killed = Instant::now();
    for task in tasks {
        let (status, ended) = task.await.expect("task");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let after = ended.saturating_duration_since(killed);
        assert!(after < NOTICED, "after {after:?}: {status}");
    }
    drop(first);
    // Another one in its place.
    let mut second = Player::start("exec \"$@\"", &format!("serve {server}"));
    assert_eq!(second.hear("serving:"), server.to_string());
    let patience = Instant::now() + Duration::from_secs(20);
    while let Err(status) = client.echo("again").await {
        assert!(Instant::now() < patience, "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    calls_until("RDMA is back", &client, is_on(LinkKind::Rdma)).await;
}
