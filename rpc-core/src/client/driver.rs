//! The task that receives on a connection when no caller does so for itself.
//!
//! A caller that is alone on its connection polls the link itself, which saves two thread hand-offs. The driver
//! then only looks in from time to time; it takes over as soon as a caller goes to sleep, or calls overlap.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use ringmail_transport::endpoint::Turn;
use ringmail_transport::link::LinkError;

use super::connection::Connection;
use crate::wait::{SpinUntil, Wait};

/// How often the driver looks in while callers poll for themselves, and so how late something that no caller waits
/// for may be noticed.
const LOOK_IN: Duration = Duration::from_millis(20);
/// Longest spin before other tasks of the thread get their turn.
const SLICE: Duration = Duration::from_micros(20);

/// Ends the connection when its driver does, also when the driver is dropped because its runtime shuts down: nobody would
/// receive for calls from other runtimes, now or later.
struct EndsWithDriver(Arc<Connection>);

impl Drop for EndsWithDriver {
    fn drop(&mut self) {
        // Does nothing to one that is dead already.
        self.0.close("the runtime that the connection was made on has shut down");
    }
}

/// Drives a connection until it is dead.
pub(super) fn drive(connection: Arc<Connection>) -> impl Future<Output = ()> {
    // Made here, not at the first poll: there may be none before the runtime shuts down.
    let end = EndsWithDriver(Arc::clone(&connection));
    async move {
        let _end = end;
        receive(&connection).await;
        if let Some(reason) = connection.endpoint.failure()
            && !matches!(reason, LinkError::Closed(_))
        {
            let (peer, link) = (connection.peer, connection.endpoint.link_kind());
            tracing::info!(%peer, %link, %reason, "connection lost");
        }
    }
}

async fn receive(connection: &Connection) {
    loop {
        if connection.callers_poll.load(Ordering::SeqCst) {
            look_in(connection).await;
        }
        match connection.turn(None) {
            Err(_) => return,
            Ok((Turn::Frames(1..), _)) => {
                after_frames(connection).await;
                if connection.spin.mode() != Wait::Event {
                    continue;
                }
            }
            // A caller receives; it stops as soon as it sees that it is not alone.
            Ok((Turn::Busy, _)) => {
                tokio::task::yield_now().await;
                continue;
            }
            Ok((Turn::Frames(0), _)) => {}
        }
        if !connection.callers_poll.load(Ordering::SeqCst) && !spin(connection).await {
            sleep(connection).await;
        }
    }
}

/// Lets the tasks that were just woken make their next calls, and sends all of those at once.
async fn after_frames(connection: &Connection) {
    if connection.in_flight() <= 1 {
        // Who is alone is not made to wait for others.
        return;
    }
    let held = connection.endpoint.hold();
    tokio::task::yield_now().await;
    if let Some(held) = held {
        connection.endpoint.release(held);
    }
}

/// Spins while that pays and calls are in flight; whether something may have arrived.
async fn spin(connection: &Connection) -> bool {
    if connection.in_flight() == 0 && connection.spin.mode() != Wait::Busy {
        return false;
    }
    let budget = connection.spin.budget();
    let started = Instant::now();
    while !budget.is_zero() {
        let mut slice = SpinUntil::new(SLICE.min(budget));
        while slice.again() {
            match connection.turn(None) {
                Ok((Turn::Frames(0), _)) => {}
                Ok((Turn::Frames(_), _)) => {
                    connection.spin.hit();
                    after_frames(connection).await;
                    return true;
                }
                Ok((Turn::Busy, _)) | Err(_) => return true,
            }
        }
        if started.elapsed() > budget {
            if connection.spin.mode() == Wait::Busy {
                tokio::task::yield_now().await;
                return true;
            }
            connection.spin.miss();
            return false;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// Sleeps until the link wakes the driver, or a caller needs it.
async fn sleep(connection: &Connection) {
    let armed = std::future::poll_fn(|cx| match connection.endpoint.arm(cx) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    });
    tokio::select! {
        biased;
        () = armed => {
            connection.endpoint.link().woken();
        }
        () = connection.driver.notified() => {}
    }
}

/// Stays out of the callers' way until they stop polling.
async fn look_in(connection: &Connection) {
    connection.endpoint.link().rest();
    let mut seen = connection.caller_polls.load(Ordering::Relaxed);
    while connection.callers_poll.load(Ordering::SeqCst) {
        tokio::select! {
            biased;
            () = connection.driver.notified() => {}
            () = tokio::time::sleep(LOOK_IN) => {
                let now = connection.caller_polls.load(Ordering::Relaxed);
                if now == seen {
                    connection.callers_poll.store(false, Ordering::SeqCst);
                }
                seen = now;
            }
        }
        if connection.endpoint.failure().is_some() {
            return;
        }
    }
}
