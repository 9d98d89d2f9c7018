//! The table and the JSON.

use std::fmt::Write;
use std::io::IsTerminal;

use serde::Serialize;

use super::measure::Sample;
use super::plan::{Cell, Link, bytes};

/// Figures of one combination.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    link: &'static str,
    mode: &'static str,
    payload_bytes: usize,
    depth: usize,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    calls_per_s: f64,
    cpu_us_per_call: f64,
}

/// One row a cell, in the same order.
pub(crate) fn rows(cells: &[Cell], samples: &[Sample]) -> Vec<Row> {
    cells
        .iter()
        .zip(samples)
        .map(|(cell, sample)| {
            let calls = sample.latency.len().max(1) as f64;
            let micros = |quantile| sample.latency.value_at_quantile(quantile) as f64 / 1000.0;
            Row {
                link: cell.link.name(),
                mode: cell.mode(),
                payload_bytes: cell.payload,
                depth: cell.depth,
                p50_us: micros(0.5),
                p99_us: micros(0.99),
                p999_us: micros(0.999),
                calls_per_s: calls / sample.elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
                cpu_us_per_call: sample.processor_micros as f64 / calls,
            }
        })
        .collect()
}

/// The document that `--json` writes.
pub(crate) fn json(rows: &[Row]) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        rows: &'a [Row],
    }
    let mut text = serde_json::to_string_pretty(&Document { rows }).expect("rows are plain numbers and text");
    text.push('\n');
    text
}

/// How many times better than gRPC: in p50 at depth 1, in calls per second at larger depths.
fn ratio(row: &Row, rows: &[Row]) -> Option<f64> {
    let grpc = rows.iter().find(|other| {
        other.link == Link::Grpc.name()
            && (other.payload_bytes, other.depth) == (row.payload_bytes, row.depth)
    })?;
    Some(if row.depth == 1 { grpc.p50_us / row.p50_us } else { row.calls_per_s / grpc.calls_per_s })
}

/// The table, 78 columns wide.
pub(crate) fn table(rows: &[Row]) -> String {
    let colour =
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    render(rows, colour)
}

fn render(rows: &[Row], colour: bool) -> String {
    let paint = |code: &str, text: &str| {
        if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut put = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    put(paint(
        "1",
        &format!(
            "{:<5} {:<8} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} {:>8}",
            "link", "mode", "payload", "depth", "p50 µs", "p99 µs", "p99.9 µs", "calls/s", "vs gRPC"
        ),
    ));
    let mut load = None;
    for row in rows {
        if load.is_some_and(|load| load != (row.payload_bytes, row.depth)) {
            put(String::new());
        }
        load = Some((row.payload_bytes, row.depth));
        let ratio = ratio(row, rows).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}×"));
        let line = format!(
            "{:<5} {:<8} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} ",
            row.link,
            row.mode,
            bytes(row.payload_bytes),
            row.depth,
            micros(row.p50_us),
            micros(row.p99_us),
            micros(row.p999_us),
            thousands(row.calls_per_s),
        );
        let ratio = format!("{ratio:>8}");
        let grpc = row.link == Link::Grpc.name();
        put(if grpc {
            paint("2", &format!("{line}{ratio}"))
        } else {
            format!("{line}{}", paint("32", &ratio))
        });
    }
    put(String::new());
    put("vs gRPC: at depth 1 gRPC's p50 over the row's, beyond that the row's calls/s".to_owned());
    put("over gRPC's. gRPC: tonic over loopback TCP, no-delay on both sides. Client and".to_owned());
    put("server are processes of their own, one connection, slices interleaved.".to_owned());
    text
}

/// Microseconds with as many digits as mean something.
fn micros(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(link: &'static str, depth: usize, p50_us: f64, calls_per_s: f64) -> Row {
        Row {
            link,
            mode: "-",
            payload_bytes: 1_048_576,
            depth,
            p50_us,
            p99_us: 123_456.0,
            p999_us: 1_234_567.0,
            calls_per_s,
            cpu_us_per_call: 1.0,
        }
    }

    #[test]
    fn lines_fit_eighty_columns_with_and_without_colour() {
        let rows = [row("shm", 64, 1.5, 1_234_567.0), row("grpc", 64, 150.0, 1000.0)];
        for line in render(&rows, false).lines() {
            assert!(line.chars().count() <= 80, "{} {line}", line.chars().count());
        }
        assert!(render(&rows, true).contains("\x1b[32m"));
        assert!(!render(&rows, false).contains('\x1b'));
    }

    #[test]
    fn the_ratio_is_of_latency_at_depth_one_and_of_throughput_beyond() {
        let rows = [
            row("shm", 1, 2.0, 1.0),
            row("grpc", 1, 100.0, 1.0),
            row("tcp", 64, 9.0, 50.0),
            row("grpc", 64, 1.0, 10.0),
        ];
        assert_eq!(ratio(&rows[0], &rows), Some(50.0));
        assert_eq!(ratio(&rows[2], &rows), Some(5.0));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(12.0), "12");
        assert_eq!(micros(1.234), "1.23");
        assert_eq!(micros(1234.5), "1,234");
    }
}
