//! ringmail-transport
