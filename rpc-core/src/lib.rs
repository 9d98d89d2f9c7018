//! ringmail
