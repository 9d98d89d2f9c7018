//! Devices, ports and GIDs.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::Fact;

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// What kind of node it is.
    pub node_type: Fact<NodeType>,
    /// What its driver or the administrator calls it.
    pub description: Fact<String>,
    /// Version of its firmware; software devices have none.
    pub firmware: Fact<String>,
    /// The node's GUID, as the kernel writes it.
    pub node_guid: Fact<String>,
    /// Where it is on the PCI bus; software devices are nowhere.
    pub pci_address: Fact<String>,
    /// The driver of its PCI function.
    pub driver: Fact<String>,
    /// Its node below `/dev/infiniband`, through which programs use it.
    pub node: Option<DeviceNode>,
    /// Its ports, by number.
    pub ports: Vec<Port>,
}

/// What programs open to use a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Such as `uverbs0`.
    pub name: String,
    /// Whether it is there, which in a container it may not be.
    pub is_present: bool,
}

impl DeviceNode {
    /// Its number: the order in which devices were registered.
    pub(super) fn number(&self) -> Option<u32> {
        self.name.strip_prefix("uverbs")?.parse().ok()
    }
}

/// What kind of node a device is, for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// A switch.
    Switch,
    /// A router.
    Router,
    /// An iWARP adapter.
    Rnic,
    /// Cisco's usNIC, in one of its two forms.
    Usnic,
    /// None of them, as its driver says.
    Unspecified,
}

impl NodeType {
    /// Reads `1: CA`.
    pub(super) fn read(text: &str) -> Option<Self> {
        Some(match number(text)? {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::Rnic,
            5 | 6 => Self::Usnic,
            7 => Self::Unspecified,
            _ => return None,
        })
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ChannelAdapter => "CA",
            Self::Switch => "switch",
            Self::Router => "router",
            Self::Rnic => "RNIC",
            Self::Usnic => "usNIC",
            Self::Unspecified => "unspecified",
        })
    }
}

/// What some drivers say while there is no LID: the permissive one.
const NO_LID: u32 = 0xffff;

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number; the first is 1.
    pub number: u32,
    /// What runs over it.
    pub protocol: Protocol,
    /// What it is plugged into.
    pub link_layer: Fact<LinkLayer>,
    /// Whether it can carry anything.
    pub state: Fact<PortState>,
    /// What the physical layer does, in the kernel's words.
    pub physical_state: Fact<String>,
    /// Its local identifier, which a subnet manager gives to InfiniBand ports; 0 and 0xffff are none.
    pub lid: Fact<u32>,
    /// That of the subnet manager; 0 is none.
    pub sm_lid: Fact<u32>,
    /// Rate, width and speed, in the kernel's words.
    pub rate: Fact<String>,
    /// Partition keys, without empty entries of the table.
    pub partitions: Vec<u16>,
    /// What `rdma_cm` was told to prefer on this port; a RoCE port is rarely told anything.
    pub default_roce: Fact<Protocol>,
    /// Names of the network interfaces that share the port.
    pub interfaces: Vec<String>,
    /// GIDs, without empty entries of the table.
    pub gids: Vec<Gid>,
}

impl Port {
    /// Whether it is known to carry nothing.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.state.known().is_some_and(|state| !state.carries_data())
    }

    /// Whether it is known to have been given no LID, without which nothing finds its way on InfiniBand.
    #[must_use]
    pub fn lacks_subnet_manager(&self) -> bool {
        self.protocol == Protocol::InfiniBand && matches!(self.lid, Fact::Known(0 | NO_LID))
    }
}

/// What a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// Ethernet.
    Ethernet,
    /// Something that the driver does not tell.
    Unspecified,
}

impl LinkLayer {
    pub(super) fn read(text: &str) -> Option<Self> {
        Some(match text {
            "InfiniBand" => Self::InfiniBand,
            "Ethernet" => Self::Ethernet,
            "Unknown" | "Unspecified" => Self::Unspecified,
            _ => return None,
        })
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unspecified => "unspecified",
        })
    }
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// Not said.
    Nop,
    /// No link.
    Down,
    /// A link that no subnet manager has configured yet.
    Init,
    /// Configured, but not in use yet.
    Armed,
    /// In use.
    Active,
    /// In use, while the link is being repaired.
    ActiveDefer,
}

impl PortState {
    /// Reads `4: ACTIVE`.
    pub(super) fn read(text: &str) -> Option<Self> {
        Some(match number(text)? {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => return None,
        })
    }

    /// Whether a port in this state carries data.
    #[must_use]
    pub fn carries_data(self) -> bool {
        matches!(self, Self::Active | Self::ActiveDefer)
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nop => "NOP",
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
        })
    }
}

/// What runs over a port, or belongs to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// InfiniBand.
    InfiniBand,
    /// InfiniBand's protocol in Ethernet frames, which routers do not forward.
    RoceV1,
    /// InfiniBand's protocol in UDP.
    RoceV2,
    /// RoCE of which the version is not known.
    Roce,
    /// RDMA over TCP.
    Iwarp,
    /// Something else, which the connection manager does not serve.
    Other,
    /// What is not known.
    Unknown,
}

impl Protocol {
    pub(super) fn is_roce(self) -> bool {
        matches!(self, Self::RoceV1 | Self::RoceV2 | Self::Roce)
    }

    /// Reads the type of a GID on an Ethernet port.
    pub(super) fn read_roce(text: &str) -> Option<Self> {
        match text {
            "RoCE v2" => Some(Self::RoceV2),
            "IB/RoCE v1" | "RoCE v1" => Some(Self::RoceV1),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Other => "other",
            Self::Unknown => "unknown",
        })
    }
}

/// An entry of a port's GID table: an address that the port has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// The GID.
    pub value: Ipv6Addr,
    /// Which protocol it is for.
    pub protocol: Protocol,
    /// The network interface that it was made for; on InfiniBand there is none.
    pub interface: Fact<String>,
}

impl Gid {
    /// Whether it is made of a hardware address for use without routers. InfiniBand GIDs look like this as well, unless
    /// the subnet has a prefix of its own, and mean nothing by it.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        self.protocol.is_roce() && self.value.is_unicast_link_local()
    }

    /// The IP address that it is made of; only RoCE has such GIDs.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.protocol.is_roce().then(|| IpAddr::V6(self.value).to_canonical())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => address.fmt(f),
            None => self.value.fmt(f),
        }
    }
}

/// The number before the colon, as in `4: ACTIVE`.
fn number(text: &str) -> Option<u32> {
    text.split(':').next()?.trim().parse().ok()
}
