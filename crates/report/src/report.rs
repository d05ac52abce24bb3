//! From collectors to the values that are written and printed. Here collectors are merged and their rows
//! and requests put in order; what each metric is stands in `summary`, how it looks on disk or on the
//! terminal in `files` and `table`.

use crate::collector::Collector;
use crate::fleet::FleetLog;
use crate::percentile::PercentileMethod;
use crate::rank::RankRow;
use crate::record::{Captured, RequestRecord};
use crate::summary::Summary;
use std::collections::BTreeMap;
use windtunnel_engine::Nanos;

/// Workers of one role over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Σ over workers of the nanoseconds for which each was provisioned: starting, ready or draining.
    pub worker_time: u128,
    /// GPUs of one worker.
    pub gpus_per_worker: u32,
}

/// What only the driver of a run knows, at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEnd {
    /// When the run ended. Used as its duration when no request completed.
    pub end: Nanos,
    /// Requests that were sent and had not ended.
    pub unfinished: u64,
    /// The prefill workers; empty when prefill and decode share their workers.
    pub prefill: Pool,
    /// The decode workers, or the aggregated ones.
    pub decode: Pool,
    /// How percentiles are read.
    pub percentiles: PercentileMethod,
    /// What a GPU costs in an hour, in whatever currency, if it is known.
    pub price_per_gpu_hour: Option<f64>,
    /// What happened to the workers, where something can.
    pub fleet: Option<FleetLog>,
}

/// How the KV blocks of a rank came about. Worked out before the run, by whoever started it.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityRow {
    /// The outcome, for the table.
    pub line: String,
    /// Every item.
    pub detail: serde_json::Value,
}

/// The outcome of a run: what the files and the table are made of.
#[derive(Clone, Debug)]
pub struct Report {
    /// Metrics by name.
    pub summary: Summary,
    /// One row per rank, by role, worker and rank.
    pub ranks: Vec<RankRow>,
    /// Rejected requests by reason ([`windtunnel_engine::Rejection::kind`]).
    pub rejections: BTreeMap<&'static str, u64>,
    /// How its percentiles were read.
    pub percentile_method: PercentileMethod,
    /// How the KV blocks of a rank came about, for each role whose number of blocks was worked out.
    pub capacity: Vec<CapacityRow>,
    /// Where the pass times come from, for each role whose times were made of measured operations.
    pub timing: Vec<serde_json::Value>,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
    /// What happened to the workers, where something can.
    pub fleet: Option<FleetLog>,
    /// When the run ended: not before its last pass, and so maybe after its last token.
    pub end: Nanos,
    /// Every request that ended, by number. None unless requests were captured.
    pub(crate) requests: Option<Vec<Captured>>,
}

impl Report {
    /// Merges the collectors of a run and computes its metrics.
    pub fn new(collectors: impl IntoIterator<Item = Collector>, run: &RunEnd) -> Report {
        let mut collectors = collectors.into_iter();
        let mut all = collectors.next().unwrap_or_default();
        collectors.for_each(|collector| all.merge(collector));

        let ranks = rows_by_key(std::mem::take(&mut all.ranks));
        let requests = all.options.capture.then(|| {
            let mut captured = std::mem::take(&mut all.captured);
            captured.sort_by_key(Captured::id);
            captured
        });
        let notes = cut(all.counts.cut).into_iter().collect();
        Report {
            capacity: Vec::new(),
            timing: Vec::new(),
            notes,
            rejections: std::mem::take(&mut all.rejections),
            summary: Summary::new(all, &ranks, run),
            ranks,
            percentile_method: run.percentiles,
            fleet: run.fleet.clone(),
            end: run.end,
            requests,
        }
    }

    /// The requests that completed, by number. None unless requests were captured.
    pub fn completed(&self) -> impl Iterator<Item = &RequestRecord> {
        self.requests.iter().flatten().filter_map(|request| match request {
            Captured::Completed(record) => Some(record),
            Captured::Cancelled(_) | Captured::Failed(..) | Captured::Unplaced(..) | Captured::Refused(_) => {
                None
            }
        })
    }
}

fn cut(requests: u64) -> Option<String> {
    let (were, they) = if requests == 1 { ("request was", "it") } else { ("requests were", "they") };
    (requests > 0).then(|| {
        format!(
            "{requests} completed {were} given fewer output tokens than {they} asked for, because the context \
             length or the KV cache has no room for more"
        )
    })
}

fn rows_by_key(mut rows: Vec<RankRow>) -> Vec<RankRow> {
    rows.sort_by_key(RankRow::key);
    rows.dedup_by(|later, first| {
        let same = later.key() == first.key();
        if same {
            first.add(later);
        }
        same
    });
    rows
}
