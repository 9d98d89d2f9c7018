//! A network that carries TCP and swallows RDMA, as a firewall in between does that was never told of it.

use std::time::{Duration, Instant};

use ringmail::{Channel, ChannelBuilder, LinkKind, LinkPolicy};

use super::{Fault, far_server, near};
use crate::BOUND;
use crate::peers::within;
use crate::support::EchoClient;
use crate::upgrades::{calls_until, history, is_on};

const TIMEOUT: Duration = Duration::from_secs(3);
/// What emulation adds.
const LATE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn rdma_that_is_swallowed_leaves_calls_on_tcp_in_time_and_comes_up_when_it_is_let_through() {
    let Some(near) = near() else { return };
    within(2 * BOUND, async {
        let (_far, address) = far_server(near);
        let builder = || -> ChannelBuilder {
            let builder = Channel::builder(address.to_string()).link(LinkKind::Shm, LinkPolicy::Off);
            builder.connect_timeout(TIMEOUT).rdma_settle_time(Duration::from_millis(500))
        };
        let fault = Fault::begin(&["rdma", "loss", "100%"]);
        let channel = builder().connect().await.expect("TCP");
        // From here on: the other process had just begun, and loaded what it needs for RDMA.
        let started = Instant::now();
        let client = EchoClient::new(channel.clone());
        let failed = |channel: &Channel| history(channel).failures > 0;
        let calls = calls_until("RDMA has been given up", &client, failed).await;
        let (info, after) = (channel.link_info().to_string(), started.elapsed());
        eprintln!("after {after:?} and {calls} calls: {info}");
        assert!(info.starts_with("tcp to ") && after < TIMEOUT + LATE, "after {after:?}: {info}");
        let reason = [&address.ip().to_string()[..], "being accepted took too long", "UDP port 4791"];
        reason.iter().for_each(|part| assert!(info.contains(part), "{part} is missing in: {info}"));

        let started = Instant::now();
        let error = builder().link(LinkKind::Rdma, LinkPolicy::Require).connect().await;
        let (error, after) = (error.expect_err("no RDMA gets through").to_string(), started.elapsed());
        eprintln!("after {after:?}: {error}");
        assert!(after < TIMEOUT + LATE, "{after:?}");
        reason.iter().for_each(|part| assert!(error.contains(part), "{part} is missing in: {error}"));

        drop(fault);
        calls_until("RDMA comes up", &client, is_on(LinkKind::Rdma)).await;
        eprintln!("{}; {:?}", channel.link_info(), history(&channel));
    })
    .await;
}
