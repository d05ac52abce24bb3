//! Separate prefill and decode workers: a small pair of each engine, and random deployments of them.

use super::{Asked, Output, asked};
use proptest::prelude::*;
use windtunnel_sim::Stepper;

pub const STEPPERS: [Stepper; 2] = [Stepper::Plain, Stepper::Fast];

/// One prefill and one decode worker with blocks of 4, a budget of 64 and 8 seats; a pass with prefill takes 10 ms,
/// one with decodes 2.
pub const PAIR: &str = "\
traffic:
  source: {type: trace, format: requests, paths: [trace.jsonl]}
  load: {type: trace_timestamps}
engine:
  mode: disaggregated
  model: m
  hardware: h
  workers:
    prefill:
      scheduler: {max_batched_tokens: 64, max_sequences: 8}
      kv_cache: {block_size: 4, capacity: {type: fixed, blocks: 65}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
    decode:
      scheduler: {max_batched_tokens: 64, max_sequences: 8}
      kv_cache: {block_size: 4, capacity: {type: fixed, blocks: 65}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

/// The same of SGLang: pages of a token, 256 of them.
pub const SGLANG: [&str; 5] = [
    "engine.backend=sglang",
    "engine.workers.prefill.scheduler={max_sequences: 8}",
    "engine.workers.prefill.kv_cache={block_size: 1, capacity: {type: fixed, blocks: 256}}",
    "engine.workers.decode.scheduler={max_sequences: 8}",
    "engine.workers.decode.kv_cache={block_size: 1, capacity: {type: fixed, blocks: 256}}",
];

pub const TRTLLM: [&str; 1] = ["engine.backend=trtllm"];

/// A byte a nanosecond: a token of 1 MB takes 1 ms.
pub const MS_A_TOKEN: &str = "engine.kv_transfer={bytes_per_token: 1000000, bandwidth_gb_per_second: 1, \
                          timing_mode: full_prompt}";

pub fn assert_free_at_the_end(output: &Output) {
    let samples = output.telemetry();
    let last = samples.last().unwrap()["time_ms"].clone();
    for sample in samples.iter().filter(|sample| sample["time_ms"] == last) {
        assert_eq!(sample["kv_blocks_used"], 0, "{sample}");
    }
}

fn requests() -> impl Strategy<Value = Vec<Asked>> {
    let one = (0u32..40, 0usize..3, 0u32..24, 1u32..24, 1u32..30, prop::option::of(1u32..30));
    prop::collection::vec(one, 1..40).prop_map(|all| {
        let mut at = 0.0;
        type One = (u32, usize, u32, u32, u32, Option<u32>);
        let request = |(number, (gap, prefix, shared, own, outputs, stop)): (u32, One)| {
            at += f64::from(gap);
            let shared = (0..shared).map(|token| token + 1000 * prefix as u32);
            let own: std::ops::Range<u32> = number * 1000 + 100_000..number * 1000 + 100_000 + own;
            let output: Vec<u32> = (0..outputs).map(|k| number * 1000 + 500_000 + k).collect();
            let stop = stop.and_then(|k| output.get(k as usize).copied());
            Asked { output, stop, ..asked(at, shared.chain(own), outputs) }
        };
        (1..).zip(all).map(request).collect()
    })
}

/// A deployment of separate workers, as overrides of [`PAIR`], and what is asked of it.
#[derive(Clone, Debug)]
pub struct Apart {
    pub requests: Vec<Asked>,
    pub overrides: Vec<String>,
    pub sglang: bool,
    pub closed: bool,
    /// Of either role, prefill first.
    pub replicas: [u32; 2],
    /// The router hears of the prefill workers' caches.
    pub hears: bool,
}

/// Small pools, few seats, several workers, and every kind of transfer.
pub fn case() -> impl Strategy<Value = Apart> {
    let sglang = prop::option::of((0usize..3, 0u32..30, 0u32..3, any::<bool>()));
    let sizes = ((20u32..60, 20u32..60), (1u32..6, 1u32..6), (1u32..4, 1u32..4));
    let kind = (any::<bool>(), any::<bool>(), 0usize..4, any::<bool>());
    let all = (requests(), sglang, any::<bool>(), 0usize..14, sizes, kind);
    all.prop_map(|(requests, sglang, trtllm, router, (blocks, seats, replicas), kind)| {
        let (native, asynchronous, transfer, closed) = kind;
        let transfer = [
            "{}",
            "{bytes_per_token: 1000000, bandwidth_gb_per_second: 1}",
            "{bytes_per_token: 1000000, bandwidth_gb_per_second: 2, timing_mode: full_prompt, overlap_layers: 4}",
            "{bytes_per_token: 1000000, links: fair_share, nic_gb_per_second: 1.5, bandwidth_gb_per_second: 1}",
        ][transfer];
        let semantics = if native { "native" } else { "aisimulate_0_13" };
        let mut overrides = vec![
            format!("engine.semantics={semantics}"),
            format!("engine.kv_transfer={transfer}"),
        ];
        if sglang.is_some() {
            overrides.extend(SGLANG.map(str::to_owned));
        }
        let trtllm = trtllm && sglang.is_none();
        if trtllm {
            overrides.extend(TRTLLM.map(str::to_owned));
        }
        let page = sglang.map_or(4, |(page, ..)| [1, 4, 16][page]);
        for (role, blocks, seats, replicas) in
            [("prefill", blocks.0, seats.0, replicas.0), ("decode", blocks.1, seats.1, replicas.1)]
        {
            let worker = format!("engine.workers.{role}");
            let blocks = blocks * 4 / page;
            overrides.push(format!("{worker}.kv_cache.block_size={page}"));
            overrides.push(format!("{worker}.kv_cache.capacity.blocks={blocks}"));
            overrides.push(format!("{worker}.scheduler.max_sequences={seats}"));
            overrides.push(format!("{worker}.parallelism.replicas={replicas}"));
            let ahead = if sglang.is_some() || trtllm { "overlap" } else { "async_scheduling" };
            if native {
                overrides.push(format!("{worker}.scheduler.{ahead}={asynchronous}"));
            }
        }
        if let Some((_, reserved, extra, cached)) = sglang {
            let decode = "engine.workers.decode";
            overrides.push("engine.workers.prefill.scheduler.chunked_prefill_size=16".into());
            overrides.push(format!("{decode}.kv_cache.prefix_caching={cached}"));
            if native {
                overrides.push(format!("{decode}.scheduler.num_reserved_decode_tokens={reserved}"));
                overrides.push(format!("{decode}.scheduler.disaggregation_decode_extra_slots={extra}"));
            }
        }
        // Mostly in turn, else every policy and what decode workers get with it.
        let others = [
            "random", "least_requests", "least_kv, decode_policy: session", "power_of_two", "kv_router",
            "session, decode_policy: random", "prefix_hash", "cache_aware, decode_policy: power_of_two",
        ];
        if let Some(policy) = others.get(router)
            && (native || !policy.contains("decode_policy"))
        {
            overrides.push(format!("router={{policy: {policy}}}"));
        }
        if closed {
            overrides.push("traffic.load={type: concurrency, concurrency: 3}".into());
        }
        let hears = overrides.iter().any(|text| text.contains("kv_router"));
        let replicas = [replicas.0, replicas.1];
        Apart { requests, overrides, sglang: sglang.is_some(), closed, replicas, hears }
    })
}
