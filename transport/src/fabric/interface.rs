//! Network interfaces.

use super::Fact;
use super::tree::{Tree, plain};

const FOLDER: &str = "sys/class/net";
/// The flag of an interface that is switched on, `IFF_UP`.
const UP: u64 = 1;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Most bytes in one packet.
    pub mtu: Fact<u32>,
    /// Its hardware address: 6 bytes on Ethernet, 20 on InfiniBand, of which the last 16 are a GID.
    pub hardware_address: Fact<Vec<u8>>,
    /// Whether the administrator has switched it on.
    pub is_up: Fact<bool>,
}

impl Interface {
    /// All of a host.
    pub(super) fn read_all(tree: &Tree) -> Vec<Self> {
        let Fact::Known(names) = tree.names(FOLDER) else { return Vec::new() };
        // Other files can be there, such as bonding_masters.
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let interfaces = names.filter(|name| tree.has(format!("{FOLDER}/{name}/address")));
        interfaces.map(|name| Self::read(tree, &name)).collect()
    }

    fn read(tree: &Tree, name: &str) -> Self {
        let text = |file: &str| tree.text(format!("{FOLDER}/{name}/{file}"));
        Self {
            name: plain(name),
            mtu: text("mtu").parse(|text| text.parse().ok()),
            hardware_address: text("address").parse(|text| hardware_address(text)),
            is_up: text("flags").parse(|text| hexadecimal(text)).parse(|flags| Some(flags & UP != 0)),
        }
    }

    /// Whether a GID is made of its hardware address, as those of InfiniBand (IPoIB) and iWARP are.
    pub(super) fn is_hardware_of(&self, gid: std::net::Ipv6Addr) -> bool {
        let gid = gid.octets();
        self.hardware_address.known().is_some_and(|address| match address.len() {
            20 => address[4..] == gid,
            6 => address[..] == gid[..6] && gid[6..] == [0; 10],
            _ => false,
        })
    }
}

/// Reads `00:00:10:49:fe:80:…`.
fn hardware_address(text: &str) -> Option<Vec<u8>> {
    text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

/// Reads `0x1003`.
pub(super) fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
