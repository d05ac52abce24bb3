//! A disk behind the host's memory (the tier `fs` of vLLM's tiered offload) in predictions: what comes back from it, by way
//! of the host, and what that costs.

mod common;

use common::{Asked, Output, SMALL, Trial, asked, in_both_steppers, lines, times};

/// Blocks of 4 tokens, of which a rank has 9 and its host 9; a pass with prefill takes 10 ms, one with decodes 2. A token
/// is 1 MB, and comes from the host in 1 ms.
const TIGHT: [&str; 3] = [
    "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: trace_timestamps}}",
    "engine.workers.aggregated.kv_cache={block_size: 4, bytes_per_token: 1000000, capacity: {type: fixed, blocks: 10}, \
     host_offload: {num_host_blocks: 9, d2h_bandwidth_gbps: 0, h2d_bandwidth_gbps: 1}}",
    "engine.workers.aggregated.scheduler.async_scheduling=false",
];

fn disk(settings: &str) -> String {
    format!("engine.workers.aggregated.kv_cache.g3_offload={{scope: worker_local, {settings}}}")
}

/// A prompt of 16 tokens, one of 36 for which both tiers have to forget it, and the first again.
fn forgotten() -> Vec<Asked> {
    vec![asked(0.0, 0..16, 1), asked(50.0, 1000..1036, 1), asked(100.0, 0..16, 1)]
}

fn run(overrides: &[&str], requests: &[Asked]) -> Output {
    let overrides: Vec<&str> = TIGHT.iter().chain(overrides).copied().collect();
    in_both_steppers(&overrides, requests)
}

fn tier(output: &Output) -> [Option<f64>; 3] {
    ["disk_kv_hit_tokens", "disk_kv_bytes_written", "disk_kv_bytes_read"].map(|name| output.metric(name))
}

/// Without a disk the third request computes its prompt. With one, 16 tokens are read at 1 byte a nanosecond in 16 ms, come
/// from the host in another 16, and the last one is computed in 2. Look-ups take as long as the latency, which each copy
/// has, too: half a millisecond twice.
#[test]
fn what_both_tiers_forgot_comes_back_from_the_disk() {
    assert_eq!(times(&run(&[], &forgotten()))[2], [110.0, 0.0]);
    let output = run(&[&disk("latency_to_first_byte_ms: 0, read_bandwidth_gbps: 1")], &forgotten());
    assert_eq!(times(&output), [[10.0, 0.0], [60.0, 0.0], [134.0, 16.0]]);
    // The first prompt's four blocks, and the second's nine.
    assert_eq!(tier(&output), [Some(16.0), Some(52e6), Some(16e6)]);
    assert_eq!(output.metric("host_kv_hit_tokens"), Some(16.0));
    let late = run(&[&disk("latency_to_first_byte_ms: 0.5, read_bandwidth_gbps: 1")], &forgotten());
    assert_eq!(times(&late)[2], [135.0, 16.0]);
    let quick = run(&[&disk("latency_to_first_byte_ms: 0, read_bandwidth_gbps: 0")], &forgotten());
    assert_eq!(times(&quick)[2], [118.0, 16.0]);
}

/// What is not written yet is not there: 4 blocks of 4 MB at 0.1 bytes a nanosecond take from 10 to 170 ms. Nor does what
/// the disk still reads from leave the host: of the second prompt's nine blocks nothing is stored, for which four would
/// have to go.
#[test]
fn what_is_being_written_is_on_the_host_and_not_on_the_disk() {
    let output = run(&[&disk("latency_to_first_byte_ms: 0, write_bandwidth_gbps: 0.1")], &forgotten());
    assert_eq!(times(&output)[2], [118.0, 16.0]);
    assert_eq!(tier(&output), [Some(0.0), Some(16e6), Some(0.0)]);
}

/// A disk of 9 blocks forgets the four that were used least recently for the second prompt's; one of 13 has all.
#[test]
fn a_small_disk_forgets_what_was_used_least_recently() {
    for (blocks, expected) in [(9, [110.0, 0.0]), (12, [134.0, 12.0]), (13, [134.0, 16.0])] {
        let settings =
            format!("num_g3_blocks: {blocks}, latency_to_first_byte_ms: 0, read_bandwidth_gbps: 1");
        let output = run(&[&disk(&settings)], &forgotten());
        if blocks != 12 {
            assert_eq!(times(&output)[2], expected, "{blocks} blocks");
        }
        let worker = &output.prediction()["workers"][0];
        assert_eq!(worker["disk_kv_blocks"], blocks);
        assert!(worker["disk_kv_used_blocks"].as_u64().unwrap() <= blocks);
    }
}

/// The router credits what is on a disk, behind what is on the host: 16 tokens there count as 4 with the usual weight, of
/// which the worker that has them is told apart.
#[test]
fn the_kv_router_credits_the_disk() {
    let two = "engine.workers.aggregated.parallelism.replicas=2";
    let both = disk("latency_to_first_byte_ms: 0");
    for (weight, overlap) in [("", 4.0), (", disk_cache_hit_weight: 1", 16.0)] {
        for seed in 0..6 {
            let router = format!("router={{policy: kv_router, seed: {seed}{weight}}}");
            let requests = [
                asked(0.0, 0..16, 1),
                asked(50.0, 1000..1036, 1),
                asked(50.0, 2000..2036, 1),
                asked(150.0, 0..24, 1),
            ];
            let output = run(&[two, &both, &router], &requests);
            assert_eq!(output.of(3, "decode_worker_idx"), output.of(0, "decode_worker_idx"), "seed {seed}");
            let known = ["router_overlap_tokens", "router_host_overlap_tokens", "router_disk_overlap_tokens"];
            assert_eq!(known.map(|name| output.of(3, name)), [Some(overlap), Some(0.0), Some(16.0)]);
        }
    }
}

#[test]
fn what_is_not_modelled_is_refused() {
    let refusal = |overrides: &[&str]| {
        let overrides: Vec<&str> = TIGHT.iter().chain(overrides).copied().collect();
        let trial = Trial::load(SMALL, &overrides, &lines(&forgotten()));
        trial.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let without =
        refusal(&[&disk("num_g3_blocks: 4"), "engine.workers.aggregated.kv_cache.host_offload=null"]);
    assert!(without.contains("kv_cache.host_offload is needed, too"), "{without}");
    let shared = refusal(&["engine.workers.aggregated.kv_cache.g3_offload={scope: cluster_shared}"]);
    assert!(shared.contains("a disk that several ranks share is not supported yet"), "{shared}");
    let elsewhere = refusal(&[
        "engine.backend=sglang",
        "engine.workers.aggregated.scheduler={overlap: false}",
        &disk("num_g3_blocks: 4"),
    ]);
    assert!(elsewhere.contains("g3_offload: given, but it belongs to backend vllm"), "{elsewhere}");
    let weight = refusal(&["router={policy: kv_router, disk_cache_hit_weight: 0.5}"]);
    assert!(weight.contains("router.disk_cache_hit_weight"), "{weight}");
}
