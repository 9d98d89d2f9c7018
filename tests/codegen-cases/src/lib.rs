//! The generated code of every case: compiling it, without a warning, is the first test.

#![allow(missing_docs, unreachable_pub, unused_qualifications)]

/// All cases, generated in one call.
pub mod all {
    include!(concat!(env!("OUT_DIR"), "/all.rs"));
}

/// Each case, generated alone.
#[allow(clippy::module_inception)]
pub mod alone {
    pub mod money {
        include!(concat!(env!("OUT_DIR"), "/case-0/case.rs"));
    }
    pub mod orders {
        include!(concat!(env!("OUT_DIR"), "/case-1/case.rs"));
    }
    pub mod keywords {
        include!(concat!(env!("OUT_DIR"), "/case-2/case.rs"));
    }
    pub mod nopackage {
        include!(concat!(env!("OUT_DIR"), "/case-3/case.rs"));
    }
    pub mod deep {
        include!(concat!(env!("OUT_DIR"), "/case-4/case.rs"));
    }
}

/// The bootstrap's messages, as their `.proto` file has them.
pub mod bootstrap {
    ringmail::include_proto!("ringmail.bootstrap");
}
