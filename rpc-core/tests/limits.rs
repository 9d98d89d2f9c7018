//! Limits: calls at a time, sizes of messages in both directions, metadata, and the edges of a frame.

mod peers;
mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use peers::{Background, Watched, until, within};
use ringmail::codegen::{BoxFuture, Limits};
use ringmail::{Channel, Code, LinkKind, LinkPolicy, Request, Response, Server, ServerBuilder, Status};
use support::{Echo, EchoClient, EchoServer, LINKS, Payload, channel, serve, server};

const FAIL: usize = 1;
const SLOW: usize = 2;

async fn connect(builder: ringmail::ChannelBuilder, kind: LinkKind) -> EchoClient {
    let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    EchoClient::new(builder.link(LinkKind::Shm, shm).connect().await.expect("connect"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_more_than_allowed_waits_and_then_proceeds() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server().max_calls_per_connection(3));
            let client = EchoClient::new(channel(server.address, kind).await);
            let calls: Vec<_> = (0..4)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await })
                })
                .collect();
            until("three handlers have begun", || service.begun() == 3).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(service.begun(), 3, "the fourth waits at the client");
            service.release.notify_one();
            until("the fourth has begun", || service.begun() == 4).await;
            service.release.notify_waiters();
            for call in calls {
                call.await.expect("task").expect("answered");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_thousand_calls_at_a_time_are_served_and_more_wait_for_their_turn() {
    const CALLS: usize = 5000;
    within(60, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            let calls: Vec<_> = (0..CALLS)
                .map(|call| {
                    let (client, data) = (client.clone(), Bytes::from(call.to_le_bytes().to_vec()));
                    tokio::spawn(async move {
                        let back = client.call(SLOW, Request::new(Payload { data: data.clone() })).await;
                        assert_eq!(back.expect("answered").into_inner().data, data);
                    })
                })
                .collect();
            until("as many as are allowed have begun", || service.begun() == 4096).await;
            while service.ended() < CALLS {
                service.release.notify_waiters();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for call in calls {
                call.await.expect("task");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_keep_their_requests_do_not_stop_the_connection() {
    const CALLS: usize = 1000;
    within(30, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            // Sixteen times the ring, all of it held by handlers at the same time.
            let calls: Vec<_> = (0..CALLS)
                .map(|call| {
                    let (client, data) = (client.clone(), Bytes::from(vec![call as u8; 4096]));
                    tokio::spawn(async move {
                        let back = client.call(SLOW, Request::new(Payload { data: data.clone() })).await;
                        assert_eq!(back.expect("answered").into_inner().data, data);
                    })
                })
                .collect();
            until("all handlers have begun", || service.begun() == CALLS).await;
            assert_eq!(client.echo("beside them").await.expect("echo"), "beside them");
            while service.ended() < CALLS {
                service.release.notify_waiters();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for call in calls {
                call.await.expect("task");
            }
        }
    })
    .await;
}

/// Answers with as many bytes as the request's four bytes say.
struct Sized;

impl Echo for Sized {
    fn echo<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let wanted = u32::from_le_bytes(request.get_ref().data[..4].try_into().expect("four bytes"));
            Ok(Response::new(Payload { data: vec![7; wanted as usize].into() }))
        })
    }
    /// Answers with metadata, or fails with details (1), a message (2) or both (3), of that size.
    fn fail<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let wanted = u32::from_le_bytes(request.get_ref().data[..4].try_into().expect("four bytes"));
            if request.get_ref().data.len() > 4 {
                let details = vec![1; wanted as usize].into();
                // A flag for each of the two.
                let flags = request.get_ref().data[4];
                let message =
                    if flags & 2 == 0 { "as asked".to_owned() } else { "ü".repeat(wanted as usize / 2) };
                return Err(match flags & 1 {
                    0 => Status::new(Code::Aborted, message),
                    _ => Status::with_details(Code::Aborted, message, details),
                });
            }
            let mut response = Response::new(Payload::default());
            response.metadata_mut().insert("k", "v".repeat(wanted as usize).parse().expect("ASCII"));
            Ok(response)
        })
    }
}

fn sized() -> ServerBuilder {
    Server::builder().add_service(EchoServer(Arc::new(Sized))).listen("127.0.0.1:0")
}

