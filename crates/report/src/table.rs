//! The table on the terminal: latencies and throughput first, then a few lines on the run and its
//! workers. At most 100 columns wide, and plain text unless colour is asked for.

use crate::error::ReportError;
use crate::numbers::{grouped, percent, short, short_count};
use crate::ratio::part;
use crate::report::Report;
use crate::summary::{Number, Summary};
use crate::workers;
use comfy_table::{Cell, CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Width that nothing exceeds.
pub(crate) const WIDTH: usize = 100;
/// Width of what stands before a fact.
const LABEL: usize = 22;
/// Stands where there is no value.
pub(crate) const MISSING: &str = "-";
const STATISTICS: [&str; 7] = ["mean", "min", "max", "p99", "p90", "p75", "std"];

const RULE: LineStyle = LineStyle::none().fill('─').junction('─');
/// Rules above, below and under the header; columns stand apart by space alone.
const STYLE: TableStyle = TableStyle::new()
    .top_border(RULE)
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(RULE)
    .content_lines(ContentLineStyle::none().junction(' '))
    .bottom_border(RULE);

/// The report as text. With `colour`, the title is bold; pass it only for a terminal.
pub fn table(report: &Report, colour: bool) -> String {
    let latencies = latencies(&report.summary);
    let (on, off) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let title = "Windtunnel | LLM Metrics";
    let width = latencies.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let indent = " ".repeat(width.saturating_sub(title.len()) / 2);

    let mut text = format!("{indent}{on}{title}{off}\n{latencies}\n");
    for (label, line) in facts(report) {
        for (i, line) in wrapped(&line, WIDTH - LABEL).iter().enumerate() {
            text.push_str(&format!("{:<LABEL$}{line}\n", if i == 0 { label } else { "" }));
        }
    }
    for note in &report.notes {
        for (i, line) in wrapped(note, WIDTH - LABEL).iter().enumerate() {
            text.push_str(&format!("{:<LABEL$}{line}\n", if i == 0 { "Note" } else { "" }));
        }
    }
    text.push_str(&workers::text(&report.ranks, report.end));
    text
}

/// Writes text to standard output (or whatever stands for it). A closed pipe is an error of its own.
pub fn print(out: &mut impl Write, text: &str) -> Result<(), ReportError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => ReportError::ClosedPipe,
        _ => ReportError::Stdout(error),
    })
}

/// Rows of cells under a header, at most 100 columns wide where the cells allow it.
pub fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    draw(header, rows)
}

/// Rows of cells under a header, names to the left and numbers to the right, with as much space between
/// columns as the width allows.
pub(crate) fn draw(header: &[&str], rows: &[Vec<String>]) -> String {
    let with_space = |space: u16| {
        let cell = |(column, text): (usize, &str)| {
            let alignment = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(alignment)
        };
        let mut table = Table::new();
        table.load_style(STYLE).set_header(header.iter().copied().enumerate().map(cell));
        table.add_rows(rows.iter().map(|row| row.iter().map(String::as_str).enumerate().map(cell)));
        for (i, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if i == 0 { 0 } else { space }, 0));
        }
        table
    };
    let fits = |table: &Table| table.lines().all(|line| line.chars().count() <= WIDTH);
    let table = [3, 2, 1].map(with_space).into_iter().find(fits).unwrap_or_else(|| with_space(0));
    table.trim_fmt()
}

fn latencies(summary: &Summary) -> String {
    let mut rows = Vec::new();
    for (label, metric) in [
        ("Time To First Token (ms)", "ttft_ms"),
        ("Time To Second Token (ms)", "ttst_ms"),
        ("Request Latency (ms)", "e2e_latency_ms"),
        ("Time Per Output Token (ms)", "tpot_ms"),
        ("Inter Token Latency (ms)", "itl_ms"),
        ("Output Token Throughput\n Per User (tokens/sec/user)", "output_token_throughput_per_user"),
    ] {
        let values = STATISTICS.map(|statistic| shown(summary.get(&format!("{statistic}_{metric}"))));
        rows.push(std::iter::once(label.to_owned()).chain(values).collect());
    }
    for (label, metric) in [
        ("Output Token Throughput\n (tokens/sec)", "output_throughput_tok_s"),
        ("Request Throughput\n (requests/sec)", "request_throughput_rps"),
        ("Request Count (requests)", "completed_requests"),
    ] {
        let mut row = vec![MISSING.to_owned(); STATISTICS.len() + 1];
        row[0] = label.to_owned();
        row[1] = shown(summary.get(metric));
        rows.push(row);
    }
    draw(&["Metric", "avg", "min", "max", "p99", "p90", "p75", "std"], &rows)
}

