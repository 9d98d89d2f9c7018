//! What is written, where, and from which descriptors.

mod support;

use prost::Message;
use ringmail_build::FileDescriptorSet;
use support::{Folder, cases};

#[test]
fn messages_alone_make_no_stubs() {
    let folder = Folder::new("money");
    folder.compile(&cases().join("acme/common/money.proto")).unwrap();
    let code = folder.read("acme.common.rs");
    assert!(
        code.contains("struct Money") && !code.contains("_client") && !code.contains("_server"),
        "{code}"
    );
}

#[test]
fn the_descriptor_set_is_named_after_the_package_and_complete() {
    let folder = Folder::new("descriptors");
    let orders = cases().join("acme/orders/orders.proto");
    folder.builder().compile_protos(&[&orders], &[cases()]).unwrap();
    let set = std::fs::read(folder.path().join("acme.orders.v1_descriptor.bin")).unwrap();
    let set = FileDescriptorSet::decode(set.as_slice()).unwrap();
    let names: Vec<_> = set.file.iter().map(|file| file.name()).collect();
    for name in ["acme/orders/orders.proto", "acme/common/money.proto", "google/protobuf/any.proto"] {
        assert!(names.contains(&name), "{names:?}");
    }
    folder.compile(&cases().join("nopackage.proto")).unwrap();
    assert!(folder.path().join("nopackage_descriptor.bin").exists());
}

#[test]
fn custom_options_stay_in_the_descriptor_set() {
    let folder = Folder::new("custom");
    let text = "syntax = \"proto3\"; import \"google/protobuf/descriptor.proto\";
        extend google.protobuf.MessageOptions { string owner = 50001; }
        message M { option (owner) = \"the team of the ledger\"; }";
    folder.compile_text(text).unwrap();
    let set = std::fs::read(folder.path().join("input_descriptor.bin")).unwrap();
    let owner = b"the team of the ledger";
    assert!(set.windows(owner.len()).any(|window| window == owner));
}

#[test]
fn a_ready_descriptor_set_gives_the_same_code_as_its_files() {
    let folder = Folder::new("ready");
    let keywords = cases().join("acme/type/keywords.proto");
    let set = folder.path().join("set.bin");
    folder.builder().file_descriptor_set_path(&set).compile_protos(&[&keywords], &[cases()]).unwrap();
    let from_files = folder.read("acme.r#type.rs");

    let again = Folder::new("ready-skip");
    again
        .builder()
        .skip_protoc_run()
        .file_descriptor_set_path(&set)
        .compile_protos(&["need not exist.proto"], &[] as &[&str])
        .unwrap();
    assert_eq!(again.read("acme.r#type.rs"), from_files);

    let again = Folder::new("ready-fds");
    let set = FileDescriptorSet::decode(std::fs::read(&set).unwrap().as_slice()).unwrap();
    again.builder().compile_fds(set).unwrap();
    assert_eq!(again.read("acme.r#type.rs"), from_files);
}

#[test]
fn nothing_is_written_again_that_did_not_change() {
    let folder = Folder::new("unchanged");
    let files = ["_.rs", "nopackage_descriptor.bin"].map(|file| folder.path().join(file));
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    folder.compile(&cases().join("nopackage.proto")).unwrap();
    for file in &files {
        std::fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    folder.compile(&cases().join("nopackage.proto")).unwrap();
    for file in &files {
        assert_eq!(std::fs::metadata(file).unwrap().modified().unwrap(), long_ago, "{}", file.display());
    }
}

#[test]
fn options_hold_where_their_paths_say() {
    let folder = Folder::new("paths");
    let text = "syntax = \"proto3\"; package a.b;
        // About the message.
        message M { bytes raw = 1; bytes kept = 2; map<string, string> sorted = 3; }
        // About the client.
        service ClientManager {
          // About the method.
          rpc Get(M) returns (M);
        }
        service Other { rpc Get(M) returns (M); }";
    let builder = folder
        .builder()
        .build_grpc_client(true)
        .bytes(".a.b.M.raw")
        .btree_map("sorted")
        .client_attribute("ClientManager", "#[doc(alias = \"one\")]")
        .server_attribute(".a.b.Other", "#[doc(alias = \"two\")]")
        .trait_attribute("Other", "#[doc(alias = \"three\")]")
        .client_mod_attribute("a.b", "#[cfg(feature = \"client\")]")
        .server_mod_attribute(".c", "#[cfg(feature = \"never\")]")
        .disable_comments(["a.b.ClientManager.Get", ".a.b.M"]);
    folder.compile_options(builder, text, folder.path()).unwrap();
    let code = folder.read("a.b.rs");
    let count = |what: &str| code.matches(what).count();
    assert!(code.contains("pub raw: ::ringmail::codegen::prost::bytes::Bytes"), "{code}");
    assert!(code.contains("pub kept: ::ringmail::codegen::prost::alloc::vec::Vec<u8>"), "{code}");
    assert!(code.contains("pub sorted: ::ringmail::codegen::prost::alloc::collections::BTreeMap"), "{code}");
    // tonic's client of the same name and ours.
    assert!(
        code.contains("pub mod client_manager_client") && code.contains("pub mod client_manager_grpc_client")
    );
    assert_eq!(["one", "two", "three"].map(|alias| count(&format!("alias = \"{alias}\""))), [2, 1, 1]);
    assert_eq!([count("cfg(feature = \"client\")"), count("never")], [4, 0]);
    assert!(count("About the client.") >= 2, "{code}");
    assert_eq!([count("About the method."), count("About the message.")], [0, 0]);
}

#[test]
fn comments_are_documentation_and_never_code() {
    let folder = Folder::new("comments");
    let text = "syntax = \"proto3\";
        //     indented = as(code);
        //
        // ```
        // fenced = as(code);
        // ```
        message M {}
        //     indented = as(code);
        service S { rpc Get(M) returns (M); }";
    folder.compile_text(text).unwrap();
    let code = folder.read("_.rs");
    assert!(code.contains("```text") && code.contains("indented = as(code);"), "{code}");
    let documentation = code.lines().filter_map(|line| line.trim_start().strip_prefix("///"));
    let deepest = documentation.map(|line| line.len() - line.trim_start().len()).max();
    assert!(deepest.is_some_and(|spaces| spaces <= 4), "{code}");
}

#[test]
fn packages_may_be_left_out_of_paths() {
    let folder = Folder::new("emit");
    let text = "syntax = \"proto3\"; package a; message M {} service S { rpc Get(M) returns (M); }";
    folder.compile_options(folder.builder().emit_package(false), text, folder.path()).unwrap();
    let code = folder.read("a.rs");
    assert!(code.contains("\"/S/Get\"") && !code.contains("a.S"), "{code}");
}
