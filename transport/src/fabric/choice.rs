//! Which GID a connection from a local address uses, and why none of the others.
//!
//! The connection manager (`rdma_cm`) decides; this explains. It goes by the same rules: on RoCE the GID is the one made
//! of the address, for the interface that has the address, of the version that the port uses; on InfiniBand and iWARP
//! it is the one made of the hardware address of that interface; where several fit, the device that was registered
//! first. It does not look at the port's state, and would choose a port that is down: here, that is a reason not to.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::{Device, Fabric, Fact, Gid, Local, Port, PortState, Protocol};

/// What was chosen, and why each other entry was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The address that it is for. Without one nothing decides between the usable entries, and the first is taken.
    pub local: Option<Local>,
    /// The GIDs of all ports: the chosen one first, if any was, then those that came closest.
    pub entries: Vec<Entry>,
}

/// A GID, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: u32,
    /// The GID.
    pub gid: Gid,
    /// Whether it is used.
    pub verdict: Verdict,
}

/// Why a GID is used or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is used: it is made of the address itself.
    MadeOfAddress,
    /// It is used: it is made of the hardware address of the interface that has the address.
    MadeOfInterface(String),
    /// It is used: it is the first that can be.
    FirstUsable,
    /// An earlier entry fits as well.
    EarlierFits,
    /// The port uses this other version of RoCE, which is better or was made its default.
    OtherVersion(Protocol),
    /// It fits, but no subnet manager has given the port a LID.
    NoSubnetManager,
    /// It fits, but the port carries nothing.
    PortState(PortState),
    /// It is made of the address, but for another interface than has it.
    OtherInterface {
        /// The GID's.
        of: String,
        /// The one that has the address.
        holder: String,
    },
    /// Whether it fits cannot be said, as nobody says which interface has the address.
    HolderUnknown(String),
    /// The address is of an interface that does not belong to the port.
    NotOfPort {
        /// The interface that has the address.
        holder: String,
    },
    /// It is made of another address.
    OtherAddress,
    /// It is good within one Ethernet segment only, and made of no address that was asked for.
    LinkLocal,
    /// The connection manager does not serve its protocol.
    NotServed,
    /// No interface of this host, in this network namespace, has the address.
    NobodyHas(IpAddr),
    /// The address is for talking within this host.
    Loopback(IpAddr),
}

impl Verdict {
    /// Whether the entry is used.
    #[must_use]
    pub fn is_chosen(&self) -> bool {
        self.distance() == 0
    }

    /// How far the entry is from being used.
    fn distance(&self) -> u8 {
        match self {
            Self::MadeOfAddress | Self::MadeOfInterface(_) | Self::FirstUsable => 0,
            Self::EarlierFits => 1,
            Self::NoSubnetManager | Self::PortState(_) => 2,
            Self::OtherVersion(_) => 3,
            Self::OtherInterface { .. } | Self::HolderUnknown(_) => 4,
            Self::OtherAddress | Self::LinkLocal => 5,
            Self::NotOfPort { .. } | Self::NobodyHas(_) | Self::Loopback(_) => 6,
            Self::NotServed => 7,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MadeOfAddress => write!(f, "it is made of the address"),
            Self::MadeOfInterface(holder) => {
                write!(f, "it is made of the hardware address of {holder}, which has the address")
            }
            Self::FirstUsable => {
                write!(f, "it is the first that can be used; without an address nothing decides")
            }
            Self::EarlierFits => write!(f, "an earlier one fits as well"),
            Self::OtherVersion(version) => write!(f, "rdma_cm uses {version} on this port"),
            Self::NoSubnetManager => {
                write!(f, "the port has no LID: no subnet manager has configured the fabric")
            }
            Self::PortState(state) => write!(f, "the port is {state}"),
            Self::OtherInterface { of, holder } => write!(f, "it is for {of}, and {holder} has the address"),
            Self::HolderUnknown(why) => write!(f, "it is not known which interface has the address: {why}"),
            Self::NotOfPort { holder } => write!(f, "{holder}, which has the address, is not on this port"),
            Self::OtherAddress => write!(f, "it is made of another address"),
            Self::LinkLocal => write!(f, "it is link-local, not made of an IP address"),
            Self::NotServed => write!(f, "the connection manager does not serve the protocol"),
            Self::NobodyHas(address) => write!(f, "no interface in this network namespace has {address}"),
            Self::Loopback(address) => write!(f, "{address} is a loopback address, which no device has"),
        }
    }
}

/// Chooses for a local address, or without one.
#[must_use]
pub fn choose(fabric: &Fabric, local: Option<&Local>) -> Choice {
    let mut entries = Vec::new();
    let mut is_chosen = false;
    let ports = fabric.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    for (device, port) in ports {
        for gid in &port.gids {
            let fits = fits(fabric, port, gid, local);
            let fits = fits.and_then(|verdict| usable(port, gid).map(|()| verdict));
            let verdict = match fits {
                Ok(_) if is_chosen => Verdict::EarlierFits,
                Ok(chosen) => {
                    is_chosen = true;
                    chosen
                }
                Err(reason) => reason,
            };
            entries.push(entry(device, port, gid, verdict));
        }
    }
    // Stable: otherwise in the order of devices, ports and indices.
    entries.sort_by_key(|entry| entry.verdict.distance());
    Choice { local: local.cloned(), entries }
}

