//! Links that this machine or this build does not have, and what would bring them.

use super::plan::Link;

/// One line for each.
pub(crate) fn lines(only: Option<Link>) -> Vec<String> {
    if only.is_some() {
        return Vec::new();
    }
    let devices = std::fs::read_dir("/sys/class/infiniband")
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    vec![rdma(devices)]
}

fn rdma(mut devices: Vec<String>) -> String {
    devices.sort();
    let found = if devices.is_empty() {
        "this machine has no RDMA device (nothing in /sys/class/infiniband); a RoCE, iWARP or InfiniBand adapter with \
         its driver brings one, or Soft-RoCE: rdma link add rxe0 type rxe netdev eth0"
            .to_owned()
    } else {
        format!("this machine has {}", devices.join(", "))
    };
    format!("rdma  not measured: this version of Ringmail has no RDMA link yet, and {found}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_line_names_the_devices_or_what_would_bring_one() {
        assert!(super::rdma(vec!["mlx5_1".into(), "mlx5_0".into()]).contains("mlx5_0, mlx5_1"));
        assert!(super::rdma(Vec::new()).contains("rdma link add"));
    }
}
