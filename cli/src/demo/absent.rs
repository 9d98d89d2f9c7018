//! Links that this machine or this build does not have, and what would bring them.

use ringmail::fabric::Fabric;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::Refused;
use super::plan::{Link, bytes};

/// What an RDMA device pins for one end of a connection: the ring that this side writes, the one that the peer writes,
/// mapped twice, both of the default size, and a page.
const PINNED_PER_CONNECTION: u64 = 3 * 256 * 1024 + 4096;

/// One paragraph for each; with `--only`, about nothing that was not asked for.
pub(crate) fn lines(only: Option<Link>, has_rdma: bool, refused: &[Refused]) -> Vec<String> {
    let refused = refused.iter().map(|(link, reason)| absent(link.name(), reason));
    let rdma = (only.is_none() && !has_rdma).then(|| absent("rdma", &rdma_reason()));
    refused.chain(rdma).collect()
}

/// Why there is no RDMA here.
pub(crate) fn rdma_reason() -> String {
    rdma(cfg!(feature = "rdma"), &Fabric::of_this_host(), memlock())
}

fn absent(link: &str, reason: &str) -> String {
    format!("{link:<5} not measured: {reason}")
}

/// How much this process may lock, in bytes; `None` when there is no limit.
fn memlock() -> Option<u64> {
    // The kernel does not apply the limit to those who have the capability.
    let exempt =
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if exempt { None } else { getrlimit(Resource::Memlock).current }
}

fn rdma(built: bool, fabric: &Fabric, memlock: Option<u64>) -> String {
    let found = if fabric.devices.is_empty() {
        format!("this machine has {}", fabric.absence(None))
    } else {
        let names: Vec<_> = fabric.devices.iter().map(|device| device.name.as_str()).collect();
        format!("this machine has {} (ringmail devices tells more)", names.join(", "))
    };
    let locked = memlock.filter(|limit| *limit < PINNED_PER_CONNECTION).map_or_else(String::new, |limit| {
        format!(
            ". The memlock limit, {}, is also below the {} that the rings of one connection pin: raise it with ulimit \
             -l or systemd's LimitMEMLOCK=",
            bytes(limit as usize),
            bytes(PINNED_PER_CONNECTION as usize)
        )
    });
    let build = if built {
        "no address of this host belongs to an RDMA device that can be opened: "
    } else {
        "this build has no RDMA (build it with --features rdma, which needs libibverbs-dev, librdmacm-dev and \
         libclang-dev), and "
    };
    format!("{build}{found}{locked}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with folders of these names where its devices are.
    fn fabric(devices: &[&str]) -> Fabric {
        let root = tempfile::tempdir().unwrap();
        for device in devices {
            std::fs::create_dir_all(root.path().join("sys/class/infiniband").join(device)).unwrap();
        }
        Fabric::read(root.path())
    }

    #[test]
    fn the_line_names_the_devices_or_what_would_bring_one() {
        let text = rdma(true, &fabric(&["mlx5_0", "mlx5_1"]), None);
        assert!(text.contains("mlx5_0, mlx5_1") && !text.contains("rdma link add"), "{text}");
        assert!(rdma(true, &fabric(&[]), None).contains("rdma link add"));
    }

    #[test]
    fn a_memlock_limit_is_named_only_when_it_is_too_small() {
        let none = fabric(&[]);
        let text = rdma(false, &none, Some(64 * 1024));
        assert!(text.contains("--features rdma"), "{text}");
        assert!(text.contains("64 KiB") && text.contains("772 KiB") && text.contains("ulimit -l"), "{text}");
        for enough in [Some(PINNED_PER_CONNECTION), None] {
            assert!(!rdma(false, &none, enough).contains("memlock"));
        }
    }

    #[test]
    fn a_refused_link_is_named_with_its_reason_whatever_was_asked_for() {
        let refused = [(Link::Shm, "the peer runs on another host".to_owned())];
        for only in [None, Some(Link::Shm)] {
            assert_eq!(lines(only, true, &refused)[0], "shm   not measured: the peer runs on another host");
        }
        assert_eq!(lines(Some(Link::Tcp), false, &[]), Vec::<String>::new());
    }
}
