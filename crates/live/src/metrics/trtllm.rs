//! TensorRT-LLM's metrics, filled from passes. Names, labels and buckets are those of
//! tensorrt_llm/metrics/collector.py (prefix `trtllm_`), read in its source: no build of it runs without a GPU, so no
//! golden stands behind this set.

use super::registry::Kind::{self, Counter, Gauge, Histogram};
use super::registry::{Definition, Group, Registry, Style};
use crate::observer::{EndReason, Ended, FirstToken, PassObserver, PassReport, RequestInfo};
use std::sync::Arc;
use windtunnel_engine::{FinishReason, Nanos, RankStats};

const LATENCY: Kind = Histogram(&[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
]);
const TTFT: Kind = Histogram(&[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
]);
const TPOT: Kind = Histogram(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
]);
const PREFILL: Kind = Histogram(&[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
]);

type Extra = &'static [(&'static str, &'static [&'static str])];

const fn of(name: &'static str, kind: Kind, extra: Extra, help: &'static str) -> Definition {
    Definition { name, kind, group: Group::Worker, extra, help }
}

const DEFINITIONS: &[Definition] = &[
    of("trtllm_num_requests_running", Gauge, &[], "Requests at work."),
    of("trtllm_num_requests_waiting", Gauge, &[], "Requests in the queue."),
    of("trtllm_max_num_active_requests", Gauge, &[], "Seats."),
    of("trtllm_kv_cache_utilization", Gauge, &[], "Share of the KV blocks in use, 0 to 1."),
    of("trtllm_kv_cache_hit_rate", Gauge, &[], "Share of prompt tokens found in the cache, 0 to 1."),
    of("trtllm_kv_cache_max_blocks", Gauge, &[], "KV blocks."),
    of("trtllm_kv_cache_free_blocks", Gauge, &[], "KV blocks without an owner."),
    of("trtllm_kv_cache_used_blocks", Gauge, &[], "KV blocks with an owner."),
    of("trtllm_kv_cache_tokens_per_block", Gauge, &[], "Tokens per block."),
    of("trtllm_num_context_requests", Gauge, &[], "Requests in their prefill, of the last pass."),
    of("trtllm_num_generation_requests", Gauge, &[], "Requests that decode, of the last pass."),
    of("trtllm_num_paused_requests", Gauge, &[], "Requests paused in the last pass."),
    of("trtllm_num_scheduled_requests", Gauge, &[], "Requests of the last pass."),
    of("trtllm_total_context_tokens", Gauge, &[], "Prompt tokens computed in the last pass."),
    of("trtllm_iteration_latency_seconds", Gauge, &[], "Time of the last pass."),
    of(
        "trtllm_request_success",
        Counter,
        &[("finished_reason", &["length", "stop", "cancelled", "timeout"])],
        "Requests that ended, by how.",
    ),
    of("trtllm_prompt_tokens", Counter, &[], "Prompt tokens of requests that ended."),
    of("trtllm_generation_tokens", Counter, &[], "Output tokens of requests that ended."),
    of(
        "trtllm_prompt_cached_tokens",
        Counter,
        &[],
        "Prompt tokens of requests that ended, found in the cache.",
    ),
    of("trtllm_num_requests_completed", Counter, &[], "Requests that ended."),
    of("trtllm_kv_cache_reused_blocks", Counter, &[], "Blocks found in the cache."),
    of("trtllm_kv_cache_missed_blocks", Counter, &[], "Blocks not found in the cache."),
    of("trtllm_e2e_request_latency_seconds", LATENCY, &[], "Time from arrival to end."),
    of("trtllm_request_queue_time_seconds", LATENCY, &[], "Time from arrival to first admission."),
    of("trtllm_request_prefill_time_seconds", PREFILL, &[], "Time from first admission to first token."),
    of("trtllm_request_decode_time_seconds", LATENCY, &[], "Time from first to last token."),
    of("trtllm_request_inference_time_seconds", LATENCY, &[], "Time from first admission to last token."),
    of("trtllm_time_to_first_token_seconds", TTFT, &[], "Time from arrival to first token."),
    of("trtllm_time_per_output_token_seconds", TPOT, &[], "Mean time per output token of a request."),
];

/// What does not change.
#[derive(Clone, Debug)]
pub struct TrtllmInfo {
    /// Name of the model.
    pub model: String,
    /// Its number, where one server tells of several workers: the engine's own never does, and has no such label.
    pub worker: Option<u32>,
    /// Tokens per block.
    pub tokens_per_block: u32,
    /// KV blocks.
    pub blocks: u32,
    /// Seats.
    pub max_num_active_requests: u32,
}

/// The labels of a worker's series.
#[derive(Clone, Debug)]
struct WorkerLabels {
    model: String,
    worker: Option<String>,
}

impl WorkerLabels {
    fn of(info: &TrtllmInfo) -> WorkerLabels {
        WorkerLabels { model: info.model.clone(), worker: info.worker.map(|number| number.to_string()) }
    }

    fn labels(&self) -> Vec<(&'static str, &str)> {
        let mut labels = vec![("model_name", &*self.model), ("engine_type", "trtllm")];
        labels.extend(self.worker.iter().map(|number| ("worker", &**number)));
        labels
    }
}

/// The metrics, without series.
pub fn registry() -> Registry {
    Registry::new(DEFINITIONS, Style::OneProcess, 1)
}

/// The series of a worker, all at zero.
pub fn add_worker(registry: &Registry, info: &TrtllmInfo) {
    let labels = WorkerLabels::of(info);
    let labels = labels.labels();
    registry.add_series(Group::Worker, &labels);
    let mut values = registry.lock();
    values.set("trtllm_kv_cache_tokens_per_block", &labels, f64::from(info.tokens_per_block));
    values.set("trtllm_kv_cache_max_blocks", &labels, f64::from(info.blocks));
    values.set("trtllm_kv_cache_free_blocks", &labels, f64::from(info.blocks));
    values.set("trtllm_max_num_active_requests", &labels, f64::from(info.max_num_active_requests));
}

