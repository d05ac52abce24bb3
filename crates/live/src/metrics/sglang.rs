//! SGLang's metrics, filled from passes (sglang/srt/managers/scheduler_components/metrics_reporter.py,
//! managers/tokenizer_manager.py; version 0.5.23). Gauges are set with every pass; the engine sets most of them with
//! every prefill batch and every `decode_log_interval`-th decode batch.

use super::registry::{Group, Registry, Style};
use super::sglang_set::DEFINITIONS;
use crate::observer::{EndReason, Ended, FirstToken, KvTransfer, PassObserver, PassReport, RequestInfo};
use std::sync::Arc;
use windtunnel_engine::{FinishReason, Nanos, RankStats};

/// What does not change.
#[derive(Clone, Debug)]
pub struct SglangInfo {
    /// `--served-model-name`.
    pub model: String,
    /// `unified`, `prefill` or `decode`.
    pub engine_type: &'static str,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// Accelerators of a rank.
    pub tensor: u32,
    /// Tokens per page.
    pub page_size: u32,
    /// Pages of a rank.
    pub pages: u32,
    /// Context length.
    pub context_length: u32,
}

impl SglangInfo {
    /// The labels of a rank's series; `dp_rank` only where there are several.
    fn rank_labels<'a>(&'a self, rank: &'a str) -> Vec<(&'static str, &'a str)> {
        let mut labels = self.labels().to_vec();
        labels.extend([("tp_rank", "0"), ("pp_rank", "0"), ("moe_ep_rank", "0")]);
        if self.ranks > 1 {
            labels.push(("dp_rank", rank));
        }
        labels
    }

    fn labels(&self) -> [(&'static str, &str); 2] {
        [("model_name", &self.model), ("engine_type", self.engine_type)]
    }
}

/// The metrics, without series.
pub fn registry(context_length: u32) -> Registry {
    Registry::new(DEFINITIONS, Style::ManyProcesses, context_length)
}

/// The series of a worker, all at zero.
pub fn add_engine(registry: &Registry, info: &SglangInfo) {
    for rank in 0..info.ranks {
        let rank = rank.to_string();
        let labels = info.rank_labels(&rank);
        registry.add_series(Group::Rank, &labels);
        let mut values = registry.lock();
        values.set("sglang:page_size", &labels, f64::from(info.page_size));
        values.set("sglang:num_pages", &labels, f64::from(info.pages));
        values.set("sglang:context_len", &labels, f64::from(info.context_length));
        let tokens = f64::from(info.pages) * f64::from(info.page_size);
        values.set("sglang:max_total_num_tokens", &labels, tokens);
        values.set("sglang:kv_available_tokens", &labels, tokens);
    }
    registry.add_series(Group::Worker, &info.labels());
}

/// Fills the metrics of one rank.
pub struct SglangMetrics {
    registry: Registry,
    info: SglangInfo,
    rank: String,
    last: RankStats,
}

impl SglangMetrics {
    /// For rank `rank`.
    pub fn new(registry: Registry, info: &SglangInfo, rank: u32) -> SglangMetrics {
        SglangMetrics { registry, info: info.clone(), rank: rank.to_string(), last: RankStats::default() }
    }

