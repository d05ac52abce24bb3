//! What a configuration means: defaults, values in effect, and the two semantics.

use std::num::NonZeroU32;
use std::path::Path;
use windtunnel_config::{
    Deployment, Experiment, NO_CONTEXT_LIMIT, Pace, Semantics, Sla, from_str, load, schema,
};
use windtunnel_engine::{Chunk, DecodeSet, Nanos, RankConfig, Shape, vllm};
use windtunnel_traffic::{Arrivals, Format, Synthetic, Times, WorkloadSource};

const SMALL: &str = "\
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

fn small(overrides: &[&str]) -> Experiment {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    from_str("small.yaml", SMALL, &overrides).unwrap_or_else(|error| panic!("{error}"))
}

/// The settings of a vLLM rank.
fn rank(deployment: &Deployment) -> &vllm::Config {
    match &deployment.engine {
        RankConfig::Vllm(config) => config,
        other => panic!("{other:?}"),
    }
}

fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

#[test]
fn what_is_left_out_has_its_default() {
    let experiment = small(&[]);
    let deployment = &experiment.deployment;
    assert_eq!(deployment.semantics, Semantics::Native);
    assert_eq!((deployment.replicas.get(), deployment.gpus_per_worker), (1, 1));
    assert_eq!((deployment.startup, deployment.kv_bytes_per_token), (Nanos::ZERO, None));
    let engine = vllm::Config {
        max_num_batched_tokens: 8192,
        max_num_seqs: 256,
        ..vllm::Config::new(1024, 64, NO_CONTEXT_LIMIT)
    };
    assert_eq!(deployment.engine, RankConfig::Vllm(engine));
    let source = Synthetic {
        input_tokens: 1024,
        output_tokens: 128,
        shortest_share: None,
        length_seed: 42,
        requests: 100,
        arrivals: Arrivals::AtOnce,
    };
    assert_eq!(experiment.workload.source, WorkloadSource::Synthetic(source));
    assert_eq!(experiment.workload.pace, Pace::Concurrency(NonZeroU32::new(10).unwrap()));
    assert_eq!((experiment.workload.max_virtual_time, experiment.sla), (None, None));
}

#[test]
fn the_values_in_effect_are_written_out() {
    let effective = small(&[]).effective;
    let expected = serde_json::json!({
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": 1024, "output_tokens": 128},
            "load": {"type": "concurrency", "concurrency": 10},
            "stop": {"requests": 100},
        },
        "engine": {
            "mode": "aggregated", "model": "m", "hardware": "h", "backend": "vllm", "backend_version": null,
            "context_length": "max", "enable_chunked_prefill": true, "semantics": "native",
            "defaults": "aisimulate", "gpu_memory_gib": null,
            "workers": {"aggregated": {
                "startup_seconds": 0.0,
                "parallelism": {
                    "replicas": 1, "tensor": 1, "pipeline": 1, "attention_data": 1, "moe_tensor": 1,
                    "moe_expert": 1,
                },
                "rank_placement": "vllm_balancer", "barrier": false,
                "scheduler": {
                    "max_batched_tokens": 8192, "max_sequences": 256, "prefill_schedule_interval": 1,
                    "async_scheduling": true, "preemption_mode": "lifo",
                    "long_prefill_token_threshold": 0, "long_prefill_token_threshold_adaptive": false,
                    "policy": "fcfs", "watermark": 0.0, "reserve_full_isl": true,
                },
                "kv_cache": {
                    "block_size": 64, "prefix_caching": true, "bytes_per_token": "auto",
                    "capacity": {"type": "fixed", "blocks": 1024},
                },
                "timing": {
                    "type": "fixed", "prefill_ms": 10.0, "decode_ms": 2.0, "composition": "sum",
                    "speedup_ratio": 1.0, "decode_speedup_ratio": 1.0,
                },
            }},
        },
        "router": {"policy": "round_robin"},
        "evaluation": {"sla": {"ttft_ms": null, "itl_ms": null, "e2e_ms": null}},
    });
    assert_eq!(effective, expected);
}

#[test]
fn loading_the_values_in_effect_gives_the_same_experiment() {
    let linear = "engine.workers.aggregated.timing={type: linear, linear: {base_ms: 1.5}}";
    let variants: [&[&str]; 6] = [
        &[],
        &["engine.semantics=aisimulate_0_13", "engine.context_length=4096"],
        &["traffic={load: {type: poisson, requests_per_second: 2.5}, stop: {requests_per_load_unit: 3}}"],
        &[linear, "evaluation.sla={ttft_ms: 100, itl_ms: 5}"],
        &[linear, "engine.semantics=aisimulate_0_13", "engine.backend_version='0.33'"],
        &["engine.workers.aggregated.scheduler={policy: priority, max_num_queued_reqs: 5, watermark: 0.01}"],
    ];
    for overrides in variants {
        let first = small(overrides);
        let again = from_str("effective.yaml", &first.effective.to_string(), &[]);
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), first, "{overrides:?}");
    }
}

