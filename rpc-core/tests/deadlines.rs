//! Deadlines hold wherever a call may be stuck: before there is a connection, before there is room, in the handler.

mod peers;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::{Background, Silent, Stalling, Watched, until, within};
use ringmail::{Channel, Code, Request};
use support::{EchoClient, LINKS, Payload, channel, serve, server};

const FAIL: usize = 1;
const SLOW: usize = 2;
/// How late a deadline may be noticed on a busy machine.
const LATE: Duration = Duration::from_millis(400);

fn request(timeout: Duration) -> Request<Payload> {
    let mut request = Request::new(Payload { data: Bytes::from_static(&[250]) });
    request.set_timeout(timeout);
    request
}

#[tokio::test]
async fn a_deadline_holds_while_connecting_to_a_server_that_says_nothing() {
    within(20, async {
        let silent = Silent::listen().await;
        let channel = Channel::builder(silent.address.to_string()).connect_lazy().expect("an address");
        let client = EchoClient::new(channel);
        let started = Instant::now();
        let status = client.call(0, request(Duration::from_millis(50))).await.expect_err("nobody answers");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
        // The same for many who wait for one attempt.
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.call(0, request(Duration::from_millis(50))).await })
            })
            .collect();
        for call in calls {
            let status = call.await.expect("task").expect_err("nobody answers");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        }
        assert!(started.elapsed() < 2 * LATE, "{:?}", started.elapsed());
    })
    .await;
}

#[tokio::test]
async fn connecting_to_a_server_that_says_nothing_is_bounded_and_says_what_it_waited_for() {
    within(20, async {
        let silent = Silent::listen().await;
        let started = Instant::now();
        let builder = Channel::builder(silent.address.to_string());
        let error = builder.connect_timeout(Duration::from_millis(80)).connect().await.expect_err("silence");
        assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
        let text = error.to_string();
        assert!(
            text.contains(&silent.address.to_string()) && text.contains("80ms") && text.contains("HELLO"),
            "{text}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_holds_while_the_ring_is_full() {
    within(30, async {
        for kind in LINKS {
            let service = Arc::new(Stalling::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            let blocked = {
                let client = client.clone();
                tokio::spawn(async move { client.call(FAIL, Request::new(Payload::default())).await })
            };
            until("the server does not receive", || service.stalling.load(Ordering::SeqCst)).await;
            let started = Instant::now();
            // Many times what the ring and the socket's buffers hold.
            let calls: Vec<_> = (0..200)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move {
                        let mut request = Request::new(Payload { data: Bytes::from(vec![1; 100_000]) });
                        request.set_timeout(Duration::from_millis(100));
                        client.call(0, request).await
                    })
                })
                .collect();
            for call in calls {
                let status = call.await.expect("task").expect_err("the server does not receive");
                assert_eq!(status.code(), Code::DeadlineExceeded, "{kind}: {status}");
            }
            assert!(started.elapsed() < LATE, "{kind}: {:?}", started.elapsed());
            service.go_on.store(true, Ordering::SeqCst);
            blocked.await.expect("task").expect("answered when its handler is done");
            let data = Bytes::from(vec![7; 100_000]);
            assert_eq!(client.echo(data.clone()).await.expect("the connection goes on"), data);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_dropped_at_the_deadline() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            let started = Instant::now();
            let status = client.call(SLOW, request(Duration::from_millis(40))).await.expect_err("too slow");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            assert!(status.message().contains("/test.Echo/Slow"), "{status}");
            until("the handler has ended", || service.ended() == 1).await;
            assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_holds_while_waiting_for_a_place() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server().max_calls_per_connection(1));
            let client = EchoClient::new(channel(server.address, kind).await);
            let holder = {
                let client = client.clone();
                tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await })
            };
            until("the handler has begun", || service.begun() == 1).await;
            let started = Instant::now();
            let status = client.call(0, request(Duration::from_millis(40))).await.expect_err("no place");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
            service.release.notify_one();
            holder.await.expect("task").expect("answered");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_of_hours_and_years_are_as_good_as_others() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            for hours in [1, 2, 24, 24 * 365] {
                client.call(SLOW, request(Duration::from_secs(hours * 3600))).await.expect("in time");
            }
            // The longest that the notation of gRPC can express: eleven thousand years.
            let mut request = Request::new(Payload::default());
            request.metadata_mut().insert("grpc-timeout", "99999999H".parse().unwrap());
            client.call(SLOW, request).await.expect("in time");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_has_passed_already_fails_the_call_at_once() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
                let started = Instant::now();
                let status = client.call(SLOW, request(timeout)).await.expect_err("no time at all");
                assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
                assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
            }
            assert_eq!(client.echo("next").await.expect("echo"), "next");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_any_time_is_not_sent() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            // The answer to an echo may be there before anybody looks at the clock.
            for _ in 0..1000 {
                let status = client.call(0, request(Duration::ZERO)).await.expect_err("no time at all");
                assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            }
            let status = client.call(SLOW, request(Duration::ZERO)).await.expect_err("no time at all");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            // Calls are begun in the order of their requests.
            client.echo("next").await.expect("echo");
            assert_eq!(service.begun(), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn for_a_call_without_any_time_no_connection_is_made() {
    within(20, async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("address").to_string();
        let client = EchoClient::new(Channel::builder(address).connect_lazy().expect("an address"));
        let status = client.call(0, request(Duration::ZERO)).await.expect_err("no time at all");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        let nobody = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(nobody.is_err(), "somebody connected");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channels_timeout_is_for_calls_that_set_none() {
    within(20, async {
        let address = serve(server()).await;
        let builder = Channel::builder(address.to_string()).timeout(Duration::from_millis(40));
        let client = EchoClient::new(builder.connect().await.expect("connect"));
        let quarter = || Request::new(Payload { data: Bytes::from_static(&[250]) });
        let status = client.call(SLOW, quarter()).await.expect_err("the channel's time-out");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        client.call(SLOW, request(Duration::from_secs(10))).await.expect("the request's own time-out");
    })
    .await;
}
