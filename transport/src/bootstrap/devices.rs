//! What sysfs says of the device that an address belongs to, beside what the connection manager says.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::fabric::{Fabric, Local, choose};
use crate::verbs::{Context, VerbsError, try_to_open};

/// How long what was read is good for: peers that connect again and again shall not have it read each time.
const FRESH: Duration = Duration::from_secs(1);

/// What was read last, and when.
static LAST: Mutex<Option<(Instant, Arc<Fabric>)>> = Mutex::new(None);

/// The devices as they were at most so long ago.
fn fabric(at_most: Duration) -> Arc<Fabric> {
    let mut last = LAST.lock();
    if let Some((read, fabric)) = &*last
        && read.elapsed() < at_most
    {
        return Arc::clone(fabric);
    }
    let fabric = Arc::new(Fabric::of_this_host());
    *last = Some((Instant::now(), Arc::clone(&fabric)));
    fabric
}

/// Opens the device that a local address belongs to. Waits for the kernel.
///
/// # Errors
/// Why there is none, or none that can be used, which devices there are, and what to do.
pub(super) fn open(address: IpAddr) -> Result<Arc<Context>, String> {
    let context = Context::for_address(address);
    let local = Local::of_this_host(address);
    let context = context.map_err(|error| refusal(error, &fabric(FRESH), &local, try_to_open))?;
    let chosen =
        Chosen { device: context.device_name(), port: context.port().into(), gid: context.place().gid };
    let mut finding = chosen.check(&fabric(FRESH), &local);
    if finding != Finding::Fine {
        // What is wrong may have been put right.
        finding = chosen.check(&fabric(Duration::ZERO), &local);
    }
    match finding {
        Finding::Fine => {}
        Finding::Unexpected(difference) => tracing::warn!(%address, "{difference}"),
        Finding::Unusable(why) => {
            return Err(format!("the RDMA device with the address {address} cannot be used: {why}"));
        }
    }
    Ok(context)
}

/// Why the connection manager could not open the device, `try_to_open` says better than its own error.
fn refusal(
    error: VerbsError,
    fabric: &Fabric,
    local: &Local,
    try_to_open: impl FnOnce(&str, Option<&str>) -> Result<(), VerbsError>,
) -> String {
    let account = fabric.account(local);
    let address = local.address;
    let chosen = choose(fabric, Some(local)).chosen().map(|entry| entry.device.clone());
    let device = fabric.devices.iter().find(|device| Some(&device.name) == chosen.as_ref());
    let Some(device) = device else {
        return match error.errno() {
            // The usual answer for an address of another interface, of which the account says more.
            Some(Errno::NODEV | Errno::ADDRNOTAVAIL) if error.verb == "rdma_bind_addr" => {
                format!("no RDMA device has the address {address}: {account}")
            }
            _ => format!("no RDMA device could be opened for the address {address}: {error}. {account}"),
        };
    };
    let nodes = fabric.has_connection_manager && device.node.as_ref().is_none_or(|node| node.is_present);
    if !nodes {
        // Which the account says, and what to do.
        return format!("no RDMA device could be opened for the address {address}: {account}");
    }
    let node = device.node.as_ref().map(|node| node.name.as_str());
    let error = try_to_open(&device.name, node).err().unwrap_or(error);
    format!("no RDMA device could be opened for the address {address}: {error}. {account}")
}

/// What the connection manager has chosen for an address.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    device: &'a str,
    port: u32,
    gid: Option<Ipv6Addr>,
}

#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Fine,
    /// It is another choice than sysfs lets expect.
    Unexpected(String),
    /// The port carries nothing, so that connecting would end with the time-out.
    Unusable(String),
}

