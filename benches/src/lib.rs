//! Micro-benches of what every call does: `cargo bench -p ringmail-benches`.
//!
//! They compare one build with another on one machine. How long a call takes is measured by `ringmail demo`, in
//! processes of their own and beside gRPC.
