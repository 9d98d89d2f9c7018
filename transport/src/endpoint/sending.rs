//! Sending: claims, what is committed, and when it leaves.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::Endpoint;
use crate::frame::{CallId, HEADER, Header, Kind};
use crate::link::switching::{SwitchingLink, ToSend};
use crate::link::{Flushed, LinkError};
use crate::ring::{Advance, Claim, ClaimError, Position, Room};

/// Bytes that may be committed and not flushed within a turn: beyond that, waiting costs more than the
/// call.
const FLUSH_AT: u64 = 16 * 1024 / crate::ring::BLOCK as u64;

/// The right to flush, held so that commits accumulate. Give it back with [`Endpoint::release`].
#[derive(Debug)]
#[must_use = "frames do not leave while this is held"]
pub struct Held<'a>(Advance<'a>);

impl Endpoint {
    /// Claims room for a frame without waiting.
    ///
    /// # Errors
    /// As [`Staging::claim`](crate::ring::Staging::claim).
    #[inline]
    pub fn claim(&self, bytes: usize, room: Room) -> Result<Claim<'_>, ClaimError> {
        match self.staging.claim(bytes, room) {
            Err(ClaimError::Full) => {
                self.refresh_freed();
                self.staging.claim(bytes, room)
            }
            other => other,
        }
    }

    /// Claims room for a frame, waiting for the peer to release some.
    ///
    /// # Errors
    /// When the connection dies or the frame can never fit.
    pub async fn claim_wait(&self, bytes: usize, room: Room) -> Result<Claim<'_>, SendError> {
        std::future::poll_fn(|cx| self.poll_claim(cx, bytes, room)).await
    }

    fn poll_claim(
        &self,
        cx: &mut Context<'_>,
        bytes: usize,
        room: Room,
    ) -> Poll<Result<Claim<'_>, SendError>> {
        // On links where sending frees the space there may be room for ever: others of this thread get their turn.
        let share = ready!(coop::poll_proceed(cx));
        let mut registered = false;
        loop {
            if let Some(failure) = self.failure.get() {
                return Poll::Ready(Err(SendError::Dead(failure.clone())));
            }
            match self.claim(bytes, room) {
                Ok(claim) => {
                    share.made_progress();
                    return Poll::Ready(Ok(claim));
                }
                Err(ClaimError::TooLarge { bytes, ring }) => {
                    return Poll::Ready(Err(SendError::TooLarge { bytes, ring }));
                }
                Err(ClaimError::Full) if !registered => {
                    // Registered before the second look, so that space freed in between is not missed.
                    registered = true;
                    self.starving.register(cx.waker());
                }
                Err(ClaimError::Full) => {
                    if !self.link.starve(self.staging.freed()) {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Whether somebody waits for space.
    #[must_use]
    pub fn is_starving(&self) -> bool {
        self.starving.is_anybody()
    }

    pub(super) fn refresh_freed(&self) {
        match self.link.freed(self.staging.sealed()) {
            Ok(freed) => {
                if self.staging.free_to(freed) {
                    self.wake_starving();
                }
            }
            Err(error) => self.fail(error),
        }
    }

    pub(super) fn wake_starving(&self) {
        self.starving.wake(|| self.link.fed());
    }

    /// Sends what is committed, unless somebody else is doing so or holds the flush: then they will.
    #[inline]
    pub fn flush(&self) {
        let mut inside = self.staging.enter();
        while let Some(mut advance) = inside {
            self.flush_inside(&mut advance);
            inside = advance.leave();
        }
    }

    /// Holds the flush; `None` when somebody else is flushing or holding.
    pub fn hold(&self) -> Option<Held<'_>> {
        self.staging.enter().map(Held)
    }

    /// Whether so much waits for a flush that one is worth it, and may achieve something.
    #[must_use]
    pub fn has_much(&self) -> bool {
        // Others may claim and flush between the two looks.
        let flushed = self.sender.flushed.load(Ordering::Relaxed);
        let waiting = self.staging.claimed().0.saturating_sub(flushed);
        waiting > FLUSH_AT && !self.sender.blocked.load(Ordering::Relaxed)
    }

    /// Sends what is committed and gives the hold back.
    pub fn release(&self, held: Held<'_>) {
        let mut inside = Some(held.0);
        while let Some(mut advance) = inside {
            self.flush_inside(&mut advance);
            inside = advance.leave();
        }
    }

    fn flush_inside(&self, advance: &mut Advance<'_>) {
        let acknowledged = self.mailbox.consumed().low_bits();
        let mut sequence = self.sender.sequence.load(Ordering::Relaxed);
        while let Some((at, _)) = advance.step() {
            self.staging.seal(at, acknowledged, sequence, self.agreed.check);
            sequence = sequence.wrapping_add(1);
        }
        self.sender.sequence.store(sequence, Ordering::Relaxed);
        let (from, to) = (Position(self.sender.flushed.load(Ordering::Relaxed)), self.staging.sealed());
        if from == to && !self.wants_flush() || self.failure.get().is_some() {
            return;
        }
        self.sender.flushes.fetch_add(1, Ordering::Relaxed);
        match self.flush_link(from, to) {
            Ok(flushed) => {
                self.sender.flushed.store(flushed.until.0, Ordering::Release);
                if self.sender.blocked.load(Ordering::Relaxed) != flushed.blocked {
                    self.sender.blocked.store(flushed.blocked, Ordering::SeqCst);
                }
                if self.is_starving() {
                    self.refresh_freed();
                }
            }
            Err(error) => self.fail(error),
        }
    }

    fn flush_link(&self, from: Position, to: Position) -> Result<Flushed, LinkError> {
        let flushed = self.link.flush(&self.staging, from, to)?;
        if !flushed.blocked {
            return Ok(flushed);
        }
        // Whoever is woken when the link can take more looks at this flag; had that happened before it was set, nobody
        // would come. So try once more now that it is.
        self.sender.blocked.store(true, Ordering::SeqCst);
        self.link.flush(&self.staging, flushed.until, to)
    }

    /// Goes on with what the link or the peer had no room for.
    #[inline]
    pub(super) fn push(&self) {
        if self.sender.blocked.load(Ordering::Acquire) || self.wants_flush() {
            self.flush();
        }
        if self.is_starving() {
            self.refresh_freed();
        }
    }

    /// Whether the link has something to send, or to send again, though nothing new is sealed.
    #[inline]
    fn wants_flush(&self) -> bool {
        self.switching.as_ref().is_some_and(|link| link.wants_flush())
    }

    /// Sends frames that are the link's own. Only whoever receives does so.
    #[inline]
    pub(super) fn send_for_link(&self) {
        if let Some(link) = &self.switching
            && let Some(first) = link.to_send()
        {
            self.send_link_frames(link, first);
        }
    }

    #[cold]
    fn send_link_frames(&self, link: &SwitchingLink, first: ToSend) {
        let mut next = Some(first);
        while let Some(frame) = next {
            let (kind, epoch, payload) = match &frame {
                ToSend::Message(message) => (Kind::Upgrade, 0, &message[..]),
                ToSend::Switch(epoch) => (Kind::Switch, *epoch, &[][..]),
            };
            let length = HEADER + payload.len();
            let claim = self.claim(length, Room::Control).or_else(|_| {
                // Registered before the second look. The next flush may make room, and nobody else would come for it.
                self.starving.register(&link.waker());
                self.claim(length, Room::Control)
            });
            let Ok(mut claim) = claim else {
                link.found_no_room(frame);
                break;
            };
            claim[HEADER..].copy_from_slice(payload);
            match frame {
                ToSend::Message(_) => {}
                // Before it is committed: whoever flushes must know where it ends.
                ToSend::Switch(_) => link.switch(claim.end(), self.mailbox.consumed()),
            }
            let call = CallId { index: epoch, generation: 0 };
            claim.commit(&Header { call, ..Header::new(kind, length as u32) });
            next = link.to_send();
        }
        self.flush();
    }
}

/// Why a frame could not be sent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SendError {
    /// The connection is dead.
    #[error(transparent)]
    Dead(LinkError),
    /// The frame does not fit the ring.
    #[error("a frame of {bytes} bytes does not fit a ring of {ring} bytes")]
    TooLarge {
        /// Bytes in the frame.
        bytes: usize,
        /// Bytes in the ring.
        ring: usize,
    },
}
