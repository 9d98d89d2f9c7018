//! Devices that are there and cannot be reached, as in a container that was not given them.

use super::has_no_rdma;
use crate::peers::within;
use crate::{BOUND, addresses};

/// In a mount namespace of its own, where `/dev/infiniband` has what a pattern matches; mounted with these options.
fn nodes(pattern: &str, options: &str) -> String {
    format!(
        r#"
        exec unshare --mount bash -euc '
          mkdir -p "/tmp/nodes-$$"
          cp -a /dev/infiniband/. "/tmp/nodes-$$"
          mount -t tmpfs -o {options} none /dev/infiniband
          for node in "/tmp/nodes-$$"/{pattern}; do
            [ ! -e "$node" ] || cp -a "$node" /dev/infiniband/
          done
          exec "$@"' nodes "$@"
        "#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_device_nodes_are_named_with_the_fix() {
    if let Some(address) = addresses().into_iter().next() {
        within(2 * BOUND, async {
            let uverbs = ["/dev/infiniband/uverbs", " is missing: docker --device /dev/infiniband"];
            let manager = ["/dev/infiniband/rdma_cm is missing: modprobe rdma_ucm", "docker --device"];
            has_no_rdma(address, &nodes("rdma_cm", "rw"), &uverbs, false).await;
            has_no_rdma(address, &nodes("uverbs*", "rw"), &manager, false).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn device_nodes_that_may_not_be_opened_are_named_with_the_fix() {
    if let Some(address) = addresses().into_iter().next() {
        within(2 * BOUND, async {
            let reason = ["failed on ", "Permission denied", "give the process access to /dev/infiniband"];
            has_no_rdma(address, &nodes("*", "nodev"), &reason, false).await;
        })
        .await;
    }
}
