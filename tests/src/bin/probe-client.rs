//! A client of the probe service, for tests: one channel, and calls on it from as many tasks as are asked for.
//!
//! Says `link=…` when it is connected. Answers:
//!
//! - `ticks N`: makes N calls in each task, one after the other;
//! - `echoes N BYTES`: the same with a payload;
//! - `load`: calls without end, half of them pending for a minute; answers once when it is under way, and again when
//!   all of them have ended;
//! - `flood N BYTES MILLIS`: N calls at once with a payload and a time-out; how many ended how;
//! - `pause MILLIS TIMEOUT`: a call that takes so long, with a time-out; answers once when it is sent, and again when it
//!   has ended;
//! - `reconnect`: calls until a call succeeds;
//! - `rest MILLIS`: does nothing, with the runtime running;
//! - `memory`.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use ringmail::codegen::bytes::Bytes;
use ringmail::{Channel, Code, LinkKind, LinkPolicy, Request, Wait};
use ringmail_tests::options::{Runtime, link, wait};
use ringmail_tests::probe::pb::probe_client::ProbeClient;
use ringmail_tests::probe::pb::{Blob, Pause, Ticks};
use ringmail_tests::{allocations, monotonic_nanos};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

#[derive(Parser)]
struct Options {
    address: String,
    #[arg(long, value_parser = link)]
    link: LinkKind,
    #[arg(long, default_value = "adaptive", value_parser = wait)]
    wait: Wait,
    #[arg(long, value_enum, default_value = "multi")]
    runtime: Runtime,
    /// Calls at a time.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Milliseconds that connecting may take.
    #[arg(long, default_value_t = 5000)]
    connect_timeout: u64,
    /// Seconds that the server's host may be silent.
    #[arg(long, default_value_t = 20)]
    keepalive: u64,
}

/// Bytes in a message of many frames.
const LARGE: usize = 400_000;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Fallible<()> {
    let options = Options::parse();
    let runtime = options.runtime.build()?;
    let shm = if options.link == LinkKind::Shm { LinkPolicy::Require } else { LinkPolicy::Off };
    let connecting = Channel::builder(options.address.as_str())
        .wait(options.wait)
        .link(LinkKind::Shm, shm)
        .keepalive(Some(Duration::from_secs(options.keepalive)))
        .connect_timeout(Duration::from_millis(options.connect_timeout));
    let channel = runtime.block_on(connecting.connect())?;
    println!("link={}", channel.link_info());
    let client = ProbeClient::new(channel);
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["ticks", calls] => runtime.block_on(ticks(&client, options.depth, calls.parse()?))?,
            ["echoes", calls, bytes] => {
                runtime.block_on(echoes(&client, options.depth, calls.parse()?, bytes.parse()?))?;
            }
            ["flood", calls, bytes, millis] => {
                let timeout = Duration::from_millis(millis.parse()?);
                runtime.block_on(flood(&client, calls.parse()?, bytes.parse()?, timeout))?;
            }
            ["pause", millis, timeout] => {
                let timeout = Duration::from_millis(timeout.parse()?);
                runtime.block_on(pause(&client, millis.parse()?, timeout));
            }
            ["load"] => runtime.block_on(load(&client, options.depth))?,
            ["reconnect"] => runtime.block_on(reconnect(&client)),
            ["rest", millis] => {
                let rest = Duration::from_millis(millis.parse()?);
                println!("resting={}", rest.as_millis());
                runtime.block_on(async { tokio::time::sleep(rest).await });
            }
            ["memory"] => {
                let mapped = ringmail_transport::memory::mapped_bytes();
                println!("mapped={mapped} heap={}", allocations::live_bytes());
            }
            _ => return Err(format!("unknown command {line}").into()),
        }
    }
    // Whoever started this is gone.
    std::process::exit(0)
}

async fn tick(client: &ProbeClient, calls: u64) -> Result<(), ringmail::Status> {
    for count in 0..calls {
        let ticks = client.tick(Request::new(Ticks { count })).await?.into_inner();
        assert_eq!(ticks.count, count + 1);
    }
    Ok(())
}

async fn echo(client: &ProbeClient, data: &Bytes, calls: u64) -> Result<(), ringmail::Status> {
    for _ in 0..calls {
        let back = client.echo(Request::new(Blob { data: data.clone() })).await?.into_inner();
        assert_eq!(back.data, data);
    }
    Ok(())
}

