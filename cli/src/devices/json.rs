//! The same for programs; `docs/fabrics.md` describes it.

use ringmail::fabric::{Choice, Device, Entry, Fabric, Fact, Gid, Port};
use serde_json::{Value, json};

/// The document.
pub(super) fn render(fabric: &Fabric, choice: Option<&Choice>) -> String {
    let document = json!({
        "folder": fabric.folder.to_string_lossy(),
        "problem": fabric.problem,
        "rdma_cm": fabric.has_connection_manager,
        "rdma_in_this_build": cfg!(feature = "rdma"),
        "devices": fabric.devices.iter().map(|device| of_device(fabric, device)).collect::<Vec<_>>(),
        "choice": choice.map(of_choice),
    });
    format!("{document:#}\n")
}

/// A value, null if it is unknown, or why it cannot be read.
fn fact<T, V: Into<Value>>(fact: &Fact<T>, value: impl FnOnce(&T) -> V) -> Value {
    match fact {
        Fact::Known(known) => value(known).into(),
        Fact::Unknown => Value::Null,
        Fact::Unreadable(why) => json!({ "unreadable": why }),
    }
}

fn text(said: &Fact<impl ToString>) -> Value {
    fact(said, |said| said.to_string())
}

fn of_device(fabric: &Fabric, device: &Device) -> Value {
    json!({
        "name": device.name,
        "node_type": text(&device.node_type),
        "description": text(&device.description),
        "firmware": text(&device.firmware),
        "node_guid": text(&device.node_guid),
        "pci_address": text(&device.pci_address),
        "driver": text(&device.driver),
        "node": device.node.as_ref().map(|node| json!({ "name": node.name, "present": node.is_present })),
        "ports": device.ports.iter().map(|port| of_port(fabric, device, port)).collect::<Vec<_>>(),
    })
}

fn of_port(fabric: &Fabric, device: &Device, port: &Port) -> Value {
    let interfaces = port.interfaces.iter().map(|name| {
        let known = fabric.interfaces.iter().find(|interface| interface.name == *name);
        json!({
            "name": name,
            "mtu": known.map(|interface| fact(&interface.mtu, |mtu| *mtu)),
            "up": known.map(|interface| fact(&interface.is_up, |is_up| *is_up)),
        })
    });
    json!({
        "number": port.number,
        "protocol": port.protocol.to_string(),
        "link_layer": text(&port.link_layer),
        "state": text(&port.state),
        "physical_state": text(&port.physical_state),
        "lid": fact(&port.lid, |lid| *lid),
        "sm_lid": fact(&port.sm_lid, |lid| *lid),
        "rate": text(&port.rate),
        "partitions": port.partitions.iter().map(|key| format!("{key:#06x}")).collect::<Vec<_>>(),
        "default_roce": text(&port.default_roce),
        "interfaces": interfaces.collect::<Vec<_>>(),
        "gids": port.gids.iter().map(of_gid).collect::<Vec<_>>(),
        "advice": fabric.port_advice(device, port),
    })
}

fn of_gid(gid: &Gid) -> Value {
    json!({
        "index": gid.index,
        "gid": gid.value.to_string(),
        "address": gid.address().map(|address| address.to_string()),
        "protocol": gid.protocol.to_string(),
        "interface": text(&gid.interface),
        "link_local": gid.is_link_local(),
    })
}

fn of_choice(choice: &Choice) -> Value {
    json!({
        "address": choice.local.as_ref().map(|local| local.address.to_string()),
        "interface": choice.local.as_ref().map(|local| text(&local.interface)),
        "entries": choice.entries.iter().map(of_entry).collect::<Vec<_>>(),
    })
}

fn of_entry(entry: &Entry) -> Value {
    json!({
        "device": entry.device,
        "port": entry.port,
        "gid_index": entry.gid.index,
        "gid": entry.gid.value.to_string(),
        "chosen": entry.verdict.is_chosen(),
        "reason": entry.verdict.to_string(),
    })
}
