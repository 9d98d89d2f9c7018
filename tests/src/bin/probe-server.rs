//! A server of the probe service, for tests.
//!
//! Says `address=…` when it listens. Answers `memory`, `allocations` and `waiting`; `stop` begins a graceful shutdown, at
//! the end of which it ends.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use clap::Parser;
use ringmail::{BoundServer, LinkKind, LinkPolicy, ServeError, Server, Wait};
use ringmail_tests::options::{Runtime, wait};
use ringmail_tests::probe::Prober;
use ringmail_tests::probe::pb::probe_server::ProbeServer;
use ringmail_tests::{allocations, probe};
use rustix::process::{Resource, Rlimit};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    #[arg(long, default_value = "adaptive", value_parser = wait)]
    wait: Wait,
    #[arg(long, value_enum, default_value = "multi")]
    runtime: Runtime,
    /// Refuses shared memory.
    #[arg(long)]
    no_shm: bool,
    #[arg(long)]
    lanes: Option<usize>,
    /// Seconds that a client's host may be silent.
    #[arg(long, default_value_t = 20)]
    keepalive: u64,
    /// Most descriptors that the process may have open.
    #[arg(long)]
    files: Option<u64>,
}

/// A port is not free before all that the last server had there is gone.
const PORT_PATIENCE: Duration = Duration::from_secs(3);

async fn bind(options: &Options) -> Result<BoundServer, ServeError> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        let mut server = Server::builder()
            .add_service(ProbeServer::new(Prober))
            .wait(options.wait)
            .keepalive(Some(Duration::from_secs(options.keepalive)))
            .link(LinkKind::Shm, if options.no_shm { LinkPolicy::Off } else { LinkPolicy::Prefer })
            .listen(options.listen.as_str());
        if let Some(lanes) = options.lanes {
            server = server.lanes(lanes);
        }
        match server.bind().await {
            Err(ServeError::Listen { .. }) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other => return other,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    if let Some(files) = options.files {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        rustix::process::setrlimit(Resource::Nofile, limit)?;
    }
    let runtime = options.runtime.build()?;
    let bound = runtime.block_on(bind(&options))?;
    println!("address={}", bound.local_addr());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let served = runtime.block_on(bound.serve_with_shutdown(async {
            // The sender gone means that the whole program is about to be.
            let _ = stopped.await;
        }));
        drop(runtime);
        std::process::exit(if served.is_ok() { 0 } else { 1 });
    });
    let mut stop = Some(stop);
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "memory" => {
                let mapped = ringmail_transport::memory::mapped_bytes();
                println!("mapped={mapped} heap={}", allocations::live_bytes());
            }
            "allocations" => println!("allocations={}", allocations::count()),
            "waiting" => {
                let (waiting, since) = probe::waiting();
                println!("waiting={waiting} since={since}");
            }
            "stop" => {
                if let Some(stop) = stop.take() {
                    let _ = stop.send(());
                }
            }
            other => return Err(format!("unknown command {other}").into()),
        }
    }
    // Whoever started this is gone.
    std::process::exit(0)
}
