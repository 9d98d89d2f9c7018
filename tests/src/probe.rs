//! The probe service.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use ringmail::{Request, Response, Status, async_trait};

/// Generated code.
#[allow(missing_docs, unreachable_pub, unused_qualifications)]
pub mod pb {
    ringmail::include_proto!("ringmail.probe");
}

use pb::probe_server::Probe;
use pb::{Blob, Pause, Ticks};

/// Handlers that wait, in this process.
static WAITING: AtomicI64 = AtomicI64::new(0);
/// When there were last none left.
static EMPTY_SINCE: AtomicU64 = AtomicU64::new(0);

/// The service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prober;

/// Handlers of this process that wait, and since when there has been none.
#[must_use]
pub fn waiting() -> (i64, u64) {
    (WAITING.load(Ordering::SeqCst), EMPTY_SINCE.load(Ordering::SeqCst))
}

struct Waiting;

impl Waiting {
    fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if WAITING.fetch_sub(1, Ordering::SeqCst) == 1 {
            EMPTY_SINCE.store(crate::monotonic_nanos(), Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl Probe for Prober {
    async fn tick(&self, request: Request<Ticks>) -> Result<Response<Ticks>, Status> {
        Ok(Response::new(Ticks { count: request.get_ref().count + 1 }))
    }

    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn wait(&self, request: Request<Pause>) -> Result<Response<Ticks>, Status> {
        let _waiting = Waiting::begin();
        tokio::time::sleep(Duration::from_millis(u64::from(request.get_ref().millis))).await;
        Ok(Response::new(Ticks::default()))
    }
}
