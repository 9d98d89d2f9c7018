//! The file of `--json`: whole or as it was before, however the demo ends.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A place that was found to be writable, at which nothing has changed yet.
#[derive(Debug)]
pub(crate) enum Output {
    /// A file that is, or is to be, in a directory in which files can be made.
    File { path: PathBuf, permissions: Permissions },
    /// A device or pipe, or a file in a directory in which none can be made.
    InPlace(File),
}

impl Output {
    /// Finds out whether `path` can be written.
    pub(crate) fn prepare(path: &Path) -> io::Result<Self> {
        // Through a link it is the file behind that is replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let existing = match OpenOptions::new().write(true).open(&path) {
            Ok(file) => Some((file.metadata()?, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // What a new file gets, less the umask.
        let permissions =
            existing.as_ref().map_or_else(|| Permissions::from_mode(0o666), |(is, _)| is.permissions());
        let tried = temporary(&path, &permissions);
        match existing {
            Some((is, file)) if !is.is_file() || tried.is_err() => Ok(Self::InPlace(file)),
            _ => tried.map(|_| Self::File { path, permissions }),
        }
    }

    /// Writes it, as a whole where that can be done.
    pub(crate) fn write(self, text: &str) -> io::Result<()> {
        match self {
            Self::File { path, permissions } => {
                let mut file = temporary(&path, &permissions)?;
                file.write_all(text.as_bytes())?;
                file.persist(path)?;
                Ok(())
            }
            Self::InPlace(mut file) => {
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                file.write_all(text.as_bytes())
            }
        }
    }
}

/// A file beside `path`, which can take its place; it is gone when it is dropped.
fn temporary(path: &Path, permissions: &Permissions) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().ok_or(io::ErrorKind::IsADirectory)?);
    tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(permissions.clone())
        .tempfile_in(directory.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stays_as_it_is_until_it_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("rows.json"), directory.path().join("link.json"));
        std::fs::write(&path, "yesterday's").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let output = Output::prepare(&link).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "yesterday's");
        output.write("today's").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "today's");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink() && directory.path().read_dir().unwrap().count() == 2);
    }

    #[test]
    fn nothing_is_left_of_a_file_that_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        drop(Output::prepare(&directory.path().join("rows.json")).unwrap());
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_device_is_written_not_replaced() {
        let output = Output::prepare(Path::new("/dev/null")).unwrap();
        assert!(matches!(output, Output::InPlace(_)));
        output.write("rows").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn what_cannot_be_written_is_told_before() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path().to_owned(), directory.path().join("none/rows.json")] {
            assert!(Output::prepare(&path).is_err(), "{}", path.display());
        }
    }
}
