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
/// From the kill to the end of the last pending call, beyond the time in which somebody waited for a processor: the
/// survivor may have been that somebody.
const BOUND: Duration = Duration::from_millis(50);
/// The same on any machine, however busy.
const OUTER_BOUND: Duration = Duration::from_secs(2);
/// Growth of the heap, in all the kills together, that is not a leak: tables whose size depends on timing.
const HEAP_NOISE: i64 = 64 * 1024;
/// The same for resident memory, of which the allocator and the kernel have their own ideas.
const RESIDENT_NOISE_KIB: u64 = 8 * 1024;

/// One at a time: each measures how late things are.
static ALONE: Mutex<()> = Mutex::new(());

/// What a process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: BTreeMap<String, usize>,
    mapped: u64,
}

impl Holdings {
    fn of(program: &mut Program) -> Self {
        let mapped = program.ask("memory").number("mapped");
        Self { descriptors: procfs::descriptors(program.id()), mapped }
    }

    /// Waits until the program holds just this again.
    fn come_back(&self, program: &mut Program) {
        let mut found = Self::of(program);
        for _ in 0..200 {
            if found == *self {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
            found = Self::of(program);
        }
        assert_eq!(found, *self);
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
    /// To be called before the first kill.
    fn new(program: &mut Program) -> Self {
        Self { holdings: Holdings::of(program), heap: 0, resident_kib: 0 }
    }

    /// To be called when everything has grown to its size.
    fn is_warm(&mut self, program: &mut Program) {
        self.holdings.come_back(program);
        self.heap = heap(program);
        self.resident_kib = procfs::resident_kib(program.id());
    }

    fn holds_no_more(&self, program: &mut Program) {
        self.holdings.come_back(program);
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

/// How long after the kill the last call had ended.
#[derive(Default)]
struct Delays(Vec<Duration>);

/// The moment of a kill.
struct Kill {
    at: u64,
    processor_wait: u64,
}

impl Kill {
    fn now() -> Self {
        Self { at: monotonic_nanos(), processor_wait: procfs::processor_wait_micros() }
    }
}

impl Delays {
    /// Adds one. To be called as soon as the end is known.
    fn add(&mut self, kill: &Kill, ended: u64) {
        let waited = Duration::from_micros(procfs::processor_wait_micros() - kill.processor_wait);
        let delay = Duration::from_nanos(ended.saturating_sub(kill.at));
        let bound = (BOUND + waited).min(OUTER_BOUND);
        assert!(delay <= bound, "the last call ended {delay:?} after the kill, not within {bound:?}");
        self.0.push(delay);
    }

    fn report(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: usize| self.0[(self.0.len() - 1) * share / 100];
        eprintln!("{what}: after the kill, median {:?}, p90 {:?}, worst {:?}", at(50), at(90), at(100));
        // Without any allowance for a busy machine.
        assert!(at(50) < BOUND, "half of the ends came later than {BOUND:?}");
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
    client.ask("ticks 10");
    let (mut survivor, mut delays) = (Survivor::new(&mut client), Delays::default());
    for kill in 0..kills {
        if kill == WARM_UP {
            survivor.is_warm(&mut client);
        }
        assert_eq!(client.ask("load").text("loading"), DEPTH);
        mid_load(kill);
        let (pid, moment) = (victim.id(), Kill::now());
        victim.kill();
        let end = client.hear();
        delays.add(&moment, end.number("ended"));
        assert_eq!(end.text("unavailable"), DEPTH, "{end:?}");
        assert!(end.rest("message").contains(&address), "the error should say which peer is meant: {end:?}");
        nothing_is_left_of(pid);
        victim = server(&address, wait).0;
        let back = client.ask("reconnect");
        assert!(back.rest("link").starts_with(link), "{back:?}");
    }
    survivor.holds_no_more(&mut client);
    drop(victim);
    assert_eq!(procfs::files_left(), files);
    delays.report(&format!("{link}, {wait}, server killed"));
}

fn clients_are_killed(link: &str, wait: &str, kills: u32) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let files = procfs::files_left();
    let (mut server, address) = server("127.0.0.1:0", wait);
    let (mut survivor, mut delays) = (Survivor::new(&mut server), Delays::default());
    for kill in 0..kills {
        let mut victim = client(&address, link, wait);
        assert_eq!(victim.ask("load").text("loading"), DEPTH);
        mid_load(kill);
        let (pid, moment) = (victim.id(), Kill::now());
        victim.kill();
        let ended = handlers_end(&mut server);
        delays.add(&moment, ended.number("since"));
        nothing_is_left_of(pid);
        if kill == WARM_UP {
            survivor.is_warm(&mut server);
        }
    }
    survivor.holds_no_more(&mut server);
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
