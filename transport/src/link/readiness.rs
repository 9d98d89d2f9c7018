//! Sleeping on a file descriptor in the runtime, registered only while that is worth it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{LinkError, LinkKind};

/// A descriptor's registration with the runtime's poller, made on first use. While it exists, every event on the
/// descriptor wakes the runtime's thread, whether anybody wants to know or not; [`Readiness::rest`] ends that.
#[derive(Debug)]
pub(super) struct Readiness {
    kind: LinkKind,
    interest: Interest,
    registered: Option<AsyncFd<Arc<OwnedFd>>>,
    descriptor: Arc<OwnedFd>,
}

impl Readiness {
    pub(super) fn new(kind: LinkKind, descriptor: Arc<OwnedFd>, interest: Interest) -> Self {
        Self { kind, interest, registered: None, descriptor }
    }

    pub(super) fn rest(&mut self) {
        self.registered = None;
    }

    /// `Ready` when an event came since the last call; then look at the descriptor before calling again. Otherwise
    /// the task is registered and will be woken.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, writable: bool) -> Poll<Result<(), LinkError>> {
        let registered = match &mut self.registered {
            Some(registered) => registered,
            none => {
                // SAFETY: the `Arc` keeps the descriptor open, and the same, for as long as the registration exists.
                let new =
                    unsafe { AsyncFd::register_with_interest(Arc::clone(&self.descriptor), self.interest) };
                none.insert(new.map_err(|error| LinkError::System {
                    kind: self.kind,
                    call: "epoll_ctl",
                    errno: Errno::from_io_error(&error.into_parts().1).unwrap_or(Errno::INVAL),
                })?)
            }
        };
        let polled = if writable { registered.poll_write_ready(cx) } else { registered.poll_read_ready(cx) };
        match polled {
            Poll::Ready(Ok(mut guard)) => {
                // Edge-triggered: whatever comes from here on is a new event.
                guard.clear_ready();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(LinkError::Closed("the runtime is shutting down"))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Forgets events that came so far: whoever calls this looks at the descriptor next.
    pub(super) fn clear(&mut self) {
        let Some(registered) = &self.registered else { return };
        let mut nobody = Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(mut guard)) = registered.poll_read_ready(&mut nobody) {
            guard.clear_ready();
        }
        if self.interest.is_writable()
            && let Poll::Ready(Ok(mut guard)) = registered.poll_write_ready(&mut nobody)
        {
            guard.clear_ready();
        }
    }
}