async fn ticks(client: &ProbeClient, depth: usize, calls: u64) -> Fallible<()> {
    let (before, started) = (allocations::count(), Instant::now());
    if depth == 1 {
        tick(client, calls).await?;
    } else {
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { tick(&client, calls).await })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
    }
    let allocations = allocations::count() - before;
    println!("allocations={allocations} micros={}", started.elapsed().as_micros());
    Ok(())
}

async fn echoes(client: &ProbeClient, depth: usize, calls: u64, bytes: usize) -> Fallible<()> {
    let data: Bytes = (0..bytes).map(|at| (at % 251) as u8).collect();
    let started = Instant::now();
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let (client, data) = (client.clone(), data.clone());
            tokio::spawn(async move { echo(&client, &data, calls).await })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    println!("micros={}", started.elapsed().as_micros());
    Ok(())
}

async fn flood(client: &ProbeClient, calls: usize, bytes: usize, timeout: Duration) -> Fallible<()> {
    let data = Bytes::from(vec![1; bytes]);
    let started = Instant::now();
    let tasks: Vec<_> = (0..calls)
        .map(|_| {
            let (client, data) = (client.clone(), data.clone());
            tokio::spawn(async move {
                let mut request = Request::new(Blob { data });
                request.set_timeout(timeout);
                client.echo(request).await.map(|_| ()).map_err(|status| status.code())
            })
        })
        .collect();
    let (mut ok, mut late, mut other) = (0, 0, 0);
    for task in tasks {
        match task.await? {
            Ok(()) => ok += 1,
            Err(Code::DeadlineExceeded) => late += 1,
            Err(_) => other += 1,
        }
    }
    println!("ok={ok} late={late} other={other} micros={}", started.elapsed().as_micros());
    Ok(())
}

async fn pause(client: &ProbeClient, millis: u32, timeout: Duration) {
    let mut request = Request::new(Pause { millis });
    request.set_timeout(timeout);
    let started = Instant::now();
    let mut call = std::pin::pin!(client.wait(request));
    // Sent when it has been polled once.
    let early = tokio::time::timeout(Duration::from_millis(5), &mut call).await;
    println!("sent={}", early.is_err());
    let ended = match early {
        Ok(ended) => ended,
        Err(_) => call.await,
    };
    let micros = started.elapsed().as_micros();
    let (code, message) = match ended {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    };
    println!("code={code:?} micros={micros} message={message}");
}

/// Calls without end from half of the tasks; calls that take a minute from the others.
async fn load(client: &ProbeClient, depth: usize) -> Fallible<()> {
    let under_way = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            let (client, under_way) = (client.clone(), Arc::clone(&under_way));
            tokio::spawn(async move {
                let status = if task % 2 == 0 {
                    under_way.fetch_add(1, Ordering::SeqCst);
                    client.wait(Request::new(Pause { millis: 60_000 })).await.map(|_| ())
                } else {
                    // Some in one frame, some in many.
                    let data = vec![1; if task % 4 == 1 { 100 } else { LARGE }].into();
                    let first = echo(&client, &data, 1).await;
                    under_way.fetch_add(1, Ordering::SeqCst);
                    match first {
                        Ok(()) => echo(&client, &data, u64::MAX).await,
                        error => error,
                    }
                };
                (status.expect_err("the load goes on until it fails"), monotonic_nanos())
            })
        })
        .collect();
    while under_way.load(Ordering::SeqCst) < depth {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("loading={depth}");
    let (mut ended, mut unavailable, mut message) = (0, 0, String::new());
    for task in tasks {
        let (status, when) = task.await?;
        ended = ended.max(when);
        unavailable += usize::from(status.code() == Code::Unavailable);
        message = status.to_string().replace('\n', " ");
    }
    println!("ended={ended} unavailable={unavailable} message={message}");
    Ok(())
}

async fn reconnect(client: &ProbeClient) {
    let (started, mut failures) = (Instant::now(), 0);
    loop {
        match tick(client, 1).await {
            Ok(()) => break,
            Err(_) => {
                failures += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    println!(
        "failures={failures} micros={} link={}",
        started.elapsed().as_micros(),
        client.channel().link_info()
    );
}
