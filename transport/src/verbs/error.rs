//! What went wrong in a verbs call, and where.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rdma_sys::{ibv_wc_status, rdma_cm_event_type};
use rustix::io::Errno;

use super::manager::EventKind;

/// Where something happens, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Name of the device, as in `/sys/class/infiniband`.
    pub device: Option<String>,
    /// Its port.
    pub port: Option<u8>,
    /// The port's address that is used.
    pub gid: Option<std::net::Ipv6Addr>,
    /// The queue pair's number.
    pub queue_pair: Option<u32>,
    /// The peer's address, as the connection manager knows it.
    pub peer: Option<SocketAddr>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            Some(device) => write!(f, "{device}")?,
            None => write!(f, "no device yet")?,
        }
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        if let Some(gid) = self.gid {
            write!(f, " GID {gid}")?;
        }
        if let Some(number) = self.queue_pair {
            write!(f, " queue pair {number}")?;
        }
        if let Some(peer) = self.peer {
            write!(f, " to {peer}")?;
        }
        Ok(())
    }
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionStatus(u32);

impl CompletionStatus {
    /// The request was carried out.
    pub const SUCCESS: Self = Self(ibv_wc_status::IBV_WC_SUCCESS);
    /// The queue pair had failed before, or was taken down.
    pub const FLUSHED: Self = Self(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    /// The peer's device refused access to its memory.
    pub const REMOTE_ACCESS: Self = Self(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    /// The peer did not answer.
    pub const RETRIES_EXCEEDED: Self = Self(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    /// The peer had no receive request.
    pub const NOT_READY: Self = Self(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);

    pub(super) fn from_wire(status: ibv_wc_status::Type) -> Self {
        Self(status)
    }

    fn meaning(self) -> &'static str {
        match self.0 {
            ibv_wc_status::IBV_WC_SUCCESS => "success",
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => {
                "a message was longer than the receive request or the port allows"
            }
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => "the device refused the request",
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => "the request names memory that is not registered for it",
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "the queue pair had failed before or was taken down",
            ibv_wc_status::IBV_WC_BAD_RESP_ERR => "the peer's answer made no sense",
            ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => "the peer wrote to memory that it may not write",
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => "the peer's device found the request invalid",
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => "the peer's device refused access to its memory",
            ibv_wc_status::IBV_WC_REM_OP_ERR => "the peer's device could not carry the request out",
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => {
                "the peer did not answer: it is gone, or packets do not reach it (GID, MTU, VLAN, firewall)"
            }
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive request posted",
            ibv_wc_status::IBV_WC_REM_ABORT_ERR => "the peer aborted the request",
            ibv_wc_status::IBV_WC_FATAL_ERR => "the device reported a fatal error",
            ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => "the peer's answer came too late",
            _ => "the device reported an error",
        }
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (completion status {})", self.meaning(), self.0)
    }
}

/// Why a call or a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The call returned an error.
    System(Errno),
    /// Memory could not be registered.
    Unregistered {
        /// What the call returned.
        errno: Errno,
        /// Bytes that were to be registered.
        bytes: u64,
        /// Bytes that this process had registered.
        registered: u64,
        /// Bytes that it may lock (`RLIMIT_MEMLOCK`); `None` when that is not limited.
        limit: Option<u64>,
    },
    /// A work request ended badly.
    Completion {
        /// How.
        status: CompletionStatus,
        /// What the device's vendor has to say about it.
        vendor: u32,
    },
    /// The connection manager reported something else than was waited for.
    Event {
        /// What it reported.
        kind: EventKind,
        /// Its status: an error number, or what the peer gave as reason.
        status: i32,
    },
    /// The device lacks something.
    Lacks(&'static str),
}

/// A failed verbs call or work request.
#[derive(Clone, Debug)]
pub struct VerbsError {
    /// The call, or the kind of work request.
    pub verb: &'static str,
    /// Why it failed.
    pub reason: Reason,
    /// Where.
    pub place: Arc<Place>,
}

impl VerbsError {
    pub(crate) fn new(verb: &'static str, reason: Reason, place: &Arc<Place>) -> Self {
        Self { verb, reason, place: Arc::clone(place) }
    }

    /// A call that fails by returning nothing and setting `errno`.
    pub(super) fn last(verb: &'static str, place: &Arc<Place>) -> Self {
        Self::new(verb, Reason::System(last_errno()), place)
    }

    /// Reads what a verb (`ibv_*`) returned: 0, or the error itself, whose sign depends on the provider; or −1 with
    /// `errno` set.
    pub(super) fn check_verb(code: i32, verb: &'static str, place: &Arc<Place>) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            -1 => Err(Self::last(verb, place)),
            code => Err(Self::new(verb, Reason::System(errno_of(code.saturating_abs())), place)),
        }
    }

    /// Reads what a call of the connection manager (`rdma_*`) returned: 0, or −1 with `errno` set.
    pub(super) fn check_manager(code: i32, verb: &'static str, place: &Arc<Place>) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self::last(verb, place)) }
    }

    /// The error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self.reason {
            Reason::System(errno) | Reason::Unregistered { errno, .. } => Some(errno),
            _ => None,
        }
    }

    /// What would help, where that is known.
    #[must_use]
    pub fn fix(&self) -> Option<&'static str> {
        let errno = self.errno()?;
        Some(match (self.verb, errno) {
            // Beyond a cgroup's limit it is EAGAIN, as with all that the kernel counts there. With a limit of nothing it is
            // EPERM.
            ("ibv_reg_mr", Errno::NOMEM | Errno::PERM) => match self.reason {
                Reason::Unregistered { limit: None, .. } => {
                    "the host, or the device, has no more memory for it: use fewer connections or smaller rings"
                }
                _ => {
                    "raise the limit on locked memory (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock=-1)"
                }
            },
            ("rdma_bind_addr" | "rdma_resolve_addr", Errno::NODEV | Errno::ADDRNOTAVAIL) => {
                "use the address of an interface that belongs to an RDMA device"
            }
            ("rdma_create_event_channel", Errno::NOENT | Errno::NODEV) => {
                "load the kernel module rdma_ucm and make /dev/infiniband/rdma_cm available (docker --device)"
            }
            (_, Errno::MFILE | Errno::NFILE) => "raise the limit on open files (ulimit -n)",
            (_, Errno::PERM | Errno::ACCESS) => {
                "give the process access to /dev/infiniband and CAP_IPC_LOCK or a memlock limit"
            }
            (_, Errno::AGAIN) => "raise the rdma cgroup's limits (rdma.max)",
            (_, Errno::NOMEM | Errno::NOSPC) => {
                "the device has no more of it: use fewer connections per device"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed on {}: ", self.verb, self.place)?;
        match self.reason {
            Reason::System(errno) => write!(f, "{errno}")?,
            Reason::Unregistered { errno, bytes, registered, limit } => {
                let kib = |bytes: u64| bytes.div_ceil(1024);
                write!(f, "{errno}: {} KiB were to be locked", kib(bytes))?;
                write!(
                    f,
                    " beside {} KiB registered by this process, whose memlock limit is ",
                    kib(registered)
                )?;
                match limit {
                    Some(limit) => write!(f, "{} KiB", kib(limit))?,
                    None => write!(f, "unlimited")?,
                }
            }
            Reason::Completion { status, vendor } => write!(f, "{status}, vendor code {vendor:#x}")?,
            Reason::Event { kind, status } => write!(f, "{kind} (status {status})")?,
            Reason::Lacks(what) => write!(f, "the device lacks {what}")?,
        }
        match self.fix() {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for VerbsError {}

/// What the last failed call of this thread left in `errno`; providers that fail without saying why get `EIO`.
fn last_errno() -> Errno {
    errno_of(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// An error number as a provider gives it, which may be none: then `EIO`.
fn errno_of(code: i32) -> Errno {
    // What Linux can return as an error.
    if (1..4096).contains(&code) { Errno::from_raw_os_error(code) } else { Errno::IO }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.number() {
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED => "the address was resolved",
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR => {
                "the address could not be resolved on an RDMA device"
            }
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => "the route was resolved",
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR => "no route: is a subnet manager running?",
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => "a peer asks for a connection",
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE => "the peer has answered",
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR => "the connection could not be made",
            rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE => {
                "the peer does not answer on the connection manager's port"
            }
            rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => "the peer refused the connection",
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => "the connection is up",
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => "the peer has disconnected",
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => "the device was removed",
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_CHANGE => "the device's address has changed",
            rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => "the queue pair's number may be used again",
            _ => "an event of the connection manager",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Arc<Place> {
        Arc::new(Place {
            device: Some("rxe0".into()),
            port: Some(1),
            gid: Some("::ffff:10.99.0.1".parse().unwrap()),
            queue_pair: Some(17),
            peer: Some("10.99.0.2:7400".parse().unwrap()),
        })
    }

    #[test]
    fn the_error_is_found_whatever_the_convention() {
        let errno = |code| VerbsError::check_verb(code, "ibv_post_send", &place()).unwrap_err().errno();
        assert_eq!(errno(22), Some(Errno::INVAL));
        assert_eq!(errno(-22), Some(Errno::INVAL));
        // No error number at all.
        assert_eq!(errno(i32::MIN), Some(Errno::IO));
        assert_eq!(errno(4096), Some(Errno::IO));
        let failed =
            rustix::fs::open("/nonexistent/\0", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        assert!(failed.is_err());
        // SAFETY: closing a descriptor that cannot exist touches nothing; it sets `errno`, which rustix does not.
        assert_eq!(unsafe { libc::close(-1) }, -1);
        assert_eq!(errno(-1), Some(Errno::BADF));
        VerbsError::check_verb(0, "ibv_post_send", &place()).unwrap();
    }

    #[test]
    fn an_error_says_what_where_and_why() {
        let status = CompletionStatus::RETRIES_EXCEEDED;
        let error = VerbsError::new("WRITE", Reason::Completion { status, vendor: 0x81 }, &place());
        let text = error.to_string();
        for part in [
            "WRITE",
            "rxe0 port 1",
            "::ffff:10.99.0.1",
            "queue pair 17",
            "10.99.0.2:7400",
            "0x81",
            "did not answer",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }

    #[test]
    fn memory_that_could_not_be_registered_is_told_beside_the_limit() {
        let error = |errno, limit| {
            let reason = Reason::Unregistered { errno, bytes: 262_144, registered: 4096, limit };
            VerbsError::new("ibv_reg_mr", reason, &place()).to_string()
        };
        for errno in [Errno::NOMEM, Errno::PERM] {
            let text = error(errno, Some(65_536));
            for part in ["256 KiB", "beside 4 KiB", "memlock limit is 64 KiB", "ulimit -l", "rxe0"] {
                assert!(text.contains(part), "{part} is missing in: {text}");
            }
        }
        let text = error(Errno::NOMEM, None);
        assert!(text.contains("unlimited") && !text.contains("ulimit"), "{text}");
        assert!(error(Errno::AGAIN, None).contains("rdma.max"));
    }

    #[test]
    fn an_error_names_the_fix_where_there_is_one() {
        let error = VerbsError::new("ibv_reg_mr", Reason::System(Errno::NOMEM), &place());
        assert!(error.to_string().contains("ulimit -l"), "{error}");
        let error = VerbsError::new("rdma_bind_addr", Reason::System(Errno::NODEV), &Arc::default());
        assert!(
            error.to_string().contains("no device yet") && error.to_string().contains("interface"),
            "{error}"
        );
        for (verb, errno, fix) in [
            ("ibv_reg_mr", Errno::AGAIN, "rdma.max"),
            ("rdma_create_qp", Errno::AGAIN, "rdma.max"),
            ("rdma_create_event_channel", Errno::NOENT, "/dev/infiniband/rdma_cm"),
            ("rdma_create_event_channel", Errno::NODEV, "rdma_ucm"),
            ("rdma_create_event_channel", Errno::ACCESS, "/dev/infiniband"),
            ("rdma_create_event_channel", Errno::MFILE, "ulimit -n"),
        ] {
            let error = VerbsError::new(verb, Reason::System(errno), &place());
            assert!(error.to_string().contains(fix), "{error}");
        }
        assert_eq!(VerbsError::new("ibv_poll_cq", Reason::System(Errno::IO), &place()).fix(), None);
    }
}