    fn stats(&mut self, stats: &RankStats) {
        let labels = self.info.rank_labels(&self.rank);
        let mut values = self.registry.lock();
        let page = f64::from(self.info.page_size);
        let used = f64::from(stats.used_blocks) * page;
        let total = f64::from(stats.usable_blocks.max(1)) * page;
        // Cached pages have no owner or count as used, so that all three parts make up the pool.
        let evictable = (f64::from(stats.cached_blocks) * page).min(total - used);
        values.set("sglang:num_running_reqs", &labels, stats.running as f64);
        values.set("sglang:num_queue_reqs", &labels, stats.waiting as f64);
        values.set("sglang:num_used_tokens", &labels, used);
        values.set("sglang:kv_used_tokens", &labels, used);
        values.set("sglang:kv_evictable_tokens", &labels, evictable);
        values.set("sglang:kv_available_tokens", &labels, total - used - evictable);
        for usage in ["sglang:token_usage", "sglang:full_token_usage"] {
            values.set(usage, &labels, used / total);
        }
        let queues = stats.hand_offs;
        for (queue, requests) in [
            ("sglang:num_prefill_bootstrap_queue_reqs", queues.bootstrapping),
            ("sglang:num_prefill_inflight_queue_reqs", queues.sending),
            ("sglang:num_decode_prealloc_queue_reqs", queues.preallocating),
            ("sglang:num_decode_transfer_queue_reqs", queues.receiving),
        ] {
            values.set(queue, &labels, requests as f64);
        }
        let reserved = queues.reserved_tokens as f64 / total;
        values.set("sglang:prealloc_full_token_usage", &labels, reserved);
        let retracted = stats.preemptions - self.last.preemptions.min(stats.preemptions);
        values.set("sglang:num_retracted_reqs", &labels, retracted as f64);
        values.add("sglang:num_retracted_requests", &labels, retracted as f64);
        drop(values);
        self.last = *stats;
    }

    /// A first token came at `at`, to a client or from another worker.
    fn first_token(&self, first: &FirstToken<'_>, at: Nanos) {
        let (labels, rank) = (self.info.labels(), self.info.rank_labels(&self.rank));
        let times = first.times;
        let streaming = if first.info.streaming { "true" } else { "false" };
        let by_stream = [labels[0], labels[1], ("is_streaming", streaming)];
        let queued = times.queued_for().as_seconds();
        let mut values = self.registry.lock();
        let ttft = at.since(times.arrival).as_seconds();
        values.observe("sglang:time_to_first_token_seconds", &by_stream, ttft, 1);
        values.observe("sglang:queue_time_seconds", &rank, queued, 1);
    }

    fn end(&self, ended: &Ended<'_>) {
        let (info, times) = (ended.info, ended.times);
        let labels = self.info.labels();
        let streaming = if info.streaming { "true" } else { "false" };
        let by_stream = [labels[0], labels[1], ("is_streaming", streaming)];
        let mut values = self.registry.lock();
        if !matches!(ended.reason, EndReason::Finished(FinishReason::Length | FinishReason::Stop)) {
            values.add("sglang:num_aborted_requests", &labels, 1.0);
            return;
        }
        let (prompt, outputs) = (info.prompt.len() as f64, f64::from(times.output_tokens));
        let cached = f64::from(times.cached_tokens);
        values.add("sglang:prompt_tokens", &by_stream, prompt);
        values.add("sglang:generation_tokens", &by_stream, outputs);
        if cached > 0.0 {
            values.add("sglang:cached_tokens", &[labels[0], labels[1], ("cache_source", "device")], cached);
        }
        values.add("sglang:num_requests", &by_stream, 1.0);
        let e2e = ended.at.since(times.arrival).as_seconds();
        values.observe("sglang:e2e_request_latency_seconds", &by_stream, e2e, 1);
        if let (Some(first), Some(last)) = (times.first_token, times.last_token)
            && times.output_tokens > 1
        {
            let each = last.since(first).as_seconds() / (outputs - 1.0);
            values.observe("sglang:request_time_per_output_token_seconds", &by_stream, each, 1);
        }
        values.observe("sglang:prompt_tokens_histogram", &labels, prompt, 1);
        values.observe("sglang:uncached_prompt_tokens_histogram", &labels, prompt - cached, 1);
        values.observe("sglang:generation_tokens_histogram", &labels, outputs, 1);
    }
}

