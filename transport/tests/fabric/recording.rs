//! Hosts as they were recorded: what their files say, one line each, as `grep -r '' sys dev` prints it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Puts a recording's files below a folder that lasts as long as what is returned.
pub(crate) fn unpack(name: &str) -> tempfile::TempDir {
    let file = folder().join(format!("{name}.txt"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let root = tempfile::tempdir().expect("a folder");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        // The first colon ends the path: those recorded have none. (PCI addresses are what links point to.)
        let (path, says) = line.split_once(':').expect("path:text");
        put(root.path(), path, says);
    }
    root
}

fn put(root: &Path, path: &str, line: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
    writeln!(file, "{line}").expect("writing");
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../transport/tests/fixtures/sysfs")
}
