//! Two ends, the network between them, and a model of what must come of what is done to them.

use std::collections::{BTreeMap, VecDeque};

use ringmail_transport::bootstrap::frame_limit;
use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{CallId, Check, HEADER, Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::link::sim::{SimConfig, SimNet, Statistics};
use ringmail_transport::ring::{Claim, ClaimError, Incoming, Room};

/// One thing that is done. Numbers choose among what there is at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// A side claims room for a frame of this many bytes.
    Claim { side: usize, bytes: usize },
    /// A side commits one of its claims.
    Commit { side: usize, which: usize },
    /// A side gives one of its claims up.
    Abandon { side: usize, which: usize },
    /// A side sends what is committed.
    Flush { side: usize },
    /// A side receives, and keeps what comes if told to.
    Turn { side: usize, keeps: bool },
    /// A side lets go of a frame that it keeps.
    Release { side: usize, which: usize },
    /// The network carries out so many events.
    Step { events: usize },
}

impl Action {
    /// Any action, those of some kinds more often than of others.
    pub(crate) fn random(rng: &mut fastrand::Rng) -> Self {
        let side = rng.usize(0..2);
        let which = rng.usize(..);
        match rng.u32(0..20) {
            0..5 => {
                let most = if rng.u8(0..8) == 0 { 8192 } else { 400 };
                Self::Claim { side, bytes: HEADER + rng.usize(0..most) }
            }
            5..9 => Self::Commit { side, which },
            9 => Self::Abandon { side, which },
            10..13 => Self::Flush { side },
            13..16 => Self::Turn { side, keeps: rng.bool() },
            16..18 => Self::Release { side, which },
            _ => Self::Step { events: rng.usize(0..10) },
        }
    }
}

/// A frame as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Claimed,
    Committed,
    Abandoned,
}

/// What one side has done, and what must come at the other.
#[derive(Default)]
struct Sent {
    /// In the order of their claims: that is the order in which they arrive.
    frames: VecDeque<(u32, Fate, usize)>,
    next: u32,
    arrived: Vec<u32>,
}

/// Two ends and the network between them.
pub(crate) struct World<'a> {
    net: &'a SimNet,
    ends: &'a [Endpoint; 2],
    claims: [BTreeMap<u32, (Claim<'a>, usize)>; 2],
    held: [Vec<Incoming>; 2],
    sent: [Sent; 2],
    /// Why a side's connection ended.
    pub(crate) ended: [Option<LinkError>; 2],
}

/// What is left of a world: two of one seed are the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) now: u64,
    pub(crate) steps: u64,
    pub(crate) statistics: Statistics,
    pub(crate) arrived: [Vec<u32>; 2],
}

/// The two ends for a configuration.
pub(crate) fn ends(config: SimConfig, check: Check) -> (SimNet, [Endpoint; 2]) {
    let agreed = Agreed { frame_limit: frame_limit(config.ring), check };
    let (net, first, second) = SimNet::pair(config).unwrap();
    (net, [first.into_endpoint(agreed), second.into_endpoint(agreed)])
}

fn filler(number: u32, bytes: usize) -> impl Iterator<Item = u8> {
    (HEADER..bytes).map(move |at| (number as usize * 31 + at * 7) as u8)
}

