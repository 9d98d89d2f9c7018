//! Peers that are stopped, as debuggers, laptops and overcommitted hosts do it: they neither answer nor close.

use std::time::{Duration, Instant};

use ringmail_tests::process::Program;

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");
/// How late a deadline may be noticed on a busy machine.
const LATE: Duration = Duration::from_millis(500);

fn pair(link: &str) -> (Program, Program) {
    let mut server = Program::start(SERVER, &[]);
    let address = server.hear().text("address").to_owned();
    let mut client = Program::start(CLIENT, &[&address, "--link", link]);
    assert!(client.hear().rest("link").starts_with(link));
    client.ask("ticks 10");
    (server, client)
}

#[test]
fn calls_to_a_frozen_server_end_at_their_deadlines_and_succeed_when_it_thaws() {
    for link in ["shm", "tcp"] {
        let (server, mut client) = pair(link);
        server.freeze();
        // Many times what the ring and the socket's buffers hold: most cannot even be sent.
        let flood = client.ask("flood 300 100000 200");
        assert_eq!((flood.number("ok"), flood.number("late")), (0, 300), "{link}: {flood:?}");
        assert!(
            Duration::from_micros(flood.number("micros")) < Duration::from_millis(200) + LATE,
            "{flood:?}"
        );
        server.thaw();
        // The same connection: what was given up is not in the way.
        let flood = client.ask("flood 300 100000 20000");
        assert_eq!(flood.number("ok"), 300, "{link}: {flood:?}");
        client.ask("ticks 100");
    }
}

#[test]
fn a_frozen_server_that_is_killed_is_noticed_as_soon_as_any() {
    for link in ["shm", "tcp"] {
        let (server, mut client) = pair(link);
        server.freeze();
        client.tell("pause 60000 30000");
        assert_eq!(client.hear().text("sent"), "true");
        let killed = Instant::now();
        server.kill();
        assert_eq!(client.hear().text("code"), "Unavailable");
        assert!(killed.elapsed() < LATE, "{link}: {:?}", killed.elapsed());
    }
}

#[test]
fn a_handler_for_a_frozen_client_ends_at_the_deadline_by_itself() {
    for link in ["shm", "tcp"] {
        let (mut server, mut client) = pair(link);
        client.tell("pause 60000 300");
        assert_eq!(client.hear().text("sent"), "true");
        // From here on the client cannot say that it has given up.
        client.freeze();
        // Sent is not arrived yet.
        server.ask_until("waiting", 1);
        let stopped = Instant::now();
        while server.ask("waiting").number("waiting") > 0 {
            assert!(stopped.elapsed() < Duration::from_millis(300) + LATE, "{link}: the handler goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(stopped.elapsed() > Duration::from_millis(150), "{link}: {:?}", stopped.elapsed());
        client.thaw();
        assert_eq!(client.hear().text("code"), "DeadlineExceeded", "{link}");
        client.ask("ticks 100");
    }
}

#[test]
fn a_frozen_client_does_not_hold_up_others_of_its_server() {
    for link in ["shm", "tcp"] {
        let mut server = Program::start(SERVER, &["--lanes", "1"]);
        let address = server.hear().text("address").to_owned();
        let client = || {
            let mut client = Program::start(CLIENT, &[&address, "--link", link, "--depth", "32"]);
            client.hear();
            client
        };
        let (mut frozen, mut other) = (client(), client());
        // Stopped in the middle of a flood: its ring is full of responses that it does not take.
        frozen.tell("flood 2000 20000 30000");
        std::thread::sleep(Duration::from_millis(30));
        frozen.freeze();
        let started = Instant::now();
        other.ask("ticks 200");
        assert!(started.elapsed() < Duration::from_secs(5), "{link}: {:?}", started.elapsed());
        frozen.thaw();
        let flood = frozen.hear();
        assert_eq!(flood.number("ok"), 2000, "{link}: {flood:?}");
    }
}

#[test]
fn a_client_that_was_frozen_when_the_server_began_to_stop_learns_of_it_when_it_thaws() {
    for link in ["shm", "tcp"] {
        let (mut server, mut client) = pair(link);
        // Its ring is full of responses that it does not take: there is no room to tell it anything.
        client.tell("flood 2000 20000 30000");
        std::thread::sleep(Duration::from_millis(30));
        client.freeze();
        std::thread::sleep(Duration::from_millis(30));
        server.tell("stop");
        std::thread::sleep(Duration::from_millis(30));
        client.thaw();
        let (thawed, flood) = (Instant::now(), client.hear());
        assert_eq!((flood.number("late"), flood.number("ok") > 0), (0, true), "{link}: {flood:?}");
        server.end();
        // Much less than what the server grants to clients that do not listen.
        assert!(thawed.elapsed() < Duration::from_secs(5), "{link}: {:?}", thawed.elapsed());
    }
}
