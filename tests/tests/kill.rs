//! `kill -9` in mid-load, a hundred times for each side and link: the survivor notices at once, fails what was pending,
//! keeps nothing, and goes on with whoever comes next.
#![allow(clippy::print_stderr)] // The figures measured are for whoever reads the log.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use ringmail_tests::process::Program;
use ringmail_tests::{monotonic_nanos, procfs};

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");

const KILLS: u32 = 100;
/// In the other waiting modes.
const FEWER_KILLS: u32 = 30;
/// After so many, everything that grows to a size has it.
const WARM_UP: u32 = 10;
const DEPTH: &str = "16";
/// From the kill to the end of the last pending call, beyond what the machine itself was late by.
const BOUND: Duration = Duration::from_millis(50);
/// Growth of the heap, in all the kills together, that is not a leak: tables whose size depends on timing.
const HEAP_NOISE: i64 = 64 * 1024;
/// The same for resident memory, of which the allocator and the kernel have their own ideas.
const RESIDENT_NOISE_KIB: u64 = 4 * 1024;

/// One at a time: each measures how late things are.
static ALONE: Mutex<()> = Mutex::new(());

/// What a process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: BTreeMap<String, usize>,
    mapped: u64,
}

/// What a process holds once that is what it should be, or after a second.
fn holdings(program: &mut Program, expected: Option<&Holdings>) -> Holdings {
    let mut attempts = 0;
    loop {
        let mapped = program.ask("memory").number("mapped");
        let found = Holdings { descriptors: procfs::descriptors(program.id()), mapped };
        attempts += 1;
        if expected.is_none_or(|expected| *expected == found) || attempts == 100 {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn heap(program: &mut Program) -> i64 {
    program.ask("memory").number("heap") as i64
}

/// Watches one process through all the kills of its peers.
struct Survivor {
    holdings: Holdings,
    heap: i64,
    resident_kib: u64,
}

impl Survivor {
    fn new(program: &mut Program) -> Self {
        Self {
            holdings: holdings(program, None),
            heap: heap(program),
            resident_kib: procfs::resident_kib(program.id()),
        }
    }

    fn holds_no_more(&self, program: &mut Program) {
        assert_eq!(holdings(program, Some(&self.holdings)), self.holdings);
        let (heap, resident) = (heap(program), procfs::resident_kib(program.id()));
        eprintln!("heap {} → {heap} bytes, resident {} → {resident} KiB", self.heap, self.resident_kib);
        assert!(heap - self.heap < HEAP_NOISE, "the heap grew from {} to {heap} bytes", self.heap);
        assert!(
            resident < self.resident_kib + RESIDENT_NOISE_KIB,
            "resident memory grew from {} to {resident} KiB",
            self.resident_kib
        );
    }
}

/// How long after the kill the last call had ended, and how late the machine was meanwhile.
struct Delays(Vec<(Duration, Duration)>);

impl Delays {
    fn add(&mut self, killed: u64, ended: u64, late: Duration) {
        let delay = Duration::from_nanos(ended.saturating_sub(killed));
        assert!(
            delay <= BOUND + late,
            "the last call ended {delay:?} after the kill (machine: {late:?} late)"
        );
        self.0.push((delay, late));
    }

    fn report(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: usize| self.0[(self.0.len() - 1) * share / 100].0;
        eprintln!("{what}: after the kill, median {:?}, p90 {:?}, worst {:?}", at(50), at(90), at(100));
    }
}

fn server(listen: &str, wait: &str) -> (Program, String) {
    let mut server = Program::start(SERVER, &["--listen", listen, "--wait", wait]);
    let address = server.hear().text("address").to_owned();
    (server, address)
}

fn client(address: &str, link: &str, wait: &str) -> Program {
    let mut client = Program::start(CLIENT, &[address, "--link", link, "--wait", wait, "--depth", DEPTH]);
    assert!(client.hear().rest("link").starts_with(link));
    client
}

/// Somewhere in the load.
fn mid_load(kill: u32) {
    std::thread::sleep(Duration::from_micros(500 + u64::from(kill) * 7919 % 9000));
}

fn nothing_is_left_of(pid: u32) {
    assert_eq!(procfs::abstract_sockets(pid), Vec::<String>::new());
}

fn servers_are_killed(link: &str, wait: &str, kills: u32) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let files = procfs::files_left();
    let (mut victim, address) = server("127.0.0.1:0", wait);
    let mut client = client(&address, link, wait);
    let (mut survivor, mut delays) = (None, Delays(Vec::new()));
    for kill in 0..kills {
        if kill == WARM_UP {
            survivor = Some(Survivor::new(&mut client));
        }
        assert_eq!(client.ask("load").text("loading"), DEPTH);
        mid_load(kill);
        let (pid, killed) = (victim.id(), monotonic_nanos());
        victim.kill();
        let end = client.hear();
        delays.add(killed, end.number("ended"), Duration::from_nanos(end.number("late")));
        assert_eq!(end.text("unavailable"), DEPTH, "{end:?}");
        assert!(end.rest("message").contains(&address), "the error should say which peer is meant: {end:?}");
        nothing_is_left_of(pid);
        victim = server(&address, wait).0;
        let back = client.ask("reconnect");
        assert!(back.rest("link").starts_with(link), "{back:?}");
    }
    survivor.expect("more kills than warm-up").holds_no_more(&mut client);
    drop(victim);
    assert_eq!(procfs::files_left(), files);
    delays.report(&format!("{link}, {wait}, server killed"));
}

fn clients_are_killed(link: &str, wait: &str, kills: u32) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let files = procfs::files_left();
    let (mut server, address) = server("127.0.0.1:0", wait);
    let (mut survivor, mut delays) = (None, Delays(Vec::new()));
    for kill in 0..kills {
        let mut victim = client(&address, link, wait);
        assert_eq!(victim.ask("load").text("loading"), DEPTH);
        mid_load(kill);
        let (pid, killed) = (victim.id(), monotonic_nanos());
        victim.kill();
        let ended = handlers_end(&mut server);
        // Nobody is there to say how late the machine was; a look takes about as long.
        delays.add(killed, ended.number("since"), Duration::ZERO);
        nothing_is_left_of(pid);
        if kill == WARM_UP {
            survivor = Some(Survivor::new(&mut server));
        }
    }
    survivor.expect("more kills than warm-up").holds_no_more(&mut server);
    assert_eq!(procfs::files_left(), files);
    delays.report(&format!("{link}, {wait}, client killed"));
}

/// Waits until the server has given up the handlers of a client that is gone.
fn handlers_end(server: &mut Program) -> ringmail_tests::reply::Reply {
    for _ in 0..1000 {
        let waiting = server.ask("waiting");
        if waiting.number("waiting") == 0 {
            return waiting;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the server goes on working for a client that is gone");
}

#[test]
fn a_client_over_shared_memory_outlives_its_servers() {
    servers_are_killed("shm", "adaptive", KILLS);
}

#[test]
fn a_client_over_tcp_outlives_its_servers() {
    servers_are_killed("tcp", "adaptive", KILLS);
}

#[test]
fn a_server_over_shared_memory_outlives_its_clients() {
    clients_are_killed("shm", "adaptive", KILLS);
}

#[test]
fn a_server_over_tcp_outlives_its_clients() {
    clients_are_killed("tcp", "adaptive", KILLS);
}

#[test]
fn kills_are_noticed_as_soon_in_other_waiting_modes() {
    for wait in ["busy", "event"] {
        for link in ["shm", "tcp"] {
            servers_are_killed(link, wait, FEWER_KILLS);
            clients_are_killed(link, wait, FEWER_KILLS);
        }
    }
}
