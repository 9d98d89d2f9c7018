//! ringmail-tests
