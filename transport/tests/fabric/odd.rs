//! Trees that no kernel makes. Reading them ends, says what it can and never panics.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::recording::unpack;
use ringmail_transport::fabric::{Fabric, Fact, Protocol, choose};

const PORT: &str = "sys/class/infiniband/rxe0/ports/1";

fn unreadable<T: std::fmt::Debug>(fact: &Fact<T>) -> &str {
    match fact {
        Fact::Unreadable(why) => why,
        other => panic!("{other:?}"),
    }
}

fn change(root: &Path, path: &str) -> PathBuf {
    let path = root.join(path);
    fs::remove_file(&path).unwrap();
    path
}

#[test]
fn files_that_make_no_sense_are_unreadable_with_the_reason_and_cost_nothing_else() {
    let root = unpack("rxe");
    let device = "sys/class/infiniband/rxe0";
    // A gigabyte, of which nothing is on the disk.
    let huge = fs::File::create(change(root.path(), &format!("{device}/node_desc"))).unwrap();
    huge.set_len(1 << 30).unwrap();
    fs::write(change(root.path(), &format!("{device}/node_guid")), [0xff, 0xfe, 0x00]).unwrap();
    let circle = change(root.path(), &format!("{PORT}/rate"));
    symlink(&circle, &circle).unwrap();
    // Whoever opens a pipe waits for somebody to write.
    let pipe = change(root.path(), &format!("{PORT}/phys_state"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::create_dir(change(root.path(), &format!("{PORT}/lid"))).unwrap();
    fs::write(root.path().join(PORT).join("state"), "99: FINE").unwrap();
    fs::write(root.path().join(PORT).join("sm_lid"), "0xffffffffffff").unwrap();
    fs::write(root.path().join(PORT).join("gids/0"), "not a GID").unwrap();
    fs::write(root.path().join(device).join("fw_ver"), "1.0\u{1b}[2J\nsecond").unwrap();
    let fabric = Fabric::read(root.path());
    let device = &fabric.devices[0];
    assert!(unreadable(&device.description).contains("longer"));
    assert!(unreadable(&device.node_guid).contains("not text"));
    assert_eq!(device.firmware, Fact::Known("1.0\u{fffd}[2J\u{fffd}second".into()));
    let port = &device.ports[0];
    assert!(unreadable(&port.rate).contains("symbolic links"), "{:?}", port.rate);
    assert!(unreadable(&port.physical_state).contains("not a file"));
    assert!(unreadable(&port.lid).contains("not a file"));
    assert!(unreadable(&port.state).contains("99: FINE"));
    assert!(unreadable(&port.sm_lid).contains("0xffff"));
    // What is not known does not stand in the way.
    let choice = choose(&fabric, Some(&super::local("10.99.0.1", "net-rxe")));
    assert_eq!(choice.chosen().map(|entry| entry.gid.index), Some(1));
    assert_eq!(choice.entries.len(), 1);
}

#[test]
fn what_is_absent_is_unknown() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join(PORT).join("gids")).unwrap();
    fs::write(root.path().join(PORT).join("gids/3"), "fe80::1").unwrap();
    let fabric = Fabric::read(root.path());
    let device = &fabric.devices[0];
    assert_eq!((&device.node_type, &device.node), (&Fact::Unknown, &None));
    let port = &device.ports[0];
    assert_eq!(
        (port.protocol, &port.state, &port.link_layer),
        (Protocol::Unknown, &Fact::Unknown, &Fact::Unknown)
    );
    assert!(!port.is_down() && !port.lacks_subnet_manager());
    let choice = choose(&fabric, None);
    assert_eq!(choice.chosen(), None);
    assert!(choice.entries[0].verdict.to_string().contains("does not serve"));
    // Neither does a device without ports say anything wrong.
    fs::remove_dir_all(root.path().join("sys/class/infiniband/rxe0/ports")).unwrap();
    let account = Fabric::read(root.path()).account(&super::local("10.0.0.1", "eth0"));
    assert!(account.contains("rxe0 without ports"), "{account}");
}

