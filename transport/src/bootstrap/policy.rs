//! Which links may be used, and what is said of those that are not.

use std::fmt;

use super::BootstrapError;
use super::hello::{Hello, WireRefusal};
use crate::link::LinkKind;

/// Whether a kind of link may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkPolicy {
    /// Use it if it can be had, else a slower one, and say why.
    #[default]
    Prefer,
    /// Use it or fail with the reason.
    Require,
    /// Never use it.
    Off,
}

/// A policy for each kind of link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkPolicies {
    /// Shared memory.
    pub shm: LinkPolicy,
    /// RDMA.
    pub rdma: LinkPolicy,
    /// TCP. The bootstrap always runs over TCP; this is about calls.
    pub tcp: LinkPolicy,
}

impl LinkPolicies {
    /// Sets the policy for one kind of link.
    #[must_use]
    pub fn with(mut self, kind: LinkKind, policy: LinkPolicy) -> Self {
        match kind {
            LinkKind::Shm => self.shm = policy,
            LinkKind::Rdma => self.rdma = policy,
            LinkKind::Tcp => self.tcp = policy,
            LinkKind::Sim => {}
        }
        self
    }

    /// Why `side`, which has these policies, will not have calls on this kind of link; `None` when it may.
    pub(super) fn refusal(&self, kind: LinkKind, side: &str) -> Option<String> {
        let policies = [(LinkKind::Shm, self.shm), (LinkKind::Rdma, self.rdma), (LinkKind::Tcp, self.tcp)];
        if policies.contains(&(kind, LinkPolicy::Off)) {
            return Some(format!("switched off on {side}"));
        }
        let required =
            policies.into_iter().find(|(other, policy)| *policy == LinkPolicy::Require && *other != kind);
        required.map(|(other, _)| format!("{side} requires {other}"))
    }

    /// Whether calls may begin on TCP and move to RDMA when that is up.
    #[cfg(feature = "rdma")]
    pub(super) fn allow_upgrades(&self) -> bool {
        self.rdma == LinkPolicy::Prefer && self.refusal(LinkKind::Tcp, "").is_none()
    }

    /// Whether a connection over `chosen`, after these refusals, is acceptable.
    pub(super) fn verdict(
        &self,
        chosen: LinkKind,
        refusals: &[Refusal],
        peer: &str,
    ) -> Result<(), BootstrapError> {
        let reason = |kind| {
            let said = refusals.iter().find(|refusal: &&Refusal| refusal.kind == kind);
            said.map_or_else(
                || match kind {
                    LinkKind::Rdma => {
                        "this build has no RDMA; build both sides with the cargo feature rdma".to_owned()
                    }
                    _ => "this build or host does not have it".to_owned(),
                },
                |refusal| refusal.reason.clone(),
            )
        };
        for (kind, policy) in
            [(LinkKind::Shm, self.shm), (LinkKind::Rdma, self.rdma), (LinkKind::Tcp, self.tcp)]
        {
            if policy == LinkPolicy::Require && kind != chosen {
                return Err(BootstrapError::Required { peer: peer.to_owned(), kind, reason: reason(kind) });
            }
            if policy == LinkPolicy::Off && kind == chosen {
                let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
                let reasons = format!("{kind} is switched off; {}", reasons.join("; "));
                return Err(BootstrapError::NoLink { peer: peer.to_owned(), reasons });
            }
        }
        Ok(())
    }
}

/// A better link that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The link.
    pub kind: LinkKind,
    /// Why it is not used and what would help.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.reason)
    }
}

impl Refusal {
    pub(super) fn to_wire(&self) -> WireRefusal {
        WireRefusal { link: self.kind.to_string(), reason: self.reason.clone() }
    }

    /// What a server says against a kind of link.
    pub(super) fn said(server: &Hello, kind: LinkKind) -> Option<Self> {
        server.refusals.iter().filter_map(Self::from_wire).find(|said| said.kind == kind)
    }

    /// Reads what a peer said; `None` for a kind that this build does not know. The reason is cut to what fits a log
    /// line.
    pub(super) fn from_wire(wire: &WireRefusal) -> Option<Self> {
        let kind = [LinkKind::Shm, LinkKind::Rdma, LinkKind::Tcp]
            .into_iter()
            .find(|kind| kind.to_string() == wire.link)?;
        Some(Self { kind, reason: wire.reason.chars().take(500).collect() })
    }
}
