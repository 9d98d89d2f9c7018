//! A codec of the user's own.

use std::sync::atomic::{AtomicUsize, Ordering};

use ringmail::codegen::prost::Message;
use ringmail::codegen::{Codec, DecodeError, Payload, ProstCodec};

/// Messages that went through [`Noted`].
pub static NOTED: AtomicUsize = AtomicUsize::new(0);

/// Protobuf, and a note of every message.
#[derive(Debug)]
pub struct Noted<E, D>(ProstCodec<E, D>);

impl<E, D> Noted<E, D> {
    /// What generated code calls.
    #[must_use]
    #[allow(clippy::new_without_default)] // The runtime asks for `new` alone.
    pub const fn new() -> Self {
        Self(ProstCodec::new())
    }
}

impl<E, D> Clone for Noted<E, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, D> Copy for Noted<E, D> {}

impl<E, D> Codec for Noted<E, D>
where
    E: Message + Send + Sync + 'static,
    D: Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;

    fn encoded_len(&self, message: &E) -> usize {
        self.0.encoded_len(message)
    }

    fn encode(&self, message: &E, slot: &mut [u8]) {
        NOTED.fetch_add(1, Ordering::Relaxed);
        self.0.encode(message, slot);
    }

    fn decode(&self, payload: Payload) -> Result<D, DecodeError> {
        NOTED.fetch_add(1, Ordering::Relaxed);
        self.0.decode(payload)
    }
}
