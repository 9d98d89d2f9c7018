//! The transport under Ringmail: memory that two peers share, rings in it, frames in the rings, and the
//! links that make a ring at one peer equal to a ring at the other.
//!
//! ```text
//!  claim ─▶ encode ─▶ commit ─▶ flush             poll ─▶ frame ─▶ release
//!  └────── staging ring ──────┘ │                  │ └──── mailbox ring ────┘
//!                               └────── link ──────┘
//! ```
//!
//! Every connection has two rings, one a direction. The sender writes a frame at its final offset in its
//! [`Staging`](ring::Staging) ring; the [`Link`](link::Link) makes the receiver's [`Mailbox`](ring::Mailbox)
//! equal to it over that range. How it does so is all that differs between RDMA, shared memory and TCP;
//! everything above the [`Endpoint`](endpoint::Endpoint) is the same code.
//!
//! Invariants that hold everywhere below:
//!
//! - Positions are absolute 64-bit block counts ([`ring::Position`]); they never wrap in practice.
//! - A frame is one contiguous slice: rings are mapped twice back to back.
//! - Memory that a peer can write is read once, checked, then used.
//! - `unsafe` lives in [`memory`] (mappings), [`ring`] (slices of them) and [`link`] (system calls on them).

// loom brings no sockets: what needs them is left out there, and with it who uses the rest.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
pub mod endpoint;
#[cfg(not(loom))]
pub mod fabric;
pub mod frame;
pub mod immediate;
pub mod link;
pub mod memory;
pub mod rendezvous;
pub mod ring;
#[cfg(not(loom))]
pub mod spare;
mod sync;
#[cfg(all(feature = "rdma", not(loom)))]
pub mod verbs;

#[cfg(all(test, loom))]
mod counting;
