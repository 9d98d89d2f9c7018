//! What is found out about devices.

use std::time::Duration;

use ringmail_transport::fabric::{Fabric, Fact, Local, PortState, Protocol, choose};
use ringmail_transport::link::verbs::sends_immediates;
use ringmail_transport::verbs::{Context, Transport};

use crate::on_each;

#[test]
fn roce_has_immediates_and_soft_iwarp_has_none() {
    on_each(Duration::from_secs(20), async |address| {
        let context = Context::for_address(address).unwrap();
        let expected = context.transport() == Transport::InfiniBand;
        assert_eq!(sends_immediates(&context).await, expected, "{}", context.device_name());
        // And is remembered.
        assert_eq!(sends_immediates(&context).await, expected);
    });
}

#[test]
fn an_address_without_a_device_is_refused_with_the_fix() {
    if crate::device::addresses().is_empty() {
        return;
    }
    for address in ["127.0.0.1", "0.0.0.0", "192.0.2.1"] {
        let error = Context::for_address(address.parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("interface that belongs to an RDMA device"), "{error}");
    }
}

#[test]
fn sysfs_explains_what_the_connection_manager_chose() {
    for address in crate::device::addresses() {
        let started = std::time::Instant::now();
        let fabric = Fabric::of_this_host();
        println!("read in {:?}", started.elapsed());
        let local = Local::of_this_host(address);
        assert!(local.interface.known().is_some(), "{local:?}");
        let context = Context::for_address(address).unwrap();
        let place = context.place();
        let choice = choose(&fabric, Some(&local));
        let (name, port) = (context.device_name(), u32::from(context.port()));
        assert_eq!(choice.difference(name, port, place.gid), None, "{choice:#?}");
        let chosen = choice.chosen().unwrap();
        println!("{place} is {chosen}: {}", chosen.verdict);
        let expected = match context.transport() {
            Transport::Iwarp => Protocol::Iwarp,
            _ => Protocol::RoceV2,
        };
        assert_eq!(chosen.gid.protocol, expected);
        let device = fabric.devices.iter().find(|device| device.name == name).unwrap();
        let port = device.ports.iter().find(|one| one.number == port).unwrap();
        assert!(port.state == Fact::Known(PortState::Active) && port.interfaces.len() == 1, "{port:#?}");
        assert!(device.node.as_ref().is_some_and(|node| node.is_present) && fabric.has_connection_manager);
        // Another port, or a GID that is not this address's, would be noticed.
        assert!(choice.difference(name, 77, place.gid).is_some());
    }
}
