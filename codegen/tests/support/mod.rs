//! A folder to generate code into.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use ringmail_build::{BuildError, Builder, configure};

/// The project's examples of what real services' files look like.
pub fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/cases")
}

/// A folder of this test's own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringmail-build-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn builder(&self) -> Builder {
        configure().out_dir(&self.0).emit_rerun_if_changed(false)
    }

    pub fn compile(&self, file: &Path) -> Result<(), BuildError> {
        self.builder().compile_protos(&[file], &[file.parent().unwrap()])
    }

    /// Compiles a file with this text.
    pub fn compile_text(&self, text: &str) -> Result<(), BuildError> {
        self.compile_with(text, &self.0)
    }

    /// The same, with imports from another folder.
    pub fn compile_with(&self, text: &str, imports: &Path) -> Result<(), BuildError> {
        self.compile_options(self.builder(), text, imports)
    }

    pub fn compile_options(&self, builder: Builder, text: &str, imports: &Path) -> Result<(), BuildError> {
        let file = self.0.join("input.proto");
        std::fs::write(&file, text).unwrap();
        builder.compile_protos(&[file.as_path()], &[&self.0, imports])
    }

    /// Text of a generated file.
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
