//! Callers that poll the link themselves hold their thread; others of that thread must get their share of it.

mod peers;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peers::{Background, within};
use ringmail::{Channel, LinkKind, LinkPolicy, Wait};
use support::{EchoClient, LINKS, server};

/// One test at a time: each needs a processor for its server and one for itself.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn client(server: &Background, kind: LinkKind, wait: Wait) -> EchoClient {
    let shm = if kind == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    let builder = Channel::builder(server.address.to_string()).wait(wait).link(LinkKind::Shm, shm);
    EchoClient::new(builder.connect().await.expect("connect"))
}

#[tokio::test]
async fn a_task_that_calls_without_a_pause_lets_timers_of_its_thread_fire() {
    let _alone = ALONE.lock().await;
    within(30, async {
        let server = Background::start(server());
        for kind in LINKS {
            for wait in [Wait::Adaptive, Wait::Event, Wait::Busy] {
                let client = client(&server, kind, wait).await;
                let ticks = Arc::new(AtomicU64::new(0));
                let ticking = Arc::clone(&ticks);
                let timer = tokio::spawn(async move {
                    loop {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        ticking.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let started = Instant::now();
                while ticks.load(Ordering::Relaxed) < 10 {
                    client.echo("x").await.expect("echo");
                    assert!(
                        started.elapsed() < Duration::from_secs(3),
                        "{kind}, {wait:?}: a 2 ms timer fired {ticks:?} times"
                    );
                }
                timer.abort();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn tasks_of_one_thread_take_turns_at_calling() {
    const CALLS: u64 = 2000;
    let _alone = ALONE.lock().await;
    within(60, async {
        let server = Background::start(server());
        for kind in LINKS {
            for wait in [Wait::Adaptive, Wait::Event, Wait::Busy] {
                let client = client(&server, kind, wait).await;
                let made: Arc<Vec<AtomicU64>> = Arc::new((0..8).map(|_| AtomicU64::new(0)).collect());
                let tasks: Vec<_> = (0..made.len())
                    .map(|task| {
                        let (client, made) = (client.clone(), Arc::clone(&made));
                        tokio::spawn(async move {
                            for _ in 0..CALLS {
                                client.echo("x").await.expect("echo");
                                made[task].fetch_add(1, Ordering::Relaxed);
                            }
                            // How far the last of the others is.
                            made.iter().map(|made| made.load(Ordering::Relaxed)).min().expect("eight")
                        })
                    })
                    .collect();
                let mut behind = CALLS;
                for task in tasks {
                    behind = behind.min(task.await.expect("task"));
                }
                assert!(
                    behind >= CALLS / 2,
                    "{kind}, {wait:?}: one task was done when another had made {behind}"
                );
            }
        }
    })
    .await;
}
