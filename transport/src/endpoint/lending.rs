//! Messages that one side lends to the other: see [`rendezvous`](crate::rendezvous).

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Endpoint, SendError};
use crate::frame::{CallId, FrameError, HEADER, Header, Kind};
use crate::link::LinkError;
use crate::rendezvous::{Fetch, Fetching, Landed, Landings, Lendable, MOST_LENT, Offer};
use crate::ring::Room;

/// What RENDEZVOUS_DONE says in place of a status.
const READ: u16 = 0;
const NOT_READ: u16 = 1;

/// What is lent, and what is being read of what the peer lends.
#[derive(Debug, Default)]
pub(super) struct Lending {
    lent: Mutex<Lent>,
    landings: Arc<Landings>,
    /// Messages that the peer has lent and this side has not answered for.
    unanswered: AtomicUsize,
    /// Answers that have found no room in the ring yet.
    answers: Mutex<VecDeque<(CallId, u16)>>,
    has_answers: AtomicBool,
}

#[derive(Debug, Default)]
struct Lent {
    closed: bool,
    messages: HashMap<CallId, LentMessage>,
}

/// Memory that the peer may be reading.
#[derive(Debug)]
struct LentMessage {
    _memory: Arc<dyn Lendable>,
    /// Unless the call was given up.
    answer: Option<oneshot::Sender<bool>>,
}

/// The peer's answer to a message that was lent to it.
#[derive(Debug)]
pub struct Answer(oneshot::Receiver<bool>);

impl Answer {
    /// Waits for it: whether the peer has the message. If not, it expects it in fragments.
    ///
    /// # Errors
    /// When the connection dies, or the peer has given the call up.
    pub async fn wait(self, endpoint: &Endpoint) -> Result<bool, SendError> {
        self.0.await.map_err(|_| {
            let reason = endpoint.failure().cloned();
            SendError::Dead(reason.unwrap_or(LinkError::Closed("the peer has given the call up")))
        })
    }
}

impl Lending {
    /// The connection has ended: nobody is answered any more.
    pub(super) fn close(&self) {
        let mut lent = self.lent.lock();
        lent.closed = true;
        let messages = std::mem::take(&mut lent.messages);
        drop(lent);
        drop(messages);
    }
}

impl Endpoint {
    /// Memory for a message of so many bytes that the peer can read by itself; `None` when the link has none now, or the
    /// message is too short for it to be worth it.
    #[must_use]
    pub fn lend(&self, bytes: usize) -> Option<Box<dyn Lendable>> {
        self.link.lend(bytes)
    }

