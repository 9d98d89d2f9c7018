//! Peers that were built without RDMA: the probe programs, where `RINGMAIL_TEST_PLAIN_PROGRAMS` says.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ringmail::LinkPolicy;

use super::{Player, connect, contains_all, outcome};
use crate::peers::within;
use crate::{BOUND, addresses};

/// A program, and the first line that it says, or all of its last words.
struct Program(Child);

impl Program {
    fn start(program: &str, arguments: &[&str]) -> (Self, String) {
        let folder = PathBuf::from(std::env::var_os("RINGMAIL_TEST_PLAIN_PROGRAMS").expect("checked"));
        let mut child = Command::new(folder.join(program))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} in {folder:?}: {error}"));
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut first).expect("a line");
        if first.is_empty() {
            let errors = BufReader::new(child.stderr.take().expect("a pipe"));
            first = errors.lines().map_while(Result::ok).collect::<Vec<_>>().join(" ");
        }
        (Self(child), first)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn addresses_if_there_are_programs() -> Vec<std::net::IpAddr> {
    let addresses = addresses();
    if std::env::var_os("RINGMAIL_TEST_PLAIN_PROGRAMS").is_some() {
        return addresses;
    }
    assert!(
        std::env::var_os("RINGMAIL_TEST_REQUIRE_RDMA").is_none(),
        "RINGMAIL_TEST_PLAIN_PROGRAMS is not set"
    );
    eprintln!("*** skipped: no programs without RDMA are named");
    Vec::new()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_built_without_rdma_serves_on_tcp() {
    for address in addresses_if_there_are_programs() {
        within(BOUND, async {
            let (_server, said) = Program::start("probe-server", &["--listen", &format!("{address}:0")]);
            let server = said.trim().strip_prefix("address=").expect("an address");
            let channel = connect(server, LinkPolicy::Prefer).await.expect("TCP");
            let preferred = channel.link_info().to_string();
            assert!(preferred.starts_with("tcp to "), "{preferred}");
            let reason = ["the server does not offer it", "cargo feature rdma"];
            contains_all(&preferred, &reason);
            let required = outcome(server, LinkPolicy::Require).await;
            contains_all(&required, &["failed: the rdma link to ", "is required but not available"]);
            contains_all(&required, &reason);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_built_without_rdma_is_served_on_tcp() {
    for address in addresses_if_there_are_programs() {
        within(BOUND, async {
            let (_server, [prefers, requires]) = Player::serve("exec \"$@\"", address);
            let (_client, said) = Program::start("probe-client", &[&prefers.to_string(), "--link", "tcp"]);
            assert!(said.starts_with("link=tcp to "), "{said}");
            let (_client, said) = Program::start("probe-client", &[&requires.to_string(), "--link", "tcp"]);
            contains_all(&said, &["the server requires rdma"]);
        })
        .await;
    }
}
