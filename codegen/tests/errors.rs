//! What people get wrong in `.proto` files, and what they are told.

mod support;

use prost_types::{FileDescriptorProto, FileDescriptorSet};
use ringmail_build::{BuildError, configure};
use support::{Folder, cases};

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
fn an_imported_edition_is_refused_by_the_name_of_its_file() {
    let folder = Folder::new("imported");
    let error =
        folder.compile_with("syntax = \"proto3\";\nimport \"bad-editions.proto\";", &cases()).unwrap_err();
    assert!(
        matches!(&error, BuildError::Editions { file, .. } if file.ends_with("bad-editions.proto")),
        "{error}"
    );
}

#[test]
fn descriptors_from_elsewhere_are_checked() {
    let folder = Folder::new("fds");
    let compile =
        |file: FileDescriptorProto| folder.builder().compile_fds(FileDescriptorSet { file: vec![file] });
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
fn options_that_cannot_be_code_are_refused_by_name() {
    let folder = Folder::new("options");
    let greeter = cases().join("../greeter.proto");
    let cases = [
        ("type_attribute", folder.builder().type_attribute(".", "derive(Debug)")),
        ("field_attribute", folder.builder().field_attribute(".", "#[a")),
        ("server_attribute", folder.builder().server_attribute(".", "#[derive(Debug)] struct X;")),
        ("client_mod_attribute", folder.builder().client_mod_attribute(".", "cfg(x)")),
        ("extern_path", folder.builder().extern_path("helloworld", "::a")),
        ("extern_path", folder.builder().extern_path(".hello..world", "::a")),
        ("extern_path", folder.builder().extern_path(".helloworld", "not a path")),
        ("extern_path", folder.builder().extern_path(".a", "::a").extern_path(".a", "::b")),
        ("runtime_path", folder.builder().runtime_path("my ringmail")),
        ("codec_path", folder.builder().codec_path("1")),
        ("skip_protoc_run", folder.builder().skip_protoc_run()),
    ];
    for (option, builder) in cases {
        let error = builder.compile_protos(&[&greeter], &[greeter.parent().unwrap()]).expect_err(option);
        assert!(
            matches!(error, BuildError::Option { option: named, .. } if named == option),
            "{option}: {error}"
        );
    }
}

#[test]
fn a_run_without_files_or_folders_says_what_is_missing() {
    let folder = Folder::new("nothing");
    let error = folder.builder().compile_protos::<&str, &str>(&[], &[]).unwrap_err();
    assert!(error.to_string().contains("compile_protos"), "{error}");
    let gone = folder.path().join("gone");
    let error = configure().emit_rerun_if_changed(false).out_dir(&gone);
    let error = error.compile_protos(&[cases().join("nopackage.proto")], &[cases()]).unwrap_err();
    assert!(matches!(&error, BuildError::File { path, .. } if path.starts_with(&gone)), "{error}");
}
