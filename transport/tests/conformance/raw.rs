//! A peer that writes into its ring whatever it wants.

use ringmail_transport::frame::{Check, HEADER, Header, Kind};
use ringmail_transport::link::Flushed;
use ringmail_transport::ring::{BLOCK, Position, Room};

use crate::side::Side;

/// A side that is used from below: bytes that no endpoint would write.
pub(crate) struct Raw {
    pub(crate) side: Side,
}

impl Raw {
    pub(crate) fn new(side: Side) -> Self {
        Self { side }
    }

    /// Writes bytes behind what was announced, and announces them, padded to whole blocks. Returns where they begin.
    pub(crate) fn announce(&self, bytes: &[u8]) -> Position {
        let staging = self.side.endpoint.staging();
        let length = bytes.len().max(HEADER);
        let claim = self.side.endpoint.claim(length, Room::Control).expect("a peer that has room");
        let at = claim.position();
        claim.commit(&Header::new(Kind::Skip, length as u32));
        let mut advance = staging.enter().expect("nobody else flushes");
        while advance.step().is_some() {}
        self.overwrite(at, bytes);
        self.send(at);
        assert!(advance.leave().is_none());
        at
    }

    /// Lets the link send everything from a position on (again, if need be).
    pub(crate) fn send(&self, mut from: Position) {
        let (staging, link) = (self.side.endpoint.staging(), self.side.endpoint.link());
        let to = staging.sealed();
        while from < to {
            let Flushed { until, blocked } = link.flush(staging, from, to).expect("a live link");
            from = until;
            if blocked {
                // It must take credit to go on.
                let _ = self.side.turn(&mut drop);
                std::thread::yield_now();
            }
        }
    }

    /// Changes bytes that may have been announced already.
    pub(crate) fn overwrite(&self, at: Position, bytes: &[u8]) {
        let region = self.side.endpoint.staging().region();
        assert!(bytes.len() <= region.size().bytes());
        let offset = at.0 as usize * BLOCK % region.size().bytes();
        // SAFETY: an offset below the ring's size and at most one ring of bytes stay within the double mapping, of a
        // region that this process has created. Its claims are committed, so nothing in this process refers to it;
        // that the peer may be reading is what these tests are about.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.ring().add(offset).as_ptr(), bytes.len());
        }
    }
}

/// The bytes of a frame as an honest endpoint would have sealed them.
pub(crate) fn sealed(
    header: Header,
    acknowledged: u32,
    sequence: u32,
    check: Check,
    payload: &[u8],
) -> Vec<u8> {
    let mut head = header.encode();
    Header::seal(&mut head, acknowledged, sequence, check);
    [&head[..], payload].concat()
}

/// A well-formed frame without payload.
pub(crate) fn plain(sequence: u32) -> Vec<u8> {
    sealed(Header::new(Kind::Message, HEADER as u32), 0, sequence, Check::Off, &[])
}
