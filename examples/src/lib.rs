//! What the examples share: the code generated from `proto/greeter.proto`.

/// The package `helloworld`.
#[allow(missing_docs, unused_qualifications)]
pub mod helloworld {
    ringmail::include_proto!("helloworld");
}

/// The README's programs, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
