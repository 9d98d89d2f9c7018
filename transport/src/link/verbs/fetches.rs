//! Reading what the peer lends: RDMA READs, a few at a time.
//!
//! A message is read in chunks, so that several messages share the way and calls get between them. As many READs are on
//! their way as both queue pairs can have; more than one of them only while the device's budget for all its connections
//! lasts. Each connection may always have one, so nobody waits for anybody else's budget.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::buffers::{Buffers, Remains};
use super::inbox::Inbox;
use super::{Connection, State, VerbsLink};
use crate::rendezvous::{Fetch, Lendable};
use crate::verbs::{Context, Remote, Sink, VerbsError};

/// Bytes that one READ fetches at most.
const CHUNK: u64 = 256 << 10;
/// Bytes that are on their way by READ to one device at a time.
const BUDGET: u64 = 16 << 20;
/// Bytes from which on a message is lent rather than sent in fragments.
const LENT_FROM: usize = 256 << 10;

/// READs of this process that have been posted, and bytes that have been read.
static POSTED: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// RDMA READs of this process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reads {
    /// How many were posted.
    pub posted: u64,
    /// Bytes that have arrived by them.
    pub bytes: u64,
}

/// RDMA READs of this process so far.
#[must_use]
pub fn reads() -> Reads {
    Reads { posted: POSTED.load(Ordering::Relaxed), bytes: BYTES.load(Ordering::Relaxed) }
}

/// What a connection reads.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    going: Vec<Going>,
    posted: VecDeque<Posted>,
    /// READs that may be on their way.
    most: usize,
    next_serial: u64,
    /// Whose turn it is.
    turn: usize,
}

/// One message.
#[derive(Debug)]
struct Going {
    serial: u64,
    /// Both there until it has ended.
    fetch: Option<Fetch>,
    sink: Option<Sink>,
    remains: Remains,
    buffers: Arc<Buffers>,
    remote: Remote,
    /// Where in the sink it begins.
    offset: usize,
    length: u64,
    posted: u64,
    arrived: u64,
}

/// One READ on its way.
#[derive(Debug)]
struct Posted {
    number: u64,
    serial: u64,
    share: Share,
}

/// Part of a device's budget.
#[derive(Debug)]
struct Share {
    context: Arc<Context>,
    bytes: u64,
}

impl Share {
    fn take(context: &Arc<Context>, bytes: u64, is_first: bool) -> Option<Self> {
        let taken = context.being_read().fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (is_first || taken + bytes <= BUDGET).then_some(taken + bytes)
        });
        taken.ok().map(|_| Self { context: Arc::clone(context), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.context.being_read().fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if self.sink.take().is_some() {
            self.buffers.forget(self.remains);
        }
    }
}

impl Going {
    fn is_over(&self) -> bool {
        self.arrived == self.length || self.arrived == self.posted && !self.is_wanted()
    }

    fn is_wanted(&self) -> bool {
        self.fetch.as_ref().is_some_and(Fetch::is_wanted)
    }

    fn wants_more(&self) -> bool {
        self.posted < self.length && self.is_wanted()
    }

    /// Hands out what has been read.
    fn finish(mut self) {
        let (Some(sink), Some(fetch)) = (self.sink.take(), self.fetch.take()) else { return };
        let is_whole = self.arrived == self.length;
        match sink.fill().filter(|_| is_whole) {
            Some(filled) => fetch.succeed(self.buffers.landed(filled, self.remains)),
            None => self.buffers.forget(self.remains),
        }
    }
}

