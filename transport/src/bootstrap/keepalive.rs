//! Noticing that a peer's host, or the network to it, has gone without a word.
//!
//! A process that dies takes its sockets with it, and its kernel says so. A host that loses power, and a cable that is
//! cut, say nothing: only TCP, asked to, finds out that nobody acknowledges any more.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// How long a peer's host may be silent unless told otherwise: what gRPC waits for the answer to a keepalive ping by default.
pub(super) const DEFAULT: Duration = Duration::from_secs(20);
/// Probes without an answer before the end.
const PROBES: u32 = 3;

/// Has the kernel end `socket` once its peer's host has not acknowledged anything for `silence`: data that is under way, or,
/// when there is none, probes that it is sent.
pub(super) fn set(socket: &TcpStream, silence: Duration) {
    let (idle, interval) = spacing(silence);
    let set = || -> Result<(), Errno> {
        sockopt::set_tcp_keepidle(socket, idle)?;
        sockopt::set_tcp_keepintvl(socket, interval)?;
        sockopt::set_tcp_keepcnt(socket, PROBES)?;
        // Without it data that nobody acknowledges is sent again for a quarter of an hour (tcp_retries2), during which
        // there are no probes.
        sockopt::set_tcp_user_timeout(socket, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX).max(1))?;
        sockopt::set_socket_keepalive(socket, true)
    };
    if let Err(errno) = set() {
        tracing::warn!(%errno, "cannot set TCP's keepalive; a host that vanishes will not be noticed");
    }
}

/// When the first probe is sent, and how far apart they are: whole seconds, which is what the kernel takes.
fn spacing(silence: Duration) -> (Duration, Duration) {
    // tcp(7) allows 1 to 32,767 seconds.
    let whole = |part: Duration| Duration::from_secs(part.as_secs().clamp(1, 32_767));
    let interval = whole(silence / 6);
    (whole(silence.saturating_sub(interval * PROBES)), interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_end_with_the_silence_that_is_allowed() {
        let seconds = Duration::from_secs;
        assert_eq!(spacing(DEFAULT), (seconds(11), seconds(3)));
        assert_eq!(spacing(seconds(60)), (seconds(30), seconds(10)));
        for short in [0, 1, 2, 3] {
            assert_eq!(spacing(seconds(short)), (seconds(1), seconds(1)));
        }
        assert_eq!(spacing(Duration::MAX), (seconds(32_767), seconds(32_767)));
    }

    #[tokio::test]
    async fn the_kernel_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set(&socket, Duration::from_millis(12_500));
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&socket), Ok(12_500));
        assert_eq!(sockopt::tcp_keepidle(&socket), Ok(Duration::from_secs(6)));
        assert_eq!(sockopt::tcp_keepintvl(&socket), Ok(Duration::from_secs(2)));
        assert_eq!(sockopt::tcp_keepcnt(&socket), Ok(PROBES));
    }
}
