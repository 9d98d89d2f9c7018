//! Servers that come and go: shutdown, restarts, back-off, and clients that are there before their server.

mod peers;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peers::{Background, Watched, until, within};
use ringmail::{Channel, Code, ConnectError, LinkKind, LinkPolicy, Request, Status, Wait};
use support::{EchoClient, LINKS, Payload, channel, serve, server};
use tokio::sync::Notify;

const SLOW: usize = 2;

fn slow(client: &EchoClient) -> tokio::task::JoinHandle<Result<(), Status>> {
    let client = client.clone();
    tokio::spawn(async move { client.call(SLOW, Request::new(Payload::default())).await.map(|_| ()) })
}

/// An address where nobody listens at present.
async fn free_address() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    listener.local_addr().expect("address")
}

fn lazy(address: SocketAddr, kind: LinkKind) -> EchoClient {
    let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    let builder = Channel::builder(address.to_string()).link(LinkKind::Shm, shm);
    EchoClient::new(builder.connect_lazy().expect("an address"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_calls_in_progress_and_lets_no_new_ones_in() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let mut server = Background::start(service.server());
            let client = EchoClient::new(channel(server.address, kind).await);
            let calls = [slow(&client), slow(&client)];
            until("both handlers have begun", || service.begun() == 2).await;
            server.stop();
            // The listener is closed, and the client knows that the connection takes no more.
            until("the server refuses connections", || std::net::TcpStream::connect(server.address).is_err())
                .await;
            let mut refused = client.echo("new").await;
            for _ in 0..100 {
                if refused.is_err() {
                    break;
                }
                // A request may have overtaken the announcement; it is served.
                tokio::time::sleep(Duration::from_millis(5)).await;
                refused = client.echo("new").await;
            }
            let status = refused.expect_err("the server is going away");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains(&server.address.to_string()), "{status}");
            service.release.notify_waiters();
            for call in calls {
                call.await.expect("task").expect("finished in spite of the shutdown");
            }
            let started = Instant::now();
            drop(server);
            assert!(started.elapsed() < Duration::from_secs(2), "it waited for nobody");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_idle_clients() {
    within(20, async {
        for kind in LINKS {
            for wait in [Wait::Event, Wait::Adaptive, Wait::Busy] {
                let server = Background::start(server().wait(wait));
                let clients = [channel(server.address, kind).await, channel(server.address, kind).await];
                EchoClient::new(clients[0].clone()).echo("x").await.expect("echo");
                let started = Instant::now();
                drop(server);
                assert!(
                    started.elapsed() < Duration::from_secs(2),
                    "{kind}, {wait:?}: {:?}",
                    started.elapsed()
                );
            }
        }
    })
    .await;
}

/// Passes one connection on to `server`, but what the client says only after it is told to.
async fn delaying(server: SocketAddr, go_on: Arc<Notify>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.expect("accept");
        let mut server = tokio::net::TcpStream::connect(server).await.expect("connect");
        go_on.notified().await;
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_shaking_hands_when_the_shutdown_begins_does_not_hold_it_up() {
    within(20, async {
        let service = Arc::new(Watched::default());
        let mut server = Background::start(service.server());
        let client = EchoClient::new(channel(server.address, LinkKind::Tcp).await);
        let call = slow(&client);
        until("the handler has begun", || service.begun() == 1).await;
        let go_on = Arc::new(Notify::new());
        let late = lazy(delaying(server.address, Arc::clone(&go_on)).await, LinkKind::Tcp);
        let calling = {
            let late = late.clone();
            tokio::spawn(async move { late.echo("late").await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.stop();
        tokio::time::sleep(Duration::from_millis(50)).await;
        go_on.notify_one();
        // Served or refused, but not left waiting.
        let _ = calling.await.expect("task");
        service.release.notify_waiters();
        call.await.expect("task").expect("finished in spite of the shutdown");
        let started = Instant::now();
        drop(server);
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_gives_up_on_calls_that_outlast_its_grace() {
    within(20, async {
        for kind in LINKS {
            let service = Arc::new(Watched::default());
            let grace = Duration::from_millis(150);
            let server = Background::start(service.server().shutdown_grace(grace));
            let client = EchoClient::new(channel(server.address, kind).await);
            let call = slow(&client);
            until("the handler has begun", || service.begun() == 1).await;
            let started = Instant::now();
            drop(server);
            assert!(started.elapsed() >= grace && started.elapsed() < Duration::from_secs(2));
            let status = call.await.expect("task").expect_err("given up");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            until("the handler has ended", || service.ended() == 1).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_on_the_same_port_the_next_call_succeeds() {
    within(30, async {
        for kind in LINKS {
            let mut running = Background::start(server());
            let address = running.address;
            let client = EchoClient::new(channel(address, kind).await);
            for round in 0..5 {
                client.echo("before").await.expect("echo");
                drop(running);
                running = Background::start(server().listen(address.to_string()));
                // No call was made while nobody was there, so nothing has to be waited for.
                let back = client.echo("after").await;
                assert_eq!(back.unwrap_or_else(|status| panic!("{kind}, round {round}: {status}")), "after");
                assert_eq!(client.0.channel().link_info().kind, Some(kind));
            }
        }
    })
    .await;
}

/// Milliseconds to the next attempt, as the error says.
fn announced_pause(status: &Status) -> Option<u64> {
    let text = status.message();
    let after = text.split_once("next attempt in ")?.1;
    after.split_once(" ms")?.0.parse().ok()
}

#[tokio::test]
async fn while_backing_off_calls_fail_fast_with_the_reason_and_the_pause_is_bounded() {
    within(60, async {
        let address = free_address().await;
        let client = lazy(address, LinkKind::Tcp);
        // The pause doubles from 50 ms, with jitter of half either way.
        for failures in 0..4u32 {
            let refused = client.echo("x").await.expect_err("nobody is there");
            assert_eq!(refused.code(), Code::Unavailable, "{refused}");
            assert_eq!(announced_pause(&refused), None, "this call made the attempt: {refused}");
            assert!(
                refused.message().contains(&address.to_string())
                    && refused.message().contains("check that the server runs"),
                "{refused}"
            );
            let started = Instant::now();
            let fast = client.echo("x").await.expect_err("backing off");
            assert!(started.elapsed() < Duration::from_millis(20), "{:?}", started.elapsed());
            assert_eq!(fast.code(), Code::Unavailable, "{fast}");
            assert!(fast.message().starts_with(refused.message()), "the reason is told again: {fast}");
            let pause = announced_pause(&fast).expect("the pause is told");
            let nominal = 50 << failures;
            assert!(pause <= nominal * 3 / 2, "failure {failures}: {pause} ms of {nominal}");
            assert!(pause + 20 >= nominal / 2, "failure {failures}: {pause} ms of {nominal}");
            tokio::time::sleep(Duration::from_millis(pause + 5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn pauses_of_many_clients_differ() {
    within(20, async {
        let address = free_address().await;
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let client = lazy(address, LinkKind::Tcp);
            client.echo("x").await.expect_err("nobody is there");
            pauses.push(announced_pause(&client.echo("x").await.expect_err("backing off")).expect("a pause"));
        }
        pauses.sort_unstable();
        pauses.dedup();
        assert!(pauses.len() >= 5, "all clients would come back at once: {pauses:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_channel_finds_its_server_when_that_has_come() {
    within(20, async {
        for kind in LINKS {
            let address = free_address().await;
            let client = lazy(address, kind);
            let info = client.0.channel().link_info();
            assert_eq!(info.kind, None);
            assert!(info.to_string().contains(&address.to_string()), "{info}");
            assert_eq!(client.echo("x").await.expect_err("nobody is there").code(), Code::Unavailable);
            let server = Background::start(server().listen(address.to_string()));
            let started = Instant::now();
            while let Err(status) = client.echo("x").await {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(started.elapsed() < Duration::from_secs(1), "the first pauses are short: {status}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(client.0.channel().link_info().kind, Some(kind));
            drop(client);
            drop(server);
        }
    })
    .await;
}

#[tokio::test]
async fn addresses_and_sizes_that_cannot_be_are_refused_before_anything_is_tried() {
    for address in ["http://localhost:1", "localhost", "ringmail://:7", "ringmail://a:1/x"] {
        let error = Channel::builder(address).connect_lazy().expect_err(address);
        assert!(matches!(error, ConnectError::Address(_)) && error.to_string().contains(address), "{error}");
    }
    for bytes in [0, 1000, 100_000, 1 << 30] {
        let error = Channel::builder("localhost:1").ring_size(bytes).connect_lazy().expect_err("a bad size");
        let text = error.to_string();
        assert!(text.contains(&bytes.to_string()) && text.contains("power of two"), "{text}");
    }
    let error = Channel::connect("no-such-host.invalid:1").await.expect_err("no such host");
    assert!(error.to_string().contains("no-such-host.invalid:1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_channels_to_one_server_have_nothing_to_do_with_each_other() {
    within(20, async {
        let service = Arc::new(Watched::default());
        let server = Background::start(service.server().max_calls_per_connection(1));
        let [first, second] = LINKS.map(|kind| channel(server.address, kind));
        let (first, second) = (EchoClient::new(first.await), EchoClient::new(second.await));
        let held = slow(&first);
        until("the handler has begun", || service.begun() == 1).await;
        assert_eq!(second.echo("x").await.expect("it has a place of its own"), "x");
        held.abort();
        drop(first);
        assert_eq!(second.echo("x").await.expect("it has a connection of its own"), "x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_run_on_runtimes_of_either_kind() {
    within(60, async {
        // Multi-threaded servers and clients.
        let multi = serve(server()).await;
        // A server on one thread.
        let single = Background::start(server());
        for address in [multi, single.address] {
            for kind in LINKS {
                let client = EchoClient::new(channel(address, kind).await);
                assert_eq!(client.echo("x").await.expect("echo"), "x");
                // Clients on one thread, one of them beside blocking work of its own.
                let calls = move || async move {
                    let client = EchoClient::new(channel(address, kind).await);
                    let echoes = (0..50).map(|_| {
                        let client = client.clone();
                        tokio::spawn(async move { client.echo("x").await.expect("echo") })
                    });
                    for echo in echoes.collect::<Vec<_>>() {
                        assert_eq!(echo.await.expect("task"), "x");
                    }
                };
                let thread = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.expect("a runtime").block_on(calls());
                });
                tokio::task::spawn_blocking(|| thread.join()).await.expect("task").expect("calls");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_at_once_are_served() {
    within(60, async {
        for kind in LINKS {
            let server = Background::start(server());
            let clients: Vec<_> = (0..200u32)
                .map(|client| {
                    let address = server.address;
                    tokio::spawn(async move {
                        let channel = EchoClient::new(channel(address, kind).await);
                        for round in 0..20u32 {
                            let data = format!("{client}/{round}");
                            assert_eq!(channel.echo(data.clone()).await.expect("echo"), data);
                        }
                        channel
                    })
                })
                .collect();
            let mut channels = Vec::new();
            for client in clients {
                channels.push(client.await.expect("task"));
            }
            // All of them still there, and each is found again.
            for channel in &channels {
                assert_eq!(channel.echo("again").await.expect("echo"), "again");
            }
        }
    })
    .await;
}

#[test]
fn an_answer_that_came_before_the_server_ended_is_not_lost() {
    for kind in LINKS {
        for round in 0..10 {
            // One thread, which is held up until both have come, the answer and the end. What is found first is up to
            // the kernel.
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(within(20, async {
                let service = Arc::new(Watched::default());
                let server = Background::start(service.server().shutdown_grace(Duration::from_millis(1)));
                let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
                let channel = Channel::builder(server.address.to_string()).wait(Wait::Event);
                let client =
                    EchoClient::new(channel.link(LinkKind::Shm, shm).connect().await.expect("connect"));
                let call = slow(&client);
                until("the handler has begun", || service.begun() == 1).await;
                let patience = Instant::now() + Duration::from_secs(10);
                while service.ended() == 0 {
                    assert!(Instant::now() < patience, "the handler does not end");
                    // Again: it has begun, and may not wait yet.
                    service.release.notify_waiters();
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The answer follows at once.
                std::thread::sleep(Duration::from_millis(20));
                drop(server);
                let answer = call.await.expect("task");
                assert!(answer.is_ok(), "{kind}, round {round}: {answer:?}");
            }));
        }
    }
}

/// As when tests share a channel, each with a runtime of its own.
#[test]
fn a_channel_outlives_the_runtime_that_it_was_made_on() {
    use tokio::runtime::Builder;
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    for kind in LINKS {
        // The only caller may have received for itself all the time, so that the driver was never polled.
        let server = Background::start(server());
        let first = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = first.block_on(async { EchoClient::new(channel(server.address, kind).await) });
        assert!(first.block_on(client.echo("first")).is_ok());
        drop(first);
        let again = runtime().block_on(within(10, client.echo("second")));
        assert_eq!(again.expect("a new connection"), "second", "{kind}");

        let service = Arc::new(Watched::default());
        let server = Background::start(service.server());
        let (first, second) = (runtime(), runtime());
        let client = first.block_on(async { EchoClient::new(channel(server.address, kind).await) });
        assert!(first.block_on(client.echo("first")).is_ok());
        let pending = second.spawn({
            let client = client.clone();
            async move { client.call(SLOW, Request::new(Payload::default())).await }
        });
        second.block_on(until("the handler has begun", || service.begun() == 1));
        drop(first);
        second.block_on(within(10, async {
            let status = pending.await.expect("task").expect_err("nobody receives for it any more");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains("runtime"), "{status}");
            assert_eq!(client.echo("second").await.expect("a new connection"), "second", "{kind}");
        }));
    }
}