#[test]
fn semantics_decide_about_the_null_block_and_the_schedule() {
    let blocks = |experiment: &Experiment| {
        let engine = rank(&experiment.deployment);
        (engine.num_blocks, engine.usable_blocks(), engine.async_scheduling)
    };
    let theirs = small(&["engine.semantics=aisimulate_0_13"]);
    assert_eq!(blocks(&small(&[])), (1024, 1023, true));
    assert_eq!(blocks(&theirs), (1025, 1024, false));
    assert_eq!(rank(&theirs.deployment).resumed_work, vllm::ResumedWork::PromptAndDecode);
    let synchronous = small(&["engine.workers.aggregated.scheduler.async_scheduling=false"]);
    assert_eq!(blocks(&synchronous), (1024, 1023, false));
}

#[test]
fn semantics_decide_how_the_work_of_a_resumed_request_is_counted() {
    let counted = |overrides: &[&str]| rank(&small(overrides).deployment).resumed_work;
    assert_eq!(counted(&[]), vllm::ResumedWork::Prefill);
    let theirs = ["engine.semantics=aisimulate_0_13"];
    assert_eq!(counted(&theirs), vllm::ResumedWork::PromptAndDecode);
}

#[test]
fn the_capacity_of_polynomial_timing_is_blocks_times_block_size_under_both_semantics() {
    let decode = DecodeSet { count: 1, sum_context: 32_768, sum_context_squared: 1 << 30 };
    for semantics in ["native", "aisimulate_0_13"] {
        let semantics = format!("engine.semantics={semantics}");
        let timing = "engine.workers.aggregated.timing={type: polynomial}";
        let model = small(&[&semantics, timing]).deployment.timing;
        // Half of 1024 blocks of 64.
        assert_eq!(model.pass_duration(&Shape { prefill: &[], decode }), Nanos(26_310_000));
    }
}

#[test]
fn linear_timing_is_mixed_natively_and_a_sum_under_the_rules_of_aisimulate() {
    let timing = "engine.workers.aggregated.timing={type: linear, linear: {base_ms: 5, per_new_token_ms: 1}}";
    let shape = Shape {
        prefill: &[Chunk { new_tokens: 3, before: 0 }],
        decode: DecodeSet { count: 1, sum_context: 9, sum_context_squared: 81 },
    };
    let duration = |overrides: &[&str]| small(overrides).deployment.timing.pass_duration(&shape);
    assert_eq!(duration(&[timing]), Nanos(9_000_000));
    assert_eq!(duration(&[timing, "engine.semantics=aisimulate_0_13"]), Nanos(14_000_000));
    assert_eq!(duration(&[timing, "engine.workers.aggregated.timing.composition=sum"]), Nanos(14_000_000));
}