/// A value in a cell.
fn shown(number: Number) -> String {
    match number {
        Number::Integer(n) => short_count(n),
        Number::Real(x) => short(x),
        Number::Word(word) => word.to_owned(),
        Number::Null => MISSING.to_owned(),
    }
}

/// Why requests were refused, most frequent reason first; how often each, unless it is the only one.
fn reasons(rejections: &BTreeMap<&'static str, u64>) -> String {
    let mut kinds: Vec<(&str, u64)> = rejections.iter().map(|(kind, count)| (*kind, *count)).collect();
    kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    match kinds.as_slice() {
        [] => String::new(),
        [(kind, _)] => format!(" ({})", kind.replace('_', " ")),
        several => {
            let words = several.iter().map(|(kind, n)| format!("{} {}", grouped(*n), kind.replace('_', " ")));
            format!(" ({})", words.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A fact in lines of at most `width`, broken behind commas.
fn wrapped(fact: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in fact.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.chars().count() + part.trim_end().chars().count() <= width => {
                line.push_str(part)
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// What a reader asks next.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let summary = &report.summary;
    let integer = |name: &str| match summary.get(name) {
        Number::Integer(n) => n,
        _ => 0,
    };
    let count = |name: &str| grouped(integer(name));
    let share = |name: &str| summary.get(name).as_f64().map_or(MISSING.to_owned(), percent);

    let seconds = summary.get("duration_ms").as_f64().unwrap_or_default() / 1000.0;
    let mut lines = vec![("Duration", format!("{} s (virtual)", short(seconds)))];
    let others: Vec<String> = ["rejected", "cancelled", "failed", "unfinished"]
        .iter()
        .filter(|word| integer(&format!("{word}_requests")) > 0)
        .map(|&word| {
            let reasons = if word == "rejected" { reasons(&report.rejections) } else { String::new() };
            format!("{} {word}{reasons}", count(&format!("{word}_requests")))
        })
        .collect();
    if !others.is_empty() {
        lines.push(("Not completed", others.join(", ")));
    }
    let (input, output) = (count("total_input_tokens"), count("total_output_tokens"));
    lines.push(("Tokens", format!("{input} in, {output} out")));
    let reused = share("prefix_cache_reused_ratio");
    let at_first = share("first_admission_prefix_cache_reused_ratio");
    lines.push((
        "Prefix cache reuse",
        format!("{reused} of the prompt tokens ({at_first} at first admission)"),
    ));
    let (prefill, decode) = (count("prefill_passes"), count("decode_passes"));
    lines.push(("Passes", format!("{} ({prefill} with prefill, {decode} with decode)", count("passes"))));
    lines.push(("Preemptions", count("preemptions")));
    let (peak, evicted) = (share("peak_kv_usage"), count("evicted_blocks"));
    lines.push(("KV cache", format!("{peak} used at the peak, {evicted} blocks evicted")));
    for (line, tier) in [("Host KV tier", "host_kv"), ("Disk KV tier", "disk_kv")] {
        let Number::Integer(hits) = summary.get(&format!("{tier}_hit_tokens")) else { continue };
        let bytes = |what: &str| summary.get(&format!("{tier}_bytes_{what}")).as_f64();
        let gigabytes = |what: &str| short(bytes(what).unwrap_or_default() / 1e9);
        let (written, read, hits) = (gigabytes("written"), gigabytes("read"), grouped(hits));
        lines.push((line, format!("{hits} tokens loaded; {written} GB written, {read} GB read")));
    }
    lines.extend(report.capacity.iter().map(|row| ("KV memory", row.line.clone())));
    if let Some(fleet) = &report.fleet {
        let seconds = |name: &str| summary.get(name).as_f64().unwrap_or_default();
        let time = seconds("prefill_worker_seconds") + seconds("decode_worker_seconds");
        lines.push(("Worker count", fleet.line(report.end, time)));
        let retried = integer("retried_requests");
        if retried > 0 {
            let retries = count("request_retries");
            lines.push(("Retried", format!("{} requests, {retries} retries", grouped(retried))));
        }
    }
    if let Some(cost) = summary.get("cost").as_f64() {
        let hours = shown(summary.get("gpu_hours"));
        let per_million = shown(summary.get("cost_per_million_output_tokens"));
        lines.push((
            "Cost",
            format!("{} for {hours} GPU hours, {per_million} per million output tokens", short(cost)),
        ));
    }
    if let Number::Integer(good) = summary.get("goodput_completed_requests") {
        let share = part(good, integer("completed_requests")).map_or(MISSING.to_owned(), percent);
        let requests = shown(summary.get("goodput_request_throughput_rps"));
        let tokens = shown(summary.get("goodput_output_throughput_tok_s"));
        lines.push((
            "Goodput",
            format!("{requests} requests/sec, {tokens} tokens/sec ({share} of the requests)"),
        ));
    }
    lines
}