impl<'a> World<'a> {
    pub(crate) fn new(net: &'a SimNet, ends: &'a [Endpoint; 2]) -> Self {
        let sent = Default::default();
        Self {
            net,
            ends,
            claims: Default::default(),
            held: Default::default(),
            sent,
            ended: Default::default(),
        }
    }

    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Claim { side, bytes } => self.claim(side, bytes, Room::Data),
            Action::Commit { side, which } => self.settle_claim(side, which, Fate::Committed),
            Action::Abandon { side, which } => self.settle_claim(side, which, Fate::Abandoned),
            Action::Flush { side } => self.ends[side].flush(),
            Action::Turn { side, keeps } => self.turn(side, keeps),
            Action::Release { side, which } => {
                if !self.held[side].is_empty() {
                    let which = which % self.held[side].len();
                    let frame = self.held[side].swap_remove(which);
                    check(&frame);
                }
            }
            Action::Step { events } => {
                for _ in 0..events {
                    self.net.step();
                }
            }
        }
    }

    fn claim(&mut self, side: usize, bytes: usize, room: Room) {
        let end = &self.ends[side];
        let ring = end.staging().size();
        let claimed = match end.claim(bytes, room) {
            Ok(claim) => claim,
            Err(ClaimError::TooLarge { .. }) => {
                return assert!(bytes > ring.bytes() / 2, "{bytes} of {ring:?}");
            }
            // Never while the ring is empty.
            Err(ClaimError::Full) => return assert!(end.staging().occupied() > 0),
        };
        assert!(end.staging().occupied() <= u64::from(ring.blocks().0));
        let sent = &mut self.sent[side];
        sent.frames.push_back((sent.next, Fate::Claimed, bytes));
        self.claims[side].insert(sent.next, (claimed, bytes));
        sent.next += 1;
    }

    fn settle_claim(&mut self, side: usize, which: usize, fate: Fate) {
        if self.claims[side].is_empty() {
            return;
        }
        let which = which % self.claims[side].len();
        let number = *self.claims[side].keys().nth(which).unwrap();
        let (mut claim, bytes) = self.claims[side].remove(&number).unwrap();
        let frame = self.sent[side].frames.iter_mut().find(|(known, ..)| *known == number).unwrap();
        frame.1 = fate;
        if fate == Fate::Committed {
            claim.iter_mut().skip(HEADER).zip(filler(number, bytes)).for_each(|(to, from)| *to = from);
            let call = CallId { index: number, generation: 0 };
            claim.commit(&Header { call, ..Header::new(Kind::Message, bytes as u32) });
        }
    }

    fn turn(&mut self, side: usize, keeps: bool) {
        let (sent, held) = (&mut self.sent[1 - side], &mut self.held[side]);
        let turned = self.ends[side].turn(&mut |frame| {
            let number = frame.header().call.index;
            // Those that were given up come as nothing; those that are still being written are not passed.
            while sent.frames.front().is_some_and(|(_, fate, _)| *fate == Fate::Abandoned) {
                sent.frames.pop_front();
            }
            let expected = sent.frames.pop_front();
            assert_eq!(expected, Some((number, Fate::Committed, frame.header().length as usize)));
            sent.arrived.push(number);
            check(&frame);
            if keeps {
                held.push(frame);
            }
        });
        match turned {
            Ok(Turn::Frames(_)) => assert!(self.ended[side].is_none(), "it came back to life"),
            Ok(Turn::Busy) => panic!("there is only one thread"),
            Err(error) => {
                assert!(matches!(error, LinkError::Simulated(_) | LinkError::PeerClosed), "{error}");
                self.ended[side] = Some(error);
            }
        }
    }

    /// Lets everything that was begun come to its end, and checks that nothing is missing.
    pub(crate) fn finish(&mut self) {
        for side in 0..2 {
            while !self.claims[side].is_empty() {
                self.settle_claim(side, 0, Fate::Committed);
            }
        }
        // What a side has sent and the other has not given back: frames, and claims that were given up.
        let left = |ends: &[Endpoint; 2], side: usize| {
            ends[side].staging().claimed().0 - ends[1 - side].mailbox().consumed().0
        };
        // Each round moves something, and there is not more on its way than a few rings hold.
        for _ in 0..2000 {
            let before = [0, 1].map(|side| left(self.ends, side));
            for side in [0, 1, 0, 1] {
                self.ends[side].flush();
                self.turn(side, false);
                while self.held[side].pop().is_some() {}
                self.net.settle();
            }
            let now = [0, 1].map(|side| left(self.ends, side));
            if now == [0, 0] {
                break;
            }
            for side in (0..2).filter(|side| now[*side] == before[*side] && now[*side] > 0) {
                // The last notification has vanished; the next makes up for it. The ring may be full of what it was about:
                // that is what room for control frames is for.
                self.claim(side, HEADER, Room::Control);
                self.settle_claim(side, 0, Fate::Committed);
            }
        }
        for (side, sent) in self.sent.iter().enumerate() {
            let missing: Vec<_> =
                sent.frames.iter().filter(|(_, fate, _)| *fate == Fate::Committed).collect();
            assert!(missing.is_empty(), "of side {side} never came: {missing:?}");
            assert!(sent.arrived.is_sorted_by(|a, b| a < b));
        }
        let end = self.ends.each_ref().map(|end| (end.staging().sealed(), end.mailbox().consumed()));
        assert_eq!(end[0].0, end[1].1, "side 1 has not given all of its mailbox back");
        assert_eq!(end[1].0, end[0].1, "side 0 has not given all of its mailbox back");
    }

    /// What has come of it.
    pub(crate) fn trace(self) -> Trace {
        let statistics = self.net.statistics();
        assert_eq!(statistics.not_ready, 0, "a notification found no receive request");
        let arrived = self.sent.map(|sent| sent.arrived);
        Trace { now: self.net.now(), steps: self.net.steps(), statistics, arrived }
    }
}

fn check(frame: &Incoming) {
    let Header { call, length, .. } = *frame.header();
    assert!(frame.payload().iter().copied().eq(filler(call.index, length as usize)), "{call:?} is damaged");
}