/// Fills the metrics of a worker of one rank.
pub struct TrtllmMetrics {
    registry: Registry,
    labels: WorkerLabels,
    tokens_per_block: u64,
    last: RankStats,
}

impl TrtllmMetrics {
    /// For the rank of a worker.
    pub fn new(registry: Registry, info: &TrtllmInfo) -> TrtllmMetrics {
        TrtllmMetrics {
            registry,
            labels: WorkerLabels::of(info),
            tokens_per_block: u64::from(info.tokens_per_block.max(1)),
            last: RankStats::default(),
        }
    }

    fn stats(&mut self, stats: &RankStats) {
        let labels = self.labels.labels();
        let mut values = self.registry.lock();
        values.set("trtllm_num_requests_running", &labels, stats.running as f64);
        values.set("trtllm_num_requests_waiting", &labels, stats.waiting as f64);
        let (used, all) = (f64::from(stats.used_blocks), f64::from(stats.usable_blocks.max(1)));
        values.set("trtllm_kv_cache_utilization", &labels, used / all);
        values.set("trtllm_kv_cache_used_blocks", &labels, used);
        values.set("trtllm_kv_cache_free_blocks", &labels, all - used);
        if stats.prefix_queries > 0 {
            let rate = stats.prefix_hits as f64 / stats.prefix_queries as f64;
            values.set("trtllm_kv_cache_hit_rate", &labels, rate);
        }
        let block = self.tokens_per_block;
        let grown = |now: u64, before: u64| now - before.min(now);
        let hits = grown(stats.prefix_hits, self.last.prefix_hits) / block;
        let looked_up = grown(stats.prefix_queries, self.last.prefix_queries).div_ceil(block);
        values.add("trtllm_kv_cache_reused_blocks", &labels, hits as f64);
        values.add("trtllm_kv_cache_missed_blocks", &labels, (looked_up - hits.min(looked_up)) as f64);
        drop(values);
        self.last = *stats;
    }

    fn end(&self, ended: &Ended<'_>) {
        let labels = self.labels.labels();
        let (info, times) = (ended.info, ended.times);
        let reason = match ended.reason {
            EndReason::Finished(FinishReason::Length) => "length",
            EndReason::Finished(FinishReason::Stop) => "stop",
            _ => "cancelled",
        };
        let mut values = self.registry.lock();
        let mut by_reason = labels.clone();
        by_reason.push(("finished_reason", reason));
        values.add("trtllm_request_success", &by_reason, 1.0);
        values.add("trtllm_num_requests_completed", &labels, 1.0);
        values.add("trtllm_prompt_tokens", &labels, info.prompt.len() as f64);
        values.add("trtllm_generation_tokens", &labels, f64::from(times.output_tokens));
        values.add("trtllm_prompt_cached_tokens", &labels, f64::from(times.cached_tokens));
        let mut seconds = |name, from: Option<Nanos>, to: Option<Nanos>| {
            if let (Some(from), Some(to)) = (from, to) {
                values.observe(name, &labels, to.since(from).as_seconds(), 1);
            }
        };
        seconds("trtllm_e2e_request_latency_seconds", Some(times.arrival), Some(ended.at));
        seconds("trtllm_request_queue_time_seconds", Some(times.arrival), times.first_admit);
        seconds("trtllm_request_prefill_time_seconds", times.first_admit, times.first_token);
        seconds("trtllm_request_decode_time_seconds", times.first_token, times.last_token);
        seconds("trtllm_request_inference_time_seconds", times.first_admit, times.last_token);
        if let (Some(first), Some(last)) = (times.first_token, times.last_token)
            && times.output_tokens > 1
        {
            let each = last.since(first).as_seconds() / f64::from(times.output_tokens - 1);
            values.observe("trtllm_time_per_output_token_seconds", &labels, each, 1);
        }
    }
}

impl PassObserver for TrtllmMetrics {
    fn submitted(&mut self, _info: &Arc<RequestInfo>, _at: Nanos, stats: &RankStats) {
        self.stats(stats);
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        self.stats(pass.stats);
        let labels = self.labels.labels();
        let (chunks, decodes) = (pass.scheduled.prefill.len() as f64, pass.scheduled.decode.count as f64);
        let mut values = self.registry.lock();
        values.set("trtllm_num_context_requests", &labels, chunks);
        values.set("trtllm_num_generation_requests", &labels, decodes);
        values.set("trtllm_num_paused_requests", &labels, pass.scheduled.preempted.len() as f64);
        values.set("trtllm_num_scheduled_requests", &labels, chunks + decodes);
        values.set("trtllm_total_context_tokens", &labels, pass.scheduled.prefill_tokens as f64);
        values.set("trtllm_iteration_latency_seconds", &labels, pass.end.since(pass.start).as_seconds());
        drop(values);
        pass.first_tokens.iter().for_each(|first| self.handed_over(first, pass.end));
        pass.ended.iter().for_each(|ended| self.end(ended));
    }

    fn handed_over(&mut self, first: &FirstToken<'_>, at: Nanos) {
        let ttft = at.since(first.times.arrival).as_seconds();
        let labels = self.labels.labels();
        self.registry.lock().observe("trtllm_time_to_first_token_seconds", &labels, ttft, 1);
    }

    fn ended(&mut self, ended: &Ended<'_>, stats: &RankStats) {
        self.stats(stats);
        self.end(ended);
    }
}
