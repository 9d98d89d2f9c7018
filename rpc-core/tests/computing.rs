//! Handlers that compute: they keep a thread without awaiting anything.

mod peers;
mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::{Background, until, within};
use ringmail::codegen::BoxFuture;
use ringmail::{Code, Request, Response, Server, ServerBuilder, Status};
use support::{Echo, EchoClient, EchoServer, LINKS, Payload, channel};
use tokio::task::JoinHandle;

const ECHO: usize = 0;
const FAIL: usize = 1;
const SLOW: usize = 2;
/// How long a handler keeps its thread before it gives up on what it waits for.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Computing {
    /// Handlers that are at it at the same time, and the most that were.
    together: Mutex<(usize, usize)>,
    changed: Condvar,
    stalled: AtomicBool,
    first_is_answered: AtomicBool,
    computed: AtomicUsize,
}

fn answer(request: Request<Payload>) -> Result<Response<Payload>, Status> {
    Ok(Response::new(request.into_inner()))
}

impl Echo for Computing {
    /// Computes for a while.
    fn slow<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            self.computed.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            answer(request)
        })
    }
    /// Computes until another one does so as well. The first one of all only takes its time.
    fn echo<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            if request.get_ref().data.is_empty() {
                self.stalled.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(100));
                return answer(request);
            }
            let mut together = self.together.lock().expect("no panic");
            together.0 += 1;
            together.1 = together.1.max(together.0);
            self.changed.notify_all();
            let (mut together, _) = self
                .changed
                .wait_timeout_while(together, PATIENCE, |together| together.1 < 2)
                .expect("no panic");
            together.0 -= 1;
            answer(request)
        })
    }
    /// Computes until the first answer is there.
    fn fail<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let patience = Instant::now() + PATIENCE;
            while !self.first_is_answered.load(Ordering::SeqCst) {
                if Instant::now() > patience {
                    return Err(Status::internal("the first answer is not there"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            answer(request)
        })
    }
}

fn server(service: &Arc<Computing>) -> ServerBuilder {
    Server::builder().add_service(EchoServer(Arc::clone(service))).listen("127.0.0.1:0")
}

fn some() -> Request<Payload> {
    Request::new(Payload { data: Bytes::from_static(b"some") })
}

/// Has a handler compute, so that requests that arrive meanwhile are found in one turn.
async fn stall(client: &EchoClient, service: &Computing) -> JoinHandle<Result<Response<Payload>, Status>> {
    let client = client.clone();
    let stall = tokio::spawn(async move { client.call(ECHO, Request::new(Payload::default())).await });
    until("it has begun", || service.stalled.load(Ordering::SeqCst)).await;
    stall
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_compute_do_so_at_the_same_time() {
    within(30, async {
        for kind in LINKS {
            let service = Arc::new(Computing::default());
            let server = Background::start_on_threads(4, server(&service));
            let client = EchoClient::new(channel(server.address, kind).await);
            client.call(ECHO, Request::new(Payload::default())).await.expect("takes its time");
            service.stalled.store(false, Ordering::SeqCst);
            let stall = stall(&client, &service).await;
            let (one, two) = tokio::join!(client.call(ECHO, some()), client.call(ECHO, some()));
            stall.await.expect("task").expect("answered");
            one.expect("answered");
            two.expect("answered");
            let most = service.together.lock().expect("no panic").1;
            assert_eq!(most, 2, "{kind}: one at a time");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_does_not_wait_for_handlers_that_compute_after_it() {
    within(30, async {
        for kind in LINKS {
            let service = Arc::new(Computing::default());
            let server = Background::start_on_threads(4, server(&service));
            let client = EchoClient::new(channel(server.address, kind).await);
            let stall = stall(&client, &service).await;
            let first = async {
                let answer = client.call(SLOW, some()).await;
                service.first_is_answered.store(true, Ordering::SeqCst);
                answer
            };
            let (first, second) = tokio::join!(first, client.call(FAIL, some()));
            first.expect("answered");
            second.unwrap_or_else(|status| panic!("{kind}: {status}"));
            stall.await.expect("task").expect("answered");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_turn_comes_after_its_deadline_is_not_begun() {
    const CALLS: usize = 80;
    within(30, async {
        for kind in LINKS {
            let service = Arc::new(Computing::default());
            let server = Background::start_on_threads(4, server(&service));
            let client = EchoClient::new(channel(server.address, kind).await);
            for _ in 0..2 {
                client.call(SLOW, some()).await.expect("takes its time");
            }
            let calls: Vec<_> = (0..CALLS)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move {
                        let mut request = some();
                        request.set_timeout(Duration::from_millis(50));
                        client.call(SLOW, request).await
                    })
                })
                .collect();
            let mut late = 0;
            for call in calls {
                if let Err(status) = call.await.expect("task") {
                    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
                    late += 1;
                }
            }
            client.call(SLOW, some()).await.expect("goes on");
            assert!(late > 0, "{kind}: 80 times 20 ms on four threads take longer than 50 ms");
            let computed = service.computed.load(Ordering::SeqCst);
            assert!(
                computed < CALLS,
                "{kind}: {computed} handlers ran, of {CALLS} calls of which {late} were late"
            );
        }
    })
    .await;
}
