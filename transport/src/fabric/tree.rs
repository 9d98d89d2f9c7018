//! Files below a root, read with bounds: whatever lies there, reading it ends soon.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Fact;

/// Bytes of the longest file: sysfs gives at most a page.
const LONGEST: usize = 4096;
/// Entries of a folder that are looked at. The largest GID tables have 1,024.
const MOST_ENTRIES: usize = 4096;
/// Files and folders that are read in all.
const MOST_READS: u32 = 200_000;

/// A file system, or a recording of one.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    reads_left: Cell<u32>,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), reads_left: Cell::new(MOST_READS) }
    }

    pub(super) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Whether there is something, of whatever kind.
    pub(super) fn has(&self, relative: impl AsRef<Path>) -> bool {
        self.path(relative).symlink_metadata().is_ok()
    }

    /// The names in a folder, sorted.
    pub(super) fn names(&self, relative: impl AsRef<Path>) -> Fact<Vec<OsString>> {
        let listed = self.spend().and_then(|()| {
            let entries = fs::read_dir(self.path(relative))?.take(MOST_ENTRIES);
            entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
        });
        fact(listed.map(|mut names| {
            names.sort();
            names
        }))
    }

    /// The text of a file without the space around it; what a terminal would obey is replaced. An empty file says nothing.
    pub(super) fn text(&self, relative: impl AsRef<Path>) -> Fact<String> {
        match fact(self.read(relative)) {
            Fact::Known(text) if text.is_empty() => Fact::Unknown,
            Fact::Known(text) => Fact::Known(plain(&text)),
            other => other,
        }
    }

    /// As [`text`](Self::text), of a file with which the kernel says by EINVAL that there is no such thing.
    pub(super) fn text_unless_invalid(&self, relative: impl AsRef<Path>) -> Fact<String> {
        let relative = relative.as_ref();
        match self.read(relative) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Fact::Unknown,
            _ => self.text(relative),
        }
    }

    /// The value of a key in a file with lines such as `DRIVER=mlx5_core`.
    pub(super) fn value(&self, relative: impl AsRef<Path>, key: &str) -> Fact<String> {
        let read = self.read(relative).map(|text| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            values.next().map(plain)
        });
        match fact(read) {
            Fact::Known(Some(value)) => Fact::Known(value),
            Fact::Known(None) | Fact::Unknown => Fact::Unknown,
            Fact::Unreadable(why) => Fact::Unreadable(why),
        }
    }

    fn read(&self, relative: impl AsRef<Path>) -> io::Result<String> {
        self.spend()?;
        read(&self.path(relative))
    }

    fn spend(&self) -> io::Result<()> {
        let left = self.reads_left.get();
        self.reads_left.set(left.saturating_sub(1));
        if left == 0 { Err(io::Error::other("too many files were read already")) } else { Ok(()) }
    }
}

fn read(path: &Path) -> io::Result<String> {
    // A pipe would have whoever opens it wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut buffer = [0; LONGEST + 1];
    // Files give all that they have at once.
    let length = rustix::io::read(&file, &mut buffer)?;
    if length > LONGEST {
        return Err(io::Error::other("longer than a file of sysfs can be"));
    }
    let text = str::from_utf8(&buffer[..length]).map_err(|_| io::Error::other("not text"))?;
    Ok(text.trim().to_owned())
}

/// Text without control characters.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it }).collect()
}

fn fact<T>(read: io::Result<T>) -> Fact<T> {
    match read {
        Ok(value) => Fact::Known(value),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Fact::Unknown,
        Err(error) => Fact::Unreadable(error.to_string()),
    }
}
