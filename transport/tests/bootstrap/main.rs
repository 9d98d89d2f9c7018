//! How connections come up, seen from below: peers that speak another protocol or version, fall silent, or break the
//! handshake in which memory is shared.

mod handshake;
mod offers;
mod peer;
mod strangers;
