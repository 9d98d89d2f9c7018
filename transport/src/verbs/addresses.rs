//! The local addresses that RDMA devices have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use super::Context;

/// The addresses of this host through which RDMA is possible, each with its device's name. Opens the devices to find out.
#[must_use]
pub fn local_addresses() -> Vec<(IpAddr, String)> {
    let mut found: Vec<_> = addresses()
        .into_iter()
        .filter_map(|address| Some((address, Context::for_address(address).ok()?.device_name().to_owned())))
        .collect();
    found.dedup();
    found
}

/// Addresses of all interfaces but those that work only with a scope, or on this host.
fn addresses() -> Vec<IpAddr> {
    let mut list = ptr::null_mut();
    // SAFETY: the argument is where a pointer can be stored.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `next` is an element of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an address, where there is one, begins with its family.
        let Some(family) = (unsafe { entry.ifa_addr.as_ref() }).map(|address| i32::from(address.sa_family))
        else {
            continue;
        };
        let address = match family {
            libc::AF_INET => {
                // SAFETY: addresses of this family are of this type; it may be less aligned in the list.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        let needs_scope = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        if !address.is_loopback() && !needs_scope {
            found.push(address);
        }
    }
    // SAFETY: it was made by `getifaddrs`, and nothing of it is kept.
    unsafe { libc::freeifaddrs(list) };
    found
}
