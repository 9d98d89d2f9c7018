//! ringmail-benches
