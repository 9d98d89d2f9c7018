//! What the examples share: the code generated from `proto/greeter.proto`.

/// The package `helloworld`.
#[allow(missing_docs, unused_qualifications)]
pub mod helloworld {
    ringmail::include_proto!("helloworld");
}
