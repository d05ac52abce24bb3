//! The workers' part of the table on the terminal: one row each while they are few, one line when they
//! are many. Ranks are added up here, for the eye only; files list every rank. How a table is drawn is
//! not known here.

use crate::numbers::{grouped, short_count};
use crate::rank::{RankRow, Role};
use crate::table::{MISSING, draw};
use windtunnel_engine::Nanos;

/// Workers up to which each has a row.
const MOST_ROWS: usize = 16;

/// A worker's ranks added up, and how many there are.
struct Worker {
    sum: RankRow,
    ranks: u64,
}

/// The workers as text, empty without workers.
pub(crate) fn text(ranks: &[RankRow], end: Nanos) -> String {
    let workers = by_worker(ranks);
    match workers.len() {
        0 => String::new(),
        n if n <= MOST_ROWS => {
            format!("\n{}\n", table(&workers, end.as_ms()))
        }
        _ => format!("{:<22}{}\n", "Workers", line(&workers)),
    }
}

/// Rows of one worker stand together.
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

fn table(workers: &[Worker], end_ms: f64) -> String {
    let mut header = vec![
        "Worker",
        "passes",
        "prefill\ntokens",
        "decode\ntokens",
        "hit rate\n(%)",
        "peak KV\n(%)",
        "preempted",
        "evicted\nblocks",
        "busy\n(%)",
    ];
    let mut rows: Vec<Vec<String>> = workers.iter().map(|worker| cells(worker, end_ms)).collect();
    if workers.iter().any(|worker| worker.ranks > 1) {
        header.insert(1, "ranks");
        rows.iter_mut().zip(workers).for_each(|(row, worker)| row.insert(1, grouped(worker.ranks)));
    }
    draw(&header, &rows)
}

fn cells(worker: &Worker, end_ms: f64) -> Vec<String> {
    let share = |x: Option<f64>| x.map_or(MISSING.to_owned(), |x| format!("{:.1}", x * 100.0));
    let Worker { sum, ranks } = worker;
    let busy = (end_ms > 0.0).then(|| sum.busy.as_ms() / end_ms / *ranks as f64);
    vec![
        name(worker),
        short_count(sum.passes),
        short_count(sum.prefill_tokens),
        short_count(sum.decode_tokens),
        share(sum.prefix_cache_hit_rate()),
        share(sum.peak_kv_usage()),
        short_count(sum.preemptions),
        short_count(sum.evicted_blocks),
        share(busy),
    ]
}

fn name(worker: &Worker) -> String {
    match worker.sum.role {
        Role::Aggregated => worker.sum.worker.to_string(),
        role => format!("{} {}", role.as_str(), worker.sum.worker),
    }
}

/// How evenly the work was spread.
fn line(workers: &[Worker]) -> String {
    let tokens = workers.iter().map(|worker| worker.sum.prefill_tokens + worker.sum.decode_tokens);
    let (fewest, most) = (tokens.clone().min().unwrap_or(0), tokens.max().unwrap_or(0));
    format!(
        "{}, each computed {} to {} tokens",
        grouped(workers.len() as u64),
        grouped(fewest),
        grouped(most)
    )
}
