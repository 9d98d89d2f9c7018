//! One end of a connection: a staging ring, a mailbox, and the link between them and the peer's.
//!
//! Many tasks send ([`Endpoint::claim`], [`Endpoint::flush`]); one at a time receives ([`Endpoint::turn`]). Whoever
//! flushes seals all frames that are committed, in order, and hands them to the link in one go: a turn that answers many
//! calls commits them all and makes one system call. While somebody holds the flush ([`Endpoint::hold`]) what others
//! commit waits as well.

mod lending;
mod sending;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;

pub use self::lending::Answer;
use self::lending::Lending;
pub use self::sending::{Held, SendError};
use crate::frame::{Check, FrameError, Header, Kind};
use crate::link::switching::SwitchingLink;
use crate::link::{DeviceCounts, Interest, Link, LinkError, LinkKind};
use crate::ring::{Incoming, Mailbox, Position, Staging, Starving};

/// Limits agreed in HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Largest frame in bytes that this side accepts.
    pub frame_limit: u32,
    /// Whether headers carry a check.
    pub check: Check,
}

/// One end of a connection. See the [module](self).
#[derive(Debug)]
pub struct Endpoint {
    staging: Staging,
    mailbox: Arc<Mailbox>,
    link: Arc<dyn Link>,
    /// The same, if it is one that changes to another and back.
    switching: Option<Arc<SwitchingLink>>,
    agreed: Agreed,
    receiver: Mutex<Receiver>,
    /// How far frames have been taken from the mailbox.
    read: AtomicU64,
    sender: SenderState,
    starving: Starving,
    lending: Lending,
    failure: OnceLock<LinkError>,
}

#[derive(Debug, Default)]
struct Receiver {
    produced: Position,
    read: Position,
    sequence: u32,
    /// How far the peer has said that it consumed our ring.
    acknowledged: Position,
}

/// Written only by whoever is inside the staging ring's frontier.
#[derive(Debug, Default)]
struct SenderState {
    flushed: AtomicU64,
    sequence: AtomicU32,
    blocked: AtomicBool,
    flushes: AtomicU64,
}

/// What a turn of receiving achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// So many frames were delivered (0: nothing had arrived).
    Frames(usize),
    /// Somebody else is receiving.
    Busy,
}

impl Endpoint {
    /// Joins two rings and a link.
    pub fn new(staging: Staging, mailbox: Arc<Mailbox>, link: Arc<dyn Link>, agreed: Agreed) -> Self {
        Self {
            staging,
            mailbox,
            link,
            switching: None,
            agreed,
            receiver: Mutex::new(Receiver::default()),
            read: AtomicU64::new(0),
            sender: SenderState::default(),
            starving: Starving::new(),
            lending: Lending::default(),
            failure: OnceLock::new(),
        }
    }

    /// Joins two rings and a link that changes to another and back.
    pub fn switching(
        staging: Staging,
        mailbox: Arc<Mailbox>,
        link: Arc<SwitchingLink>,
        agreed: Agreed,
    ) -> Self {
        let mut endpoint = Self::new(staging, mailbox, Arc::clone(&link) as _, agreed);
        endpoint.switching = Some(link);
        endpoint
    }

    /// The link, if it is one that changes to another and back.
    #[must_use]
    pub fn switching_link(&self) -> Option<&Arc<SwitchingLink>> {
        self.switching.as_ref()
    }

    /// Largest frame in bytes that may be sent or received.
    #[must_use]
    pub fn frame_limit(&self) -> usize {
        self.agreed.frame_limit as usize
    }

    /// The kind of link that this connection runs on.
    #[must_use]
    pub fn link_kind(&self) -> LinkKind {
        self.link.kind()
    }

    /// What the link has asked of its device; `None` over a link without one.
    #[must_use]
    pub fn device_counts(&self) -> Option<DeviceCounts> {
        self.link.device_counts()
    }

