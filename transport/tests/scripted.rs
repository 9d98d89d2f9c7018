//! An endpoint over a link that a test scripts: for moments that are too short to be met with a real one, as while a
//! side is about to sleep, and for links that are faster than any.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use ringmail_transport::endpoint::{Agreed, Endpoint, Turn};
use ringmail_transport::frame::{Check, HEADER, Header, Kind};
use ringmail_transport::link::{Arrived, Flushed, Interest, Link, LinkError, LinkKind};
use ringmail_transport::memory::Region;
use ringmail_transport::ring::{Acknowledge, Mailbox, Position, RingSize, Room, Staging};

/// A link that is full until it is opened. The event that it can take more comes once, while the side is arming.
#[derive(Debug, Default)]
struct Scripted {
    open: AtomicBool,
    arms: AtomicU32,
    /// The side that arms, of which another task sends at that moment.
    sends_while_arming: OnceLock<Weak<Endpoint>>,
}

impl Acknowledge for Scripted {
    fn acknowledge(&self, _consumed: Position) {}
}

impl Link for Scripted {
    fn kind(&self) -> LinkKind {
        LinkKind::Sim
    }

    fn announces_whole_frames(&self) -> bool {
        true
    }

    fn flush(&self, _staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        let open = self.open.load(Ordering::SeqCst);
        Ok(Flushed { until: if open { to } else { from }, blocked: !open })
    }

    fn freed(&self, sealed: Position) -> Result<Position, LinkError> {
        // As with TCP, what has left is free.
        Ok(if self.open.load(Ordering::SeqCst) { sealed } else { Position(0) })
    }

    fn frees_by_header(&self) -> bool {
        true
    }

    fn poll(&self, _mailbox: &Mailbox, known: Position) -> Result<Arrived, LinkError> {
        Ok(Arrived { produced: known })
    }

    fn arm(&self, _cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>> {
        if self.arms.fetch_add(1, Ordering::SeqCst) == 0 {
            assert!(!interest.blocked, "nothing was blocked when arming began");
            let sender = self.sends_while_arming.get().and_then(Weak::upgrade).expect("a side that sends");
            sender.flush();
            // It could not, and now it could. Nobody waits for that event yet, so it is taken for nothing.
            self.open.store(true, Ordering::SeqCst);
        }
        Poll::Pending
    }

    fn starve(&self, _freed: Position) -> bool {
        false
    }

    fn fed(&self) {}

    fn disarm(&self) {}

    fn close(&self) {}
}

fn end(link: &Arc<Scripted>) -> Arc<Endpoint> {
    let size = RingSize::new(RingSize::MIN).unwrap();
    let region = || Arc::new(Region::create(size).unwrap());
    let mailbox = Arc::new(Mailbox::new(region(), Arc::clone(link) as _, false));
    let agreed = Agreed { frame_limit: 4096, check: Check::Off };
    Arc::new(Endpoint::new(Staging::new(region()), mailbox, Arc::clone(link) as _, agreed))
}

#[tokio::test]
async fn whoever_never_has_to_wait_for_space_lets_others_run() {
    let link = Arc::new(Scripted { open: AtomicBool::new(true), ..Scripted::default() });
    let end = end(&link);
    let told = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn({
        let told = Arc::clone(&told);
        async move { told.store(true, Ordering::SeqCst) }
    });
    for _ in 0..10_000 {
        let claim = end.claim_wait(4096, Room::Data).await.unwrap();
        claim.commit(&Header::new(Kind::Message, 4096));
        end.flush();
    }
    assert!(told.load(Ordering::SeqCst), "10,000 frames, and nobody else had a turn");
    other.await.unwrap();
}

#[test]
fn a_flush_that_becomes_blocked_while_the_side_arms_is_not_slept_over() {
    let link = Arc::new(Scripted::default());
    let end = end(&link);
    link.sends_while_arming.set(Arc::downgrade(&end)).unwrap();

    end.claim(HEADER, Room::Data).unwrap().commit(&Header::new(Kind::Message, HEADER as u32));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(end.arm(&mut cx), Poll::Ready(Ok(()))), "it sleeps, and no event will come");
    assert_eq!(end.turn(&mut drop).unwrap(), Turn::Frames(0));
    assert!(end.is_flushed());
    assert!(end.arm(&mut cx).is_pending(), "with nothing to do it sleeps");
}

#[test]
fn how_much_waits_can_be_asked_while_others_send() {
    let link = Arc::new(Scripted { open: AtomicBool::new(true), ..Scripted::default() });
    let end = end(&link);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut asked = 0_u64;
            while !done.load(Ordering::Relaxed) {
                // The two positions that are compared change meanwhile. What the answer is matters little; that there is
                // one does.
                std::hint::black_box(end.has_much());
                asked += 1;
            }
            asked
        });
        for _ in 0..300_000 {
            if let Ok(claim) = end.claim(HEADER, Room::Data) {
                claim.commit(&Header::new(Kind::Message, HEADER as u32));
            }
            end.flush();
        }
        done.store(true, Ordering::Relaxed);
        assert!(asked.join().expect("it panicked") > 0);
    });
    assert!(!end.has_much(), "all is flushed");
}