impl Fetches {
    /// How many READs may be on their way.
    pub(super) fn set_most(&mut self, most: u8) {
        self.most = usize::from(most).max(1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.going.is_empty()
    }

    /// Begins to read a message into a sink that is large enough.
    pub(super) fn begin(&mut self, fetch: Fetch, sink: Sink, remains: Remains, buffers: &Arc<Buffers>) {
        let offer = fetch.offer();
        let going = Going {
            serial: self.next_serial,
            sink: Some(sink),
            remains,
            buffers: Arc::clone(buffers),
            remote: Remote { address: offer.address, key: offer.key },
            offset: fetch.prefix().len(),
            length: offer.length,
            posted: 0,
            arrived: 0,
            fetch: Some(fetch),
        };
        self.next_serial += 1;
        self.going.push(going);
    }

    /// Notes which READs have ended, hands out what is complete, and posts more.
    pub(super) fn advance(&mut self, connection: &mut Connection, inbox: &Inbox) -> Result<(), VerbsError> {
        let read = inbox.read();
        let mut ended = false;
        while self.posted.front().is_some_and(|posted| posted.number <= read)
            && let Some(posted) = self.posted.pop_front()
        {
            ended = true;
            BYTES.fetch_add(posted.share.bytes, Ordering::Relaxed);
            if let Some(going) = self.going.iter_mut().find(|going| going.serial == posted.serial) {
                going.arrived += posted.share.bytes;
            }
        }
        if ended {
            // Before a sink is used: requests hold its region.
            connection.queue_pair.ended(read);
        }
        while let Some(at) = self.going.iter().position(Going::is_over) {
            self.going.remove(at).finish();
        }
        self.post(connection, inbox)
    }

    fn post(&mut self, connection: &mut Connection, inbox: &Inbox) -> Result<(), VerbsError> {
        // The rest is for frames.
        while self.posted.len() < self.most && connection.free_places(inbox) > connection.sends / 2 {
            let count = self.going.len();
            let mut turns = (0..count).map(|at| (self.turn + at) % count);
            let Some(at) = turns.find(|at| self.going[*at].wants_more()) else { break };
            let going = &mut self.going[at];
            let Some(region) = going.sink.as_ref().and_then(Sink::region) else { break };
            let bytes = CHUNK.min(going.length - going.posted).min(connection.largest_write as u64);
            let context = region.domain().context();
            let Some(share) = Share::take(context, bytes, self.posted.is_empty()) else { break };
            let Remote { address, key } = going.remote;
            let remote = Remote { address: address + going.posted, key };
            let offset = going.offset + going.posted as usize;
            let number = connection.queue_pair.post_read(remote, region, offset, bytes as usize)?;
            POSTED.fetch_add(1, Ordering::Relaxed);
            going.posted += bytes;
            self.posted.push_back(Posted { number, serial: going.serial, share });
            self.turn = at + 1;
        }
        Ok(())
    }
}

impl VerbsLink {
    /// Memory for a message, if the peer can read it and it is long enough.
    pub(super) fn lend_memory(&self, bytes: usize) -> Option<Box<dyn Lendable>> {
        let buffers = self.buffers.as_ref().filter(|_| bytes >= LENT_FROM)?;
        buffers.lend(bytes).map(|memory| Box::new(memory) as _)
    }

    /// Begins to read a message; dropping the fetch refuses it.
    pub(super) fn begin_fetch(&self, fetch: Fetch) {
        let Some(buffers) = &self.buffers else { return };
        let Ok(length) = usize::try_from(fetch.offer().length) else { return };
        if !buffers.is_of(fetch.offer().epoch) {
            return;
        }
        let Some((sink, remains)) = buffers.sink(fetch.prefix(), length) else { return };
        let mut state = self.state.lock();
        if state.connection.is_none() || self.inbox.failure().is_some() {
            drop(state);
            return buffers.forget(remains);
        }
        state.fetches.begin(fetch, sink, remains, buffers);
        self.advance_fetches(&mut state);
        drop(state);
        self.attend_sleeper();
    }

    /// Whether there is something to do for those that go on.
    #[inline]
    pub(super) fn is_read_due(&self) -> bool {
        self.inbox.read() >= self.read_due.load(Ordering::Relaxed)
            || self.inbox.completed() >= self.room_due.load(Ordering::Relaxed)
    }

    /// Does it.
    pub(super) fn advance_fetches(&self, state: &mut State) {
        let completed = self.inbox.completed();
        let State { connection: Some(connection), fetches, .. } = state else { return };
        if fetches.is_empty() {
            return;
        }
        if let Err(error) = fetches.advance(connection, &self.inbox) {
            self.inbox.fail(Self::rdma_error(error));
        }
        let first = fetches.posted.front().map(|posted| posted.number);
        self.read_due.store(first.unwrap_or(u64::MAX), Ordering::Relaxed);
        // Without one on its way, another request's end makes room for the next.
        let room = first.is_none() && !fetches.is_empty();
        self.room_due.store(if room { completed + 1 } else { u64::MAX }, Ordering::Relaxed);
        self.update_wants(state);
    }
}
