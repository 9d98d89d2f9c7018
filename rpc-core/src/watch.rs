//! Watching over the TCP connection of a peer whose calls travel on another link.

use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Waits until the peer has closed its end (or its process has died, which the kernel turns into the same), or this
/// side has `ended` the connection. Nothing is ever sent on it: a peer that does is treated as gone.
pub(crate) async fn until_gone(watch: &TcpStream, ended: &Notify) {
    let gone = async {
        while watch.readable().await.is_ok() {
            match watch.try_read(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return,
            }
        }
    };
    tokio::select! {
        () = gone => {}
        () = ended.notified() => {}
    }
}
