//! TCP and a link that takes over from it, again and again: two real TCP ends, the simulated link as the fast one, one
//! thread. What arrives is compared with what was sent.

mod document;
mod hostile;
mod slow;
mod world;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringmail_transport::frame::{Check, Header, Kind};
use ringmail_transport::immediate::Epoch;
use ringmail_transport::link::Link;
use ringmail_transport::link::sim::{Faults, SimConfig, SimNet};
use ringmail_transport::ring::{Position, RingSize, Room};

use self::world::{End, World, ring, sockets};

/// A network as a seed decides it, with faults that a link survives.
fn network(seed: u64) -> SimConfig {
    let mut rng = fastrand::Rng::with_seed(seed);
    SimConfig {
        seed,
        immediates: rng.bool(),
        ring: ring(),
        send_queue: rng.u32(4..20),
        notifications: rng.u32(12..24),
        epoch: Epoch::default(),
        delay: (rng.u64(1..1000), rng.u64(1000..5000)),
        faults: Faults {
            tear: rng.bool(),
            loss: rng.u32(0..100),
            retries: 20,
            vanishing: 0,
            stall: rng.u32(0..50),
            dies_at: None,
        },
    }
}

/// Plays with a network that lives as long as `death` says, in steps, and then with another, which may live for ever.
fn play(seed: u64, actions: usize, deaths: impl Fn(u64) -> Option<u64>) -> World {
    let mut world = World::new(seed);
    for action in 0..actions {
        if world.is_settled() && world.chance(20) {
            let mut config = network(seed * 1000 + action as u64);
            config.faults.dies_at = deaths(world.epoch());
            world.begin(config);
        }
        world.act();
    }
    world.finish();
    world
}

#[test]
fn whenever_links_change_every_frame_arrives_once_in_order_intact() {
    let (mut frames, mut upgrades, mut fallbacks, mut failures) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed);
        for action in 0..3000 {
            if world.is_settled() && world.chance(30) {
                let mut config = network(seed * 10_000 + action);
                // Both sides learn of such a death, and of any other one of them alone.
                config.faults.dies_at = (seed % 3 == 0).then_some(action % 500);
                world.begin(config);
            }
            if world.chance(400) {
                world.lose();
            }
            world.act();
        }
        world.finish();
        frames += world.arrived();
        for history in world.histories() {
            upgrades += history.upgrades;
            fallbacks += history.fallbacks;
            failures += history.failures;
        }
    }
    // All of it was there.
    assert!(frames > 30_000, "{frames}");
    assert!(upgrades > 300 && fallbacks > 250 && failures > 20, "{upgrades} {fallbacks} {failures}");
}

#[test]
fn wherever_the_fast_link_dies_tcp_goes_on_and_another_takes_over() {
    for step in (1..150).chain((150..1500).step_by(50)) {
        // The first dies at the step, the second somewhere, the third lives.
        let world = play(step, 2000, |epoch| match epoch {
            0 => Some(step),
            1 => Some(step / 2 + 1),
            _ => None,
        });
        for history in world.histories() {
            assert!(history.upgrades >= 1, "step {step}: {history:?}");
        }
    }
}

#[test]
fn a_link_that_lives_is_kept() {
    for seed in 0..10 {
        let world = play(seed, 1500, |_| None);
        for history in world.histories() {
            assert_eq!((history.upgrades, history.fallbacks, history.failures), (1, 0, 0), "{history:?}");
            assert_eq!(history.reason, None);
        }
        assert_eq!(world.kinds(), ["sim", "sim"]);
    }
}

#[test]
fn fallback_right_behind_switch_is_not_taken_for_frames() {
    let mut world = World::new(1);
    world.begin(network(7));
    world.install(1);
    world.turn(1);
    world.install(0);
    world.turn(0);
    for _ in 0..5 {
        world.send(0, 300);
    }
    world.settle_network();
    // Side 1 has the frames, and has not read SWITCH.
    world.give_up(0, "enough");
    for _ in 0..4 {
        world.turn(0);
    }
    assert_eq!(world.arrived(), 0);
    world.finish();
    assert_eq!(world.arrived(), 5);
    assert_eq!(world.kinds(), ["tcp", "tcp"]);
    let [own, peers] = world.histories();
    assert!(own.reason.unwrap().contains("enough") && peers.reason.unwrap().contains("given it up"));
}

