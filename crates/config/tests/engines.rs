//! What the keys of each engine mean, what several ranks in a worker change, and whose defaults hold.

use std::path::{Path, PathBuf};
use windtunnel_config::{Deployment, Experiment, NO_CONTEXT_LIMIT, Placement, from_str, load};
use windtunnel_engine::sglang::{self, Policy, Priority};
use windtunnel_engine::{RankConfig, trtllm, vllm};

const SMALL: &str = "\
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 8192}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

const SGLANG: &str = "engine.backend=sglang";
const THEIRS: &str = "engine.semantics=aisimulate_0_13";
const NATIVE: &str = "engine.defaults=native";

fn small(overrides: &[&str]) -> Experiment {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    from_str("small.yaml", SMALL, &overrides).unwrap_or_else(|error| panic!("{error}"))
}

fn example(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).join(name)
}

/// KV of a token of Llama-3.1-8B: 32 layers · 2 · 8 heads · 128 numbers · 2 bytes, half of it with fp8, and a part of the
/// heads where a rank has several accelerators.
#[test]
fn the_example_of_separate_workers_knows_the_bytes_of_a_token() {
    let file = example("disaggregated.yaml");
    let bytes = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let experiment = load(&file, &overrides).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(experiment.deployment.hardware, "h200_sxm");
        let prefill = experiment.prefill.unwrap();
        assert_eq!(prefill.deployment.hardware, "h100_sxm");
        prefill.transfer.bytes_per_token
    };
    assert_eq!(bytes(&[]), 131_072);
    assert_eq!(bytes(&["engine.kvcache_quant_mode=fp8"]), 65_536);
    assert_eq!(bytes(&["engine.workers.prefill.parallelism.tensor=2"]), 65_536);
}

/// The settings of a vLLM rank.
fn vllm(overrides: &[&str]) -> vllm::Config {
    match small(overrides).deployment.engine {
        RankConfig::Vllm(config) => config,
        other => panic!("{other:?}"),
    }
}

/// The settings of an SGLang rank.
fn sglang(overrides: &[&str]) -> sglang::Config {
    match small(&[&[SGLANG], overrides].concat()).deployment.engine {
        RankConfig::Sglang(config) => config,
        other => panic!("{other:?}"),
    }
}

fn scheduler(keys: &str) -> String {
    format!("engine.workers.aggregated.scheduler={{{keys}}}")
}

fn parallelism(keys: &str) -> String {
    format!("engine.workers.aggregated.parallelism={{{keys}}}")
}

#[test]
fn what_sglang_leaves_out_has_its_default() {
    assert_eq!(sglang(&[]), sglang::Config::new(8192, 1, NO_CONTEXT_LIMIT));
    let theirs = sglang::Config { overlap: false, ..sglang::Config::new(8192, 1, NO_CONTEXT_LIMIT) };
    assert_eq!(sglang(&[THEIRS]), theirs);
    assert!(!small(&[SGLANG]).deployment.ignore_eos);
}

#[test]
fn every_key_of_sglang_reaches_its_rank() {
    let keys = scheduler(
        "max_sequences: 32, overlap: false, chunked_prefill_size: 512, max_prefill_tokens: 1024, \
         clip_max_new_tokens: 100, schedule_conservativeness: 0.5, mixed_chunk: true, \
         prefill_decode_interval: 3, schedule_policy: lof, ignore_eos: true, policy: priority, \
         schedule_low_priority_values_first: true, priority_preemption_threshold: 5",
    );
    let cache = "engine.workers.aggregated.kv_cache={block_size: 16, prefix_caching: false, \
                 capacity: {type: fixed, blocks: 100}}";
    let overrides: [&str; 3] = [&keys, cache, "engine.context_length=4096"];
    let expected = sglang::Config {
        max_total_tokens: 1600,
        page_size: 16,
        context_length: 4096,
        max_running_requests: 32,
        max_prefill_tokens: 1024,
        chunked_prefill_size: Some(512),
        mixed_chunk: true,
        schedule_policy: Policy::Lof,
        priority: Some(Priority { low_values_first: true, preemption_threshold: Some(5) }),
        schedule_conservativeness: 0.5,
        clip_max_new_tokens: 100,
        radix_cache: false,
        overlap: false,
        prefill_decode_interval: 3,
        ..sglang::Config::new(1600, 16, 4096)
    };
    assert_eq!(sglang(&overrides), expected);
    assert!(small(&[&[SGLANG], &overrides[..]].concat()).deployment.ignore_eos);
    for (word, policy) in [("fcfs", Policy::Fcfs), ("lpm", Policy::Lpm), ("dfs-weight", Policy::DfsWeight)] {
        assert_eq!(sglang(&[&scheduler(&format!("schedule_policy: {word}"))]).schedule_policy, policy);
    }
}

