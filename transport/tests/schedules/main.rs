//! Whole connections over the simulated link, one thread, every schedule decided by a seed or by proptest: what arrives
//! is compared with a model, and so is the space that is left.

mod world;

use std::task::{Context, Waker};

use proptest::prelude::*;
use ringmail_transport::endpoint::Endpoint;
use ringmail_transport::frame::{Check, HEADER, Header, Kind};
use ringmail_transport::immediate::{Epoch, Immediate, Notice};
use ringmail_transport::link::sim::{Faults, SimConfig, SimNet};
use ringmail_transport::link::{LinkError, NoticeError};
use ringmail_transport::ring::{Position, RingSize, Room};

use self::world::{Action, Trace, World, ends};

/// A network as a seed decides it, with every kind of fault that a connection survives.
fn network(seed: u64) -> SimConfig {
    let mut rng = fastrand::Rng::with_seed(seed);
    SimConfig {
        seed,
        immediates: rng.bool(),
        ring: RingSize::new(RingSize::MIN << rng.u32(0..2)).unwrap(),
        send_queue: rng.u32(4..20),
        notifications: rng.u32(12..24),
        epoch: Epoch::new(rng.u8(..)),
        delay: (rng.u64(1..1000), rng.u64(1000..5000)),
        faults: Faults {
            tear: rng.bool(),
            loss: rng.u32(0..100),
            retries: 20,
            vanishing: rng.u32(0..4),
            stall: rng.u32(0..50),
            dies_at: None,
        },
    }
}

fn check_of(seed: u64) -> Check {
    if seed.is_multiple_of(2) { Check::Header } else { Check::Off }
}

fn play(seed: u64, actions: usize) -> Trace {
    let (net, ends) = ends(network(seed), check_of(seed));
    let mut world = World::new(&net, &ends);
    let mut rng = fastrand::Rng::with_seed(!seed);
    for _ in 0..actions {
        world.act(Action::random(&mut rng));
    }
    world.finish();
    world.trace()
}

#[test]
fn whatever_the_schedule_every_frame_arrives_once_in_order_intact() {
    let mut sum = (0, 0, 0);
    for seed in 0..150 {
        let trace = play(seed, 1500);
        sum.0 += trace.arrived.iter().map(Vec::len).sum::<usize>();
        sum.1 += trace.statistics.losses;
        sum.2 += trace.statistics.vanished;
    }
    // The faults were there.
    assert!(sum.0 > 20_000 && sum.1 > 500 && sum.2 > 100, "{sum:?}");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 1000..1010 {
        assert_eq!(play(seed, 800), play(seed, 800));
    }
    assert_ne!(play(1000, 800), play(1001, 800));
}

#[test]
fn wherever_the_link_dies_both_sides_learn_why_and_have_a_part_of_what_was_sent() {
    for step in (1..120).chain((200..2000).step_by(300)) {
        let mut config = network(step);
        config.faults = Faults { dies_at: Some(step), ..config.faults };
        let (net, ends) = ends(config, check_of(step));
        let mut world = World::new(&net, &ends);
        let mut rng = fastrand::Rng::with_seed(step);
        // The model checks that what arrives is what was sent, without a gap.
        while net.steps() < step {
            world.act(Action::random(&mut rng));
        }
        for side in 0..2 {
            // What had arrived before is delivered first.
            world.act(Action::Turn { side, keeps: false });
            world.act(Action::Turn { side, keeps: false });
            match &world.ended[side] {
                Some(LinkError::Simulated(at)) => assert_eq!(*at, step),
                other => panic!("side {side} at step {step}: {other:?}"),
            }
            world.act(Action::Flush { side });
        }
        drop(world);
        for end in &ends {
            assert!(end.failure().unwrap().to_string().contains(&format!("step {step}")));
        }
    }
}

fn send(end: &Endpoint, bytes: usize) {
    let claim = end.claim(bytes, Room::Data).expect("room");
    claim.commit(&Header::new(Kind::Message, bytes as u32));
    end.flush();
}

fn receive(end: &Endpoint) -> Result<usize, LinkError> {
    let mut frames = 0;
    end.turn(&mut |_| frames += 1).map(|_| frames)
}

fn plain() -> (SimNet, [Endpoint; 2]) {
    ends(SimConfig { ring: RingSize::new(RingSize::MIN).unwrap(), ..SimConfig::default() }, Check::Off)
}

