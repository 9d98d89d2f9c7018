//! Addresses of this host, and which interface has each: from the kernel, over rtnetlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::netdevice::index_to_name;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use super::Fact;
use super::tree::plain;

/// The kernel answers at once; this is for kernels that do not.
const PATIENCE: Duration = Duration::from_secs(1);
/// Parts of an answer that are read.
const MOST_PARTS: usize = 1024;

/// Of `struct nlmsghdr`: length, type, flags, sequence number and sender.
const HEADER: usize = 16;
/// Of `struct ifaddrmsg`: family, prefix, flags, scope and the interface's index.
const ADDRESS_HEADER: usize = 8;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_ALL: u16 = 0x301;
/// The address of the other end of a point-to-point interface, or else the own one.
const IFA_ADDRESS: u16 = 1;
/// The own address, where the other says something else.
const IFA_LOCAL: u16 = 2;

/// A local address, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The address.
    pub address: IpAddr,
    /// The interface that has it: unknown if none has, unreadable if that cannot be found out.
    pub interface: Fact<String>,
}

impl Local {
    /// An address, and the interface of this host (in this network namespace) that has it.
    #[must_use]
    pub fn of_this_host(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let interface = match local_addresses() {
            Ok(found) => {
                let found = found.into_iter().find(|local| local.address == address);
                found.map_or(Fact::Unknown, |local| local.interface)
            }
            Err(error) => Fact::Unreadable(error.to_string()),
        };
        Self { address, interface }
    }
}

/// All addresses of this host, in this network namespace.
///
/// # Errors
/// When the kernel does not tell.
pub fn local_addresses() -> io::Result<Vec<Local>> {
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 32 * 1024];
    for _ in 0..MOST_PARTS {
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let is_last = read_part(&buffer[..length], |index, address| {
            let interface = match index_to_name(&socket, index) {
                Ok(name) => Fact::Known(plain(&name)),
                Err(error) => Fact::Unreadable(error.to_string()),
            };
            found.push(Local { address, interface });
        })?;
        if is_last {
            return Ok(found);
        }
    }
    Err(io::Error::other("the kernel's list of addresses does not end"))
}

fn request() -> [u8; HEADER + ADDRESS_HEADER] {
    let mut request = [0; HEADER + ADDRESS_HEADER];
    request[..4].copy_from_slice(&((HEADER + ADDRESS_HEADER) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    request
}

/// Reads the messages of one part of the answer; whether it was the last.
fn read_part(mut part: &[u8], mut each: impl FnMut(u32, IpAddr)) -> io::Result<bool> {
    if part.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    while let Some((header, _)) = part.split_first_chunk::<HEADER>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(body) = part.get(HEADER..length) else { return Err(io::ErrorKind::InvalidData.into()) };
        match u16::from_ne_bytes([header[4], header[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            RTM_NEWADDR => {
                if let Some((index, address)) = read_address(body) {
                    each(index, address);
                }
            }
            _ => {}
        }
        part = part.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

fn read_address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let (header, mut attributes) = message.split_first_chunk::<ADDRESS_HEADER>()?;
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let (mut own, mut other) = (None, None);
    while let Some((head, _)) = attributes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = attributes.get(4..length)?;
        match u16::from_ne_bytes([head[2], head[3]]) {
            IFA_LOCAL => own = ip(value),
            IFA_ADDRESS => other = ip(value),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    Some((index, own.or(other)?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_on_the_loopback_interface() {
        let local = Local::of_this_host(Ipv4Addr::LOCALHOST.into());
        assert_eq!(local.interface, Fact::Known("lo".into()));
        // Of a network that is for documentation.
        let local = Local::of_this_host(Ipv4Addr::new(192, 0, 2, 77).into());
        assert_eq!(local.interface, Fact::Unknown);
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = vec![0; HEADER];
        message[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.extend(body);
        message.resize(aligned(message.len()), 0);
        message
    }

    #[test]
    fn the_own_end_of_a_point_to_point_interface_counts() {
        let mut body = vec![2, 32, 0, 0, 7, 0, 0, 0];
        for (kind, address) in [(IFA_ADDRESS, [10, 0, 0, 2]), (IFA_LOCAL, [10, 0, 0, 1])] {
            body.extend([8, 0, kind as u8, 0]);
            body.extend(address);
        }
        let mut seen = Vec::new();
        let part = [message(RTM_NEWADDR, &body), message(NLMSG_DONE, &[0; 4])].concat();
        assert!(read_part(&part, |index, address| seen.push((index, address))).unwrap());
        assert_eq!(seen, [(7, IpAddr::from([10, 0, 0, 1]))]);
    }

    #[test]
    fn answers_that_end_early_or_lie_about_lengths_are_errors_or_nothing() {
        let body = [&[2, 32, 0, 0, 7, 0, 0, 0, 8, 0, 2, 0][..], &[10, 0, 0, 1]].concat();
        let whole = message(RTM_NEWADDR, &body);
        for end in 0..whole.len() {
            let _ = read_part(&whole[..end], |_, address| panic!("{address} from {end} bytes"));
            let mut zeroed = whole.clone();
            zeroed[end] = 0;
            let _ = read_part(&zeroed, |_, _| {});
            zeroed[end] = 0xff;
            let _ = read_part(&zeroed, |_, _| {});
        }
        assert!(read_part(&[], |_, _| {}).is_err());
        assert!(read_part(&message(NLMSG_ERROR, &(-13_i32).to_ne_bytes()), |_, _| {}).is_err());
    }
}
