//! The two ends of a connection before and after it is one.

use std::sync::Arc;

use super::ability::sends_immediates;
use super::bring_up::BringUpError;
use super::desk::{Desk, SLOTS};
use super::lane::Lane;
use super::{Immediates, Settings, VerbsLink};
use crate::endpoint::{Agreed, Endpoint};
use crate::link::credit::FEWEST_NOTIFICATIONS;
use crate::memory::Region;
use crate::ring::{Mailbox, RingSize, Staging};
use crate::verbs::{Access, MemoryRegion, Once, ProtectionDomain, Registrable, Twice};

/// What one side tells the other about its end, over the bootstrap connection and nowhere else: the keys open memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Where its mailbox is, both mappings of it, and the key to it.
    pub ring_address: u64,
    /// See above.
    pub ring_key: u32,
    /// Where its desk is, a page for credit records.
    pub desk_address: u64,
    /// The key to that.
    pub desk_key: u32,
    /// Bytes in the ring.
    pub ring_bytes: u32,
    /// Notifications that may be on their way to it.
    pub notifications: u32,
    /// Whether its device sends and takes immediates, and it wants to.
    pub immediates: bool,
    /// Whether it lends large messages, and reads those that are lent to it.
    pub reads: bool,
}

impl End {
    /// Checks what the peer says of its end.
    pub(super) fn check(&self, ring: RingSize) -> Result<(), BringUpError> {
        let bytes = ring.bytes();
        if self.ring_bytes as usize != bytes {
            return Err(BringUpError::Ring { ours: bytes, theirs: self.ring_bytes as usize });
        }
        if self.ring_address.checked_add(2 * bytes as u64).is_none() {
            return Err(BringUpError::Implausible("its mailbox reaches beyond its memory"));
        }
        if !(FEWEST_NOTIFICATIONS..=1 << 20).contains(&self.notifications) {
            return Err(BringUpError::Implausible(
                "it grants too few notifications, or more than a device can",
            ));
        }
        Ok(())
    }
}

/// Memory for one end, registered but not connected. A clone is the same memory: of all clones one may be connected.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) lane: Arc<Lane>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) settings: Settings,
    pub(super) immediates: bool,
    pub(super) reads: bool,
    pub(super) notifications: u32,
    pub(super) staging: Arc<Region>,
    pub(super) staging_memory: Arc<MemoryRegion>,
    pub(super) mailbox: Arc<Region>,
    pub(super) mailbox_memory: Arc<MemoryRegion>,
    pub(super) desk: Arc<Desk>,
    pub(super) desk_memory: Arc<MemoryRegion>,
    /// The rings are in use, and go on with this link when it takes over.
    pub(super) waits: bool,
}

impl Prepared {
    /// Makes and registers the memory for one end. Peers of different identity get different protection domains: then the
    /// device keeps each from the others' memory.
    ///
    /// # Errors
    /// When memory cannot be had or registered.
    pub async fn new(
        lane: &Arc<Lane>,
        domain: &Arc<ProtectionDomain>,
        settings: &Settings,
    ) -> Result<Self, BringUpError> {
        let staging = Arc::new(Region::create(settings.ring)?);
        let mailbox = Arc::new(Region::create(settings.ring)?);
        Self::register(lane, domain, settings, staging, mailbox, false).await
    }

    /// Registers rings that are in use on another link, for one that can take over. The peer must not be told before
    /// nobody relies on what lies in the mailbox.
    ///
    /// # Errors
    /// When memory cannot be had or registered.
    pub async fn over(
        lane: &Arc<Lane>,
        domain: &Arc<ProtectionDomain>,
        settings: &Settings,
        staging: &Arc<Region>,
        mailbox: &Arc<Region>,
    ) -> Result<Self, BringUpError> {
        Self::register(lane, domain, settings, Arc::clone(staging), Arc::clone(mailbox), true).await
    }

    async fn register(
        lane: &Arc<Lane>,
        domain: &Arc<ProtectionDomain>,
        settings: &Settings,
        staging: Arc<Region>,
        mailbox: Arc<Region>,
        waits: bool,
    ) -> Result<Self, BringUpError> {
        let immediates =
            settings.immediates == Immediates::WherePossible && sends_immediates(lane.context()).await;
        let limits = lane.context().limits();
        let desk = Arc::new(Desk::new()?);
        let register = |memory: Arc<dyn Registrable>, access| MemoryRegion::new(domain, memory, access);
        Ok(Self {
            lane: Arc::clone(lane),
            domain: Arc::clone(domain),
            settings: settings.clone(),
            immediates,
            reads: settings.reads && limits.reads_sent > 0 && limits.reads_served > 0,
            notifications: lane.settings().notifications.min(SLOTS),
            staging_memory: register(Arc::new(Once(Arc::clone(&staging))), Access::Local)?,
            mailbox_memory: register(Arc::new(Twice(Arc::clone(&mailbox))), Access::RemoteWrite)?,
            desk_memory: register(desk.page(), Access::RemoteWrite)?,
            staging,
            mailbox,
            desk,
            waits,
        })
    }

    /// What to tell the peer.
    #[must_use]
    pub fn end(&self) -> End {
        End {
            ring_address: self.mailbox_memory.address(),
            ring_key: self.mailbox_memory.remote_key(),
            desk_address: self.desk_memory.address(),
            desk_key: self.desk_memory.remote_key(),
            ring_bytes: self.settings.ring.bytes() as u32,
            notifications: self.notifications,
            immediates: self.immediates,
            reads: self.reads,
        }
    }
}

/// One end of a connection that is up.
#[derive(Debug)]
pub struct VerbsEnd {
    /// Its own ring.
    pub staging: Staging,
    /// What the peer writes.
    pub mailbox: Arc<Mailbox>,
    /// The link between them.
    pub link: Arc<VerbsLink>,
}

impl VerbsEnd {
    /// The link alone, to take over from another one over rings that are [in use](Prepared::over).
    #[must_use]
    pub fn into_link(self) -> Arc<VerbsLink> {
        self.link
    }

    /// Joins them.
    #[must_use]
    pub fn into_endpoint(self, agreed: Agreed) -> Endpoint {
        Endpoint::new(self.staging, self.mailbox, self.link, agreed)
    }
}
