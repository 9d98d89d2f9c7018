//! What whoever receives does about the change of links: reads SWITCH and FALLBACK, polls the link whose turn it is, and
//! gives a fast link up that has died.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::fallback::{Arriving, BYTES, Fallback};
use super::sending::{Way, is_the_peers_fault};
use super::{SwitchingLink, Then};
use crate::frame::{FrameError, Header};
use crate::link::{Arrived, Link, LinkError};
use crate::ring::{BLOCK, Mailbox, Position};

/// Polls of the fast link between two looks at the socket, which takes a system call. Whoever sleeps is woken by it.
const LOOK_EVERY: u32 = 64;

/// How far the change of links has come.
#[derive(Debug, Default)]
pub(super) struct Crossing {
    pub(super) epoch: u32,
    pub(super) own: Own,
    /// SWITCH has its place in the ring, or has left.
    pub(super) own_switched: bool,
    /// From the peer's SWITCH on.
    pub(super) theirs: Option<Theirs>,
    /// Why TCP has ended, while there may be something to be taken from the fast link.
    base_end: Option<LinkError>,
    polls: u32,
    pub(super) protection: Protection,
}

/// This side's fast link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Own {
    /// None since the last crossing.
    #[default]
    Idle,
    /// It is being brought up.
    Pending,
    Up,
    /// It is being taken down.
    Closing,
    /// It has been taken down, or did not come up.
    Gone,
}

/// The peer's direction behind its SWITCH.
#[derive(Debug)]
pub(super) struct Theirs {
    arriving: Arriving,
    /// How far has been taken what it announced, when this side's fast link is not up any more.
    received: Position,
    /// This side has said so.
    answered: bool,
    /// What the peer has said.
    fallback: Option<Fallback>,
}

/// Whether frames are copied out of the mailbox because the peer may come to write it by itself.
#[derive(Debug, Default)]
pub(super) struct Protection {
    pub(super) wanted: bool,
    /// Frames before this were not copied.
    since: Option<Position>,
    /// None of them is held any more.
    pub(super) complete: bool,
}

fn bad(rule: &'static str) -> LinkError {
    FrameError::BadSwitch { rule }.into()
}

impl Crossing {
    /// Whether nothing is going on: another fast link may be brought up.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.own, Own::Idle | Own::Gone) && !self.own_switched && self.theirs.is_none()
    }

    /// Whether this side's SWITCH is due.
    pub(super) fn wants_switch(&self) -> bool {
        !self.own_switched && (self.own == Own::Up || self.own == Own::Gone && self.theirs.is_some())
    }
}

