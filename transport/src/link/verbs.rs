//! The RDMA link: one WRITE makes the peer's mailbox equal to the staging ring, and its immediate says how far.
//!
//! ```text
//!   staging ring ──▶ send queue ═══ WRITE(s), immediate ═══▶ mailbox, completion queue ──▶ inbox ──▶ poll
//!   credit record ─▶            ═══ WRITE, immediate    ═══▶ desk
//! ```
//!
//! - A flush is one chain of work requests posted at once: a credit record if one is due, the frames (one WRITE unless
//!   the port's messages are shorter), and the notification. Where a device has no immediates, a message of four bytes
//!   is chained behind the WRITE instead ([`Immediates`]).
//! - Requests are reported to this side once in half a send queue. The staging ring is freed by what the peer
//!   acknowledges, in headers or credit records, not by what the device reports.
//! - A full send queue and a lack of granted notifications are back-pressure; when either ends the armed task is woken.
//! - The peer can write to the mailbox and the desk, by RDMA, and to nothing else; what it writes is checked as on any
//!   other link.
//! - Closing says so to the peer and lets what is on its way arrive: see the private module `farewell`.

mod ability;
mod bring_up;
mod connection;
mod desk;
mod end;
mod farewell;
mod inbox;
mod lane;
mod ticket;
mod traffic;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use parking_lot::Mutex;

pub use self::ability::sends_immediates;
pub use self::bring_up::{BringUpError, Expectation, Listener, Step, connect};
use self::connection::{Connection, largest_write};
pub use self::end::{End, Prepared, VerbsEnd};
pub use self::farewell::lingering;
use self::inbox::Inbox;
pub use self::lane::{Lane, LaneSettings};
pub use self::ticket::Ticket;
use super::credit::{Credit, CreditRecord, NoticeError, Purpose};
use super::{Interest, Link, LinkError};
use crate::immediate::{Epoch, Notice};
use crate::ring::{Mailbox, Position, RingSize};
use crate::verbs::{Id, VerbsError};

/// Whether a WRITE carries its notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Immediates {
    /// Where both devices can.
    #[default]
    WherePossible,
    /// Never: a message is chained behind it.
    Never,
}

/// What a connection is made with, besides its lane and its protection domain.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Size of both rings.
    pub ring: RingSize,
    /// Whether a WRITE carries its notification.
    pub immediates: Immediates,
    /// Marks the notifications of this link.
    pub epoch: Epoch,
    /// How often a packet is sent again that is not acknowledged, at most 6.
    pub retries: u8,
    /// How long the device waits for an acknowledgement: 4.096 µs times two to this power.
    pub ack_timeout: u8,
    /// How often is tried again when the peer has no receive request. It always has, so 0 shows a mistake at once.
    pub not_ready_retries: u8,
    /// Whether frames are copied out of the mailbox before they are handed out, because the peer is not trusted to
    /// leave them alone.
    pub copies: bool,
    /// Bound on bringing the connection up.
    pub timeout: std::time::Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ring: RingSize::DEFAULT,
            immediates: Immediates::default(),
            epoch: Epoch::default(),
            retries: 6,
            // 67 ms: a peer that is gone is reported after half a second.
            ack_timeout: 14,
            not_ready_retries: 3,
            copies: true,
            timeout: std::time::Duration::from_secs(5),
        }
    }
}

/// One side of an RDMA connection as a link.
#[derive(Debug)]
pub struct VerbsLink {
    lane: Arc<Lane>,
    inbox: Arc<Inbox>,
    queue_pair: u32,
    /// How far has been posted, stored before it is.
    announced: AtomicU64,
    /// How far the peer has consumed, as its credit records say.
    peer_consumed: AtomicU64,
    /// Notifications that have been read. Written under the lock.
    seen: AtomicU64,
    /// A report is due that could not be sent. Written under the lock.
    report_waits: AtomicBool,
    /// There is an end to tell of. Written under the lock.
    ended: AtomicBool,
    posts: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Until this side closes.
    connection: Option<Connection>,
    credit: Credit,
    /// Places in the send queue that the frames which wait need; 0 when none wait.
    frames_wait: u64,
    greeted: bool,
    /// For rings in use, and it has not taken over yet: to end it is not to end the connection.
    waits: bool,
    peer_closed: bool,
}

