//! System calls per unary call, and wake-ups of an idle connection, counted exactly.

#![allow(clippy::print_stderr)] // The figures measured are for whoever reads the log.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::libc;
use ringmail_tests::process::Program;
use ringmail_tests::procfs;

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");
const COUNTER: &str = env!("CARGO_BIN_EXE_syscall-counter");

/// One at a time: what a call costs depends on whether the peer has a processor.
static ALONE: Mutex<()> = Mutex::new(());

/// System calls of one process, by number.
#[derive(Debug, Default)]
struct Calls(BTreeMap<i64, u64>);

impl Calls {
    fn all(&self) -> u64 {
        self.0.values().sum()
    }

    fn of(&self, numbers: &[i64]) -> u64 {
        numbers.iter().filter_map(|number| self.0.get(number)).sum()
    }
}

/// A server and a client that have each other's acquaintance.
struct Pair {
    server: Program,
    client: Program,
}

impl Pair {
    fn new(link: &str, wait: &str, depth: u64, runtime: &str) -> Self {
        let mut server = Program::start(SERVER, &["--wait", wait, "--lanes", "1", "--runtime", runtime]);
        let address = server.hear().text("address").to_owned();
        let depth = depth.to_string();
        let arguments = [&address, "--link", link, "--wait", wait, "--depth", &depth, "--runtime", runtime];
        let mut client = Program::start(CLIENT, &arguments);
        client.hear();
        Self { server, client }
    }

    /// System calls of the client and the server during `ticks` calls in each task.
    fn count(&mut self, ticks: u64) -> (Calls, Calls) {
        let (client, server) = (self.client.id(), self.server.id());
        let mut counter = Program::start(COUNTER, &[&client.to_string(), &server.to_string()]);
        counter.hear();
        // The tracer has stopped everybody once: let that pass.
        self.client.ask(&format!("ticks {}", 1 + ticks / 10));
        counter.ask("");
        self.client.ask(&format!("ticks {ticks}"));
        let reply = counter.ask("");
        let of = |process: u32| {
            let prefix = format!("{process}:");
            let pairs = reply.rest("calls").split(' ').filter_map(|pair| pair.strip_prefix(&prefix));
            Calls(
                pairs
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(number, count)| (number.parse().expect("number"), count.parse().expect("count")))
                    .collect(),
            )
        };
        (of(client), of(server))
    }
}

/// What moves bytes over TCP.
const LINK: [i64; 2] = [libc::SYS_sendto, libc::SYS_recvfrom];

