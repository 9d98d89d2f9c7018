//! Watching over the TCP connection of a peer whose calls travel on another link.

use ringmail_transport::link::LinkError;
use ringmail_transport::link::tcp::TcpLink;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Waits until the peer has closed its end (or its process has died, which the kernel turns into the same), or this
/// side has `ended` the connection, and says which. Nothing is ever sent on it: a peer that does is treated as gone.
pub(crate) async fn until_gone(watch: &TcpStream, ended: &Notify) -> LinkError {
    let gone = async {
        while watch.readable().await.is_ok() {
            match watch.try_read(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(_) => break,
                Err(error) => {
                    return Errno::from_io_error(&error)
                        .map_or(LinkError::PeerClosed, |errno| TcpLink::failed("recv", errno));
                }
            }
        }
        LinkError::PeerClosed
    };
    tokio::select! {
        why = gone => why,
        () = ended.notified() => LinkError::PeerClosed,
    }
}
