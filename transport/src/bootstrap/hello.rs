//! The messages of the bootstrap: what each side says before frames flow.
//!
//! They are protobuf, defined in `proto/ringmail/bootstrap.proto`; unknown fields are ignored, so either side may
//! say more than the other understands. On the wire each is preceded by its length, and the client's first by
//! [`MAGIC`].

use std::io;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use super::stranger::Stranger;

/// First bytes that a client sends and a server answers with.
pub const MAGIC: &[u8; 8] = b"RINGMAIL";
/// Largest bootstrap message in bytes; a method table of two thousand methods fits.
pub const MESSAGE_LIMIT: u32 = 256 * 1024;
/// Oldest protocol version that this build speaks.
pub const VERSION_MIN: u32 = 1;
/// Newest protocol version that this build speaks.
pub const VERSION_MAX: u32 = 1;

/// What a peer says first.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// Oldest version spoken.
    #[prost(uint32, tag = "1")]
    pub version_min: u32,
    /// Newest version spoken.
    #[prost(uint32, tag = "2")]
    pub version_max: u32,
    /// 16 random bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub nonce: Vec<u8>,
    /// Ring size wanted, in bytes; both directions use the smaller of the two.
    #[prost(uint32, tag = "4")]
    pub ring_bytes: u32,
    /// Largest message accepted, in bytes.
    #[prost(uint64, tag = "5")]
    pub max_message_bytes: u64,
    /// Most calls accepted at a time on this connection.
    #[prost(uint32, tag = "6")]
    pub max_calls: u32,
    /// Whether frame headers should carry a check.
    #[prost(bool, tag = "7")]
    pub header_check: bool,
    /// Paths of the methods served, in the order of their indices in requests. Servers only.
    #[prost(string, repeated, tag = "8")]
    pub methods: Vec<String>,
    /// Who runs where, to find out whether memory can be shared.
    #[prost(message, optional, tag = "9")]
    pub host: Option<HostIdentity>,
    /// A way to share memory. Servers only.
    #[prost(message, optional, tag = "10")]
    pub shm: Option<ShmOffer>,
    /// Better links that are not offered, and why.
    #[prost(message, repeated, tag = "11")]
    pub refusals: Vec<WireRefusal>,
    /// Name and version of the software, for people.
    #[prost(string, tag = "12")]
    pub software: String,
    /// Why the connection will be closed right after this message; empty when it will not.
    #[prost(string, tag = "13")]
    pub error: String,
    /// RDMA is wanted (clients) or offered (servers).
    #[prost(message, optional, tag = "14")]
    pub rdma: Option<RdmaOffer>,
    /// Bytes of requests in fragments, metadata included, that may be on their way on this connection. Servers only; 0:
    /// one request at a time.
    #[prost(uint64, tag = "15")]
    pub max_fragmented_bytes: u64,
}

impl Hello {
    /// What the peer says it is, for error messages and logs: on one line, short, and never empty.
    #[must_use]
    pub fn software_name(&self) -> String {
        let name: String = self.software.chars().filter(|char| !char.is_control()).take(100).collect();
        if name.trim().is_empty() { "unnamed software".to_owned() } else { name }
    }
}

/// Where a process runs.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostIdentity {
    /// The kernel's id of this boot.
    #[prost(string, tag = "1")]
    pub boot_id: String,
    /// The network namespace, which scopes abstract sockets.
    #[prost(string, tag = "2")]
    pub net_namespace: String,
    /// Effective user id.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
}

/// Where and with what token memory can be shared.
#[derive(Clone, PartialEq, Message)]
pub struct ShmOffer {
    /// Abstract name of the unix socket.
    #[prost(string, tag = "1")]
    pub socket: String,
    /// 16 bytes, good for one handshake.
    #[prost(bytes = "vec", tag = "2")]
    pub token: Vec<u8>,
}

/// A link that is not used.
#[derive(Clone, PartialEq, Message)]
pub struct WireRefusal {
    /// Name of the link kind.
    #[prost(string, tag = "1")]
    pub link: String,
    /// Why not, and what would help.
    #[prost(string, tag = "2")]
    pub reason: String,
}

/// RDMA, from a client: that its device has the address that it comes from; from a server: where and with what secrets
/// the connection manager is asked for a connection.
#[derive(Clone, PartialEq, Message)]
pub struct RdmaOffer {
    /// Name of the device, for people.
    #[prost(string, tag = "1")]
    pub device: String,
    /// IP address and port of the connection manager. Servers only, as all that follow.
    #[prost(string, tag = "2")]
    pub address: String,
    /// 16 bytes that name this session.
    #[prost(bytes = "vec", tag = "3")]
    pub session: Vec<u8>,
    /// 16 bytes, good for one RDMA connection.
    #[prost(bytes = "vec", tag = "4")]
    pub token: Vec<u8>,
    /// 32 bytes, with which both sides prove to each other that they know this session.
    #[prost(bytes = "vec", tag = "5")]
    pub key: Vec<u8>,
}

