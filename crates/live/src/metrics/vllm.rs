//! vLLM's metrics (vllm/v1/metrics/loggers.py, stats.py, buckets.py, version 0.33.0): all that a server without
//! speculative decoding and LoRA defines, and with NIXL's connector; filled from passes.

use super::registry::Kind::{Counter, Gauge, Histogram, UpToContext};
use super::registry::{Definition, Group, Kind, Registry, Style};
use crate::observer::{Ended, KvTransfer, PassObserver, PassReport, RequestInfo};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use windtunnel_engine::{Nanos, RankStats, Rejection};

const LATENCY: Kind = Histogram(&[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
]);
const TTFT: Kind = Histogram(&[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
]);
const ITL: Kind = Histogram(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
]);
const ITERATION: Kind =
    Histogram(&[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0]);

const fn rank(name: &'static str, kind: Kind, help: &'static str) -> Definition {
    Definition { name, kind, group: Group::Rank, extra: &[], help }
}

const fn parted(
    name: &'static str,
    kind: Kind,
    extra: &'static [(&'static str, &'static [&'static str])],
    help: &'static str,
) -> Definition {
    Definition { name, kind, group: Group::Rank, extra, help }
}

const XFER: Kind = Histogram(&[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0]);
const POST: Kind = Histogram(&[0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0]);
const BYTES: Kind = Histogram(&[
    2048.0,
    8192.0,
    32_768.0,
    131_072.0,
    524_288.0,
    2_097_152.0,
    8_388_608.0,
    33_554_432.0,
    134_217_728.0,
    536_870_912.0,
    2_147_483_648.0,
    8_589_934_592.0,
]);
const DESCRIPTORS: Kind = Histogram(&[
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0,
]);

/// Of ranks with NIXL's connector (vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py).
const fn nixl(name: &'static str, kind: Kind, help: &'static str) -> Definition {
    Definition { name, kind, group: Group::Connector, extra: &[], help }
}

