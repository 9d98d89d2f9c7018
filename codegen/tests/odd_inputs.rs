//! Whatever the files contain, the answer is code or an error that says why not; never a panic.

mod support;

use prost_types::{DescriptorProto, FileDescriptorProto};
use ringmail_build::{FileDescriptorSet, configure};
use support::{Folder, cases};

/// Each is something that the libraries below panic on, or cannot make Rust of.
const CANNOT_BE_RUST: [(&str, &str); 5] = [
    (
        "enum values whose names differ only in what Rust has no room for",
        "syntax = \"proto3\"; enum E { E_A = 0; A = 1; }",
    ),
    (
        "two services with one module",
        "syntax = \"proto3\"; message M {} service Ab { rpc A(M) returns (M); } service AB_ { rpc A(M) returns (M); }",
    ),
    (
        "two methods with one name",
        "syntax = \"proto3\"; message M {} service S { rpc GetIt(M) returns (M); rpc get_it(M) returns (M); }",
    ),
    ("a syntax nobody knows", "syntax = \"proto4\";"),
    ("an edition", "// Ours.\nedition = \"2024\";\nmessage M {}"),
];

#[test]
fn what_cannot_be_rust_is_an_error_that_names_the_items() {
    let folder = Folder::new("cannot");
    for (what, text) in CANNOT_BE_RUST {
        let error = folder.compile_text(text).expect_err(what);
        assert!(!error.to_string().is_empty());
    }
    let text = folder.compile_text(CANNOT_BE_RUST[2].1).unwrap_err().to_string();
    assert!(text.contains("GetIt") && text.contains("get_it") && text.contains("service S"), "{text}");
    let text = folder.compile_text(CANNOT_BE_RUST[0].1).unwrap_err().to_string();
    assert!(text.contains("E_A"), "{text}");
}

#[test]
fn nothing_panics_on_odd_files() {
    let folder = Folder::new("odd");
    for text in [
        "",
        "\u{feff}syntax = \"proto3\";",
        "service S {}",
        "edition",
        "/*",
        "\0",
        "syntax = \"proto2\"; message M { optional bytes b = 1 [default = \"\\x\"]; }",
    ] {
        // Either is fine.
        let _ = folder.compile_text(text);
    }
}

/// A generator of numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn nothing_panics_on_files_with_pieces_exchanged() {
    let folder = Folder::new("pieces");
    let texts: Vec<String> =
        ["acme/orders/orders.proto", "acme/type/keywords.proto", "deep.proto", "nopackage.proto"]
            .iter()
            .map(|case| std::fs::read_to_string(cases().join(case)).unwrap())
            .collect();
    let pieces: Vec<&str> =
        texts.iter().flat_map(|text| text.split_inclusive([' ', ';', '{', '}'])).collect();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..400 {
        let text = &texts[dice.below(texts.len())];
        let mut own: Vec<&str> = text.split_inclusive([' ', ';', '{', '}']).collect();
        for _ in 0..=dice.below(2) {
            let at = dice.below(own.len());
            own[at] = pieces[dice.below(pieces.len())];
        }
        match folder.compile_with(&own.concat(), &cases()) {
            Ok(()) => good += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                bad += 1;
            }
        }
    }
    assert!(good > 10 && bad > 10, "{good} files were good and {bad} were not: this tests one side only");
}

#[test]
fn nothing_panics_on_descriptors_with_bytes_exchanged() {
    use prost::Message;
    let folder = Folder::new("bytes");
    configure()
        .out_dir(folder.path())
        .emit_rerun_if_changed(false)
        .file_descriptor_set_path(folder.path().join("set.bin"))
        .compile_protos(&[cases().join("acme/type/keywords.proto")], &[cases()])
        .unwrap();
    let bytes = std::fs::read(folder.path().join("set.bin")).unwrap();
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut decoded = 0;
    for _ in 0..400 {
        let mut bytes = bytes.clone();
        for _ in 0..=dice.below(3) {
            let at = dice.below(bytes.len());
            bytes[at] = dice.below(256) as u8;
        }
        let Ok(set) = FileDescriptorSet::decode(bytes.as_slice()) else { continue };
        decoded += 1;
        if let Err(error) = configure().out_dir(folder.path()).compile_fds(set) {
            assert!(!error.to_string().is_empty());
        }
    }
    assert!(decoded > 50, "only {decoded} sets could be decoded");
}

#[test]
fn deeply_nested_messages_are_refused_with_their_place() {
    let folder = Folder::new("nested");
    let nested = |levels: usize| {
        format!("syntax = \"proto3\";\n{}{}", "message M { ".repeat(levels), "} ".repeat(levels))
    };
    folder.compile_text(&nested(32)).unwrap();
    for levels in [33, 100_000] {
        let text = folder.compile_text(&nested(levels)).unwrap_err().to_string();
        assert!(text.contains("input.proto:2:395") && text.contains("nested"), "{text}");
    }
    let nested = (0..150).fold(DescriptorProto::default(), |inner, _| DescriptorProto {
        name: Some("M".to_owned()),
        nested_type: vec![inner],
        ..DescriptorProto::default()
    });
    let file = FileDescriptorProto { message_type: vec![nested], ..FileDescriptorProto::default() };
    let error = folder.builder().compile_fds(FileDescriptorSet { file: vec![file] }).unwrap_err();
    assert!(error.to_string().contains("nested"), "{error}");
}

#[test]
fn long_chains_of_messages_are_code() {
    let folder = Folder::new("chain");
    let chain: String = (0..200).map(|n| format!("message M{n} {{ M{} next = 1; }}\n", n + 1)).collect();
    folder.compile_text(&format!("syntax = \"proto3\";\n{chain}message M200 {{}}")).unwrap();
}