/// One end of an RDMA connection: memory that the peer may write, and the keys to it.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct RdmaEnd {
    /// Address of the mailbox, mapped twice.
    #[prost(uint64, tag = "1")]
    pub ring_address: u64,
    /// Key to it.
    #[prost(uint32, tag = "2")]
    pub ring_key: u32,
    /// Address of the desk, a page for credit records.
    #[prost(uint64, tag = "3")]
    pub desk_address: u64,
    /// Key to that.
    #[prost(uint32, tag = "4")]
    pub desk_key: u32,
    /// Bytes in the ring.
    #[prost(uint32, tag = "5")]
    pub ring_bytes: u32,
    /// Notifications that may be on their way to this end.
    #[prost(uint32, tag = "6")]
    pub notifications: u32,
    /// Whether writes with an immediate may be sent to this end and come from it.
    #[prost(bool, tag = "7")]
    pub immediates: bool,
    /// Whether this end lends large messages, and reads those that are lent to it.
    #[prost(bool, tag = "8")]
    pub reads: bool,
}

/// The server's answer to an attempt: its end, or why it has none.
#[derive(Clone, PartialEq, Message)]
pub struct RdmaAnswer {
    /// The server's end.
    #[prost(message, optional, tag = "1")]
    pub end: Option<RdmaEnd>,
    /// Why there is none.
    #[prost(string, tag = "2")]
    pub refusal: String,
}

/// What two sides that have begun on TCP say to each other, in frames, about an RDMA link that is to take over: the client's
/// end, the server's answer, or on either side that nothing comes of it.
#[derive(Clone, PartialEq, Message)]
pub struct Upgrade {
    /// Which of the connection's RDMA links it is about: 1, 2, …
    #[prost(uint32, tag = "1")]
    pub epoch: u32,
    /// The sender's end of it.
    #[prost(message, optional, tag = "2")]
    pub end: Option<RdmaEnd>,
    /// IP address and port of the connection manager. Servers only.
    #[prost(string, tag = "3")]
    pub address: String,
    /// 16 bytes, good for one RDMA connection. Servers only.
    #[prost(bytes = "vec", tag = "4")]
    pub token: Vec<u8>,
    /// Why the sender gives this link up. The rest is empty then.
    #[prost(string, tag = "5")]
    pub refusal: String,
}

/// The client's choice, after which frames flow; or, with `attempt`, an attempt, after which another one follows.
#[derive(Clone, PartialEq, Message)]
pub struct Choice {
    /// Name of the link kind that will be used.
    #[prost(string, tag = "1")]
    pub link: String,
    /// Better links that will not, and why.
    #[prost(message, repeated, tag = "2")]
    pub refusals: Vec<WireRefusal>,
    /// Why the client gives up instead; empty when it does not.
    #[prost(string, tag = "3")]
    pub error: String,
    /// The client's end of an RDMA connection that is to be tried. The rest is empty then.
    #[prost(message, optional, tag = "4")]
    pub attempt: Option<RdmaEnd>,
    /// RDMA is to take over from TCP later.
    #[prost(bool, tag = "5")]
    pub upgrade: bool,
}

/// Decodes a bootstrap message, for the fuzzer: the reader that `read` uses, without a socket.
///
/// # Errors
/// When the bytes are not that message.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> io::Result<M> {
    M::decode(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a message with its length, preceded by [`MAGIC`] if it is a side's first.
pub(crate) async fn write<M: Message>(
    socket: &mut (impl AsyncWriteExt + Unpin),
    first: bool,
    message: &M,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    if first {
        bytes.extend_from_slice(MAGIC);
    }
    bytes.extend_from_slice(&(message.encoded_len() as u32).to_le_bytes());
    message.encode(&mut bytes).map_err(io::Error::other)?;
    socket.write_all(&bytes).await
}

/// Reads a message with its length. Memory is only taken as bytes arrive, up to [`MESSAGE_LIMIT`].
pub(crate) async fn read<M: Message + Default>(socket: &mut (impl AsyncReadExt + Unpin)) -> io::Result<M> {
    let length = socket.read_u32_le().await?;
    if length > MESSAGE_LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a bootstrap message of {length} bytes exceeds the limit of {MESSAGE_LIMIT}"),
        ));
    }
    let mut bytes = Vec::new();
    let count = socket.take(u64::from(length)).read_to_end(&mut bytes).await?;
    if count < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode(&bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn software_has_a_name_that_fits_a_log_line() {
        let name =
            |software: &str| Hello { software: software.to_owned(), ..Hello::default() }.software_name();
        assert_eq!(name("ringmail 0.1.0"), "ringmail 0.1.0");
        assert_eq!(name("two\nlines\x1b[1m"), "twolines[1m");
        for nothing in ["", " ", "\n"] {
            assert_eq!(name(nothing), "unnamed software");
        }
        assert_eq!(name(&"ü".repeat(1000)), "ü".repeat(100));
    }

    #[tokio::test]
    async fn an_endless_message_costs_no_memory() {
        let mut bytes: &[u8] = &u32::MAX.to_le_bytes();
        let error = read::<Hello>(&mut bytes).await.unwrap_err();
        assert!(error.to_string().contains("exceeds the limit"), "{error}");
    }

    #[tokio::test]
    async fn messages_survive_the_wire() {
        let hello =
            Hello { version_min: 1, version_max: 3, methods: vec!["/a.B/C".into()], ..Hello::default() };
        let mut wire = Vec::new();
        write(&mut wire, true, &hello).await.unwrap();
        assert_eq!(&wire[..8], MAGIC);
        assert_eq!(read::<Hello>(&mut &wire[8..]).await.unwrap(), hello);
        assert!(read::<Hello>(&mut &wire[8..wire.len() - 1]).await.is_err());
    }
}
