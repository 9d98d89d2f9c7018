//! What is made of the devices of hosts that were recorded, and which GID is chosen on each.

mod odd;
mod recording;
mod wording;

use std::net::IpAddr;

use ringmail_transport::fabric::{
    Choice, Fabric, Fact, LinkLayer, Local, NodeType, Port, PortState, Protocol, Verdict, choose,
};

pub(crate) fn fabric(name: &str) -> Fabric {
    Fabric::read(recording::unpack(name).path())
}

/// An address, on an interface.
pub(crate) fn local(address: &str, interface: &str) -> Local {
    let address: IpAddr = address.parse().expect("an address");
    Local { address, interface: Fact::Known(interface.to_owned()) }
}

fn port(fabric: &Fabric, number: u32) -> &Port {
    fabric.devices[0].ports.iter().find(|port| port.number == number).expect("the port")
}

/// Port and GID index of what was chosen.
fn chosen(choice: &Choice) -> Option<(u32, u32)> {
    choice.chosen().map(|entry| (entry.port, entry.gid.index))
}

/// What became of an entry.
fn verdict(choice: &Choice, port: u32, index: u32) -> &Verdict {
    let mut entries = choice.entries.iter();
    let entry = entries.find(|entry| (entry.port, entry.gid.index) == (port, index));
    &entry.expect("the entry").verdict
}

fn known(text: &str) -> Fact<String> {
    Fact::Known(text.to_owned())
}

#[test]
fn infiniband_is_told_with_lid_and_partitions_and_chosen_by_ipoib() {
    let fabric = fabric("infiniband");
    let device = &fabric.devices[0];
    assert_eq!((device.name.as_str(), &device.node_type), ("mlx5_0", &Fact::Known(NodeType::ChannelAdapter)));
    assert_eq!((&device.driver, &device.pci_address), (&known("mlx5_core"), &known("0000:3b:00.0")));
    assert_eq!((&device.firmware, &device.node_guid), (&known("20.37.1700"), &known("506b:4b03:00c1:2a3e")));
    let node = device.node.as_ref().expect("a node");
    assert!(node.name == "uverbs0" && node.is_present && fabric.has_connection_manager);
    let port = port(&fabric, 1);
    assert_eq!(
        (port.protocol, &port.link_layer),
        (Protocol::InfiniBand, &Fact::Known(LinkLayer::InfiniBand))
    );
    assert_eq!((&port.state, &port.physical_state), (&Fact::Known(PortState::Active), &known("LinkUp")));
    assert_eq!((&port.lid, &port.sm_lid), (&Fact::Known(5), &Fact::Known(1)));
    assert_eq!((&port.partitions[..], &port.rate), (&[0xffff, 0x8001][..], &known("100 Gb/sec (4X EDR)")));
    assert_eq!((port.gids.len(), &port.interfaces[..]), (1, &["ib0".to_owned()][..]));
    // It begins with fe80 as link-local addresses do, which on InfiniBand is the usual prefix and no reason against it.
    let gid = &port.gids[0];
    assert!(!gid.is_link_local() && gid.address().is_none() && gid.value.is_unicast_link_local());
    let choice = choose(&fabric, Some(&local("10.0.0.1", "ib0")));
    assert_eq!(chosen(&choice), Some((1, 0)));
    assert_eq!(verdict(&choice, 1, 0), &Verdict::MadeOfInterface("ib0".into()));
    let choice = choose(&fabric, Some(&local("192.168.1.1", "eno1")));
    assert_eq!(verdict(&choice, 1, 0), &Verdict::NotOfPort { holder: "eno1".into() });
    assert_eq!(chosen(&choose(&fabric, None)), Some((1, 0)));
    let nobody_tells =
        Local { address: "10.0.0.1".parse().unwrap(), interface: Fact::Unreadable("no".into()) };
    let choice = choose(&fabric, Some(&nobody_tells));
    assert_eq!(verdict(&choice, 1, 0), &Verdict::HolderUnknown("no".into()));
}

#[test]
fn infiniband_without_a_subnet_manager_is_not_used() {
    let fabric = fabric("infiniband-without-sm");
    let (first, second) = (port(&fabric, 1), port(&fabric, 2));
    assert_eq!((&first.state, &first.lid), (&Fact::Known(PortState::Init), &Fact::Known(0)));
    assert!(first.lacks_subnet_manager() && first.is_down());
    // This one's driver says 0xffff.
    assert!(second.lacks_subnet_manager() && second.is_down());
    let choice = choose(&fabric, Some(&local("10.0.0.1", "ib0")));
    assert_eq!(chosen(&choice), None);
    assert_eq!(verdict(&choice, 1, 0), &Verdict::NoSubnetManager);
    // The second port's interfaces are its own.
    assert_eq!(
        (&first.interfaces[..], &second.interfaces[..]),
        (&["ib0".to_owned()][..], &["ib1".to_owned()][..])
    );
    assert_eq!(verdict(&choice, 2, 0), &Verdict::NotOfPort { holder: "ib0".into() });
    let choice = choose(&fabric, None);
    assert_eq!(verdict(&choice, 1, 0), &Verdict::NoSubnetManager);
    assert_eq!(verdict(&choice, 2, 0), &Verdict::PortState(PortState::Down));
}

