//! The link as endpoints use it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::{SwitchingLink, Then};
use crate::link::{Arrived, DeviceCounts, Flushed, Interest, Link, LinkError, LinkKind};
use crate::rendezvous::{Fetch, Lendable};
use crate::ring::{Acknowledge, Mailbox, Position, Staging};

impl Link for SwitchingLink {
    fn kind(&self) -> LinkKind {
        self.present_kind()
    }

    fn announces_whole_frames(&self) -> bool {
        self.receives_fast.load(Ordering::Acquire)
    }

    fn flush(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        self.flush_somewhere(staging, from, to)
    }

    fn announced(&self, sealed: Position) -> Position {
        self.announced_and_frees(sealed).0
    }

    fn freed(&self, sealed: Position) -> Result<Position, LinkError> {
        let freed = self.base.freed(sealed)?;
        match &*self.fast.read() {
            Some(fast) if self.left_base.load(Ordering::Acquire) => Ok(freed.max(fast.freed(sealed)?)),
            _ => Ok(freed),
        }
    }

    fn frees_by_header(&self) -> bool {
        self.left_base.load(Ordering::Acquire)
    }

    fn poll(&self, mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError> {
        self.poll_somewhere(mailbox, known)
    }

    fn arm(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>> {
        *self.waker.lock() = Some(cx.waker().clone());
        // Whoever brought something before the waker was left has woken nobody.
        let frames = self.has_frames.load(Ordering::SeqCst) && !self.no_room.load(Ordering::Relaxed);
        let mut ready = frames || self.has_news.load(Ordering::SeqCst);
        let blocked = self.wants_flush() || interest.blocked && !self.left_base.load(Ordering::Acquire);
        if let Poll::Ready(result) = self.base.arm(cx, Interest { blocked, ..interest }) {
            result?;
            self.base_due.store(true, Ordering::Release);
            ready = true;
        }
        if self.receives_fast.load(Ordering::Acquire) {
            ready |= match &*self.fast.read() {
                Some(fast) => fast.arm(cx, interest).is_ready(),
                None => true,
            };
        }
        if ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn woken(&self) {
        self.base.woken();
        self.base_due.store(true, Ordering::Release);
    }

    fn starve(&self, freed: Position) -> bool {
        self.left_base.load(Ordering::Acquire)
            && self.fast.read().as_ref().is_some_and(|fast| fast.starve(freed))
    }

    fn fed(&self) {
        if let Some(fast) = &*self.fast.read() {
            fast.fed();
        }
    }

    fn disarm(&self) {
        if self.receives_fast.load(Ordering::Acquire)
            && let Some(fast) = &*self.fast.read()
        {
            fast.disarm();
        }
    }

    fn rest(&self) {
        self.base.rest();
    }

    fn device_counts(&self) -> Option<DeviceCounts> {
        self.fast.read().as_ref().and_then(|fast| fast.device_counts())
    }

    fn lend(&self, bytes: usize) -> Option<Box<dyn Lendable>> {
        if !self.left_base.load(Ordering::Acquire) {
            return None;
        }
        self.fast.read().as_ref()?.lend(bytes)
    }

    fn fetch(&self, fetch: Fetch) {
        // Dropped, it was not read: the link that it was meant for is gone.
        if let Some(fast) = &*self.fast.read() {
            fast.fetch(fetch);
        }
    }

    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.inbox.lock().take();
        self.changed.notify_waiters();
        let fast = self.fast.write().take();
        match fast {
            Some(fast) => {
                // The end of TCP means that the peer is gone: it comes behind what was flushed.
                let base = Arc::clone(&self.base);
                fast.close_then(Then::new(move || base.close()));
            }
            None => self.base.close(),
        }
        self.nudge();
    }
}

impl Acknowledge for SwitchingLink {
    fn acknowledge(&self, consumed: Position) {
        self.base.acknowledge(consumed);
        if self.receives_fast.load(Ordering::Acquire)
            && let Some(fast) = &*self.fast.read()
        {
            fast.acknowledge(consumed);
        }
        if self.protects.load(Ordering::SeqCst) {
            self.nudge();
        }
    }
}
