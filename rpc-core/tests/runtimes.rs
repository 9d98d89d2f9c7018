//! Calls from plain threads and from runtimes that lack something: they work or end with a status that says why not.

mod peers;
mod support;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::{Background, Watched};
use ringmail::{Channel, Code, ConnectError, LinkPolicy, Request, Status, Wait};
use support::{EchoClient, LINKS, Payload, channel, server};
use tokio::runtime::{Builder, Runtime};

const SLOW: usize = 2;
/// How late a deadline may be noticed on a busy machine.
const LATE: Duration = Duration::from_millis(400);
/// Bound on every wait: nothing may hang.
const PATIENCE: Duration = Duration::from_secs(10);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, outside of any runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    assert!(tokio::runtime::Handle::try_current().is_err(), "this thread is to have no runtime");
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let patience = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = patience.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the future did not end in time");
        std::thread::park_timeout(left);
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn request(timeout: Duration) -> Request<Payload> {
    let mut request = Request::new(Payload { data: Bytes::from_static(&[250]) });
    request.set_timeout(timeout);
    request
}

fn lazy(address: std::net::SocketAddr) -> EchoClient {
    EchoClient::new(Channel::builder(address.to_string()).connect_lazy().expect("an address"))
}

#[test]
fn a_plain_thread_calls_with_and_without_deadlines() {
    let server = Background::start(server());
    let runtime = runtime();
    for kind in LINKS {
        for wait in [Wait::Busy, Wait::Adaptive, Wait::Event] {
            let builder = Channel::builder(server.address.to_string()).link(kind, LinkPolicy::Require);
            let builder = builder.wait(wait);
            let client = EchoClient::new(runtime.block_on(builder.connect()).expect("connect"));
            for _ in 0..100 {
                assert_eq!(block_on(client.echo("plain")).expect("echo"), "plain");
                block_on(client.call(0, request(PATIENCE))).expect("in time");
            }
            let started = Instant::now();
            let status =
                block_on(client.call(SLOW, request(Duration::from_millis(40)))).expect_err("too slow");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{kind} {wait:?}: {status}");
            assert!(started.elapsed() < LATE, "{kind} {wait:?}: {:?}", started.elapsed());
            // Fragments wait for room.
            let large = Bytes::from(vec![7; 3_000_000]);
            let mut call = Request::new(Payload { data: large.clone() });
            call.set_timeout(PATIENCE);
            assert_eq!(block_on(client.call(0, call)).expect("in time").into_inner().data, large);
        }
    }
}

#[test]
fn many_deadlines_on_plain_threads_pass_each_in_its_time() {
    let service = Arc::new(Watched::default());
    let server = Background::start(service.server());
    let runtime = runtime();
    let client = EchoClient::new(runtime.block_on(channel(server.address, LINKS[0])));
    let callers: Vec<_> = (0..16u64)
        .map(|number| {
            let client = client.clone();
            // Later ones are earlier due.
            let timeout = Duration::from_millis(200 - 10 * number);
            std::thread::spawn(move || {
                let started = Instant::now();
                let status = block_on(client.call(SLOW, request(timeout))).expect_err("never answered");
                assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
                assert!((timeout..timeout + LATE).contains(&started.elapsed()), "{:?}", started.elapsed());
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("as it should be");
    }
}

#[test]
fn a_plain_thread_connects_on_the_runtime_that_the_channel_was_made_on() {
    let server = Background::start(server());
    let runtime = runtime();
    let client = {
        let _within = runtime.enter();
        lazy(server.address)
    };
    block_on(client.call(0, request(PATIENCE))).expect("connected and answered");
    assert_eq!(block_on(client.echo("again")).expect("echo"), "again");
}

#[test]
fn without_any_runtime_calls_and_connecting_say_so() {
    let server = Background::start(server());
    let address = server.address.to_string();
    let error = block_on(Channel::connect(address)).expect_err("no runtime");
    assert!(matches!(error, ConnectError::NoRuntime), "{error}");
    assert!(error.to_string().contains("no tokio runtime"), "{error}");
    let client = lazy(server.address);
    for request in [Request::new(Payload::default()), request(PATIENCE)] {
        let status = block_on(client.call(0, request)).expect_err("no runtime");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("no tokio runtime"), "{status}");
    }
    // That was no failed attempt: where there is one, the next call is not held back.
    let runtime = runtime();
    assert_eq!(runtime.block_on(client.echo("now")).expect("echo"), "now");
    assert_eq!(block_on(client.echo("and from here")).expect("echo"), "and from here");
}

#[test]
fn a_deadline_holds_on_a_plain_thread_when_nobody_drives_the_runtime() {
    let server = Background::start(server());
    let idle = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = {
        let _within = idle.enter();
        lazy(server.address)
    };
    let started = Instant::now();
    let status = block_on(client.call(0, request(Duration::from_millis(50)))).expect_err("nobody connects");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
}

#[test]
fn when_the_runtime_shuts_down_calls_of_plain_threads_end_and_later_ones_say_why() {
    let service = Arc::new(Watched::default());
    let server = Background::start(service.server());
    for kind in LINKS {
        let runtime = runtime();
        let client = EchoClient::new(runtime.block_on(channel(server.address, kind)));
        let begun = service.begun();
        let caller = {
            let client = client.clone();
            std::thread::spawn(move || block_on(client.call(SLOW, request(PATIENCE))))
        };
        let patience = Instant::now() + PATIENCE;
        while service.begun() == begun {
            assert!(Instant::now() < patience, "the call did not arrive");
            std::thread::yield_now();
        }
        drop(runtime);
        let status = caller.join().expect("no panic").expect_err("the connection has ended");
        assert_eq!(status.code(), Code::Unavailable, "{kind}: {status}");
        for request in [Request::new(Payload::default()), request(PATIENCE)] {
            let status = block_on(client.call(0, request)).expect_err("no runtime");
            assert_eq!(status.code(), Code::FailedPrecondition, "{kind}: {status}");
            assert!(status.message().contains("shut down"), "{kind}: {status}");
        }
    }
}

#[test]
fn a_runtime_without_drivers_can_call_but_not_connect() {
    let server = Background::start(server());
    let bare = Builder::new_current_thread().build().expect("a runtime");
    let refused = |result: Result<Bytes, Status>| {
        let status = result.expect_err("nothing to connect with");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("enable"), "{status}");
    };
    let client = lazy(server.address);
    refused(bare.block_on(client.echo("lazy")));
    let call = async { client.call(0, request(PATIENCE)).await.map(|response| response.into_inner().data) };
    refused(bare.block_on(call));
    // Over a connection from elsewhere it calls like others, also with deadlines.
    let runtime = runtime();
    let client = EchoClient::new(runtime.block_on(channel(server.address, LINKS[0])));
    bare.block_on(client.call(0, request(PATIENCE))).expect("in time");
    let status = bare.block_on(client.call(SLOW, request(Duration::from_millis(40)))).expect_err("too slow");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}
