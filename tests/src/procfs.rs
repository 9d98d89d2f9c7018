//! What `/proc` says of a process and of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}

fn names(path: &str) -> BTreeSet<String> {
    fs::read_dir(path)
        .unwrap_or_else(|error| panic!("cannot list {path}: {error}"))
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// A process's open descriptors: what each kind is, and how many there are.
#[must_use]
pub fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let folder = format!("/proc/{pid}/fd");
    let mut kinds = BTreeMap::new();
    for name in names(&folder) {
        // One that was closed since is not counted.
        if let Ok(target) = fs::read_link(format!("{folder}/{name}")) {
            let target = target.to_string_lossy().into_owned();
            // Numbers of sockets and pipes differ; their kinds do not.
            let kind = target.split(":[").next().unwrap_or(&target).to_owned();
            *kinds.entry(kind).or_default() += 1;
        }
    }
    kinds
}

/// Kilobytes of anonymous memory that a process has resident.
#[must_use]
pub fn resident_kib(pid: u32) -> u64 {
    field(&read(&format!("/proc/{pid}/status")), "RssAnon:")
}

/// Whether all threads of a process are stopped.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let stopped = |thread: &String| {
        let status = read(&format!("/proc/{pid}/task/{thread}/status"));
        status.lines().any(|line| line.starts_with("State:") && line.contains("stopped"))
    };
    names(&format!("/proc/{pid}/task")).iter().all(stopped)
}

/// How often the threads of a process have gone to sleep by themselves.
#[must_use]
pub fn sleeps(pid: u32) -> u64 {
    names(&format!("/proc/{pid}/task"))
        .iter()
        .map(|thread| field(&read(&format!("/proc/{pid}/task/{thread}/status")), "voluntary_ctxt_switches:"))
        .sum()
}

/// How many calls of `write(2)` and its kin a process has made. Sending on a socket is not one.
#[must_use]
pub fn writes(pid: u32) -> u64 {
    field(&read(&format!("/proc/{pid}/io")), "syscw:")
}

fn field(text: &str, key: &str) -> u64 {
    let line =
        text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("no {key} in {text}"));
    line.split_whitespace().nth(1).and_then(|value| value.parse().ok()).expect("a number")
}

/// For how long so far somebody on this host has waited for a processor, in microseconds; 0 where the kernel does not
/// say.
#[must_use]
pub fn processor_wait_micros() -> u64 {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total =
        text.lines().find(|line| line.starts_with("some")).and_then(|line| line.split("total=").nth(1));
    total.and_then(|total| total.trim().parse().ok()).unwrap_or(0)
}

/// Names of abstract unix sockets on this host that Ringmail processes with this id have made.
#[must_use]
pub fn abstract_sockets(pid: u32) -> Vec<String> {
    let prefix = format!("@ringmail-{pid}-");
    read("/proc/net/unix")
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.starts_with(&prefix))
        .map(str::to_owned)
        .collect()
}

/// Files in `/dev/shm`, and files of ours in the folder for temporary ones.
#[must_use]
pub fn files_left() -> BTreeSet<String> {
    let shm = names("/dev/shm").into_iter().map(|name| format!("/dev/shm/{name}"));
    let temporary = std::env::temp_dir().to_string_lossy().into_owned();
    let ours = names(&temporary).into_iter().filter(|name| name.to_lowercase().contains("ringmail"));
    shm.filter(|name| name.to_lowercase().contains("ringmail") || name.contains("memfd"))
        .chain(ours.map(|name| format!("{temporary}/{name}")))
        .collect()
}
