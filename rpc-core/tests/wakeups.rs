//! Callers that poll for themselves and the task that receives for the others hand over to each other all the time: no
//! response may be left lying in between.

mod peers;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::{Background, within};
use ringmail::{Channel, LinkKind, LinkPolicy, Status, Wait};
use support::{EchoClient, LINKS, server};
use tokio::task::JoinHandle;

/// Threads that take the processors away from others at any moment, as a busy machine does.
struct Crowd(Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>);

impl Crowd {
    fn gather() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..threads).map(|_| std::thread::spawn(spin(Arc::clone(&stop)))).collect();
        Self(stop, threads)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1.drain(..) {
            thread.join().expect("it only spins");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_alone_and_then_several_at_once_are_all_answered() {
    const EACH: Duration = Duration::from_secs(2);
    within(100, async {
        let server = Background::start(server());
        let _crowd = Crowd::gather();
        for kind in LINKS {
            for wait in [Wait::Adaptive, Wait::Busy] {
                let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
                let builder =
                    Channel::builder(server.address.to_string()).wait(wait).link(LinkKind::Shm, shm);
                let client = EchoClient::new(builder.connect().await.expect("connect"));
                let (started, mut rounds) = (Instant::now(), 0);
                while started.elapsed() < EACH {
                    rounds += 1;
                    let call = || {
                        let client = client.clone();
                        tokio::spawn(async move { client.echo("x").await })
                    };
                    let what = format!("{kind}, {wait:?}, round {rounds}: a response was left lying");
                    let answered = async |call: JoinHandle<Result<Bytes, Status>>| {
                        let answered = tokio::time::timeout(Duration::from_secs(10), call).await;
                        answered.expect(&what).expect("task").expect("echo")
                    };
                    // Alone; in every other round until it is answered.
                    let first = call();
                    if rounds % 2 == 0 {
                        answered(first).await;
                    }
                    for call in [call(), call(), call(), call()] {
                        answered(call).await;
                    }
                }
                assert!(rounds > 10, "{kind}, {wait:?}: {rounds} rounds in {EACH:?}");
            }
        }
    })
    .await;
}
