//! The table on the terminal: latencies and throughput first, then a few lines on the run and its
//! workers. At most 100 columns wide, and plain text unless colour is asked for.

use crate::error::ReportError;
use crate::numbers::{grouped, percent, short};
use crate::rank::{RankRow, Role};
use crate::ratio::part;
use crate::report::Report;
use crate::summary::{Number, Summary};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use std::io::{self, Write};

/// Width that nothing exceeds.
const WIDTH: u16 = 100;
/// Workers up to which each has a row.
const MOST_ROWS: usize = 16;
const MISSING: &str = "-";
const STATISTICS: [&str; 7] = ["mean", "min", "max", "p99", "p90", "p75", "std"];

/// The report as text. With `colour`, the title is bold; pass it only for a terminal.
pub fn table(report: &Report, colour: bool) -> String {
    let (on, off) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let mut text = format!("{on}Windtunnel | LLM Metrics{off}\n{}\n", latencies(&report.summary));
    for (label, line) in facts(&report.summary) {
        text.push_str(&format!(" {label:<22}{line}\n"));
    }
    let workers = by_worker(&report.ranks);
    match workers.len() {
        0 => {}
        n if n <= MOST_ROWS => text.push_str(&format!("\n{}\n", worker_table(&workers, &report.summary))),
        _ => text.push_str(&format!(" {:<22}{}\n", "Workers", worker_line(&workers))),
    }
    text
}

/// Writes text to standard output (or whatever stands for it). A closed pipe is an error of its own.
pub fn print(out: &mut impl Write, text: &str) -> Result<(), ReportError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => ReportError::ClosedPipe,
        _ => ReportError::Stdout(error),
    })
}

fn empty_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header.iter().enumerate().map(|(i, name)| cell(i, name.to_string())));
    table
}

/// Names to the left, numbers to the right.
fn cell(column: usize, text: String) -> Cell {
    let alignment = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new(text).set_alignment(alignment)
}

fn latencies(summary: &Summary) -> Table {
    let mut table = empty_table(&["Metric", "avg", "min", "max", "p99", "p90", "p75", "std"]);
    for (label, metric) in [
        ("Time To First Token (ms)", "ttft_ms"),
        ("Time To Second Token (ms)", "ttst_ms"),
        ("Request Latency (ms)", "e2e_latency_ms"),
        ("Time Per Output Token (ms)", "tpot_ms"),
        ("Inter Token Latency (ms)", "itl_ms"),
        ("Output Token Throughput\nPer User (tokens/sec/user)", "output_token_throughput_per_user"),
    ] {
        let values = STATISTICS.map(|statistic| summary.get(&format!("{statistic}_{metric}")));
        table.add_row(row(label, values.map(shown)));
    }
    for (label, metric) in [
        ("Output Token Throughput\n(tokens/sec)", "output_throughput_tok_s"),
        ("Request Throughput\n(requests/sec)", "request_throughput_rps"),
        ("Request Count (requests)", "completed_requests"),
    ] {
        let mut cells = [MISSING; 7].map(str::to_owned);
        cells[0] = shown(summary.get(metric));
        table.add_row(row(label, cells));
    }
    table
}

fn row(label: &str, cells: [String; 7]) -> impl Iterator<Item = Cell> {
    std::iter::once(label.to_owned()).chain(cells).enumerate().map(|(i, text)| cell(i, text))
}

fn shown(number: Number) -> String {
    match number {
        Number::Integer(n) => grouped(n),
        Number::Real(x) => short(x),
        Number::Word(word) => word.to_owned(),
        Number::Null => MISSING.to_owned(),
    }
}

