//! Generated code against what is checked in. After an intended change: `BLESS=1 cargo test -p ringmail-build`.

use std::path::Path;

use ringmail_build::{Builder, configure};

fn check(name: &str, builder: Builder, proto: &str, output: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = std::env::temp_dir().join(format!("ringmail-golden-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let proto = here.join("../proto").join(proto);
    builder
        .out_dir(&folder)
        .emit_rerun_if_changed(false)
        .compile_protos(&[&proto], &[proto.parent().unwrap()])
        .unwrap();
    let code = std::fs::read_to_string(folder.join(output)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let golden = here.join("tests/golden").join(format!("{name}.rs"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &code).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (line, (is, was)) in code.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, was, "{}:{}", golden.display(), line + 1);
    }
    assert_eq!(code.lines().count(), expected.lines().count(), "{}", golden.display());
}

#[test]
fn greeter() {
    check("greeter", configure(), "greeter.proto", "helloworld.rs");
}

#[test]
fn greeter_for_both_worlds_with_arc_self_and_default_stubs() {
    let builder =
        configure().build_grpc_client(true).use_arc_self(true).generate_default_stubs(true).bytes_as_vec();
    check("greeter_options", builder, "greeter.proto", "helloworld.rs");
}

#[test]
fn names_that_are_keywords_or_the_stubs_own() {
    check("keywords", configure(), "cases/acme/type/keywords.proto", "acme.r#type.rs");
}
