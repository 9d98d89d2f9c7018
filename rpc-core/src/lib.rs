//! RPC for Rust services over RDMA, shared memory and TCP.
//!
//! Services are written in `.proto` files; `ringmail-build` generates a server trait that is tonic's own, and a
//! client with `&self` methods. Both serialize straight into ring buffers that the peer reads:
//!
//! ```text
//!   stub ─▶ staging ring ═══ link ═══▶ mailbox ring ─▶ dispatch ─▶ handler
//!    ▲                                                               │
//!    └───── mailbox ring ◀═══ link ═══ staging ring ◀────────────────┘
//! ```
//!
//! # A server and a client
//!
//! ```no_run
//! # mod pb {
//! #   pub struct GreeterServer;
//! # }
//! # async fn example<S: ringmail::codegen::Service>(greeter: S) -> Result<(), Box<dyn std::error::Error>> {
//! use ringmail::{Channel, Server};
//!
//! # let serving =
//! Server::builder().add_service(greeter).listen("ringmail://0.0.0.0:7400").serve();
//!
//! let channel = Channel::connect("ringmail://127.0.0.1:7400").await?;
//! println!("{}", channel.link_info()); // shm on this host, tcp from elsewhere, and why
//! # Ok(()) }
//! ```
//!
//! The `examples/` of the repository are complete programs; `docs/protocol.md` describes what is on the wire.

pub mod codegen;

mod address;
mod client;
mod codec;
mod error;
mod fragment;
mod metadata_block;
mod server;
mod timeout;
mod wait;
/// RDMA devices.
#[cfg(feature = "rdma")]
pub mod rdma {
    pub use ringmail_transport::link::verbs::{Reads, reads};
    pub use ringmail_transport::verbs::local_addresses;

    /// Bytes that are registered with RDMA devices by this process now, and so count against its limit on locked memory.
    #[must_use]
    pub fn registered_bytes() -> u64 {
        ringmail_transport::verbs::MemoryRegion::registered_bytes()
    }
}
mod watch;

pub use client::{Channel, ChannelBuilder, LinkInfo};
pub use codec::{Codec, DecodeError, Payload, ProstCodec};
pub use error::{AddressError, ConnectError, ServeError};
pub use ringmail_transport::bootstrap::{BootstrapError, LinkPolicy, Refusal};
pub use ringmail_transport::fabric;
pub use ringmail_transport::link::DeviceCounts;
pub use ringmail_transport::link::switching::History;
pub use ringmail_transport::link::{LinkError, LinkKind};
pub use server::{BoundServer, PeerAddr, Server, ServerBuilder};
pub use tonic::{
    Code, Extensions, IntoRequest, IntoStreamingRequest, Request, Response, Status, async_trait, metadata,
};
pub use wait::Wait;

/// Includes the code generated for a package: `ringmail::include_proto!("helloworld")`.
#[macro_export]
macro_rules! include_proto {
    ($package: tt) => {
        include!(concat!(env!("OUT_DIR"), concat!("/", $package, ".rs")));
    };
}

/// Includes a descriptor set that `ringmail-build` wrote, for reflection:
/// `ringmail::include_file_descriptor_set!("helloworld_descriptor")`.
#[macro_export]
macro_rules! include_file_descriptor_set {
    ($name: tt) => {
        include_bytes!(concat!(env!("OUT_DIR"), concat!("/", $name, ".bin")))
    };
}
