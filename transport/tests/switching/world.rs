//! Two ends over TCP, the simulated networks that take over in turn, and a model of what must arrive.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail_transport::bootstrap::frame_limit;
use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{CallId, Check, HEADER, Header, Kind};
use ringmail_transport::immediate::Epoch;
use ringmail_transport::link::sim::{SimConfig, SimLink, SimNet};
use ringmail_transport::link::switching::{History, Messages, SwitchingLink};
use ringmail_transport::link::tcp::TcpLink;
use ringmail_transport::memory::Region;
use ringmail_transport::ring::{Incoming, Mailbox, RingSize, Room, Staging};

/// Longest until everything has arrived.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn ring() -> RingSize {
    RingSize::new(RingSize::MIN).unwrap()
}

/// A connected pair of sockets that hold little, so that they are full soon.
pub(crate) fn sockets() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (right, _) = listener.accept().unwrap();
    for socket in [&left, &right] {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 16 * 1024).unwrap();
    }
    [left, right]
}

/// One end of a connection that begins on TCP.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    pub(crate) link: Arc<SwitchingLink>,
    pub(crate) messages: Messages,
}

impl End {
    pub(crate) fn new(socket: TcpStream, check: Check) -> Self {
        let (link, messages) = SwitchingLink::new(TcpLink::new(OwnedFd::from(socket)).unwrap());
        let region = || Arc::new(Region::create(ring()).unwrap());
        let mailbox = Arc::new(Mailbox::new(region(), Arc::clone(&link) as _, false));
        let agreed = Agreed { frame_limit: frame_limit(ring()), check };
        let endpoint = Endpoint::switching(Staging::new(region()), mailbox, Arc::clone(&link), agreed);
        Self { endpoint, link, messages }
    }

    /// Sends a small frame and waits until the other side has it.
    pub(crate) fn pass_one(&self, to: &Self) -> Incoming {
        let claim = self.endpoint.claim(HEADER + 8, Room::Data).unwrap();
        claim.commit(&Header::new(Kind::Message, HEADER as u32 + 8));
        self.endpoint.flush();
        let mut came = None;
        while came.is_none() {
            to.endpoint.turn(&mut |frame| came = Some(frame)).unwrap();
        }
        came.unwrap()
    }
}

/// The simulated link that takes over next, at both ends.
struct Fast {
    net: SimNet,
    /// Those that have not been installed.
    links: [Option<Arc<SimLink>>; 2],
}

pub(crate) struct World {
    ends: [End; 2],
    fast: Option<Fast>,
    epoch: u64,
    rng: fastrand::Rng,
    /// Of each side: what it has sent and the other has not received.
    sent: [VecDeque<(u32, usize)>; 2],
    next: [u32; 2],
    arrived: u64,
    held: [Vec<Incoming>; 2],
}

fn filler(number: u32, bytes: usize) -> impl Iterator<Item = u8> {
    (HEADER..bytes).map(move |at| (number as usize * 31 + at * 7) as u8)
}

