//! Bounds on waiting that a paused process does not run into.

use std::time::Duration;

/// The unit in which waiting is counted.
const TICK: Duration = Duration::from_millis(250);

/// The future's output, or `None` when it has not ended within the limit.
///
/// The clock goes on while a process is stopped (Ctrl-Z). Counting in ticks, a pause costs one of them, however long it
/// is, and nobody is blamed for not having answered meanwhile.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    for _ in 0..limit.as_millis().div_ceil(TICK.as_millis()) {
        if let Ok(output) = tokio::time::timeout(TICK, future.as_mut()).await {
            return Some(output);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(virtual_time: bool, future: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(virtual_time).build().unwrap().block_on(future)
    }

    #[test]
    fn waiting_ends_at_the_limit() {
        let waited = block_on(true, async {
            let started = tokio::time::Instant::now();
            assert_eq!(within(20 * TICK, std::future::pending::<()>()).await, None);
            started.elapsed()
        });
        assert!((20 * TICK..21 * TICK).contains(&waited), "{waited:?}");
    }

    #[test]
    fn a_pause_longer_than_the_limit_is_not_taken_for_silence() {
        let paused = async {
            // To the runtime, a blocked thread is a stopped process.
            std::thread::sleep(3 * TICK);
            tokio::time::sleep(TICK / 2).await;
        };
        assert_eq!(block_on(false, within(2 * TICK, paused)), Some(()));
    }
}
