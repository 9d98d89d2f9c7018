//! Generates code for every case, in one call and one by one.

use std::path::Path;

const CASES: [&str; 5] = [
    "acme/common/money.proto",
    "acme/orders/orders.proto",
    "acme/type/keywords.proto",
    "nopackage.proto",
    "deep.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("../../proto/cases");
    let all: Vec<_> = CASES.iter().map(|case| root.join(case)).collect();
    ringmail_build::configure().include_file("all.rs").compile_protos(&all, &[root])?;
    for (index, case) in all.iter().enumerate() {
        let folder = Path::new(&std::env::var("OUT_DIR")?).join(format!("case-{index}"));
        std::fs::create_dir_all(&folder)?;
        ringmail_build::configure()
            .out_dir(&folder)
            .include_file("case.rs")
            .compile_protos(&[case], &[root])?;
    }
    ringmail_build::compile_protos("../../proto/ringmail/bootstrap.proto")?;
    Ok(())
}
