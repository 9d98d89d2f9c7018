//! Who may connect.

use std::time::{Duration, Instant};

use ringmail_transport::link::verbs::{BringUpError, Immediates, Ticket, connect};

use crate::on_each;
use crate::pair::{Bench, settings, ticket};

#[test]
fn a_ticket_is_good_for_one_connection() {
    on_each(Duration::from_secs(60), async |address| {
        let bench = Bench::new(address, 4, settings(Immediates::WherePossible));
        let ticket = ticket();
        let (peer, epoch) = (bench.listener.address(), bench.settings.epoch);
        let (first, accepting) = (bench.prepare(0).await, bench.prepare(1).await);
        let (left, right) = (first.end(), accepting.end());
        let expectation = bench.listener.expect(ticket.clone(), epoch);
        let (first, accepted) =
            tokio::join!(connect(first, peer, &right, &ticket), expectation.accept(accepting, &left));
        let (_first, _accepted) = (first.unwrap(), accepted.unwrap());
        let error = connect(bench.prepare(0).await, peer, &right, &ticket).await.unwrap_err();
        assert!(matches!(error, BringUpError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("unknown or used"), "{error}");
    });
}

#[test]
fn strangers_are_refused_and_do_not_use_the_ticket_up() {
    on_each(Duration::from_secs(60), async |address| {
        let bench = Bench::new(address, 4, settings(Immediates::WherePossible));
        let good = ticket();
        let expectation = bench.listener.expect(good.clone(), bench.settings.epoch);
        let accepting = bench.prepare(1).await;
        let (peer, right) = (bench.listener.address(), accepting.end());
        // Who has seen the token on the wire has neither session nor key.
        let guessed = Ticket::new([0; 16], *good.token(), [0; 32]);
        for stranger in [ticket(), guessed] {
            let error = connect(bench.prepare(0).await, peer, &right, &stranger).await.unwrap_err();
            assert!(matches!(error, BringUpError::Refused { .. }), "{error}");
        }
        let prepared = bench.prepare(0).await;
        let left = prepared.end();
        let (connected, accepted) =
            tokio::join!(connect(prepared, peer, &right, &good), expectation.accept(accepting, &left));
        connected.unwrap();
        accepted.unwrap();
    });
}

#[test]
fn nobody_there_and_nobody_coming_end_in_time() {
    on_each(Duration::from_secs(60), async |address| {
        let mut bench = Bench::new(address, 4, settings(Immediates::WherePossible));
        bench.settings.timeout = Duration::from_secs(1);
        let ticket = ticket();
        // Expected, but nobody ever accepts: the connection hangs until the time is up.
        let silent = bench.listener.expect(ticket.clone(), bench.settings.epoch);
        let accepting = bench.prepare(1).await;
        let (peer, right) = (bench.listener.address(), accepting.end());
        let started = Instant::now();
        let error = connect(bench.prepare(0).await, peer, &right, &ticket).await.unwrap_err();
        assert!(matches!(error, BringUpError::TimedOut { .. }), "{error}");
        drop(silent);
        // Nobody comes.
        let nobody = bench.listener.expect(crate::pair::ticket(), bench.settings.epoch);
        let error = nobody.accept(bench.prepare(1).await, &right).await.unwrap_err();
        assert!(matches!(error, BringUpError::TimedOut { .. }), "{error}");
        // Nobody listens any more.
        drop(bench.listener);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let prepared = ringmail_transport::link::verbs::Prepared::new(
            &bench.lanes[0],
            &bench.domains[0],
            &bench.settings,
        );
        let error = connect(prepared.await.unwrap(), peer, &right, &ticket).await.unwrap_err();
        assert!(matches!(error, BringUpError::Refused { .. } | BringUpError::TimedOut { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    });
}

#[test]
fn ends_that_do_not_fit_are_refused() {
    on_each(Duration::from_secs(60), async |address| {
        let mut bench = Bench::new(address, 4, settings(Immediates::WherePossible));
        // The other side waits in vain.
        bench.settings.timeout = Duration::from_millis(300);
        let (left, right) = bench.connect(|end| end.ring_bytes *= 2).await;
        assert!(matches!(left.unwrap_err(), BringUpError::Ring { .. }));
        right.unwrap_err();
        let (left, _right) = bench.connect(|end| end.notifications = 1).await;
        assert!(matches!(left.unwrap_err(), BringUpError::Implausible(_)));
        let (left, _right) = bench.connect(|end| end.ring_address = u64::MAX - 5).await;
        assert!(matches!(left.unwrap_err(), BringUpError::Implausible(_)));
    });
}
