//! Large messages over RDMA: read out of their sender's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringmail::codegen::BoxFuture;
use ringmail::rdma::{reads, registered_bytes};
use ringmail::{Code, LinkKind, Request, Response, Server, Status};

use LinkKind::Rdma;
use ringmail::LinkPolicy::Require;

use crate::peers::load::{Counting, Load, sever};
use crate::peers::{Background, within};
use crate::support::{Echo, EchoClient, EchoServer, Payload, server};
use crate::{BOUND, addresses, at, both_ways, builder, client};

const MIB: usize = 1 << 20;

/// Bytes that are like no other message's.
fn message(seed: u64, length: usize) -> Bytes {
    let mut block = vec![0; 1 << 16];
    fastrand::Rng::with_seed(seed).fill(&mut block);
    let mut bytes = block.repeat(length.div_ceil(block.len()));
    bytes.truncate(length);
    bytes.into()
}

async fn nothing_is_registered() {
    let patience = Instant::now() + Duration::from_secs(20);
    while registered_bytes() > 0 {
        assert!(Instant::now() < patience, "{} bytes are registered", registered_bytes());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_are_read_and_arrive_as_they_were_sent() {
    for address in addresses() {
        within(2 * BOUND, async {
            let server = at(address, server());
            for client in both_ways(&server).await {
                for size in [200_000, 262_144, 300_001, MIB + 1, 3 * MIB] {
                    let (before, data) = (reads(), message(size as u64, size));
                    let mut request = Request::new(Payload { data: data.clone() });
                    if size % 2 == 1 {
                        // A block of another length before the message.
                        request.metadata_mut().insert("name", "value".parse().expect("a value"));
                    }
                    let response = client.call(0, request).await.expect("echo");
                    assert_eq!(response.metadata().get("name").is_some(), size % 2 == 1);
                    assert!(response.into_inner().data == data, "{size} bytes");
                    let read = reads().bytes - before.bytes;
                    if size < 262_144 {
                        assert_eq!(read, 0, "{size} bytes");
                    } else {
                        // There and back, and some bytes around it.
                        let around = read - 2 * size as u64;
                        assert!(around < 40, "{size} bytes: {read} were read");
                    }
                }
            }
            drop(server);
            nothing_is_registered().await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_messages_are_read_too() {
    for address in addresses() {
        within(2 * BOUND, async {
            let server = at(address, server());
            let client = client(&server).await;
            // What is around it counts as well.
            let (before, data) = (reads(), message(1, 64 * MIB - 16));
            let started = Instant::now();
            assert!(client.echo(data.clone()).await.expect("echo") == data);
            eprintln!("{address}: 64 MiB there and back in {:?}", started.elapsed());
            assert!(reads().bytes - before.bytes >= 2 * data.len() as u64);
            let status = client.echo(message(1, 65 * MIB)).await.expect_err("too large");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert_eq!(client.echo("after").await.expect("echo"), "after");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_messages_at_a_time_arrive() {
    for address in addresses() {
        within(2 * BOUND, async {
            let server = at(address, server());
            let clients = [client(&server).await, client(&server).await];
            let before = reads();
            let tasks: Vec<_> = (0..12u64)
                .map(|task| {
                    let client = clients[task as usize % 2].clone();
                    tokio::spawn(async move {
                        for call in 0..4 {
                            let size = [100, MIB, 3 * MIB - 7, 300_000][(task + call) as usize % 4];
                            let data = message(task << 8 | call, size);
                            assert!(client.echo(data.clone()).await.expect("echo") == data);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("task");
            }
            let read = reads().bytes - before.bytes;
            assert!(read >= 12 * 2 * (4 * MIB as u64 + 299_993), "{read} bytes");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_want_reads_gets_fragments() {
    for address in addresses() {
        within(BOUND, async {
            let before = reads();
            let server = at(address, server());
            let unwilling = builder(&server).link(Rdma, Require).rdma_reads(false).connect().await;
            let data = message(1, MIB);
            let client = EchoClient::new(unwilling.expect("RDMA"));
            assert!(client.echo(data.clone()).await.expect("echo") == data);
            let unwilling = at(address, crate::support::server().rdma_reads(false));
            let client = crate::client(&unwilling).await;
            assert!(client.echo(data.clone()).await.expect("echo") == data);
            assert_eq!(reads(), before);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_given_up_half_way_leave_nothing_behind() {
    for address in addresses() {
        within(2 * BOUND, async {
            let server = at(address, server());
            let client = client(&server).await;
            let data = message(2, 3 * MIB);
            let started = Instant::now();
            assert!(client.echo(data.clone()).await.expect("echo") == data);
            let whole = started.elapsed();
            let mut outcomes = [0, 0];
            for attempt in 0..20u32 {
                let mut request = Request::new(Payload { data: data.clone() });
                let patience = whole * attempt / 16;
                if attempt % 2 == 0 {
                    request.set_timeout(patience);
                    match client.call(0, request).await {
                        Ok(response) => assert!(response.into_inner().data == data),
                        Err(status) => {
                            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
                            outcomes[0] += 1;
                        }
                    }
                } else {
                    match tokio::time::timeout(patience, client.call(0, request)).await {
                        Ok(response) => assert!(response.expect("echo").into_inner().data == data),
                        Err(_) => outcomes[1] += 1,
                    }
                }
            }
            assert!(outcomes.iter().all(|given_up| *given_up > 2), "{outcomes:?}");
            // Those that were given up have no part in what comes after them.
            for call in 0..3 {
                let data = message(100 + call, 3 * MIB);
                assert!(client.echo(data.clone()).await.expect("echo") == data);
            }
            drop((client, server));
            nothing_is_registered().await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_survive_the_death_of_rdma_half_way() {
    for address in addresses() {
        within(3 * BOUND, async {
            let counting = Arc::new(Counting::default());
            let builder_of_it = Server::builder().add_service(EchoServer(Arc::clone(&counting)));
            let server: Background = at(address, builder_of_it);
            let settle = Duration::from_millis(100);
            let channel = builder(&server).rdma_settle_time(settle).connect().await.expect("TCP");
            let client = EchoClient::new(channel.clone());
            let before = reads();
            let load = Load::begin(&client, 4, |task, calls| {
                message((task as u64) << 32 | calls as u64, [3 * MIB, 300_000][calls % 2])
            });
            let history = || channel.link_info().history.expect("a connection that can change its link");
            let until = async |what: &str, is_so: &dyn Fn() -> bool| {
                let patience = Instant::now() + Duration::from_secs(30);
                while !is_so() {
                    assert!(Instant::now() < patience, "not so in time: {what}: {}", channel.link_info());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            for round in 1..=4 {
                until("RDMA has taken over (again)", &|| history().upgrades >= round).await;
                let read = reads().bytes;
                until("something is being read", &|| reads().bytes > read).await;
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..30))).await;
                sever(round, &channel, &server);
                until("TCP goes on", &|| history().fallbacks >= round).await;
            }
            let calls = load.end().await;
            assert_eq!(counting.asked(), calls, "each once");
            eprintln!("{address}: {calls} calls, {} bytes read", reads().bytes - before.bytes);
            drop((client, channel, server));
            nothing_is_registered().await;
        })
        .await;
    }
}

/// Takes what it is sent and says nothing about it.
struct Sink;

impl Echo for Sink {
    fn slow<'a>(&'a self, _: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move { Ok(Response::new(Payload::default())) })
    }
}

/// How many messages of 1 MiB, one way, with and without reads. For people, beside `ib_write_bw` and `ib_read_bw`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures, in an optimised build"]
async fn figures() {
    let time = Duration::from_secs(2);
    for address in addresses() {
        let service = Server::builder().add_service(EchoServer(Arc::new(Sink)));
        let server = at(address, service);
        for (method, depth) in [(2, 1), (2, 4), (0, 1)] {
            for on in [true, false] {
                let channel = builder(&server).link(Rdma, Require).rdma_reads(on).connect().await;
                let client = EchoClient::new(channel.expect("RDMA"));
                let data = message(1, MIB);
                let began = Instant::now();
                let tasks: Vec<_> = (0..depth)
                    .map(|_| {
                        let (client, data) = (client.clone(), data.clone());
                        tokio::spawn(async move {
                            let mut calls = 0u32;
                            while began.elapsed() < time {
                                let request = Request::new(Payload { data: data.clone() });
                                client.call(method, request).await.expect("a call");
                                calls += 1;
                            }
                            calls
                        })
                    })
                    .collect();
                let mut calls = 0;
                for task in tasks {
                    calls += task.await.expect("task");
                }
                let rate = f64::from(calls) / began.elapsed().as_secs_f64();
                let way = if method == 2 { "one way" } else { "there and back" };
                eprintln!("{address}, {way}, depth {depth}, reads {on}: {rate:.1} MiB/s");
            }
        }
    }
}
