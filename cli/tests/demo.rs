//! `ringmail demo` as a person runs it.

use std::collections::BTreeSet;
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
    assert_eq!(rows.len(), LOADS.len() * WAYS.len());
    for (link, mode) in WAYS {
        for (payload, depth) in LOADS {
            let load = |row: &&serde_json::Value| row["payload_bytes"] == payload && row["depth"] == depth;
            let row = rows
                .iter()
                .filter(load)
                .find(|row| row["link"] == link && row["mode"] == mode)
                .unwrap_or_else(|| panic!("no row for {link} {mode} {payload} {depth}"));
            assert_is_sane(row);
        }
    }
}

const LOADS: [(usize, usize); 6] = [(32, 1), (1024, 1), (65_536, 1), (1_048_576, 1), (32, 64), (4096, 64)];
const WAYS: [(&str, &str); 7] = [
    ("shm", "busy"),
    ("shm", "adaptive"),
    ("shm", "event"),
    ("tcp", "busy"),
    ("tcp", "adaptive"),
    ("tcp", "event"),
    ("grpc", "-"),
];
const FIGURES: [&str; 5] = ["p50_us", "p99_us", "p999_us", "calls_per_s", "cpu_us_per_call"];

/// Exactly the fields that are promised, and figures that can be true.
fn assert_is_sane(row: &serde_json::Value) {
    let mut fields: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
    let mut promised = [&FIGURES[..], &["link", "mode", "payload_bytes", "depth"]].concat();
    fields.sort_unstable();
    promised.sort_unstable();
    assert_eq!(fields, promised);
    let figure = |name: &str| row[name].as_f64().unwrap();
    for name in FIGURES {
        assert!(figure(name) > 0.0 && figure(name).is_finite(), "{name} of {row}");
    }
    assert!(figure("p50_us") <= figure("p99_us") && figure("p99_us") <= figure("p999_us"), "{row}");
    // Two processes cannot use more than all processors (with room for the edges of a slice), nor can more calls
    // overlap than `depth` allows (half of the median is never above the mean).
    let processors = std::thread::available_parallelism().unwrap().get() as f64;
    assert!(figure("cpu_us_per_call") * figure("calls_per_s") <= 3e6 * processors, "{row}");
    assert!(figure("calls_per_s") * figure("p50_us") / 2.0 <= 1.1e6 * figure("depth"), "{row}");
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
fn a_demo_that_is_killed_leaves_the_file_of_the_last_one_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows.json");
    std::fs::write(&file, "the last one's").unwrap();
    let mut demo = ringmail()
        .args(["demo", "--seconds", "60", "--json"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while all_children(demo.id()).is_empty() {
        assert!(Instant::now() < deadline, "the demo has started no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    demo.kill().unwrap();
    demo.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the last one's");
    assert_eq!(directory.path().read_dir().unwrap().count(), 1, "something was left beside it");
}

#[test]
fn wrong_arguments_are_explained() {
    let output = ringmail().args(["demo", "--seconds", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 1 to 3600"));
    let output = ringmail().args(["demo", "--quick", "--json", "/nowhere/at/all.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all.json"));
    let output = ringmail().args(["demo", "--bogus"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--bogus") && text.contains("Usage: ringmail demo"), "{text}");
}

#[test]
fn what_is_mistyped_is_never_taken_for_the_servers_own_command() {
    for mistyped in ["dmo", "demo-serve", "demoserver"] {
        let output = ringmail().arg(mistyped).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("'demo'") && !text.contains("demo-server"), "{text}");
    }
}

#[test]
fn only_one_link_is_measured_beside_grpc_when_that_is_asked_for() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output =
        ringmail().args(["demo", "--quick", "--only", "tcp", "--json"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let rows = document["rows"].as_array().unwrap();
    let links: BTreeSet<_> = rows.iter().map(|row| row["link"].as_str().unwrap()).collect();
    assert_eq!(links.into_iter().collect::<Vec<_>>(), ["grpc", "tcp"]);
}

#[test]
fn on_one_processor_the_demo_says_what_its_figures_are_worth() {
    // The demo inherits what this thread may run on.
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let one = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
    let mut only = rustix::thread::CpuSet::new();
    only.set(one);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
    let output = ringmail().args(["demo", "--quick", "--only", "tcp"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("One processor only"), "{text}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut demo = ringmail()
        .args(["demo", "--seconds", "1", "--only", "grpc"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(demo.stdout.take());
    let output = demo.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{} {text}", output.status);
}

#[test]
fn the_version_is_told() {
    let output = ringmail().arg("version").output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("ringmail {}\n", env!("CARGO_PKG_VERSION")));
}
