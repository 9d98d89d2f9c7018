//! ringmail-examples
