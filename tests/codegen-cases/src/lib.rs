//! The generated code of every case: compiling it, without a warning, is the first test.

pub mod codec;

/// The name under which some of the code finds the runtime.
pub use ringmail as renamed;

/// All cases, generated in one call.
#[allow(missing_docs)]
pub mod all {
    include!(concat!(env!("OUT_DIR"), "/all.rs"));
}

/// Each case, generated alone.
#[allow(missing_docs)]
pub mod alone {
    pub mod money {
        include!(concat!(env!("OUT_DIR"), "/case-0/all.rs"));
    }
    pub mod orders {
        include!(concat!(env!("OUT_DIR"), "/case-1/all.rs"));
    }
    pub mod keywords {
        include!(concat!(env!("OUT_DIR"), "/case-2/all.rs"));
    }
    pub mod nopackage {
        include!(concat!(env!("OUT_DIR"), "/case-3/all.rs"));
    }
    pub mod trees {
        include!(concat!(env!("OUT_DIR"), "/case-4/all.rs"));
    }
}

/// The bootstrap's messages, as their `.proto` file has them.
pub mod bootstrap {
    ringmail::include_proto!("ringmail.bootstrap");

    /// What reflection would serve.
    pub const DESCRIPTORS: &[u8] = ringmail::include_file_descriptor_set!("ringmail.bootstrap_descriptor");
}

/// Code generated with other options.
#[allow(missing_docs)]
pub mod options {
    /// For both worlds: with tonic's client.
    pub mod grpc {
        include!(concat!(env!("OUT_DIR"), "/grpc/all.rs"));
    }
    /// `self: Arc<Self>`, default methods, `Vec<u8>`, `BTreeMap`, and types that another run made.
    pub mod arc {
        include!(concat!(env!("OUT_DIR"), "/arc/all.rs"));
    }
    /// Well-known types as requests and responses.
    pub mod wrappers {
        include!(concat!(env!("OUT_DIR"), "/wrappers/wrappers.rs"));
    }
    /// The same, generated instead of mapped.
    pub mod own_types {
        include!(concat!(env!("OUT_DIR"), "/own-types/all.rs"));
    }
    /// Another path to the runtime, another codec, attributes.
    pub mod renamed {
        include!(concat!(env!("OUT_DIR"), "/renamed/all.rs"));
    }
}