impl Chosen<'_> {
    fn check(&self, fabric: &Fabric, local: &Local) -> Finding {
        let device = fabric.devices.iter().find(|device| device.name == self.device);
        let port = device.and_then(|device| device.ports.iter().find(|port| port.number == self.port));
        // Containers may have the device without its folder in sysfs.
        let (Some(device), Some(port)) = (device, port) else { return Finding::Fine };
        if port.is_down() || port.lacks_subnet_manager() {
            return Finding::Unusable(fabric.port_advice(device, port).unwrap_or_default());
        }
        let difference = choose(fabric, Some(local)).difference(self.device, self.port, self.gid);
        difference.map_or(Finding::Fine, Finding::Unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Fact, PortState, Protocol};
    use crate::verbs::Reason;

    fn local(address: &str) -> Local {
        Local { address: address.parse().unwrap(), interface: Fact::Known("net-rxe".into()) }
    }

    #[test]
    fn a_refusal_says_what_there_is_and_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let (fabric, local) = (Fabric::read(root.path()), local("10.0.0.1"));
        let error = |verb, errno| VerbsError::new(verb, Reason::System(errno), &Arc::default());
        let known =
            |_: &str, _: Option<&str>| -> Result<(), VerbsError> { panic!("there is no device to open") };
        let text = refusal(error("rdma_bind_addr", Errno::NODEV), &fabric, &local, known);
        assert!(text.starts_with("no RDMA device has the address 10.0.0.1: no RDMA device ("), "{text}");
        assert!(text.contains("rdma link add") && !text.contains("os error"), "{text}");
        // Another reason is the device's or the kernel's, and is told.
        let text = refusal(error("rdma_create_event_channel", Errno::NOENT), &fabric, &local, known);
        assert!(text.contains("modprobe rdma_rxe") && text.contains("rdma_ucm"), "{text}");
        // What a peer cuts reasons to.
        assert!(text.len() < 500, "{}", text.len());
    }

    #[test]
    fn of_a_device_that_cannot_be_opened_the_first_reason_is_told() {
        let root = tempfile::tempdir().unwrap();
        let (fabric, local) = (one_device(root.path()), local("10.99.0.1"));
        let error = |verb, errno| VerbsError::new(verb, Reason::System(errno), &Arc::default());
        let nothing = || error("rdma_bind_addr", Errno::NODEV);
        // Without nodes there is nothing to try.
        let text = refusal(nothing(), &fabric, &local, |_, _| panic!("there is nothing to open"));
        assert!(text.contains("/dev/infiniband/rdma_cm is missing"), "{text}");
        let fabric = Fabric { has_connection_manager: true, ..fabric };
        let text = refusal(nothing(), &fabric, &local, |device, node| {
            assert_eq!((device, node), ("rxe0", None));
            Err(error("ibv_open_device", Errno::AGAIN))
        });
        assert!(text.contains("ibv_open_device failed") && text.contains("rdma.max"), "{text}");
        assert!(!text.contains("rdma_bind_addr") && !text.contains("no RDMA device has"), "{text}");
        let text = refusal(nothing(), &fabric, &local, |_, _| Ok(()));
        assert!(text.contains("rdma_bind_addr failed"), "{text}");
    }

    /// With the address 10.99.0.1.
    fn one_device(root: &std::path::Path) -> Fabric {
        for (path, says) in [
            ("node_type", "1: CA"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a63:0001"),
            ("ports/1/gid_attrs/types/0", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/0", "net-rxe"),
        ] {
            let path = root.join("sys/class/infiniband/rxe0").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, says).unwrap();
        }
        Fabric::read(root)
    }

    #[test]
    fn what_the_connection_manager_chose_is_checked() {
        let root = tempfile::tempdir().unwrap();
        let mut fabric = one_device(root.path());
        let local = local("10.99.0.1");
        let gid = Some("::ffff:10.99.0.1".parse().unwrap());
        let chosen = Chosen { device: "rxe0", port: 1, gid };
        assert_eq!(chosen.check(&fabric, &local), Finding::Fine);
        let other = Chosen { gid: Some("fe80::1".parse().unwrap()), ..chosen };
        let Finding::Unexpected(text) = other.check(&fabric, &local) else { panic!("it was expected") };
        assert!(text.contains("fe80::1") && text.contains("10.99.0.1, RoCE v2"), "{text}");
        // Not in sysfs: nothing is known against it.
        assert_eq!(Chosen { device: "rxe1", ..chosen }.check(&fabric, &local), Finding::Fine);
        let port = &mut fabric.devices[0].ports[0];
        port.state = Fact::Known(PortState::Down);
        let Finding::Unusable(text) = chosen.check(&fabric, &local) else { panic!("it can be used") };
        assert!(text.contains("rxe0 port 1 is DOWN"), "{text}");
        let port = &mut fabric.devices[0].ports[0];
        (port.state, port.lid) = (Fact::Known(PortState::Active), Fact::Known(0));
        assert_eq!(chosen.check(&fabric, &local), Finding::Fine);
        fabric.devices[0].ports[0].protocol = Protocol::InfiniBand;
        assert!(matches!(chosen.check(&fabric, &local), Finding::Unusable(_)));
    }
}