/// In the engine's order.
pub(super) const DEFINITIONS: &[Definition] = &[
    nixl("vllm:nixl_xfer_time_seconds", XFER, "Time of a transfer of KV."),
    nixl("vllm:nixl_post_time_seconds", POST, "Time to post a transfer of KV, not simulated here."),
    nixl("vllm:nixl_bytes_transferred", BYTES, "Bytes of a transfer of KV."),
    nixl("vllm:nixl_num_descriptors", DESCRIPTORS, "Descriptors of a transfer of KV, not simulated here."),
    nixl("vllm:nixl_num_failed_transfers", Counter, "Transfers of KV that failed."),
    nixl("vllm:nixl_num_failed_notifications", Counter, "Notifications that failed."),
    nixl("vllm:nixl_num_kv_expired_reqs", Counter, "Requests whose KV nobody has asked for in time."),
    nixl("vllm:nixl_num_notifications_after_expiry", Counter, "Notifications that came after that."),
    rank("vllm:estimated_flops_per_gpu", Counter, "Floating-point operations, not estimated here."),
    rank("vllm:estimated_read_bytes_per_gpu", Counter, "Bytes read, not estimated here."),
    rank("vllm:estimated_write_bytes_per_gpu", Counter, "Bytes written, not estimated here."),
    rank("vllm:num_requests_running", Gauge, "Requests in the running list."),
    rank("vllm:num_requests_waiting", Gauge, "Requests in the waiting queue."),
    parted(
        "vllm:num_requests_waiting_by_reason",
        Gauge,
        &[("reason", &["capacity", "deferred"])],
        "Waiting requests by what they wait for.",
    ),
    parted(
        "vllm:engine_sleep_state",
        Gauge,
        &[("sleep_state", &["awake", "weights_offloaded", "discard_all"])],
        "1 for the state in which the engine is.",
    ),
    rank("vllm:kv_cache_usage_perc", Gauge, "Share of the KV blocks that are in use, 0 to 1."),
    rank("vllm:prefix_cache_queries", Counter, "Prompt tokens looked up in the prefix cache."),
    rank("vllm:prefix_cache_hits", Counter, "Prompt tokens found in the prefix cache."),
    rank("vllm:external_prefix_cache_queries", Counter, "Prompt tokens looked up in other caches."),
    rank("vllm:external_prefix_cache_hits", Counter, "Prompt tokens found in other caches."),
    rank("vllm:mm_cache_queries", Counter, "Media looked up in the cache of media."),
    rank("vllm:mm_cache_hits", Counter, "Media found in the cache of media."),
    rank("vllm:num_preemptions", Counter, "Times that a request lost its blocks."),
    rank("vllm:prompt_tokens", Counter, "Prompt tokens of requests past their prefill."),
    parted(
        "vllm:prompt_tokens_by_source",
        Counter,
        &[("source", &["local_compute", "local_cache_hit", "external_kv_transfer"])],
        "The same by where their KV comes from.",
    ),
    rank("vllm:prompt_tokens_cached", Counter, "Prompt tokens that were not computed."),
    parted(
        "vllm:prompt_tokens_cached_by_source",
        Counter,
        &[("source", &["device", "host", "p2p", "disk", "external_unspecified"])],
        "The same by where they were cached.",
    ),
    rank("vllm:generation_tokens", Counter, "Output tokens."),
    parted(
        "vllm:request_success",
        Counter,
        &[("finished_reason", &["stop", "length", "abort", "error", "repetition"])],
        "Requests that ended, by how.",
    ),
    Definition {
        name: "vllm:admission_rejections",
        kind: Counter,
        group: Group::Worker,
        extra: &[("reason", &["max_num_queued_reqs", "max_num_queued_tokens"])],
        help: "Requests turned away, by which limit.",
    },
    rank("vllm:request_prompt_tokens", UpToContext, "Prompt tokens of a request."),
    rank("vllm:request_generation_tokens", UpToContext, "Output tokens of a request."),
    rank("vllm:iteration_tokens_total", ITERATION, "Tokens computed and generated in a step."),
    rank("vllm:request_max_num_generation_tokens", UpToContext, "Most output tokens of a request's choices."),
    rank("vllm:request_params_n", Histogram(&[1.0, 2.0, 5.0, 10.0, 20.0]), "Choices asked for."),
    rank("vllm:request_params_max_tokens", UpToContext, "max_tokens asked for."),
    rank("vllm:time_to_first_token_seconds", TTFT, "Time from arrival to first token."),
    rank("vllm:inter_token_latency_seconds", ITL, "Time from token to token."),
    rank("vllm:request_time_per_output_token_seconds", ITL, "Mean time per output token of a request."),
    rank("vllm:e2e_request_latency_seconds", LATENCY, "Time from arrival to end."),
    rank("vllm:request_queue_time_seconds", LATENCY, "Time from arrival to first admission."),
    rank("vllm:request_inference_time_seconds", LATENCY, "Time from first admission to last token."),
    rank("vllm:request_prefill_time_seconds", LATENCY, "Time from first admission to first token."),
    rank("vllm:request_decode_time_seconds", LATENCY, "Time from first to last token."),
    rank(
        "vllm:request_num_preemptions",
        Histogram(&[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0]),
        "Times that a request lost its blocks.",
    ),
    rank("vllm:request_prefill_kv_computed_tokens", UpToContext, "Prompt tokens computed for a request."),
    Definition {
        name: "vllm:cache_config_info",
        kind: Gauge,
        group: Group::Bare,
        extra: &[("engine", &[])],
        help: "Settings of the KV cache, as labels.",
    },
];

/// What the settings of the KV cache are, for `vllm:cache_config_info`.
#[derive(Clone, Debug)]
pub struct CacheInfo {
    /// Tokens per block.
    pub block_size: u32,
    /// All blocks, the null block among them.
    pub num_gpu_blocks: u32,
    /// Whether prefixes are kept.
    pub prefix_caching: bool,
    /// `--prefix-caching-hash-algo`.
    pub hash_algorithm: &'static str,
    /// `--gpu-memory-utilization`.
    pub gpu_memory_utilization: f64,
}

/// The metrics, without series.
pub fn registry(context_length: u32) -> Registry {
    Registry::new(DEFINITIONS, Style::OneProcess, context_length)
}

