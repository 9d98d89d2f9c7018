//! Payloads that can be told apart and checked: every byte follows from the frame's number.

use ringmail_transport::frame::CallId;
use ringmail_transport::ring::Incoming;

/// Names a frame: who sent it, and which of his it is.
pub(crate) fn name(sender: u32, number: u32) -> CallId {
    CallId { index: sender, generation: number }
}

/// The payload of a frame, of a length that follows from its number too.
pub(crate) fn payload(call: CallId, longest: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(call.index) << 32 | u64::from(call.generation));
    // Most frames are small; some are as large as they may be.
    let length = match rng.u32(0..10) {
        0 => longest,
        1..=3 => rng.usize(0..=longest),
        _ => rng.usize(0..=longest.min(300)),
    };
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}

/// Checks a frame against what it must be.
pub(crate) fn check(frame: &Incoming, longest: usize) {
    let call = frame.header().call;
    let expected = payload(call, longest);
    assert!(frame.payload() == expected, "{call:?} arrived damaged: {} bytes", frame.payload().len());
}