impl VerbsLink {
    fn new(lane: Arc<Lane>, inbox: Arc<Inbox>, credit: Credit, connection: Connection, waits: bool) -> Self {
        Self {
            lane,
            inbox,
            queue_pair: connection.queue_pair.number(),
            announced: AtomicU64::new(0),
            peer_consumed: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            report_waits: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            posts: AtomicU64::new(0),
            state: Mutex::new(State {
                connection: Some(connection),
                credit,
                frames_wait: 0,
                greeted: false,
                waits,
                peer_closed: false,
            }),
        }
    }

    /// Device, port, GID, queue pair and peer.
    #[must_use]
    pub fn place(&self) -> &crate::verbs::Place {
        self.inbox.place()
    }

    /// The lane that it is served by.
    #[must_use]
    pub fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Whether its notifications travel as immediates.
    #[must_use]
    pub fn uses_immediates(&self) -> bool {
        self.state.lock().connection.as_ref().is_some_and(|connection| connection.immediates)
    }

    /// Times that work requests were handed to the device: doorbells, or system calls where the device is software.
    #[must_use]
    pub fn posts(&self) -> u64 {
        self.posts.load(Ordering::Relaxed)
    }

    /// Notifications that have come.
    #[must_use]
    pub fn notifications(&self) -> u64 {
        self.inbox.arrived()
    }

    /// Notifications of another epoch that were dropped.
    #[must_use]
    pub fn stale_notifications(&self) -> u64 {
        self.state.lock().credit.stale()
    }

    fn rdma_error(error: VerbsError) -> LinkError {
        LinkError::Rdma(Arc::new(error))
    }

    /// Posts and counts.
    fn post(
        &self,
        state: &mut State,
        record: Option<CreditRecord>,
        frames: (usize, &[u8]),
        notice: Notice,
    ) -> Result<u64, LinkError> {
        let produced = Position(self.announced.load(Ordering::Relaxed));
        let word = state.credit.word(notice, produced);
        let record = record.map(desk::encode);
        let Some(connection) = &mut state.connection else {
            return Err(LinkError::Closed("the link was closed"));
        };
        self.posts.fetch_add(1, Ordering::Relaxed);
        let ends = notice == Notice::Close;
        let posted = connection.post(record.as_ref(), frames, word, ends).map_err(Self::rdma_error)?;
        state.credit.notifications.send();
        Ok(posted)
    }

    /// Announces a position that has nothing to do with what was written, as a peer that breaks the rules would. For
    /// tests of the other side.
    ///
    /// # Errors
    /// When the link is dead.
    #[doc(hidden)]
    pub fn misannounce(&self, produced: Position) -> Result<(), LinkError> {
        let mut state = self.state.lock();
        let record = state.credit.report();
        self.announced.store(produced.0, Ordering::Release);
        self.post(&mut state, Some(record), (0, &[]), Notice::Frames).map(|_| ())
    }