/// The series of a worker whose ranks have these numbers, all at zero; `connector`: it takes part in transfers of KV.
pub fn add_engines(
    registry: &Registry,
    model: &str,
    engines: Range<u32>,
    cache: &CacheInfo,
    connector: bool,
) {
    for engine in engines.clone() {
        let engine = engine.to_string();
        let labels = [("model_name", model), ("engine", &*engine)];
        registry.add_series(Group::Rank, &labels);
        if connector {
            registry.add_series(Group::Connector, &labels);
        }
        let awake = [("model_name", model), ("engine", &engine), ("sleep_state", "awake")];
        registry.lock().set("vllm:engine_sleep_state", &awake, 1.0);
    }
    registry.add_series(Group::Worker, &[("model_name", model)]);
    for engine in engines {
        let labels = info_labels(cache, engine);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
        registry.lock().set("vllm:cache_config_info", &labels, 1.0);
    }
}

/// Every field of vLLM's `CacheConfig` is a label; those that mean nothing here have the value that they have when
/// nothing is said.
fn info_labels(cache: &CacheInfo, engine: u32) -> Vec<(&'static str, String)> {
    let mut labels = vec![
        ("engine", engine.to_string()),
        ("block_size", cache.block_size.to_string()),
        ("num_gpu_blocks", cache.num_gpu_blocks.to_string()),
        ("enable_prefix_caching", if cache.prefix_caching { "True" } else { "False" }.to_owned()),
        ("prefix_caching_hash_algo", cache.hash_algorithm.to_owned()),
        ("gpu_memory_utilization", format!("{:?}", cache.gpu_memory_utilization)),
    ];
    let mut same = |value: &str, names: &[&'static str]| {
        labels.extend(names.iter().map(|&name| (name, value.to_owned())));
    };
    same("True", &["_block_size_resolved", "user_specified_block_size", "swa_bounded_replay"]);
    same("auto", &["cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype"]);
    same("none", &["mamba_cache_mode"]);
    same("native", &["kv_offloading_backend"]);
    same("[]", &["kv_cache_dtype_skip_layers"]);
    same("0", &["prefix_cache_retention_interval"]);
    same("16", &["replayssm_buffer_len"]);
    same(
        "False",
        &[
            "enable_mamba_shared_prefix_checkpoint",
            "is_attention_free",
            "kv_sharing_fast_prefill",
            "use_kda_recoverssm",
            "use_replayssm",
        ],
    );
    same(
        "None",
        &[
            "cache_hit_alignment_tokens",
            "effective_attention_block_size",
            "hash_block_size",
            "kv_cache_layout",
            "kv_cache_max_concurrency",
            "kv_cache_memory_bytes",
            "kv_cache_size_tokens",
            "kv_offloading_size",
            "mamba_block_size",
            "mamba_page_size_padded",
            "num_cpu_blocks",
            "num_gpu_blocks_override",
            "prefix_match_unit",
            "simple_cpu_offload_num_blocks",
            "skip_page_size_padded",
            "sliding_window",
        ],
    );
    labels
}

/// The choices of requests that asked for several, of which some are still at work: how many, and the most
/// output tokens so far. By the name that all choices of a request have.
#[derive(Clone, Debug, Default)]
pub struct Choices(Arc<Mutex<HashMap<String, (u32, u32)>>>);

impl Choices {
    /// A choice has ended. With the last one, the most output tokens of them all.
    fn ended(&self, info: &RequestInfo, outputs: u32) -> Option<u32> {
        if info.choices <= 1 {
            return Some(outputs);
        }
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, most) = open.remove(&info.name).unwrap_or((info.choices, 0));
        let (left, most) = (left - 1, most.max(outputs));
        if left == 0 {
            return Some(most);
        }
        open.insert(info.name.clone(), (left, most));
        None
    }
}

/// Fills the metrics of one rank.
pub struct VllmMetrics {
    registry: Registry,
    choices: Choices,
    model: String,
    engine: String,
    /// Its part in transfers of KV, if it takes one.
    connector: Option<Connector>,
    last: RankStats,
}

/// What metrics have to know of transfers of KV.
#[derive(Clone, Copy, Debug)]
pub struct Connector {
    /// Accelerators of a rank: each moves its part, and is counted.
    pub tensor: u32,
}

impl VllmMetrics {
    /// For rank `rank`, and its part in transfers of KV. All ranks of a worker share registry and choices.
    pub fn new(
        registry: Registry,
        choices: Choices,
        model: &str,
        (rank, connector): (u32, Option<Connector>),
    ) -> VllmMetrics {
        VllmMetrics {
            registry,
            choices,
            model: model.to_owned(),
            engine: rank.to_string(),
            connector,
            last: RankStats::default(),
        }
    }

