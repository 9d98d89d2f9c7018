//! What to do when the kernel does not connect.

use std::io;

use rustix::io::Errno;

/// What to look at, by what the kernel said to `connect` (or to `socket`, before that).
pub(super) fn unreachable(source: &io::Error) -> &'static str {
    let Some(errno) = Errno::from_io_error(source) else { return "check the address" };
    match errno {
        Errno::CONNREFUSED | Errno::CONNRESET => "check that the server runs and listens there",
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::HOSTDOWN => {
            "the host does not answer: check the address, the network, and the firewalls on the way"
        }
        Errno::NETUNREACH | Errno::NETDOWN => {
            "this host has no route there: check the address, and whether this host's network is up"
        }
        Errno::MFILE => "this process has no file descriptors left: close connections, or raise ulimit -n",
        Errno::NFILE => "this host has no file descriptors left: raise the sysctl fs.file-max",
        Errno::ADDRNOTAVAIL => {
            "this host has no address or no free port to connect from: check the address, whether very many connections \
             are open, and the sysctl net.ipv4.ip_local_port_range"
        }
        Errno::INVAL => {
            "nothing can be connected to at such an address (a link-local IPv6 address needs its interface: \
             [fe80::1%eth0])"
        }
        Errno::AFNOSUPPORT => "this host does not have that version of IP",
        Errno::ACCESS | Errno::PERM => {
            "this host does not allow it: check its firewall, or the sandbox it runs in"
        }
        Errno::NOBUFS | Errno::NOMEM => "this host is out of memory for sockets",
        _ => "check the address, and that the server runs and listens there",
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_refused_is_told_to_look_for_the_server() {
        let hint = |errno: Errno| unreachable(&errno.into());
        assert!(hint(Errno::CONNREFUSED).contains("server runs"));
        for (errno, says) in [
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "file-max"),
            (Errno::NETUNREACH, "no route"),
            (Errno::HOSTUNREACH, "does not answer"),
            (Errno::ADDRNOTAVAIL, "no free port"),
            (Errno::INVAL, "[fe80::1%eth0]"),
        ] {
            assert!(hint(errno).contains(says) && !hint(errno).contains("server runs"), "{}", hint(errno));
        }
        assert!(!unreachable(&io::ErrorKind::Other.into()).is_empty());
    }
}
