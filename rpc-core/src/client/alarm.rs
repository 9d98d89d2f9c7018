//! Deadlines of calls that are not made on the runtime of their connection: on a plain thread, or on another runtime.
//!
//! tokio's timers panic where there is no runtime, or one that was built without them or is shutting down, and they stand
//! still while nobody drives theirs. One thread for the whole process, started when the first such call is made, has none of
//! these conditions.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The output of `work`, or `None` if the deadline passes first.
///
/// # Errors
/// When the thread cannot be started.
pub(super) async fn until<F: Future>(deadline: Instant, work: F) -> std::io::Result<Option<F::Output>> {
    ALARMS.start()?;
    let (mut work, mut alarm) = (pin!(work), pin!(Alarm { deadline, number: None }));
    Ok(std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => alarm.as_mut().poll(cx).map(|()| None),
    })
    .await)
}

static ALARMS: Alarms = Alarms {
    state: Mutex::new(State { set: BTreeMap::new(), set_so_far: 0, sleeps_until: None, runs: false }),
    earlier: Condvar::new(),
};

struct Alarms {
    state: Mutex<State>,
    /// Notified when one was set that is due before the thread would look again.
    earlier: Condvar,
}

struct State {
    set: BTreeMap<(Instant, u64), Waker>,
    /// Tells those apart that are due at the same time.
    set_so_far: u64,
    /// `None`: until it is notified. One that was taken back may still wake the thread, which is cheaper than telling it.
    sleeps_until: Option<Instant>,
    runs: bool,
}

impl Alarms {
    fn start(&'static self) -> std::io::Result<()> {
        let mut state = self.state.lock();
        if !state.runs {
            std::thread::Builder::new().name("ringmail-alarms".to_owned()).spawn(|| self.ring())?;
            state.runs = true;
        }
        Ok(())
    }

    fn ring(&self) {
        let mut state = self.state.lock();
        loop {
            let later = state.set.split_off(&(Instant::now(), u64::MAX));
            let due = std::mem::replace(&mut state.set, later);
            if !due.is_empty() {
                // Who is woken may take an alarm back at once.
                MutexGuard::unlocked(&mut state, || due.into_values().for_each(Waker::wake));
                continue;
            }
            state.sleeps_until = state.set.keys().next().map(|(deadline, _)| *deadline);
            match state.sleeps_until {
                Some(deadline) => drop(self.earlier.wait_until(&mut state, deadline)),
                None => self.earlier.wait(&mut state),
            }
        }
    }
}

/// Ready from its deadline on; taken back when it is dropped.
struct Alarm {
    deadline: Instant,
    /// Its number, once it is set.
    number: Option<u64>,
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        if Instant::now() >= deadline {
            return Poll::Ready(());
        }
        let mut state = ALARMS.state.lock();
        let number = *self.number.get_or_insert_with(|| {
            state.set_so_far += 1;
            state.set_so_far
        });
        if !state.set.get(&(deadline, number)).is_some_and(|known| known.will_wake(cx.waker())) {
            let before = state.set.insert((deadline, number), cx.waker().clone());
            if state.sleeps_until.is_none_or(|until| deadline < until) {
                state.sleeps_until = Some(deadline);
                ALARMS.earlier.notify_one();
            }
            drop(state);
            // Not under the lock: with a waker its task may end, and that may hold alarms.
            drop(before);
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = ALARMS.state.lock().set.remove(&(self.deadline, number));
            drop(waker);
        }
    }
}
