//! Two links that take turns: TCP, on which a connection begins and to which it can always return, and a fast link that
//! takes over from it when it has come up.
//!
//! ```text
//!   TCP     frames … SWITCH │ FALLBACK │ frames …
//!                           ╰──────────╯
//!   fast link                frames …  ✗
//! ```
//!
//! Both move the same bytes: one staging ring, one mailbox, absolute positions. So taking over is no more than going on at
//! a position. Each direction goes through the same *crossing*, which is numbered by its epoch:
//!
//! 1. The frame SWITCH is the last that travels on TCP. What is behind it in the ring travels on the fast link; the
//!    receiver takes nothing from that before it has read SWITCH.
//! 2. When the fast link dies, each side first sees to it that nothing can be written into its mailbox any more, and then
//!    sends FALLBACK, with the position up to which it has taken what was announced, in the place of SWITCH's successor on
//!    TCP. The other goes on sending from there, on TCP. It still has all of that: it frees no more than was consumed.
//!
//! A side whose fast link does not come up, or is gone, answers a SWITCH with both. So a crossing that has begun in one
//! direction ends in both, and neither side needs to know at which moment the other has noticed what.
//!
//! What the fast link is, and when it is tried (again), is for others to decide: they speak with the peer in frames of
//! [`Kind::Upgrade`](crate::frame::Kind), and say when a link is up ([`SwitchingLink::install`]) or will not be
//! ([`SwitchingLink::abandon`]).

mod crossing;
mod fallback;
mod outside;
mod sending;
mod traffic;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, mpsc};

use self::crossing::Crossing;
pub(crate) use self::outside::ToSend;
use self::sending::Sending;
use super::tcp::TcpLink;
use super::{Link, LinkKind};
use crate::ring::Position;

/// Longest message of [`Kind::Upgrade`](crate::frame::Kind) in bytes.
pub const MESSAGE_LIMIT: usize = 1024;
/// Messages that may wait to be acted on: nobody has more to say before it has an answer.
const MESSAGES: usize = 4;

/// What is to be done once, on any thread.
pub struct Then(Box<dyn FnOnce() + Send>);

impl Then {
    /// To do this.
    #[must_use]
    pub fn new(then: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(then))
    }

    /// Does it.
    pub fn call(self) {
        (self.0)();
    }
}

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Then").finish_non_exhaustive()
    }
}

/// A link that can take over from TCP, over rings that are in use. Dropped or closed before it has begun, it does not say
/// so to the peer: that would be the end of the connection.
pub trait FastLink: Link {
    /// What this side sends begins at this position. Before, nothing is flushed, polled or acknowledged.
    fn begin(&self, from: Position);

    /// Gives the link up, without a goodbye. `then` is called when nothing can be written into the mailbox through it any
    /// more.
    fn take_down(&self, then: Then);

    /// Whether the peer has said that it ends the connection.
    fn said_goodbye(&self) -> bool;

    /// [Closes](Link::close) it. `then` is called when what was flushed has arrived, as far as that can be known.
    fn close_then(&self, then: Then);

    /// Breaks what is under the link, as a fault would. For tests.
    #[doc(hidden)]
    fn sever(&self) {}
}

/// How two links have taken turns so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// Times that the fast link took over.
    pub upgrades: u64,
    /// Times that it died and TCP went on.
    pub fallbacks: u64,
    /// Times that it was tried and did not come up.
    pub failures: u64,
    /// Why it is not in use; `None` while it is, and before it was tried.
    pub reason: Option<String>,
}

/// TCP, and a link that takes over from it. See the [module](self).
///
/// Locks are taken in the order of the fields.
pub struct SwitchingLink {
    /// How far the change of links has come. Taken by whoever receives, and by those who bring a fast link up.
    crossing: Mutex<Crossing>,
    sending: Mutex<Sending>,
    /// From when it is up until it is given up.
    fast: RwLock<Option<Arc<dyn FastLink>>>,
    news: Mutex<News>,
    has_news: AtomicBool,
    base: Arc<TcpLink>,
    /// The peer's address, and the device that the fast link runs on, for people.
    peer: String,
    device: OnceLock<String>,
    /// What this side sends does not go to TCP at present.
    left_base: AtomicBool,
    /// What is received comes from the fast link.
    receives_fast: AtomicBool,
    /// The socket may have something that is not for the mailbox.
    base_due: AtomicBool,
    /// A flush is due even if nothing is new in the ring.
    wants_flush: AtomicBool,
    /// How far the peer can have been told of frames by the last fast link.
    announced: AtomicU64,
    /// How far the peer says that it has consumed.
    peer_consumed: AtomicU64,
    /// There is something to be sent in a frame, and whether that has found no room.
    has_frames: AtomicBool,
    no_room: AtomicBool,
    outbox: Mutex<VecDeque<Vec<u8>>>,
    inbox: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    history: Mutex<History>,
    /// Notified when a crossing has ended, the mailbox has been [protected](SwitchingLink::protect), or all has ended.
    changed: Notify,
    /// Frames that were not copied are still held.
    protects: AtomicBool,
    closed: AtomicBool,
    waker: Mutex<Option<Waker>>,
    this: Weak<Self>,
}

/// What others than the receiver have found out.
#[derive(Debug, Default)]
struct News {
    /// Why the fast link is to be given up.
    lost: Option<String>,
    /// It has been taken down.
    gone: bool,
}

impl fmt::Debug for SwitchingLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchingLink")
            .field("base", &self.base)
            .field("fast", &self.fast)
            .finish_non_exhaustive()
    }
}

/// What the peer says in frames of [`Kind::Upgrade`](crate::frame::Kind), in order. It ends with the link.
#[derive(Debug)]
pub struct Messages(mpsc::Receiver<Vec<u8>>);

impl Messages {
    /// The next one; `None` when the link has ended.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().await
    }
}

impl SwitchingLink {
    /// A link that begins on TCP, and what the peer will say of another.
    #[must_use]
    pub fn new(base: TcpLink) -> (Arc<Self>, Messages) {
        let (inbox, messages) = mpsc::channel(MESSAGES);
        let peer = base.peer().map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        let link = Arc::new_cyclic(|this| Self {
            crossing: Mutex::default(),
            sending: Mutex::default(),
            fast: RwLock::new(None),
            news: Mutex::default(),
            has_news: AtomicBool::new(false),
            base: Arc::new(base),
            peer,
            device: OnceLock::new(),
            left_base: AtomicBool::new(false),
            receives_fast: AtomicBool::new(false),
            base_due: AtomicBool::new(false),
            wants_flush: AtomicBool::new(false),
            announced: AtomicU64::new(0),
            peer_consumed: AtomicU64::new(0),
            has_frames: AtomicBool::new(false),
            no_room: AtomicBool::new(false),
            outbox: Mutex::default(),
            inbox: Mutex::new(Some(inbox)),
            history: Mutex::default(),
            changed: Notify::new(),
            protects: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            waker: Mutex::new(None),
            this: Weak::clone(this),
        });
        (link, Messages(messages))
    }

    /// The kind of the link that sends at present.
    fn present_kind(&self) -> LinkKind {
        match &*self.fast.read() {
            Some(fast) if self.left_base.load(std::sync::atomic::Ordering::Acquire) => fast.kind(),
            _ => LinkKind::Tcp,
        }
    }
}