    /// The link, to close it or to arm it.
    #[must_use]
    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }

    /// The staging ring.
    #[must_use]
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// The mailbox.
    #[must_use]
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Why the connection is dead, if it is.
    #[must_use]
    pub fn failure(&self) -> Option<&LinkError> {
        self.failure.get()
    }

    /// How often the link was asked to send: doorbells, system calls.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.sender.flushes.load(Ordering::Relaxed)
    }

    /// Whether everything that was committed has been handed to the link. What has not is lost when the connection
    /// ends, as is what was [lent](Self::lent) and not read.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.sender.flushed.load(Ordering::Acquire) == self.staging.claimed().0
    }

    /// Ends the connection with a reason; the first one stays.
    pub fn fail(&self, reason: LinkError) {
        if self.failure.set(reason).is_ok() {
            self.link.close();
            self.wake_starving();
            self.lending.close();
        }
    }

    /// Receives what has arrived: every frame goes to `deliver`, in order. Also retries a blocked flush and wakes
    /// those who wait for space.
    ///
    /// # Errors
    /// When the connection is dead; the error is the reason. If the reason is that the peer has gone, what it sent
    /// before is delivered first.
    pub fn turn(&self, deliver: &mut dyn FnMut(Incoming)) -> Result<Turn, LinkError> {
        self.push();
        let Some(mut receiver) = self.receiver.try_lock() else {
            return Ok(Turn::Busy);
        };
        if let Some(failure) = self.failure.get() {
            return match self.receive_last(&mut receiver, deliver) {
                0 => Err(failure.clone()),
                frames => Ok(Turn::Frames(frames)),
            };
        }
        self.send_for_link();
        match self.receive(&mut receiver, false, deliver) {
            Ok(frames) => {
                self.send_for_link();
                self.send_answers();
                drop(receiver);
                // Again: what arrived may have brought credit.
                self.push();
                Ok(Turn::Frames(frames))
            }
            Err(error) => {
                drop(receiver);
                self.fail(error);
                Err(self.failure.get().cloned().unwrap_or(LinkError::PeerClosed))
            }
        }
    }

    /// Receives what a peer sent before it went, which may have been noticed by other means than the link. Nothing that
    /// one sent who broke a rule, nor when this side has ended the connection.
    #[cold]
    fn receive_last(&self, receiver: &mut Receiver, deliver: &mut dyn FnMut(Incoming)) -> usize {
        if !matches!(self.failure.get(), Some(LinkError::PeerClosed | LinkError::Silent { .. })) {
            return 0;
        }
        let mut frames = 0;
        // That the link has ended as well is known.
        let _ = self.receive(receiver, true, &mut |frame| {
            frames += 1;
            deliver(frame);
        });
        frames
    }

    fn receive(
        &self,
        receiver: &mut Receiver,
        is_last: bool,
        deliver: &mut dyn FnMut(Incoming),
    ) -> Result<usize, LinkError> {
        self.link.disarm();
        receiver.produced = self.link.poll(&self.mailbox, receiver.produced)?.produced;
        let mut frames = 0;
        while receiver.read < receiver.produced {
            let at = receiver.read;
            let header = self.mailbox.header(at, self.agreed.frame_limit, self.agreed.check)?;
            let end = Position(at.0 + (header.length as usize).div_ceil(crate::ring::BLOCK) as u64);
            if end > receiver.produced {
                if self.link.announces_whole_frames() {
                    let (length, produced) = (header.length, receiver.produced);
                    return Err(FrameError::Unannounced { at, length, produced }.into());
                }
                break;
            }
            if header.sequence != receiver.sequence {
                let (sequence, expected) = (header.sequence, receiver.sequence);
                return Err(FrameError::OutOfSequence { sequence, expected }.into());
            }
            receiver.sequence = receiver.sequence.wrapping_add(1);
            receiver.read = end;
            // Before the frame is delivered: who is given it may ask whether the mailbox is crowded.
            self.read.store(end.0, Ordering::Relaxed);
            self.accept_acknowledgement(receiver, &header)?;
            let frame = Incoming::new(&self.mailbox, at, header);
            frames += 1;
            match (header.kind, &self.switching) {
                (Kind::Skip, _) => {}
                (Kind::Switch, Some(link)) => {
                    // What came behind it was not for the mailbox.
                    receiver.produced = end;
                    drop(frame);
                    link.switched(&header, end, &self.mailbox)?;
                }
                (Kind::Upgrade, Some(link)) => link.told(frame.payload())?,
                _ => deliver(frame),
            }
            if !is_last && self.failure.get().is_some() {
                // Whoever was given the frame may have refused it, and with it what follows. If it is the peer that has
                // gone, the next turn takes the rest.
                break;
            }
        }
        Ok(frames)
    }

    /// Whether so much of the mailbox is held that the peer may soon have no room: then frames that are kept should be
    /// detached.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let read = Position(self.read.load(Ordering::Relaxed));
        let half = u64::from(self.mailbox.size().blocks().0) / 2;
        read.since(self.mailbox.consumed()).is_some_and(|held| held >= half)
    }

    /// Every header says how far the peer has consumed our ring.
    fn accept_acknowledgement(&self, receiver: &mut Receiver, header: &Header) -> Result<(), FrameError> {
        // Acknowledgements only grow and never exceed what was announced; a link with buffers of its own may be many
        // rings behind, so the last one is what the low bits are relative to.
        let acknowledged = Position::from_low_bits(receiver.acknowledged, header.acknowledged);
        let frees = match &self.switching {
            Some(link) => link.accept(acknowledged, self.staging.sealed())?,
            None => {
                let sent = self.link.announced(self.staging.sealed());
                if acknowledged > sent {
                    return Err(FrameError::BadAcknowledgement { acknowledged, sent });
                }
                self.link.frees_by_header()
            }
        };
        receiver.acknowledged = acknowledged;
        if frees && self.staging.free_to(acknowledged) {
            self.wake_starving();
        }
        Ok(())
    }

    /// Arranges to be woken when a turn would achieve something; `Ready` when it would now.
    pub fn arm(&self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.attend_to_answers(cx) {
            return Poll::Ready(Ok(()));
        }
        // Said again each time: the peer ends each wait once, and may have ended the last one for less than is needed.
        while self.is_starving() && self.link.starve(self.staging.freed()) {
            self.refresh_freed();
        }
        // Held while arming: whoever receives disarms, and must not do so in between.
        let Some(receiver) = self.receiver.try_lock() else {
            return Poll::Ready(Ok(()));
        };
        if let Some(failure) = self.failure.get() {
            return Poll::Ready(Err(failure.clone()));
        }
        let interest =
            Interest { known: receiver.produced, blocked: self.sender.blocked.load(Ordering::Acquire) };
        let armed = self.link.arm(cx, interest);
        // A flush that has become blocked meanwhile waits for an event that may have come already, when nobody waited for
        // it. It is tried again at the next turn.
        if armed.is_pending() && !interest.blocked && self.sender.blocked.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        armed
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.link.close();
    }
}
