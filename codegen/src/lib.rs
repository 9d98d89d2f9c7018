//! ringmail-build