#[test]
fn priorities_of_sglang_have_defaults_and_can_be_kept_from_preempting() {
    let priority = |keys: &str| sglang(&[&scheduler(keys)]).priority;
    let default = Priority { low_values_first: false, preemption_threshold: Some(10) };
    assert_eq!(priority("policy: fcfs"), None);
    assert_eq!(priority("policy: priority"), Some(default));
    let never = Priority { preemption_threshold: None, ..default };
    assert_eq!(priority("policy: priority, priority_preemption_threshold: off"), Some(never));
}

#[test]
fn chunked_prefill_of_sglang_is_off_by_either_key() {
    let off = scheduler("chunked_prefill_size: off");
    for overrides in [vec![off.as_str()], vec!["engine.enable_chunked_prefill=false"]] {
        assert_eq!(sglang(&overrides).chunked_prefill_size, None);
        let effective = small(&[&[SGLANG], &overrides[..]].concat()).effective;
        assert_eq!(effective["engine"]["enable_chunked_prefill"], false);
        assert_eq!(effective["engine"]["workers"]["aggregated"]["scheduler"]["chunked_prefill_size"], "off");
    }
}

#[test]
fn sglang_seats_at_most_half_the_tokens_of_its_pool_and_aisimulate_all() {
    let cache = "engine.workers.aggregated.kv_cache={capacity: {type: fixed, blocks: 100}}";
    assert_eq!(sglang(&[cache]).max_running_requests, 50);
    assert_eq!(sglang(&[cache, THEIRS]).max_running_requests, 256);
}

#[test]
fn a_file_of_aisimulate_for_sglang_runs_unchanged_under_its_rules() {
    let overrides = [SGLANG, THEIRS].map(str::to_owned);
    let experiment = load(&example("aisimulate.yaml"), &overrides).unwrap_or_else(|error| panic!("{error}"));
    let RankConfig::Sglang(config) = experiment.deployment.engine else { panic!() };
    assert_eq!((config.max_total_tokens, config.page_size), (4096 * 64, 64));
    // Its token budget of a pass is not SGLang's, here as there.
    assert_eq!((config.max_prefill_tokens, config.chunked_prefill_size), (16384, Some(8192)));
}

#[test]
fn the_example_of_sglang_has_ranks_and_native_defaults() {
    let experiment = load(&example("sglang.yaml"), &[]).unwrap_or_else(|error| panic!("{error}"));
    let deployment = experiment.deployment;
    assert_eq!(group(&deployment), (4, 4, Placement::RoundRobin, true));
    let RankConfig::Sglang(config) = deployment.engine else { panic!() };
    assert_eq!((config.chunked_prefill_size, config.max_running_requests), (Some(2048), 2048));
}

/// The settings of a TensorRT-LLM rank of 64 blocks.
fn trtllm(overrides: &[&str]) -> trtllm::Config {
    const TRTLLM: &str = "engine.backend=trtllm";
    let blocks = "engine.workers.aggregated.kv_cache.capacity.blocks=64";
    match small(&[&[TRTLLM, blocks], overrides].concat()).deployment.engine {
        RankConfig::Trtllm(config) => config,
        other => panic!("{other:?}"),
    }
}

