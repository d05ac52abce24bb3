//! The workers' part of the table on the terminal: one row each while they are few, one line when they
//! are many.

use crate::numbers::{grouped, short_count};
use crate::rank::{RankRow, Role};
use crate::summary::Summary;
use crate::table::{MISSING, draw};

/// Workers up to which each has a row.
const MOST_ROWS: usize = 16;

/// A worker's ranks added up, and how many there are.
struct Worker {
    sum: RankRow,
    ranks: u64,
}

/// The workers as text, empty without workers.
pub(crate) fn text(ranks: &[RankRow], summary: &Summary) -> String {
    let workers = by_worker(ranks);
    match workers.len() {
        0 => String::new(),
        n if n <= MOST_ROWS => {
            format!("\n{}\n", table(&workers, summary.get("duration_ms").as_f64().unwrap_or_default()))
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

fn table(workers: &[Worker], duration_ms: f64) -> String {
    let share = |x: Option<f64>| x.map_or(MISSING.to_owned(), |x| format!("{:.1}", x * 100.0));
    let busy = |worker: &Worker| {
        (duration_ms > 0.0).then(|| worker.sum.busy.as_ms() / duration_ms / worker.ranks as f64)
    };
    let columns: [(&str, Box<dyn Fn(&Worker) -> String + '_>); 10] = [
        ("Worker", Box::new(name)),
        ("ranks", Box::new(|worker| grouped(worker.ranks))),
        ("passes", Box::new(|worker| short_count(worker.sum.passes))),
        ("prefill\ntokens", Box::new(|worker| short_count(worker.sum.prefill_tokens))),
        ("decode\ntokens", Box::new(|worker| short_count(worker.sum.decode_tokens))),
        ("hit rate\n(%)", Box::new(move |worker| share(worker.sum.prefix_cache_hit_rate()))),
        ("peak KV\n(%)", Box::new(move |worker| share(worker.sum.peak_kv_usage()))),
        ("preempted", Box::new(|worker| short_count(worker.sum.preemptions))),
        ("evicted\nblocks", Box::new(|worker| short_count(worker.sum.evicted_blocks))),
        ("busy\n(%)", Box::new(move |worker| share(busy(worker)))),
    ];
    let grouped_ranks = workers.iter().any(|worker| worker.ranks > 1);
    let columns: Vec<_> = columns.into_iter().filter(|(name, _)| grouped_ranks || *name != "ranks").collect();
    let header: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let rows: Vec<Vec<String>> =
        workers.iter().map(|worker| columns.iter().map(|(_, cell)| cell(worker)).collect()).collect();
    draw(&header, &rows)
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
