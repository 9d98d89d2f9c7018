//! Generates code for every case, in one call and one by one, and with options.

use std::path::{Path, PathBuf};

use ringmail_build::{BuildError, Builder, configure};

const CASES: [&str; 5] = [
    "acme/common/money.proto",
    "acme/orders/orders.proto",
    "acme/type/keywords.proto",
    "nopackage.proto",
    "deep.proto",
];

/// Compiles into a folder of its own.
fn compile(folder: &str, builder: Builder, proto: &str, root: &str) -> Result<(), BuildError> {
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").ok_or(BuildError::NoOutDir)?).join(folder);
    std::fs::create_dir_all(&folder).map_err(|source| BuildError::File { path: folder.clone(), source })?;
    builder.out_dir(folder).include_file("all.rs").compile_protos(&[Path::new(root).join(proto)], &[root])
}

fn main() -> Result<(), BuildError> {
    let root = "../../proto/cases";
    configure()
        .include_file("all.rs")
        .compile_protos(&CASES.map(|case| Path::new(root).join(case)), &[root])?;
    for (index, case) in CASES.iter().enumerate() {
        compile(&format!("case-{index}"), configure(), case, root)?;
    }
    ringmail_build::compile_protos("../../proto/ringmail/bootstrap.proto")?;

    let grpc = configure().build_grpc_client(true).build_transport(true);
    compile("grpc", grpc, "greeter.proto", "../../proto")?;
    let arc = configure()
        .use_arc_self(true)
        .generate_default_stubs(true)
        .bytes_as_vec()
        .btree_map(".")
        .extern_path(".acme.common", "crate::all::acme::common");
    compile("arc", arc, "acme/orders/orders.proto", root)?;
    compile("wrappers", configure(), "wrappers.proto", "proto")?;
    let own_types = configure().compile_well_known_types(true).build_grpc_client(true);
    compile("own-types", own_types, "wrappers.proto", "proto")?;
    let renamed = configure()
        .runtime_path("crate::renamed")
        .codec_path("crate::codec::Noted")
        .emit_package(false)
        .message_attribute("Beat", "#[derive(::core::cmp::PartialOrd)]")
        .client_attribute("Root", "#[doc(alias = \"heart\")]");
    compile("renamed", renamed, "nopackage.proto", root)?;
    Ok(())
}