/// The engine's own defaults: tensorrt_llm/llmapi/llm_args.py (2048 requests, 8192 tokens, no chunks). The
/// reference has one core for vLLM and TensorRT-LLM: it reuses whole blocks, computes nothing of a prompt
/// that is cached whole, and cuts outputs to the pool.
#[test]
fn trtllm_follows_defaults_and_semantics() {
    let schema = trtllm::Config {
        max_batch_size: 256,
        chunked_prefill: true,
        ..trtllm::Config::new(64, 32, NO_CONTEXT_LIMIT)
    };
    assert_eq!(trtllm(&[]), schema);
    assert_eq!(trtllm(&["engine.defaults=native"]), trtllm::Config::new(64, 32, NO_CONTEXT_LIMIT));
    let theirs = trtllm::Config {
        overlap: false,
        partial_reuse: false,
        beneficial_to_skip: false,
        full_hit: trtllm::FullHit::Reference,
        clamp_output_to_pool: true,
        ..schema
    };
    assert_eq!(trtllm(&["engine.semantics=aisimulate_0_13"]), theirs);
    let utilization = scheduler("capacity_policy: max_utilization");
    assert_eq!(trtllm(&[&utilization]).capacity_policy, trtllm::CapacityPolicy::MaxUtilization);
    assert!(load(&example("trtllm.yaml"), &[]).is_ok());
}

/// Ranks, accelerators of a worker, placement, barrier.
fn group(deployment: &Deployment) -> (u32, u32, Placement, bool) {
    (deployment.ranks.get(), deployment.gpus_per_worker, deployment.placement, deployment.barrier)
}

#[test]
fn the_ranks_of_a_worker_follow_engine_and_semantics() {
    use Placement::{RoundRobin, VllmBalancer};
    let dense = parallelism("tensor: 2, attention_data: 4");
    let experts = parallelism("tensor: 2, attention_data: 4, moe_expert: 8");
    let shards = parallelism("tensor: 2, attention_data: 4, moe_tensor: 8");
    let grouped = |overrides: &[&str]| group(&small(overrides).deployment);
    assert_eq!(grouped(&[]), (1, 1, VllmBalancer, false));
    assert_eq!(grouped(&[&dense]), (4, 8, VllmBalancer, false));
    assert_eq!(grouped(&[&experts]), (4, 8, VllmBalancer, true));
    assert_eq!(grouped(&[&shards]), (4, 8, VllmBalancer, true));
    assert_eq!(grouped(&[&dense, THEIRS]), (4, 8, RoundRobin, true));
    assert_eq!(grouped(&[&dense, SGLANG]), (4, 8, RoundRobin, true));
    assert_eq!(grouped(&[SGLANG]), (1, 1, RoundRobin, false));
    let settled =
        ["engine.workers.aggregated.rank_placement=round_robin", "engine.workers.aggregated.barrier=true"];
    assert_eq!(grouped(&[&[dense.as_str()], &settled[..]].concat()), (4, 8, RoundRobin, true));
    assert_eq!(grouped(&settled), (1, 1, RoundRobin, false), "one rank waits for nobody");
    assert!(!grouped(&[&experts, "engine.workers.aggregated.barrier=false"]).3, "vLLM is told so");
}

#[test]
fn the_ranks_of_sglang_share_a_chunk_and_reserve_less() {
    let ranks = parallelism("attention_data: 4");
    let config = sglang(&[&ranks]);
    assert_eq!((config.chunked_prefill_size, config.schedule_conservativeness), (Some(2048), 0.3));
    assert_eq!(config.max_running_requests, 256, "limits are those of a rank");
    let three = [parallelism("attention_data: 3"), "engine.workers.aggregated.kv_cache.block_size=16".into()];
    let floored = sglang(&[&three[0], &three[1], THEIRS]);
    assert_eq!(floored.chunked_prefill_size, Some(2720), "8192 / 3 = 2730, in whole pages");
}

#[test]
fn aisimulate_spaces_prefills_among_several_ranks() {
    let overrides = [THEIRS, &parallelism("attention_data: 2"), &scheduler("prefill_schedule_interval: 4")];
    assert_eq!(vllm(&overrides).prefill_schedule_interval, 4);
}

