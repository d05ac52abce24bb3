//! The lines of vLLM's oracle, in the order of keys in which it writes them.

use super::scenario::Settings;
use crate::conformance::engine::Engine;
use crate::conformance::trace::{Event, Ordered};
use serde::Serialize;
use serde_json::Value;

/// The first line.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// The engine.
    pub engine: Engine,
    /// The version whose behaviour is reproduced.
    pub version: &'static str,
    /// The config.
    pub config: Settings,
    /// What is in force.
    pub effective: Value,
}

/// One `schedule` call and its completion.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Step {
    pub step: u64,
    pub t_sched_ms: f64,
    pub arrived: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aborted: Vec<String>,
    pub sched: Vec<(String, u32)>,
    pub total: u64,
    pub new: Vec<String>,
    pub resumed: Vec<String>,
    pub preempted: Vec<String>,
    pub cached: Vec<String>,
    pub hits: Vec<(String, u32, u32)>,
    pub lookups: u32,
    pub computed: Ordered<u32>,
    pub free_before: u32,
    pub free_after_sched: u32,
    pub running: Vec<String>,
    pub waiting: Vec<String>,
    pub sampled: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bound: Option<bool>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub queues: Option<KvQueues>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Ordered<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_waiting: Option<Ordered<Vec<u32>>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub moved: Option<KvMoved>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub copied: Option<Copied>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Vec<(&'static str, u32, f64)>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_start_ms: Option<f64>,
    pub t_end_ms: f64,
    pub finished: Vec<(String, &'static str)>,
    pub tokens_out: Ordered<u32>,
    pub free_after_update: u32,
    pub n_running: usize,
    pub n_waiting: usize,
    pub n_preemptions_total: u64,
    pub cached_blocks: u32,
    pub events: Vec<Event>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stale: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_kv_holding: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_finished: Option<Ordered<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_queue: Option<Vec<u32>>,
}

/// Who waits for KV and who holds blocks, after scheduling.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct KvQueues {
    pub kv_holding: Vec<String>,
    pub wait_state: Ordered<&'static str>,
    pub deferred: Vec<String>,
    pub inflight_prefills: Vec<String>,
    pub reserved: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<u32>,
    pub held: Ordered<usize>,
}

/// Transfers that start with a step or are reported with it.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct KvMoved {
    pub recv_start: Vec<(String, u32, u32, f64)>,
    pub notify_only: Vec<String>,
    pub send_start: Vec<(String, u32, f64)>,
    pub recv_done: Vec<String>,
    pub recv_failed: Vec<String>,
    pub send_done: Vec<String>,
}

/// Copies from and to the host that start with a step or are reported with it.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Copied {
    pub load_jobs: Vec<(u64, String, Vec<u32>, Vec<u32>)>,
    pub store_jobs: Vec<(u64, String, Vec<u32>, Vec<u32>)>,
    pub flush: Vec<u64>,
    pub load_sync: Vec<u64>,
    pub submitted: Vec<(&'static str, u64, f64)>,
    pub jobs_done: Vec<u64>,
    pub recv_done: Vec<String>,
    pub t_waited_ms: f64,
}

impl Copied {
    /// Nothing starts and nothing is reported with the step.
    pub(super) fn is_nothing(&self) -> bool {
        self.recv_done.is_empty()
            && self.jobs_done.is_empty()
            && self.submitted.is_empty()
            && self.store_jobs.is_empty()
    }
}

impl KvMoved {
    /// No transfer is reported with the step.
    pub(super) fn reports_nothing(&self) -> bool {
        self.recv_done.is_empty() && self.send_done.is_empty()
    }
}

/// The end of a trace.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "docs/conformance.md defines every key")]
pub struct Summary {
    pub steps: u64,
    pub t_ms: f64,
    pub finished: usize,
    pub requests: usize,
    pub stuck: bool,
    pub preemptions: Ordered<u32>,
    pub unfinished: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_blocks: Option<u32>,
    /// The same, where it is not written: some traces tell it of every scenario.
    #[serde(skip)]
    pub(crate) free: u32,
}
