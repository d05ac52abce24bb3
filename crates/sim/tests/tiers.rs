//! The KV router where workers have tiers below their accelerators' memory: it learns from their events what lies there,
//! and sends a prompt to it.

mod common;

use common::{Asked, Output, SMALL, Trial, asked, in_both_steppers, lines};

const TRACE: &str =
    "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: trace_timestamps}}";
const TWO: &str = "engine.workers.aggregated.parallelism.replicas=2";
const KV: &str = "router={policy: kv_router}";
const HOST: &str = "engine.workers.aggregated.kv_cache.host_offload=\
                    {num_host_blocks: 100, d2h_bandwidth_gbps: 0, h2d_bandwidth_gbps: 1}";

/// Two workers whose accelerators hold 36 tokens, in blocks of 4.
fn settings(backend: &str) -> Vec<&'static str> {
    match backend {
        "vllm" => vec![
            TRACE,
            TWO,
            "engine.workers.aggregated.kv_cache={block_size: 4, bytes_per_token: 1000000, capacity: {type: fixed, blocks: 10}}",
            "engine.workers.aggregated.scheduler.async_scheduling=false",
        ],
        _ => vec![
            TRACE,
            TWO,
            "engine.backend=sglang",
            "engine.workers.aggregated.kv_cache={block_size: 4, bytes_per_token: 1000000, capacity: {type: fixed, blocks: 11}}",
            "engine.workers.aggregated.scheduler={overlap: false}",
        ],
    }
}

/// A prompt of 16 tokens; two of 36, one for each worker, for which it has to go; and the first again with 8 tokens more.
fn forgotten() -> Vec<Asked> {
    vec![asked(0.0, 0..16, 1), asked(50.0, 1000..1036, 1), asked(50.0, 2000..2036, 1), asked(150.0, 0..24, 1)]
}

fn run(settings: &[&str], requests: &[Asked]) -> Output {
    in_both_steppers(settings, requests)
}

/// 4 blocks on the host of the worker that computed them count as 3, 12 tokens; with a weight of 1 as 16. Where they count
/// nothing the router does not look for them, and the prompt goes to either.
#[test]
fn a_prompt_goes_to_the_host_that_has_it() {
    for backend in ["vllm", "sglang"] {
        for (weight, overlap) in [("", 12.0), (", host_cache_hit_weight: 1", 16.0)] {
            for seed in 0..6 {
                let router = format!("router={{policy: kv_router, block_size: 4, seed: {seed}{weight}}}");
                let mut settings = settings(backend);
                settings.extend([HOST, &router]);
                let output = run(&settings, &forgotten());
                let of = |field| output.of(3, field);
                assert_eq!(of("decode_worker_idx"), output.of(0, "decode_worker_idx"), "{backend} {seed}");
                let known = ["router_overlap_tokens", "router_best_overlap_tokens", "router_regret_tokens"];
                assert_eq!(known.map(of), [Some(overlap), Some(overlap), Some(0.0)], "{backend}");
                let below = ["router_host_overlap_tokens", "router_disk_overlap_tokens"];
                assert_eq!(below.map(of), [Some(16.0), Some(0.0)], "{backend}");
                assert_eq!(of("reused_input_tokens"), Some(16.0), "{backend}");
            }
        }
        let mut workers: Vec<bool> = (0..20)
            .map(|seed| {
                let router = format!(
                    "router={{policy: kv_router, block_size: 4, seed: {seed}, host_cache_hit_weight: 0}}"
                );
                let mut settings = settings(backend);
                settings.extend([HOST, &router]);
                let output = run(&settings, &forgotten());
                output.of(3, "decode_worker_idx") == output.of(0, "decode_worker_idx")
            })
            .collect();
        workers.sort_unstable();
        workers.dedup();
        assert_eq!(workers, [false, true], "{backend}");
    }
}

/// Changes of the lower tiers take as long to be known as those of the accelerator's memory, which the prompt entered at
/// 10 ms and left at 60. At 150 it is known to be on the host alone after 50 ms; after 100 it seems still to be on the
/// accelerator, too, where 16 tokens count whole; and after 500 nothing is known of it.
#[test]
fn changes_of_lower_tiers_are_on_their_way_as_long() {
    for (lag, overlap) in [(50, 12.0), (100, 16.0), (500, 0.0)] {
        let router = format!("router={{policy: kv_router, kv_event_lag_ms: {lag}}}");
        let mut settings = settings("vllm");
        settings.extend([HOST, &router]);
        let output = run(&settings, &forgotten());
        assert_eq!(output.of(3, "router_best_overlap_tokens"), Some(overlap));
    }
}

/// Without such a tier there is nothing to credit, nor a field about it.
#[test]
fn a_weight_without_a_tier_is_refused() {
    let mut with = settings("vllm");
    with.push("router={policy: kv_router, host_cache_hit_weight: 0.5}");
    let refusal = Trial::load(SMALL, &with, &lines(&forgotten())).err().unwrap().to_string();
    assert!(refusal.contains("router.host_cache_hit_weight"), "{refusal}");
    let mut without = settings("vllm");
    without.push(KV);
    let output = run(&without, &forgotten());
    assert!(output.requests()[3].get("router_host_overlap_tokens").is_none());
}
