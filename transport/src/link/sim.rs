//! The simulated link: what RDMA does, in one process, on a schedule that a seed decides.
//!
//! ```text
//!   SimLink 0 ── post ──▶ send queue ─┐                  ┌─▶ mailbox of side 1
//!                                     ├─ SimNet::step ──▶├─▶ credit record of side 1
//!   SimLink 1 ── post ──▶ send queue ─┘                  └─▶ completion queue of side 1
//! ```
//!
//! Each side posts work requests to a send queue of bounded length; the [`SimNet`] carries them out, one event at a
//! time, in virtual time. Bytes are copied from the sender's staging ring into the receiver's mailbox, which is other
//! memory, at the moment they land: a sender that reuses its ring too early is found out. Space comes back by
//! acknowledgements in headers and by credit reports, notifications are counted, a full send queue pushes back:
//! what the link does with all this is what a link over verbs does.
//!
//! A schedule is decided by [`SimConfig::seed`] and by nothing else, as long as one thread both uses the links and
//! calls [`SimNet::step`]. For tests with threads, [`SimNet::run`] plays the network card.
//!
//! # Faults
//!
//! They are those that a reliable connection has. What it rules out (bytes that change after they were announced,
//! notifications out of order) is not simulated:
//!
//! - *Tearing*: the bytes of a WRITE land in pieces, in any order, mixed with those of WRITEs behind it; but always
//!   before its notification.
//! - *Loss* on the wire is repaired by sending again, which takes time; when it has failed [`Faults::retries`] times in a
//!   row for one work request, the link is dead for both sides.
//! - *Vanishing*: a notification gets lost after its receive request was used up. The next one makes up for it, because
//!   positions are absolute. The request is gone for good, so only [`Faults::vanishing`] notifications vanish.
//! - *Stalls*, a full send queue, death at a chosen step, and a peer that falls silent ([`SimNet::kill`]).

mod end;
mod net;

use std::sync::Arc;

pub use self::end::SimLink;
pub use self::net::{SimNet, Statistics};
use super::credit::FEWEST_NOTIFICATIONS;
use crate::endpoint::{Agreed, Endpoint};
use crate::immediate::Epoch;
use crate::memory::{MemoryError, Region};
use crate::ring::{Mailbox, RingSize, Staging};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Decides the schedule and the faults.
    pub seed: u64,
    /// Whether a WRITE carries its notification; otherwise a message of four bytes is chained behind it.
    pub immediates: bool,
    /// Size of both rings.
    pub ring: RingSize,
    /// Work requests that a send queue holds.
    pub send_queue: u32,
    /// Receive requests that each side keeps posted, and so notifications that may be on their way to it.
    pub notifications: u32,
    /// Marks the notifications of this link.
    pub epoch: Epoch,
    /// Shortest and longest time that a work request takes, in virtual nanoseconds.
    pub delay: (u64, u64),
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for SimConfig {
    /// A small, fast, faultless network.
    fn default() -> Self {
        Self {
            seed: 0,
            immediates: true,
            ring: RingSize::DEFAULT,
            send_queue: 32,
            notifications: 32,
            epoch: Epoch::default(),
            delay: (800, 2_500),
            faults: Faults::default(),
        }
    }
}

/// What goes wrong. See the [module](self).
#[derive(Clone, Debug)]
pub struct Faults {
    /// The bytes of a WRITE land in pieces.
    pub tear: bool,
    /// Chance in 1,000 that a work request is lost on the wire each time it is sent.
    pub loss: u32,
    /// How often a work request is sent again before the link is given up.
    pub retries: u32,
    /// Notifications that vanish, at random.
    pub vanishing: u32,
    /// Chance in 1,000 that a work request takes a hundred times as long.
    pub stall: u32,
    /// The link dies at this step of the network.
    pub dies_at: Option<u64>,
}

impl Default for Faults {
    /// None.
    fn default() -> Self {
        Self { tear: false, loss: 0, retries: 6, vanishing: 0, stall: 0, dies_at: None }
    }
}

/// What one side needs for its end of a connection.
#[derive(Debug)]
pub struct SimEnd {
    /// Its own ring.
    pub staging: Staging,
    /// Its copy of the peer's.
    pub mailbox: Arc<Mailbox>,
    /// The link between them.
    pub link: Arc<SimLink>,
}

impl SimEnd {
    /// Joins them.
    #[must_use]
    pub fn into_endpoint(self, agreed: Agreed) -> Endpoint {
        Endpoint::new(self.staging, self.mailbox, self.link, agreed)
    }
}

impl SimConfig {
    fn check(&self) {
        assert!(
            self.send_queue >= 4,
            "a WRITE and its notification take two places, and two more are for credit"
        );
        assert!(
            self.notifications >= FEWEST_NOTIFICATIONS,
            "two grants are kept back, and a quarter must be one"
        );
        assert!(self.delay.0 <= self.delay.1, "the shortest delay exceeds the longest");
    }
}

impl SimNet {
    /// The links of two sides whose rings are in use already, ready to take over, and the network between them.
    ///
    /// # Panics
    /// As [`SimNet::pair`], and when the rings are not of the size that was configured.
    #[must_use]
    pub fn between(config: &SimConfig, mailboxes: [Arc<Region>; 2]) -> (Self, [Arc<SimLink>; 2]) {
        assert!(mailboxes.iter().all(|mailbox| mailbox.size() == config.ring));
        Self::connect(config, mailboxes, true)
    }

    fn connect(config: &SimConfig, mailboxes: [Arc<Region>; 2], waits: bool) -> (Self, [Arc<SimLink>; 2]) {
        config.check();
        let net = Self::new(config, mailboxes);
        let links = [0, 1].map(|side| Arc::new(SimLink::new(net.clone(), side, config, waits)));
        (net, links)
    }

    /// Two sides and the network between them.
    ///
    /// # Errors
    /// When no memory can be had for the rings.
    ///
    /// # Panics
    /// When the queues are too short to work with: a send queue of 4 and 8 receive requests are the least.
    pub fn pair(config: SimConfig) -> Result<(Self, SimEnd, SimEnd), MemoryError> {
        let region = || Region::create(config.ring).map(Arc::new);
        let (rings, mailboxes) = ([region()?, region()?], [region()?, region()?]);
        let (net, links) = Self::connect(&config, mailboxes.clone(), false);
        let parts = rings.into_iter().zip(mailboxes).zip(links);
        let mut ends = parts.map(|((ring, mailbox), link)| {
            let mailbox = Arc::new(Mailbox::new(mailbox, Arc::clone(&link) as _, false));
            SimEnd { staging: Staging::new(ring), mailbox, link }
        });
        let (Some(first), Some(second)) = (ends.next(), ends.next()) else {
            unreachable!("two rings were made")
        };
        drop(ends);
        Ok((net, first, second))
    }
}
