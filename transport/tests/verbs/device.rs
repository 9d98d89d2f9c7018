//! The devices to test on.

use std::net::IpAddr;
use std::time::Duration;

/// Names the local addresses to test on.
pub(crate) const VARIABLE: &str = "RINGMAIL_RDMA_ADDRESSES";

/// The addresses to test on; none when this host has no RDMA device.
pub(crate) fn addresses() -> Vec<IpAddr> {
    if let Ok(list) = std::env::var(VARIABLE) {
        return list.split(',').map(|address| address.trim().parse().expect("an IP address")).collect();
    }
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    assert!(devices == 0, "this host has {devices} RDMA devices: name their addresses in {VARIABLE}");
    eprintln!("not run: this host has no RDMA device");
    Vec::new()
}

/// Runs a case on each device, on a runtime with two threads, within a bound.
pub(crate) fn on_each<F: Future<Output = ()>>(bound: Duration, case: impl Fn(IpAddr) -> F) {
    for address in addresses() {
        let started = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            tokio::time::timeout(bound, case(address)).await.expect("the case hangs");
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
        eprintln!("on {address}: {:?}", started.elapsed());
    }
}
