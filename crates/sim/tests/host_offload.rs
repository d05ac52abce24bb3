//! vLLM's CPU offload in predictions: what comes back from the host, what it costs, and that runs come to an end.
//!
//! M17 of the public bug reports: a second tier shortens prefill, and its hits count as reuse.

mod common;

use common::{Asked, Output, SMALL, Trial, asked, in_both_steppers, lines, times, unlike};

/// Blocks of 4 tokens, of which a rank has 9; a pass with prefill takes 10 ms, one with decodes 2. A token is 1 MB, and
/// comes from the host in 1 ms.
const TIGHT: [&str; 3] = [
    "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: trace_timestamps}}",
    "engine.workers.aggregated.kv_cache={block_size: 4, bytes_per_token: 1000000, capacity: {type: fixed, blocks: 10}}",
    "engine.workers.aggregated.scheduler.async_scheduling=false",
];

const OFFLOAD: &str = "engine.workers.aggregated.kv_cache.host_offload=\
                       {num_host_blocks: 100, d2h_bandwidth_gbps: 0, h2d_bandwidth_gbps: 1}";

/// A prompt of 16 tokens, one of 36 that takes all blocks, and the first again.
fn forgotten() -> Vec<Asked> {
    vec![asked(0.0, 0..16, 1), asked(50.0, 1000..1036, 1), asked(100.0, 0..16, 1)]
}

fn run(overrides: &[&str], requests: &[Asked]) -> Output {
    let overrides: Vec<&str> = TIGHT.iter().chain(overrides).copied().collect();
    in_both_steppers(&overrides, requests)
}

/// Without the tier the third request computes all of its prompt. With it, 16 tokens come back in 16 ms; the last one
/// is computed in a pass like a decode, of 2 ms.
#[test]
fn a_forgotten_prompt_comes_back_from_the_host() {
    let without = run(&[], &forgotten());
    assert_eq!(times(&without), [[10.0, 0.0], [60.0, 0.0], [110.0, 0.0]]);
    let with = run(&[OFFLOAD], &forgotten());
    assert_eq!(times(&with), [[10.0, 0.0], [60.0, 0.0], [118.0, 16.0]]);
    assert_eq!(with.metric("prefix_cache_reused_ratio"), Some(16.0 / 68.0));
    assert_eq!(without.metric("host_kv_hit_tokens"), None);
    // The first prompt's four blocks and the second's nine; the third finds its own there.
    let tier =
        ["host_kv_hit_tokens", "host_kv_bytes_written", "host_kv_bytes_read"].map(|name| with.metric(name));
    assert_eq!(tier, [Some(16.0), Some(52e6), Some(16e6)]);
}

/// 4 blocks of 4 MB to the host at 0.5 bytes a nanosecond take 32 ms; the second prompt wants them at 12 and has to wait
/// until they are copied, at 42 (the copy began at 10, with the pass after the one that filled them).
#[test]
fn a_pass_waits_for_the_copy_of_blocks_that_it_overwrites() {
    let slow = "engine.workers.aggregated.kv_cache.host_offload=\
                {num_host_blocks: 100, d2h_bandwidth_gbps: 0.5, h2d_bandwidth_gbps: 0}";
    let requests = unlike(&[(0.0, 16, 1), (12.0, 36, 1)]);
    assert_eq!(times(&run(&[slow], &requests)), [[10.0, 0.0], [52.0, 0.0]]);
}

/// Scheduled ahead, the second pass is empty: its prompt's first blocks are being copied. The copy begins when the first
/// pass has ended, at 10, and takes 32 ms; then the last token is computed in 2 ms. Nothing but the copy's end wakes the
/// engine, and its report is read with the pass after.
#[test]
fn a_prompt_that_is_being_copied_is_waited_for_without_a_pass() {
    let host = |d2h: &str| {
        format!(
            "engine.workers.aggregated.kv_cache.host_offload=\
             {{num_host_blocks: 100, d2h_bandwidth_gbps: {d2h}, h2d_bandwidth_gbps: 0}}"
        )
    };
    let requests = vec![asked(0.0, 0..16, 1), asked(0.0, 0..16, 1)];
    // One prompt fills a pass.
    let narrow = ["engine.workers.aggregated.scheduler={max_batched_tokens: 16, max_sequences: 8}"];
    for (d2h, second) in [("0.5", 44.0), ("0", 12.0)] {
        let with = host(d2h);
        let ahead = run(&[narrow[0], with.as_str()], &requests);
        assert_eq!(times(&ahead), [[10.0, 0.0], [second, 16.0]], "{d2h}");
        let one_by_one =
            [narrow[0], "engine.workers.aggregated.scheduler.async_scheduling=false", with.as_str()];
        assert_eq!(times(&run(&one_by_one, &requests)), [[10.0, 0.0], [second, 16.0]], "{d2h}");
    }
}

/// A prompt of ten blocks does not fit into a host of four: that is asked in every pass, and costs as much as without.
#[test]
fn a_prompt_larger_than_the_host_is_not_copied() {
    let small = "engine.workers.aggregated.kv_cache.host_offload=\
                 {num_host_blocks: 4, d2h_bandwidth_gbps: 1, h2d_bandwidth_gbps: 1}";
    let requests = unlike(&[(0.0, 32, 4)]);
    let with = run(&[small], &requests);
    assert_eq!(times(&with), times(&run(&[], &requests)));
    assert_eq!(with.metric("host_kv_bytes_written"), Some(0.0));
}

/// A host with six blocks drops the first prompt's four for the six of the second; the nine of the third, which makes
/// the accelerator forget, have no room there at all.
#[test]
fn a_small_host_forgets() {
    let small = "engine.workers.aggregated.kv_cache.host_offload=\
                 {num_host_blocks: 6, d2h_bandwidth_gbps: 0, h2d_bandwidth_gbps: 1}";
    let requests = [
        asked(0.0, 0..16, 1),
        asked(50.0, 1000..1024, 1),
        asked(80.0, 2000..2036, 1),
        asked(120.0, 0..16, 1),
    ];
    assert_eq!(times(&run(&[small], &requests))[3], [130.0, 0.0]);
}

#[test]
fn what_is_not_modelled_is_refused() {
    let refusal = |overrides: &[&str]| {
        let overrides: Vec<&str> = TIGHT.iter().chain(overrides).copied().collect();
        let trial = Trial::load(SMALL, &overrides, &lines(&forgotten()));
        trial.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let theirs = refusal(&[OFFLOAD, "engine.semantics=aisimulate_0_13"]);
    assert!(
        theirs.contains(
            "kv_cache.host_offload: given, but it belongs to aggregated workers of vllm and sglang"
        ),
        "{theirs}"
    );
    let unknown = refusal(&[OFFLOAD, "engine.workers.aggregated.kv_cache.bytes_per_token=auto"]);
    assert!(
        unknown.contains("kv_cache.bytes_per_token: got \"auto\"; with host_offload that needs"),
        "{unknown}"
    );
}
