//! RDMA that cannot be had because of what a process may not do: lock memory, open devices, see them. Client or server is a
//! process of its own that is confined so; the VM, where tests are root, has all that it takes.

mod killed;
mod limits;
mod nodes;
mod plain;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringmail::{Channel, ConnectError, LinkKind, LinkPolicy};

use crate::peers::{Background, within};
use crate::support::{EchoClient, server};
use crate::{BOUND, addresses, at};

use LinkPolicy::{Off, Prefer, Require};

/// Set for a process that plays a part: `serve ADDRESS[:PORT]` or `connect ADDRESS:PORT`.
const PART: &str = "RINGMAIL_TEST_PART";
/// Which test does.
const NAME: &str = "confined::without_confinement_rdma_comes_up";
/// Longest that connecting may take: a process that has just begun loads what it needs for RDMA from a slow disk.
const TIMEOUT: Duration = Duration::from_secs(15);

/// This test binary again, in the confinement that a shell script makes of itself before it becomes the command that it is
/// given. It does not outlive the test.
pub struct Player {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Player {
    fn start(confinement: &str, part: &str) -> Self {
        let mut child = Command::new("bash")
            .args(["-euc", confinement, "confinement"])
            .arg(std::env::current_exe().expect("this binary"))
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    /// What it says behind a word that only its part uses.
    fn hear(&mut self, word: &str) -> String {
        // The harness prints on the same stream, without ending its line.
        let said = self.lines.find_map(|line| {
            line.expect("a line").split_once(word).map(|(_, rest)| rest.trim_start().to_owned())
        });
        said.unwrap_or_else(|| panic!("it has ended without a word of {word}"))
    }

    /// Two servers, one that prefers RDMA and one that requires it.
    pub fn serve(confinement: &str, address: IpAddr) -> (Self, [SocketAddr; 2]) {
        let mut player = Self::start(confinement, &format!("serve {address}"));
        let mut serving = || player.hear("serving:").parse().expect("an address");
        let servers = [serving(), serving()];
        (player, servers)
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str, what: &str) {
    println!("{word} {}", what.replace('\n', " "));
    std::io::stdout().flush().expect("somebody listens");
}

async fn play(part: &str) {
    match part.split_once(' ').expect("what, and an address") {
        ("serve", address) => {
            // An address alone leaves the choice of ports to the kernel.
            let first = address
                .parse()
                .map_or_else(|_| address.parse().expect("an address"), |ip| SocketAddr::new(ip, 0));
            let second = SocketAddr::new(first.ip(), 0);
            let servers = [(first, Prefer), (second, Require)].map(|(address, policy)| {
                Background::start(
                    server()
                        .handshake_timeout(TIMEOUT)
                        .link(LinkKind::Rdma, policy)
                        .listen(address.to_string()),
                )
            });
            servers.iter().for_each(|server| say("serving:", &server.address.to_string()));
            // Until whoever has started this ends.
            let _ = std::io::stdin().read(&mut [0]);
        }
        (_, address) => {
            for policy in [Prefer, Require] {
                say("outcome:", &outcome(address, policy).await);
            }
        }
    }
}

async fn connect(address: &str, policy: LinkPolicy) -> Result<Channel, ConnectError> {
    let builder = Channel::builder(address).link(LinkKind::Shm, Off).link(LinkKind::Rdma, policy);
    builder.connect_timeout(TIMEOUT).connect().await
}

/// What becomes of a connection, in one line; calls work on it, if it comes up.
async fn outcome(address: &str, policy: LinkPolicy) -> String {
    let started = Instant::now();
    let outcome = match connect(address, policy).await {
        Err(error) => return said_at_once(&error, started),
        Ok(channel) => settled(&channel).await,
    };
    assert!(started.elapsed() < 2 * TIMEOUT, "{:?} until: {outcome}", started.elapsed());
    outcome
}

fn said_at_once(error: &ConnectError, started: Instant) -> String {
    assert!(started.elapsed() < TIMEOUT + Duration::from_secs(2), "{:?} until: {error}", started.elapsed());
    format!("failed: {error}")
}

/// Waits until RDMA has come up, or not.
async fn settled(channel: &Channel) -> String {
    let client = EchoClient::new(channel.clone());
    loop {
        let echo = tokio::time::timeout(TIMEOUT, client.echo("meanwhile")).await.expect("an answer");
        assert_eq!(echo.expect("echo"), "meanwhile");
        let info = channel.link_info();
        let text = info.to_string();
        if info.kind == Some(LinkKind::Rdma) || !text.contains("it is coming up") {
            let failures = info.history.map_or(0, |history| history.failures);
            return format!("{text}; {failures} failures");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn contains_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A client, then a server, that has no RDMA because of a confinement; the reason has all these parts. `tried` says that it
/// is found out only when RDMA is brought up.
async fn has_no_rdma(address: IpAddr, confinement: &str, reason: &[&str], tried: bool) {
    let failures = if tried { "1 failures" } else { "0 failures" };
    {
        let server = at(address, server().handshake_timeout(TIMEOUT));
        let mut client = Player::start(confinement, &format!("connect {}", server.address));
        let preferred = client.hear("outcome:");
        eprintln!("the client: {preferred}");
        assert!(preferred.starts_with("tcp to ") && preferred.contains(failures), "{preferred}");
        contains_all(&preferred, reason);
        assert!(!preferred.contains("at the server"), "{preferred}");
        let required = client.hear("outcome:");
        assert!(required.starts_with("failed: the rdma link to "), "{required}");
        contains_all(&required, reason);
    }
    let (_server, [prefers, requires]) = Player::serve(confinement, address);
    let preferred = outcome(&prefers.to_string(), Prefer).await;
    eprintln!("the server: {preferred}");
    assert!(preferred.starts_with("tcp to ") && preferred.contains(failures), "{preferred}");
    contains_all(&preferred, reason);
    contains_all(&preferred, &["at the server, "]);
    for (server, policy) in [(prefers, Require), (requires, Prefer)] {
        let required = outcome(&server.to_string(), policy).await;
        assert!(required.starts_with("failed: "), "{required}");
        contains_all(&required, reason);
        contains_all(&required, &["at the server, "]);
    }
}

/// Also plays the parts of the others.
#[tokio::test(flavor = "multi_thread")]
async fn without_confinement_rdma_comes_up() {
    if let Ok(part) = std::env::var(PART) {
        return within(BOUND, play(&part)).await;
    }
    for address in addresses() {
        within(BOUND, async {
            let (_server, [prefers, requires]) = Player::serve("exec \"$@\"", address);
            for (server, policy) in [(prefers, Prefer), (prefers, Require), (requires, Prefer)] {
                let outcome = outcome(&server.to_string(), policy).await;
                assert!(outcome.starts_with("rdma to "), "{outcome}");
            }
        })
        .await;
    }
}