#[test]
fn nothing_is_delivered_before_its_notification() {
    let config = SimConfig {
        immediates: false,
        faults: Faults { tear: true, ..Faults::default() },
        ..SimConfig::default()
    };
    let (net, ends) = ends(config, Check::Off);
    send(&ends[0], 20_000);
    let mut looks = 0;
    while receive(&ends[1]).unwrap() == 0 {
        // Pieces of the frame have landed, and are not looked at.
        assert!(net.step(), "it never came");
        looks += 1;
    }
    assert!(looks >= 2);
    assert_eq!(net.statistics().notifications, 1);
}

#[test]
fn a_silent_peer_is_noticed_by_what_is_sent_to_it() {
    let (net, ends) = plain();
    net.kill(1);
    net.settle();
    assert_eq!(receive(&ends[0]).unwrap(), 0, "nothing says so yet");
    send(&ends[0], HEADER);
    net.settle();
    assert!(matches!(receive(&ends[0]), Err(LinkError::Simulated(_))));
    assert!(net.statistics().losses > 6);
}

#[test]
fn late_notifications_of_an_earlier_link_are_dropped() {
    let config = SimConfig { epoch: Epoch::new(4), ..SimConfig::default() };
    let (net, first, second) = SimNet::pair(config).unwrap();
    let link = second.link.clone();
    let agreed = ringmail_transport::endpoint::Agreed { frame_limit: 1024, check: Check::Off };
    let ends = [first.into_endpoint(agreed), second.into_endpoint(agreed)];
    // Of the link before, and it would have ended this one.
    net.inject(1, Immediate::new(Notice::Close, Epoch::new(3), Position(77)).encode());
    send(&ends[0], HEADER);
    net.settle();
    assert_eq!(receive(&ends[1]).unwrap(), 1);
    assert_eq!(link.stale_notifications(), 1);
}

#[test]
fn a_notification_that_means_nothing_ends_the_connection() {
    let (net, ends) = plain();
    net.inject(1, 0xf000_0000);
    match receive(&ends[1]) {
        Err(LinkError::Notice(NoticeError::Unknown { bits: 0xf000_0000 })) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_send_queue_pushes_back_and_wakes_when_it_has_room() {
    let config = SimConfig { send_queue: 4, ..SimConfig::default() };
    let (net, ends) = ends(config, Check::Off);
    let wakes = net.statistics().wakes;
    for _ in 0..10 {
        send(&ends[0], HEADER);
    }
    assert!(!ends[0].is_flushed(), "ten work requests in a queue of four");
    assert!(ends[0].arm(&mut Context::from_waker(Waker::noop())).is_pending());
    net.settle();
    assert!(net.statistics().wakes > wakes, "nobody was told that the queue has room");
    // All that waited goes in one work request.
    let before = net.statistics().requests;
    assert_eq!(receive(&ends[0]).unwrap(), 0);
    net.settle();
    assert!(ends[0].is_flushed());
    assert_eq!(net.statistics().requests, before + 1);
    assert_eq!(receive(&ends[1]).unwrap(), 10);
}

#[test]
fn a_side_that_only_receives_reports_each_quarter_ring() {
    let (net, ends) = plain();
    let ring = ends[0].staging().size().bytes();
    for _ in 0..100 {
        send(&ends[0], ring / 8);
        net.settle();
        assert_eq!(receive(&ends[1]).unwrap(), 1);
        net.settle();
        receive(&ends[0]).unwrap();
    }
    // An eighth at a time: every second frame, at most.
    let reports = net.statistics().credit_reports;
    assert!((40..=60).contains(&reports), "{reports} reports for 100 frames of an eighth of the ring");
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let side = 0usize..2;
    let which = any::<usize>();
    let bytes = prop_oneof![4 => HEADER..500usize, 1 => 4000..9000usize];
    let action = prop_oneof![
        5 => (side.clone(), bytes).prop_map(|(side, bytes)| Action::Claim { side, bytes }),
        4 => (side.clone(), which).prop_map(|(side, which)| Action::Commit { side, which }),
        1 => (side.clone(), which).prop_map(|(side, which)| Action::Abandon { side, which }),
        3 => side.clone().prop_map(|side| Action::Flush { side }),
        4 => (side.clone(), any::<bool>()).prop_map(|(side, keeps)| Action::Turn { side, keeps }),
        2 => (side, which).prop_map(|(side, which)| Action::Release { side, which }),
        4 => (0usize..10).prop_map(|events| Action::Step { events }),
    ];
    prop::collection::vec(action, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Claims, commits and releases in any order, of any size, around the ring, shrunk to the fewest if they break it.
    #[test]
    fn rings_keep_to_their_model(actions in actions(), seed in 0u64..64) {
        let (net, ends) = ends(network(seed), check_of(seed));
        let mut world = World::new(&net, &ends);
        for action in actions {
            world.act(action);
        }
        world.finish();
        world.trace();
    }
}