#[test]
fn the_folder_itself_may_be_anything() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("sys/class")).unwrap();
    let folder = root.path().join("sys/class/infiniband");
    symlink(&folder, &folder).unwrap();
    let fabric = Fabric::read(root.path());
    assert!(fabric.problem.as_deref().is_some_and(|why| why.contains("symbolic links")), "{fabric:?}");
    assert!(fabric.absence(None).contains("symbolic links"));
    fs::remove_file(&folder).unwrap();
    fs::write(&folder, "a file").unwrap();
    assert_eq!(Fabric::read(root.path()).problem, None);
}

#[test]
fn names_that_no_kernel_gives_do_no_harm() {
    let root = unpack("rxe");
    let devices = root.path().join("sys/class/infiniband");
    fs::create_dir(devices.join(std::ffi::OsString::from_vec(vec![0xff, b'x']))).unwrap();
    fs::create_dir(devices.join("evil\n\u{1b}[31m")).unwrap();
    for name in ["-1", "4294967296", "1x", "٣"] {
        fs::create_dir(devices.join("rxe0/ports").join(name)).unwrap();
    }
    // A folder within itself.
    symlink("..", devices.join("rxe0/ports/7")).unwrap();
    let fabric = Fabric::read(root.path());
    let names: Vec<_> = fabric.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["rxe0", "evil\u{fffd}\u{fffd}[31m"]);
    let ports: Vec<_> = fabric.devices[0].ports.iter().map(|port| port.number).collect();
    assert_eq!(ports, [1, 7]);
}

#[test]
fn reading_ends_however_much_there_is() {
    let root = unpack("rxe");
    let gids = root.path().join(PORT).join("gids");
    for index in 0..5000 {
        fs::hard_link(gids.join("0"), gids.join(format!("{}", index + 10))).unwrap();
    }
    // Each of these is all of it again.
    let devices = root.path().join("sys/class/infiniband");
    for copy in 0..100 {
        symlink("rxe0", devices.join(format!("copy{copy}"))).unwrap();
    }
    let fabric = Fabric::read(root.path());
    assert_eq!(fabric.devices.len(), 101);
    let gids: usize =
        fabric.devices.iter().flat_map(|device| &device.ports).map(|port| port.gids.len()).sum();
    assert!((4000..100_000).contains(&gids), "{gids}");
    let skipped =
        fabric.devices.iter().filter(|device| matches!(device.node_type, Fact::Unreadable(_))).count();
    assert!(skipped > 50, "{skipped}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the files say, something is said of it, in text that a terminal shows as it is.
    #[test]
    fn any_bytes_can_stand_in_any_file(
        changes in vec((any::<Index>(), vec(prop_oneof![any::<u8>(), b' '..b':'], 0..40)), 1..12),
    ) {
        let root = unpack("roce-dual-port");
        let mut files = Vec::new();
        all_files(root.path(), &mut files);
        for (file, bytes) in changes {
            fs::write(file.get(&files), bytes).unwrap();
        }
        let fabric = Fabric::read(root.path());
        let local = super::local("192.168.10.5", "ens1");
        for choice in [choose(&fabric, None), choose(&fabric, Some(&local))] {
            let gids: usize = fabric.devices.iter().flat_map(|device| &device.ports).map(|port| port.gids.len()).sum();
            prop_assert_eq!(choice.entries.len(), gids);
            prop_assert!(choice.entries.iter().filter(|entry| entry.verdict.is_chosen()).count() <= 1);
            let difference = choice.difference("mlx4_0", 1, Some("::1".parse().unwrap()));
            prop_assert!(difference.is_some_and(|text| !text.contains(char::is_control)));
        }
        prop_assert!(!fabric.account(&local).contains(char::is_control));
    }
}

fn all_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            all_files(&entry.path(), into);
        } else {
            into.push(entry.path());
        }
    }
    into.sort();
}
