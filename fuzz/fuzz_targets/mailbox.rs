//! The whole receiving side: a peer that writes frames, good and damaged, into a stream in pieces of any size, and an
//! application that holds some of them and lets them go in any order.
//!
//! Frames are made well-formed first and damaged afterwards: random bytes would not get past the first header.

#![no_main]

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{Check, Flags, HEADER, Header, Kind};
use ringmail_transport::link::tcp::TcpLink;
use ringmail_transport::memory::Region;
use ringmail_transport::ring::{BLOCK, Incoming, Mailbox, RingSize, Staging};

/// A quarter of the smallest ring, so that a few frames fill it and positions go around it often.
const FRAME_LIMIT: u32 = (RingSize::MIN / 4) as u32;

#[derive(Arbitrary, Debug)]
struct Step {
    payload: u16,
    kind: u8,
    flags: u8,
    /// Where in the frame the damage is, and which bits it flips; 0: none.
    damage_at: u8,
    damage: u8,
    /// The frame is sent in two pieces, cut here.
    cut: u16,
    /// The application keeps this frame.
    hold: bool,
    /// The application lets go of one that it keeps, chosen by this number; 0: of none.
    let_go: u8,
}

struct Receiver {
    endpoint: Endpoint,
    /// With what they said when they came.
    held: Vec<(Incoming, Vec<u8>)>,
    /// What must still arrive; only meaningful while no header was damaged.
    expected: VecDeque<(Header, Vec<u8>)>,
    sound: bool,
    dead: bool,
}

impl Receiver {
    /// Whatever has arrived in the meantime, a held frame is what it was.
    fn let_go(&mut self, index: usize) {
        let (frame, said) = self.held.swap_remove(index);
        assert_eq!(frame.payload(), said, "a held frame was overwritten");
    }

    fn turn(&mut self, hold: bool) {
        let Self { endpoint, held, expected, sound, dead } = self;
        let mut deliver = |frame: Incoming| {
            assert!(!*dead, "a frame was delivered after the connection had failed");
            let header = *frame.header();
            assert!(header.length <= FRAME_LIMIT);
            assert_eq!(frame.payload().len(), header.length as usize - HEADER);
            if *sound {
                let (header_sent, payload) = expected.pop_front().expect("no more frames than were sent");
                assert_eq!(header, header_sent);
                assert_eq!(frame.payload(), payload);
            }
            if hold {
                let said = frame.payload().to_vec();
                held.push((frame, said));
            }
        };
        match endpoint.turn(&mut deliver) {
            Ok(turn) => {
                assert!(!*dead, "a failed connection came back to life");
                assert_ne!(turn, Turn::Busy);
            }
            Err(error) => {
                assert!(!*sound, "well-formed frames were refused: {error}");
                *dead = true;
            }
        }
    }
}

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (checked, steps) = input;
    let check = if checked { Check::Header } else { Check::Off };
    let size = RingSize::new(RingSize::MIN).expect("the smallest ring");
    let region = || Arc::new(Region::create(size).expect("memory for a ring"));
    let (ours, mut peer) = UnixStream::pair().expect("a pair of sockets");
    peer.set_nonblocking(true).expect("a non-blocking socket");
    let link = Arc::new(TcpLink::new(OwnedFd::from(ours)).expect("a link over a socket"));
    let mailbox = Arc::new(Mailbox::new(region(), Arc::clone(&link) as _, false));
    let agreed = Agreed { frame_limit: FRAME_LIMIT, check };
    let endpoint = Endpoint::new(Staging::new(region()), Arc::clone(&mailbox), link, agreed);
    let mut receiver =
        Receiver { endpoint, held: Vec::new(), expected: VecDeque::new(), sound: true, dead: false };

    let mut blocks_sent = 0;
    for (sequence, step) in steps.iter().enumerate() {
        let length = HEADER as u32 + u32::from(step.payload) % (FRAME_LIMIT - HEADER as u32 + 1);
        let kind = Kind::from_wire(1 + step.kind % 16).unwrap_or(Kind::Message);
        let mut header = Header::new(kind, length);
        header.flags = Flags::from_wire(step.flags & 0x7f).expect("known flags");
        header.sequence = sequence as u32;
        let mut head = header.encode();
        Header::seal(&mut head, 0, header.sequence, check);
        let mut bytes: Vec<u8> = (0..length as usize).map(|at| (at ^ sequence) as u8).collect();
        bytes[..HEADER].copy_from_slice(&head);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        blocks_sent += (bytes.len() / BLOCK) as u64;

        let damage_at = usize::from(step.damage_at) % bytes.len();
        bytes[damage_at] ^= step.damage;
        receiver.sound &= step.damage == 0 || damage_at >= HEADER;
        if kind != Kind::Skip {
            receiver.expected.push_back((header, bytes[HEADER..length as usize].to_vec()));
        }

        let cut = usize::from(step.cut) % bytes.len();
        for mut piece in [&bytes[..cut], &bytes[cut..]] {
            while !piece.is_empty() && !receiver.dead {
                match peer.write(piece) {
                    Ok(count) => piece = &piece[count..],
                    // The mailbox is full of held frames, and so is the socket.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if receiver.held.is_empty() {
                            assert!(!receiver.sound, "nothing is held and yet there is no room");
                            return;
                        }
                        receiver.let_go(0);
                    }
                    Err(error) => panic!("writing to a socket whose other end is open: {error}"),
                }
                receiver.turn(step.hold);
            }
        }
        if step.let_go > 0 && !receiver.held.is_empty() {
            receiver.let_go(usize::from(step.let_go) % receiver.held.len());
        }
    }

    if receiver.sound {
        while !receiver.held.is_empty() {
            receiver.let_go(0);
        }
        // At most the ring and the socket are still full; each turn empties a ring.
        for _ in 0..=steps.len() {
            receiver.turn(false);
        }
        assert!(receiver.expected.is_empty(), "{} frames were lost", receiver.expected.len());
        assert_eq!(mailbox.consumed().0, blocks_sent, "released space was not given back");
    } else if receiver.dead {
        receiver.turn(false);
        assert!(receiver.dead);
    }
});
