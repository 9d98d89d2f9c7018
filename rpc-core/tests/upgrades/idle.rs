//! A connection over RDMA on which nothing happens costs nothing.

use std::time::Duration;

use ringmail::LinkKind;

use super::{calls_until, is_on};
use crate::peers::within;
use crate::support::{EchoClient, server};
use crate::{BOUND, addresses, at, builder};

/// How often each thread of this process, but for the calling one, has been put on a processor, by name.
fn turns() -> Vec<(String, u64)> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").map(|task| task.expect("a task"));
    let others = tasks.filter(|task| *task.file_name() != *own);
    let status = others.map(|task| std::fs::read_to_string(task.path().join("status")).expect("its status"));
    let turns = |status: String| {
        let value = |key| status.lines().find_map(|line: &str| line.strip_prefix(key)).map(str::trim);
        let count = value("voluntary_ctxt_switches:").and_then(|count| count.parse().ok());
        (value("Name:").expect("a name").to_owned(), count.expect("a count"))
    };
    status.map(turns).collect()
}

// One thread, the one that counts: the client's tasks run on the other runtime's.
#[test]
fn nobody_wakes_while_nothing_happens() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    for address in addresses() {
        let server = at(address, server());
        let connected = within(BOUND, async {
            let channel = builder(&server).connect().await.expect("TCP");
            let client = EchoClient::new(channel.clone());
            calls_until("RDMA has taken over", &client, is_on(LinkKind::Rdma)).await;
            client
        });
        let client = runtime.block_on(connected);
        // What has just happened comes to its end, Soft-RoCE's own time-outs included.
        std::thread::sleep(Duration::from_millis(1500));
        let before = turns();
        std::thread::sleep(Duration::from_secs(3));
        let after = turns();
        // Twice a second on each side would be a dozen.
        let sum = |turns: &[(String, u64)]| turns.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!(before.len(), after.len(), "{before:?}, then {after:?}");
        assert!(sum(&after) - sum(&before) <= 2, "{before:?}, then {after:?}");
        let echo = runtime.block_on(within(BOUND, client.echo("still there")));
        assert_eq!(echo.expect("echo"), "still there");
    }
}
