//! What generated code is made of. Applications use it only to write a codec or a service by hand.

use std::pin::Pin;

pub use bytes;
pub use prost;
pub use prost_types;
pub use tokio_stream;
pub use tonic;
pub use tonic_prost;

pub use crate::client::Client;
pub use crate::codec::{Codec, DecodeError, Payload, ProstCodec};
pub use crate::server::{Handling, ServerCall};

/// A boxed future, as `#[async_trait]` returns it.
pub type BoxFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// A service, as generated from a `.proto` file.
#[derive(Debug)]
pub struct ServiceDescriptor {
    /// Full name: `helloworld.Greeter`.
    pub name: &'static str,
    /// Its methods, in the order of the file.
    pub methods: &'static [MethodDescriptor],
}

/// A method of a service.
#[derive(Debug)]
pub struct MethodDescriptor {
    /// Path, as gRPC names it: `/helloworld.Greeter/SayHello`.
    pub path: &'static str,
    /// Name: `SayHello`.
    pub name: &'static str,
    /// Which sides stream.
    pub kind: CallKind,
    /// Whether the file says that executing it twice does no harm.
    pub idempotent: bool,
}

/// Which sides of a call stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// One message each way.
    Unary,
    /// Many requests, one response.
    ClientStreaming,
    /// One request, many responses.
    ServerStreaming,
    /// Many each way.
    Bidi,
}

/// A service that a server can serve: a generated `GreeterServer<T>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a service that a server can serve",
    label = "not a service",
    note = "wrap what implements the generated trait: `GreeterServer::new(MyGreeter)`"
)]
pub trait Service: Send + Sync + 'static {
    /// What it serves.
    fn descriptor(&self) -> &'static ServiceDescriptor;

    /// Begins a call of the method with this index in the descriptor.
    fn call(&self, method: usize, call: ServerCall) -> Handling;
}

/// Limits of one client or service, where they differ from the channel's or server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Largest message accepted, in bytes.
    pub max_decoding_message_size: Option<usize>,
    /// Largest message sent, in bytes.
    pub max_encoding_message_size: Option<usize>,
}
