//! A peer that shares memory and writes nonsense into the words that the two sides tell each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use ringmail_transport::bootstrap::{self, Acceptor, Established, LinkPolicies, LinkPolicy, Settings};
use ringmail_transport::endpoint::SendError;
use ringmail_transport::frame::{FrameError, HEADER, Header, Kind};
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::link::{LinkError, LinkKind};
use ringmail_transport::ring::{ClaimError, Position, RingSize, Room};
use tokio::net::TcpListener;

/// Runs in a thread of its own, so that a side that spins for ever is found out.
fn bounded(case: impl Future<Output = ()> + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(case);
        let _ = done.send(());
    });
    match finished.recv_timeout(Duration::from_secs(20)) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it spins or hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

async fn pair() -> (Established, Established) {
    let links = LinkPolicies::default().with(LinkKind::Shm, LinkPolicy::Require);
    let settings = Settings { ring: RingSize::new(RingSize::MIN).unwrap(), links, ..Settings::default() };
    let (shm, socket) = ShmListener::bind().unwrap();
    let running = tokio::spawn(Arc::clone(&shm).run(socket, Duration::from_secs(5)));
    let acceptor = Acceptor::new(settings.clone(), Vec::new(), Some(shm));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async {
        let (socket, peer) = listener.accept().await.unwrap();
        acceptor.accept(socket, peer).await.unwrap()
    };
    let (server, client) = tokio::join!(accept, bootstrap::connect(address, &settings));
    running.abort();
    (client.unwrap(), server)
}

/// Sends until the ring is full; blocks that it took.
fn fill(side: &Established) -> u64 {
    loop {
        match side.endpoint.claim(HEADER, Room::Data) {
            Ok(claim) => claim.commit(&Header::new(Kind::Message, HEADER as u32)),
            Err(ClaimError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    side.endpoint.flush();
    side.endpoint.staging().sealed().0
}

#[test]
fn an_acknowledgement_beyond_what_was_announced_ends_the_connection() {
    bounded(async {
        for beyond in [1, 1 << 20, u64::MAX / 2] {
            let (victim, hostile) = pair().await;
            let sent = fill(&victim);
            let words = hostile.endpoint.staging().region().control();
            words.consumed.0.store(sent + beyond, Ordering::Release);
            let error = victim.endpoint.claim_wait(HEADER, Room::Data).await.unwrap_err();
            let SendError::Dead(LinkError::Protocol(rule)) = error else { panic!("{error}") };
            let acknowledged = Position(sent + beyond);
            assert_eq!(rule, FrameError::BadAcknowledgement { acknowledged, sent: Position(sent) });
        }
    });
}

#[test]
fn an_acknowledgement_that_goes_back_frees_nothing_and_holds_nobody() {
    bounded(async {
        let (victim, hostile) = pair().await;
        let words = hostile.endpoint.staging().region().control();
        fill(&victim);
        words.consumed.0.store(100, Ordering::Release);
        let sent = fill(&victim);
        words.consumed.0.store(50, Ordering::Release);
        let waits = victim.endpoint.claim_wait(HEADER, Room::Data);
        let waited = tokio::time::timeout(Duration::from_millis(50), waits).await;
        assert!(waited.is_err(), "there was room");
        assert_eq!(victim.endpoint.staging().freed(), Position(100));
        words.consumed.0.store(sent, Ordering::Release);
        victim.endpoint.claim_wait(HEADER, Room::Data).await.unwrap();
    });
}

#[test]
fn nonsense_about_sleeping_costs_no_more_than_wake_ups() {
    bounded(async {
        let (victim, hostile) = pair().await;
        let words = hostile.endpoint.staging().region().control();
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..2000 {
            words.sleeping.0.store(rng.u32(..), Ordering::Relaxed);
            words.starving.0.store(rng.u32(..), Ordering::Relaxed);
            victim
                .endpoint
                .claim(HEADER, Room::Data)
                .unwrap()
                .commit(&Header::new(Kind::Message, HEADER as u32));
            victim.endpoint.flush();
            assert_eq!(
                hostile.endpoint.turn(&mut drop).unwrap(),
                ringmail_transport::endpoint::Turn::Frames(1)
            );
        }
    });
}

#[test]
fn positions_at_the_end_of_their_range_are_refused() {
    bounded(async {
        for produced in [u64::MAX, u64::MAX - 1, 1 << 63, 257] {
            let (victim, hostile) = pair().await;
            hostile.endpoint.staging().region().control().produced.0.store(produced, Ordering::Release);
            let error = victim.endpoint.turn(&mut |_| panic!("a frame from nowhere")).unwrap_err();
            assert!(matches!(error, LinkError::Protocol(FrameError::BadPosition { .. })), "{error}");
        }
    });
}
