//! `ringmail devices`: the RDMA devices of this machine, and which GID an address would use.

mod json;
mod text;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ringmail::fabric::{Choice, Fabric, Fact, Local, choose};

use crate::page::{self, Page};

/// Options of `ringmail devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also says which GID connections from this local address use, and why not the others.
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Reads /sys and /dev below this folder, such as those of another machine that were copied.
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

/// Lists them.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let fabric = Fabric::read(&options.root);
    let choice = options.address.map(|address| choose(&fabric, Some(&local(address, &options.root))));
    page::print(&render(&fabric, choice.as_ref(), options.json))
}

fn render(fabric: &Fabric, choice: Option<&Choice>, json: bool) -> String {
    if json { json::render(fabric, choice) } else { text::render(fabric, choice, Page::of_output()) }
}

/// Which interface has an address is not in sysfs, so that a copy does not tell.
fn local(address: IpAddr, root: &Path) -> Local {
    if root == Path::new("/") {
        return Local::of_this_host(address);
    }
    let interface = Fact::Unreadable("it is not in /sys, and so not in a copy of it".to_owned());
    Local { address: address.to_canonical(), interface }
}
