//! The metrics that SGLang's scheduler and tokenizer define (sglang/srt/observability/metrics_collector.py, version
//! 0.5.23), in the engine's order. What is labelled with things that are not modelled has no series.

use super::registry::Kind::{self, Counter, Gauge, Histogram};
use super::registry::{Definition, Group};

const fn rank(name: &'static str, kind: Kind, extra: Extra) -> Definition {
    Definition { name, kind, group: Group::Rank, extra, help: "" }
}

const fn request(name: &'static str, kind: Kind, extra: Extra) -> Definition {
    Definition { name, kind, group: Group::Worker, extra, help: "" }
}

type Extra = &'static [(&'static str, &'static [&'static str])];

const DECODE_DEFERRED_KV_RELEASE_SECONDS: Kind =
    Histogram(&[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0]);
const KV_TRANSFER_SPEED_GB_S: Kind = Histogram(&[0.1, 0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0]);
const KV_TRANSFER_LATENCY_MS: Kind =
    Histogram(&[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0]);
const KV_TRANSFER_BOOTSTRAP_MS: Kind =
    Histogram(&[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0]);
const KV_TRANSFER_TOTAL_MB: Kind = Histogram(&[1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10000.0]);
const QUEUE_TIME_SECONDS: Kind = Histogram(&[
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0,
    1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
]);
const PER_STAGE_REQ_LATENCY_SECONDS: Kind = Histogram(&[
    0.001,
    0.0016200000000000001,
    0.0026244000000000007,
    0.004251528,
    0.006887475360000002,
    0.011157710083200004,
    0.018075490334784006,
    0.029282294342350097,
    0.047437316834607154,
    0.07684845327206359,
    0.12449449430074302,
    0.20168108076720373,
    0.3267233508428701,
    0.5292918283654495,
    0.8574527619520282,
    1.389073474362286,
    2.2502990284669036,
    3.6454844261163837,
    5.905684770308542,
    9.567209327899839,
    15.49887911119774,
    25.10818416014034,
    40.67525833942735,
    65.89391850987231,
    106.74814798599316,
    172.93199973730896,
    280.1498395744405,
    453.84274011059364,
    735.2252389791618,
    1191.064887146242,
]);
const GRAMMAR_COMPILATION_TIME_SECONDS: Kind = Histogram(&[
    0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 240.0,
]);
const GRAMMAR_SCHEMA_COUNT: Kind = Histogram(&[
    0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0, 120.0, 140.0, 160.0, 180.0, 200.0, 300.0,
    400.0, 500.0, 700.0, 1000.0,
]);
const GRAMMAR_EBNF_SIZE: Kind = Histogram(&[
    0.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0, 3000.0, 5000.0, 10000.0, 20000.0, 30000.0,
    50000.0, 100000.0,
]);
const GRAMMAR_TREE_TRAVERSAL_TIME_AVG: Kind = Histogram(&[
    0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 90.0, 120.0, 240.0,
]);
const DP_ATTENTION_TOKEN_IMBALANCE_RATIO: Kind =
    Histogram(&[1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0]);
const DP_ATTENTION_SYNC_WAIT_SECONDS: Kind =
    Histogram(&[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0]);
