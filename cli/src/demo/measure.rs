//! Making calls for a while and counting what they take.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringmail::codegen::bytes::Bytes;

use super::DemoError;
use super::echo::{Target, pb::Payload};
use super::plan::Cell;
use super::server::{ServerProcess, processor_micros};

/// Longest latency that can be recorded, in ns.
const LONGEST: u64 = 60_000_000_000;
/// Part of a slice that warms up and is not recorded.
const WARM_UP: f64 = 0.15;
/// Bound on one call: a hang is a failure, not a slow demo.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// All slices of one combination together.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Latencies in ns.
    pub(crate) latency: Histogram<u64>,
    /// Time measured.
    pub(crate) elapsed: Duration,
    /// Processor time of both processes, in µs.
    pub(crate) processor_micros: u64,
}

impl Sample {
    pub(crate) fn new() -> Self {
        Self { latency: histogram(), elapsed: Duration::ZERO, processor_micros: 0 }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("constant bounds are valid")
}

/// Measures one slice.
pub(crate) async fn slice(
    cell: &Cell,
    target: &Target,
    server: &mut ServerProcess,
    time: Duration,
    sample: &mut Sample,
) -> Result<(), DemoError> {
    run(cell, target, time.mul_f64(WARM_UP)).await?;
    let (ours, theirs) = (processor_micros(), server.processor_micros().await?);
    let started = Instant::now();
    let latency = run(cell, target, time.mul_f64(1.0 - WARM_UP)).await?;
    sample.elapsed += started.elapsed();
    let (ours_now, theirs_now) = (processor_micros(), server.processor_micros().await?);
    sample.processor_micros += (ours_now - ours) + (theirs_now - theirs);
    sample.latency.add(latency).map_err(|error| failed(cell, error.to_string()))
}

/// Keeps `depth` calls in flight until the time is up.
async fn run(cell: &Cell, target: &Target, time: Duration) -> Result<Histogram<u64>, DemoError> {
    let end = Instant::now() + time;
    // On the runtime's own threads, as services make their calls.
    let callers: Vec<_> = (0..cell.depth)
        .map(|_| {
            let (cell, target) = (*cell, target.clone());
            tokio::spawn(async move { call_until(cell, target, end).await })
        })
        .collect();
    let mut all = histogram();
    for caller in callers {
        let latency = caller.await.map_err(|error| failed(cell, error.to_string()))??;
        all.add(latency).map_err(|error| failed(cell, error.to_string()))?;
    }
    Ok(all)
}

async fn call_until(cell: Cell, mut target: Target, end: Instant) -> Result<Histogram<u64>, DemoError> {
    let mut latency = histogram();
    let data: Bytes = (0..cell.payload).map(|at| at as u8).collect();
    let calls = async {
        let mut before = Instant::now();
        // At least one, however slow the machine.
        loop {
            let reply = target
                .echo(Payload { data: data.clone() })
                .await
                .map_err(|s| failed(&cell, s.to_string()))?;
            let now = Instant::now();
            if reply.data.len() != data.len() || reply.data.last() != data.last() {
                return Err(failed(&cell, "the reply differs from the request".to_owned()));
            }
            latency.saturating_record(u64::try_from((now - before).as_nanos()).unwrap_or(LONGEST));
            if now >= end {
                return Ok(());
            }
            before = now;
        }
    };
    let bound = end.saturating_duration_since(Instant::now()) + CALL_TIMEOUT;
    match tokio::time::timeout(bound, calls).await {
        Ok(result) => result.map(|()| latency),
        Err(_) => Err(failed(&cell, format!("no reply within {CALL_TIMEOUT:?}"))),
    }
}

fn failed(cell: &Cell, reason: String) -> DemoError {
    DemoError::Call { link: cell.link, reason }
}
