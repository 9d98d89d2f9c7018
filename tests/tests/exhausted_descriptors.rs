//! A server that has no descriptors left turns newcomers away, serves those it has, and recovers.

use ringmail_tests::process::Program;
use ringmail_tests::procfs;

const SERVER: &str = env!("CARGO_BIN_EXE_probe-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_probe-client");

fn client(address: &str, link: &str) -> Program {
    let mut client = Program::start(CLIENT, &[address, "--link", link]);
    assert!(client.hear().rest("link").starts_with(link));
    client
}

#[test]
fn a_server_without_descriptors_goes_on_and_recovers() {
    for link in ["shm", "tcp"] {
        let mut server = Program::start(SERVER, &["--files", "60"]);
        let address = server.hear().text("address").to_owned();
        let at_rest = procfs::descriptors(server.id());
        let mut early: Vec<_> = (0..3).map(|_| client(&address, link)).collect();
        // More than there are descriptors for, whichever link they use.
        let mut crowd: Vec<_> = (0..40)
            .map(|_| Program::start(CLIENT, &[&address, "--link", link, "--connect-timeout", "500"]))
            .collect();
        let turned_away = crowd.iter_mut().filter_map(|late| late.try_hear().is_none().then_some(())).count();
        assert!(turned_away > 0, "{link}: there are descriptors for all");
        for early in &mut early {
            early.ask("ticks 10");
        }
        drop((early, crowd));
        let mut attempts = 0;
        while procfs::descriptors(server.id()) != at_rest {
            attempts += 1;
            assert!(attempts < 600, "{link}: {:?}, at rest {at_rest:?}", procfs::descriptors(server.id()));
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        client(&address, link).ask("ticks 10");
    }
}
