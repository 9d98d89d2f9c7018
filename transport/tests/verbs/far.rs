//! A peer in another process: on the other host where the lab has two, with whatever disturbs the network in between.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmail_transport::link::LinkError;
use ringmail_transport::link::verbs::{Immediates, Ticket, connect, sends_immediates};
use ringmail_transport::ring::Incoming;

use crate::device::VARIABLE;
use crate::kill::{read_end, write_end};
use crate::on_each;
use crate::pair::{Bench, receive, send, settings};
use crate::stress::{not_ready_events, payload};

/// Tells the other process whom to connect to, and how.
const FAR: &str = "RINGMAIL_TEST_FAR";
const NAME: &str = "far::messages_cross_between_processes_and_hosts";
/// There and back. With one packet in a hundred lost, dozens are.
const MESSAGES: u32 = 1_500;

/// A process that does not outlive the test.
struct Far(Child);

impl Drop for Far {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This test binary again, in the role of the peer, and its address.
fn far_process(address: IpAddr) -> (Command, IpAddr) {
    let own = std::env::current_exe().unwrap();
    let two_hosts = std::env::var("RINGMAIL_LAB_HOSTS").as_deref() == Ok("2");
    let (mut command, address) = match (two_hosts, address) {
        (true, IpAddr::V4(near)) => {
            let number = std::env::var("RINGMAIL_LAB_PEER").unwrap().parse().unwrap();
            let [a, b, c, _] = near.octets();
            let mut command = Command::new("on-peer");
            command.arg(own);
            (command, Ipv4Addr::new(a, b, c, number).into())
        }
        _ => (Command::new(own), address),
    };
    command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, address.to_string());
    (command, address)
}

/// The other process: sends back what comes, until the connection ends.
async fn be_far(address: IpAddr, line: &str) {
    let mut words = line.split_whitespace();
    let peer: SocketAddr = words.next().unwrap().parse().unwrap();
    let immediates =
        if words.next().unwrap() == "never" { Immediates::Never } else { Immediates::WherePossible };
    let remote = read_end(&mut words);
    let bench = Bench::new(address, 1, settings(immediates));
    let prepared = bench.prepare(0).await;
    println!("end {}", write_end(&prepared.end()));
    std::io::stdout().flush().unwrap();
    let ticket = Ticket::new([7; 16], [8; 16], [9; 32]);
    let endpoint = Arc::new(bench.endpoint(connect(prepared, peer, &remote, &ticket).await.unwrap()));
    // Whoever waits for space relies on somebody else who receives.
    let (came, mut answers) = tokio::sync::mpsc::unbounded_channel::<(u32, Vec<u8>)>();
    let sender = Arc::clone(&endpoint);
    let sends = tokio::spawn(async move {
        while let Some((number, bytes)) = answers.recv().await {
            send(&sender, number, &bytes).await;
        }
    });
    let mut take = |frame: Incoming| {
        let _ = came.send((frame.header().call.index, frame.payload().to_vec()));
    };
    let error = loop {
        if let Err(error) = receive(&endpoint, 100, &mut take).await {
            break error;
        }
    };
    assert!(matches!(error, LinkError::PeerClosed), "{error}");
    drop(came);
    sends.await.unwrap();
}

async fn echoes(address: IpAddr, immediates: Immediates) {
    let before = not_ready_events(address);
    let bench = Bench::new(address, 1, settings(immediates));
    let expectation = bench.listener.expect(Ticket::new([7; 16], [8; 16], [9; 32]), bench.settings.epoch);
    let prepared = bench.prepare(1).await;
    let mode = if immediates == Immediates::Never { "never" } else { "possible" };
    let (mut command, far_address) = far_process(address);
    command.env(FAR, format!("{} {mode} {}", bench.listener.address(), write_end(&prepared.end())));
    let mut far = Far(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(far.0.stdout.take().unwrap()).lines();
    let remote = tokio::task::spawn_blocking(move || {
        // The harness prints on the same stream, without ending its line.
        let end = lines.find_map(|line| line.unwrap().split_once("end ").map(|(_, end)| end.to_owned()));
        // What it says from here on is for the log.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("far: {line}")));
        read_end(&mut end.expect("the other process ended at once").split_whitespace())
    });
    let remote = remote.await.unwrap();
    let started = Instant::now();
    let end = expectation.accept(prepared, &remote).await.unwrap_or_else(|error| panic!("{error}"));
    let up = started.elapsed();
    let link = Arc::clone(&end.link);
    let endpoint = Arc::new(bench.endpoint(end));
    let longest = 4_000;
    let sender = Arc::clone(&endpoint);
    let sends = tokio::spawn(async move {
        for number in 0..MESSAGES {
            send(&sender, number, &payload(number, longest)).await;
        }
    });
    let mut next = 0;
    while next < MESSAGES {
        let mut check = |frame: Incoming| {
            assert_eq!(frame.header().call.index, next);
            assert!(frame.payload() == payload(next, longest), "message {next} came back damaged");
            next += 1;
        };
        let received = receive(&endpoint, 100, &mut check).await;
        received.unwrap_or_else(|error| panic!("after {next} messages: {error}"));
    }
    sends.await.unwrap();
    eprintln!(
        "{} and {far_address}, {mode}: up in {up:?}, {MESSAGES} there and back in {:?}",
        link.place(),
        started.elapsed()
    );
    drop((endpoint, link));
    let status = tokio::task::spawn_blocking(move || far.0.wait().unwrap()).await.unwrap();
    assert!(status.success(), "the other process did not see a clean end: {status}");
    assert_eq!(not_ready_events(address), before, "a peer was not ready");
}

#[test]
fn messages_cross_between_processes_and_hosts() {
    if let Ok(line) = std::env::var(FAR) {
        return on_each(Duration::from_secs(50), async |address| be_far(address, &line).await);
    }
    on_each(Duration::from_secs(120), async |address| {
        echoes(address, Immediates::WherePossible).await;
        let context = ringmail_transport::verbs::Context::for_address(address).unwrap();
        if sends_immediates(&context).await {
            echoes(address, Immediates::Never).await;
        }
    });
}
