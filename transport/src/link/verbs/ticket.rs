//! What ties an RDMA connection to the session that it is for: private data of the connection manager.
//!
//! ```text
//!   0       1     2        4         20      36         52
//!   │version│epoch│reserved│ session │ token │   proof  │
//! ```
//!
//! The token is good for one connection. The proof is a keyed hash of what precedes it; the key is known to the two ends of
//! the bootstrap connection only. The accepting side answers with a proof of its own, so that the connecting side knows
//! that it has not reached somebody else at an old address.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::immediate::Epoch;
use crate::verbs::ConnectParameters;

/// Version of the private data.
const VERSION: u8 = 1;
/// Bytes that the proof covers.
const CLAIM: usize = 36;
/// Bytes of the proof.
const PROOF: usize = 16;
/// Bytes of private data of the connecting side.
const BYTES: usize = CLAIM + PROOF;

const _: () = assert!(BYTES <= ConnectParameters::MOST_PRIVATE_DATA);

/// The right to make one RDMA connection for a session. Both sides have it from the bootstrap connection.
#[derive(Clone)]
pub struct Ticket {
    session: [u8; 16],
    token: [u8; 16],
    key: [u8; 32],
}

impl fmt::Debug for Ticket {
    /// Without token and key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Who says something.
#[derive(Clone, Copy, Debug)]
enum Side {
    Connecting,
    Accepting,
}

impl Ticket {
    /// A ticket of these parts: the session's name, a token that is used once, and the session's key.
    #[must_use]
    pub fn new(session: [u8; 16], token: [u8; 16], key: [u8; 32]) -> Self {
        Self { session, token, key }
    }

    /// The token, to be sent to the peer.
    #[must_use]
    pub fn token(&self) -> &[u8; 16] {
        &self.token
    }

    fn claim(&self, epoch: Epoch) -> [u8; CLAIM] {
        let mut claim = [0; CLAIM];
        claim[0] = VERSION;
        claim[1] = epoch.number();
        claim[4..20].copy_from_slice(&self.session);
        claim[20..36].copy_from_slice(&self.token);
        claim
    }

    fn hash(&self, side: Side, claim: &[u8; CLAIM]) -> Hmac<Sha256> {
        let mut hash = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length will do");
        hash.update(match side {
            Side::Connecting => b"ringmail rdma connect",
            Side::Accepting => b"ringmail rdma accept ",
        });
        hash.update(claim);
        hash
    }

    fn proof(&self, side: Side, claim: &[u8; CLAIM]) -> [u8; PROOF] {
        let hash = self.hash(side, claim).finalize().into_bytes();
        std::array::from_fn(|at| hash[at])
    }

    /// What the connecting side says.
    pub(super) fn request(&self, epoch: Epoch) -> [u8; BYTES] {
        let claim = self.claim(epoch);
        let mut bytes = [0; BYTES];
        bytes[..CLAIM].copy_from_slice(&claim);
        bytes[CLAIM..].copy_from_slice(&self.proof(Side::Connecting, &claim));
        bytes
    }

    /// The token in what a connecting side said, to find its ticket by. `None` when it speaks another version or none.
    pub(super) fn token_in(request: &[u8]) -> Option<[u8; 16]> {
        let request = request.get(..BYTES)?;
        (request[0] == VERSION).then(|| std::array::from_fn(|at| request[20 + at]))
    }

    /// Whether what a connecting side said was said by whoever has this ticket.
    pub(super) fn admits(&self, request: &[u8], epoch: Epoch) -> bool {
        let claim = self.claim(epoch);
        request.get(..CLAIM) == Some(&claim[..])
            && request
                .get(CLAIM..BYTES)
                .is_some_and(|proof| self.hash(Side::Connecting, &claim).verify_truncated_left(proof).is_ok())
    }

    /// What the accepting side answers.
    pub(super) fn answer(&self, epoch: Epoch) -> [u8; PROOF] {
        self.proof(Side::Accepting, &self.claim(epoch))
    }

    /// Whether an answer was given by whoever has this ticket.
    pub(super) fn recognises(&self, answer: &[u8], epoch: Epoch) -> bool {
        answer.get(..PROOF).is_some_and(|proof| {
            self.hash(Side::Accepting, &self.claim(epoch)).verify_truncated_left(proof).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket::new([1; 16], [2; 16], [3; 32])
    }

    #[test]
    fn whoever_has_the_ticket_is_admitted_and_recognised() {
        let epoch = Epoch::new(5);
        let mut request = ticket().request(epoch).to_vec();
        // The connection manager pads.
        request.resize(ConnectParameters::MOST_PRIVATE_DATA, 0);
        assert_eq!(Ticket::token_in(&request), Some([2; 16]));
        assert!(ticket().admits(&request, epoch));
        assert!(ticket().recognises(&ticket().answer(epoch), epoch));
    }

    #[test]
    fn nobody_else_is() {
        let epoch = Epoch::new(5);
        let request = ticket().request(epoch);
        for byte in 0..BYTES {
            let mut changed = request;
            changed[byte] ^= 1;
            assert!(!ticket().admits(&changed, epoch), "byte {byte}");
        }
        let other_key = Ticket::new([1; 16], [2; 16], [4; 32]);
        assert!(!other_key.admits(&request, epoch) && !other_key.recognises(&ticket().answer(epoch), epoch));
        assert!(!ticket().admits(&request, epoch.next()) && !ticket().admits(&request[..BYTES - 1], epoch));
        // One side's proof is not the other's.
        assert!(!ticket().recognises(&request[CLAIM..], epoch));
    }

    #[test]
    fn what_is_no_request_has_no_token() {
        assert_eq!(Ticket::token_in(&[]), None);
        assert_eq!(Ticket::token_in(&[0; 56]), None);
        assert_eq!(Ticket::token_in(&[VERSION; 51]), None);
    }

    #[test]
    fn secrets_are_not_printed() {
        let text = format!("{:?}", ticket());
        assert!(!text.contains("[3, 3") && !text.contains("[2, 2"), "{text}");
    }
}