impl PassObserver for SglangMetrics {
    fn submitted(&mut self, _info: &Arc<RequestInfo>, _at: Nanos, stats: &RankStats) {
        self.stats(stats);
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        self.stats(pass.stats);
        let rank = self.info.rank_labels(&self.rank);
        let labels = self.info.labels();
        let (decodes, prefill) = (pass.scheduled.decode, pass.scheduled.prefill_tokens);
        let hits: u64 = pass.scheduled.admitted.iter().map(|a| u64::from(a.hit_tokens)).sum();
        let mut values = self.registry.lock();
        for (mode, tokens) in
            [("prefill_compute", prefill), ("prefill_cache", hits), ("decode", decodes.count)]
        {
            let mut by_mode = rank.clone();
            by_mode.push(("mode", mode));
            values.add("sglang:realtime_tokens", &by_mode, tokens as f64);
        }
        if prefill > 0 {
            values.set("sglang:cache_hit_rate", &rank, hits as f64 / (hits + prefill) as f64);
        }
        values.set("sglang:decode_sum_seq_lens", &rank, decodes.sum_context as f64);
        let took = pass.end.since(pass.start).as_seconds();
        if took > 0.0 && decodes.count > 0 {
            values.set("sglang:gen_throughput", &rank, pass.tokens as f64 / took);
        }
        for &(gap, times) in pass.gaps {
            values.observe("sglang:inter_token_latency_seconds", &labels, gap.as_seconds(), times);
        }
        drop(values);
        pass.first_tokens.iter().for_each(|first| self.first_token(first, pass.end));
        pass.ended.iter().for_each(|ended| self.end(ended));
    }

    fn handed_over(&mut self, first: &FirstToken<'_>, at: Nanos) {
        self.first_token(first, at);
    }

    fn kv_transfer(&mut self, transfer: &KvTransfer) {
        let labels = self.info.rank_labels(&self.rank);
        let mut values = self.registry.lock();
        let mut stage = |name, took: Nanos| {
            let mut labels = labels.clone();
            labels.push(("stage", name));
            values.observe("sglang:per_stage_req_latency_seconds", &labels, took.as_seconds(), 1);
        };
        match *transfer {
            KvTransfer::Reserved(waited) => stage("decode_bootstrap", waited),
            KvTransfer::Queued(waited) => {
                let prefills = self.info.engine_type == "prefill";
                stage(if prefills { "prefill_bootstrap" } else { "decode_transferred" }, waited);
            }
            KvTransfer::Sent { took, bytes, waited } => {
                stage("prefill_transfer_kv_cache", took);
                let Some(bytes) = bytes else { return };
                // A request is queued in the turn in which its bootstrap is done.
                values.observe("sglang:kv_transfer_bootstrap_ms", &labels, waited.as_ms(), 1);
                values.observe("sglang:kv_transfer_alloc_ms", &labels, 0.0, 1);
                if took == Nanos::ZERO {
                    return;
                }
                values.observe("sglang:kv_transfer_latency_ms", &labels, took.as_ms(), 1);
                if bytes > 0 {
                    // What one accelerator sends.
                    let megabytes = bytes as f64 / f64::from(self.info.tensor.max(1)) / f64::from(1 << 20);
                    values.observe("sglang:kv_transfer_total_mb", &labels, megabytes, 1);
                    let speed = megabytes / 1024.0 / took.as_seconds();
                    values.observe("sglang:kv_transfer_speed_gb_s", &labels, speed, 1);
                }
            }
            KvTransfer::Read(_) | KvTransfer::ReadFailed | KvTransfer::Expired => {}
        }
    }

    fn ended(&mut self, ended: &Ended<'_>, stats: &RankStats) {
        self.stats(stats);
        if ended.reason == EndReason::Finished(FinishReason::Error) {
            // Its hand-off failed: while it was transferred, which begins when one side has computed it, or the other
            // has made room; or before.
            let began = ended.times.first_token.is_some() || ended.times.loaded_tokens > 0;
            let failed = match began {
                true => "sglang:num_transfer_failed_reqs",
                false => "sglang:num_bootstrap_failed_reqs",
            };
            self.registry.lock().add(failed, &self.info.rank_labels(&self.rank), 1.0);
        }
        self.end(ended);
    }

    fn idle(&mut self, _at: Nanos) {
        let labels = self.info.rank_labels(&self.rank);
        let mut values = self.registry.lock();
        values.set("sglang:gen_throughput", &labels, 0.0);
        values.set("sglang:decode_sum_seq_lens", &labels, 0.0);
    }
}