#[test]
fn roce_v1_is_used_where_there_is_nothing_else() {
    let fabric = fabric("roce-v1");
    assert_eq!(port(&fabric, 1).protocol, Protocol::RoceV1);
    let choice = choose(&fabric, Some(&local("192.168.10.5", "ens1")));
    assert_eq!(chosen(&choice), Some((1, 1)));
    assert_eq!(choice.chosen().unwrap().gid.protocol, Protocol::RoceV1);
    assert_eq!(verdict(&choice, 1, 0), &Verdict::LinkLocal);
    assert_eq!(chosen(&choose(&fabric, None)), Some((1, 1)));
}

#[test]
fn roce_v2_comes_before_v1_and_a_port_that_is_up_before_one_that_is_down() {
    let mut fabric = fabric("roce-dual-port");
    assert_eq!((port(&fabric, 1).protocol, port(&fabric, 2).protocol), (Protocol::RoceV2, Protocol::RoceV2));
    assert!(!port(&fabric, 1).is_down() && port(&fabric, 2).is_down());
    let choice = choose(&fabric, Some(&local("192.168.10.5", "ens1")));
    assert_eq!(chosen(&choice), Some((1, 3)));
    assert_eq!(choice.entries[0].gid.to_string(), "192.168.10.5");
    assert_eq!(verdict(&choice, 1, 2), &Verdict::OtherVersion(Protocol::RoceV2));
    assert_eq!(verdict(&choice, 1, 0), &Verdict::LinkLocal);
    assert_eq!(verdict(&choice, 1, 5), &Verdict::OtherAddress);
    assert_eq!(verdict(&choice, 2, 3), &Verdict::OtherAddress);
    // Those that came closest stand first.
    assert_eq!((choice.entries[1].port, choice.entries[1].gid.index), (1, 2));
    assert_eq!(chosen(&choose(&fabric, Some(&local("2001:db8::5", "ens1")))), Some((1, 5)));
    let choice = choose(&fabric, Some(&local("192.168.20.5", "ens1d1")));
    assert_eq!(chosen(&choice), None);
    assert_eq!(verdict(&choice, 2, 3), &Verdict::PortState(PortState::Down));
    assert_eq!(verdict(&choice, 2, 2), &Verdict::OtherVersion(Protocol::RoceV2));
    let choice = choose(&fabric, None);
    assert_eq!(chosen(&choice), Some((1, 3)));
    assert_eq!(verdict(&choice, 1, 5), &Verdict::EarlierFits);
    // An address that has a GID of the other version only has none that would be looked for.
    fabric.devices[0].ports[0].gids.retain(|gid| gid.index != 3);
    let choice = choose(&fabric, Some(&local("192.168.10.5", "ens1")));
    assert_eq!(chosen(&choice), None);
    assert_eq!(verdict(&choice, 1, 2), &Verdict::OtherVersion(Protocol::RoceV2));
    // An administrator can have the connection manager prefer v1.
    fabric.devices[0].ports[0].default_roce = Fact::Known(Protocol::RoceV1);
    let choice = choose(&fabric, Some(&local("192.168.10.5", "ens1")));
    assert_eq!(chosen(&choice), Some((1, 2)));
    assert_eq!(verdict(&choose(&fabric, None), 1, 5), &Verdict::OtherVersion(Protocol::RoceV1));
}

#[test]
fn iwarp_is_known_by_its_node_type_and_its_interface_by_the_hardware_address() {
    for (name, interface) in [("iwarp", "enp5s0f4"), ("siw", "net-siw")] {
        let fabric = fabric(name);
        assert_eq!(fabric.devices[0].node_type, Fact::Known(NodeType::Rnic));
        let port = port(&fabric, 1);
        assert_eq!((port.protocol, port.gids[0].protocol), (Protocol::Iwarp, Protocol::Iwarp), "{name}");
        assert_eq!(port.interfaces, [interface], "{name}");
        // LID 0 means nothing here.
        assert!(!port.lacks_subnet_manager() && port.partitions.is_empty());
        let choice = choose(&fabric, Some(&local("10.98.0.1", interface)));
        assert_eq!(verdict(&choice, 1, 0), &Verdict::MadeOfInterface(interface.into()), "{name}");
        let choice = choose(&fabric, Some(&local("10.98.0.1", "eno1")));
        assert_eq!(verdict(&choice, 1, 0), &Verdict::NotOfPort { holder: "eno1".into() }, "{name}");
    }
}