    fn can_send(&self, state: &State, places: u64, purpose: Purpose) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.free_places(&self.inbox) >= places)
            && state.credit.notifications.may_send(purpose)
    }

    /// Places that a notification without frames needs.
    fn notice_places(state: &State) -> u64 {
        state.connection.as_ref().map_or(0, |connection| connection.places(0))
    }

    fn is_report_due(state: &State) -> bool {
        // Before it is urgent, it rides along with the next frames.
        state.credit.notifications.is_urgent() || state.credit.is_space_due()
    }

    /// Reports credit on its own if that is due. If it cannot be sent now, the next poll tries again, which will be when
    /// something has arrived or a work request has ended.
    fn report_if_due(&self, state: &mut State) {
        let due = state.connection.is_some() && Self::is_report_due(state);
        self.report_waits.store(due, Ordering::Relaxed);
        self.update_wants(state);
        // Said before looking, as requests whose end is put down in between must wake whoever sleeps.
        if due && self.can_send(state, Self::notice_places(state), Purpose::Credit) {
            let record = state.credit.report();
            if let Err(error) = self.post(state, Some(record), (0, &[]), Notice::Credit) {
                self.inbox.fail(error);
            }
            self.report_waits.store(false, Ordering::Relaxed);
            self.update_wants(state);
        }
    }

    fn update_wants(&self, state: &State) {
        self.inbox.set_wants_send(state.frames_wait > 0 || self.report_waits.load(Ordering::Relaxed));
    }

    /// Whether what waits to be sent can be.
    fn is_unblocked(&self, state: &State) -> bool {
        let frames = state.frames_wait > 0 && self.can_send(state, state.frames_wait, Purpose::Frames);
        let report = self.report_waits.load(Ordering::Relaxed)
            && self.can_send(state, Self::notice_places(state), Purpose::Credit);
        frames || report
    }

    /// Reads the notifications that have come, up to a greeting if there is one and it is waited for. Returns how far the
    /// peer has produced.
    fn read_news(
        &self,
        state: &mut State,
        mailbox: &Mailbox,
        known: Position,
        until_greeted: bool,
    ) -> Result<Position, LinkError> {
        let seen = self.seen.load(Ordering::Relaxed);
        let arrived = self.inbox.arrived();
        let depth = self.inbox.depth();
        if arrived - seen > u64::from(depth) {
            return Err(NoticeError::Ungranted { arrived: arrived - seen, granted: depth }.into());
        }
        let mut produced = known;
        let mut read = seen;
        while read < arrived && !(until_greeted && state.greeted) {
            let bits = self.inbox.word(read);
            read += 1;
            let Some((notice, to)) = state.credit.read(bits, mailbox, produced)? else { continue };
            produced = to;
            match notice {
                Notice::Close | Notice::Error => {
                    state.peer_closed = true;
                    self.ended.store(true, Ordering::Relaxed);
                }
                Notice::Probe => state.greeted = true,
                Notice::Frames | Notice::Credit | Notice::RendezvousDone => {}
            }
        }
        self.seen.store(read, Ordering::Relaxed);
        if let Some(connection) = &mut state.connection {
            connection.post_receives(seen..read, depth).map_err(Self::rdma_error)?;
            if let Some(record) = connection.desk_memory.credit() {
                let sent = Position(self.announced.load(Ordering::Relaxed));
                let consumed = state.credit.accept(record, sent)?;
                self.peer_consumed.fetch_max(consumed.0, Ordering::AcqRel);
            }
        }
        Ok(produced)
    }

    /// Tells the peer that the connection carries something in this direction.
    fn greet(&self) -> Result<(), LinkError> {
        let mut state = self.state.lock();
        let record = state.credit.report();
        self.post(&mut state, Some(record), (0, &[]), Notice::Probe).map(|_| ())
    }

    /// Has the lane listen for whoever sleeps, if somebody does, as the link has come to wait for something.
    fn attend_sleeper(&self) {
        if self.inbox.asleep.load(Ordering::Relaxed) {
            let seen = &self.seen;
            self.lane.attend(self.queue_pair, || self.inbox.arrived() != seen.load(Ordering::Relaxed));
        }
    }

    /// Waits until the peer has said so.
    async fn greeted(&self, mailbox: &Mailbox) -> Result<(), LinkError> {
        std::future::poll_fn(|cx| {
            loop {
                self.lane.look();
                let mut state = self.state.lock();
                self.read_news(&mut state, mailbox, Position(0), true)?;
                if state.greeted {
                    return Poll::Ready(Ok(()));
                }
                self.end_of(&state)?;
                drop(state);
                let interest = Interest { known: Position(0), blocked: false };
                if self.arm(cx, interest)?.is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    fn end_of(&self, state: &State) -> Result<(), LinkError> {
        if let Some(failure) = self.inbox.failure() {
            return Err(failure.clone());
        }
        if state.peer_closed || self.inbox.is_disconnected() {
            return Err(LinkError::PeerClosed);
        }
        Ok(())
    }

    /// Calls the connection manager for the connection.
    fn with_id(&self, call: impl FnOnce(&Id) -> Result<(), VerbsError>) -> Result<(), BringUpError> {
        match &self.state.lock().connection {
            Some(connection) => Ok(call(connection.queue_pair.id())?),
            None => Err(LinkError::Closed("the link was closed").into()),
        }
    }

    /// Before the peer can send anything.
    fn post_first_receives(&self) -> Result<(), LinkError> {
        let depth = self.inbox.depth();
        match &mut self.state.lock().connection {
            Some(connection) => {
                connection.post_receives(0..u64::from(depth), depth).map_err(Self::rdma_error)
            }
            None => Ok(()),
        }
    }

    /// The connection manager has brought the connection up; what it has to say from now on it says to the lane.
    fn set_up(&self) -> Result<(), LinkError> {
        if let Some(connection) = &mut self.state.lock().connection {
            connection.queue_pair.id_mut().migrate(self.lane.events()).map_err(Self::rdma_error)?;
            connection.up = true;
        }
        Ok(())
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        self.close();
    }
}
