//! What RDMA-like links owe each other besides bytes: notifications, a resource apart from space.
//!
//! Every notification uses up one receive request at the peer. One that finds none is an error that can end the
//! connection, so the sender never has more on their way than the receiver has granted:
//!
//! - Grants are absolute counts, so a report that was merged with the next loses nothing.
//! - The receiver posts a new request as soon as it has *reaped* a notification, whatever the application does with the
//!   frames.
//! - The last two grants are kept: one for a credit report, one to say goodbye. So two sides that have both run out
//!   of grants for frames can still grant each other more.

use super::LinkError;
use crate::frame::{FrameError, HEADER, Header};
use crate::immediate::{Epoch, Immediate, Notice};
use crate::ring::{Mailbox, Position, RingSize};

/// Grants that frames may not use up: one for a credit report, one for closing.
const KEPT_FROM_FRAMES: u64 = 2;
/// Grants that a credit report may not use up.
const KEPT_FROM_CREDIT: u64 = 1;
/// Fewest receive requests that a side may post: with fewer, a quarter of them is less than one, and those kept are
/// most of them.
pub(super) const FEWEST_NOTIFICATIONS: u32 = 8;

/// What a notification is to be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Frames,
    Credit,
    Close,
}

/// What a side tells its peer of its own accord. It is written to a place in the peer's memory, so each report takes the
/// place of the one before; both fields only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreditRecord {
    /// Everything before has been released.
    pub(super) consumed: Position,
    /// Notifications granted in all.
    pub(super) granted: u64,
}

/// Why notifications ended a link.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoticeError {
    /// Bits that mean nothing.
    #[error("notification {bits:#010x} is of no known kind")]
    Unknown {
        /// As they arrived.
        bits: u32,
    },
    /// A grant that cannot be.
    #[error(transparent)]
    Grant(#[from] BadGrant),
    /// More notifications than were granted.
    #[error("{arrived} notifications arrived at once where {granted} were granted")]
    Ungranted {
        /// Arrived and not answered yet.
        arrived: u64,
        /// As many as may be on their way.
        granted: u32,
    },
    /// A notification found no receive request: one side has miscounted.
    #[error("a notification arrived for which no receive request was posted")]
    NotReady,
}

/// A grant that cannot be: fewer than before, or more than the peer has receive requests for.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{granted} notifications granted where {from} to {until} are possible")]
pub struct BadGrant {
    /// What the peer says it has granted in all.
    pub granted: u64,
    /// What it had granted before.
    pub from: u64,
    /// As many as were sent, and all its receive requests.
    pub until: u64,
}

/// Counts notifications both ways on one connection.
#[derive(Debug)]
pub(super) struct Notifications {
    /// Receive requests that this side keeps posted, and those that the peer does.
    own_depth: u32,
    peer_depth: u32,
    /// Sent to the peer, and granted by it, since the link came up.
    sent: u64,
    granted: u64,
    /// Reaped here, and as many as the peer knows of.
    reaped: u64,
    reported: u64,
}

impl Notifications {
    pub(super) fn new(own_depth: u32, peer_depth: u32) -> Self {
        assert!(
            own_depth.min(peer_depth) >= FEWEST_NOTIFICATIONS,
            "too few receive requests to keep two back"
        );
        Self { own_depth, peer_depth, sent: 0, granted: u64::from(peer_depth), reaped: 0, reported: 0 }
    }

    pub(super) fn may_send(&self, purpose: Purpose) -> bool {
        let kept = match purpose {
            Purpose::Frames => KEPT_FROM_FRAMES,
            Purpose::Credit => KEPT_FROM_CREDIT,
            Purpose::Close => 0,
        };
        self.granted - self.sent > kept
    }

    /// A notification was sent.
    pub(super) fn send(&mut self) {
        debug_assert!(self.sent < self.granted, "the receiver may not be ready");
        self.sent += 1;
    }

    /// A notification was reaped and its receive request posted again.
    pub(super) fn reap(&mut self) {
        self.reaped += 1;
    }

    /// Whether the peer knows of so few that it should be told.
    pub(super) fn is_due(&self) -> bool {
        self.reaped - self.reported >= u64::from(self.own_depth / 4)
    }

    /// Whether the peer knows of so few that it should be told even if nothing else is to be sent.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
    pub(super) fn is_urgent(&self) -> bool {
        self.reaped - self.reported >= u64::from(self.own_depth / 2)
    }

    /// What to tell the peer that it has been granted in all; it is then taken to know.
    pub(super) fn report(&mut self) -> u64 {
        self.reported = self.reaped;
        u64::from(self.own_depth) + self.reaped
    }

    /// The peer says how many it has granted in all.
    pub(super) fn accept(&mut self, granted: u64) -> Result<(), BadGrant> {
        let until = self.sent + u64::from(self.peer_depth);
        if granted < self.granted || granted > until {
            return Err(BadGrant { granted, from: self.granted, until });
        }
        self.granted = granted;
        Ok(())
    }
}

/// What one side of a link owes and is owed: space in the mailbox, and notifications.
#[derive(Debug)]
pub(super) struct Credit {
    pub(super) notifications: Notifications,
    ring: RingSize,
    epoch: Epoch,
    /// How far the mailbox was released, and how far the peer knows.
    consumed: Position,
    reported: Position,
    /// Notifications of another epoch that were dropped.
    stale: u64,
}

impl Credit {
    pub(super) fn new(notifications: Notifications, ring: RingSize, epoch: Epoch) -> Self {
        Self { notifications, ring, epoch, consumed: Position(0), reported: Position(0), stale: 0 }
    }

    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    /// Everything in the mailbox before has been released.
    pub(super) fn release(&mut self, consumed: Position) {
        self.consumed = self.consumed.max(consumed);
    }

