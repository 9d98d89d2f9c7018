//! Calls begin on TCP; RDMA takes over in the background, is lost, and comes back.

mod events;
mod far;
mod halfway;
mod scripted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringmail::{Channel, History, LinkKind, Server};

use crate::peers::load::{Counting, Load, sever};
use crate::peers::within;
use crate::support::{EchoClient, EchoServer, server};
use crate::{BOUND, addresses, at, builder};

fn history(channel: &Channel) -> History {
    channel.link_info().history.expect("a connection that can change its link")
}

/// Makes calls until something is so; how many.
pub async fn calls_until(what: &str, client: &EchoClient, mut is_so: impl FnMut(&Channel) -> bool) -> usize {
    let patience = Instant::now() + Duration::from_secs(30);
    let mut calls = 0;
    while !is_so(client.0.channel()) {
        assert!(Instant::now() < patience, "not so in time: {what}: {}", client.0.channel().link_info());
        assert_eq!(client.echo("meanwhile").await.expect("echo"), "meanwhile");
        calls += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    calls
}

pub fn is_on(kind: LinkKind) -> impl FnMut(&Channel) -> bool {
    move |channel| channel.link_info().kind == Some(kind)
}

// One thread: what is spawned has not run when `connect` returns.
#[tokio::test]
async fn calls_begin_on_tcp_and_rdma_takes_over() {
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server());
            let channel = builder(&server).connect().await.expect("TCP");
            let info = channel.link_info();
            assert_eq!(info.kind, Some(LinkKind::Tcp));
            assert!(info.to_string().contains("no rdma: it is coming up"), "{info}");
            let client = EchoClient::new(channel.clone());
            assert_eq!(client.echo("at once").await.expect("echo"), "at once");
            calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
            let info = channel.link_info();
            assert!(info.refusals.iter().all(|refusal| refusal.kind != LinkKind::Rdma), "{info}");
            let history = history(&channel);
            assert_eq!((history.upgrades, history.fallbacks, history.failures), (1, 0, 0));
            for size in [0, 100, 5000, 131_072, 1_000_000] {
                let data: Bytes = (0..size).map(|at| (at % 251) as u8).collect();
                assert_eq!(client.echo(data.clone()).await.expect("echo"), data, "{size} bytes");
            }
            // The end is noticed as ever.
            drop(server);
            let patience = Instant::now() + Duration::from_secs(10);
            while client.echo("anybody there?").await.is_ok() {
                assert!(Instant::now() < patience, "the server is gone");
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_exactly_once_while_rdma_comes_and_goes() {
    for address in addresses() {
        within(2 * BOUND, async {
            let counting = Arc::new(Counting::default());
            let server = Server::builder().add_service(EchoServer(Arc::clone(&counting)));
            let server = at(address, server);
            let settle = Duration::from_millis(100);
            let channel = builder(&server).rdma_settle_time(settle).connect().await.expect("TCP");
            let client = EchoClient::new(channel.clone());
            let load = Load::begin(&client, 12, |task, calls| {
                let size = [1, 300, 3000, 200_000][calls % 4] / if task < 6 { 4 } else { 1 };
                vec![task as u8 ^ calls as u8; size].into()
            });
            let mut calls = 0;
            for round in 1..=6 {
                let up = |channel: &Channel| history(channel).upgrades >= round;
                calls += calls_until("RDMA has taken over (again)", &client, up).await;
                // Something is on its way.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(5..60))).await;
                sever(round, &channel, &server);
                let lost = |channel: &Channel| history(channel).fallbacks >= round;
                calls += calls_until("TCP goes on", &client, lost).await;
            }
            calls += load.end().await;
            assert_eq!(counting.asked(), calls);
            assert!(calls > 100, "{calls} calls are not much of a load");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn going_back_up_waits_for_the_settle_time() {
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server());
            let settle = Duration::from_millis(2000);
            let channel = builder(&server).rdma_settle_time(settle).connect().await.expect("TCP");
            let client = EchoClient::new(channel.clone());
            calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
            channel.sever_rdma();
            calls_until("TCP goes on", &client, |channel| history(channel).fallbacks == 1).await;
            let lost = Instant::now();
            let info = channel.link_info();
            assert!(info.to_string().contains("no rdma: it was lost: "), "{info}");
            calls_until("RDMA is back", &client, is_on(LinkKind::Rdma)).await;
            assert!(lost.elapsed() >= settle.mul_f64(0.7), "after {:?} already", lost.elapsed());
            assert_eq!(history(&channel).upgrades, 2);
        })
        .await;
    }
}
