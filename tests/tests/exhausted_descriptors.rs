//! A server that has no descriptors left turns newcomers away, serves those it has, and recovers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringmail_tests::process::Program;
use ringmail_tests::procfs;

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");

fn client(address: &str, link: &str) -> Program {
    let mut client = Program::start(CLIENT, &[address, "--link", link]);
    assert!(client.hear().rest("link").starts_with(link));
    client
}

/// What a server holds for its clients: besides, it keeps spare descriptors.
fn held(server: u32) -> BTreeMap<String, usize> {
    let mut held = procfs::descriptors(server);
    held.remove("/dev/null");
    held
}

#[test]
fn a_server_without_descriptors_goes_on_and_recovers() {
    // A connection holds several: whether the last of them take the one kept for turning others away depends on how many
    // there are in all.
    for (link, files) in [("shm", 60), ("tcp", 60)].into_iter().chain((61..76).map(|files| ("tcp", files))) {
        let mut server = Program::start(SERVER, &["--files", &files.to_string()]);
        let address = server.hear().text("address").to_owned();
        let at_rest = held(server.id());
        let mut early: Vec<_> = (0..3).map(|_| client(&address, link)).collect();
        // More than there are descriptors for, whichever link they use.
        let began = Instant::now();
        let mut crowd: Vec<_> = (0..40)
            .map(|_| Program::start(CLIENT, &[&address, "--link", link, "--connect-timeout", "60000"]))
            .collect();
        let turned_away = crowd.iter_mut().filter_map(|late| late.try_hear().is_none().then_some(())).count();
        assert!(turned_away > 0, "{link}: there are descriptors for all");
        // They are told, and need not wait for the end of their patience.
        assert!(began.elapsed() < Duration::from_secs(20), "{link}: it took {:?}", began.elapsed());
        for early in &mut early {
            early.ask("ticks 10");
        }
        drop((early, crowd));
        let mut attempts = 0;
        while held(server.id()) != at_rest {
            attempts += 1;
            assert!(attempts < 600, "{link}: {:?}, at rest {at_rest:?}", held(server.id()));
            std::thread::sleep(Duration::from_millis(10));
        }
        client(&address, link).ask("ticks 10");
    }
}
