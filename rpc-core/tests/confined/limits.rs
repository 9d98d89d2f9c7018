//! Limits: on locked memory, and those of a cgroup.

use super::has_no_rdma;
use crate::peers::within;
use crate::{BOUND, addresses};

/// At most so many KiB locked. Root could lock more, but for the capability that lets it.
fn memlock(kib: u32) -> String {
    format!(
        "exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c 'ulimit -l {kib}; exec \"$@\"' memlock \"$@\""
    )
}

/// In a cgroup of its own, which may have so much of each device.
fn cgroup(limits: &str) -> String {
    format!(
        r#"
        [ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 none /sys/fs/cgroup
        cd /sys/fs/cgroup
        echo +rdma >cgroup.subtree_control
        mkdir -p "limited-$$"
        for device in $(ls /sys/class/infiniband); do
          echo "$device {limits}" >"limited-$$/rdma.max"
        done
        echo $$ >"limited-$$/cgroup.procs"
        exec "$@"
        "#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_memory_that_may_be_locked_is_named_with_the_limit_and_the_fix() {
    for (at, address) in addresses().into_iter().enumerate() {
        within(2 * BOUND, async {
            // Nothing at all is another error, which is the kernel's on any device.
            for kib in [64, 0].into_iter().take(if at == 0 { 2 } else { 1 }) {
                let limit = format!("memlock limit is {kib} KiB");
                let reason = ["ibv_reg_mr failed on ", &limit, "256 KiB were to be locked", "ulimit -l"];
                has_no_rdma(address, &memlock(kib), &reason, true).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cgroup_that_allows_no_device_or_nothing_on_it_is_named() {
    // It is the kernel's, not the devices'.
    if let Some(address) = addresses().into_iter().next() {
        within(2 * BOUND, async {
            for (limits, call) in
                [("hca_handle=0", "ibv_open_device"), ("hca_handle=max hca_object=0", "ibv_alloc_pd")]
            {
                let call = format!("{call} failed on ");
                let reason = [&call[..], "rdma cgroup's limits (rdma.max)"];
                has_no_rdma(address, &cgroup(limits), &reason, false).await;
            }
            // Enough to open the device, not for a connection.
            let reason = [" failed on ", "rdma cgroup's limits (rdma.max)"];
            has_no_rdma(address, &cgroup("hca_handle=max hca_object=2"), &reason, true).await;
        })
        .await;
    }
}