    /// Gauges and counters that the rank keeps itself.
    fn stats(&mut self, stats: &RankStats) {
        let labels = [("model_name", &*self.model), ("engine", &*self.engine)];
        let mut values = self.registry.lock();
        values.set("vllm:num_requests_running", &labels, stats.running as f64);
        values.set("vllm:num_requests_waiting", &labels, stats.waiting as f64);
        let usage = f64::from(stats.used_blocks) / f64::from(stats.usable_blocks.max(1));
        values.set("vllm:kv_cache_usage_perc", &labels, usage);
        let capacity = [labels[0], labels[1], ("reason", "capacity")];
        let deferred = [labels[0], labels[1], ("reason", "deferred")];
        values.set(
            "vllm:num_requests_waiting_by_reason",
            &capacity,
            stats.waiting.saturating_sub(stats.deferred) as f64,
        );
        values.set("vllm:num_requests_waiting_by_reason", &deferred, stats.deferred as f64);
        let grown = |now: u64, before: u64| (now - before.min(now)) as f64;
        values.add(
            "vllm:prefix_cache_queries",
            &labels,
            grown(stats.prefix_queries, self.last.prefix_queries),
        );
        values.add("vllm:prefix_cache_hits", &labels, grown(stats.prefix_hits, self.last.prefix_hits));
        values.add("vllm:num_preemptions", &labels, grown(stats.preemptions, self.last.preemptions));
        drop(values);
        self.last = *stats;
    }

    fn end(&self, ended: &Ended<'_>) {
        let labels = [("model_name", &*self.model), ("engine", &*self.engine)];
        let (info, times) = (ended.info, ended.times);
        let mut values = self.registry.lock();
        let reason = [labels[0], labels[1], ("finished_reason", ended.reason.as_str())];
        values.add("vllm:request_success", &reason, 1.0);
        let mut seconds = |name, from: Option<Nanos>, to: Option<Nanos>| {
            let spent = match (from, to) {
                (Some(from), Some(to)) => to.since(from),
                _ => Nanos::ZERO,
            };
            values.observe(name, &labels, spent.as_seconds(), 1);
        };
        seconds("vllm:e2e_request_latency_seconds", Some(times.arrival), Some(ended.at));
        seconds("vllm:request_queue_time_seconds", Some(times.arrival), times.first_admit);
        seconds("vllm:request_prefill_time_seconds", times.first_admit, times.first_token);
        seconds("vllm:request_inference_time_seconds", times.first_admit, times.last_token);
        seconds("vllm:request_decode_time_seconds", times.first_token, times.last_token);
        let tpot = match (times.first_token, times.last_token) {
            (Some(first), Some(last)) if times.output_tokens > 1 => {
                last.since(first).as_seconds() / f64::from(times.output_tokens - 1)
            }
            _ => 0.0,
        };
        values.observe("vllm:request_time_per_output_token_seconds", &labels, tpot, 1);
        let prompt = info.prompt.len() as f64;
        values.observe("vllm:request_num_preemptions", &labels, f64::from(times.preemptions), 1);
        values.observe(
            "vllm:request_prefill_kv_computed_tokens",
            &labels,
            prompt - f64::from(times.known_tokens()),
            1,
        );
        values.observe("vllm:request_prompt_tokens", &labels, prompt, 1);
        let outputs = f64::from(times.output_tokens);
        values.observe("vllm:request_generation_tokens", &labels, outputs, 1);
        if let Some(most) = self.choices.ended(info, times.output_tokens) {
            values.observe("vllm:request_max_num_generation_tokens", &labels, f64::from(most), 1);
            values.observe("vllm:request_params_n", &labels, f64::from(info.choices), 1);
        }
        values.observe("vllm:request_params_max_tokens", &labels, f64::from(info.max_tokens), 1);
    }
}

impl PassObserver for VllmMetrics {
    fn submitted(&mut self, _info: &Arc<RequestInfo>, _at: Nanos, stats: &RankStats) {
        self.stats(stats);
    }

