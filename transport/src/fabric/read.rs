//! Reading devices from sysfs. What its files say is documented in the kernel's
//! `Documentation/ABI/stable/sysfs-class-infiniband`.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use super::interface::hexadecimal;
use super::tree::{Tree, plain};
use super::{Device, DeviceNode, Fact, Gid, Interface, LinkLayer, NodeType, Port, PortState, Protocol};

/// The devices' folder below the root.
pub(super) const FOLDER: &str = "sys/class/infiniband";
const NODES: &str = "sys/class/infiniband_verbs";

/// All devices, in the order in which they were registered as far as it is known.
pub(super) fn devices(tree: &Tree, interfaces: &[Interface]) -> Fact<Vec<Device>> {
    let names = match tree.names(FOLDER) {
        Fact::Known(names) => names,
        Fact::Unknown => return Fact::Unknown,
        Fact::Unreadable(why) => return Fact::Unreadable(why),
    };
    // The kernel's names are text; others would belong to something else.
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    let mut devices: Vec<_> = names.map(|name| device(tree, interfaces, &name)).collect();
    devices.sort_by_key(|device| device.node.as_ref().and_then(DeviceNode::number).unwrap_or(u32::MAX));
    Fact::Known(devices)
}

fn device(tree: &Tree, interfaces: &[Interface], name: &str) -> Device {
    let text = |file: &str| tree.text(format!("{FOLDER}/{name}/{file}"));
    let node_type = text("node_type").parse(|text| NodeType::read(text));
    let of_function = |key: &str| tree.value(format!("{FOLDER}/{name}/device/uevent"), key);
    let mut numbers: Vec<u32> = numbers(tree, &format!("{FOLDER}/{name}/ports"));
    numbers.sort_unstable();
    let shared =
        Shared { tree, interfaces, name, node_type: node_type.known().copied(), ports: numbers.len() };
    Device {
        name: plain(name),
        node_type,
        description: text("node_desc"),
        firmware: text("fw_ver"),
        node_guid: text("node_guid"),
        pci_address: of_function("PCI_SLOT_NAME"),
        driver: of_function("DRIVER"),
        node: node(tree, name),
        ports: numbers.into_iter().map(|number| shared.port(number)).collect(),
    }
}

fn numbers(tree: &Tree, folder: &str) -> Vec<u32> {
    let Fact::Known(names) = tree.names(folder) else { return Vec::new() };
    names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect()
}

fn node(tree: &Tree, device: &str) -> Option<DeviceNode> {
    let Fact::Known(names) = tree.names(NODES) else { return None };
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    let mut nodes = names.filter(|name| name.starts_with("uverbs"));
    let name =
        nodes.find(|name| tree.text(format!("{NODES}/{name}/ibdev")) == Fact::Known(device.to_owned()))?;
    let is_present = tree.has(format!("dev/infiniband/{name}"));
    Some(DeviceNode { name: plain(&name), is_present })
}

/// What the ports of a device have in common.
struct Shared<'a> {
    tree: &'a Tree,
    interfaces: &'a [Interface],
    name: &'a str,
    node_type: Option<NodeType>,
    ports: usize,
}

