//! The end of a connection, from whichever side.

use std::time::{Duration, Instant};

use ringmail_transport::endpoint::SendError;
use ringmail_transport::frame::{Header, Kind};
use ringmail_transport::link::LinkError;
use ringmail_transport::ring::Room;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fabric::{Fabric, Wanted};
use crate::traffic::name;

/// Within this time everybody must know.
const NOTICE: Duration = Duration::from_secs(2);

async fn end_of(driver: JoinHandle<LinkError>) -> LinkError {
    tokio::time::timeout(NOTICE, driver).await.expect("the end was not noticed").unwrap()
}

pub(crate) async fn dropping_an_end_is_noticed_by_the_other<F: Fabric>(fabric: &F) {
    for traffic in [false, true] {
        let (left, right) = fabric.pair(Wanted::default()).await;
        let driver = right.drive(drop);
        if traffic {
            left.send(name(0, 0), &[1; 50]).await.unwrap();
            right.send(name(0, 0), &[1; 50]).await.unwrap();
            left.receive(&mut drop).await.unwrap();
        }
        drop(left);
        let error = end_of(driver).await;
        assert!(matches!(error, LinkError::PeerClosed), "{error}");
        assert!(right.endpoint.failure().is_some());
    }
}

pub(crate) async fn failing_an_end_is_noticed_by_both<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let (ours, theirs) = (left.drive(drop), right.drive(drop));
    tokio::time::sleep(Duration::from_millis(10)).await;
    left.endpoint.fail(LinkError::Closed("the test is over"));
    let error = end_of(ours).await;
    assert!(matches!(error, LinkError::Closed("the test is over")), "{error}");
    // The application gives up what it keeps of a connection that has ended.
    drop(left);
    let error = end_of(theirs).await;
    assert!(matches!(error, LinkError::PeerClosed), "{error}");
}

pub(crate) async fn what_was_sent_before_the_end_arrives<F: Fabric>(fabric: &F) {
    for round in 0..30 {
        let (left, right) = fabric.pair(Wanted::default()).await;
        let (calls, mut arrived) = mpsc::unbounded_channel();
        let driver = right.drive(move |frame| {
            let _ = calls.send(frame.header().call);
        });
        for number in 0..20 {
            left.send(name(round, number), &[1; 50]).await.unwrap();
        }
        while !left.endpoint.is_flushed() {
            left.turn(&mut drop).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(left);
        let error = end_of(driver).await;
        assert!(matches!(error, LinkError::PeerClosed), "{error}");
        let came: Vec<_> = std::iter::from_fn(|| arrived.try_recv().ok()).collect();
        assert_eq!(came, (0..20).map(|number| name(round, number)).collect::<Vec<_>>());
    }
}

pub(crate) async fn whoever_waits_for_space_learns_of_the_end<F: Fabric>(fabric: &F) {
    for own_end in [false, true] {
        let (left, right) = fabric.pair(Wanted::default()).await;
        let driver = left.drive(drop);
        let waits = tokio::spawn({
            let left = left.handle();
            async move {
                // Nobody reads, so that some day there is no space.
                loop {
                    if let Err(error) = left.send(name(0, 0), &[1; 1000]).await {
                        return error;
                    }
                }
            }
        });
        // No space any more, for so long that it is not just between two frames.
        let mut full_since = Instant::now();
        while full_since.elapsed() < Duration::from_millis(50) {
            if left.endpoint.claim(1032, Room::Data).is_ok() {
                full_since = Instant::now();
            }
            left.endpoint.flush();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if own_end {
            left.endpoint.fail(LinkError::Closed("the test is over"));
        } else {
            drop(right);
        }
        let error = tokio::time::timeout(NOTICE, waits).await.expect("waits for ever").unwrap();
        assert!(matches!(error, SendError::Dead(_)), "{error}");
        end_of(driver).await;
    }
}

pub(crate) async fn nothing_is_delivered_after_the_receiver_has_ended_the_connection<F: Fabric>(fabric: &F) {
    let (left, right) = fabric.pair(Wanted::default()).await;
    let held = left.endpoint.hold();
    for number in 0..5 {
        let claim = left.endpoint.claim(100, Room::Data).unwrap();
        claim.commit(&Header { call: name(0, number), ..Header::new(Kind::Message, 100) });
    }
    left.endpoint.release(held.expect("nobody else flushes"));
    let mut came = Vec::new();
    let error = loop {
        // Whoever is given the second frame finds that it breaks a rule.
        let turn = right.turn(&mut |frame| {
            came.push(frame.header().call);
            if came.len() == 2 {
                right.endpoint.fail(LinkError::Closed("the second frame is refused"));
            }
        });
        match turn {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Closed("the second frame is refused")), "{error}");
    assert_eq!(came, [name(0, 0), name(0, 1)]);
}