async fn ask(client: &EchoClient, method: usize, bytes: usize) -> Result<Response<Payload>, Status> {
    let data = Bytes::from((bytes as u32).to_le_bytes().to_vec());
    client.call(method, Request::new(Payload { data })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_beyond_what_the_client_accepts_is_refused_with_the_figures_and_the_setting() {
    within(30, async {
        let address = serve(sized()).await;
        for kind in LINKS {
            let client = connect(Channel::builder(address.to_string()).max_message_size(10_000), kind).await;
            // Field key and length are 3 bytes.
            ask(&client, 0, 9_997).await.expect("exactly the limit");
            for bytes in [9_998, 1 << 20] {
                let status = ask(&client, 0, bytes).await.expect_err("beyond the limit");
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(
                    status.message().contains("10000") && status.message().contains("max_message_size"),
                    "{status}"
                );
            }
            ask(&client, 0, 5).await.expect("the connection goes on");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_one_client_are_its_own() {
    within(30, async {
        let address = serve(sized()).await;
        for kind in LINKS {
            let plain = EchoClient::new(channel(address, kind).await);
            let mut strict = plain.clone();
            strict.0.set_limits(Limits {
                max_decoding_message_size: Some(1000),
                max_encoding_message_size: Some(100),
            });
            let status = ask(&strict, 0, 2000).await.expect_err("too large to decode");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("max_decoding_message_size"), "{status}");
            let status = strict.echo(vec![0; 200]).await.expect_err("too large to encode");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("max_encoding_message_size"), "{status}");
            ask(&plain, 0, 2000).await.expect("the other client has no such limits");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_at_the_edges_of_a_frame_arrive_whole() {
    within(60, async {
        let echoing = serve(server()).await;
        for kind in LINKS {
            for ring in [16 << 10, 64 << 10, 256 << 10] {
                let builder = Channel::builder(echoing.to_string()).ring_size(ring);
                let client = connect(builder, kind).await;
                // A frame is at most half the ring; header and the field's key and length are 36 bytes (35 below 16 KiB).
                for overhead in [35, 36] {
                    for edge in [ring / 4, ring / 2, ring / 2 + ring / 4] {
                        for bytes in edge - overhead - 2..=edge - overhead + 2 {
                            let data = Bytes::from(vec![bytes as u8; bytes]);
                            assert_eq!(client.echo(data.clone()).await.expect("echo"), data, "{kind} {ring}");
                        }
                    }
                }
            }
        }
    })
    .await;
}

/// Bytes of a metadata block with one key of one letter, besides the value.
const BLOCK: usize = 4 + 6 + 1;
const METADATA_LIMIT: usize = 16 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn metadata_up_to_its_limit_travels_both_ways_and_more_is_refused_with_the_figures() {
    within(30, async {
        let (echoing, answering) = (serve(server()).await, serve(sized()).await);
        for kind in LINKS {
            for ring in [16 << 10, 32 << 10, 256 << 10] {
                let builder = |address: &std::net::SocketAddr| {
                    connect(Channel::builder(address.to_string()).ring_size(ring), kind)
                };
                let (client, answered) = (builder(&echoing).await, builder(&answering).await);
                // A block is never split, so small rings mean less.
                let limit = METADATA_LIMIT.min(ring / 2 - 40);
                let whose = if limit < METADATA_LIMIT { "ring_size" } else { "of the protocol" };
                for bytes in [5_000, limit - BLOCK, limit - BLOCK + 1, 9_000, 16_500, 100_000] {
                    let fits = bytes + BLOCK <= limit;
                    let what = format!("{kind}, ring {ring}, {bytes} bytes");
                    let refused = |status: Status, which: &str| {
                        assert_eq!(status.code(), Code::ResourceExhausted, "{what}: {status}");
                        let text = status.message();
                        let says =
                            [which, whose, &format!(" {limit} bytes")].iter().all(|said| text.contains(said));
                        assert!(says, "{what}: {status}");
                    };
                    let mut request = Request::new(Payload { data: vec![3; 300].into() });
                    request.metadata_mut().insert("k", "v".repeat(bytes).parse().unwrap());
                    match within(5, client.call(0, request)).await {
                        Ok(response) => {
                            assert!(fits, "{what}");
                            assert_eq!(response.metadata().get("k").expect("k").len(), bytes, "{what}");
                            assert_eq!(response.get_ref().data.len(), 300, "{what}");
                        }
                        Err(status) => {
                            assert!(!fits, "{what}: {status}");
                            refused(status, "request's metadata");
                        }
                    }
                    match within(5, ask(&answered, FAIL, bytes)).await {
                        Ok(response) => {
                            assert!(fits, "{what}");
                            assert_eq!(response.metadata().get("k").expect("k").len(), bytes, "{what}");
                        }
                        Err(status) => {
                            assert!(!fits, "{what}: {status}");
                            refused(status, "response's metadata");
                        }
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_with_details_of_any_size_arrives_with_its_code() {
    within(30, async {
        let address = serve(sized()).await;
        for kind in LINKS {
            for ring in [16 << 10, 256 << 10] {
                let client = connect(Channel::builder(address.to_string()).ring_size(ring), kind).await;
                for bytes in [100u32, 9_000, 16_000, 50_000] {
                    let mut data = bytes.to_le_bytes().to_vec();
                    data.push(1);
                    let request = Request::new(Payload { data: data.into() });
                    let status = within(5, client.call(FAIL, request)).await.expect_err("as asked");
                    assert_eq!(status.code(), Code::Aborted, "{kind}, ring {ring}, {bytes}: {status}");
                    let arrived = status.details().len();
                    // What does not fit is left out, and the message says so.
                    assert!(
                        arrived == bytes as usize
                            || (status.message().starts_with("as asked (without its details of")
                                && status.message().contains("a status has room for")),
                        "{kind}, ring {ring}, {bytes}: {arrived} bytes arrived: {status}"
                    );
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_waits_for_a_place_is_never_refused_one() {
    const CALLERS: usize = 200;
    const CALLS: usize = 60;
    within(60, async {
        for kind in LINKS {
            // Beside the callers, so that answers and new requests cross each other in as many ways as there are.
            let address = serve(server().max_calls_per_connection(8)).await;
            let client = EchoClient::new(channel(address, kind).await);
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let client = client.clone();
                    tokio::spawn(async move {
                        for call in 0..CALLS {
                            let slow = client.call(SLOW, Request::new(Payload { data: vec![1].into() }));
                            // Some give up, which gives their places back as well.
                            let patience = if (caller + call) % 4 == 0 { 1 } else { 60_000 };
                            if let Ok(answer) =
                                tokio::time::timeout(Duration::from_millis(patience), slow).await
                            {
                                answer.expect("the place was free");
                            }
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.await.expect("task");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_wait_for_each_other_instead_of_being_refused() {
    const CALLS: usize = 150;
    const BYTES: usize = 1 << 20;
    within(60, async {
        // More than twice what the server holds of them at a time, which is 64 MiB.
        let address = serve(server().max_message_size(BYTES + 16)).await;
        for kind in LINKS {
            let client = connect(Channel::builder(address.to_string()), kind).await;
            let calls: Vec<_> = (0..CALLS)
                .map(|call| {
                    let (client, data) = (client.clone(), Bytes::from(vec![call as u8; BYTES]));
                    tokio::spawn(async move {
                        let echo = client.echo(data.clone());
                        // Some give up on the way.
                        let patience =
                            if call % 5 == 0 { Duration::from_millis(call as u64) } else { Duration::MAX };
                        if let Ok(back) = tokio::time::timeout(patience, echo).await {
                            assert!(back.expect("its turn comes") == data, "it comes back as it was sent");
                        }
                    })
                })
                .collect();
            for call in calls {
                call.await.expect("task");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_with_a_long_message_arrives_with_its_code_and_the_beginning() {
    within(30, async {
        let address = serve(sized()).await;
        for kind in LINKS {
            for ring in [16 << 10, 256 << 10] {
                let client = connect(Channel::builder(address.to_string()).ring_size(ring), kind).await;
                for (bytes, flags) in [(20_000u32, 2), (20_001, 2), (1_000_000, 2), (20_000, 3)] {
                    let what = format!("{kind}, ring {ring}, {bytes}");
                    let mut data = bytes.to_le_bytes().to_vec();
                    data.push(flags);
                    let request = Request::new(Payload { data: data.into() });
                    let status = within(5, client.call(FAIL, request)).await.expect_err("as asked");
                    assert_eq!(status.code(), Code::Aborted, "{what}: {status}");
                    let text = status.message();
                    let end = format!("… (truncated from {} bytes)", bytes / 2 * 2);
                    assert!(text.contains(&end) && !text.contains("metadata"), "{what}: {text}");
                    assert!(text.starts_with(&"ü".repeat(3_500)), "{what}: {} bytes", text.len());
                    assert_eq!(text.contains("without its details of 20000 bytes"), flags == 3, "{what}");
                }
            }
        }
    })
    .await;
}
