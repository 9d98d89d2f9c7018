//! What this side sends: on TCP, then on the fast link, then on TCP again.

use std::sync::atomic::Ordering;

use super::SwitchingLink;
use super::fallback::{BYTES, Fallback};
use crate::link::{Flushed, Link, LinkError};
use crate::ring::{Position, Staging};

/// Where what is sent goes. Under its lock, so that a flush and a change never overlap.
#[derive(Debug, Default)]
pub(super) struct Sending {
    pub(super) way: Way,
    /// FALLBACK, and how much of it has left.
    record: Option<([u8; BYTES], usize)>,
    /// Where the peer wants TCP to go on, once the record has left.
    resume: Option<Position>,
    /// The next flush goes on from here, whatever was flushed before.
    rewind: Option<Position>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    #[default]
    Base,
    /// Up to here on TCP: then SWITCH has left.
    Switching(Position),
    Fast,
    /// The fast link is gone, and the peer has not yet said how far it got.
    Waiting,
}

impl SwitchingLink {
    pub(super) fn flush_somewhere(
        &self,
        staging: &Staging,
        from: Position,
        to: Position,
    ) -> Result<Flushed, LinkError> {
        let mut sending = self.sending.lock();
        self.push_record(&mut sending)?;
        let mut from = sending.rewind.take().unwrap_or(from);
        if let Way::Switching(at) = sending.way {
            let flushed = self.base.flush(staging, from, to.min(at))?;
            if flushed.until < at {
                return Ok(flushed);
            }
            from = at;
            self.leave_base(&mut sending);
            self.push_record(&mut sending)?;
        }
        if sending.record.is_none() {
            self.wants_flush.store(false, Ordering::Release);
        }
        match sending.way {
            Way::Fast => self.flush_fast(staging, from, to),
            Way::Base if sending.rewind.is_none() => self.base.flush(staging, from, to),
            Way::Base | Way::Switching(_) | Way::Waiting => Ok(Flushed { until: from, blocked: true }),
        }
    }

    /// SWITCH has left.
    fn leave_base(&self, sending: &mut Sending) {
        if self.fast.read().is_none() {
            sending.way = Way::Waiting;
            return;
        }
        sending.way = Way::Fast;
        self.left_base.store(true, Ordering::Release);
        let mut history = self.history.lock();
        history.upgrades += 1;
        history.reason = None;
        let upgrades = history.upgrades;
        drop(history);
        let (peer, device, kind) = (&self.peer, self.device(), self.present_kind());
        tracing::info!(%peer, link = %kind, device, upgrades, "another link has taken over from TCP");
        // Whoever waits for space must say so to the link that brings it from now on.
        self.nudge();
    }

    fn flush_fast(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        let fast = self.fast.read();
        let Some(fast) = &*fast else { return Ok(Flushed { until: from, blocked: true }) };
        // TCP has freed what the peer may still hold, so that the ring's own account of space is not enough at first.
        let consumed = self.peer_consumed.load(Ordering::Acquire).max(fast.freed(to)?.0);
        let limit = Position(consumed).plus(staging.size().blocks());
        let until = if to <= limit { to } else { staging.last_frame_end(from, to, limit) };
        if until == from {
            return Ok(Flushed { until: from, blocked: from < to });
        }
        match fast.flush(staging, from, until) {
            Ok(flushed) => {
                Ok(Flushed { until: flushed.until, blocked: flushed.blocked || flushed.until < to })
            }
            Err(error) if is_the_peers_fault(&error) => Err(error),
            Err(error) => {
                self.report_loss(&error.to_string());
                Ok(Flushed { until: from, blocked: true })
            }
        }
    }

    /// The fast link is given up: what was flushed to it may be lost.
    pub(super) fn leave_fast(&self, sending: &mut Sending) {
        if sending.way == Way::Fast {
            sending.way = Way::Waiting;
        }
    }

    pub(super) fn send_record(&self, sending: &mut Sending, record: Fallback) -> Result<(), LinkError> {
        sending.record = Some((record.encode(), 0));
        self.push_record(sending)
    }

    /// The peer has said where TCP is to go on.
    pub(super) fn resume(&self, sending: &mut Sending, position: Position) -> Result<(), LinkError> {
        sending.resume = Some(position);
        self.push_record(sending)
    }

    /// Sends what is left of FALLBACK, if its turn has come; with that this side has done what it must.
    fn push_record(&self, sending: &mut Sending) -> Result<(), LinkError> {
        if sending.way != Way::Waiting {
            return Ok(());
        }
        if let Some((bytes, sent)) = &mut sending.record {
            self.wants_flush.store(true, Ordering::Release);
            while *sent < bytes.len() {
                match self.base.send_bytes(&bytes[*sent..])? {
                    0 => return Ok(()),
                    count => *sent += count,
                }
            }
            sending.record = None;
        }
        if let Some(position) = sending.resume.take() {
            self.base.resume_sending(position);
            sending.way = Way::Base;
            sending.rewind = Some(position);
            self.left_base.store(false, Ordering::Release);
            self.wants_flush.store(true, Ordering::Release);
            self.changed.notify_waiters();
            self.nudge();
        }
        Ok(())
    }

    /// How far the peer can have been told of frames, and whether it is by what it has consumed of them that the ring
    /// becomes free.
    pub(super) fn announced_and_frees(&self, sealed: Position) -> (Position, bool) {
        if !self.left_base.load(Ordering::Acquire) {
            return (sealed, false);
        }
        let announced = match &*self.fast.read() {
            Some(fast) => fast.announced(sealed),
            None => Position(self.announced.load(Ordering::Acquire)),
        };
        (announced, true)
    }
}

/// Whether an error of the fast link is a broken rule, which ends the connection.
pub(super) fn is_the_peers_fault(error: &LinkError) -> bool {
    matches!(error, LinkError::Protocol(_) | LinkError::Notice(_))
}
