//! The devices to test on.

use std::net::IpAddr;

/// Set to 1 where there must be a device: there being none is a failure.
const REQUIRED: &str = "RINGMAIL_TEST_REQUIRE_RDMA";

/// Names the local addresses to test on.
pub(crate) const VARIABLE: &str = "RINGMAIL_RDMA_ADDRESSES";

/// Whether there must be a device.
pub(crate) fn is_required() -> bool {
    std::env::var(REQUIRED).as_deref() == Ok("1")
}

/// The addresses to test on; none when this host has no RDMA device.
pub(crate) fn addresses() -> Vec<IpAddr> {
    if let Ok(list) = std::env::var(VARIABLE) {
        return list.split(',').map(|address| address.trim().parse().expect("an IP address")).collect();
    }
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    assert!(devices == 0, "this host has {devices} RDMA devices: name their addresses in {VARIABLE}");
    assert!(!is_required(), "no RDMA device, and {REQUIRED} asks for one");
    eprintln!("*** skipped, no RDMA device");
    Vec::new()
}
