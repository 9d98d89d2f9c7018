//! The listening socket of a server.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::address::Address;
use crate::error::{AddressError, ServeError};

/// Connections that may wait to be accepted, at most what the kernel allows (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// Listens at the first address that can be had, and says which that is.
pub(super) async fn listen(address: &Address) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Listen { address: address.to_string(), source };
    let mut last = None;
    for resolved in address.resolve().await? {
        match listen_at(resolved) {
            Ok(listener) => {
                let local = listener.local_addr().map_err(failed)?;
                return Ok((listener, local));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(
        || AddressError::Unresolved { address: address.to_string(), reason: "no address".into() }.into(),
        failed,
    ))
}

fn listen_at(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    // A server that is started again need not wait for the connections of the last one to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn more_connections_than_a_library_would_let_wait_may_wait() {
        const CONNECTIONS: usize = 1500;
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux");
        let allowed: usize = allowed.trim().parse().expect("a number");
        assert!(allowed > CONNECTIONS, "net.core.somaxconn is {allowed}, which is what counts here");
        let (_listener, address) =
            listen(&Address::parse("127.0.0.1:0").expect("valid")).await.expect("listen");
        let mut waiting = Vec::new();
        for _ in 0..CONNECTIONS {
            // Nobody accepts. Beyond the backlog, connecting takes a second and more.
            let connecting = tokio::net::TcpStream::connect(address);
            let patience = std::time::Duration::from_millis(900);
            let connected = tokio::time::timeout(patience, connecting).await;
            waiting.push(connected.expect("there is room in the backlog").expect("connected"));
        }
    }
}
