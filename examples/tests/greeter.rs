//! The examples, run as their comments say.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where cargo has put the examples that it built together with this test.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(|deps| deps.parent()).unwrap();
    Command::new([profile, &PathBuf::from("examples"), &PathBuf::from(name)].iter().collect::<PathBuf>())
}

struct Server(Child);

impl Server {
    fn start() -> (Self, String) {
        let mut server = Self(
            example("greeter-server")
                .args(["--listen", "127.0.0.1:0"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        (server, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_client_greets_over_shared_memory_and_shows_an_error_and_a_deadline() {
    let (_server, address) = Server::start();
    let client = example("greeter-client").args(["--connect", &address, "you"]).output().unwrap();
    let said = String::from_utf8(client.stdout).unwrap();
    assert!(client.status.success(), "{said}{}", String::from_utf8_lossy(&client.stderr));
    for expected in [
        "link: shm to 127.0.0.1:",
        "reply: Hello you!",
        "with metadata: Hallo you!",
        "an error: InvalidArgument: no greeting in \"tlh\"",
        "a deadline: the deadline passed",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in:\n{said}");
    }
}

#[test]
fn a_client_without_a_server_says_whom_it_could_not_reach() {
    // Port 1 is never listened on by anything this test could know.
    let client = example("greeter-client").args(["--connect", "ringmail://127.0.0.1:1"]).output().unwrap();
    let said = String::from_utf8_lossy(&client.stderr).into_owned();
    assert!(!client.status.success() && said.contains("cannot connect to 127.0.0.1:1"), "{said}");
}

#[test]
fn ctrl_c_ends_the_server_in_good_order() {
    let (mut server, address) = Server::start();
    // Once it has answered, it listens for the signal as well.
    let client = example("greeter-client").args(["--connect", &address]).output().unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let kill = format!("kill -INT {}", server.0.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let patience = Instant::now() + Duration::from_secs(20);
    let ended = loop {
        if let Some(status) = server.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < patience, "the server still runs");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(ended.success(), "{ended}");
}
