//! `ringmail demo`: real calls to a real server process over every link, beside gRPC.
//!
//! All combinations of link, waiting mode, payload and depth are measured in turn, a slice each, and that several
//! times over (A B C A B C …), so that what disturbs the machine disturbs all of them alike. A figure is taken from
//! all slices of its combination together.

mod absent;
mod echo;
mod measure;
mod output;
mod patience;
mod plan;
mod report;
mod server;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ringmail::Wait;

use self::echo::Target;
use self::measure::Sample;
use self::output::Output;
use self::plan::{Cell, Link};
use self::server::ServerProcess;
pub(crate) use self::server::{SERVER, ServerOptions, serve};
use crate::page;

/// Options of `ringmail demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seconds to measure, in all.
    #[arg(long, default_value_t = 40.0, value_parser = seconds)]
    seconds: f64,
    /// Only a few seconds, to see that everything works; the figures mean little.
    #[arg(long)]
    quick: bool,
    /// Only this link, and gRPC to compare with.
    #[arg(long, value_enum)]
    only: Option<Link>,
    /// Where the server listens. Default: an address of an RDMA device if there is one, else 127.0.0.1.
    #[arg(long)]
    address: Option<IpAddr>,
    /// Large messages over RDMA in fragments, not read by RDMA READ: to see what that brings.
    #[arg(long)]
    no_rdma_reads: bool,
    /// Also writes the rows to this file, as JSON. What it held before stays until then.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1.0..=3600.0).contains(&value) { Ok(value) } else { Err("must be from 1 to 3600".to_owned()) }
}

/// Why the demo did not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// The runtime could not be made.
    #[error("cannot start the async runtime: {0}")]
    Runtime(std::io::Error),
    /// The server process failed.
    #[error("the server process failed: {0}")]
    Server(String),
    /// A target could not be connected to.
    #[error("cannot connect over {link}: {reason}")]
    Connect {
        /// The link.
        link: Link,
        /// Why.
        reason: String,
    },
    /// A call failed or came back wrong.
    #[error("a call over {link} failed: {reason}")]
    Call {
        /// The link.
        link: Link,
        /// Why.
        reason: String,
    },
    /// The table could not be printed.
    #[error("cannot print the table: {0}")]
    Print(std::io::Error),
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Times over that all combinations are measured.
const ROUNDS: u32 = 3;
/// Seconds in all with `--quick`.
const QUICK: f64 = 4.0;

/// Runs the demo.
pub(crate) fn run(options: &Options) -> Result<(), DemoError> {
    let failed = |source| DemoError::Write { path: options.json.clone().unwrap_or_default(), source };
    // Before minutes are spent: whether the file can be written.
    let output = options.json.as_deref().map(Output::prepare).transpose().map_err(failed)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(DemoError::Runtime)?;
    let device = device_address(options.address);
    let cells = plan::cells(options.only, device.is_some());
    if options.only == Some(Link::Rdma) && device.is_none() {
        return Err(DemoError::Connect { link: Link::Rdma, reason: absent::rdma_reason() });
    }
    let address = device.or(options.address).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let (measured, refused) = runtime.block_on(measure_all(cells, address, options))?;
    let rows = report::rows(&measured);
    // Those that this process may use, of all that there are.
    let processors = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    let mut notes: Vec<_> = report::caveat(processors, &rows).into_iter().collect();
    notes.extend(absent::lines(options.only, device.is_some(), &refused));
    page::print(&report::table(&rows, &notes)).map_err(DemoError::Print)?;
    output.map_or(Ok(()), |output| output.write(&report::json(&rows))).map_err(failed)
}

/// An address of an RDMA device, the wanted one if any is.
fn device_address(wanted: Option<IpAddr>) -> Option<IpAddr> {
    #[cfg(feature = "rdma")]
    let addresses = ringmail::rdma::local_addresses();
    #[cfg(not(feature = "rdma"))]
    let addresses: [(IpAddr, String); 0] = [];
    let mut addresses = addresses.into_iter().map(|(address, _)| address);
    addresses.find(|address| wanted.is_none_or(|wanted| wanted == *address))
}

/// A link that cannot be used here, and why.
type Refused = (Link, String);

async fn measure_all(
    mut cells: Vec<Cell>,
    address: IpAddr,
    options: &Options,
) -> Result<(Vec<(Cell, Sample)>, Vec<Refused>), DemoError> {
    let mut servers = Vec::new();
    for wait in plan::waits(&cells) {
        servers.push((wait, ServerProcess::start(wait, address).await?));
    }
    let reads = !options.no_rdma_reads;
    let refused = refused(&cells, &servers, reads).await?;
    cells.retain(|cell| refused.iter().all(|(link, _)| *link != cell.link));
    let seconds = if options.quick { QUICK } else { options.seconds };
    let rounds = if options.quick { 1 } else { ROUNDS };
    let slice = Duration::from_secs_f64(seconds / f64::from(rounds) / cells.len() as f64);
    let progress = progress(u64::from(rounds) * cells.len() as u64);
    let mut measured: Vec<_> = cells.into_iter().map(|cell| (cell, Sample::new())).collect();
    for _ in 0..rounds {
        for (cell, sample) in &mut measured {
            progress.set_message(cell.to_string());
            let server = servers.iter_mut().find(|(wait, _)| *wait == cell.server_wait());
            let Some((_, server)) = server else { continue };
            // Not kept between slices: an idle connection in busy mode takes a processor from the others.
            let target = Target::connect(cell, server, reads).await?;
            measure::slice(cell, &target, server, slice, sample).await?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    for (_, server) in servers {
        server.stop().await?;
    }
    Ok((measured, refused))
}

/// Connects once over each link. One that this machine refuses is left out; without gRPC, or with gRPC alone, there is
/// nothing to compare.
async fn refused(
    cells: &[Cell],
    servers: &[(Wait, ServerProcess)],
    reads: bool,
) -> Result<Vec<Refused>, DemoError> {
    let links = plan::links(cells);
    let mut refused = Vec::new();
    for link in &links {
        let Some(cell) = cells.iter().find(|cell| cell.link == *link) else { continue };
        let Some((_, server)) = servers.iter().find(|(wait, _)| *wait == cell.server_wait()) else {
            continue;
        };
        match Target::connect(cell, server, reads).await {
            Err(DemoError::Connect { link, reason }) if link != Link::Grpc => refused.push((link, reason)),
            other => drop(other?),
        }
    }
    if !refused.is_empty() && refused.len() + 1 >= links.len() {
        let (link, reason) = refused.swap_remove(0);
        return Err(DemoError::Connect { link, reason });
    }
    Ok(refused)
}

/// A bar on a terminal, nothing elsewhere.
fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left  {wide_msg}");
    let bar = ProgressBar::new(steps);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
