//! What is said to people.

use super::{fabric, local};
use ringmail_transport::fabric::{Fabric, Fact, PortState, choose};

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn a_host_without_devices_is_told_where_was_looked_and_how_to_get_one() {
    let root = tempfile::tempdir().unwrap();
    let fabric = Fabric::read(root.path());
    assert!(fabric.devices.is_empty() && fabric.problem.is_none());
    let account = fabric.account(&local("10.0.0.1", "enp1s0"));
    says(&account, &["no RDMA device", "sys/class/infiniband", "rdma link add rxe0 type rxe netdev enp1s0"]);
    says(&fabric.absence(None), &["netdev eth0"]);
}

#[test]
fn an_address_of_no_device_is_told_what_there_is_and_where_to_connect() {
    let account = fabric("infiniband").account(&local("192.168.1.1", "eno1"));
    says(&account, &["192.168.1.1 is on eno1", "an address of ib0", "mlx5_0 port 1 InfiniBand (ib0) ACTIVE"]);
    let account = fabric("link-local-only").account(&local("10.1.0.5", "ens3"));
    says(&account, &["10.1.0.5 is on ens3", "mlx5_0 port 1 has its interface, but no GID of it"]);
}

#[test]
fn a_gid_that_nearly_fits_is_told_with_what_it_lacks() {
    let mut fabric = fabric("roce-dual-port");
    let account = fabric.account(&local("192.168.10.5", "eno1"));
    says(&account, &["192.168.10.5 has mlx4_0 port 1 GID", "it is for ens1, and eno1 has the address"]);
    fabric.devices[0].ports[0].gids.retain(|gid| gid.index != 3);
    let account = fabric.account(&local("192.168.10.5", "ens1"));
    says(&account, &["GID 2 (192.168.10.5, RoCE v1), but rdma_cm uses RoCE v2 on this port"]);
}

#[test]
fn a_port_that_is_down_is_told_with_what_brings_it_up() {
    let mut fabric = fabric("roce-dual-port");
    let of_second = local("192.168.20.5", "ens1d1");
    let account = fabric.account(&of_second);
    says(&account, &["mlx4_0 port 2 is DOWN: ens1d1 is switched on, check cable"]);
    says(&account, &["mlx4_0 port 1 RoCE v2 (ens1) ACTIVE; mlx4_0 port 2 RoCE v2 (ens1d1) DOWN"]);
    for interface in &mut fabric.interfaces {
        interface.is_up = Fact::Known(false);
    }
    says(&fabric.account(&of_second), &["mlx4_0 port 2 is DOWN: ip link set ens1d1 up"]);
    // From elsewhere, the port that is up is where to go, unless there is none.
    let elsewhere = local("10.9.9.9", "eno1");
    says(&fabric.account(&elsewhere), &["10.9.9.9 is on eno1", "connect over an address of ens1"]);
    fabric.devices[0].ports[0].state = Fact::Known(PortState::Down);
    says(&fabric.account(&elsewhere), &["10.9.9.9 is on eno1", "mlx4_0 port 1 is DOWN: ip link set ens1 up"]);
}

#[test]
fn infiniband_without_a_subnet_manager_is_told_to_start_one() {
    let account = fabric("infiniband-without-sm").account(&local("10.0.0.1", "ib0"));
    says(
        &account,
        &["mlx5_0 port 1 is INIT without a LID", "opensm", "mlx5_0 port 2 InfiniBand (ib1) DOWN, no LID"],
    );
}

#[test]
fn what_programs_need_besides_the_device_is_told() {
    let mut fabric = fabric("rxe");
    let address = local("10.99.0.1", "net-rxe");
    fabric.has_connection_manager = false;
    says(&fabric.account(&address), &["/dev/infiniband/rdma_cm is missing: modprobe rdma_ucm"]);
    fabric.devices[0].node.as_mut().unwrap().is_present = false;
    says(&fabric.account(&address), &["/dev/infiniband/uverbs0 is missing", "docker --device"]);
}

#[test]
fn only_roce_v1_is_told_with_what_it_asks_for() {
    let fabric = fabric("roce-v1");
    let (device, port) = (&fabric.devices[0], &fabric.devices[0].ports[0]);
    says(&fabric.port_advice(device, port).unwrap(), &["only RoCE v1 GIDs", "one Ethernet segment"]);
    // The address is on the interface of the port, which for some reason has no GID of it.
    says(&fabric.account(&local("172.16.0.1", "ens1")), &["only RoCE v1 GIDs"]);
}

#[test]
fn an_account_stays_short_however_many_ports_there_are() {
    let mut fabric = fabric("roce-dual-port");
    let device = fabric.devices[0].clone();
    fabric.devices.resize(100, device);
    let account = fabric.account(&local("10.9.9.9", "eno1"));
    says(&account, &["196 more ports"]);
    // What a peer cuts reasons to, less what the call that failed says.
    assert!(account.len() < 340, "{}: {account}", account.len());
}

#[test]
fn what_the_connection_manager_chose_is_compared() {
    let fabric = fabric("roce-dual-port");
    let gid = |text: &str| Some(text.parse().unwrap());
    let choice = choose(&fabric, Some(&local("192.168.10.5", "ens1")));
    assert_eq!(choice.difference("mlx4_0", 1, gid("::ffff:192.168.10.5")), None);
    assert_eq!(choice.difference("mlx4_0", 1, None), None);
    let other = choice.difference("mlx4_0", 1, gid("2001:db8::5")).unwrap();
    says(&other, &["rdma_cm chose mlx4_0 port 1 GID 2001:db8::5", "GID 3 (192.168.10.5, RoCE v2)"]);
    says(&choice.difference("mlx5_0", 1, None).unwrap(), &["rdma_cm chose mlx5_0 port 1", "mlx4_0 port 1"]);
    let choice = choose(&fabric, Some(&local("192.168.20.5", "ens1d1")));
    let other = choice.difference("mlx4_0", 2, gid("::ffff:192.168.20.5")).unwrap();
    says(&other, &["nothing can be used: the port is DOWN"]);
    says(&choice.difference("mlx9_9", 1, None).unwrap(), &["no such entry"]);
    // iWARP's GID is never on the wire.
    let choice = choose(&super::fabric("siw"), Some(&local("10.98.0.1", "net-siw")));
    assert_eq!(choice.difference("siw0", 1, gid("::1")), None);
}
