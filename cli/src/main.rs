//! The `ringmail` command.

#![allow(clippy::print_stdout, clippy::print_stderr)] // A command speaks to people.

mod demo;
mod devices;
mod page;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// RPC for Rust services over RDMA, shared memory and TCP.
#[derive(Debug, Parser)]
#[command(name = "ringmail", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Calls a real server over every link that this machine has, beside gRPC, and prints what each takes.
    Demo(demo::Options),
    /// Lists this machine's RDMA devices, their ports and GIDs, and which GID an address would use.
    Devices(devices::Options),
    /// Prints the version.
    Version,
}

fn run() -> Result<(), String> {
    // No subcommand, not even a hidden one: those are suggested to whoever mistypes another.
    let arguments = || std::env::args_os().skip(1);
    if arguments().next().is_some_and(|first| first == demo::SERVER) {
        let options = demo::ServerOptions::parse_from(arguments());
        return demo::serve(&options).map_err(|error| error.to_string());
    }
    match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options).map_err(|error| error.to_string()),
        Command::Devices(options) => {
            devices::run(&options).map_err(|error| format!("cannot print the devices: {error}"))
        }
        Command::Version => {
            print!("{}", Arguments::command().render_version());
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringmail: {error}");
            ExitCode::FAILURE
        }
    }
}
