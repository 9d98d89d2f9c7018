//! What is said to people about the devices of a host.

use super::{Choice, Device, Fabric, Fact, Interface, Local, Port, PortState, Protocol, Verdict, choose};

/// Ports that are named one by one.
const PORTS_NAMED: usize = 4;

impl Fabric {
    /// Which devices there are, what state they are in, and what would have to be done to have RDMA for an address: a few
    /// short sentences for whoever has none.
    #[must_use]
    pub fn account(&self, local: &Local) -> String {
        if self.devices.is_empty() {
            return self.absence(local.interface.known().map(String::as_str));
        }
        let choice = choose(self, Some(local));
        let mut sentences = vec![self.advice(&choice, local)];
        let ports =
            self.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        let mut named: Vec<_> = ports.map(|(device, port)| port.summary(device)).collect();
        if named.len() > PORTS_NAMED {
            let more = named.len() - PORTS_NAMED;
            named.truncate(PORTS_NAMED);
            named.push(format!("{more} more ports"));
        }
        if named.is_empty() {
            named = self
                .devices
                .iter()
                .take(PORTS_NAMED)
                .map(|device| format!("{} without ports", device.name))
                .collect();
        }
        sentences.push(format!("RDMA here: {}", named.join("; ")));
        sentences.join(". ")
    }

    /// That there is no device, where was looked, and what would bring one.
    #[must_use]
    pub fn absence(&self, interface: Option<&str>) -> String {
        let folder = self.folder.display();
        let why = match &self.problem {
            Some(why) => format!("{folder}: {why}"),
            None => format!("nothing in {folder}"),
        };
        let mut usual = self.interfaces.iter().map(|one| one.name.as_str()).filter(|name| *name != "lo");
        let interface = interface.filter(|name| *name != "lo").or_else(|| usual.next()).unwrap_or("eth0");
        format!(
            "no RDMA device ({why}). A RoCE, iWARP or InfiniBand adapter with its driver brings one, or Soft-RoCE: \
             modprobe rdma_rxe; rdma link add rxe0 type rxe netdev {interface}"
        )
    }

    fn advice(&self, choice: &Choice, local: &Local) -> String {
        let Some(best) = choice.entries.first() else {
            let ports =
                self.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
            let advice = ports.filter_map(|(device, port)| self.port_advice(device, port)).next();
            return advice.unwrap_or_else(|| "no port has a GID".to_owned());
        };
        let place =
            self.devices.iter().find(|device| device.name == best.device).and_then(|device| {
                Some((device, device.ports.iter().find(|port| port.number == best.port)?))
            });
        let address = local.address;
        match (&best.verdict, place) {
            (Verdict::PortState(_) | Verdict::NoSubnetManager, Some((device, port))) => {
                self.port_advice(device, port).unwrap_or_else(|| best.verdict.to_string())
            }
            (verdict, Some((device, _))) if verdict.is_chosen() => {
                let node = device.node.as_ref();
                let mut said = format!("{address} belongs to {best}");
                if let Some(node) = node.filter(|node| !node.is_present) {
                    said += &format!(
                        ", but /dev/infiniband/{} is missing: docker --device /dev/infiniband, or load ib_uverbs",
                        node.name
                    );
                } else if !self.has_connection_manager {
                    said += ", but /dev/infiniband/rdma_cm is missing: modprobe rdma_ucm, or docker --device /dev/infiniband";
                }
                said
            }
            (Verdict::OtherVersion(_) | Verdict::OtherInterface { .. }, _) => {
                format!("{address} has {best}, but {}", best.verdict)
            }
            (Verdict::NobodyHas(_) | Verdict::Loopback(_) | Verdict::HolderUnknown(_), _) => {
                best.verdict.to_string()
            }
            _ => {
                let mut said = match &local.interface {
                    Fact::Known(holder) => {
                        format!("{address} is on {holder}, not an address of an RDMA device")
                    }
                    _ => format!("{address} is not an address of an RDMA device"),
                };
                if let Some(advice) = self.other_advice(local) {
                    said += &format!("; {advice}");
                }
                said
            }
        }
    }

    /// What would bring RDMA on ports that the address does not belong to, or how to reach one that has it.
    fn other_advice(&self, local: &Local) -> Option<String> {
        let ports =
            || self.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        let holder = local.interface.known();
        // The address is on the port's interface, and yet no GID is made of it.
        let on_port = ports().find(|(_, port)| holder.is_some_and(|holder| port.interfaces.contains(holder)));
        if let Some((device, port)) = on_port {
            return self.port_advice(device, port).or_else(|| {
                Some(format!("{} port {} has its interface, but no GID of it", device.name, port.number))
            });
        }
        let usable = choose(self, None);
        if let Some(entry) = usable.chosen() {
            let port =
                ports().find(|(device, port)| (&device.name, port.number) == (&entry.device, entry.port));
            let interface = port.and_then(|(_, port)| port.interfaces.first());
            return Some(match interface {
                Some(interface) => format!("connect over an address of {interface}"),
                None => format!("connect over an address of {} port {}", entry.device, entry.port),
            });
        }
        ports().find_map(|(device, port)| self.port_advice(device, port))
    }

    /// What is wrong with a port, and what to do about it.
    #[must_use]
    pub fn port_advice(&self, device: &Device, port: &Port) -> Option<String> {
        let name = format!("{} port {}", device.name, port.number);
        let interface = |is_up: bool| {
            let of_port = self.interfaces.iter().filter(|one| port.interfaces.contains(&one.name));
            of_port.clone().find(|one: &&Interface| one.is_up == Fact::Known(is_up)).map(|one| &one.name)
        };
        let state = port.state.known()?;
        if !port.is_down() && !port.lacks_subnet_manager() {
            let only_v1 = port.protocol == Protocol::RoceV1;
            return only_v1.then(|| {
                format!("{name} has only RoCE v1 GIDs: both hosts must have them, in one Ethernet segment")
            });
        }
        Some(match (state, port.protocol) {
            (PortState::Down, Protocol::InfiniBand) => format!("{name} is DOWN: check cable and switch"),
            (state, Protocol::InfiniBand) => {
                let lid = if port.lacks_subnet_manager() { " without a LID" } else { "" };
                format!("{name} is {state}{lid}: start a subnet manager for the fabric (opensm)")
            }
            (state, _) => match (interface(false), interface(true)) {
                (Some(down), _) => format!("{name} is {state}: ip link set {down} up"),
                (None, Some(up)) => format!("{name} is {state}: {up} is switched on, check cable and switch"),
                (None, None) => format!("{name} is {state}: switch its network interface on (ip link)"),
            },
        })
    }
}

impl Port {
    /// Name, protocol, interfaces and state in a few words.
    fn summary(&self, device: &Device) -> String {
        let interfaces = match &self.interfaces[..] {
            [] => String::new(),
            interfaces => format!(" ({})", interfaces[..interfaces.len().min(2)].join(", ")),
        };
        let lid = if self.lacks_subnet_manager() { ", no LID" } else { "" };
        let state = match &self.state {
            Fact::Known(state) => state.to_string(),
            _ => "state unknown".to_owned(),
        };
        format!("{} port {} {}{interfaces} {state}{lid}", device.name, self.number, self.protocol)
    }
}