    fn rejected(&mut self, _info: &RequestInfo, reason: Rejection, _at: Nanos) {
        let reason = match reason {
            Rejection::QueueFull { .. } => "max_num_queued_reqs",
            Rejection::QueuedTokensFull { .. } => "max_num_queued_tokens",
            _ => return,
        };
        let labels = [("model_name", &*self.model), ("reason", reason)];
        self.registry.lock().add("vllm:admission_rejections", &labels, 1.0);
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        self.stats(pass.stats);
        let labels = [("model_name", &*self.model), ("engine", &*self.engine)];
        let (mut computed, mut cached, mut loaded) = (0, 0, 0);
        for first in pass.first_tokens {
            cached += u64::from(first.times.cached_tokens);
            loaded += u64::from(first.times.loaded_tokens);
            computed += (first.info.prompt.len() as u64).saturating_sub(first.times.known_tokens().into());
        }
        let mut values = self.registry.lock();
        // Whoever has a connector asks it at every first admission.
        let asked =
            pass.scheduled.admitted.iter().filter(|a| self.connector.is_some() && !a.loaded && !a.resumed);
        let asked: u64 = asked.map(|admitted| u64::from(admitted.known_tokens - admitted.hit_tokens)).sum();
        values.add("vllm:external_prefix_cache_queries", &labels, asked as f64);
        for load in &pass.scheduled.loads {
            let asked = f64::from(load.known_tokens - load.hit_tokens);
            values.add("vllm:external_prefix_cache_queries", &labels, asked);
            values.add("vllm:external_prefix_cache_hits", &labels, f64::from(load.tokens));
            let unspecified = [labels[0], labels[1], ("source", "external_unspecified")];
            values.add("vllm:prompt_tokens_cached_by_source", &unspecified, f64::from(load.tokens));
        }
        values.add("vllm:prompt_tokens", &labels, (computed + cached + loaded) as f64);
        let source = |source| [labels[0], labels[1], ("source", source)];
        values.add("vllm:prompt_tokens_by_source", &source("local_compute"), computed as f64);
        values.add("vllm:prompt_tokens_by_source", &source("local_cache_hit"), cached as f64);
        values.add("vllm:prompt_tokens_by_source", &source("external_kv_transfer"), loaded as f64);
        values.add("vllm:prompt_tokens_cached", &labels, (cached + loaded) as f64);
        values.add("vllm:prompt_tokens_cached_by_source", &source("device"), cached as f64);
        values.add("vllm:generation_tokens", &labels, pass.tokens as f64);
        if pass.tokens > 0 {
            values.observe("vllm:iteration_tokens_total", &labels, (computed + pass.tokens) as f64, 1);
        }
        for &(gap, times) in pass.gaps {
            values.observe("vllm:inter_token_latency_seconds", &labels, gap.as_seconds(), times);
        }
        for first in pass.first_tokens {
            let ttft = first.times.first_token.unwrap_or(pass.end).since(first.times.arrival);
            values.observe("vllm:time_to_first_token_seconds", &labels, ttft.as_seconds(), 1);
        }
        drop(values);
        pass.ended.iter().for_each(|ended| self.end(ended));
    }

    fn kv_transfer(&mut self, transfer: &KvTransfer) {
        let labels = [("model_name", &*self.model), ("engine", &*self.engine)];
        let mut values = self.registry.lock();
        match (transfer, self.connector) {
            (KvTransfer::Read(moved), Some(Connector { tensor })) => {
                let each = u64::from(tensor.max(1));
                values.observe("vllm:nixl_xfer_time_seconds", &labels, moved.took.as_seconds(), each);
                if moved.bytes > 0 {
                    let bytes = moved.bytes as f64 / each as f64;
                    values.observe("vllm:nixl_bytes_transferred", &labels, bytes, each);
                }
            }
            (KvTransfer::ReadFailed, Some(_)) => values.add("vllm:nixl_num_failed_transfers", &labels, 1.0),
            (KvTransfer::Expired, Some(_)) => values.add("vllm:nixl_num_kv_expired_reqs", &labels, 1.0),
            (KvTransfer::Reserved(_) | KvTransfer::Queued(_) | KvTransfer::Sent { .. }, _) | (_, None) => {}
        }
    }

    fn ended(&mut self, ended: &Ended<'_>, stats: &RankStats) {
        self.stats(stats);
        self.end(ended);
    }
}
