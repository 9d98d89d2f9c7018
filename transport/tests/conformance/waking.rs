//! Sleeping and waking: no wake-up is lost, and none is sent for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use ringmail_transport::link::LinkKind;

use crate::fabric::{Fabric, Wanted};
use crate::side::Side;
use crate::traffic::name;

/// Looks a few times, more or less, before it sleeps, so that what arrives meets every state.
async fn spin_then_receive(side: &Side, rng: &mut fastrand::Rng, frames: &mut u32) {
    let before = *frames;
    for _ in 0..rng.u32(0..30) {
        side.turn(&mut |_| *frames += 1).unwrap();
        if *frames > before {
            return;
        }
        std::hint::spin_loop();
    }
    side.receive(&mut |_| *frames += 1).await.unwrap();
}

pub(crate) async fn no_wake_up_is_lost_in_a_hundred_thousand_turns<F: Fabric>(fabric: &F) {
    // Two sleeps a round. A simulated link has a third thread to wake each time, and its sleep is only a lock.
    // Emulated RDMA takes a millisecond for each way.
    let rounds = match F::KIND {
        LinkKind::Sim => 5_000,
        LinkKind::Rdma => 2_000,
        _ => 50_000,
    };
    let (left, right) = fabric.pair(Wanted::default()).await;
    let echo = tokio::spawn(async move {
        let (mut rng, mut came) = (fastrand::Rng::with_seed(1), 0);
        while came < rounds {
            let answered = came;
            spin_then_receive(&right, &mut rng, &mut came).await;
            for number in answered..came {
                right.send(name(0, number), &[]).await.unwrap();
            }
        }
        right
    });
    let (mut rng, mut came) = (fastrand::Rng::with_seed(2), 0);
    for round in 0..rounds {
        left.send(name(0, round), &[]).await.unwrap();
        let receives = async {
            while came <= round {
                spin_then_receive(&left, &mut rng, &mut came).await;
            }
        };
        let received = tokio::time::timeout(Duration::from_secs(10), receives).await;
        assert!(received.is_ok(), "a wake-up was lost in round {round}");
    }
    echo.await.unwrap();
}

pub(crate) async fn no_wake_up_is_lost_when_both_send_at_random<F: Fabric>(fabric: &F) {
    let frames = if F::KIND == LinkKind::Rdma { 3_000 } else { 20_000 };
    let (left, right) = fabric.pair(Wanted::default()).await;
    let ends: Vec<_> = [left, right]
        .into_iter()
        .enumerate()
        .map(|(seed, side)| {
            let sender = side.handle();
            let sends = tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed as u64);
                for number in 0..frames {
                    sender.send(name(0, number), &[7; 40]).await.unwrap();
                    if rng.u8(0..4) == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            });
            tokio::spawn(async move {
                let (mut rng, mut came) = (fastrand::Rng::with_seed(seed as u64 + 2), 0);
                while came < frames {
                    spin_then_receive(&side, &mut rng, &mut came).await;
                }
                // Its own frames may still wait for space.
                side.drive(|_| panic!("more frames than were sent"));
                sends.await.unwrap();
                // Stays until both are done.
                side
            })
        })
        .collect();
    for end in ends {
        end.await.unwrap();
    }
}

/// Counts the times that a task would have run.
#[derive(Default)]
struct Wakes {
    count: AtomicU32,
    /// Woken and not looked yet: more wake-ups change nothing.
    awake: AtomicBool,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        if !self.awake.swap(true, Ordering::SeqCst) {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A side that sleeps, and counts what wakes it.
struct Sleeper<'a> {
    side: &'a Side,
    wakes: Arc<Wakes>,
}

impl<'a> Sleeper<'a> {
    fn new(side: &'a Side) -> Self {
        Self { side, wakes: Arc::default() }
    }

    /// Looks until there is nothing to be done, then sleeps; how many frames came.
    fn sleep(&self) -> usize {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut frames = 0;
        self.wakes.awake.store(false, Ordering::SeqCst);
        self.side.endpoint.link().woken();
        loop {
            frames += self.side.turn(&mut |_| ()).unwrap();
            match self.side.endpoint.arm(&mut Context::from_waker(&waker)) {
                std::task::Poll::Ready(result) => result.unwrap(),
                std::task::Poll::Pending => return frames,
            }
        }
    }

    fn count(&self) -> u32 {
        self.wakes.count.load(Ordering::SeqCst)
    }

    /// Sleeps until what belongs to the beginning of a connection is over.
    async fn settle(&self) {
        let mut before = u32::MAX;
        while before != self.count() {
            before = self.count();
            self.sleep();
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
}

pub(crate) async fn an_idle_connection_wakes_nobody<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    left.send(name(0, 0), &[1; 500]).await.unwrap();
    right.receive(&mut drop).await.unwrap();
    right.send(name(0, 0), &[1; 500]).await.unwrap();
    left.receive(&mut drop).await.unwrap();
    let sleepers = [Sleeper::new(&left), Sleeper::new(&right)];
    for sleeper in &sleepers {
        sleeper.settle().await;
    }
    let before = sleepers.each_ref().map(Sleeper::count);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(sleepers.each_ref().map(Sleeper::count), before);
}

pub(crate) async fn a_frame_wakes_a_sleeper_once<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let sleeper = Sleeper::new(&right);
    sleeper.settle().await;
    // So few that no credit has to be reported for the reports of credit, which would be one wake-up more.
    for round in 0..6 {
        let before = sleeper.count();
        left.send(name(0, round), &[1; 100]).await.unwrap();
        left.send(name(1, round), &[1; 100]).await.unwrap();
        while sleeper.count() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Time for the second frame.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(sleeper.count(), before + 1, "round {round}");
        assert_eq!(sleeper.sleep(), 2);
        // Takes the credit that it may have been given.
        left.turn(&mut drop).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(sleeper.count(), before + 1, "woken for nothing in round {round}");
    }
}