#[test]
fn a_side_that_has_it_not_brings_the_other_back() {
    for up in [0, 1] {
        let mut world = World::new(2);
        world.begin(network(8));
        world.install(up);
        world.turn(up);
        for _ in 0..5 {
            world.send(up, 2000);
        }
        world.give_up(1 - up, "the device is gone");
        world.finish();
        assert_eq!(world.arrived(), 5);
        let histories = world.histories();
        assert_eq!(histories[up].fallbacks, 1);
        assert_eq!((histories[1 - up].fallbacks, histories[1 - up].failures), (0, 1));
        assert!(world.is_settled());
    }
}

#[test]
fn both_sides_may_give_up_at_once() {
    for turns in 0..6 {
        let mut world = World::new(turns);
        world.begin(network(turns));
        for side in [0, 1] {
            world.install(side);
        }
        for turn in 0..turns {
            world.send(turn as usize % 2, 500);
            world.turn(turn as usize % 2);
        }
        for side in [0, 1] {
            world.give_up(side, "both");
            world.send(side, 700);
        }
        world.finish();
        assert!(world.is_settled());
    }
}

#[test]
fn a_large_backlog_crosses_over() {
    // Far more than a ring has left on TCP before the change, and nothing comes the other way that would say how far
    // the peer has got.
    for seed in 0..8 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.send(0, RingSize::MIN / 4);
            world.turn(1);
            world.turn(0);
        }
        world.begin(network(seed));
        world.install(0);
        world.install(1);
        for _ in 0..100 {
            world.send(0, RingSize::MIN / 4);
            world.turn(0);
            world.settle_network();
            if seed % 2 == 0 {
                world.turn(1);
            }
        }
        world.finish();
        assert_eq!(world.kinds(), ["sim", "sim"]);
    }
}

#[test]
fn no_frame_is_lent_that_the_peer_could_change() {
    let [left, right] = sockets().map(|socket| End::new(socket, Check::Off));
    let next = || left.pass_one(&right);
    let held = next();
    assert!(held.holds_ring());
    assert!(right.link.begin(1));
    let mut protected = pin!(right.link.protect());
    let mut is_protected =
        || matches!(protected.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
    assert!(!is_protected(), "nobody has received since");
    let copied = next();
    assert!(!copied.holds_ring());
    assert!(!is_protected(), "an older frame is still in the ring");
    drop(held);
    right.endpoint.turn(&mut drop).unwrap();
    assert!(is_protected());
    // What is lent is given a copy at once.
    right.link.abandon("it is not needed");
    let lent = next().into_bytes();
    assert!(right.link.begin(2));
    let mut protected = pin!(right.link.protect());
    let mut is_protected =
        || matches!(protected.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
    assert!(!is_protected());
    right.endpoint.turn(&mut drop).unwrap();
    assert!(is_protected());
    drop(lent);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What the link itself has to send waits for room like everything else, and nobody else would come back for it.
#[tokio::test]
async fn whoever_makes_room_wakes_who_has_switch_to_send() {
    let [left, right] = sockets().map(|socket| End::new(socket, Check::Off));
    let half = ring().bytes() / 2;
    let claims = [(), ()].map(|()| left.endpoint.claim(half, Room::Control).unwrap());
    left.link.tell(vec![1]);
    left.endpoint.turn(&mut drop).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    // What was ready before is no news.
    while left.endpoint.arm(&mut Context::from_waker(&waker)).is_ready() {
        left.endpoint.turn(&mut drop).unwrap();
    }
    woken.0.store(false, Ordering::SeqCst);
    for claim in claims {
        claim.commit(&Header::new(Kind::Message, half as u32));
    }
    left.endpoint.flush();
    assert!(left.endpoint.is_flushed(), "the socket takes that much");
    assert!(woken.0.load(Ordering::SeqCst), "there is room now");
    drop(right);
}

#[test]
fn whoever_waits_for_the_end_of_a_link_that_was_never_used_is_told() {
    let [left, _right] = sockets().map(|socket| End::new(socket, Check::Off));
    assert!(left.link.begin(1));
    let region = || Arc::clone(left.endpoint.mailbox().region());
    let (_, [fast, _]) = SimNet::between(&network(1), [region(), region()]);
    left.link.install(fast);
    let mut settled = pin!(left.link.settled());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(settled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    left.link.abandon("already");
    // Before SWITCH has a place: a turn is what would give it one.
    for _ in 0..3 {
        let _ = left.link.poll(left.endpoint.mailbox(), Position(0));
    }
    assert!(woken.0.load(Ordering::SeqCst));
    assert!(settled.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    assert_eq!(left.endpoint.staging().claimed(), Position(0));
}
