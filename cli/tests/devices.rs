//! `ringmail devices`, on hosts that were recorded and on one without devices.

#[path = "../../transport/tests/fabric/recording.rs"]
mod recording;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const RECORDINGS: [&str; 9] = [
    "bond",
    "infiniband",
    "infiniband-without-sm",
    "iwarp",
    "link-local-only",
    "roce-dual-port",
    "roce-v1",
    "rxe",
    "siw",
];

/// What it prints; it succeeds whatever there is.
fn devices(root: &Path, options: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmail"));
    let output = command.args(["devices", "--root"]).arg(root).args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn document(root: &Path, options: &[&str]) -> Value {
    serde_json::from_str(&devices(root, &[&["--json"], options].concat())).unwrap()
}

#[test]
fn a_machine_without_devices_is_told_where_was_looked_and_how_to_get_one() {
    let root = tempfile::tempdir().unwrap();
    for options in [&[][..], &["--address", "10.0.0.1"]] {
        let text = devices(root.path(), options).replace('\n', " ");
        let folder = root.path().join("sys/class/infiniband").display().to_string();
        for part in ["no RDMA device", &folder, "rdma link add rxe0 type rxe"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
    let document = document(root.path(), &[]);
    assert_eq!((&document["devices"], &document["choice"]), (&Value::Array(Vec::new()), &Value::Null));
}

#[test]
fn the_list_fits_a_page_and_has_every_port_and_gid() {
    for name in RECORDINGS {
        let root = recording::unpack(name);
        let text = devices(root.path(), &["--address", "192.168.10.5"]);
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && !line.contains('\x1b'), "{name}: {line}");
        }
        let document = document(root.path(), &[]);
        for device in document["devices"].as_array().unwrap() {
            assert!(text.lines().any(|line| line == device["name"]), "{text}");
            for port in device["ports"].as_array().unwrap() {
                assert!(text.contains(port["protocol"].as_str().unwrap()), "{text}");
                assert!(text.contains(port["state"].as_str().unwrap()), "{text}");
                for gid in port["gids"].as_array().unwrap() {
                    let shown = gid["address"].as_str().or(gid["gid"].as_str()).unwrap();
                    assert!(text.contains(shown), "{shown} is missing in: {text}");
                }
            }
        }
    }
}

#[test]
fn an_address_is_told_its_gid_and_every_other_gid_why_not() {
    let root = recording::unpack("roce-dual-port");
    let text = devices(root.path(), &["--address", "192.168.10.5"]);
    assert!(text.contains("used  mlx4_0 port 1 GID   3  it is made of the address\n"), "{text}");
    assert!(text.contains("not   mlx4_0 port 1 GID   2  rdma_cm uses RoCE v2 on this port\n"), "{text}");
    let document = document(root.path(), &["--address", "192.168.20.5"]);
    let entries = document["choice"]["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 10);
    assert!(entries.iter().all(|entry| entry["chosen"] == false && entry["reason"] != ""), "{document:#}");
    assert_eq!((&entries[0]["port"], &entries[0]["gid_index"]), (&2.into(), &3.into()));
    assert_eq!(entries[0]["reason"], "the port is DOWN");
    let port = &document["devices"][0]["ports"][1];
    assert_eq!((&port["state"], &port["interfaces"][0]["name"]), (&"DOWN".into(), &"ens1d1".into()));
    assert!(port["advice"].as_str().unwrap().contains("check cable"), "{document:#}");
}

#[test]
fn the_fields_are_those_that_are_documented() {
    let manual = include_str!("../../docs/fabrics.md");
    let root = recording::unpack("infiniband");
    let document = document(root.path(), &["--address", "10.0.0.1"]);
    let mut fields = Vec::new();
    names(&document, &mut fields);
    assert!(fields.len() > 30);
    for field in fields {
        assert!(manual.contains(&format!("`{field}`")), "{field} is not in docs/fabrics.md");
    }
    assert_eq!(document["devices"][0]["ports"][0]["lid"], 5);
    assert_eq!(document["devices"][0]["ports"][0]["partitions"][1], "0x8001");
}

/// The names of all fields.
fn names(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.push(name.clone());
                names(value, into);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, into)),
        _ => {}
    }
}
