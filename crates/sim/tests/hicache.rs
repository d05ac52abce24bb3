//! SGLang's HiCache in predictions: what comes back from the host, when, and who waits for copies. That the scheduler does
//! what the real one does is shown by the traces in tests/golden/sglang_hicache.

mod common;

use common::{Asked, Output, SMALL, Trial, asked, in_both_steppers, lines, times};

/// Pages of one token, of which a rank has 60; a pass with prefill takes 10 ms, one with decodes 2. A token is 1 MB.
const TIGHT: [&str; 4] = [
    "engine.backend=sglang",
    "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: trace_timestamps}}",
    "engine.workers.aggregated.kv_cache={block_size: 1, bytes_per_token: 1000000, capacity: {type: fixed, blocks: 60}}",
    "engine.workers.aggregated.scheduler={overlap: false}",
];

fn run(overrides: &[&str], requests: &[Asked]) -> Output {
    let overrides: Vec<&str> = TIGHT.iter().chain(overrides).copied().collect();
    in_both_steppers(&overrides, requests)
}

fn offload(settings: &str) -> String {
    format!("engine.workers.aggregated.kv_cache.host_offload={{num_host_blocks: 200, {settings}}}")
}

/// A prompt of 40 tokens, one of 50 for which it has to go, and the first again.
fn forgotten() -> Vec<Asked> {
    vec![asked(0.0, 0..40, 1), asked(100.0, 1000..1050, 1), asked(200.0, 0..40, 1)]
}

fn tier(output: &Output) -> [Option<f64>; 3] {
    ["host_kv_hit_tokens", "host_kv_bytes_written", "host_kv_bytes_read"].map(|name| output.metric(name))
}

/// 39 tokens are loaded at 3 bytes a nanosecond in 13 ms, beside the pass that computes the last one in 10: layer by
/// layer, so that it ends when the load does.
#[test]
fn a_pass_ends_no_sooner_than_its_load() {
    let output = run(&[&offload("d2h_bandwidth_gbps: 0, h2d_bandwidth_gbps: 3")], &forgotten());
    assert_eq!(times(&output), [[10.0, 0.0], [110.0, 0.0], [213.0, 39.0]]);
    assert_eq!(tier(&output), [Some(39.0), Some(90e6), Some(39e6)]);
    let quick = run(&[&offload("d2h_bandwidth_gbps: 0, h2d_bandwidth_gbps: 0")], &forgotten());
    assert_eq!(times(&quick)[2], [210.0, 39.0]);
}

/// With write-back the second prompt waits until the first is copied, 40 ms at 1 byte a nanosecond; and the third until
/// the second is, 50 ms, beside which its own load takes no time.
#[test]
fn write_back_makes_prompts_wait() {
    let slow = offload("d2h_bandwidth_gbps: 1, h2d_bandwidth_gbps: 0, hicache_write_policy: write_back");
    let output = run(&[&slow], &forgotten());
    assert_eq!(times(&output), [[10.0, 0.0], [150.0, 0.0], [260.0, 39.0]]);
    assert_eq!(tier(&output), [Some(39.0), Some(90e6), Some(39e6)]);
}

/// A prompt that is being copied is held. The second, which needs its room, runs when the copy has ended, at 50.
#[test]
fn what_is_being_copied_holds_its_memory() {
    let slow = offload("d2h_bandwidth_gbps: 1, h2d_bandwidth_gbps: 0");
    let output = run(&[&slow], &[asked(0.0, 0..40, 1), asked(20.0, 1000..1050, 1)]);
    assert_eq!(times(&output), [[10.0, 0.0], [60.0, 0.0]]);
}

/// Of a prompt that is on the host only, 40 tokens, three quarters count when it comes again: 30 of the 130 of all
/// prompts. Other routers hear of the accelerator alone.
#[test]
fn the_kv_router_credits_the_host() {
    let requests = [asked(0.0, 0..40, 1), asked(100.0, 1000..1050, 1), asked(200.0, 0..40, 1)];
    let overlap = |router: &str| {
        let output = run(&[&offload("d2h_bandwidth_gbps: 0"), router], &requests);
        output.metric("router_overlap_ratio")
    };
    assert_eq!(overlap("router={policy: kv_router, block_size: 1}"), Some(30.0 / 130.0));
    assert_eq!(overlap("router={policy: kv_router, block_size: 1, host_cache_hit_weight: 0}"), Some(0.0));
    assert_eq!(overlap("router={policy: scorers, block_size: 1}"), Some(0.0));
}

/// Selective copies nothing that was used once.
#[test]
fn selective_copies_what_is_used_again() {
    let selective = offload("hicache_write_policy: write_through_selective");
    let output = run(&[&selective], &forgotten());
    assert_eq!(times(&output), [[10.0, 0.0], [110.0, 0.0], [210.0, 0.0]]);
    assert_eq!(tier(&output), [Some(0.0), Some(0.0), Some(0.0)]);
}

/// Without a size the host has two tokens for each of the pool, and a page more; a size in GB is one of bytes.
#[test]
fn the_host_is_as_large_as_the_engine_makes_it() {
    let blocks = |settings: &str| {
        let key = format!("engine.workers.aggregated.kv_cache.host_offload={settings}");
        run(&[&key], &forgotten()).prediction()["workers"][0]["host_kv_blocks"].clone()
    };
    assert_eq!(blocks("{}"), 121);
    assert_eq!(blocks("{hicache_ratio: 0.5}"), 31);
    assert_eq!(blocks("{hicache_size: 1}"), 1001);
    assert_eq!(blocks("{num_host_blocks: 7}"), 7);
}

#[test]
fn sizes_that_contradict_each_other_are_refused() {
    let refusal = |overrides: &[&str]| {
        let overrides: Vec<&str> = TIGHT.iter().chain(overrides).copied().collect();
        let trial = Trial::load(SMALL, &overrides, &lines(&forgotten()));
        trial.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let two = refusal(&[&offload("hicache_ratio: 2")]);
    assert!(
        two.contains("host_offload: given, with more than one of num_host_blocks, hicache_ratio"),
        "{two}"
    );
    let uncached = refusal(&[
        &offload("h2d_bandwidth_gbps: 1"),
        "engine.workers.aggregated.kv_cache.prefix_caching=false",
    ]);
    assert!(
        uncached.contains("HiCache is a part of its prefix cache, and prefix_caching is false"),
        "{uncached}"
    );
}
