//! The table and the JSON.

use ringmail::Wait;
use serde::Serialize;

use super::measure::Sample;
use super::plan::{Cell, Link, bytes, wait_name};
use crate::page::Page;

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
    /// How many calls the figures are of.
    #[serde(skip)]
    calls: u64,
}

/// One row a cell, in the same order.
pub(crate) fn rows(measured: &[(Cell, Sample)]) -> Vec<Row> {
    measured
        .iter()
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
                calls: sample.latency.len(),
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

/// Fewer calls than this say nothing about one in a thousand; the table then has no p99.9. (The JSON always has it.)
const CALLS_FOR_P999: u64 = 1000;
/// The table's width without and with the column of processor time.
const NARROW: usize = 78;
const WIDE: usize = NARROW + 10;
fn is_wide(page: Page) -> bool {
    page.columns >= WIDE
}

/// What to make of the figures on this many processors, if that differs from what they usually say.
pub(crate) fn caveat(processors: usize, rows: &[Row]) -> Option<String> {
    let spin = [Wait::Busy, Wait::Adaptive].map(wait_name);
    (processors == 1 && rows.iter().any(|row| spin.contains(&row.mode))).then(|| {
        "One processor only, which client and server use in turns: the figures of busy and adaptive mean little here."
            .to_owned()
    })
}

/// The table, what its figures mean, and notes, for standard output.
pub(crate) fn table(rows: &[Row], notes: &[String]) -> String {
    render(rows, notes, Page::of_output())
}

fn render(rows: &[Row], notes: &[String], page: Page) -> String {
    let cpu = |text: &str| if is_wide(page) { format!("{text:>9} ") } else { String::new() };
    let heading = format!(
        "{:<5} {:<8} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} {}{:>8}",
        "link",
        "mode",
        "payload",
        "depth",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "calls/s",
        cpu("cpu µs"),
        "vs gRPC"
    );
    let mut lines = vec![page.paint("1", &heading)];
    let mut load = None;
    for row in rows {
        if load.is_some_and(|load| load != (row.payload_bytes, row.depth)) {
            lines.push(String::new());
        }
        load = Some((row.payload_bytes, row.depth));
        let p999 = if row.calls < CALLS_FOR_P999 { "-".to_owned() } else { micros(row.p999_us) };
        let figures = format!(
            "{:<5} {:<8} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} {}",
            row.link,
            row.mode,
            bytes(row.payload_bytes),
            row.depth,
            micros(row.p50_us),
            micros(row.p99_us),
            p999,
            thousands(row.calls_per_s),
            cpu(&micros(row.cpu_us_per_call)),
        );
        let ratio = ratio(row, rows).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}×"));
        let ratio = format!("{ratio:>8}");
        lines.push(if row.link == Link::Grpc.name() {
            page.paint("2", &format!("{figures}{ratio}"))
        } else {
            format!("{figures}{}", page.paint("32", &ratio))
        });
    }
    lines.push(String::new());
    lines.push(page.wrap(&legend(rows, page)));
    for note in notes {
        lines.push(String::new());
        lines.push(page.wrap(note));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn legend(rows: &[Row], page: Page) -> String {
    let mut text = "vs gRPC: at depth 1 gRPC's p50 over the row's, beyond that the row's calls/s over gRPC's. gRPC: tonic \
                    over loopback TCP, no-delay on both sides. Client and server are processes of their own, one \
                    connection, slices interleaved; a row's figures are of all its slices together."
        .to_owned();
    if rows.iter().any(|row| row.calls < CALLS_FOR_P999) {
        text.push_str(" p99.9 -: fewer than 1,000 calls.");
    }
    if is_wide(page) {
        text.push_str(" cpu: processor time of client and server for each call.");
    }
    text
}

/// Microseconds with as many digits as mean something.
fn micros(value: f64) -> String {
    match value {
        // Bounds are where rounding would add a digit.
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
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
            cpu_us_per_call: 12_345.0,
            calls: CALLS_FOR_P999,
        }
    }

    fn page(columns: usize, colour: bool) -> Page {
        Page { columns, colour }
    }

    #[test]
    fn lines_fit_the_terminal_and_colour_is_asked_for() {
        let rows = [row("shm", 64, 1.5, 1_234_567.0), row("grpc", 64, 150.0, 1000.0)];
        let absent = ["rdma  not measured: this machine has no RDMA device ".repeat(4)];
        for columns in [80, WIDE - 1, WIDE, 200] {
            for line in render(&rows, &absent, page(columns, false)).lines() {
                assert!(line.chars().count() <= columns, "{columns} columns: {line}");
            }
        }
        assert!(render(&rows, &absent, page(80, true)).contains("\x1b[32m"));
        assert!(!render(&rows, &absent, page(80, false)).contains('\x1b'));
    }

    #[test]
    fn one_processor_is_mentioned_where_it_matters() {
        let waiting = |mode| Row { mode, ..row("shm", 1, 1.5, 1000.0) };
        assert!(
            caveat(1, &[waiting("busy"), waiting("event")])
                .is_some_and(|text| text.contains("One processor"))
        );
        assert_eq!(caveat(2, &[waiting("busy")]), None);
        assert_eq!(caveat(1, &[waiting("event"), waiting("-")]), None);
    }

    #[test]
    fn wide_terminals_show_processor_time_as_well() {
        let rows = [row("grpc", 1, 150.0, 1000.0)];
        let (narrow, wide) = (render(&rows, &[], page(80, false)), render(&rows, &[], page(WIDE, false)));
        assert!(!narrow.contains("12,345") && !narrow.contains("cpu"), "{narrow}");
        assert!(wide.contains("12,345") && wide.contains("cpu µs"), "{wide}");
        assert_eq!(narrow.lines().next().unwrap().chars().count(), NARROW);
        assert_eq!(wide.lines().next().unwrap().chars().count(), WIDE);
    }

    #[test]
    fn one_in_a_thousand_is_told_only_of_a_thousand_calls() {
        let enough = row("shm", 1, 1.5, 1000.0);
        let few = Row { calls: CALLS_FOR_P999 - 1, ..enough };
        assert!(render(&[enough], &[], page(80, false)).contains("1,234,567"));
        let text = render(&[few], &[], page(80, false));
        assert!(!text.contains("1,234,567") && text.contains("fewer than 1,000"), "{text}");
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
        assert_eq!(micros(9.999), "10.0");
        assert_eq!(micros(99.97), "100");
    }
}
