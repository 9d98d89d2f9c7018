//! Which RDMA devices a host has, what they are connected to, and which of their GIDs a connection uses.
//!
//! ```text
//!   /sys/class/infiniband ──▶ Fabric ──▶ choose ──▶ which GID, and why not the others
//!   rtnetlink ──────────────▶ Local ───────┘ └────▶ account, for whoever has no RDMA
//! ```
//!
//! Nothing here needs the cargo feature `rdma`, or a device: only files are read, and where there are none all is
//! unknown. Reading is bounded, so that a recording of another host can be read as well, whatever it holds.
//! Connections are made by the connection manager, which decides for itself; this says what it does, and
//! [`Choice::difference`] compares.

mod account;
mod choice;
mod device;
mod fact;
mod interface;
mod local;
mod read;
mod tree;

use std::path::{Path, PathBuf};

pub use self::choice::{Choice, Entry, Verdict, choose};
pub use self::device::{Device, DeviceNode, Gid, LinkLayer, NodeType, Port, PortState, Protocol};
pub use self::fact::Fact;
pub use self::interface::Interface;
pub use self::local::{Local, local_addresses};
use self::tree::Tree;

/// The RDMA devices of a host at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Where was looked.
    pub folder: PathBuf,
    /// Why that could not be read, unless it was or is simply not there.
    pub problem: Option<String>,
    /// The devices, in the order in which they were registered as far as that is known.
    pub devices: Vec<Device>,
    /// Network interfaces, RDMA or not.
    pub interfaces: Vec<Interface>,
    /// Whether the connection manager's node, `/dev/infiniband/rdma_cm`, is there.
    pub has_connection_manager: bool,
}

impl Fabric {
    /// Reads those of this host.
    #[must_use]
    pub fn of_this_host() -> Self {
        Self::read(Path::new("/"))
    }

    /// Reads those of the host whose `/sys` and `/dev` are below a folder.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let tree = Tree::new(root);
        let interfaces = Interface::read_all(&tree);
        let (devices, problem) = match read::devices(&tree, &interfaces) {
            Fact::Known(devices) => (devices, None),
            Fact::Unknown => (Vec::new(), None),
            Fact::Unreadable(why) => (Vec::new(), Some(why)),
        };
        Self {
            folder: tree.path(read::FOLDER),
            problem,
            devices,
            interfaces,
            has_connection_manager: tree.has("dev/infiniband/rdma_cm"),
        }
    }
}
