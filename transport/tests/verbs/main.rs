//! The RDMA link on real devices: the lab's VM has Soft-RoCE and Soft-iWARP.
//!
//! `RINGMAIL_RDMA_ADDRESSES` names the local addresses to test on, one per device, separated by commas:
//!
//! ```console
//! $ RINGMAIL_RDMA_ADDRESSES=10.99.0.1,10.98.0.1 lab/vm -- target/debug/deps/verbs-…
//! ```
//!
//! Where there is no RDMA device at all and none is named, there is nothing to test on, and the tests say so.

#![cfg(feature = "rdma")]

mod ability;
mod device;
mod isolation;
mod kill;
mod pair;
mod stress;
mod teardown;
mod tickets;
