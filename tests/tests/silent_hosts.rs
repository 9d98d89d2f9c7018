//! A network that is cut without a word: no process ends and nothing is closed, so that only TCP's keepalive can tell.
//!
//! In a network namespace of its own, whose loopback interface can be switched off. Where namespaces cannot be had there is
//! nothing to test with; in the VM they can be, and the tests fail without.
#![allow(clippy::print_stderr)]

use std::process::Command;
use std::time::{Duration, Instant};

use ringmail_tests::process::Program;

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");
/// Set for the test that runs inside.
const INSIDE: &str = "RINGMAIL_TEST_INSIDE_NAMESPACE";
const SILENCE: Duration = Duration::from_secs(3);
/// Probes come in whole seconds, and a busy machine is late.
const LATE: Duration = Duration::from_secs(4);

/// Whether this process has a network of its own; if not, runs the test `name` in one.
fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // Whoever may not have a network as root of the host, or as nobody in particular, may as root of a user namespace;
    // and the other way in a chroot, where the kernel grants no user namespaces.
    let user: &[&str] =
        if rustix::process::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let namespace = || {
        let mut command = Command::new("unshare");
        command.args(user).args(["--net", "--kill-child"]);
        command
    };
    let can = namespace().args(["ip", "link", "set", "lo", "up"]).output();
    if !can.as_ref().is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("RINGMAIL_TEST_REQUIRE_RDMA").is_none(), "no namespace: {can:?}");
        eprintln!("not run: network namespaces cannot be had here: {can:?}");
        return false;
    }
    let this = std::env::current_exe().expect("a test binary");
    let status = namespace().arg(this).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").status();
    assert!(status.expect("unshare").success(), "it failed in its namespace");
    false
}

fn loopback(state: &str) {
    let status = Command::new("ip").args(["link", "set", "lo", state]).status().expect("ip");
    assert!(status.success());
}

fn pair(link: &str) -> (Program, Program) {
    let silence = SILENCE.as_secs().to_string();
    let mut server = Program::start(SERVER, &["--keepalive", &silence]);
    let address = server.hear().text("address").to_owned();
    let mut client = Program::start(CLIENT, &[&address, "--link", link, "--keepalive", &silence]);
    assert!(client.hear().rest("link").starts_with(link));
    client.ask("ticks 10");
    (server, client)
}

#[test]
fn both_sides_notice_that_the_network_is_cut() {
    if !inside("both_sides_notice_that_the_network_is_cut") {
        return;
    }
    loopback("up");
    let (mut server, mut client) = pair("tcp");
    client.tell("pause 60000 30000");
    assert_eq!(client.hear().text("sent"), "true");
    // Sent is not arrived yet.
    server.ask_until("waiting", 1);
    let cut = Instant::now();
    loopback("down");
    let ended = client.hear();
    let after = cut.elapsed();
    assert_eq!(ended.text("code"), "Unavailable", "{ended:?}");
    assert!(ended.rest("message").contains("keepalive time"), "{ended:?}");
    assert!(after < SILENCE + LATE, "{after:?}");
    while server.ask("waiting").number("waiting") > 0 {
        assert!(cut.elapsed() < SILENCE + LATE, "the handler goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    // And it is only that connection.
    loopback("up");
    client.ask("reconnect");
    client.ask("ticks 10");
}

#[test]
fn what_is_under_way_is_not_sent_again_for_long() {
    if !inside("what_is_under_way_is_not_sent_again_for_long") {
        return;
    }
    loopback("up");
    let (_server, mut client) = pair("tcp");
    loopback("down");
    let cut = Instant::now();
    // Sent into the void: while TCP sends something again it does not probe.
    client.tell("pause 60000 30000");
    assert_eq!(client.hear().text("sent"), "true");
    let ended = client.hear();
    assert_eq!(ended.text("code"), "Unavailable", "{ended:?}");
    assert!(ended.rest("message").contains("keepalive time"), "{ended:?}");
    assert!(cut.elapsed() < SILENCE + LATE, "{:?}", cut.elapsed());
}

#[test]
fn shared_memory_outlives_the_network() {
    if !inside("shared_memory_outlives_the_network") {
        return;
    }
    loopback("up");
    let (_server, mut client) = pair("shm");
    loopback("down");
    client.tell("pause 7000 30000");
    assert_eq!(client.hear().text("sent"), "true");
    assert_eq!(client.hear().text("code"), "Ok");
    client.ask("ticks 10");
}
