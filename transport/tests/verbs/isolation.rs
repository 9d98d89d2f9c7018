//! Peers that reach for memory that is not theirs.

use std::sync::Arc;
use std::time::Duration;

use ringmail_transport::endpoint::Endpoint;
use ringmail_transport::link::LinkError;
use ringmail_transport::link::verbs::{End, Immediates};
use ringmail_transport::verbs::{CompletionStatus, ProtectionDomain, Reason};

use crate::on_each;
use crate::pair::{Bench, receive, send, settings};

async fn echoes(left: &Endpoint, right: &Endpoint) {
    for number in 0..20 {
        send(left, number, b"still there?").await;
        receive(right, 0, &mut |frame| assert_eq!(frame.payload(), b"still there?")).await.unwrap();
        send(right, number, b"yes").await;
        receive(left, 0, &mut |frame| assert_eq!(frame.payload(), b"yes")).await.unwrap();
    }
}

#[test]
fn another_connections_key_is_refused_and_costs_only_the_one_who_used_it() {
    for immediates in [Immediates::WherePossible, Immediates::Never] {
        on_each(Duration::from_secs(60), async |address| {
            let mut bench = Bench::new(address, 4, settings(immediates));
            let mut stolen = None;
            let (left, victim) = bench.connect(|end| stolen = Some(*end)).await;
            let (left, victim) = (left.unwrap(), victim.unwrap());
            let stolen = stolen.unwrap();
            let region = victim.mailbox.region().clone();
            let [left, victim] = [left, victim].map(|end| bench.endpoint(end));
            echoes(&left, &victim).await;
            let contents = || {
                let ring = region.ring().as_ptr();
                // SAFETY: the ring is mapped for as long as the region lives, and its owner is idle.
                unsafe { std::slice::from_raw_parts(ring, region.size().bytes()) }.to_vec()
            };
            let before = contents();

            // Another peer of the same process, of another identity, that knows the victim's key.
            bench.domains[1] = ProtectionDomain::new(bench.lanes[1].context()).unwrap();
            let lie =
                |end: &mut End| (end.ring_address, end.ring_key) = (stolen.ring_address, stolen.ring_key);
            let (thief, robbed) = bench.connect(lie).await;
            // The greetings are written to desks, and those are their own.
            let (thief, robbed) = (thief.unwrap(), robbed.unwrap());
            let link = Arc::clone(&thief.link);
            let (thief, robbed) = (bench.endpoint(thief), bench.endpoint(robbed));
            send(&thief, 0, &[0xee; 500]).await;
            let error = receive(&thief, 0, &mut drop).await.unwrap_err();
            eprintln!("{}: {error}", link.place());
            match error {
                LinkError::Rdma(error) => {
                    let status = CompletionStatus::REMOTE_ACCESS;
                    assert!(
                        matches!(error.reason, Reason::Completion { status: is, .. } if is == status),
                        "{error}"
                    );
                    assert!(error.to_string().contains("refused access"), "{error}");
                }
                // iWARP reports the violation by ending the connection.
                LinkError::PeerClosed => {}
                other => panic!("{other}"),
            }
            let error = receive(&robbed, 0, &mut |frame| panic!("{frame:?}")).await.unwrap_err();
            eprintln!("the other side: {error}");

            assert!(contents() == before, "the victim's mailbox was written to");
            echoes(&left, &victim).await;
        });
    }
}
