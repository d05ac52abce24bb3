//! prediction.json and run.json: what the simulated deployment did, and how fast it was simulated.
//! Two files, because the first must have the same bytes on every machine.

use crate::fleet::{ScalingEvent, WorkerEvent};
use crate::rank::{DiskRow, HostRow, RankRow, Role};
use crate::report::Report;
use crate::summary::Summary;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of the files' structure. A reader may refuse a larger one.
pub const SCHEMA_VERSION: u32 = 1;

/// The content of prediction.json.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction<'a> {
    schema_version: u32,
    kind: &'static str,
    versions: &'a BTreeMap<String, String>,
    semantics: &'a str,
    percentile_method: &'a str,
    summary: &'a Summary,
    rejections: &'a BTreeMap<&'static str, u64>,
    workers: Vec<RankLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling_events: Option<&'a [ScalingEvent]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_events: Option<&'a [WorkerEvent]>,
    capacity: Vec<&'a Value>,
    timing: &'a [Value],
    config: &'a Value,
    notes: &'a [String],
}

impl<'a> Prediction<'a> {
    /// The prediction of `report`. `versions`: of the program, of the engine that it is true to, of the
    /// data used. `config`: the configuration in effect, defaults filled in.
    pub fn new(
        report: &'a Report,
        versions: &'a BTreeMap<String, String>,
        semantics: &'a str,
        config: &'a Value,
    ) -> Prediction<'a> {
        Prediction {
            schema_version: SCHEMA_VERSION,
            kind: "prediction",
            versions,
            semantics,
            percentile_method: report.percentile_method.as_str(),
            summary: &report.summary,
            rejections: &report.rejections,
            workers: report.ranks.iter().map(RankLine::new).collect(),
            scaling_events: report.fleet.as_ref().map(|fleet| &fleet.scaling[..]),
            worker_events: report.fleet.as_ref().map(|fleet| &fleet.workers[..]),
            capacity: report.capacity.iter().map(|row| &row.detail).collect(),
            timing: &report.timing,
            config,
            notes: &report.notes,
        }
    }
}

/// One rank as it stands under `workers`.
#[derive(Clone, Debug, Serialize)]
struct RankLine {
    role: Role,
    worker: u32,
    rank: u32,
    passes: u64,
    prefill_passes: u64,
    decode_passes: u64,
    prefill_tokens: u64,
    decode_tokens: u64,
    prefix_cache_queries: u64,
    prefix_cache_hits: u64,
    prefix_cache_hit_rate: Option<f64>,
    usable_kv_blocks: u64,
    peak_kv_blocks: u64,
    peak_kv_usage: Option<f64>,
    preemptions: u64,
    evicted_blocks: u64,
    busy_ms: f64,
    #[serde(flatten)]
    host: Option<HostLine>,
    #[serde(flatten)]
    disk: Option<DiskLine>,
}

/// What a rank with a tier in the host's memory has more.
#[derive(Clone, Debug, Serialize)]
struct HostLine {
    host_kv_blocks: u64,
    host_kv_used_blocks: u64,
    host_kv_hit_tokens: u64,
    host_kv_bytes_written: u64,
    host_kv_bytes_read: u64,
}

impl HostLine {
    fn new(row: &HostRow) -> HostLine {
        HostLine {
            host_kv_blocks: row.blocks,
            host_kv_used_blocks: row.used_blocks,
            host_kv_hit_tokens: row.hit_tokens,
            host_kv_bytes_written: row.bytes_to_host,
            host_kv_bytes_read: row.bytes_from_host,
        }
    }
}

/// What a rank with a disk behind that has more.
#[derive(Clone, Debug, Serialize)]
struct DiskLine {
    disk_kv_blocks: Option<u64>,
    disk_kv_used_blocks: u64,
    disk_kv_hit_tokens: u64,
    disk_kv_bytes_written: u64,
    disk_kv_bytes_read: u64,
}

impl DiskLine {
    fn new(row: &DiskRow) -> DiskLine {
        DiskLine {
            disk_kv_blocks: row.blocks,
            disk_kv_used_blocks: row.used_blocks,
            disk_kv_hit_tokens: row.hit_tokens,
            disk_kv_bytes_written: row.bytes_written,
            disk_kv_bytes_read: row.bytes_read,
        }
    }
}

impl RankLine {
    fn new(row: &RankRow) -> RankLine {
        RankLine {
            role: row.role,
            worker: row.worker,
            rank: row.rank,
            passes: row.passes,
            prefill_passes: row.prefill_passes,
            decode_passes: row.decode_passes,
            prefill_tokens: row.prefill_tokens,
            decode_tokens: row.decode_tokens,
            prefix_cache_queries: row.prefix_cache_queries,
            prefix_cache_hits: row.prefix_cache_hits,
            prefix_cache_hit_rate: row.prefix_cache_hit_rate(),
            usable_kv_blocks: row.usable_kv_blocks,
            peak_kv_blocks: row.peak_kv_blocks,
            peak_kv_usage: row.peak_kv_usage(),
            preemptions: row.preemptions,
            evicted_blocks: row.evicted_blocks,
            busy_ms: row.busy.as_ms(),
            host: row.host.as_ref().map(HostLine::new),
            disk: row.disk.as_ref().map(DiskLine::new),
        }
    }
}

/// The content of run.json. Filled from clocks and the operating system by whoever ran the simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFile {
    /// Version of the program.
    pub version: String,
    /// Threads that advanced workers.
    pub threads: u32,
    /// Time of the simulation itself, without reading files and building the report.
    pub wall_time_ms: f64,
    /// Prompt and output tokens of completed requests.
    pub processed_tokens: u64,
    /// Output tokens of completed requests.
    pub processed_output_tokens: u64,
    /// Largest memory that the process held.
    pub peak_memory_bytes: Option<u64>,
}

impl Serialize for RunFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// With the derived speeds, null when no time was measured.
        #[derive(Serialize)]
        struct Line<'a> {
            schema_version: u32,
            kind: &'static str,
            version: &'a str,
            threads: u32,
            wall_time_ms: f64,
            processed_tokens: u64,
            processed_tokens_per_s: Option<f64>,
            processed_output_tokens_per_s: Option<f64>,
            peak_memory_bytes: Option<u64>,
        }
        let per_second =
            |tokens: u64| (self.wall_time_ms > 0.0).then(|| tokens as f64 * 1000.0 / self.wall_time_ms);
        Line {
            schema_version: SCHEMA_VERSION,
            kind: "run",
            version: &self.version,
            threads: self.threads,
            wall_time_ms: self.wall_time_ms,
            processed_tokens: self.processed_tokens,
            processed_tokens_per_s: per_second(self.processed_tokens),
            processed_output_tokens_per_s: per_second(self.processed_output_tokens),
            peak_memory_bytes: self.peak_memory_bytes,
        }
        .serialize(serializer)
    }
}
