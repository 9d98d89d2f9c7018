//! The RDMA link on real devices: the lab's VM has Soft-RoCE and Soft-iWARP.
//!
//! `RINGMAIL_RDMA_ADDRESSES` names the local addresses to test on, one per device, separated by commas:
//!
//! ```console
//! $ RINGMAIL_RDMA_ADDRESSES=10.99.0.1,10.98.0.1 lab/vm -- target/debug/deps/verbs-…
//! ```
//!
//! Where there is no RDMA device at all and none is named, there is nothing to test on, and the tests say so; with
//! `RINGMAIL_TEST_REQUIRE_RDMA=1` that is a failure.

#![cfg(feature = "rdma")]
// Devices and figures are for whoever reads the log; two processes also talk that way.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod ability;
mod device;
mod fallback;
mod far;
mod isolation;
mod kill;
mod lending;
mod pair;
mod stress;
mod teardown;
mod tickets;

use std::net::IpAddr;
use std::time::Duration;

/// Runs a case on each device, on a runtime with two threads, within a bound.
pub(crate) fn on_each<F: Future<Output = ()>>(bound: Duration, case: impl Fn(IpAddr) -> F) {
    for address in device::addresses() {
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