const PREFILL_DELAYER_WAIT_FORWARD_PASSES: Kind = Histogram(&[0.0, 5.0, 20.0, 29.0]);
const PREFILL_DELAYER_WAIT_SECONDS: Kind =
    Histogram(&[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
const PROMPT_TOKENS_HISTOGRAM: Kind = Histogram(&[
    100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0,
    9000.0, 10000.0, 12500.0, 15000.0, 17500.0, 20000.0, 22500.0, 25000.0, 27500.0, 30000.0, 35000.0,
    40000.0, 60000.0, 80000.0, 100000.0, 200000.0, 300000.0, 400000.0, 600000.0, 800000.0, 1000000.0,
    1100000.0,
]);
const GET_LOADS_DURATION_SECONDS: Kind =
    Histogram(&[0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0]);
const TIME_TO_FIRST_TOKEN_SECONDS: Kind = Histogram(&[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
]);
const INTER_TOKEN_LATENCY_SECONDS: Kind = Histogram(&[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6,
    0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
]);
const E2E_REQUEST_LATENCY_SECONDS: Kind = Histogram(&[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
    600.0, 1200.0, 1800.0, 2400.0,
]);

/// In the engine's order. Help texts are not shown by it.
pub(super) const DEFINITIONS: &[Definition] = &[
    rank("sglang:num_running_reqs", Gauge, &[]),
    rank("sglang:num_queue_reqs", Gauge, &[]),
    rank("sglang:num_grammar_queue_reqs", Gauge, &[]),
    rank("sglang:gen_throughput", Gauge, &[]),
    rank("sglang:cache_hit_rate", Gauge, &[]),
    rank("sglang:decode_sum_seq_lens", Gauge, &[]),
    rank("sglang:token_usage", Gauge, &[]),
    rank("sglang:full_token_usage", Gauge, &[]),
    rank("sglang:swa_token_usage", Gauge, &[]),
    rank("sglang:mamba_usage", Gauge, &[]),
    rank("sglang:num_used_tokens", Gauge, &[]),
    rank("sglang:kv_available_tokens", Gauge, &[]),
    rank("sglang:kv_evictable_tokens", Gauge, &[]),
    rank("sglang:kv_used_tokens", Gauge, &[]),
    rank("sglang:swa_available_tokens", Gauge, &[]),
    rank("sglang:swa_evictable_tokens", Gauge, &[]),
    rank("sglang:swa_used_tokens", Gauge, &[]),
    rank("sglang:mamba_available_tokens", Gauge, &[]),
    rank("sglang:mamba_evictable_tokens", Gauge, &[]),
    rank("sglang:mamba_used_tokens", Gauge, &[]),
    rank("sglang:weight_load_duration_seconds", Gauge, &[("source", &[])]),
    rank("sglang:spec_accept_length", Gauge, &[]),
    rank("sglang:spec_accept_rate", Gauge, &[]),
    rank("sglang:spec_cap_length", Gauge, &[]),
    rank("sglang:spec_block_accept_length", Gauge, &[]),
    rank("sglang:spec_num_steps", Gauge, &[]),
    rank("sglang:spec_num_draft_tokens", Gauge, &[]),
    rank("sglang:num_retracted_reqs", Gauge, &[]),
    rank("sglang:num_retracted_requests", Counter, &[]),
    rank("sglang:num_retracted_input_tokens", Counter, &[]),
    rank("sglang:num_retracted_output_tokens", Counter, &[]),
    rank("sglang:num_paused_reqs", Gauge, &[]),
    rank("sglang:num_prefill_bootstrap_queue_reqs", Gauge, &[]),
    rank("sglang:num_prefill_inflight_queue_reqs", Gauge, &[]),
    rank("sglang:num_decode_prealloc_queue_reqs", Gauge, &[]),
    rank("sglang:num_decode_transfer_queue_reqs", Gauge, &[]),
    rank("sglang:num_decode_host_receive_queue_reqs", Gauge, &[]),
    rank("sglang:num_decode_host_receive_reqs", Counter, &[]),
    rank("sglang:num_decode_deferred_kv_release_reqs", Gauge, &[]),
    rank("sglang:decode_deferred_kv_release_seconds", DECODE_DEFERRED_KV_RELEASE_SECONDS, &[]),
    rank("sglang:decode_deferred_kv_release", Counter, &[("outcome", &[])]),
    rank("sglang:kv_transfer_speed_gb_s", KV_TRANSFER_SPEED_GB_S, &[]),
    rank("sglang:kv_transfer_latency_ms", KV_TRANSFER_LATENCY_MS, &[]),
    rank("sglang:pending_prealloc_token_usage", Gauge, &[]),
    rank("sglang:prealloc_full_token_usage", Gauge, &[]),
    rank("sglang:prealloc_swa_token_usage", Gauge, &[]),
    rank("sglang:num_bootstrap_failed_reqs", Counter, &[]),
    rank("sglang:num_transfer_failed_reqs", Counter, &[]),
    rank("sglang:num_prefill_retries", Counter, &[]),
    rank("sglang:kv_transfer_bootstrap_ms", KV_TRANSFER_BOOTSTRAP_MS, &[]),
    rank("sglang:kv_transfer_alloc_ms", KV_TRANSFER_BOOTSTRAP_MS, &[]),
    rank("sglang:kv_transfer_total_mb", KV_TRANSFER_TOTAL_MB, &[]),
    rank("sglang:utilization", Gauge, &[]),
    rank("sglang:fwd_occupancy", Gauge, &[]),
    rank("sglang:new_token_ratio", Gauge, &[]),
    rank("sglang:is_cuda_graph", Gauge, &[]),
    rank("sglang:cuda_graph_passes", Counter, &[("mode", &[])]),
    rank("sglang:num_unique_running_routing_keys", Gauge, &[]),
    rank("sglang:routing_key_running_req_count", Gauge, &[("gt", &[]), ("le", &[])]),
    rank("sglang:routing_key_all_req_count", Gauge, &[("gt", &[]), ("le", &[])]),
    rank("sglang:queue_time_seconds", QUEUE_TIME_SECONDS, &[]),
    rank("sglang:per_stage_req_latency_seconds", PER_STAGE_REQ_LATENCY_SECONDS, &[("stage", &[])]),
    rank("sglang:grammar_compilation_time_seconds", GRAMMAR_COMPILATION_TIME_SECONDS, &[]),
    rank("sglang:num_grammar_cache_hit", Counter, &[]),
    rank("sglang:num_grammar_aborted", Counter, &[]),
    rank("sglang:num_grammar_timeout", Counter, &[]),
    rank("sglang:num_grammar", Counter, &[]),
    rank("sglang:grammar_schema_count", GRAMMAR_SCHEMA_COUNT, &[]),
    rank("sglang:grammar_ebnf_size", GRAMMAR_EBNF_SIZE, &[]),
    rank("sglang:grammar_tree_traversal_time_avg", GRAMMAR_TREE_TRAVERSAL_TIME_AVG, &[]),
    rank("sglang:grammar_tree_traversal_time_max", GRAMMAR_TREE_TRAVERSAL_TIME_AVG, &[]),
    rank("sglang:realtime_tokens", Counter, &[("mode", &["prefill_compute", "prefill_cache", "decode"])]),
    rank("sglang:prefill_effective_tokens", Counter, &[("mode", &[])]),
    rank("sglang:forward_execution_seconds", Counter, &[("category", &[])]),
    rank("sglang:scheduler_idle_seconds", Counter, &[]),
    rank("sglang:scheduler_process_cpu_seconds", Counter, &[]),
    rank("sglang:scheduler_stage_seconds", Counter, &[("category", &[]), ("forward_overlap", &[])]),
    rank("sglang:estimated_flops_per_gpu", Counter, &[]),
    rank("sglang:estimated_read_bytes_per_gpu", Counter, &[]),
    rank("sglang:estimated_write_bytes_per_gpu", Counter, &[]),
    rank("sglang:dp_cooperation_realtime_tokens", Counter, &[("mode", &[]), ("num_prefill_ranks", &[])]),
    rank(
        "sglang:dp_cooperation_forward_execution_seconds",
        Counter,
        &[("category", &[]), ("num_prefill_ranks", &[])],
    ),
    rank("sglang:dp_attention_tokens", Counter, &[("kind", &[])]),
    rank("sglang:dp_attention_steps", Counter, &[("rank_state", &[])]),
    rank("sglang:dp_attention_pairs", Counter, &[("kind", &[])]),
    rank("sglang:dp_attention_token_imbalance_ratio", DP_ATTENTION_TOKEN_IMBALANCE_RATIO, &[]),
    rank("sglang:dp_attention_sync_wait_seconds", DP_ATTENTION_SYNC_WAIT_SECONDS, &[]),
    rank("sglang:prefill_delayer_wait_forward_passes", PREFILL_DELAYER_WAIT_FORWARD_PASSES, &[]),
    rank("sglang:prefill_delayer_wait_seconds", PREFILL_DELAYER_WAIT_SECONDS, &[]),
    rank(
        "sglang:prefill_delayer_outcomes",
        Counter,
        &[
            ("actual_execution", &[]),
            ("input_estimation", &[]),
            ("output_allow", &[]),
            ("output_reason", &[]),
        ],
    ),
    rank("sglang:max_total_num_tokens", Gauge, &[]),
    rank("sglang:max_total_num_tokens_swa", Gauge, &[]),
    rank("sglang:weight_memory_usage_gb", Gauge, &[]),
    rank("sglang:kv_cache_memory_usage_gb", Gauge, &[]),
    rank("sglang:graph_memory_usage_gb", Gauge, &[("phase", &[])]),
    rank("sglang:max_running_requests_under_SLO", Gauge, &[]),
    rank("sglang:page_size", Gauge, &[]),
    rank("sglang:num_pages", Gauge, &[]),
    rank("sglang:context_len", Gauge, &[]),
    rank("sglang:startup_available_gpu_memory_gb", Gauge, &[]),
    request("sglang:startup_time_seconds", Gauge, &[("phase", &[])]),
    request("sglang:startup_cuda_graph_time_seconds", Gauge, &[("phase", &[])]),
    request("sglang:prompt_tokens", Counter, &[("is_streaming", &["true", "false"])]),
    request("sglang:generation_tokens", Counter, &[("is_streaming", &["true", "false"])]),
    request("sglang:spec_verify_calls", Counter, &[]),
    request("sglang:prompt_tokens_histogram", PROMPT_TOKENS_HISTOGRAM, &[]),
    request("sglang:uncached_prompt_tokens_histogram", PROMPT_TOKENS_HISTOGRAM, &[]),
    request("sglang:generation_tokens_histogram", PROMPT_TOKENS_HISTOGRAM, &[]),
    request("sglang:cached_tokens", Counter, &[("cache_source", &["device"])]),
    request("sglang:num_requests", Counter, &[("is_streaming", &["true", "false"])]),
    request("sglang:get_loads_duration_seconds", GET_LOADS_DURATION_SECONDS, &[]),
    request("sglang:num_so_requests", Counter, &[]),
    request("sglang:num_aborted_requests", Counter, &[]),
    request(
        "sglang:time_to_first_token_seconds",
        TIME_TO_FIRST_TOKEN_SECONDS,
        &[("is_streaming", &["true", "false"])],
    ),
    request("sglang:inter_token_latency_seconds", INTER_TOKEN_LATENCY_SECONDS, &[]),
    request(
        "sglang:request_time_per_output_token_seconds",
        INTER_TOKEN_LATENCY_SECONDS,
        &[("is_streaming", &["true", "false"])],
    ),
    request(
        "sglang:e2e_request_latency_seconds",
        E2E_REQUEST_LATENCY_SECONDS,
        &[("is_streaming", &["true", "false"])],
    ),
];
