//! Unary calls over every link that this machine has: what a caller of tonic expects of them.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use ringmail::{Channel, Code, LinkKind, LinkPolicy, Request, Wait};
use support::{EchoClient, LINKS, Payload, channel, serve, server};

/// Bound on every test: nothing may hang.
async fn within<T>(seconds: u64, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), work).await.expect("the test did not end in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_all_sizes_come_back_intact() {
    within(60, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            for size in [0, 1, 31, 32, 33, 4096, 65_000, 131_000, 131_072, 140_000, 1 << 20, 5_000_001] {
                let data: Bytes = (0..size).map(|at| (at % 251) as u8).collect();
                assert_eq!(client.echo(data.clone()).await.expect("echo"), data, "{kind} {size}");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_find_their_own_answers() {
    within(60, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let tasks: Vec<_> = (0..64u32)
                .map(|task| {
                    let client = client.clone();
                    tokio::spawn(async move {
                        for round in 0..200u32 {
                            let data = Bytes::from(format!("{task}/{round}").repeat(1 + round as usize % 50));
                            assert_eq!(client.echo(data.clone()).await.expect("echo"), data);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("task");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn waiting_modes_work_on_a_single_thread_that_runs_both_sides() {
    within(60, async {
        for server_wait in [Wait::Event, Wait::Adaptive, Wait::Busy] {
            let address = serve(server().wait(server_wait)).await;
            for kind in LINKS {
                for wait in [Wait::Event, Wait::Adaptive, Wait::Busy] {
                    let channel = Channel::builder(address.to_string())
                        .wait(wait)
                        .link(
                            LinkKind::Shm,
                            if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off },
                        )
                        .connect()
                        .await
                        .expect("connect");
                    let client = EchoClient::new(channel);
                    for _ in 0..20 {
                        assert_eq!(client.echo("x").await.expect("echo"), "x");
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_arrives_with_message_details_and_metadata() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let request = Request::new(Payload { data: "\t\ntest \u{1F608}".into() });
            let status = client.call(1, request).await.expect_err("it fails");
            assert_eq!(status.code(), Code::DataLoss);
            assert_eq!(status.message(), "\t\ntest \u{1F608}");
            assert_eq!(status.details(), b"\0details");
            assert_eq!(status.metadata().get("trailer").expect("trailer"), "t");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_travels_both_ways() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let mut request = Request::new(Payload::default());
            request.metadata_mut().append("a", "1".parse().unwrap());
            request.metadata_mut().append("a", "2".parse().unwrap());
            request
                .metadata_mut()
                .append_bin("b-bin", ringmail::metadata::MetadataValue::from_bytes(b"\0\xff"));
            let response = client.call(0, request).await.expect("echo");
            let values: Vec<_> = response.metadata().get_all("a").iter().collect();
            assert_eq!(values, ["1", "2"]);
            assert_eq!(response.metadata().get_bin("b-bin").unwrap().to_bytes().unwrap(), &b"\0\xff"[..]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_fails_its_own_call_only() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let status =
                client.call(1, Request::new(Payload { data: "panic".into() })).await.expect_err("it panics");
            assert_eq!(status.code(), Code::Internal);
            assert!(!status.message().contains("as asked"), "panic messages stay in the log");
            assert_eq!(client.echo("still here").await.expect("echo"), "still here");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_are_enforced_and_the_connection_goes_on() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let mut request = Request::new(Payload { data: Bytes::from_static(&[250]) });
            request.set_timeout(Duration::from_millis(30));
            let started = Instant::now();
            let status = client.call(2, request).await.expect_err("it is too slow");
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert!(started.elapsed() < Duration::from_millis(200), "{:?}", started.elapsed());
            assert_eq!(client.echo("next").await.expect("echo"), "next");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_call_does_not_hold_up_others() {
    within(20, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let slow = client.clone();
            let slow = tokio::spawn(async move {
                slow.call(2, Request::new(Payload { data: Bytes::from_static(&[200]) })).await
            });
            let started = Instant::now();
            for _ in 0..50 {
                client.echo("quick").await.expect("echo");
            }
            assert!(started.elapsed() < Duration::from_millis(150), "{:?}", started.elapsed());
            slow.await.expect("task").expect("slow call");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_beyond_the_limits_end_with_resource_exhausted() {
    within(30, async {
        let address = serve(server().max_message_size(200_000)).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let status = client.echo(vec![0; 200_001]).await.expect_err("too large");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("200000"), "{status}");
            assert_eq!(client.echo(vec![7; 150_000]).await.expect("echo").len(), 150_000);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_the_server_lacks_is_unimplemented() {
    within(20, async {
        let bound = ringmail::Server::builder().listen("127.0.0.1:0").bind().await.expect("bind");
        let address = bound.local_addr();
        tokio::spawn(bound.serve());
        let client = EchoClient::new(Channel::connect(address.to_string()).await.expect("connect"));
        let status = client.echo("x").await.expect_err("no such method");
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(
            status.message().contains("/test.Echo/Echo") && status.message().contains(&address.to_string())
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_mebibytes_go_through() {
    within(60, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let data = Bytes::from(vec![0xa5; (64 << 20) - 64]);
            assert_eq!(client.echo(data.clone()).await.expect("echo"), data);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_keeps_what_it_got_does_not_stop_the_connection() {
    within(60, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let mut kept = Vec::new();
            // Forty times the ring.
            for round in 0..2000u32 {
                let data = Bytes::from(vec![round as u8; 5000]);
                let back = client.echo(data.clone()).await.expect("echo");
                assert_eq!(back, data);
                if round % 10 == 0 {
                    kept.push((data, back));
                }
            }
            for (data, back) in kept {
                assert_eq!(data, back, "what was kept has changed");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_nobody_takes_does_not_stop_the_connection() {
    within(60, async {
        let address = serve(server()).await;
        for kind in LINKS {
            let client = EchoClient::new(channel(address, kind).await);
            let mut ignored = Box::pin(client.echo(vec![1; 3000]));
            // Sent, but never polled again until the end.
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let early = ignored.as_mut().poll(&mut cx);
            for round in 0..2000u32 {
                client.echo(vec![round as u8; 3000]).await.expect("echo");
            }
            let late = match early {
                std::task::Poll::Ready(result) => result,
                std::task::Poll::Pending => ignored.await,
            };
            assert_eq!(late.expect("echo"), vec![1; 3000]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_codec_chokes_on_fails_its_own_call_only() {
    use ringmail::codegen::{
        CallKind, Client, Handling, MethodDescriptor, ServerCall, Service, ServiceDescriptor,
    };
    use ringmail::{Codec, DecodeError};

    static CHOKING: ServiceDescriptor = ServiceDescriptor {
        name: "test.Choking",
        methods: &[MethodDescriptor {
            path: "/test.Choking/Call",
            name: "Call",
            kind: CallKind::Unary,
            idempotent: false,
        }],
    };

    #[derive(Clone, Copy)]
    struct Choking;
    impl Codec for Choking {
        type Encode = ();
        type Decode = ();
        fn encoded_len(&self, (): &()) -> usize {
            0
        }
        fn encode(&self, (): &(), _: &mut [u8]) {}
        fn decode(&self, _: ringmail::Payload) -> Result<(), DecodeError> {
            panic!("as a codec should not")
        }
    }
    impl Service for Choking {
        fn descriptor(&self) -> &'static ServiceDescriptor {
            &CHOKING
        }
        fn call(&self, _: usize, call: ServerCall) -> Handling {
            let service = std::sync::Arc::new(*self);
            call.unary(&service, *self, |_, _| Box::pin(async { Ok(ringmail::Response::new(())) }))
        }
    }

    within(20, async {
        let address = serve(server().add_service(Choking)).await;
        for kind in LINKS {
            let channel = channel(address, kind).await;
            let choking = Client::new(channel.clone(), &CHOKING);
            let codec = ringmail::ProstCodec::<(), ()>::new();
            let status = choking.unary(0, Request::new(()), codec).await.expect_err("it chokes");
            assert_eq!(status.code(), Code::Internal);
            assert_eq!(EchoClient::new(channel).echo("still here").await.expect("echo"), "still here");
        }
    })
    .await;
}