    /// Whether so much was released, and not reported, that the peer should be told even if nothing else is to be sent.
    pub(super) fn is_space_due(&self) -> bool {
        let unreported = self.consumed.since(self.reported).unwrap_or(0);
        unreported >= u64::from(self.ring.blocks().0 / 4)
    }

    /// What to tell the peer, who is then taken to know.
    pub(super) fn report(&mut self) -> CreditRecord {
        self.reported = self.consumed;
        CreditRecord { consumed: self.consumed, granted: self.notifications.report() }
    }

    /// Frames leave, whose headers tell the peer what was released.
    pub(super) fn rides_with(&mut self, frames: &[u8]) {
        let Some(header) = frames.first_chunk::<HEADER>() else { return };
        let acknowledged = Position::from_low_bits(self.reported, Header::acknowledged_in(header));
        if acknowledged <= self.consumed {
            self.reported = acknowledged;
        }
    }

    /// The bits of a notification that everything before `produced` has been written.
    pub(super) fn word(&self, notice: Notice, produced: Position) -> u32 {
        Immediate::new(notice, self.epoch, produced).encode()
    }

    /// Reads a notification that has come, and counts it: what it is about, and how far the peer has produced, of which
    /// `produced` was known. `None` for one of another epoch, which is dropped.
    pub(super) fn read(
        &mut self,
        bits: u32,
        mailbox: &Mailbox,
        produced: Position,
    ) -> Result<Option<(Notice, Position)>, LinkError> {
        let immediate = Immediate::decode(bits).ok_or(NoticeError::Unknown { bits })?;
        if immediate.epoch != self.epoch {
            self.stale += 1;
            return Ok(None);
        }
        self.notifications.reap();
        let to = immediate.produced(produced);
        mailbox.check_produced(produced, to)?;
        Ok(Some((immediate.notice, to)))
    }

    /// Reads the peer's record, which is complete as of some notification and absolute: how far it has consumed what was
    /// `sent`.
    pub(super) fn accept(&mut self, record: CreditRecord, sent: Position) -> Result<Position, LinkError> {
        let CreditRecord { consumed: acknowledged, granted } = record;
        if acknowledged > sent {
            return Err(FrameError::BadAcknowledgement { acknowledged, sent }.into());
        }
        self.notifications.accept(granted).map_err(NoticeError::from)?;
        Ok(acknowledged)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn the_last_two_grants_are_not_for_frames() {
        let mut ours = Notifications::new(8, 8);
        for _ in 0..6 {
            assert!(ours.may_send(Purpose::Frames));
            ours.send();
        }
        assert!(!ours.may_send(Purpose::Frames) && ours.may_send(Purpose::Credit));
        ours.send();
        assert!(!ours.may_send(Purpose::Credit) && ours.may_send(Purpose::Close));
        ours.send();
        assert!(!ours.may_send(Purpose::Close));
        ours.accept(9).unwrap();
        assert!(ours.may_send(Purpose::Close) && !ours.may_send(Purpose::Credit));
    }

    #[test]
    fn impossible_grants_are_refused() {
        let mut ours = Notifications::new(8, 8);
        ours.send();
        assert_eq!(ours.accept(10), Err(BadGrant { granted: 10, from: 8, until: 9 }));
        ours.accept(9).unwrap();
        assert_eq!(ours.accept(8), Err(BadGrant { granted: 8, from: 9, until: 9 }));
    }

    /// Both sides send whenever they may, with any delay and in any turn: neither ever overruns the other, neither
    /// runs dry for good, and reports do not answer each other for ever.
    #[test]
    fn two_sides_never_overrun_and_never_starve_each_other() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let depths = [rng.u32(8..20), rng.u32(8..20)];
            let mut sides =
                [Notifications::new(depths[0], depths[1]), Notifications::new(depths[1], depths[0])];
            // What is on its way to each side: `Some` reports a grant.
            let mut wires: [VecDeque<Option<u64>>; 2] = [VecDeque::new(), VecDeque::new()];
            let mut frames = [0; 2];
            let report =
                |sides: &mut [Notifications; 2], wires: &mut [VecDeque<Option<u64>>; 2], from: usize| {
                    if sides[from].is_due() && sides[from].may_send(Purpose::Credit) {
                        sides[from].send();
                        let granted = sides[from].report();
                        wires[1 - from].push_back(Some(granted));
                    }
                };
            for _ in 0..5000 {
                let side = rng.usize(0..2);
                if rng.bool() {
                    if sides[side].may_send(Purpose::Frames) {
                        sides[side].send();
                        wires[1 - side].push_back(None);
                        frames[side] += 1;
                    }
                } else if let Some(arrived) = wires[side].pop_front() {
                    assert!(wires[side].len() < depths[side] as usize, "seed {seed}: overrun");
                    sides[side].reap();
                    if let Some(granted) = arrived {
                        sides[side].accept(granted).unwrap();
                    }
                    report(&mut sides, &mut wires, side);
                }
                report(&mut sides, &mut wires, side);
            }
            assert!(frames.iter().all(|sent| *sent > 200), "seed {seed}: starved, {frames:?}");
            // Left alone, they fall silent.
            for _ in 0..1000 {
                for side in 0..2 {
                    if let Some(arrived) = wires[side].pop_front() {
                        sides[side].reap();
                        arrived.into_iter().for_each(|granted| sides[side].accept(granted).unwrap());
                    }
                    report(&mut sides, &mut wires, side);
                }
            }
            assert!(wires.iter().all(VecDeque::is_empty), "seed {seed}: reports without end");
            assert!(sides.iter().all(|side| side.may_send(Purpose::Frames)), "seed {seed}: run dry");
        }
    }
}
