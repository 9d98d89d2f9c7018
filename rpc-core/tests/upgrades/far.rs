//! A server on the other host of the lab, and a network that is cut for a while: RDMA gives up, TCP does not.

mod down;
mod silence;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ringmail::{Channel, LinkKind, LinkPolicy, Request, Server};

use super::{calls_until, history, is_on};
use crate::peers::load::{Counting, Load};
use crate::peers::{Background, within};
use crate::support::{EchoClient, EchoServer, Payload};
use crate::{BOUND, addresses};

/// Set for the process that serves: the address that it listens on.
const SERVES: &str = "RINGMAIL_TEST_SERVES";
const NAME: &str = "upgrades::far::calls_survive_a_network_that_is_cut_for_a_while";
/// RDMA gives up after half a second without an acknowledgement; TCP takes minutes.
const CUT: Duration = Duration::from_secs(3);

/// A process that does not outlive the test.
struct Far(Child);

impl Drop for Far {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves on this host until it is killed.
fn serve(address: &str) {
    let server = Server::builder().add_service(EchoServer(Arc::new(Counting::default())));
    let server = Background::start(server.listen(format!("{address}:0")));
    println!("serving {} .", server.address);
    std::io::stdout().flush().expect("somebody reads");
    loop {
        std::thread::park();
    }
}

/// This test binary on the other host, and where it serves.
fn far_server(near: Ipv4Addr) -> (Far, SocketAddr) {
    let [a, b, c, _] = near.octets();
    let number = std::env::var("RINGMAIL_LAB_PEER").expect("the lab says it");
    let far = format!("{a}.{b}.{c}.{number}");
    let mut child = Command::new("on-peer")
        .arg(std::env::current_exe().expect("this binary"))
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(SERVES, &far)
        .stdout(Stdio::piped())
        .spawn()
        .expect("on-peer");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let far = Far(child);
    for line in lines {
        let line = line.expect("a line");
        // The harness prints on the same stream, without ending its line.
        if let Some((_, rest)) = line.split_once("serving ") {
            let address = rest.split_whitespace().next().expect("an address");
            return (far, address.parse().expect("an address"));
        }
    }
    panic!("the other host serves nothing");
}

/// This host's address on Soft-RoCE, which is the first, where there are two hosts. Soft-iWARP is carried by TCP, and as
/// patient.
fn near() -> Option<Ipv4Addr> {
    if std::env::var("RINGMAIL_LAB_HOSTS").as_deref() != Ok("2") {
        eprintln!("*** skipped: the lab has no second host");
        return None;
    }
    match addresses().into_iter().next() {
        Some(IpAddr::V4(near)) => Some(near),
        _ => None,
    }
}

/// Disturbs what this host sends until it is dropped.
struct Fault;

impl Fault {
    fn begin(fault: &[&str]) -> Self {
        link_fault(fault);
        Self
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        link_fault(&["clear"]);
    }
}

fn link_fault(fault: &[&str]) {
    let status = Command::new("link-fault").arg("rxe").args(fault).status().expect("link-fault");
    assert!(status.success(), "{fault:?}: {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_survive_a_network_that_is_cut_for_a_while() {
    if let Ok(address) = std::env::var(SERVES) {
        return serve(&address);
    }
    let Some(near) = near() else { return };
    within(2 * BOUND, async {
        let (_far, address) = far_server(near);
        let channel = Channel::builder(address.to_string())
            .link(LinkKind::Shm, LinkPolicy::Off)
            .rdma_settle_time(Duration::from_millis(500))
            .connect()
            .await
            .expect("TCP");
        let client = EchoClient::new(channel.clone());
        let mut calls = calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
        let load = Load::begin(&client, 6, |task, calls| {
            vec![task as u8 ^ calls as u8; [10, 3000, 150_000][calls % 3]].into()
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        link_fault(&["loss", "100%"]);
        tokio::time::sleep(CUT).await;
        link_fault(&["clear"]);
        let lost = |channel: &Channel| history(channel).fallbacks >= 1;
        calls += calls_until("TCP goes on", &client, lost).await;
        let back = |channel: &Channel| history(channel).upgrades >= 2;
        calls += calls_until("RDMA is back", &client, back).await;
        eprintln!("{}; {:?}", channel.link_info(), history(&channel));
        calls += load.end().await;
        let asked = client.call(2, Request::new(Payload::default())).await.expect("how often");
        assert_eq!(asked.into_inner().data, calls.to_string());
    })
    .await;
}
