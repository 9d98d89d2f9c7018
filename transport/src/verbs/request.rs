//! Work requests: what queue pairs are asked for.

/// Distinguishes requests for receiving in their ids.
pub(super) const RECEIVE: u64 = 1 << 63;
/// … and those for reading.
const READ: u64 = 1 << 62;

/// Names a work request in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub(super) u64);

/// What kind of request an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The send request with this number; those before it have ended as well, READs excepted.
    Sent(u64),
    /// The READ with this number among the send requests; all READs before it have ended as well. Soft-iWARP reports sends
    /// that were posted later before.
    Read(u64),
    /// The receive request with this number.
    Received(u32),
}

impl RequestId {
    pub(super) const fn receive(number: u32) -> Self {
        Self(RECEIVE | number as u64)
    }

    pub(super) const fn read(number: u64) -> Self {
        Self(READ | number)
    }

    /// What it names.
    #[must_use]
    pub fn kind(self) -> RequestKind {
        if self.0 & RECEIVE != 0 {
            RequestKind::Received(self.0 as u32)
        } else if self.0 & READ != 0 {
            RequestKind::Read(self.0 & !READ)
        } else {
            RequestKind::Sent(self.0)
        }
    }
}

/// A region that a queue pair holds, so that its requests may name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    pub(super) owner: u64,
    pub(super) index: usize,
}

/// A piece of an attached region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which region.
    pub region: Attached,
    /// Where in it, in bytes.
    pub offset: usize,
    /// How many bytes.
    pub length: usize,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address there.
    pub address: u64,
    /// The key of its registration.
    pub key: u32,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes to the peer's memory, unnoticed.
    Write(Remote),
    /// Writes to the peer's memory; 32 bits arrive as a completion there, after the bytes.
    WriteWithImmediate(Remote, u32),
    /// Sends a message, which takes a receive request at the peer.
    Send,
}

/// The bytes of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Copied into the request.
    Inline(&'a [u8]),
    /// Read from memory when the request is carried out: the first slice, then the second if there is one.
    Slices(Slice, Option<Slice>),
}

/// A work request for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// What it does.
    pub operation: Operation,
    /// With which bytes.
    pub data: Data<'a>,
    /// Whether its end is reported on this side; a failure always is.
    pub signaled: bool,
    /// Whether a peer that sleeps is to be woken by what arrives.
    pub solicited: bool,
}