fn entry(device: &Device, port: &Port, gid: &Gid, verdict: Verdict) -> Entry {
    Entry { device: device.name.clone(), port: port.number, gid: gid.clone(), verdict }
}

/// Whether a GID belongs to the address.
fn fits(fabric: &Fabric, port: &Port, gid: &Gid, local: Option<&Local>) -> Result<Verdict, Verdict> {
    if matches!(gid.protocol, Protocol::Other | Protocol::Unknown) {
        return Err(Verdict::NotServed);
    }
    let Some(local) = local else {
        return if gid.is_link_local() { Err(Verdict::LinkLocal) } else { Ok(Verdict::FirstUsable) };
    };
    if local.address.is_loopback() {
        return Err(Verdict::Loopback(local.address));
    }
    if local.interface == Fact::Unknown {
        return Err(Verdict::NobodyHas(local.address));
    }
    if gid.protocol.is_roce() {
        return match (gid.interface.known(), local.interface.known()) {
            _ if gid.address() != Some(local.address) && gid.is_link_local() => Err(Verdict::LinkLocal),
            _ if gid.address() != Some(local.address) => Err(Verdict::OtherAddress),
            (Some(of), Some(holder)) if of != holder => {
                Err(Verdict::OtherInterface { of: of.clone(), holder: holder.clone() })
            }
            _ => Ok(Verdict::MadeOfAddress),
        };
    }
    let holder = match &local.interface {
        Fact::Known(holder) => holder,
        Fact::Unreadable(why) => return Err(Verdict::HolderUnknown(why.clone())),
        Fact::Unknown => return Err(Verdict::NobodyHas(local.address)),
    };
    let mut interfaces = fabric.interfaces.iter();
    let is_hardware = interfaces.any(|one| one.name == *holder && one.is_hardware_of(gid.value));
    if is_hardware || gid.interface.known() == Some(holder) {
        Ok(Verdict::MadeOfInterface(holder.clone()))
    } else if port.interfaces.contains(holder) {
        Err(Verdict::OtherAddress)
    } else {
        Err(Verdict::NotOfPort { holder: holder.clone() })
    }
}

/// Whether a GID that fits can be used.
fn usable(port: &Port, gid: &Gid) -> Result<(), Verdict> {
    // The manager looks for this version only, whichever has a GID of the address.
    let version = port.default_roce.known().copied().unwrap_or(port.protocol);
    if matches!(gid.protocol, Protocol::RoceV1 | Protocol::RoceV2) && gid.protocol != version {
        return Err(Verdict::OtherVersion(version));
    }
    match port.state.known() {
        _ if port.lacks_subnet_manager() && port.state != Fact::Known(PortState::Down) => {
            Err(Verdict::NoSubnetManager)
        }
        Some(state) if !state.carries_data() => Err(Verdict::PortState(*state)),
        _ => Ok(()),
    }
}

impl Choice {
    /// The entry that is used.
    #[must_use]
    pub fn chosen(&self) -> Option<&Entry> {
        self.entries.first().filter(|entry| entry.verdict.is_chosen())
    }

    /// How this differs from what the connection manager has chosen; `None` when it does not. iWARP puts no GID on the
    /// wire, so that device and port are all that counts there.
    #[must_use]
    pub fn difference(&self, device: &str, port: u32, gid: Option<Ipv6Addr>) -> Option<String> {
        let cm = Picked { device, port, gid };
        let Some(chosen) = self.chosen() else {
            let mut of_cm =
                self.entries.iter().filter(|entry| (entry.device.as_str(), entry.port) == (device, port));
            let same = of_cm.clone().find(|entry| Some(entry.gid.value) == gid);
            let why = same.or_else(|| of_cm.next());
            let why =
                why.map_or_else(|| "sysfs has no such entry".to_owned(), |entry| entry.verdict.to_string());
            return Some(format!("rdma_cm chose {cm}, by sysfs nothing can be used: {why}"));
        };
        let gid = gid.filter(|_| chosen.gid.protocol != Protocol::Iwarp);
        let is_same =
            chosen.device == device && chosen.port == port && gid.is_none_or(|gid| gid == chosen.gid.value);
        (!is_same).then(|| format!("rdma_cm chose {cm}, by sysfs it is {chosen}: {}", chosen.verdict))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} port {} GID {} ({}, {})",
            self.device, self.port, self.gid.index, self.gid, self.gid.protocol
        )
    }
}

struct Picked<'a> {
    device: &'a str,
    port: u32,
    gid: Option<Ipv6Addr>,
}

impl fmt::Display for Picked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.device, self.port)?;
        self.gid.map_or(Ok(()), |gid| write!(f, " GID {gid}"))
    }
}
