//! What is found out about devices.

use std::time::Duration;

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