#[test]
fn native_defaults_of_vllm_go_by_the_accelerator() {
    let limits = |overrides: &[&str]| {
        let config = vllm(&[&[NATIVE], overrides].concat());
        assert_eq!(config.block_size, 16);
        (config.max_num_batched_tokens, config.max_num_seqs)
    };
    assert_eq!(limits(&["engine.hardware=b200_sxm"]), (16384, 1024));
    assert_eq!(limits(&["engine.hardware=h100_sxm"]), (8192, 1024));
    assert_eq!(limits(&["engine.hardware=a100_sxm"]), (2048, 256));
    assert_eq!(limits(&["engine.hardware=l40s"]), (2048, 256));
    assert_eq!(limits(&["engine.gpu_memory_gib=96"]), (8192, 1024));
    // What is given stays, and needs no memory.
    assert_eq!(limits(&[&scheduler("max_batched_tokens: 100, max_sequences: 10")]), (100, 10));
    // Seats that are not given fit the budget; a budget that is not given fits whole prompts, and is no
    // more than all seats can fill.
    let h100 = "engine.hardware=h100_sxm";
    assert_eq!(limits(&[h100, &scheduler("max_batched_tokens: 512")]), (512, 512));
    assert_eq!(limits(&[h100, &scheduler("max_sequences: 2"), "engine.context_length=1000"]), (2000, 2));
    let whole = ["engine.enable_chunked_prefill=false", "engine.context_length=40000"];
    assert_eq!(limits(&[h100, whole[0], whole[1]]), (40000, 1024));
}

#[test]
fn native_defaults_of_sglang_go_by_the_accelerator_and_the_pool() {
    let limits = |overrides: &[&str]| {
        let config = sglang(&[&[NATIVE], overrides].concat());
        (config.chunked_prefill_size.unwrap(), config.max_running_requests)
    };
    let context = "engine.context_length=1024";
    assert_eq!(limits(&["engine.hardware=b200_sxm", context]), (16384, 4096));
    assert_eq!(limits(&["engine.hardware=h200_sxm", "engine.context_length=131072"]), (8192, 2048));
    assert_eq!(limits(&["engine.hardware=l40s", "engine.context_length=1400"]), (4096, 2995));
    assert_eq!(limits(&["engine.gpu_memory_gib=16", context]), (2048, 4096));
    // A pool so small that half of it decides, whatever the context length.
    let small = "engine.workers.aggregated.kv_cache={capacity: {type: fixed, blocks: 1000}}";
    assert_eq!(limits(&["engine.hardware=l4", small]), (4096, 500));
}

#[test]
fn loading_the_values_in_effect_gives_the_same_experiment() {
    let priority = scheduler("policy: priority, priority_preemption_threshold: off, mixed_chunk: true");
    let ranks = parallelism("attention_data: 4, moe_expert: 4");
    let three = parallelism("attention_data: 3");
    let unused = scheduler("max_batched_tokens: 8192, prefill_schedule_interval: 1");
    let whole = "engine.enable_chunked_prefill=false";
    let pages = "engine.workers.aggregated.kv_cache.block_size=16";
    let variants: [&[&str]; 12] = [
        &[SGLANG],
        &[SGLANG, THEIRS],
        &[SGLANG, THEIRS, &unused, pages],
        &[SGLANG, &priority],
        &[SGLANG, whole],
        &[SGLANG, &ranks],
        &[SGLANG, THEIRS, &three, pages],
        &[SGLANG, NATIVE, "engine.hardware=h200_sxm", "engine.context_length=8192"],
        &[NATIVE, "engine.hardware=h200_sxm"],
        &[NATIVE, "engine.gpu_memory_gib=40.5"],
        &[&ranks],
        &[&ranks, THEIRS],
    ];
    for overrides in variants {
        let first = small(overrides);
        let again = from_str("effective.yaml", &first.effective.to_string(), &[]);
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), first, "{overrides:?}");
    }
}

#[test]
fn the_values_in_effect_are_those_of_the_engine() {
    let effective = small(&[SGLANG]).effective;
    let expected = serde_json::json!({
        "max_sequences": 256, "prefill_decode_interval": 0, "overlap": true, "policy": "fcfs",
        "schedule_policy": "fcfs", "chunked_prefill_size": 8192, "max_prefill_tokens": 16384,
        "clip_max_new_tokens": 4096, "schedule_conservativeness": 1.0, "mixed_chunk": false,
        "ignore_eos": false,
    });
    assert_eq!(effective["engine"]["workers"]["aggregated"]["scheduler"], expected);
}
