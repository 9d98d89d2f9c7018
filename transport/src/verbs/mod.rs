//! A thin, safe layer over libibverbs and librdmacm: what RDMA hardware offers, with its rules made into types.
//!
//! ```text
//!   EventChannel ◀── Id ◀────────────── QueuePair ──▶ CompletionQueue ──▶ CompletionChannel
//!                     │                  │  │  │                              │
//!                     ▼                  │  │  └──▶ SharedReceiveQueue        │
//!                  Context ◀─────────────┼──┴─────────────┬───────────────────┘
//!                                        ▼                ▼
//!                               MemoryRegion ──▶ ProtectionDomain ──▶ Context
//! ```
//!
//! - Every arrow is ownership: what a verbs object needs lives at least as long as the object, so nothing can be
//!   destroyed in the wrong order.
//! - A queue pair only takes work requests on memory that it holds: regions [attached](QueuePair::attach) to it, or
//!   [lent](QueuePair::post_read) to one request. So the network card never touches memory that is gone.
//! - Verbs calls disagree on how they fail: some return the error, some return −1 and set `errno`, and providers
//!   differ in the sign. [`VerbsError`] has one reader for each convention and says which call failed, why, and on
//!   which device, port, GID, queue pair and peer.
//!
//! The names are those of the C library, so that its manual pages say the rest.

mod addresses;
mod buffer;
mod completion;
mod context;
mod error;
mod manager;
mod memory;
mod opening;
mod page;
mod queue_pair;
mod receive;
mod request;
mod rings;
mod watched;

pub use self::addresses::local_addresses;
pub(crate) use self::buffer::{BufferError, Filled, Sink, Source};
pub use self::completion::{Completion, CompletionChannel, CompletionQueue};
pub use self::context::{Context, Limits, Transport};
pub use self::error::{CompletionStatus, Place, Reason, VerbsError};
pub use self::manager::{ConnectParameters, Event, EventChannel, EventKind, Id, IdKey};
pub use self::memory::{Access, MemoryRegion, ProtectionDomain, Registrable};
pub(crate) use self::opening::try_to_open;
pub(crate) use self::page::Page;
pub use self::queue_pair::{Capacity, QueuePair, Receives, Remains};
pub use self::receive::SharedReceiveQueue;
pub use self::request::{Attached, Data, Operation, Remote, RequestId, RequestKind, SendRequest, Slice};
pub(crate) use self::rings::{Once, Twice};
pub(crate) use self::watched::{Watched, watch};
