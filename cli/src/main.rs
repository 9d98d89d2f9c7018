//! The `ringmail` command.
fn main() {}