impl Shared<'_> {
    fn port(&self, number: u32) -> Port {
        let folder = format!("{FOLDER}/{}/ports/{number}", self.name);
        let text = |file: &str| self.tree.text(format!("{folder}/{file}"));
        let link_layer = text("link_layer").parse(|text| LinkLayer::read(text));
        let gids = self.gids(&folder, link_layer.known().copied());
        let of_port = self.protocol(link_layer.known().copied(), None);
        // An Ethernet port has the best version that any of its GIDs has.
        let version = [Protocol::RoceV2, Protocol::RoceV1]
            .into_iter()
            .find(|version| gids.iter().any(|gid| gid.protocol == *version));
        let partitions = numbers(self.tree, &format!("{folder}/pkeys"));
        let partitions = partitions.into_iter().filter_map(|index| {
            let key = text(&format!("pkeys/{index}")).parse(|text| hexadecimal(text));
            key.known().and_then(|key| u16::try_from(*key).ok())
        });
        let partitions: BTreeSet<_> = partitions.filter(|key| *key != 0).collect();
        let setting = format!("sys/kernel/config/rdma_cm/{}/ports/{number}/default_roce_mode", self.name);
        Port {
            number,
            protocol: if of_port == Protocol::Roce { version.unwrap_or(of_port) } else { of_port },
            link_layer,
            state: text("state").parse(|text| PortState::read(text)),
            physical_state: text("phys_state").parse(|text| {
                Some(text.split_once(':').map_or(text.as_str(), |(_, name)| name.trim()).to_owned())
            }),
            lid: text("lid").parse(|text| u32::try_from(hexadecimal(text)?).ok()),
            sm_lid: text("sm_lid").parse(|text| u32::try_from(hexadecimal(text)?).ok()),
            rate: text("rate"),
            partitions: partitions.into_iter().rev().collect(),
            default_roce: self.tree.text(setting).parse(|text| Protocol::read_roce(text)),
            interfaces: self.interfaces_of(number, &gids),
            gids,
        }
    }

    fn gids(&self, folder: &str, link_layer: Option<LinkLayer>) -> Vec<Gid> {
        let mut indices = numbers(self.tree, &format!("{folder}/gids"));
        indices.sort_unstable();
        let gids = indices.into_iter().filter_map(|index| {
            let value = self.tree.text(format!("{folder}/gids/{index}")).parse(|text| text.parse().ok());
            let value: Ipv6Addr = *value.known()?;
            if value.is_unspecified() {
                return None;
            }
            let said = self.tree.text_unless_invalid(format!("{folder}/gid_attrs/types/{index}"));
            Some(Gid {
                index,
                value,
                protocol: self.protocol(link_layer, said.known().map(String::as_str)),
                interface: self.tree.text_unless_invalid(format!("{folder}/gid_attrs/ndevs/{index}")),
            })
        });
        gids.collect()
    }

    /// What runs over a port with this link layer; with the type of a GID, what the GID is for. The type says
    /// `IB/RoCE v1` of InfiniBand and iWARP too.
    fn protocol(&self, link_layer: Option<LinkLayer>, said: Option<&str>) -> Protocol {
        match (self.node_type, link_layer) {
            (Some(NodeType::Rnic), _) => Protocol::Iwarp,
            (Some(NodeType::Usnic | NodeType::Unspecified), _) | (_, Some(LinkLayer::Unspecified)) => {
                Protocol::Other
            }
            (_, Some(LinkLayer::InfiniBand)) => Protocol::InfiniBand,
            (_, Some(LinkLayer::Ethernet)) => said.and_then(Protocol::read_roce).unwrap_or(Protocol::Roce),
            (_, None) => Protocol::Unknown,
        }
    }

    /// The interfaces that share a port: those of its GIDs and those whose hardware address a GID is made of (IPoIB, iWARP);
    /// the one that Soft-RoCE was put on; where none of them is known, those of the same PCI function, which may have many
    /// that have nothing to do with the port.
    fn interfaces_of(&self, port: u32, gids: &[Gid]) -> Vec<String> {
        let mut found: BTreeSet<String> =
            gids.iter().filter_map(|gid| gid.interface.known().cloned()).collect();
        let hardware = self.interfaces.iter().filter(|interface| {
            gids.iter().any(|gid| !gid.protocol.is_roce() && interface.is_hardware_of(gid.value))
        });
        found.extend(hardware.map(|interface| interface.name.clone()));
        if let Fact::Known(parent) = self.tree.text(format!("{FOLDER}/{}/parent", self.name)) {
            found.insert(parent);
        }
        if found.is_empty() {
            found = self.of_function(port);
        }
        found.into_iter().collect()
    }

    fn of_function(&self, port: u32) -> BTreeSet<String> {
        let beside = format!("{FOLDER}/{}/device/net", self.name);
        let Fact::Known(names) = self.tree.names(&beside) else { return BTreeSet::new() };
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let of_port = names.filter(|name| {
            // Ports of one function are told apart by this number, which begins with 0.
            let number = self.tree.text(format!("{beside}/{name}/dev_port"));
            let number = number.parse(|text| text.parse::<u32>().ok());
            self.ports == 1 || number.known().and_then(|number| number.checked_add(1)) == Some(port)
        });
        of_port.map(|name| plain(&name)).collect()
    }
}
