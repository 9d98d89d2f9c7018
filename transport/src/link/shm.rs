//! The shared-memory link: the peer's mailbox *is* the staging ring.
//!
//! Each side creates one [`Region`], writes it, and hands it to the other read-only; so nothing is copied, and
//! announcing a frame is one store. The words that the two sides tell each other ([`Control`]) have one writer
//! each. A side that is about to sleep says so, looks once more, and sleeps on its `eventfd`; a side that has
//! produced something looks whether the other sleeps, and wakes it once per sleep (see the private module `sleep`).

mod handshake;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

pub(crate) use handshake::connect;
pub use handshake::{
    Expectation, HandshakeError, ShmEnd, ShmListener, Token, offer_refusal, same_host_identity,
};

use super::readiness::Readiness;
use super::sleep::{Rouser, fall_asleep, stay_awake};
use super::{Arrived, Flushed, Interest, Link, LinkError, LinkKind};
use crate::frame::FrameError;
use crate::memory::{Control, Region};
use crate::ring::{Acknowledge, Mailbox, Position, Staging};

/// Two processes' regions and event descriptors as a link.
#[derive(Debug)]
pub struct ShmLink {
    readiness: Mutex<Readiness>,
    ours: Arc<Region>,
    theirs: Arc<Region>,
    /// We sleep on it.
    our_event: Arc<OwnedFd>,
    /// They sleep on it.
    their_event: OwnedFd,
    /// Ends the peer's sleeps.
    rouser: Rouser,
    /// Ends the peer's waits for space.
    feeder: Rouser,
    closed: AtomicBool,
}

impl ShmLink {
    /// A link between our region, which we write, and theirs, which we may only read.
    #[must_use]
    pub fn new(end: ShmEnd) -> Self {
        let ShmEnd { ours, theirs, our_event, their_event } = end;
        let our_event = Arc::new(our_event);
        Self {
            readiness: Mutex::new(Readiness::new(
                LinkKind::Shm,
                Arc::clone(&our_event),
                tokio::io::Interest::READABLE,
            )),
            ours,
            theirs,
            our_event,
            their_event,
            rouser: Rouser::new(),
            feeder: Rouser::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// The region that the peer writes: our mailbox.
    #[must_use]
    pub fn mailbox_region(&self) -> &Arc<Region> {
        &self.theirs
    }

    fn ours(&self) -> &Control {
        self.ours.control()
    }

    fn theirs(&self) -> &Control {
        self.theirs.control()
    }

    fn wake_peer(&self) {
        // Adding 1 to an eventfd fails only when it holds 2⁶⁴ − 2: it is readable all the more then.
        let _ = rustix::io::write(&self.their_event, &1u64.to_ne_bytes());
    }
}

impl Link for ShmLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Shm
    }

    fn announces_whole_frames(&self) -> bool {
        true
    }

    fn flush(&self, _staging: &Staging, _from: Position, to: Position) -> Result<Flushed, LinkError> {
        self.ours().produced.0.store(to.0, Ordering::Release);
        self.rouser.rouse(&self.theirs().sleeping.0, || self.wake_peer());
        Ok(Flushed { until: to, blocked: false })
    }

    fn announced(&self, _sealed: Position) -> Position {
        // Stored before the peer can have seen it, so an honest acknowledgement is never ahead of it.
        Position(self.ours().produced.0.load(Ordering::Relaxed))
    }

    fn freed(&self, sealed: Position) -> Result<Position, LinkError> {
        let acknowledged = Position(self.theirs().consumed.0.load(Ordering::Acquire));
        let sent = self.announced(sealed);
        if acknowledged > sent {
            return Err(FrameError::BadAcknowledgement { acknowledged, sent }.into());
        }
        Ok(acknowledged)
    }

    fn frees_by_header(&self) -> bool {
        false
    }

    fn poll(&self, mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError> {
        let produced = Position(self.theirs().produced.0.load(Ordering::Acquire));
        if produced != known {
            mailbox.check_produced(known, produced)?;
        } else if self.closed.load(Ordering::Relaxed) {
            return Err(LinkError::Closed("the link was closed"));
        }
        Ok(Arrived { produced })
    }

    fn arm(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>> {
        // The waker first: once the peer may wake us, there must be somebody to be woken. Edge-triggered: every later
        // write to the eventfd is a new edge, so it is never read.
        let mut readiness = self.readiness.lock();
        let mut ready = false;
        if let Poll::Ready(result) = readiness.poll(cx, false) {
            result?;
            ready = true;
        }
        drop(readiness);
        fall_asleep(&self.ours().sleeping.0);
        ready |= self.theirs().produced.0.load(Ordering::Acquire) != interest.known.0;
        ready |= self.closed.load(Ordering::Relaxed);
        if ready {
            self.disarm();
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn woken(&self) {
        self.readiness.lock().clear();
    }

    fn starve(&self, freed: Position) -> bool {
        fall_asleep(&self.ours().starving.0);
        // Only forwards: a peer whose position goes back frees nothing.
        self.theirs().consumed.0.load(Ordering::Acquire) > freed.0
    }

    fn fed(&self) {
        stay_awake(&self.ours().starving.0);
    }

    fn disarm(&self) {
        stay_awake(&self.ours().sleeping.0);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes our own task, so that it notices.
        let _ = rustix::io::write(&self.our_event, &1u64.to_ne_bytes());
    }
}

impl Acknowledge for ShmLink {
    fn acknowledge(&self, consumed: Position) {
        self.ours().consumed.0.store(consumed.0, Ordering::Release);
        self.feeder.rouse(&self.theirs().starving.0, || self.wake_peer());
    }
}

fn new_event() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}