impl SwitchingLink {
    pub(super) fn poll_somewhere(&self, mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError> {
        let mut crossing = self.crossing.lock();
        if self.has_news.load(Ordering::Acquire) && self.has_news.swap(false, Ordering::AcqRel) {
            self.read_news(&mut crossing, known)?;
            self.update_protection(&mut crossing.protection, mailbox, known);
        }
        if crossing.theirs.is_none() {
            return self.base.poll(mailbox, known);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(LinkError::Closed("the link was closed"));
        }
        self.read_base(&mut crossing, known)?;
        if self.receives_fast.load(Ordering::Acquire) {
            let polled =
                self.fast.read().as_ref().map(|fast| (fast.poll(mailbox, known), fast.said_goodbye()));
            match polled {
                Some((Ok(arrived), _)) if arrived.produced > known => return Ok(arrived),
                Some((Ok(_), _)) | None => {}
                Some((Err(error), _)) if is_the_peers_fault(&error) => return Err(error),
                Some((Err(_), true)) => return Err(LinkError::PeerClosed),
                Some((Err(error), false)) => {
                    if crossing.base_end.is_none() {
                        self.give_up(&mut crossing, known, &error.to_string());
                    }
                }
            }
        }
        if let Some(end) = &crossing.base_end {
            return Err(end.clone());
        }
        self.advance(&mut crossing)?;
        Ok(Arrived { produced: known })
    }

    fn read_news(&self, crossing: &mut Crossing, known: Position) -> Result<(), LinkError> {
        let news = std::mem::take(&mut *self.news.lock());
        if let Some(reason) = news.lost {
            self.give_up(crossing, known, &reason);
        }
        if news.gone {
            crossing.own = Own::Gone;
            crossing.protection.wanted = false;
            self.has_frames.store(true, Ordering::Release);
            self.changed.notify_waiters();
        }
        self.advance(crossing)
    }

    fn update_protection(&self, protection: &mut Protection, mailbox: &Mailbox, known: Position) {
        if protection.wanted && protection.since.is_none() {
            mailbox.set_copies(true);
            protection.since = Some(known);
            // Whatever is released from here on is worth a look.
            self.protects.store(true, Ordering::SeqCst);
            mailbox.detach_lent();
        } else if !protection.wanted && protection.since.is_some() {
            mailbox.set_copies(false);
            *protection = Protection::default();
            self.protects.store(false, Ordering::Relaxed);
        }
        if protection.since.is_some_and(|since| mailbox.consumed() >= since) && !protection.complete {
            protection.complete = true;
            self.protects.store(false, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
    }

    /// Takes from the socket what is not for the mailbox.
    fn read_base(&self, crossing: &mut Crossing, known: Position) -> Result<(), LinkError> {
        crossing.polls = crossing.polls.wrapping_add(1);
        let due = self.base_due.load(Ordering::Acquire) && self.base_due.swap(false, Ordering::AcqRel)
            || crossing.polls.is_multiple_of(LOOK_EVERY)
            || !self.receives_fast.load(Ordering::Relaxed);
        let Some(theirs) = crossing.theirs.as_mut().filter(|_| due && crossing.base_end.is_none()) else {
            return Ok(());
        };
        let rest = theirs.arriving.rest();
        if rest.is_empty() {
            // What comes next is for the mailbox again.
            return Ok(());
        }
        match self.base.receive_bytes(rest) {
            Ok(count) => theirs.arriving.add(count),
            // First comes what the fast link has brought.
            Err(end) => crossing.base_end = Some(end),
        }
        self.read_record(crossing, known)
    }

    /// Acts on FALLBACK if all of it has come.
    fn read_record(&self, crossing: &mut Crossing, known: Position) -> Result<(), LinkError> {
        let Some(theirs) = crossing.theirs.as_mut().filter(|theirs| theirs.fallback.is_none()) else {
            return Ok(());
        };
        let Some(fallback) = theirs.arriving.record()? else { return Ok(()) };
        if fallback.epoch != crossing.epoch {
            return Err(bad("FALLBACK names another epoch"));
        }
        theirs.fallback = Some(fallback);
        self.give_up(crossing, known, "the peer has given it up");
        let sending = self.sending.lock();
        if sending.way != Way::Waiting {
            return Err(bad("FALLBACK came before its sender can have seen SWITCH"));
        }
        let announced = self.announced.load(Ordering::Acquire);
        // What was freed may have been overwritten.
        let freed = self.base.freed(Position(announced))?.0.max(self.peer_consumed.load(Ordering::Acquire));
        if !(freed..=announced).contains(&fallback.position.0) {
            let (acknowledged, sent) = (fallback.position, Position(announced));
            return Err(FrameError::BadAcknowledgement { acknowledged, sent }.into());
        }
        // It has nothing of what follows, and cannot have consumed it.
        self.announced.store(fallback.position.0, Ordering::Release);
        Ok(())
    }

    /// The frame SWITCH has been read; `at` is the position behind it.
    pub(crate) fn switched(&self, header: &Header, at: Position, mailbox: &Mailbox) -> Result<(), LinkError> {
        let mut crossing = self.crossing.lock();
        if crossing.theirs.is_some() || crossing.own == Own::Idle {
            return Err(bad("SWITCH came though no other link was to take over"));
        }
        if header.call.index != crossing.epoch {
            return Err(bad("SWITCH names another epoch"));
        }
        let mut theirs =
            Theirs { arriving: Arriving::default(), received: at, answered: false, fallback: None };
        // FALLBACK may be right behind it, and have been taken for frames. What the fast link has brought since lies in the
        // same place; nothing of it was taken, so it will come again.
        let behind = (self.base.received() - at.0 * BLOCK as u64) as usize;
        if behind > BYTES {
            return Err(bad("more than FALLBACK came behind SWITCH"));
        }
        mailbox.copy(at, &mut theirs.arriving.rest()[..behind]);
        theirs.arriving.add(behind);
        crossing.theirs = Some(theirs);
        self.base.leave_mailbox(behind < BYTES);
        self.has_frames.store(true, Ordering::Release);
        if behind > 0 {
            self.give_up(&mut crossing, at, "the peer has given it up");
            self.read_record(&mut crossing, at)?;
        }
        self.receive_fast_if_due(&crossing, mailbox.consumed());
        self.advance(&mut crossing)
    }

    /// This side's SWITCH is in the ring, not committed yet; `at` is the position behind it.
    pub(crate) fn switch(&self, at: Position, consumed: Position) {
        let crossing = &mut *self.crossing.lock();
        crossing.own_switched = true;
        self.announced.store(at.0, Ordering::Release);
        if let Some(fast) = &*self.fast.read() {
            fast.begin(at);
        }
        self.sending.lock().way = Way::Switching(at);
        self.receive_fast_if_due(crossing, consumed);
    }

    /// The fast link is used when both directions have begun: its notifications count positions of both.
    fn receive_fast_if_due(&self, crossing: &Crossing, consumed: Position) {
        if crossing.own == Own::Up && crossing.own_switched && crossing.theirs.is_some() {
            self.receives_fast.store(true, Ordering::Release);
            if let Some(fast) = &*self.fast.read() {
                // The peer may know of nothing that was released while space was TCP's affair.
                fast.acknowledge(consumed);
            }
        }
    }

    /// The fast link has died, on one side at least. `known` is how far has been taken what the peer announced.
    fn give_up(&self, crossing: &mut Crossing, known: Position, reason: &str) {
        if crossing.own != Own::Up {
            return;
        }
        let mut sending = self.sending.lock();
        // Not there any more: this side has closed the link.
        let Some(fast) = self.fast.write().take() else { return };
        crossing.own = Own::Closing;
        self.receives_fast.store(false, Ordering::Release);
        if let Some(theirs) = &mut crossing.theirs {
            theirs.received = known;
        }
        if crossing.own_switched {
            let announced = fast.announced(Position(self.announced.load(Ordering::Acquire)));
            self.announced.store(announced.0, Ordering::Release);
            if let Ok(freed) = fast.freed(announced) {
                self.peer_consumed.fetch_max(freed.0, Ordering::AcqRel);
            }
        }
        self.leave_fast(&mut sending);
        drop(sending);
        let mut history = self.history.lock();
        history.fallbacks += 1;
        history.reason = Some(format!("it was lost: {reason}"));
        let fallbacks = history.fallbacks;
        drop(history);
        let (peer, device, kind) = (&self.peer, self.device(), fast.kind());
        tracing::warn!(%peer, link = %kind, device, reason, fallbacks, "a link has died; going on over TCP");
        let this = Weak::clone(&self.this);
        fast.take_down(Then::new(move || {
            if let Some(link) = this.upgrade() {
                link.news.lock().gone = true;
                link.nudge();
            }
        }));
    }

    /// Does what has become due.
    fn advance(&self, crossing: &mut Crossing) -> Result<(), LinkError> {
        let Some(theirs) = &mut crossing.theirs else { return Ok(()) };
        if crossing.own == Own::Gone && crossing.own_switched && !theirs.answered {
            theirs.answered = true;
            let record = Fallback { epoch: crossing.epoch, position: theirs.received };
            self.send_record(&mut self.sending.lock(), record)?;
        }
        if theirs.answered
            && let Some(fallback) = theirs.fallback
        {
            self.base.resume_receiving(theirs.received);
            crossing.theirs = None;
            crossing.own_switched = false;
            crossing.own = Own::Idle;
            self.resume(&mut self.sending.lock(), fallback.position)?;
            self.changed.notify_waiters();
        }
        Ok(())
    }
}
