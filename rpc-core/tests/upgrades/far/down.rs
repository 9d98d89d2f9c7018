//! An interface that is switched off for a while, which takes TCP's routes away as well; and packets that are lost now and
//! then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringmail::{Channel, Code, LinkKind, LinkPolicy, Request};

use super::{Fault, far_server, link_fault, near};
use crate::BOUND;
use crate::peers::within;
use crate::support::{EchoClient, Payload};
use crate::upgrades::{calls_until, history, is_on};

/// So long it is off: longer than RDMA bears it, and shorter than TCP does.
const DOWN: Duration = Duration::from_secs(4);
/// Of each call.
const DEADLINE: Duration = Duration::from_secs(3);
/// What emulation adds.
const LATE: Duration = Duration::from_secs(1);
const TASKS: u8 = 6;

/// How calls ended.
#[derive(Debug, Default)]
struct Outcomes {
    answered: usize,
    late: usize,
    refused: usize,
}

async fn call(client: &EchoClient, data: Vec<u8>, outcomes: &mut Outcomes) {
    let started = Instant::now();
    let mut request = Request::new(Payload { data: data.clone().into() });
    request.set_timeout(DEADLINE);
    let ended = tokio::time::timeout(DEADLINE + LATE, client.call(0, request)).await;
    match ended.expect("a call outlives its deadline") {
        Ok(response) => {
            assert_eq!(response.into_inner().data, data, "after {:?}", started.elapsed());
            outcomes.answered += 1;
        }
        Err(status) if status.code() == Code::DeadlineExceeded => outcomes.late += 1,
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            eprintln!("after {:?}: {status}", started.elapsed());
            outcomes.refused += 1;
            // Not again and again while there is no connection.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn load<T>(client: &EchoClient, meanwhile: impl Future<Output = T>) -> (T, Outcomes) {
    let ends = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, ends) = (client.clone(), Arc::clone(&ends));
            tokio::spawn(async move {
                let mut outcomes = Outcomes::default();
                for round in 0.. {
                    if ends.load(Ordering::SeqCst) {
                        break;
                    }
                    let data = vec![task ^ round as u8; [10, 3000, 150_000][round % 3]];
                    call(&client, data, &mut outcomes).await;
                }
                outcomes
            })
        })
        .collect();
    let result = meanwhile.await;
    ends.store(true, Ordering::SeqCst);
    let mut all = Outcomes::default();
    for task in tasks {
        let Outcomes { answered, late, refused } = task.await.expect("task");
        all.answered += answered;
        all.late += late;
        all.refused += refused;
    }
    (result, all)
}

/// Waits until something is so, whatever becomes of calls.
async fn until(channel: &Channel, what: &str, is_so: impl Fn(&Channel) -> bool) -> Duration {
    let started = Instant::now();
    while !is_so(channel) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "not so in time: {what}: {}",
            channel.link_info()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

async fn connect(address: std::net::SocketAddr) -> (Channel, EchoClient) {
    let builder = Channel::builder(address.to_string()).link(LinkKind::Shm, LinkPolicy::Off);
    let channel = builder.rdma_settle_time(Duration::from_millis(500)).connect().await.expect("TCP");
    let client = EchoClient::new(channel.clone());
    calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
    (channel, client)
}

/// Whether RDMA comes back is the device's affair. Soft-RoCE of Linux 6.1 accepts and makes no connection any more, of
/// whatever program, once one was taken down while its interface was off. So this is the last test that uses it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_end_in_time_while_the_interface_is_off_and_go_on_over_tcp() {
    let Some(near) = near() else { return };
    within(2 * BOUND, async {
        let (_far, address) = far_server(near);
        let (channel, client) = connect(address).await;
        let ((), outcomes) = load(&client, async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let off = Instant::now();
            link_fault(&["down"]);
            // The whole connection may be lost: then there is no history of it.
            let given_up =
                |channel: &Channel| channel.link_info().history.is_none_or(|history| history.fallbacks == 1);
            let lost = until(&channel, "RDMA has been given up", given_up).await;
            let info = channel.link_info();
            eprintln!("given up after {lost:?}: {info}");
            if info.history.is_some() {
                let info = info.to_string();
                assert!(info.contains("no rdma: it was lost: ") && info.contains("rxe0"), "{info}");
            }
            tokio::time::sleep(DOWN.saturating_sub(off.elapsed())).await;
            link_fault(&["up"]);
            // TCP sends again what was lost when its own time-out says so.
            let answered = async {
                loop {
                    let mut one = Outcomes::default();
                    call(&client, vec![7; 1000], &mut one).await;
                    if one.answered == 1 {
                        return;
                    }
                }
            };
            let up = Instant::now();
            tokio::time::timeout(Duration::from_secs(12), answered).await.expect("an answer");
            eprintln!("answered {:?} after it is on again", up.elapsed());
            for round in 0..20 {
                let mut one = Outcomes::default();
                call(&client, vec![round; 1000], &mut one).await;
                assert_eq!(one.answered, 1, "{one:?}");
            }
        })
        .await;
        eprintln!("{outcomes:?}; {}; {:?}", channel.link_info(), channel.link_info().history);
        assert!(outcomes.answered > 20, "{outcomes:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_over_rdma_while_one_packet_in_a_hundred_is_lost() {
    let Some(near) = near() else { return };
    within(2 * BOUND, async {
        let (_far, address) = far_server(near);
        let (channel, client) = connect(address).await;
        let _fault = Fault::begin(&["loss", "1%"]);
        let ((), outcomes) = load(&client, tokio::time::sleep(Duration::from_secs(6))).await;
        eprintln!("{outcomes:?}; {}; {:?}", channel.link_info(), history(&channel));
        assert!(outcomes.answered > 50 && outcomes.late == 0 && outcomes.refused == 0, "{outcomes:?}");
    })
    .await;
}