/// What a reader asks next.
fn facts(summary: &Summary) -> Vec<(&'static str, String)> {
    let count = |name: &str| shown(summary.get(name));
    let integer = |name: &str| match summary.get(name) {
        Number::Integer(n) => n,
        _ => 0,
    };
    let share = |name: &str| summary.get(name).as_f64().map_or(MISSING.to_owned(), percent);
    let mut lines = Vec::new();

    let seconds = summary.get("duration_ms").as_f64().unwrap_or_default() / 1000.0;
    lines.push(("Duration", format!("{} s of virtual time", short(seconds))));
    let other: Vec<String> = ["rejected", "cancelled", "failed", "unfinished"]
        .iter()
        .map(|word| (word, integer(&format!("{word}_requests"))))
        .filter(|(_, n)| *n > 0)
        .map(|(word, n)| format!("{} {word}", grouped(n)))
        .collect();
    if !other.is_empty() {
        lines.push(("Not completed", other.join(", ")));
    }
    lines.push((
        "Tokens",
        format!("{} in, {} out", count("total_input_tokens"), count("total_output_tokens")),
    ));
    lines.push((
        "Prefix cache reuse",
        format!(
            "{} of the prompt tokens (first admission {})",
            share("prefix_cache_reused_ratio"),
            share("first_admission_prefix_cache_reused_ratio")
        ),
    ));
    lines.push((
        "Passes",
        format!(
            "{} ({} with prefill, {} with decode)",
            count("passes"),
            count("prefill_passes"),
            count("decode_passes")
        ),
    ));
    lines.push(("Preemptions", count("preemptions")));
    lines.push((
        "KV cache",
        format!("peak usage {}, {} blocks evicted", share("peak_kv_usage"), count("evicted_blocks")),
    ));
    if let Number::Integer(good) = summary.get("goodput_completed_requests") {
        let completed = integer("completed_requests");
        let share = part(good, completed).map_or(MISSING.to_owned(), percent);
        lines.push((
            "Goodput",
            format!(
                "{} of {} requests ({share}), {} requests/sec, {} tokens/sec",
                grouped(good),
                grouped(completed),
                count("goodput_request_throughput_rps"),
                count("goodput_output_throughput_tok_s")
            ),
        ));
    }
    lines
}

/// A worker's ranks added up, and how many there are.
struct Worker {
    sum: RankRow,
    ranks: u64,
}

fn by_worker(ranks: &[RankRow]) -> Vec<Worker> {
    let mut workers: Vec<Worker> = Vec::new();
    for row in ranks {
        match workers.last_mut() {
            Some(Worker { sum, ranks }) if (sum.role, sum.worker) == (row.role, row.worker) => {
                sum.add(row);
                *ranks += 1;
            }
            _ => workers.push(Worker { sum: *row, ranks: 1 }),
        }
    }
    workers
}

fn busy_part(worker: &Worker, duration_ms: f64) -> Option<f64> {
    (duration_ms > 0.0).then(|| worker.sum.busy.as_ms() / duration_ms / worker.ranks as f64)
}

fn worker_name(sum: &RankRow) -> String {
    match sum.role {
        Role::Aggregated => sum.worker.to_string(),
        role => format!("{} {}", role.as_str(), sum.worker),
    }
}

fn worker_table(workers: &[Worker], summary: &Summary) -> Table {
    let duration_ms = summary.get("duration_ms").as_f64().unwrap_or_default();
    let share = |x: Option<f64>| x.map_or(MISSING.to_owned(), |x| format!("{:.1}", x * 100.0));
    let mut table = empty_table(&[
        "Worker",
        "ranks",
        "passes",
        "prefill\ntokens",
        "decode\ntokens",
        "hits\n(%)",
        "peak KV\n(%)",
        "preempted",
        "evicted",
        "busy\n(%)",
    ]);
    for worker in workers {
        let sum = &worker.sum;
        let cells = [
            worker_name(sum),
            grouped(worker.ranks),
            grouped(sum.passes),
            grouped(sum.prefill_tokens),
            grouped(sum.decode_tokens),
            share(sum.prefix_cache_hit_rate()),
            share(sum.peak_kv_usage()),
            grouped(sum.preemptions),
            grouped(sum.evicted_blocks),
            share(busy_part(worker, duration_ms)),
        ];
        table.add_row(cells.into_iter().enumerate().map(|(i, text)| cell(i, text)));
    }
    table
}

/// How evenly the work was spread, when there are too many workers to list.
fn worker_line(workers: &[Worker]) -> String {
    let tokens = workers.iter().map(|w| w.sum.prefill_tokens + w.sum.decode_tokens);
    let (fewest, most) = (tokens.clone().min().unwrap_or(0), tokens.max().unwrap_or(0));
    format!("{} (computed tokens: {} to {})", grouped(workers.len() as u64), grouped(fewest), grouped(most))
}
