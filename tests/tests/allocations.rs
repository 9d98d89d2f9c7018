//! Heap allocations per unary call in steady state, counted exactly, in both processes apart.
#![allow(clippy::print_stderr)] // The figures measured are for whoever reads the log.

use ringmail_tests::process::Program;

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");

/// Enough for every table to have grown to its size.
const WARM_UP: u64 = 1_000;
/// Few enough for two sides that spin on a machine that has other work as well.
const CALLS: u64 = 4_000;
/// At the client: nothing, for a message without heap fields.
const CLIENT_BUDGET: u64 = 0;
/// At the server: the boxed future that tonic's server trait returns.
const SERVER_BUDGET: u64 = 1;
/// What the runtimes' own timers and tables may allocate in the whole run.
const NOISE: u64 = 50;
/// What the client's program itself allocates for each of its tasks.
const PER_TASK: u64 = 4;

/// A server on a busy machine may take its handlers to compute, and give some calls to the runtime, which allocates for
/// each. What belongs to every call is in every attempt.
const ATTEMPTS: u32 = 3;

/// Holds for every way to wait and every depth: what is allocated per call does not depend on them.
fn within_budget(link: &str) {
    for (wait, depth) in [("busy", 1), ("adaptive", 1), ("event", 1), ("adaptive", 64), ("event", 64)] {
        let mut server = Program::start(SERVER, &["--wait", wait]);
        let address = server.hear().text("address").to_owned();
        let mut client = Program::start(
            CLIENT,
            &[&address, "--link", link, "--wait", wait, "--depth", &depth.to_string()],
        );
        client.hear();
        client.ask(&format!("ticks {}", WARM_UP / depth));
        let kept = (0..ATTEMPTS).any(|_| {
            let before = server.ask("allocations").number("allocations");
            let reply = client.ask(&format!("ticks {}", CALLS / depth));
            let at_server = server.ask("allocations").number("allocations") - before;
            let at_client = reply.number("allocations");
            let calls = CALLS / depth * depth;
            let per_call = |count| count as f64 / calls as f64;
            eprintln!(
                "{link}, {wait}, depth {depth}: client {:.3}, server {:.3} allocations per call",
                per_call(at_client),
                per_call(at_server)
            );
            at_client <= CLIENT_BUDGET * calls + PER_TASK * depth + NOISE
                && at_server <= SERVER_BUDGET * calls + NOISE
        });
        assert!(kept, "{link}, {wait}, depth {depth}: more allocations than allowed, see above");
    }
}

#[test]
fn a_call_over_shared_memory_allocates_only_the_handlers_future() {
    within_budget("shm");
}

#[test]
fn a_call_over_tcp_allocates_only_the_handlers_future() {
    within_budget("tcp");
}
