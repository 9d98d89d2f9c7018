//! The other side of the wire, written from `docs/protocol.md` alone: what client and server send, byte by byte, and what
//! they make of bytes that they are sent. A change here is a change of the protocol.

mod client;
mod document;
mod lent;
#[path = "../peers/mod.rs"]
mod peers;
mod server;
#[path = "../support/mod.rs"]
mod support;
