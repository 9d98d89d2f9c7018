//! Making calls for a while and counting what they take.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringmail::codegen::bytes::Bytes;

use super::DemoError;
use super::echo::{Target, pb::Payload};
use super::patience::within;
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
    let callers: Vec<_> =
        (0..cell.depth).map(|caller| tokio::spawn(call_until(*cell, caller, target.clone(), end))).collect();
    let mut all = histogram();
    for caller in callers {
        let latency = caller.await.map_err(|error| failed(cell, error.to_string()))??;
        all.add(latency).map_err(|error| failed(cell, error.to_string()))?;
    }
    Ok(all)
}

async fn call_until(
    cell: Cell,
    caller: usize,
    mut target: Target,
    end: Instant,
) -> Result<Histogram<u64>, DemoError> {
    let data = payload(cell.payload, caller);
    let calls = async {
        let mut latency = histogram();
        let mut before = Instant::now();
        // At least one, however slow the machine.
        loop {
            let reply = target
                .echo(Payload { data: data.clone() })
                .await
                .map_err(|s| failed(&cell, s.to_string()))?;
            let now = Instant::now();
            if !is_echo(&data, &reply.data) {
                return Err(failed(&cell, "the reply differs from the request".to_owned()));
            }
            latency.saturating_record(u64::try_from((now - before).as_nanos()).unwrap_or(LONGEST));
            if now >= end {
                return Ok(latency);
            }
            before = now;
        }
    };
    let bound = end.saturating_duration_since(Instant::now()) + CALL_TIMEOUT;
    let silence = || failed(&cell, format!("no reply within {CALL_TIMEOUT:?}"));
    within(bound, calls).await.unwrap_or_else(|| Err(silence()))
}

/// What a caller sends: its number first and, inverted, last, so that a reply meant for another caller is noticed.
fn payload(size: usize, caller: usize) -> Bytes {
    let mut data: Vec<u8> = (0..size).map(|at| at as u8).collect();
    if let [first, .., last] = data.as_mut_slice() {
        (*first, *last) = (caller as u8, !(caller as u8));
    }
    data.into()
}

/// Compares length and ends only: comparing all of a large message would be measured as well.
fn is_echo(sent: &[u8], reply: &[u8]) -> bool {
    (reply.len(), reply.first(), reply.last()) == (sent.len(), sent.first(), sent.last())
}

fn failed(cell: &Cell, reason: String) -> DemoError {
    DemoError::Call { link: cell.link, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_short_torn_or_for_another_caller_is_no_echo() {
        let sent = payload(32, 5);
        assert!(is_echo(&sent, &payload(32, 5)));
        assert!(!is_echo(&sent, &payload(32, 6)));
        assert!(!is_echo(&sent, &sent[..31]));
        let torn = [&sent[..31], &[0][..]].concat();
        assert!(!is_echo(&sent, &torn));
    }
}
