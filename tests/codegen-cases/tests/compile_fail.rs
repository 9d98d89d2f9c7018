//! Mistakes that users make, and that the compiler must explain in terms of their own code.
//!
//! Compilers word things differently from one release to the next. With the release that the expected texts are from,
//! the texts are compared; with any other it is only checked that each mistake is refused.
//! After an intended change: `TRYBUILD=overwrite cargo test -p codegen-cases --test compile_fail`.

use std::process::Command;

/// Release that `tests/fail/*.stderr` are from.
const WORDED_BY: &str = "rustc 1.95.";

#[test]
fn mistakes_are_explained() {
    let version = Command::new("rustc").arg("--version").output().expect("rustc runs");
    if String::from_utf8_lossy(&version.stdout).starts_with(WORDED_BY) {
        return trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fail");
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir("tests/fail").unwrap().flatten().map(|entry| entry.path()) {
        if file.extension().is_some_and(|extension| extension == "rs") {
            std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
        }
    }
    // SAFETY: nothing else runs in this process that reads or writes the environment.
    unsafe { std::env::set_var("TRYBUILD", "overwrite") };
    trybuild::TestCases::new().compile_fail(folder.join("*.rs"));
}