#[test]
fn stops_relative_to_the_load_round_half_to_even() {
    let requests = |load: &str, per_unit: &str| {
        let traffic = format!("traffic={{load: {load}, stop: {{requests_per_load_unit: {per_unit}}}}}");
        match small(&[&traffic]).workload.source {
            WorkloadSource::Synthetic(plan) => plan.requests,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(requests("{concurrency: 8}", "10"), 80);
    assert_eq!(requests("{concurrency: 5}", "0.5"), 2);
    assert_eq!(requests("{concurrency: 7}", "0.5"), 4);
    assert_eq!(requests("{concurrency: 1}", "0.1"), 1, "at least one");
    assert_eq!(requests("{type: constant_rate, requests_per_second: 2.5}", "100"), 250);
}

#[test]
fn keys_of_aisimulate_that_mean_not_used_are_let_pass() {
    let experiment = small(&[
        "planner={policy: disabled}",
        "router.prefill_load_model={type: none}",
        "engine.nextn=0",
        "engine.forward_model=null",
        "engine.enable_eplb=false",
        "engine.workers.aggregated.parallelism={pipeline: 1, attention_data: 1, context: 1}",
        "engine.workers.aggregated.scheduler.prefill_decode_interval=0",
        "engine.workers.aggregated.kv_cache.host_offload=null",
        "engine.workers.aggregated.kv_cache.capacity.cuda_graph_reserved_bytes=0",
        "optimization=null",
    ]);
    assert_eq!(experiment, small(&[]));
}

#[test]
fn overrides_apply_from_left_to_right_and_reach_keys_that_the_file_lacks() {
    let experiment = small(&[
        "evaluation.sla.e2e_ms=5",
        "engine.workers.aggregated.parallelism={replicas: 3, tensor: 4}",
        "engine.workers.aggregated.parallelism.replicas=7",
        "engine.workers.aggregated.startup_seconds=1.5",
    ]);
    let deployment = &experiment.deployment;
    assert_eq!((deployment.replicas.get(), deployment.gpus_per_worker), (7, 4));
    assert_eq!(deployment.startup, Nanos(1_500_000_000));
    assert_eq!(experiment.sla, Some(Sla { e2e: Some(Nanos(5_000_000)), ..Sla::default() }));
}

#[test]
fn the_quickstart_loads_and_its_trace_is_read_to_the_end() {
    let experiment = load(&examples().join("quickstart.yaml"), &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(experiment.workload.pace, Pace::Arrivals);
    let arrivals: Vec<_> = experiment.workload.open().unwrap().map(Result::unwrap).collect();
    assert_eq!(arrivals.len(), 500);
    assert_eq!(arrivals[0].at, Nanos::ZERO);
    let WorkloadSource::Trace(trace) = &experiment.workload.source else { panic!() };
    assert_eq!(trace.format, Format::Mooncake { block_size: 512 });
    assert_eq!(trace.times, Times::Recorded { speedup: 1.0 });
}

#[test]
fn a_trace_can_be_replayed_by_concurrency_and_cut_short() {
    let overrides = [
        "traffic.load={type: concurrency, concurrency: 3}",
        "traffic.stop.max_virtual_time_seconds=2",
        "traffic.source.limit=4",
    ]
    .map(str::to_owned);
    let experiment = load(&examples().join("quickstart.yaml"), &overrides).unwrap();
    assert_eq!(experiment.workload.pace, Pace::Concurrency(NonZeroU32::new(3).unwrap()));
    assert_eq!(experiment.workload.max_virtual_time, Some(Nanos(2_000_000_000)));
    let arrivals: Vec<_> = experiment.workload.open().unwrap().map(Result::unwrap).collect();
    assert!(arrivals.len() == 4 && arrivals.iter().all(|arrival| arrival.at == Nanos::ZERO));
}

#[test]
fn a_file_of_aisimulate_runs_unchanged() {
    let path = examples().join("aisimulate.yaml");
    let native = load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(native.deployment.replicas.get(), 4);
    let overrides = ["engine.semantics=aisimulate_0_13".to_owned()];
    let theirs = load(&path, &overrides).unwrap();
    assert_eq!(theirs.deployment.semantics, Semantics::Aisimulate013);
    assert_eq!(theirs.deployment.engine.usable_blocks(), 4096);
}

/// A schema that does not know a key refuses it, since its mappings are closed.
#[test]
fn the_schema_knows_every_key_of_the_file_of_aisimulate() {
    let schema = schema();
    let text = std::fs::read_to_string(examples().join("aisimulate.yaml")).unwrap();
    let mut path: Vec<&str> = Vec::new();
    let mut keys = 0;
    for line in text.lines() {
        let Some((key, _)) = line.split_once(':') else { continue };
        let name = key.trim_start();
        if !name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_') {
            continue;
        }
        path.truncate((key.len() - name.len()) / 2);
        path.push(name);
        // Values that mean "not used" are given as a whole.
        let found = path.iter().try_fold(&schema, |schema, key| {
            if schema["enum"].is_array() { Some(schema) } else { schema["properties"].get(key) }
        });
        assert!(found.is_some(), "{}", path.join("."));
        keys += 1;
    }
    assert!(keys > 20, "{keys}");
    // What only AISimulate's regression reads can be left as it is.
    let samples = &schema["properties"]["planner"]["properties"]["max_num_fpm_samples"]["enum"];
    assert_eq!(*samples, serde_json::json!([null, 64]));
}

#[test]
fn the_schema_is_closed_and_every_key_is_described() {
    fn walk(schema: &serde_json::Value, path: &str) {
        for (key, child) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{key}");
            assert!(child["description"].is_string(), "{path} has no description");
            walk(child, &path);
        }
        if schema.get("properties").is_some() {
            assert_eq!(schema["additionalProperties"], false, "{path}");
        }
    }
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    walk(&schema, "");
}

// ---- capacity from model and hardware ----

const MODEL: &str = "engine.model=meta-llama/Llama-3.1-8B-Instruct";
const CAPACITY: &str = "engine.workers.aggregated.kv_cache={block_size: 16, capacity: {type: default}}";

fn estimated(overrides: &[&str]) -> Experiment {
    small(&[&[MODEL, "engine.hardware=h200_sxm", CAPACITY], overrides].concat())
}

#[test]
fn blocks_are_what_fits_beside_the_model() {
    let experiment = estimated(&[]);
    let deployment = &experiment.deployment;
    let budget = deployment.capacity.as_ref().unwrap();
    assert_eq!(u64::from(rank(deployment).num_blocks), budget.blocks);
    assert_eq!(budget.blocks, budget.kv_bytes / (131_072 * 16));
    assert_eq!(budget.memory_fraction, 0.92);
    // Nothing is filled in that was left open: a newer version may have another default.
    let capacity = &experiment.effective["engine"]["workers"]["aggregated"]["kv_cache"]["capacity"];
    assert_eq!(*capacity, serde_json::json!({"type": "default"}));
    let again = from_str("again.yaml", &experiment.effective.to_string(), &[]).unwrap();
    assert_eq!(again.deployment, *deployment);
    // A file that says nothing of a cache means the same, with blocks of 64 tokens.
    let without = SMALL.replace("      kv_cache: {capacity: {type: fixed, blocks: 1024}}\n", "");
    let overrides = [MODEL, "engine.hardware=h200_sxm"].map(str::to_owned);
    let without = from_str("small.yaml", &without, &overrides).unwrap();
    assert_eq!(without.deployment.capacity.unwrap().blocks, budget.blocks / 4);
}

#[test]
fn capacity_and_timing_are_chosen_apart() {
    // Fixed timing does not turn the estimate off, nor polynomial timing: its fill is that of the estimate.
    let timing = "engine.workers.aggregated.timing={type: polynomial}";
    let capacity = |experiment: Experiment| experiment.deployment.capacity.map(|budget| budget.blocks);
    assert_eq!(capacity(estimated(&[])), capacity(estimated(&[timing])));
    assert_eq!(capacity(small(&[timing])), None);
}

#[test]
fn what_the_memory_depends_on_reaches_it() {
    let blocks = |overrides: &[&str]| estimated(overrides).deployment.capacity.unwrap().blocks;
    let all = blocks(&[]);
    let fraction = "engine.workers.aggregated.kv_cache.capacity.memory_fraction=0.46";
    assert!(blocks(&[fraction]) < all / 2);
    let graphs = "engine.workers.aggregated.kv_cache.capacity.cuda_graph_reserved_bytes=2097152000";
    assert_eq!(blocks(&[graphs]), all - 1000);
    let fp8 = blocks(&["engine.kvcache_quant_mode=fp8"]);
    assert!((2 * all..=2 * all + 1).contains(&fp8), "{fp8}");
    let two = blocks(&["engine.workers.aggregated.parallelism.tensor=2"]);
    assert!(two > 2 * all, "{two}");
    assert!(blocks(&["engine.gpu_memory_gib=80"]) < all * 5 / 8);
    // Of a known accelerator, the memory as it is sold means the one that it has.
    assert_eq!(blocks(&["engine.gpu_memory_gib=141"]), all);
    let seats = "engine.workers.aggregated.scheduler.max_sequences=1024";
    assert!(blocks(&[seats]) < all, "the sampler works on all of them");
    assert_eq!(
        blocks(&["engine.backend_version='0.19.0'"]),
        blocks(&["engine.workers.aggregated.kv_cache.capacity.memory_fraction=0.9",])
    );
}

#[test]
fn the_reference_has_its_own_memory_and_no_null_block() {
    // aiconfigurator-core 0.12.0: 55,170 blocks of 16 tokens with a fraction of 0.9.
    let theirs = estimated(&["engine.semantics=aisimulate_0_13"]).deployment;
    assert_eq!(theirs.capacity.as_ref().unwrap().blocks, 55_170);
    assert_eq!(rank(&theirs).num_blocks, 55_171);
}

#[test]
fn a_model_is_found_by_its_config_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4}"#;
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/config.json"), config).unwrap();
    let file = folder.path().join("deployment.yaml").display().to_string();
    let overrides = ["engine.model=model", "engine.hardware=l4", CAPACITY].map(str::to_owned);
    let budget = from_str(&file, SMALL, &overrides).unwrap().deployment.capacity.unwrap();
    // 8 layers × 2 × 4 heads × 64 numbers × 2 bytes.
    assert_eq!(budget.kv_bytes_per_token, 8192);
}

#[test]
fn every_engine_works_its_capacity_out() {
    // SGLang: 143771 MiB less 512 + 1.5 · 8192 + 128 + 512.
    for (backend, fraction) in [("vllm", 0.92), ("sglang", 0.907), ("trtllm", 0.9)] {
        let experiment = estimated(&[&format!("engine.backend={backend}")]);
        let budget = experiment.deployment.capacity.unwrap();
        assert_eq!(budget.memory_fraction, fraction, "{backend}");
        assert!((700_000..1_000_000).contains(&budget.tokens), "{backend}: {}", budget.tokens);
    }
}
