//! What people get wrong in `.proto` files, and what they are told.

use std::path::{Path, PathBuf};

use ringmail_build::{BuildError, configure};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/cases")
}

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringmail-build-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn compile(&self, file: &Path) -> Result<(), BuildError> {
        let includes = file.parent().unwrap();
        configure().out_dir(&self.0).emit_rerun_if_changed(false).compile_protos(&[file], &[includes])
    }

    fn compile_text(&self, text: &str) -> Result<(), BuildError> {
        let file = self.0.join("input.proto");
        std::fs::write(&file, text).unwrap();
        self.compile(&file)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn editions_are_refused_by_name() {
    let error = Folder::new("editions").compile(&cases().join("bad-editions.proto")).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BuildError::Editions { .. }), "{text}");
    assert!(
        text.contains("bad-editions.proto") && text.contains("editions") && text.contains("2023"),
        "{text}"
    );
    assert!(text.contains("not supported") && text.contains("proto3"), "{text}");
    assert_eq!(text, format!("{error:?}"), "build scripts print errors with Debug");
}

#[test]
fn a_syntax_error_names_file_line_and_column() {
    let text = Folder::new("syntax").compile(&cases().join("bad-syntax.proto")).unwrap_err().to_string();
    assert!(text.contains("bad-syntax.proto:3:23"), "{text}");
}

#[test]
fn missing_files_and_imports_are_named() {
    let folder = Folder::new("missing");
    let text = folder.compile(&cases().join("nowhere.proto")).unwrap_err().to_string();
    assert!(text.contains("nowhere.proto"), "{text}");
    let text = folder.compile_text("syntax = \"proto3\";\nimport \"gone.proto\";").unwrap_err().to_string();
    assert!(text.contains("gone.proto") && text.contains("input.proto:2:1"), "{text}");
    let text =
        folder.compile_text("syntax = \"proto3\";\nmessage A { Nope b = 1; }").unwrap_err().to_string();
    assert!(text.contains("Nope") && text.contains("input.proto:2:13"), "{text}");
}

#[test]
fn nothing_panics_on_odd_files() {
    let folder = Folder::new("odd");
    for text in
        ["", "syntax = \"proto4\";", "\u{feff}syntax = \"proto3\";", "service S {}", "edition", "/*", "\0"]
    {
        // Either is fine; a panic is not.
        let _ = folder.compile_text(text);
    }
}

#[test]
fn descriptors_from_elsewhere_are_checked() {
    use prost_types::{FileDescriptorProto, FileDescriptorSet};
    let folder = Folder::new("fds");
    let compile = |file: FileDescriptorProto| {
        configure().out_dir(&folder.0).compile_fds(FileDescriptorSet { file: vec![file] })
    };
    let editions = FileDescriptorProto {
        name: Some("e.proto".into()),
        syntax: Some("editions".into()),
        ..FileDescriptorProto::default()
    };
    assert!(matches!(compile(editions), Err(BuildError::Editions { .. })));
    let dangling = FileDescriptorProto {
        name: Some("d.proto".into()),
        dependency: vec!["gone.proto".into()],
        ..FileDescriptorProto::default()
    };
    assert!(compile(dangling).unwrap_err().to_string().contains("gone.proto"));
}

#[test]
fn messages_alone_make_no_stubs_and_the_descriptor_set_is_written() {
    let folder = Folder::new("money");
    folder.compile(&cases().join("acme/common/money.proto")).unwrap();
    let code = std::fs::read_to_string(folder.0.join("acme.common.rs")).unwrap();
    assert!(
        code.contains("struct Money") && !code.contains("_client") && !code.contains("_server"),
        "{code}"
    );
    let set = std::fs::read(folder.0.join("money_descriptor.bin")).unwrap();
    let set: prost_types::FileDescriptorSet = prost::Message::decode(set.as_slice()).unwrap();
    assert_eq!(set.file[0].package(), "acme.common");
}
