//! A fast link that takes its time to be taken down: the peer may write through it until it is.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use ringmail_transport::frame::Check;
use ringmail_transport::link::sim::{SimConfig, SimLink, SimNet};
use ringmail_transport::link::switching::{FastLink, Then};
use ringmail_transport::link::{Arrived, Flushed, Interest, Link, LinkError, LinkKind};
use ringmail_transport::ring::{Acknowledge, Mailbox, Position, Staging};

use crate::world::{End, ring, sockets};

/// Says that it is gone when the test wants it to.
#[derive(Debug)]
struct Slow {
    link: Arc<SimLink>,
    gone: Mutex<Option<Then>>,
}

impl Acknowledge for Slow {
    fn acknowledge(&self, consumed: Position) {
        self.link.acknowledge(consumed);
    }
}

impl Link for Slow {
    fn kind(&self) -> LinkKind {
        self.link.kind()
    }
    fn announces_whole_frames(&self) -> bool {
        self.link.announces_whole_frames()
    }
    fn flush(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        self.link.flush(staging, from, to)
    }
    fn freed(&self, sealed: Position) -> Result<Position, LinkError> {
        self.link.freed(sealed)
    }
    fn frees_by_header(&self) -> bool {
        self.link.frees_by_header()
    }
    fn poll(&self, mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError> {
        self.link.poll(mailbox, known)
    }
    fn arm(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>> {
        self.link.arm(cx, interest)
    }
    fn starve(&self, freed: Position) -> bool {
        self.link.starve(freed)
    }
    fn fed(&self) {
        self.link.fed();
    }
    fn disarm(&self) {
        self.link.disarm();
    }
    fn close(&self) {
        self.link.close();
    }
}

impl FastLink for Slow {
    fn begin(&self, from: Position) {
        self.link.begin(from);
    }
    fn take_down(&self, then: Then) {
        *self.gone.lock() = Some(then);
    }
    fn said_goodbye(&self) -> bool {
        self.link.said_goodbye()
    }
    fn close_then(&self, then: Then) {
        self.link.close_then(then);
    }
}

#[test]
fn frames_are_copied_until_the_last_link_is_gone_whatever_becomes_of_the_next() {
    let [left, right] = sockets().map(|socket| End::new(socket, Check::Off));
    let next = || left.pass_one(&right);
    let mut protected = pin!(right.link.protect());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(protected.as_mut().poll(&mut cx).is_pending());
    right.endpoint.turn(&mut drop).unwrap();
    assert!(protected.as_mut().poll(&mut cx).is_ready());
    assert!(right.link.begin(1));
    let region = || Arc::clone(right.endpoint.mailbox().region());
    let (_, [fast, _others]) =
        SimNet::between(&SimConfig { ring: ring(), ..SimConfig::default() }, [region(), region()]);
    let slow = Arc::new(Slow { link: fast, gone: Mutex::default() });
    right.link.install(Arc::clone(&slow) as _);
    right.link.lose("it broke");
    right.endpoint.turn(&mut drop).unwrap();
    let gone = slow.gone.lock().take().expect("it is being taken down");
    // Another one was wished for meanwhile, and there was no time to wait.
    right.link.abandon("the last one is not done with");
    right.endpoint.turn(&mut drop).unwrap();
    right.link.lose("a reason to look");
    assert!(!next().holds_ring(), "the peer may still write");
    gone.call();
    right.endpoint.turn(&mut drop).unwrap();
    assert!(next().holds_ring());
}
