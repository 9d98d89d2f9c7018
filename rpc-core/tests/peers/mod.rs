//! The other side of a test: servers on threads of their own, services that can be watched, and peers that misbehave.

#![allow(dead_code, missing_docs, unreachable_pub)]

#[cfg(feature = "rdma")]
pub mod load;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringmail::codegen::BoxFuture;
use ringmail::{Request, Response, Server, ServerBuilder, Status};
use tokio::sync::{Notify, oneshot};

use crate::support::{Echo, EchoServer, Payload};

/// Bound on every test: nothing may hang.
pub async fn within<T>(seconds: u64, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), work).await.expect("the test did not end in time")
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(5);
    while !is_so() {
        assert!(Instant::now() < patience, "not so in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A server on a runtime of its own, so that what the test's thread does is the client's doing alone.
pub struct Background {
    pub address: SocketAddr,
    /// Breaks the RDMA connections of its clients.
    pub sever: Box<dyn Fn() + Send + Sync>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Background {
    pub fn start(builder: ServerBuilder) -> Self {
        Self::start_on(tokio::runtime::Builder::new_current_thread(), builder)
    }

    /// One whose handlers have threads enough to run at the same time.
    pub fn start_on_threads(threads: usize, builder: ServerBuilder) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(threads);
        Self::start_on(runtime, builder)
    }

    fn start_on(mut runtime: tokio::runtime::Builder, builder: ServerBuilder) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let bound = builder.bind().await.expect("bind");
                let sever: Box<dyn Fn() + Send + Sync> = Box::new(bound.rdma_severer());
                tell.send((bound.local_addr(), sever)).expect("the test waits");
                bound
                    .serve_with_shutdown(async {
                        let _ = stopped.await;
                    })
                    .await
                    .expect("serve");
            });
        });
        let (address, sever) = told.recv().expect("it listens");
        Self { address, sever, stop: Some(stop), thread: Some(thread) }
    }

    /// Begins a graceful shutdown.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
        let thread = self.thread.take().expect("joined once");
        // A failure of the server is the test's, unless that has failed already.
        if thread.join().is_err() && !std::thread::panicking() {
            panic!("the server failed");
        }
    }
}

/// A service whose slow handlers wait until they are let go, and can be counted.
#[derive(Debug, Default)]
pub struct Watched {
    /// Handlers that have begun.
    pub begun: AtomicUsize,
    /// Handlers that have ended, however.
    pub ended: AtomicUsize,
    pub release: Notify,
}

impl Watched {
    pub fn server(self: &Arc<Self>) -> ServerBuilder {
        Server::builder().add_service(EchoServer(Arc::clone(self))).listen("ringmail://127.0.0.1:0")
    }

    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

/// Counts when it is dropped.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Echo for Watched {
    fn slow<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let _ends = Ends(&self.ended);
            self.release.notified().await;
            Ok(Response::new(request.into_inner()))
        })
    }
}

/// A service whose failing handlers hold the thread that receives until they are let go; its slow ones are watched.
#[derive(Debug, Default)]
pub struct Stalling {
    pub watched: Watched,
    pub stalling: AtomicBool,
    pub go_on: AtomicBool,
}

impl Stalling {
    pub fn server(self: &Arc<Self>) -> ServerBuilder {
        Server::builder().add_service(EchoServer(Arc::clone(self))).listen("ringmail://127.0.0.1:0")
    }
}

impl Echo for Stalling {
    fn slow<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        self.watched.slow(request)
    }
    fn fail<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            self.stalling.store(true, Ordering::SeqCst);
            // A failing test must not leave its server behind.
            let patience = Instant::now() + Duration::from_secs(10);
            while !self.go_on.load(Ordering::SeqCst) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Response::new(request.into_inner()))
        })
    }
}

/// Accepts connections and says nothing.
pub struct Silent {
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Silent {
    pub async fn listen() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("address");
        let task = tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((socket, _)) = listener.accept().await {
                kept.push(socket);
            }
        });
        Self { address, task }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