/// Measures until a budget is kept. How many calls leave together, and whether a side that spins is answered while it
/// does, depends on both having a processor; others of the machine may take that away for a while, not for ever.
fn eventually(measure: impl FnMut() -> Result<(), String>) {
    const ATTEMPTS: u32 = 12;
    const PAUSE: Duration = Duration::from_millis(500);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut measure = measure;
    for attempt in 1.. {
        match measure() {
            Ok(()) => return,
            Err(excess) if attempt < ATTEMPTS => eprintln!("attempt {attempt}: {excess}"),
            Err(excess) => panic!("in each of {ATTEMPTS} attempts: {excess}"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether something is at most what it may be.
fn at_most(budget: f64, what: &str, found: f64) -> Result<(), String> {
    if found <= budget { Ok(()) } else { Err(format!("{what}: {found:.4}, more than {budget}")) }
}

#[test]
fn a_busy_call_over_shared_memory_makes_no_system_call() {
    const TICKS: u64 = 10_000;
    /// Both runtimes' timers, for as long as the run lasts, and the client's answer to this test.
    const NOISE: f64 = 0.01;
    eventually(|| {
        let (client, server) = Pair::new("shm", "busy", 1, "multi").count(TICKS);
        for (side, calls) in [("client", client), ("server", server)] {
            // Who has waited long in vain, because somebody else has the peer's processor, offers its own: that is not
            // what a call costs.
            let yields = calls.of(&[libc::SYS_sched_yield]);
            let others = calls.all() - yields;
            eprintln!("shm, busy: {side} made {others} system calls and {yields} yields in {TICKS} calls");
            at_most(NOISE, &format!("{side}, {calls:?}, per call"), others as f64 / TICKS as f64)?;
        }
        Ok(())
    });
}

#[test]
fn a_call_over_tcp_is_one_send_and_one_receive_on_each_side() {
    const TICKS: u64 = 2_000;
    eventually(|| {
        let (client, server) = Pair::new("tcp", "event", 1, "current").count(TICKS);
        for (side, calls) in [("client", client), ("server", server)] {
            let per_call = |count| count as f64 / TICKS as f64;
            let (link, all) = (per_call(calls.of(&LINK)), per_call(calls.all()));
            eprintln!("tcp, event, depth 1: {side} made {link:.3} per call, with the runtime's {all:.3}");
            at_most(2.01, &format!("{side}, {calls:?}, per call"), link)?;
        }
        Ok(())
    });
}

#[test]
fn sixty_four_calls_at_a_time_over_tcp_share_their_system_calls() {
    const DEPTH: u64 = 64;
    const TICKS: u64 = 300;
    const BUDGET: f64 = 0.25;
    for runtime in ["current", "multi"] {
        eventually(|| {
            let (client, server) = Pair::new("tcp", "event", DEPTH, runtime).count(TICKS);
            for (side, calls) in [("client", client), ("server", server)] {
                let per_call = |count| count as f64 / (TICKS * DEPTH) as f64;
                let (link, all) = (per_call(calls.of(&LINK)), per_call(calls.all()));
                let what = format!("tcp, event, depth {DEPTH}, {runtime}: {side}");
                eprintln!("{what} {link:.3} per call, with the runtime's {all:.3}");
                at_most(BUDGET, &format!("{what}, {calls:?}, per call"), link)?;
                // Of several threads, the runtime wakes one for another's sake, at a cost of its own.
                if runtime == "current" {
                    at_most(BUDGET, &format!("{what}, {calls:?}, per call in all"), all)?;
                }
            }
            Ok(())
        });
    }
}

#[test]
fn callers_of_one_thread_share_system_calls_also_when_they_could_poll_for_themselves() {
    const DEPTH: u64 = 64;
    const TICKS: u64 = 600;
    eventually(|| {
        let (client, server) = Pair::new("tcp", "adaptive", DEPTH, "current").count(TICKS);
        for (side, calls) in [("client", client), ("server", server)] {
            // Receiving is how one polls over TCP; sending is what the calls cost.
            let sends = calls.of(&[libc::SYS_sendto]) as f64 / (TICKS * DEPTH) as f64;
            eprintln!("tcp, adaptive, depth {DEPTH}: {side} sent {sends:.3} times per call");
            at_most(0.125, &format!("{side}, {calls:?}, sends per call"), sends)?;
        }
        Ok(())
    });
}

#[test]
fn sides_that_both_spin_do_not_wake_each_other() {
    const BATCHES: usize = 10;
    /// About 10 ms: many batches are not disturbed by others of the machine.
    const TICKS: u64 = 1_000;
    /// A batch begins with the server asleep, and ends with the client's answer to this test.
    const BEGIN_AND_END: u64 = 4;
    eventually(|| {
        let mut pair = Pair::new("shm", "adaptive", 1, "multi");
        pair.client.ask(&format!("ticks {TICKS}"));
        let mut writes: Vec<_> = (0..BATCHES)
            .map(|_| {
                let both = [pair.client.id(), pair.server.id()];
                let before = both.map(procfs::writes);
                pair.client.ask(&format!("ticks {TICKS}"));
                let after = both.map(procfs::writes);
                (after[0] - before[0] + after[1] - before[1]).saturating_sub(BEGIN_AND_END)
            })
            .collect();
        writes.sort_unstable();
        eprintln!("shm, adaptive: wake-ups in batches of {TICKS} calls: {writes:?}");
        at_most(0.0, &format!("the least in batches of {TICKS} calls"), writes[0] as f64)
    });
}

#[test]
fn an_idle_connection_wakes_nobody() {
    const SETTLE: Duration = Duration::from_millis(300);
    const IDLE: Duration = Duration::from_secs(1);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for link in ["shm", "tcp"] {
        for wait in ["adaptive", "event"] {
            let mut pair = Pair::new(link, wait, 1, "multi");
            pair.client.ask("ticks 100");
            std::thread::sleep(SETTLE);
            let both = [pair.client.id(), pair.server.id()];
            let before = both.map(procfs::sleeps);
            std::thread::sleep(IDLE);
            let after = both.map(procfs::sleeps);
            let sleeps = [after[0] - before[0], after[1] - before[1]];
            eprintln!("{link}, {wait}: client and server went to sleep {sleeps:?} times in {IDLE:?}");
            assert_eq!(sleeps, [0, 0], "{link}, {wait}: somebody woke up while nothing happened");
        }
    }
}
