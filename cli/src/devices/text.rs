//! The list for people.

use ringmail::fabric::{Choice, Device, Fabric, Fact, Gid, LinkLayer, Port, Protocol};

use crate::page::Page;

/// In front of what belongs to a port.
const INDENT: &str = "    ";
/// Of the longest IPv6 address.
const GID_COLUMNS: usize = 39;

/// Devices, ports and GIDs, and what becomes of an address.
pub(super) fn render(fabric: &Fabric, choice: Option<&Choice>, page: Page) -> String {
    let mut lines = Vec::new();
    if fabric.devices.is_empty() {
        let holder = choice.and_then(|choice| choice.local.as_ref()?.interface.known());
        lines.push(page.wrap(&format!("There is {}", fabric.absence(holder.map(String::as_str)))));
    }
    for device in &fabric.devices {
        lines.extend(of_device(fabric, device, page));
        lines.push(String::new());
    }
    let is_any = |protocol: fn(&Protocol) -> bool| {
        fabric.devices.iter().flat_map(|device| &device.ports).any(|port| protocol(&port.protocol))
    };
    if is_any(|protocol| *protocol != Protocol::InfiniBand) {
        lines.push(page.wrap("MTUs are those of the interfaces; sysfs does not have the ports'."));
    }
    if !fabric.devices.is_empty() && !fabric.has_connection_manager {
        let missing = "/dev/infiniband/rdma_cm is missing, without which there are no connections: modprobe rdma_ucm; \
                       in a container, --device /dev/infiniband";
        lines.push(page.wrap(missing));
    }
    if cfg!(not(feature = "rdma")) {
        lines.push(page.wrap("This ringmail cannot use RDMA: it was built without --features rdma."));
    }
    if let Some(choice) = choice.filter(|_| !fabric.devices.is_empty()) {
        lines.push(String::new());
        lines.extend(of_choice(choice, page));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn of_device(fabric: &Fabric, device: &Device, page: Page) -> Vec<String> {
    let mut facts = vec![format!("node type {}", device.node_type)];
    let hardware = [("", &device.driver), ("at ", &device.pci_address), ("firmware ", &device.firmware)];
    facts.extend(hardware.into_iter().filter_map(|(what, fact)| said(what, fact)));
    facts.push(match &device.node {
        Some(node) if node.is_present => node.name.clone(),
        Some(node) => format!("{} (/dev/infiniband/{} is missing)", node.name, node.name),
        None => "not for programs (no uverbs)".to_owned(),
    });
    facts.extend(said("GUID ", &device.node_guid));
    facts.extend(said("", &device.description));
    let mut lines = vec![page.paint("1", &device.name), page.hang("  ", &facts.join(", "))];
    for port in &device.ports {
        lines.push(page.hang(&format!("  port {}  ", port.number), &of_port(port)));
        if let Some(advice) = fabric.port_advice(device, port) {
            lines.push(page.paint("33", &page.hang(INDENT, &advice)));
        }
        let more = interfaces(fabric, port);
        if !more.is_empty() {
            lines.push(page.hang(INDENT, &more));
        }
        lines.extend(port.gids.iter().map(of_gid));
    }
    if device.ports.is_empty() {
        lines.push("  no ports".to_owned());
    }
    lines
}

fn said(what: &str, fact: &Fact<String>) -> Option<String> {
    (*fact != Fact::Unknown).then(|| format!("{what}{fact}"))
}

fn of_port(port: &Port) -> String {
    let protocol = match (&port.link_layer, port.protocol) {
        (Fact::Known(LinkLayer::Ethernet), protocol) => format!("{protocol} over Ethernet"),
        (_, protocol) => protocol.to_string(),
    };
    let mut facts = vec![protocol, port.state.to_string()];
    facts.extend(said("", &port.physical_state));
    facts.extend(said("", &port.rate));
    if port.protocol == Protocol::InfiniBand {
        if port.lacks_subnet_manager() {
            facts.push("no LID".to_owned());
        } else {
            facts.push(format!("LID {}, subnet manager's LID {}", port.lid, port.sm_lid));
        }
        let partitions: Vec<_> = port.partitions.iter().map(|key| format!("{key:#06x}")).collect();
        facts.push(format!("partitions {}", partitions.join(" ")));
    }
    facts.join(", ")
}

fn interfaces(fabric: &Fabric, port: &Port) -> String {
    let of_port = fabric.interfaces.iter().filter(|one| port.interfaces.contains(&one.name));
    let described = of_port.map(|one| format!("{} (MTU {})", one.name, one.mtu));
    described.collect::<Vec<_>>().join(", ")
}

fn of_gid(gid: &Gid) -> String {
    let interface = gid.interface.known().map_or("", String::as_str);
    let line = format!(
        "{INDENT}GID {:>3}  {:<GID_COLUMNS$}  {:<7}  {interface}",
        gid.index,
        gid.to_string(),
        gid.protocol
    );
    line.trim_end().to_owned()
}

fn of_choice(choice: &Choice, page: Page) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(local) = &choice.local {
        let place = match &local.interface {
            Fact::Known(name) => format!("{} is on {name}", local.address),
            Fact::Unknown => format!("{} is on no interface", local.address),
            Fact::Unreadable(why) => format!("{}: which interface has it is not known: {why}", local.address),
        };
        let result = match choice.chosen() {
            Some(entry) => format!("{place}; connections from it use {entry}."),
            None => format!("{place}; no GID can be used for it."),
        };
        lines.push(page.wrap(&result));
    }
    let names = choice.entries.iter().map(|entry| entry.device.chars().count());
    let width = names.max().unwrap_or(0);
    for entry in &choice.entries {
        let word = if entry.verdict.is_chosen() { "used" } else { "not" };
        let head =
            format!("  {word:<4}  {:<width$} port {} GID {:>3}  ", entry.device, entry.port, entry.gid.index);
        lines.push(page.hang(&head, &entry.verdict.to_string()));
    }
    lines.push(page.wrap(
        "This explains; rdma_cm, which makes the connections, decides for itself. It does not look at the state of ports.",
    ));
    lines
}
