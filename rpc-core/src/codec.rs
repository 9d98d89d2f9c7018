//! From messages to bytes in a ring and back.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use ringmail_transport::ring::Incoming;

/// Field values shorter than this are copied out of the ring, since sharing costs more than copying: an allocation
/// for the owner, and space in the ring that is held until the value is dropped.
const LEND_AT: usize = 1024;

/// Turns messages of one method into bytes and back. Generated code uses [`ProstCodec`].
pub trait Codec: Copy + Send + Sync + 'static {
    /// What is sent.
    type Encode: Send + Sync + 'static;
    /// What is received.
    type Decode: Send + 'static;

    /// Bytes that [`Codec::encode`] will write for this message.
    fn encoded_len(&self, message: &Self::Encode) -> usize;

    /// Writes the message into a slot of exactly [`Codec::encoded_len`] bytes, in the ring.
    fn encode(&self, message: &Self::Encode, slot: &mut [u8]);

    /// Reads a message.
    ///
    /// # Errors
    /// When the bytes are not one.
    fn decode(&self, payload: Payload) -> Result<Self::Decode, DecodeError>;
}

/// Bytes that are not the message expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

/// Protobuf through prost.
pub struct ProstCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> ProstCodec<E, D> {
    /// The codec for these two message types.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Default for ProstCodec<E, D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E, D> Clone for ProstCodec<E, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, D> Copy for ProstCodec<E, D> {}

impl<E, D> std::fmt::Debug for ProstCodec<E, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProstCodec")
    }
}

impl<E, D> Codec for ProstCodec<E, D>
where
    E: prost::Message + Send + 'static,
    D: prost::Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;

    fn encoded_len(&self, message: &E) -> usize {
        message.encoded_len()
    }

    fn encode(&self, message: &E, mut slot: &mut [u8]) {
        // `encode` would walk the lengths a second time.
        message.encode_raw(&mut slot);
    }

    fn decode(&self, mut payload: Payload) -> Result<D, DecodeError> {
        D::decode(&mut payload).map_err(|error| DecodeError(error.to_string()))
    }
}

/// The payload of a message, still in the ring it arrived in. It is released when this is dropped, and when all
/// [`Bytes`] that were split off it are.
#[derive(Debug)]
pub struct Payload(Inner);

#[derive(Debug)]
enum Inner {
    Frame(Incoming),
    Shared(Bytes),
}

impl Payload {
    pub(crate) fn new(frame: Incoming) -> Self {
        Self(Inner::Frame(frame))
    }

    /// A payload that does not live in a ring.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(Inner::Shared(bytes))
    }

    /// All of it.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Inner::Frame(frame) => frame.payload(),
            Inner::Shared(bytes) => bytes,
        }
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.as_slice().len()
    }

    fn chunk(&self) -> &[u8] {
        self.as_slice()
    }

    fn advance(&mut self, count: usize) {
        match &mut self.0 {
            Inner::Frame(frame) => frame.advance(count),
            Inner::Shared(bytes) => bytes.advance(count),
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.remaining(), "not that many bytes are left");
        if let Inner::Frame(frame) = &mut self.0
            && (count < LEND_AT || !frame.may_be_lent())
        {
            let copy = Bytes::copy_from_slice(&frame.payload()[..count]);
            frame.advance(count);
            return copy;
        }
        if let Inner::Frame(_) = &self.0
            && let Inner::Frame(frame) = std::mem::replace(&mut self.0, Inner::Shared(Bytes::new()))
        {
            self.0 = Inner::Shared(frame.into_bytes());
        }
        match &mut self.0 {
            Inner::Shared(bytes) => bytes.split_to(count),
            Inner::Frame(_) => unreachable!("it was just shared"),
        }
    }
}
