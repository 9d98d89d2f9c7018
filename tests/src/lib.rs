//! Whole-system tests of Ringmail: what they share.
//!
//! ```text
//!   test ──stdin/stdout──▶ probe-server ◀──calls── probe-client ◀──stdin/stdout── test
//!     └── /proc/PID, kill −9, syscall-counter
//! ```
//!
//! The programs under `src/bin` are the two sides of a connection, each in a process of its own, so that they can be
//! killed, and so that what they cost can be counted apart. They answer one line on their standard output to each line
//! on their standard input, and end when that does: however a test ends, they end with it.

pub mod allocations;
pub mod options;
pub mod probe;
pub mod process;
pub mod procfs;
pub mod reply;

/// Nanoseconds on the clock that all processes of a host share.
#[must_use]
pub fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Since boot: never negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