#[test]
fn software_roce_is_recognised() {
    let fabric = fabric("rxe");
    let device = &fabric.devices[0];
    assert_eq!(
        (&device.firmware, &device.driver, &device.pci_address),
        (&Fact::Unknown, &Fact::Unknown, &Fact::Unknown)
    );
    let port = port(&fabric, 1);
    assert_eq!((port.protocol, &port.interfaces[..]), (Protocol::RoceV2, &["net-rxe".to_owned()][..]));
    let choice = choose(&fabric, Some(&local("10.99.0.1", "net-rxe")));
    assert_eq!(chosen(&choice), Some((1, 1)));
    assert_eq!(verdict(&choice, 1, 0), &Verdict::LinkLocal);
}

#[test]
fn a_gid_is_only_good_on_the_interface_that_has_its_address() {
    let fabric = fabric("bond");
    let port = port(&fabric, 1);
    assert_eq!(port.interfaces, ["bond0", "bond0.100"]);
    assert_eq!(chosen(&choose(&fabric, Some(&local("10.1.0.5", "bond0")))), Some((1, 3)));
    assert_eq!(chosen(&choose(&fabric, Some(&local("10.100.0.5", "bond0.100")))), Some((1, 5)));
    let choice = choose(&fabric, Some(&local("10.1.0.5", "bond0.100")));
    assert_eq!(chosen(&choice), None);
    let other = Verdict::OtherInterface { of: "bond0".into(), holder: "bond0.100".into() };
    assert_eq!(verdict(&choice, 1, 3), &other);
    // Whoever cannot be asked does not stand in the way: the GID says enough.
    let nobody_tells =
        Local { address: "10.1.0.5".parse().unwrap(), interface: Fact::Unreadable("no".into()) };
    assert_eq!(chosen(&choose(&fabric, Some(&nobody_tells))), Some((1, 3)));
}

#[test]
fn a_port_with_link_local_gids_only_is_not_used() {
    let fabric = fabric("link-local-only");
    for local in [None, Some(local("10.1.0.5", "ens3")), Some(local("10.1.0.5", "eno1"))] {
        let choice = choose(&fabric, local.as_ref());
        assert_eq!(chosen(&choice), None);
        assert_eq!([verdict(&choice, 1, 0), verdict(&choice, 1, 1)], [&Verdict::LinkLocal; 2]);
    }
}

#[test]
fn loopback_addresses_and_those_of_nobody_are_on_no_device() {
    for name in ["infiniband", "roce-dual-port", "siw"] {
        let fabric = fabric(name);
        let choice = choose(&fabric, Some(&local("127.0.0.1", "lo")));
        assert!(matches!(choice.entries[0].verdict, Verdict::Loopback(_)), "{name}");
        let nobodys = Local { address: "192.168.10.5".parse().unwrap(), interface: Fact::Unknown };
        let choice = choose(&fabric, Some(&nobodys));
        assert_eq!(chosen(&choice), None, "{name}");
        assert!(matches!(choice.entries[0].verdict, Verdict::NobodyHas(_)), "{name}");
    }
}

#[test]
fn where_two_devices_fit_the_one_registered_first_is_taken() {
    // By name, the second would come first.
    let mut fabric = fabric("rxe");
    let mut second = fabric.devices[0].clone();
    second.name = "a_rxe1".into();
    fabric.devices.push(second);
    let choice = choose(&fabric, Some(&local("10.99.0.1", "net-rxe")));
    assert_eq!(choice.chosen().unwrap().device, "rxe0");
    assert_eq!(
        (choice.entries[1].device.as_str(), &choice.entries[1].verdict),
        ("a_rxe1", &Verdict::EarlierFits)
    );
}

#[test]
fn a_port_without_gids_has_the_interfaces_of_its_pci_function() {
    let root = recording::unpack("roce-dual-port");
    for number in [1, 2] {
        let folder = format!("sys/class/infiniband/mlx4_0/ports/{number}/gids");
        std::fs::remove_dir_all(root.path().join(folder)).unwrap();
    }
    let fabric = Fabric::read(root.path());
    assert_eq!((port(&fabric, 1).protocol, port(&fabric, 1).gids.len()), (Protocol::Roce, 0));
    assert_eq!(
        (&port(&fabric, 1).interfaces[..], &port(&fabric, 2).interfaces[..]),
        (&["ens1".to_owned()][..], &["ens1d1".to_owned()][..])
    );
    let choice = choose(&fabric, Some(&local("192.168.10.5", "ens1")));
    assert!(choice.chosen().is_none() && choice.entries.is_empty());
    let account = fabric.account(&local("192.168.10.5", "ens1"));
    assert!(account.starts_with("mlx4_0 port 2 is DOWN"), "{account}");
}
