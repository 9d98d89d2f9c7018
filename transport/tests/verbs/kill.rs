//! A peer whose process dies.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringmail_transport::link::LinkError;
use ringmail_transport::link::verbs::{End, Immediates, Ticket, connect};

use crate::device::VARIABLE;
use crate::on_each;
use crate::pair::{Bench, receive, send, settings, ticket};

/// Set for the process that is to be killed.
const VICTIM: &str = "RINGMAIL_TEST_VICTIM";
const NAME: &str = "kill::a_peer_that_is_killed_is_noticed_at_once";

/// Longest until the end is noticed, in a VM that is slow.
const NOTICE: Duration = Duration::from_secs(2);

/// The two ends as words, for a pipe.
pub(crate) fn write_end(end: &End) -> String {
    format!(
        "{} {} {} {} {} {} {} {}",
        end.ring_address,
        end.ring_key,
        end.desk_address,
        end.desk_key,
        end.ring_bytes,
        end.notifications,
        u8::from(end.immediates),
        u8::from(end.reads)
    )
}

pub(crate) fn read_end(words: &mut dyn Iterator<Item = &str>) -> End {
    let mut next = || words.next().unwrap().parse::<u64>().unwrap();
    End {
        ring_address: next(),
        ring_key: next() as u32,
        desk_address: next(),
        desk_key: next() as u32,
        ring_bytes: next() as u32,
        notifications: next() as u32,
        immediates: next() != 0,
        reads: next() != 0,
    }
}

/// The process that will be killed: connects, then sends for ever.
async fn be_the_victim(address: IpAddr, first_line: String) {
    let mut words = first_line.split_whitespace();
    let peer: SocketAddr = words.next().unwrap().parse().unwrap();
    let token = words.next().unwrap().parse::<u128>().unwrap().to_be_bytes();
    let remote = read_end(&mut words);
    let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
    let prepared = bench.prepare(0).await;
    println!("end {}", write_end(&prepared.end()));
    std::io::stdout().flush().unwrap();
    let ticket = Ticket::new([7; 16], token, [9; 32]);
    let end = connect(prepared, peer, &remote, &ticket).await.unwrap();
    let endpoint = bench.endpoint(end);
    for number in 0.. {
        send(&endpoint, number, &[3; 300]).await;
        let mut frames = 0;
        receive(&endpoint, 100, &mut |_| frames += 1).await.unwrap();
        if number == 100 {
            println!("running");
            std::io::stdout().flush().unwrap();
        }
    }
}

async fn kill_one(address: IpAddr, idle: bool) {
    let bench = Bench::new(address, 1, settings(Immediates::WherePossible));
    let token = u128::from_be_bytes(*ticket().token());
    let ticket = Ticket::new([7; 16], token.to_be_bytes(), [9; 32]);
    let expectation = bench.listener.expect(ticket, bench.settings.epoch);
    let prepared = bench.prepare(1).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(VICTIM, "1")
        .env(VARIABLE, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = format!("{} {token} {}\n", bench.listener.address(), write_end(&prepared.end()));
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer = |word: &'static str| loop {
        let line = lines.next().unwrap().unwrap();
        // The harness prints on the same stream, without ending its line.
        if let Some(at) = line.find(word) {
            return line[at + word.len()..].to_owned();
        }
    };
    let remote = read_end(&mut answer("end ").split_whitespace());
    let endpoint = bench.endpoint(expectation.accept(prepared, &remote).await.unwrap());
    for number in 0..=150 {
        receive(&endpoint, 100, &mut drop).await.unwrap();
        send(&endpoint, number, &[4; 300]).await;
    }
    answer("running");
    if idle {
        // Its last message is left unanswered: neither side sends anything any more.
        receive(&endpoint, 100, &mut drop).await.unwrap();
    }
    child.kill().unwrap();
    let killed = Instant::now();
    let error = loop {
        let step = async {
            receive(&endpoint, 0, &mut drop).await?;
            send(&endpoint, 0, &[4; 300]).await;
            Ok::<(), LinkError>(())
        };
        match tokio::time::timeout(NOTICE, step).await.expect("the end was not noticed") {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    eprintln!("idle {idle}: after {:?}: {error}", killed.elapsed());
    assert!(matches!(error, LinkError::PeerClosed | LinkError::Rdma(_)), "{error}");
    child.wait().unwrap();
}

#[test]
fn a_peer_that_is_killed_is_noticed_at_once() {
    if std::env::var_os(VICTIM).is_some() {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        return on_each(Duration::from_secs(60), async |address| be_the_victim(address, line.clone()).await);
    }
    on_each(Duration::from_secs(120), async |address| {
        for idle in [true, false] {
            kill_one(address, idle).await;
        }
    });
}
