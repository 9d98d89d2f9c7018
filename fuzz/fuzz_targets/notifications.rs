//! The receiving side of a link like RDMA: a peer that writes any bytes anywhere into the mailbox, at any time, and
//! sends any notification.
//!
//! Whatever it does, frames stay within what was announced and agreed, or the connection ends with the rule that was
//! broken, and stays ended.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{Check, HEADER, Header, Kind};
use ringmail_transport::immediate::{Epoch, Immediate, Notice};
use ringmail_transport::link::LinkError;
use ringmail_transport::link::sim::{SimConfig, SimNet};
use ringmail_transport::ring::{BLOCK, Incoming, Position, RingSize, Room};

const FRAME_LIMIT: u32 = (RingSize::MIN / 4) as u32;

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer writes a well-formed header at a block, with the next sequence number.
    Frame { block: u16, length: u16, kind: u8 },
    /// The peer writes these bytes at a block.
    Bytes { block: u16, bytes: Vec<u8> },
    /// The peer announces so many blocks more than before.
    Announce { blocks: u16 },
    /// The peer notifies with any bits.
    Notify { bits: u32 },
    /// The application looks, and keeps what comes or not.
    Turn { keeps: bool },
    /// The application lets go of one that it keeps.
    Release { which: u8 },
    /// The application sends.
    Send { length: u16 },
    /// The network goes on.
    Network,
}

/// Writes into a mailbox as a network card would.
fn write(end: &Endpoint, block: u16, bytes: &[u8]) {
    let region = end.mailbox().region();
    let ring = region.size().bytes();
    let bytes = &bytes[..bytes.len().min(ring)];
    let offset = usize::from(block) * BLOCK % ring;
    // SAFETY: an offset below the ring's size and at most one ring of bytes stay within the double mapping. No slice of
    // the ring is alive while a step is carried out.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.ring().add(offset).as_ptr(), bytes.len()) };
}

fuzz_target!(|input: (bool, bool, Vec<Step>)| {
    let (immediates, checked, steps) = input;
    let check = if checked { Check::Header } else { Check::Off };
    let ring = RingSize::new(RingSize::MIN).expect("the smallest ring");
    let config = SimConfig { immediates, ring, ..SimConfig::default() };
    let (net, first, second) = SimNet::pair(config).expect("memory for rings");
    let agreed = Agreed { frame_limit: FRAME_LIMIT, check };
    let (victim, _peer) = (first.into_endpoint(agreed), second.into_endpoint(agreed));
    let mut held: Vec<Incoming> = Vec::new();
    let (mut produced, mut sequence, mut dead) = (0u64, 0u32, false);
    for step in steps {
        match step {
            Step::Frame { block, length, kind } => {
                let kind = Kind::from_wire(1 + kind % 15).unwrap_or(Kind::Message);
                let mut bytes = Header::new(kind, u32::from(length)).encode();
                Header::seal(&mut bytes, 0, sequence, check);
                write(&victim, block, &bytes);
            }
            Step::Bytes { block, bytes } => write(&victim, block, &bytes),
            Step::Announce { blocks } => {
                produced += u64::from(blocks);
                net.inject(0, Immediate::new(Notice::Frames, Epoch::default(), Position(produced)).encode());
            }
            Step::Notify { bits } => net.inject(0, bits),
            Step::Turn { keeps } => {
                let mut came = Vec::new();
                match victim.turn(&mut |frame| came.push(frame)) {
                    Ok(turn) => {
                        assert!(!dead && turn != Turn::Busy);
                        for frame in came {
                            assert!(frame.header().length <= FRAME_LIMIT);
                            assert_eq!(frame.payload().len(), frame.header().length as usize - HEADER);
                            sequence = frame.header().sequence.wrapping_add(1);
                            if keeps {
                                held.push(frame);
                            }
                        }
                    }
                    Err(error) => {
                        assert!(!matches!(error, LinkError::System { .. } | LinkError::Memory(_)), "{error}");
                        assert!(!error.to_string().is_empty() && victim.failure().is_some());
                        dead = true;
                    }
                }
            }
            Step::Release { which } => {
                if !held.is_empty() {
                    held.swap_remove(usize::from(which) % held.len());
                }
            }
            Step::Send { length } => {
                let length = HEADER + usize::from(length) % (FRAME_LIMIT as usize - HEADER);
                if let Ok(claim) = victim.claim(length, Room::Data) {
                    claim.commit(&Header::new(Kind::Message, length as u32));
                    victim.flush();
                }
            }
            Step::Network => {
                net.step();
            }
        }
    }
    let blocks = u64::from(ring.blocks().0);
    assert!(victim.staging().occupied() <= blocks);
});