    /// Notes that the peer is about to be told where a call's message lies: called right before that frame is committed.
    /// `None` when too much is lent already.
    #[must_use]
    pub fn lent(&self, call: CallId, memory: &Arc<dyn Lendable>) -> Option<Answer> {
        let mut lent = self.lending.lent.lock();
        if lent.closed || lent.messages.len() >= MOST_LENT {
            return None;
        }
        match lent.messages.entry(call) {
            // The peer uses an id twice.
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                let (answer, answered) = oneshot::channel();
                place.insert(LentMessage { _memory: Arc::clone(memory), answer: Some(answer) });
                Some(Answer(answered))
            }
        }
    }

    /// Messages that are lent and not answered for.
    #[must_use]
    pub fn lent_messages(&self) -> usize {
        self.lending.lent.lock().messages.len()
    }

    /// RENDEZVOUS_DONE has come: the memory may be used again.
    ///
    /// # Errors
    /// When nothing was lent for that call, or the answer is none.
    pub fn answered(&self, header: &Header) -> Result<(), FrameError> {
        let has_it = match header.method_or_status {
            READ => true,
            NOT_READ => false,
            _ => return Err(FrameError::BadRendezvous { rule: "RENDEZVOUS_DONE says neither yes nor no" }),
        };
        let message = self.lending.lent.lock().messages.remove(&header.call);
        let Some(message) = message else {
            return Err(FrameError::BadRendezvous {
                rule: "RENDEZVOUS_DONE for a call that has lent nothing",
            });
        };
        if let Some(answer) = message.answer {
            // Nobody there any more: the call was given up.
            let _ = answer.send(has_it);
        }
        Ok(())
    }

    /// The peer has given a call up: if a message of it is lent, nobody waits for the answer any more, though its memory
    /// still does.
    pub fn forget_lent(&self, call: CallId) {
        if let Some(message) = self.lending.lent.lock().messages.get_mut(&call) {
            message.answer = None;
        }
    }

    /// Prepares to read a message that the peer lends; `prefix` is to stand before it. To be [begun](Self::begin_fetch);
    /// its end is [delivered](Self::land), and told to the peer.
    ///
    /// # Errors
    /// When the peer lends too many at a time.
    pub fn fetch(&self, call: CallId, offer: Offer, prefix: Bytes) -> Result<(Fetch, Fetching), FrameError> {
        self.count_unanswered()?;
        Ok(Fetch::new(call, offer, prefix, &self.lending.landings))
    }

    /// Begins to read it. Only whoever receives does so, who will look what has become of it.
    pub fn begin_fetch(&self, fetch: Fetch) {
        self.link.fetch(fetch);
    }

    /// Answers that a message which the peer lends will not be read.
    ///
    /// # Errors
    /// When the peer lends too many at a time.
    pub fn refuse_fetch(&self, call: CallId) -> Result<(), FrameError> {
        self.count_unanswered()?;
        self.answer(call, NOT_READ);
        Ok(())
    }

    /// Delivers fetches that have ended, and answers for them; how many. Whoever receives calls it after each turn.
    pub fn land(&self, deliver: &mut dyn FnMut(Landed)) -> usize {
        let mut count = 0;
        while let Some(landed) = self.lending.landings.take() {
            count += 1;
            let (call, has_it) = (landed.call, landed.message.is_some());
            if has_it {
                self.answer(call, READ);
                self.send_answers();
            }
            deliver(landed);
            // Fragments come right after that: whoever waits for the message must know by then.
            if !has_it {
                self.answer(call, NOT_READ);
                self.send_answers();
            }
        }
        count
    }

    fn count_unanswered(&self) -> Result<(), FrameError> {
        if self.lending.unanswered.fetch_add(1, Ordering::Relaxed) >= MOST_LENT {
            return Err(FrameError::BadRendezvous { rule: "more is lent at a time than may be" });
        }
        Ok(())
    }

    fn answer(&self, call: CallId, answer: u16) {
        self.lending.answers.lock().push_back((call, answer));
        self.lending.has_answers.store(true, Ordering::Release);
    }

    /// Sends what answers there are, as far as there is room.
    #[inline]
    pub(super) fn send_answers(&self) {
        if self.lending.has_answers.load(Ordering::Acquire) {
            self.send_answers_now();
        }
    }

    #[cold]
    fn send_answers_now(&self) {
        let mut answers = self.lending.answers.lock();
        while let Some((call, answer)) = answers.front().copied() {
            let Ok(claim) = self.claim(HEADER, Room::Control) else { break };
            answers.pop_front();
            self.lending.unanswered.fetch_sub(1, Ordering::Relaxed);
            let header = Header::new(Kind::RendezvousDone, HEADER as u32);
            claim.commit(&Header { call, method_or_status: answer, ..header });
        }
        self.lending.has_answers.store(!answers.is_empty(), Ordering::Release);
        drop(answers);
        self.flush();
    }

    /// Whether something has landed that is to be taken before going to sleep. If there is no room for answers, the task is
    /// woken when there is.
    pub(super) fn attend_to_answers(&self, cx: &Context<'_>) -> bool {
        if self.lending.has_answers.load(Ordering::Acquire) {
            self.starving.register(cx.waker());
            // Again, as space that was freed in between has woken nobody.
            self.send_answers_now();
        }
        self.lending.landings.is_any()
    }
}
