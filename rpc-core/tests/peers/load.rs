//! Calls that go on while something happens to the connection, and a service that counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use ringmail::codegen::BoxFuture;
use ringmail::{Channel, Request, Response, Status};
use tokio::task::JoinHandle;

use super::Background;
use crate::support::{Echo, EchoClient, Payload};

/// Counts what it is asked, and says how often that was.
#[derive(Default)]
pub struct Counting(AtomicUsize);

impl Counting {
    pub fn asked(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Echo for Counting {
    fn echo<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(Response::new(request.into_inner())) })
    }
    fn slow<'a>(&'a self, _: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        let asked = self.asked().to_string();
        Box::pin(async move { Ok(Response::new(Payload { data: Bytes::from(asked) })) })
    }
}

/// Tasks that call one after the other until they are to end, and check every answer.
pub struct Load {
    ends: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<usize>>,
}

impl Load {
    /// `data` makes what a task sends, of the task's number and how many calls it has made.
    pub fn begin(client: &EchoClient, tasks: usize, data: fn(usize, usize) -> Bytes) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let tasks = (0..tasks).map(|task| {
            let (client, ends) = (client.clone(), Arc::clone(&ends));
            tokio::spawn(async move {
                let mut calls = 0;
                while !ends.load(Ordering::SeqCst) {
                    let data = data(task, calls);
                    let answer = client.echo(data.clone()).await.expect("echo");
                    // Not printed: it may be megabytes.
                    assert!(answer == data, "call {calls} of task {task}, {} bytes", data.len());
                    calls += 1;
                }
                calls
            })
        });
        Self { tasks: tasks.collect(), ends }
    }

    /// Ends it; how many calls it made.
    pub async fn end(self) -> usize {
        self.ends.store(true, Ordering::SeqCst);
        let mut calls = 0;
        for task in self.tasks {
            calls += task.await.expect("task");
        }
        calls
    }
}

/// Breaks the RDMA connection under a channel: at the client, at the server or at both, by turns.
pub fn sever(round: u64, channel: &Channel, server: &Background) {
    match round % 3 {
        0 => channel.sever_rdma(),
        1 => (server.sever)(),
        _ => {
            channel.sever_rdma();
            (server.sever)();
        }
    }
}
