//! What a server can take of requests in fragments.
//!
//! It holds each until the last fragment is there. Clients send no more at a time than it says it will hold, so that
//! they wait for each other instead of being refused.

use tokio::sync::Semaphore;

/// Bytes in a unit. Requests take whole ones.
const UNIT: u64 = 4096;

/// Room for requests in fragments, on one connection.
#[derive(Debug)]
pub(super) struct FragmentRoom {
    units: u32,
    free: Semaphore,
}

impl FragmentRoom {
    /// Room for so many bytes, but always for one request.
    pub(super) fn new(bytes: u64) -> Self {
        let most = u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX);
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).clamp(1, most);
        Self { units, free: Semaphore::new(units as usize) }
    }

    /// Takes room for a request, in turn. What is returned is to be given back.
    pub(super) async fn take(&self, bytes: u64) -> u32 {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units);
        match self.free.acquire_many(units).await {
            Ok(taken) => {
                taken.forget();
                units
            }
            // It is never closed.
            Err(_) => 0,
        }
    }

    pub(super) fn give_back(&self, units: u32) {
        if units > 0 {
            self.free.add_permits(units as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_that_do_not_fit_beside_each_other_wait_in_turn() {
        let room = FragmentRoom::new(10 * UNIT);
        let taken = room.take(6 * UNIT).await;
        let mut next = polled(room.take(5 * UNIT));
        assert!(next().is_none(), "11 of 10");
        let mut last = polled(room.take(1));
        assert!(last().is_none(), "it would fit, but is not its turn");
        room.give_back(taken);
        assert_eq!((next(), last()), (Some(5), Some(1)));
    }

    #[tokio::test]
    async fn one_request_is_always_possible() {
        for bytes in [0, 1, UNIT, u64::MAX] {
            let room = FragmentRoom::new(bytes);
            let taken = room.take(1 << 30).await;
            assert!(taken > 0);
            room.give_back(taken);
        }
    }

    /// Polls a future once per call.
    fn polled<F: Future>(future: F) -> impl FnMut() -> Option<F::Output> {
        let mut future = Box::pin(future);
        move || {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            match future.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            }
        }
    }
}
