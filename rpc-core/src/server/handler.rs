//! A handler's future, kept together with the service that it borrows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::Status;

use crate::codegen::BoxFuture;

/// The future that a service's method returned, polled without letting a panic out.
///
/// The trait's methods borrow the service (`&self`), so their futures cannot outlive it. Keeping the service's `Arc`
/// beside the future makes the two `'static` together, at no cost: boxing an `async` block that owns the `Arc` would
/// be a second allocation per call.
pub(super) struct HandlerFuture<T, R> {
    /// Before `service`, so that it is dropped first.
    future: BoxFuture<'static, R>,
    service: Arc<T>,
}

impl<T: Send + Sync + 'static, R: 'static> HandlerFuture<T, R> {
    /// Calls the handler with the service.
    ///
    /// # Errors
    /// INTERNAL when it panics.
    pub(super) fn start<F>(service: &Arc<T>, handler: F) -> Result<Self, Status>
    where
        F: for<'a> FnOnce(&'a T) -> BoxFuture<'a, R>,
    {
        let service = Arc::clone(service);
        // SAFETY: the pointer comes from an `Arc` that is stored beside the future and dropped after it (fields drop in
        // order), so the service outlives the future; an `Arc`'s content does not move, and only shared references to
        // it exist. `F` is generic over the lifetime, so it cannot store the reference anywhere that outlives `'a`.
        let borrowed: &'static T = unsafe { &*Arc::as_ptr(&service) };
        let future =
            catch_unwind(AssertUnwindSafe(|| handler(borrowed))).map_err(|panic| panicked(&*panic))?;
        Ok(Self { future, service })
    }
}

impl<T, R> Future for HandlerFuture<T, R> {
    type Output = Result<R, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match catch_unwind(AssertUnwindSafe(|| this.future.as_mut().poll(cx))) {
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panicked(&*panic))),
        }
    }
}

impl<T, R> std::fmt::Debug for HandlerFuture<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerFuture").field("service", &Arc::as_ptr(&self.service)).finish_non_exhaustive()
    }
}

/// Awaits a future; a panic becomes an error.
pub(super) async fn caught(mut future: BoxFuture<'static, ()>) -> Result<(), Box<dyn std::any::Any + Send>> {
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// What the caller of a handler (or codec) that panicked is told. The panic's message may hold secrets and stays in the log.
pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> Status {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "not a string".to_owned());
    tracing::error!(panic = %message, "a handler panicked");
    Status::internal("the handler panicked; see the server's log")
}