fn check(frame: &Incoming) {
    let Header { call, length, .. } = *frame.header();
    assert!(frame.payload().iter().copied().eq(filler(call.index, length as usize)), "{call:?} is damaged");
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let check = if seed.is_multiple_of(2) { Check::Header } else { Check::Off };
        Self {
            ends: sockets().map(|socket| End::new(socket, check)),
            fast: None,
            epoch: 0,
            rng: fastrand::Rng::with_seed(seed),
            sent: Default::default(),
            next: [0; 2],
            arrived: 0,
            held: Default::default(),
        }
    }

    pub(crate) fn chance(&mut self, one_in: u32) -> bool {
        self.rng.u32(0..one_in) == 0
    }

    /// How many links have been begun.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    pub(crate) fn histories(&self) -> [History; 2] {
        self.ends.each_ref().map(|end| end.link.history())
    }

    pub(crate) fn kinds(&self) -> [String; 2] {
        self.ends.each_ref().map(|end| end.endpoint.link_kind().to_string())
    }

    /// Whether another link may be begun.
    pub(crate) fn is_settled(&self) -> bool {
        self.ends.iter().all(|end| end.link.is_settled())
    }

    pub(crate) fn begin(&mut self, config: SimConfig) {
        self.epoch += 1;
        for end in &self.ends {
            assert!(end.link.begin(self.epoch as u32), "something is going on");
        }
        let config = SimConfig { epoch: Epoch::new(self.epoch as u8), ..config };
        let mailboxes = self.ends.each_ref().map(|end| Arc::clone(end.endpoint.mailbox().region()));
        let (net, links) = SimNet::between(&config, mailboxes);
        self.fast = Some(Fast { net, links: links.map(Some) });
    }

    /// A side has its end of the new link up.
    pub(crate) fn install(&mut self, side: usize) {
        if let Some(link) = self.fast.as_mut().and_then(|fast| fast.links[side].take()) {
            self.ends[side].link.install(link);
        }
    }

    /// A side loses its end, or does not get it.
    pub(crate) fn give_up(&mut self, side: usize, why: &str) {
        if let Some(fast) = &mut self.fast {
            fast.links[side].take();
        }
        self.ends[side].link.abandon(why);
    }

    /// One side finds that something is wrong with the link.
    pub(crate) fn lose(&mut self) {
        let side = self.rng.usize(0..2);
        if self.fast.is_some() {
            self.give_up(side, "lost");
        }
    }

    pub(crate) fn settle_network(&self) {
        if let Some(fast) = &self.fast {
            fast.net.settle();
        }
    }

    pub(crate) fn act(&mut self) {
        let side = self.rng.usize(0..2);
        match self.rng.u32(0..20) {
            0..6 => {
                let most = if self.rng.u8(0..8) == 0 { 8192 } else { 400 };
                let bytes = HEADER + self.rng.usize(0..most);
                if bytes <= ring().bytes() / 2 {
                    self.send(side, bytes);
                }
            }
            6..12 => self.receive(side, true),
            12..14 => self.release(side),
            14..15 => self.install(side),
            _ => {
                let steps = self.rng.usize(0..10);
                if let Some(fast) = &self.fast {
                    (0..steps).for_each(|_| {
                        fast.net.step();
                    });
                }
            }
        }
    }

    fn release(&mut self, side: usize) {
        if !self.held[side].is_empty() {
            let which = self.rng.usize(0..self.held[side].len());
            check(&self.held[side].swap_remove(which));
        }
    }

    /// Sends a frame, if there is room.
    pub(crate) fn send(&mut self, side: usize, bytes: usize) {
        let Ok(mut claim) = self.ends[side].endpoint.claim(bytes, Room::Data) else { return };
        let number = self.next[side];
        self.next[side] += 1;
        claim.iter_mut().skip(HEADER).zip(filler(number, bytes)).for_each(|(to, from)| *to = from);
        let call = CallId { index: number, generation: 0 };
        claim.commit(&Header { call, ..Header::new(Kind::Message, bytes as u32) });
        self.sent[side].push_back((number, bytes));
        if self.rng.bool() {
            self.ends[side].endpoint.flush();
        }
    }

    pub(crate) fn turn(&mut self, side: usize) {
        self.ends[side].endpoint.flush();
        self.receive(side, false);
    }

    fn receive(&mut self, side: usize, keeps: bool) {
        let (sent, held, rng) = (&mut self.sent[1 - side], &mut self.held[side], &mut self.rng);
        let mut arrived = 0;
        let turned = self.ends[side].endpoint.turn(&mut |frame| {
            let found = (frame.header().call.index, frame.header().length as usize);
            assert_eq!(sent.pop_front(), Some(found));
            arrived += 1;
            check(&frame);
            if keeps && rng.u8(0..4) == 0 {
                held.push(frame);
            }
        });
        self.arrived += arrived;
        match turned {
            Ok(Turn::Frames(_)) => {}
            Ok(Turn::Busy) => panic!("there is only one thread"),
            Err(error) => panic!("side {side}: {error}"),
        }
    }

    /// Lets everything that was begun come to its end.
    pub(crate) fn finish(&mut self) {
        let started = Instant::now();
        for side in 0..2 {
            self.install(side);
        }
        let left = |ends: &[End; 2], side: usize| {
            ends[side].endpoint.staging().claimed().0 - ends[1 - side].endpoint.mailbox().consumed().0
        };
        let mut quiet = 0;
        while quiet < 5 {
            for side in [0, 1] {
                self.turn(side);
                self.held[side].drain(..).for_each(|frame| check(&frame));
                self.settle_network();
            }
            let all = left(&self.ends, 0) == 0 && left(&self.ends, 1) == 0;
            quiet = if all { quiet + 1 } else { 0 };
            if started.elapsed() > PATIENCE {
                panic!(
                    "{:?} are missing, {:?} lie in the rings; {:?}",
                    self.sent.each_ref().map(VecDeque::len),
                    [left(&self.ends, 0), left(&self.ends, 1)],
                    self.ends.each_ref().map(|end| format!("{:?} {:?}", end.link, end.link.history())),
                );
            }
        }
        assert!(self.sent.iter().all(VecDeque::is_empty));
        if let Some(fast) = &self.fast {
            assert_eq!(fast.net.statistics().not_ready, 0, "a notification found no receive request");
        }
    }
}
