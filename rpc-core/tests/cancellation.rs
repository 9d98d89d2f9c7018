//! A caller that loses interest: its handler ends, its answer is dropped, and the connection goes on.

mod peers;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use peers::{Background, Stalling, Watched, until, within};
use ringmail::{Channel, Code, LinkKind, LinkPolicy, Request, Wait};
use support::{EchoClient, LINKS, Payload, channel, serve, server};

const FAIL: usize = 1;
const SLOW: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_call_ends_its_handler_and_nothing_else() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            let call = |client: &EchoClient| {
                let client = client.clone();
                tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await })
            };
            let (given_up, kept) = (call(&client), call(&client));
            until("both handlers have begun", || service.begun() == 2).await;
            given_up.abort();
            until("the handler of the dropped call has ended", || service.ended() == 1).await;
            service.release.notify_one();
            kept.await.expect("task").expect("the other call is answered");
            assert_eq!(client.echo("next").await.expect("echo"), "next");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_dropped_calls_leave_neither_handlers_nor_places_behind() {
    within(60, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            // Fewer places than calls: each must be given back.
            let server = Background::start(service.server().max_calls_per_connection(100));
            let client = EchoClient::new(channel(server.address, kind).await);
            for _ in 0..200 {
                let calls: Vec<_> = (0..50)
                    .map(|_| {
                        let client = client.clone();
                        tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await })
                    })
                    .collect();
                tokio::task::yield_now().await;
                for call in calls {
                    call.abort();
                    assert!(call.await.expect_err("it waits for ever").is_cancelled());
                }
            }
            assert_eq!(client.echo("next").await.expect("echo"), "next");
            until("all handlers have ended", || service.begun() == service.ended()).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_given_up_while_the_ring_is_full_are_cancelled_when_it_is_not() {
    within(30, async {
        // So many calls of so many bytes that neither the ring nor the socket's buffers have room for more.
        for (kind, calls, bytes) in [(LinkKind::Shm, 300, 10), (LinkKind::Tcp, 2000, 7000)] {
            let service = Arc::new(Stalling::default());
            let server = Background::start(service.server());
            let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
            let builder = Channel::builder(server.address.to_string()).link(LinkKind::Shm, shm);
            let client = EchoClient::new(builder.ring_size(16 << 10).connect().await.expect("connect"));
            let call = |method, bytes| {
                let client = client.clone();
                let data = Bytes::from(vec![1; bytes]);
                tokio::spawn(async move { client.call(method, Request::new(Payload { data })).await })
            };
            let stalling = call(FAIL, 0);
            until("the server does not receive", || service.stalling.load(Ordering::SeqCst)).await;
            let given_up: Vec<_> = (0..calls).map(|_| call(SLOW, bytes)).collect();
            tokio::time::sleep(Duration::from_millis(100)).await;
            given_up.iter().for_each(tokio::task::JoinHandle::abort);
            for call in given_up {
                assert!(call.await.expect_err("the server does not receive").is_cancelled());
            }
            service.go_on.store(true, Ordering::SeqCst);
            stalling.await.expect("task").expect("answered when its handler is done");
            assert_eq!(client.echo("next").await.expect("echo"), "next");
            until("all handlers have ended", || service.watched.begun() == service.watched.ended()).await;
            assert!(service.watched.begun() > 0, "{kind}: some had left before they were given up");
        }
    })
    .await;
}

#[tokio::test]
async fn a_response_that_comes_too_late_is_not_taken_for_another_calls() {
    within(30, async {
        let server = Background::start(server());
        for kind in LINKS {
            let channel = Channel::builder(server.address.to_string()).wait(Wait::Event);
            let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
            let channel = channel.link(LinkKind::Shm, shm).connect().await.expect("connect");
            let client = EchoClient::new(channel);
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            for round in 0..2000u32 {
                let mut given_up = Box::pin(client.echo(Bytes::from(format!("given up {round}"))));
                // Sent. The next call is given the same place.
                assert!(given_up.as_mut().poll(&mut cx).is_pending());
                drop(given_up);
                let data = Bytes::from(format!("wanted {round}"));
                assert_eq!(client.echo(data.clone()).await.expect("echo"), data);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_given_up_half_way_costs_the_server_nothing() {
    within(60, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let data = Bytes::from(vec![1; 32 << 20]);
            // Together many times what a connection may have under way.
            for round in 0..20 {
                let sending = client.echo(data.clone());
                let given_up = tokio::time::timeout(Duration::from_micros(200 + 150 * round), sending).await;
                if let Ok(result) = given_up {
                    assert_eq!(result.expect("echo"), data);
                }
                assert_eq!(client.echo("between").await.expect("echo"), "between");
            }
            assert_eq!(client.echo(data.clone()).await.expect("a whole one"), data);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_while_it_waits_for_a_place_leaves_it_to_the_next() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server().max_calls_per_connection(1));
            let client = EchoClient::new(channel(server.address, kind).await);
            let call = || {
                let client = client.clone();
                tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await })
            };
            let first = call();
            until("the first handler has begun", || service.begun() == 1).await;
            let (dropped, next) = (call(), call());
            tokio::time::sleep(Duration::from_millis(20)).await;
            dropped.abort();
            assert_eq!(service.begun(), 1, "there is one place");
            service.release.notify_one();
            first.await.expect("task").expect("answered");
            until("the next handler has begun", || service.begun() == 2).await;
            service.release.notify_one();
            next.await.expect("task").expect("answered");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_channel_ends_its_calls_handlers() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            let pending = {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut request = Request::new(Payload::default());
                    request.set_timeout(Duration::from_secs(30));
                    client.call(SLOW, request).await
                })
            };
            until("the handler has begun", || service.begun() == 1).await;
            pending.abort();
            drop(client);
            let _ = pending.await;
            until("the handler has ended", || service.ended() == 1).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_end_when_the_server_is_dropped_and_callers_are_told() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let bound = service.server().bind().await.expect("bind");
            let address = bound.local_addr();
            let serving = tokio::spawn(bound.serve());
            let client = EchoClient::new(channel(address, kind).await);
            let pending = {
                let client = client.clone();
                tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await })
            };
            until("the handler has begun", || service.begun.load(Ordering::SeqCst) == 1).await;
            serving.abort();
            let status = pending.await.expect("task").expect_err("the server is gone");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains(&address.to_string()), "{status}");
            until("the handler has ended", || service.ended() == 1).await;
        }
    })
    .await;
}
