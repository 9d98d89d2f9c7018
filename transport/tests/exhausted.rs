//! A client that has no file descriptors left. Alone in its process, whose limit it lowers.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_client_without_descriptors_is_told_to_raise_the_limit_not_to_look_for_the_server() {
    use ringmail_transport::bootstrap::{BootstrapError, Settings, connect};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut taken = Vec::new();
    while let Ok(copy) = listener.try_clone() {
        taken.push(copy);
    }
    let error = runtime.block_on(connect(address, &Settings::default())).expect_err("no descriptors");
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("ulimit -n") && !text.contains("server runs"), "{text}");
}
