//! `ringmail demo` as a person runs it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn ringmail() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ringmail"))
}

#[test]
fn a_quick_demo_measures_every_link_and_writes_every_row() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = ringmail().args(["demo", "--quick", "--json"]).arg(file.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("vs gRPC") && !text.contains('\x1b'), "{text}");
    assert!(text.contains("rdma  not measured"), "{text}");
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let rows = document["rows"].as_array().unwrap();
    for link in ["shm", "tcp", "grpc"] {
        for (payload, depth) in [(32, 1), (1024, 1), (65_536, 1), (1_048_576, 1), (32, 64), (4096, 64)] {
            let row = rows
                .iter()
                .find(|row| row["link"] == link && row["payload_bytes"] == payload && row["depth"] == depth)
                .unwrap_or_else(|| panic!("no row for {link} {payload} {depth}"));
            for figure in ["p50_us", "p99_us", "p999_us", "calls_per_s", "cpu_us_per_call"] {
                assert!(row[figure].as_f64().unwrap() > 0.0, "{figure} of {row}");
            }
            assert!(row["p50_us"].as_f64() <= row["p999_us"].as_f64(), "{row}");
        }
    }
}

#[test]
fn when_the_demo_is_killed_its_servers_end_too() {
    let mut demo = ringmail()
        .args(["demo", "--seconds", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut servers = all_children(demo.id());
    while servers.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        servers = all_children(demo.id());
    }
    assert!(!servers.is_empty(), "the demo has started no server");
    demo.kill().unwrap();
    demo.wait().unwrap();
    let alive = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("demo-server"))
    };
    while servers.iter().any(alive) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!servers.iter().any(alive), "a server was left behind");
}

/// Children belong to whichever thread started them.
fn all_children(parent: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
        .collect()
}

#[test]
fn wrong_arguments_are_explained() {
    let output = ringmail().args(["demo", "--seconds", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 1 to 3600"));
    let output = ringmail().args(["demo", "--quick", "--json", "/nowhere/at/all.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all.json"));
}
