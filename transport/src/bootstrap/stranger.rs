//! Those who speak another protocol: what it seems to be, and what to do about it.

use std::fmt;
use std::io;

use tokio::io::AsyncReadExt;

use super::hello::MAGIC;

/// What a stranger at the other end spoke, judged by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stranger {
    /// HTTP/1.x.
    Http1,
    /// HTTP/2 with prior knowledge, from a client: gRPC without TLS.
    Http2,
    /// HTTP/2 from a server: gRPC without TLS.
    GrpcServer,
    /// TLS: a ClientHello, or an alert from a server that wanted one.
    Tls,
    /// SSH.
    Ssh,
    /// Something else.
    Unknown,
}

impl Stranger {
    /// Judges a protocol by its first eight bytes, or fewer if that is all that was said.
    #[must_use]
    pub fn from_first_bytes(bytes: &[u8]) -> Self {
        const METHODS: [&[u8]; 7] =
            [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH "];
        match bytes {
            b"PRI * HT" => Self::Http2,
            _ if METHODS.iter().any(|method| bytes.starts_with(method)) => Self::Http1,
            _ if bytes.starts_with(b"HTTP/1") => Self::Http1,
            _ if bytes.starts_with(b"SSH-") => Self::Ssh,
            [0x15 | 0x16, 3, ..] => Self::Tls,
            // A SETTINGS or GOAWAY frame on stream 0: a length of 24 bits, the type, no flags, the stream.
            [0, _, _, 4 | 7, 0, 0, 0, 0] => Self::GrpcServer,
            _ => Self::Unknown,
        }
    }

    /// What whoever meets it can do.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::GrpcServer => "this is a gRPC server: use tonic's client, or the Ringmail port",
            Self::Tls => "check the address and port (Ringmail has no TLS)",
            _ => "check the address and port",
        }
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "HTTP/1",
            Self::Http2 | Self::GrpcServer => "HTTP/2 (gRPC)",
            Self::Tls => "TLS",
            Self::Ssh => "SSH",
            Self::Unknown => "an unknown protocol",
        })
    }
}

/// Reads a side's first bytes: `None` if they are [`MAGIC`].
///
/// # Errors
/// When nothing is said, or less than all of the magic.
pub(super) async fn meet(socket: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<Stranger>> {
    let (mut bytes, mut count) = ([0; MAGIC.len()], 0);
    let mut end = None;
    while count < bytes.len() && end.is_none() {
        match socket.read(&mut bytes[count..]).await {
            Ok(0) => end = Some(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => count += more,
            Err(error) => end = Some(error),
        }
    }
    let said = &bytes[..count];
    match end {
        // A TLS server says seven bytes and hangs up.
        Some(error) if MAGIC.starts_with(said) => Err(error),
        None if said == MAGIC => Ok(None),
        _ => Ok(Some(Stranger::from_first_bytes(said))),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_recognised() {
        let judge = Stranger::from_first_bytes;
        assert_eq!(judge(b"GET / HT"), Stranger::Http1);
        assert_eq!(judge(b"OPTIONS "), Stranger::Http1);
        assert_eq!(judge(b"HTTP/1.1"), Stranger::Http1);
        assert_eq!(judge(b"PRI * HT"), Stranger::Http2);
        assert_eq!(judge(b"\0\0\x06\x04\0\0\0\0"), Stranger::GrpcServer);
        assert_eq!(judge(b"\0\0\x08\x07\0\0\0\0"), Stranger::GrpcServer);
        assert_eq!(judge(b"\x16\x03\x01\x02\x00\x01\x00\x01"), Stranger::Tls);
        assert_eq!(judge(b"\x15\x03\x03\0\x02\x02\x16"), Stranger::Tls);
        assert_eq!(judge(b"SSH-2.0-"), Stranger::Ssh);
        for unknown in [&b""[..], b"\0\0\0\0\0\0\0\0", b"RINGMAIM", b"220 mail"] {
            assert_eq!(judge(unknown), Stranger::Unknown);
        }
    }

    #[tokio::test]
    async fn a_part_of_the_magic_is_no_stranger() {
        for (mut said, is_error) in [(&b""[..], true), (b"RING", true), (b"RINGMAIL!", false)] {
            let met = meet(&mut said).await;
            assert_eq!(met.is_err(), is_error);
            assert!(met.is_err() || met.is_ok_and(|stranger| stranger.is_none()));
        }
    }
}
