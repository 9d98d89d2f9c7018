//! A service that lacks a method.

use codegen_cases::all::root_server::Root;

struct Heart;

#[ringmail::async_trait]
impl Root for Heart {}

fn main() {}
