//! The KV router where workers have tiers below their accelerators' memory: it learns from their events what lies there,
//! and sends a prompt to it.

mod common;

use common::{Asked, Output, SMALL, Trial, asked, in_both_steppers, lines};
use proptest::prelude::*;
use windtunnel_sim::Stepper;

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

/// Prompts of few families, so that much is found again, of 1 to 48 tokens; several at a time.
fn crowd() -> impl Strategy<Value = Vec<Asked>> {
    let one = (0u32..60, 0u32..5, 0u32..28, 1u32..20, 1u32..6);
    prop::collection::vec(one, 3..40).prop_map(|all| {
        let mut at = 0.0;
        let asked = all.into_iter().enumerate().map(|(n, (gap, family, shared, own, outputs))| {
            at += f64::from(gap.saturating_sub(20)) / 2.0;
            let (family, own_from) = (family * 1000, 100_000 + n as u32 * 100);
            asked(at, (family..family + shared).chain(own_from..own_from + own), outputs)
        });
        asked.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// With whatever tiers: both steppers write the same bytes, and so does the same run again, watched or not; no tier
    /// holds more than it can; and of what was read back from one, no more was read than was ever written there for each
    /// time, block by block.
    #[test]
    fn tiers_keep_their_bounds_and_runs_repeat(
        requests in crowd(),
        sglang in any::<bool>(),
        host in 1u32..24,
        disk in prop::option::of(prop::option::of(1u32..40)),
        rates in (0u32..3, 0u32..3, 0u32..3, 0u32..3),
        latency in prop::sample::select(vec!["0", "0.3", "4"]),
        asynchronous in any::<bool>(),
        lag in prop::sample::select(vec!["0", "7"]),
    ) {
        let backend = if sglang { "sglang" } else { "vllm" };
        let mut overrides: Vec<String> = settings(backend).into_iter().map(str::to_owned).collect();
        let key = "engine.workers.aggregated";
        overrides.push(if sglang {
            format!("{key}.scheduler={{overlap: {asynchronous}}}")
        } else {
            format!("{key}.scheduler.async_scheduling={asynchronous}")
        });
        overrides.push(format!(
            "{key}.kv_cache.host_offload={{num_host_blocks: {host}, d2h_bandwidth_gbps: {}, h2d_bandwidth_gbps: {}}}",
            rates.0, rates.1
        ));
        overrides.push(format!("router={{policy: kv_router, block_size: 4, kv_event_lag_ms: {lag}}}"));
        let disk = disk.filter(|_| !sglang);
        if let Some(blocks) = disk {
            let blocks = blocks.map_or(String::new(), |blocks| format!(", num_g3_blocks: {blocks}"));
            overrides.push(format!(
                "{key}.kv_cache.g3_offload={{scope: worker_local, latency_to_first_byte_ms: {latency}, \
                 read_bandwidth_gbps: {}, write_bandwidth_gbps: {}{blocks}}}",
                rates.2, rates.3
            ));
        }
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let output = in_both_steppers(&overrides, &requests);
        let trial = Trial::load(SMALL, &overrides, &lines(&requests)).unwrap();
        for again in [trial.run(Stepper::Fast), trial.run_unwatched(Stepper::Fast)] {
            prop_assert_eq!(&again.prediction, &output.prediction);
            prop_assert_eq!(&again.requests, &output.requests);
        }
        prop_assert_eq!(output.count("completed_requests") + output.count("rejected_requests"), requests.len() as u64);
        for worker in output.prediction()["workers"].as_array().unwrap() {
            let of = |name: &str| worker[name].as_u64();
            prop_assert!(of("host_kv_used_blocks") <= of("host_kv_blocks"), "{}", worker);
            prop_assert_eq!(of("host_kv_bytes_read").map(|bytes| bytes / 1_000_000), of("host_kv_hit_tokens"));
            // What was never written anywhere is not read.
            prop_assert!(of("host_kv_bytes_read") == Some(0) || of("host_kv_bytes_written") > Some(0));
            if disk.is_some() {
                prop_assert!(of("disk_kv_blocks").is_none() || of("disk_kv_used_blocks") <= of("disk_kv_blocks"));
                prop_assert_eq!(of("disk_kv_bytes_read").map(|bytes| bytes / 1_000_000), of("disk_kv_hit_tokens"));
                prop_assert!(of("disk_kv_bytes_read") == Some(0) || of("disk_kv_bytes_written") > Some(0));
                prop_assert!(of("disk_kv_bytes_written") <= of("host_kv_bytes_written"));
            }
        }
    }
}
