//! The cases: a configuration that is right but for one thing, overrides, or a trace.

/// One thing that is wrong.
pub struct Case {
    pub name: &'static str,
    pub config: String,
    pub overrides: Vec<&'static str>,
    pub trace: Option<String>,
}

impl Case {
    /// The same with overrides.
    fn with(self, overrides: &[&'static str]) -> Case {
        Case { overrides: overrides.to_vec(), ..self }
    }
}

const GOOD: &str = "\
traffic:
  source: {type: synthetic, input_tokens: 100, output_tokens: 10}
  load: {type: concurrency, concurrency: 4}
  stop: {requests: 20}
engine:
  model: m
  hardware: h
  backend: vllm
  workers:
    aggregated:
      parallelism: {replicas: 2}
      scheduler: {max_batched_tokens: 4096, max_sequences: 64}
      kv_cache:
        block_size: 16
        capacity: {type: fixed, blocks: 1024}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

const TRACE: &str = "\
traffic:
  source: {type: trace, paths: [trace.jsonl]}
  load: {type: trace_timestamps}
";

/// The good file with one text in it replaced.
fn edit(name: &'static str, from: &str, to: &str) -> Case {
    assert!(GOOD.contains(from), "{name}: {from}");
    let config = GOOD.replacen(from, to, 1);
    Case { name, config, overrides: Vec::new(), trace: None }
}

/// The good file with a key more somewhere.
fn add(name: &'static str, after: &str, more: &str) -> Case {
    edit(name, after, &format!("{after}{more}"))
}

fn set(name: &'static str, overrides: &[&'static str]) -> Case {
    Case { name, config: GOOD.into(), overrides: overrides.to_vec(), trace: None }
}

/// Prefill and decode on workers of their own.
fn apart(name: &'static str, router: &'static str) -> Case {
    let prefill = "prefill: {kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 4096}}, timing: {type: polynomial}}";
    let roles = format!("  mode: disaggregated\n  workers:\n    {prefill}\n    decode:");
    edit(name, "  workers:\n    aggregated:", &roles).with(&[router])
}

/// Another traffic section.
fn traffic(name: &'static str, section: &str) -> Case {
    let engine = &GOOD[GOOD.find("engine:").unwrap()..];
    Case { name, config: format!("{section}{engine}"), overrides: Vec::new(), trace: Some(String::new()) }
}

fn trace(name: &'static str, overrides: &[&'static str], lines: &[&str]) -> Case {
    let trace = Some(lines.join("\n"));
    Case { overrides: overrides.to_vec(), trace, ..traffic(name, TRACE) }
}

pub fn all() -> Vec<Case> {
    [
        yaml(),
        types(),
        unknown(),
        not_yet(),
        contradictions(),
        engines(),
        capacity(),
        native_defaults(),
        ranks(),
        overrides(),
        mooncake(),
        requests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn yaml() -> Vec<Case> {
    vec![
        edit("yaml: broken indentation", "  hardware: h", " hardware: h"),
        edit("yaml: tab as indentation", "  hardware: h", "\thardware: h"),
        edit("yaml: unclosed mapping", "stop: {requests: 20}", "stop: {requests: 20"),
        add("yaml: duplicate key", "  model: m\n", "  model: n\n"),
        add("yaml: second document", "decode_ms: 2}\n", "---\na: 1\n"),
        edit("yaml: a list as the file", GOOD, "- a\n- b\n"),
        edit("yaml: an empty file", GOOD, "# nothing\n"),
        edit("yaml: a word as the file", GOOD, "engine\n"),
        edit("yaml: merge key", "{replicas: 2}", "{<<: {replicas: 2}}"),
        edit("yaml: tag", "model: m", "model: !name m"),
        edit("yaml: number as key", "{replicas: 2}", "{2: replicas}"),
    ]
}

fn types() -> Vec<Case> {
    vec![
        edit("type: text for an integer", "replicas: 2", "replicas: two"),
        set("type: transfers that never end", &["engine.kv_transfer.nic_gb_per_second=1e-300"]),
        edit("type: quoted number", "blocks: 1024", "blocks: '1024'"),
        edit("type: fraction for an integer", "blocks: 1024", "blocks: 1024.5"),
        edit("type: negative", "max_sequences: 64", "max_sequences: -1"),
        edit("type: zero", "replicas: 2", "replicas: 0"),
        edit("type: too large for 32 bits", "max_batched_tokens: 4096", "max_batched_tokens: 4294967296"),
        edit("type: too many blocks", "blocks: 1024", "blocks: 4294967295"),
        edit("type: zero tokens", "input_tokens: 100", "input_tokens: 0"),
        edit("type: integer for a text", "model: m", "model: 8"),
        edit("type: version without quotes", "backend: vllm", "backend: vllm\n  backend_version: 0.33"),
        edit("type: empty text", "model: m", "model: ''"),
        edit("type: text of blanks", "model: m", "model: '  '"),
        edit("type: too many tokens", "output_tokens: 10", "output_tokens: 16777217"),
        edit("type: control characters", "blocks: 1024", r#"blocks: "\e[31m\a\x9b\u202e1024""#),
        edit("type: control characters in a key", "blocks: 1024", r#""\e[31mblocks": 1024"#),
        edit("type: null for a text", "model: m", "model:"),
        edit("type: null for a mapping", "parallelism: {replicas: 2}", "parallelism:"),
        edit("type: text for a mapping", "parallelism: {replicas: 2}", "parallelism: tp2"),
        edit("type: list for a mapping", "stop: {requests: 20}", "stop: [20]"),
        add("type: yes for a boolean", "block_size: 16\n", "        prefix_caching: yes\n"),
        add("type: integer for a boolean", "block_size: 16\n", "        prefix_caching: 1\n"),
        edit("type: negative time", "prefill_ms: 10", "prefill_ms: -10"),
        edit("type: infinite time", "prefill_ms: 10", "prefill_ms: .inf"),
        edit("type: not a number", "decode_ms: 2", "decode_ms: .nan"),
        add("type: word that does not exist", "max_sequences: 64", ", policy: lcfs"),
        add("type: watermark of 1", "max_sequences: 64", ", watermark: 1"),
        add("type: context length of 1", "  model: m\n", "  context_length: 1\n"),
        add("type: context length as a word", "  model: m\n", "  context_length: unlimited\n"),
        add("type: speedup 0", "decode_ms: 2", ", speedup_ratio: 0"),
        add("type: decode speedup 0.0", "decode_ms: 2", ", decode_speedup_ratio: 0.0"),
        add("type: negative speedup", "decode_ms: 2", ", speedup_ratio: -2"),
        add("type: negative seed", "concurrency: 4", ", seed: -1"),
        set("type: a search domain", &["traffic.load.concurrency={choices: [1, 2]}"]),
        set("type: a list as a domain", &["traffic.load.concurrency=[1, 2]"]),
        set("type: paths as a text", &["traffic.source.paths=trace.jsonl"]),
        set("type: paths of numbers", &["traffic.source.paths=[1]"]),
        set("type: sla of zero", &["evaluation.sla.ttft_ms=0"]),
    ]
}

fn unknown() -> Vec<Case> {
    vec![
        edit("unknown: misspelt at the top", "traffic:", "trafic:"),
        edit("unknown: misspelt key", "max_sequences: 64", "max_sequence: 64"),
        edit("unknown: swapped letters", "prefill_ms: 10", "perfill_ms: 10"),
        edit("unknown: a key of another mapping", "  model: m\n", "  model: m\n  prefix_caching: true\n"),
        edit("unknown: a name of vLLM", "max_sequences: 64", "gpu_memory_utilization: 0.9"),
        edit("unknown: vLLM's name of a key that is there", "max_sequences: 64", "max_num_seqs: 64"),
        edit("unknown: vLLM's name with dashes", "replicas: 2", "tensor-parallel-size: 2"),
        edit("unknown: vLLM's name of a key elsewhere", "  model: m\n", "  model: m\n  block_size: 16\n"),
        edit(
            "unknown: vLLM's name in another mapping",
            "  model: m\n",
            "  model: m\n  max_model_len: 4096\n",
        ),
        edit("unknown: SGLang's name of a key that is there", "block_size: 16", "page_size: 16"),
        edit("unknown: SGLang's share of memory", "max_sequences: 64", "mem_fraction_static: 0.9"),
        edit("unknown: TensorRT-LLM's name of a key elsewhere", "blocks: 1024", "max_batch_size: 8"),
        edit("unknown: misspelt role", "aggregated:", "agregated:"),
        edit("missing: model", "  model: m\n", ""),
        edit("missing: blocks", ", blocks: 1024", ""),
        edit("missing: capacity", "        capacity: {type: fixed, blocks: 1024}\n", ""),
        edit(
            "timing: left out, of an unknown model",
            "      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}\n",
            "",
        ),
        edit("timing: no type", "type: fixed, prefill_ms", "prefill_ms"),
        edit("missing: engine", &GOOD[GOOD.find("engine:").unwrap()..], ""),
        edit(
            "missing: a role left empty",
            &GOOD[GOOD.find("      parallelism:").unwrap()..],
            "      startup_seconds: 0\n",
        ),
    ]
}

fn not_yet() -> Vec<Case> {
    let engine = "  model: m\n";
    let role = "block_size: 16\n";
    vec![
        add("not yet: disaggregated", engine, "  mode: disaggregated\n"),
        edit("not yet: disaggregated roles", "    aggregated:", "    prefill: {}\n    decode:"),
        add("not yet: afd", engine, "  mode: afd\n"),
        edit(
            "trtllm: separate workers never pause",
            "  backend: vllm\n  workers:\n    aggregated:",
            "  backend: trtllm\n  mode: disaggregated\n  workers:\n    prefill: {kv_cache: {capacity: {type: fixed, \
             blocks: 4096}}, timing: {type: polynomial}}\n    decode:",
        )
        .with(&["engine.workers.decode.scheduler={capacity_policy: max_utilization}", "engine.context_length=4096"]),
        edit(
            "sglang: keys of decode workers elsewhere",
            "  backend: vllm\n",
            "  backend: sglang\n  defaults: aisimulate\n",
        )
        .with(&[
            "engine.workers.aggregated.scheduler={num_reserved_decode_tokens: 64, \
             disaggregation_decode_extra_slots: 2}",
        ]),
        apart("router: decode workers do not look at prompts", "router={policy: cache_aware, decode_policy: prefix_hash}"),
        apart("router: kv_router for decode alone", "router={policy: random, decode_policy: kv_router}"),
        apart("router: nobody is held back before prefill workers", "router={policy: kv_router, queue_threshold: 2}"),
        set("router: a decode policy without decode workers", &["router={policy: random, decode_policy: random}"]),
        edit(
            "sglang: several decode ranks keep no prefixes",
            "  backend: vllm\n  workers:\n    aggregated:",
            "  backend: sglang\n  mode: disaggregated\n  workers:\n    prefill: {kv_cache: {capacity: {type: fixed, \
             blocks: 4096}}, timing: {type: polynomial}}\n    decode:",
        )
        .with(&[
            "engine.workers.decode.scheduler={}",
            "engine.workers.decode.parallelism.attention_data=2",
            "engine.workers.decode.kv_cache.prefix_caching=true",
        ]),
        add("not yet: kv transfer", engine, "  kv_transfer: {}\n"),
        add("not yet: speculation", engine, "  speculation: {kind: ngram, num_speculative_tokens: 3}\n"),
        add("not yet: nextn", engine, "  nextn: 1\n"),
        add("not yet: quantisation", engine, "  fmha_quant_mode: fp8\n"),
        add("not yet: forward model", engine, "  forward_model: op_level\n"),
        edit("not yet: pipeline", "{replicas: 2}", "{pipeline: 2}"),
        edit("not yet: context parallelism", "{replicas: 2}", "{context: 2}"),
        add("not yet: LoRA limit", "max_sequences: 64", ", max_loras: 2"),
        add("not yet: sliding window", role, "        sliding_window: 4096\n"),
        add("not yet: cache groups", role, "        kv_cache_groups: [{block_size: 16}]\n"),
        add("host offload: bytes of a block unknown", role, "        host_offload: {num_host_blocks: 10}\n"),
        set("host offload: blocks of one token", &[
            "engine.workers.aggregated.kv_cache={block_size: 1, bytes_per_token: 1000, capacity: {type: fixed, blocks: 9}, \
             host_offload: {num_host_blocks: 9, d2h_bandwidth_gbps: 1e-300}}",
        ]),
        add("disk without a host", role, "        g3_offload: {scope: worker_local, num_g3_blocks: 9}\n"),
        add("not yet: a disk that ranks share", role, "        g3_offload: {scope: cluster_shared, num_g3_blocks: 9}\n"),
        add("disk: whose it is", role, "        g3_offload: {num_g3_blocks: 9}\n"),
        add("not yet: state cache", role, "        state_cache: {bytes_per_request: 1}\n"),
        edit("not yet: capacity in bytes", "blocks: 1024", "bytes: 1000000"),
        edit(
            "timing: default of an unknown model",
            "{type: fixed, prefill_ms: 10, decode_ms: 2}",
            "{type: default}",
        ),
        edit("timing: profile without a file", "type: fixed, prefill_ms: 10, decode_ms: 2", "type: profile"),
        edit("timing: table without a file", "type: fixed, prefill_ms: 10, decode_ms: 2", "type: table"),
        edit("timing: a file for fixed times", "decode_ms: 2", "decode_ms: 2, path: profile.json"),
        edit("timing: times for a profile", "type: fixed, prefill", "type: profile, path: p.json, prefill"),
        set("not yet: estimator", &["engine.workers.aggregated.timing.estimator_config={}"]),
        set("role hardware without roles", &["engine.workers.aggregated.hardware=h200"]),
        edit(
            "role hardware of unknown memory",
            "  backend: vllm\n  workers:\n    aggregated:",
            "  backend: vllm\n  mode: disaggregated\n  defaults: native\n  gpu_memory_gib: 80\n  workers:\n    prefill: \
             {kv_cache: {capacity: {type: fixed, blocks: 4096}}, timing: {type: polynomial}}\n    decode:",
        )
        .with(&["engine.workers.decode.hardware=h201", "engine.workers.decode.scheduler={}"]),
        set("value: router policy", &["router.policy=least_loaded"]),
        set("value: negative router seed", &["router={policy: random, seed: -1}"]),
        set("key: misspelt router key", &["router={policy: random, sed: 1}"]),
        set("foreign: credit of the host without one", &["router={policy: kv_router, host_cache_hit_weight: 0.75}"]),
        set("foreign: credit of the host elsewhere", &["router={policy: scorers, host_cache_hit_weight: 0.75}"]),
        set("value: credit of the host above 1", &["router={policy: kv_router, host_cache_hit_weight: 1.5}"]),
        set("foreign: credit of a disk without one", &["router={policy: kv_router, disk_cache_hit_weight: 0.25}"]),
        set("not yet: credit of shared tiers", &["router={policy: kv_router, shared_cache_multiplier: 0.5}"]),
        set(
            "not yet: estimates of prefill",
            &["router={policy: kv_router, prefill_load_model: {type: ais}}"],
        ),
        set("value: negative credit", &["router={policy: kv_router, overlap_score_credit: -0.1}"]),
        set("value: credit that is no number", &["router={policy: kv_router, overlap_score_credit: .nan}"]),
        set("value: endless lag", &["router={policy: kv_router, kv_event_lag_ms: 1e20}"]),
        set("value: queue policy", &["router={policy: kv_router, queue_threshold: 1, queue_policy: edf}"]),
        set("value: router block of vllm", &["router={policy: kv_router, block_size: 17}"]),
        set("key: credit without kv router", &["router.overlap_score_credit=1"]),
        set(
            "key: several without kv router",
            &["router={policy: random, temperature: 0.2, kv_event_lag_ms: 3}"],
        ),
        set("key: ring without prefix_hash", &["router={policy: kv_router, prefix_blocks: 3}"]),
        set("value: load factor", &["router={policy: prefix_hash, load_factor: 0.5}"]),
        set("key: seed of a ring", &["router={policy: prefix_hash, seed: 1}"]),
        set("value: no scorer", &["router={policy: scorers, scorers: []}"]),
        set("value: unknown scorer", &["router={policy: scorers, scorers: [{type: latency, weight: 1}]}"]),
        set("value: scorer without weight", &["router={policy: scorers, scorers: [{type: queue}]}"]),
        set("value: cache threshold", &["router={policy: cache_aware, cache_threshold: 1.5}"]),
        set("key: queue policy alone", &["router={policy: kv_router, queue_policy: lcfs}"]),
        set("planner: sla without bounds and predictor", &["planner={policy: enabled, target: sla}"]),
        set("planner: hpa needs", &["planner={policy: hpa}"]),
        set(
            "planner: a bound below the start",
            &["planner={policy: hpa, metric: waiting, target_value: 1, max_workers: 1}"],
        ),
        set(
            "planner: another policy's keys",
            &["planner={policy: disabled, max_num_gpus: 4, metric: waiting}"],
        ),
        set(
            "planner: hpa with keys of Dynamo's",
            &[
                "planner={policy: hpa, metric: waiting, target_value: 1, max_workers: 4, target: sla, max_num_gpus: 4}",
            ],
        ),
        set(
            "planner: nothing to scale by",
            &["planner={policy: enabled, target: latency, enable_throughput_scaling: false}"],
        ),
        set(
            "planner: throughput scaling without sla",
            &["planner={policy: enabled, target: latency, load_predictor: constant}"],
        ),
        set(
            "planner: looks as long as plans",
            &[
                "planner={policy: enabled, target: sla, enable_load_scaling: true, load_predictor: constant, \
             load_adjustment_interval_seconds: 180}",
                "evaluation.sla={ttft_ms: 100, itl_ms: 10}",
            ],
        ),
        set(
            "planner: no metric of that name",
            &["planner={policy: hpa, metric: cpu, target_value: 1, max_workers: 4}"],
        ),
        set("not yet: planner target load", &["planner.target=load"]),
        set("not yet: planner arima", &["planner.load_predictor=arima"]),
        set("not yet: planner regression", &["planner.max_num_fpm_samples=32"]),
        set("of another policy: planner kalman", &["planner.kalman_r=3"]),
        set("planner: of a role of aggregated workers", &["planner.prefill_min_workers=2"]),
        set(
            "planner: a role's minimum of aggregated workers",
            &["planner={policy: enabled, target: sla, load_predictor: constant, decode_min_workers: 1}"],
        ),
        apart(
            "planner: hpa without a role",
            "planner={policy: hpa, metric: waiting, target_value: 1, max_workers: 4}",
        ),
        apart(
            "planner: tokens of prefill workers",
            "planner={policy: hpa, prefill: {metric: itl_ms, target_value: 1, max_workers: 4}}",
        ),
        apart("planner: hpa of a role needs", "planner={policy: hpa, decode: {metric: waiting}}"),
        apart(
            "planner: a budget below the start of both roles",
            "planner={policy: enabled, target: latency, enable_throughput_scaling: false, enable_load_scaling: true, \
             max_num_gpus: 2, prefill_min_workers: 2}",
        ),
        apart(
            "planner: queues without a context length",
            "planner={policy: enabled, target: latency, enable_throughput_scaling: false, enable_load_scaling: true}",
        ),
        set("faults: no such worker", &["faults.crashes=[{worker: 2, at_seconds: 1}]"]),
        set("faults: no list", &["faults.crashes=5"]),
        set("faults: a key of a crash", &["faults.crashes=[{worker: 0, at_seconds: 1, after: 3}]"]),
        set("faults: a crash without a time", &["faults.crashes=[{worker: 0}]"]),
        set("faults: a policy without a crash", &["faults.on_crash=fail"]),
        set(
            "faults: retries of those that fail",
            &["faults={on_crash: fail, max_retries: 2, crashes: [{worker: 0, at_seconds: 1}]}"],
        ),
        set(
            "faults: slow until before",
            &["faults.slow_workers=[{worker: 0, from_seconds: 5, to_seconds: 5, factor: 2}]"],
        ),
        set(
            "faults: slow twice",
            &[
                "faults.slow_workers=[{worker: 0, from_seconds: 5, factor: 2}, {worker: 0, from_seconds: 9, factor: 3}]",
            ],
        ),
        apart("faults: of roles, without a role", "faults.crashes=[{worker: 0, at_seconds: 1}]"),
        set("faults: of a role of aggregated workers", &["faults.prefill.crashes=[{worker: 0, at_seconds: 1}]"]),
        apart("faults: no such worker of a role", "faults.decode.slow_workers=[{worker: 7, from_seconds: 5, factor: 2}]"),
        apart("faults: lost events of a role that nobody hears", "faults.decode.kv_event_loss={rate: 0.1}"),
        apart("faults: a key of a role", "faults.prefill.on_crash=fail"),
        set("faults: lost events that nobody hears", &["faults.kv_event_loss={rate: 0.1}"]),
        set("faults: more than all events", &["faults.kv_event_loss={rate: 1.5}", "router.policy=kv_router"]),
        set("faults: a rate of nothing", &["faults.crash_rate={per_worker_hour: 0, restart_seconds: 1}"]),
        set("value: price", &["evaluation.price_per_gpu_hour=-1"]),
        set("not yet: recommend", &["optimization={target: throughput}", "optimizer={}"]),
        set("not yet: images", &["traffic.source.images={height: 8, width: 8}"]),
        set("not yet: sessions", &["traffic.source.type=synthetic-session", "traffic.stop.sessions=9"]),
        set("not yet: agentic", &["traffic.load.agentic_lanes=4"]),
        set("not yet: capacity-relative load", &["traffic.load.type=kv_capacity_fraction"]),
        set("not yet: weka", &["traffic.source.format=weka"]),
        set("not yet: dynamo", &["traffic.source.format=dynamo"]),
        set("not yet: mooncake-delta", &["traffic.source.format=mooncake-delta"]),
        edit("not yet: hardware auto", "hardware: h", "hardware: auto"),
    ]
}

fn contradictions() -> Vec<Case> {
    vec![
        set("contradiction: a seed of turns", &["router.seed=7"]),
        edit(
            "contradiction: fixed keys with polynomial",
            "type: fixed, prefill",
            "type: polynomial, prefill",
        ),
        edit("contradiction: fixed keys with linear", "type: fixed, prefill", "type: linear, prefill"),
        edit("contradiction: fixed without decode", ", decode_ms: 2", ""),
        edit("contradiction: a prefill of 634 years", "prefill_ms: 10", "prefill_ms: 2e13"),
        edit("contradiction: a decode of 634 years", "decode_ms: 2", "decode_ms: 2e13"),
        edit(
            "contradiction: both together",
            "prefill_ms: 10, decode_ms: 2",
            "prefill_ms: 9e12, decode_ms: 9e12",
        ),
        add("contradiction: slowed to 10^295 years", "decode_ms: 2", ", speedup_ratio: 1e-300"),
        add("contradiction: slowed decodes", "decode_ms: 2", ", decode_speedup_ratio: 1e-14"),
        edit(
            "contradiction: a rate that takes too long",
            "{type: concurrency, concurrency: 4}",
            "{type: constant_rate, requests_per_second: 1e-9}",
        ),
        add("contradiction: linear keys with fixed", "decode_ms: 2", ", linear: {base_ms: 1}"),
        add("contradiction: mixed with fixed", "decode_ms: 2", ", composition: mixed"),
        edit(
            "contradiction: decode speedup in a mixed pass",
            "{type: fixed, prefill_ms: 10, decode_ms: 2}",
            "{type: linear, linear: {base_ms: 1}, decode_speedup_ratio: 2}",
        ),
        edit("contradiction: null block only", "blocks: 1024", "blocks: 1"),
        edit("contradiction: 2^40 tokens", "block_size: 16", "block_size: 4294967295"),
        edit("contradiction: budget below seats", "max_batched_tokens: 4096", "max_batched_tokens: 32"),
        edit(
            "contradiction: default seats above budget",
            "{max_batched_tokens: 4096, max_sequences: 64}",
            "{max_batched_tokens: 128}",
        ),
        add(
            "contradiction: whole prompts without a limit",
            "  model: m\n",
            "  enable_chunked_prefill: false\n",
        ),
        add(
            "contradiction: whole prompts above the budget",
            "  model: m\n",
            "  enable_chunked_prefill: false\n  context_length: 8192\n",
        ),
        add("contradiction: active seats above seats", "max_sequences: 64", ", max_num_active_seqs: 65"),
        add(
            "contradiction: threshold above context",
            "max_sequences: 64",
            ", long_prefill_token_threshold: 3000000000",
        ),
        add(
            "contradiction: fifo by priority",
            "max_sequences: 64",
            ", policy: priority, preemption_mode: fifo",
        ),
        set("contradiction: two kinds of sla", &["evaluation.sla={ttft_ms: 1, e2e_ms: 2}"]),
        set(
            "contradiction: asynchronous AISimulate",
            &[
                "engine.semantics=aisimulate_0_13",
                "engine.workers.aggregated.scheduler.async_scheduling=true",
            ],
        ),
        set(
            "contradiction: interval in AISimulate",
            &[
                "engine.semantics=aisimulate_0_13",
                "engine.workers.aggregated.scheduler.prefill_schedule_interval=2",
            ],
        ),
        set(
            "contradiction: mixed AISimulate",
            &[
                "engine.semantics=aisimulate_0_13",
                "engine.workers.aggregated.timing={type: linear, linear: {}, composition: mixed}",
            ],
        ),
        edit("contradiction: concurrency with poisson", "type: concurrency,", "type: poisson,"),
        edit("contradiction: rate with concurrency", "concurrency: 4", "requests_per_second: 4"),
        edit(
            "contradiction: seed with a constant rate",
            "{type: concurrency, concurrency: 4}",
            "{type: constant_rate, requests_per_second: 4, seed: 1}",
        ),
        edit(
            "contradiction: timestamps of nothing",
            "type: concurrency, concurrency: 4",
            "type: trace_timestamps",
        ),
        edit("contradiction: no stop", "stop: {requests: 20}", "stop: {}"),
        edit("contradiction: two stops", "requests: 20", "requests: 20, requests_per_load_unit: 5"),
        edit("contradiction: endless stop", "{requests: 20}", "{requests_per_load_unit: 1.0e+300}"),
        edit(
            "contradiction: cut-off of a synthetic run",
            "requests: 20",
            "requests: 20, max_virtual_time_seconds: 5",
        ),
        edit("contradiction: trace keys with synthetic", "input_tokens: 100", "block_size: 16, limit: 5"),
        edit(
            "contradiction: time beyond the longest run",
            "stop: {requests: 20}",
            "stop: {requests: 20}\nevaluation: {sla: {e2e_ms: 1.0e+300}}",
        ),
        traffic("contradiction: load only", "traffic:\n  load: {concurrency: 4}\n"),
        traffic("contradiction: trace without a path", "traffic: {source: {type: trace}}\n"),
        traffic(
            "contradiction: trace that is not there",
            "traffic: {source: {type: trace, paths: [nowhere.jsonl]}}\n",
        ),
        traffic(
            "contradiction: trace at an absolute path that is not there",
            "traffic: {source: {type: trace, paths: [/nowhere/trace.jsonl]}}\n",
        ),
        traffic("contradiction: two traces", "traffic: {source: {type: trace, paths: [a.jsonl, b.jsonl]}}\n"),
        traffic("contradiction: a folder as trace", "traffic: {source: {type: trace, paths: [.]}}\n"),
        trace("contradiction: rate with a trace", &["traffic.load.requests_per_second=5"], &[]),
        trace("contradiction: poisson trace", &["traffic.load={type: poisson, requests_per_second: 5}"], &[]),
        trace("contradiction: speedup of a closed loop", &["traffic.load={speedup: 2}"], &[]),
        trace("contradiction: stop of a trace", &["traffic.stop.requests=5"], &[]),
        trace("contradiction: lengths of a trace", &["traffic.source.input_tokens=5"], &[]),
        trace(
            "contradiction: blocks of a request file",
            &["traffic.source.format=requests", "traffic.source.block_size=16"],
            &[],
        ),
    ]
}

fn overrides() -> Vec<Case> {
    vec![
        set("override: no value", &["engine.model"]),
        set("override: no path", &["=5"]),
        set(
            "override: 33 names",
            &[concat!("a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.", "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1")],
        ),
        set("override: empty name", &["engine..model=x"]),
        set("override: broken yaml", &["engine.model={"]),
        set("override: empty value", &["engine.model="]),
        set("override: unknown key", &["engine.worker.aggregated={}"]),
        set("override: below a value", &["engine.model.name=x"]),
        trace("override: below a list", &["traffic.source.paths.0=x"], &[]),
        set("override: wrong type", &["engine.workers.aggregated.parallelism.replicas=many"]),
        set("override: the last one counts", &["engine.backend=sglang", "engine.backend=sglong"]),
        set("override: makes a contradiction", &["traffic.load.requests_per_second=5"]),
        set("override: replaces a mapping", &["traffic.load={type: poisson}"]),
    ]
}

/// Another engine, with these keys of its scheduler.
fn engine(name: &'static str, backend: &str, scheduler: &str, overrides: &[&'static str]) -> Case {
    let config = GOOD.replacen("backend: vllm", &format!("backend: {backend}"), 1).replacen(
        "max_batched_tokens: 4096, max_sequences: 64",
        scheduler,
        1,
    );
    Case { name, config, overrides: overrides.to_vec(), trace: None }
}

const THEIRS: &str = "engine.semantics=aisimulate_0_13";

/// Keys and values that not every engine has.
fn engines() -> Vec<Case> {
    vec![
        engine("engine: keys of sglang", "vllm", "chunked_prefill_size: 512, ignore_eos: true", &[]),
        engine("engine: overlap of vllm", "vllm", "overlap: true", &[]),
        engine("engine: an interval of sglang", "vllm", "prefill_decode_interval: 2", &[]),
        engine("engine: a key of trtllm", "sglang", "capacity_policy: max_utilization", &[]),
        engine("engine: keys of vllm", "sglang", "async_scheduling: true, watermark: 0.1", &[]),
        engine("engine: an interval of vllm", "sglang", "prefill_schedule_interval: 2", &[]),
        engine("engine: budget of sglang", "sglang", "max_batched_tokens: 8192", &[]),
        engine("engine: priorities of trtllm", "trtllm", "policy: priority", &[]),
        engine(
            "engine: priority keys under fcfs",
            "sglang",
            "schedule_low_priority_values_first: true, priority_preemption_threshold: 5",
            &[],
        ),
        engine(
            "engine: priority keys of vllm",
            "vllm",
            "policy: priority, priority_preemption_threshold: 5",
            &[],
        ),
        engine(
            "engine: a threshold below 0",
            "sglang",
            "policy: priority, priority_preemption_threshold: -1",
            &[],
        ),
        engine("engine: lpm by priority", "sglang", "policy: priority, schedule_policy: lpm", &[]),
        engine("engine: an order that does not exist", "sglang", "schedule_policy: hrrn", &[]),
        engine("engine: chunk of -1", "sglang", "chunked_prefill_size: -1", &[]),
        engine("engine: chunk beside the page", "sglang", "chunked_prefill_size: 1000", &[]),
        engine("engine: mixed without chunks", "sglang", "chunked_prefill_size: off, mixed_chunk: true", &[]),
        engine(
            "engine: chunks that are off",
            "sglang",
            "chunked_prefill_size: 512",
            &["engine.enable_chunked_prefill=false"],
        ),
        engine(
            "engine: chunks that are on",
            "sglang",
            "chunked_prefill_size: off",
            &["engine.enable_chunked_prefill=true"],
        ),
        engine("engine: no chunks in AISimulate", "sglang", "chunked_prefill_size: off", &[THEIRS]),
        engine(
            "engine: whole prompts in AISimulate",
            "sglang",
            "max_sequences: 64",
            &[THEIRS, "engine.enable_chunked_prefill=false"],
        ),
        engine("engine: overlap in AISimulate", "sglang", "overlap: true", &[THEIRS]),
        engine("engine: conservativeness below 0", "sglang", "schedule_conservativeness: -1", &[]),
        engine(
            "engine: short context of sglang",
            "sglang",
            "max_sequences: 64",
            &["engine.context_length=7"],
        ),
        engine(
            "engine: a pool of 4 tokens",
            "sglang",
            "max_sequences: 64",
            &["engine.workers.aggregated.kv_cache={block_size: 1, capacity: {type: fixed, blocks: 4}}"],
        ),
        engine(
            "engine: a pool of 2^33 tokens",
            "sglang",
            "max_sequences: 64",
            &[
                "engine.workers.aggregated.kv_cache={block_size: 8, capacity: {type: fixed, blocks: 1073741824}}",
            ],
        ),
        engine("engine: eviction in AISimulate", "trtllm", "capacity_policy: max_utilization", &[THEIRS]),
        set(
            "engine: blocks of 1 in AISimulate",
            &[THEIRS, "engine.workers.aggregated.kv_cache.block_size=1"],
        ),
    ]
}

/// Capacity from model and hardware.
fn capacity() -> Vec<Case> {
    const CAPACITY: &str = "engine.workers.aggregated.kv_cache.capacity={type: default}";
    const FRACTION: &str =
        "engine.workers.aggregated.kv_cache.capacity={type: default, memory_fraction: 0.01}";
    const TENSOR: &str = "engine.workers.aggregated.parallelism.tensor=3";
    const EXPERTS: &str = "engine.workers.aggregated.parallelism={tensor: 4, moe_tensor: 2}";
    const LLAMA: &str = "engine.model=meta-llama/Llama-3.1-8B-Instruct";
    const H100: &str = "engine.hardware=h100_sxm";
    let fixed = "{type: fixed, blocks: 1024}";
    vec![
        set("capacity: of an unknown model on unknown hardware", &[CAPACITY]),
        set(
            "capacity: on an accelerator whose description is not there",
            &[CAPACITY, "engine.hardware=my.gpu"],
        ),
        set("capacity: of a misspelt model", &[CAPACITY, "engine.model=meta-llama/Lama-3.1-8B", H100]),
        edit("capacity: default with blocks", fixed, "{type: default, blocks: 1024}"),
        edit("capacity: fixed without blocks", fixed, "{type: fixed, memory_fraction: 0.9}"),
        edit("capacity: fixed with a fraction", fixed, "{type: fixed, blocks: 4, memory_fraction: 0.9}"),
        edit("capacity: fixed with graphs", fixed, "{type: fixed, blocks: 4, cuda_graph_reserved_bytes: 1}"),
        set("capacity: fixed with a type of numbers", &["engine.kvcache_quant_mode=fp8"]),
        edit("capacity: a fraction of nothing", fixed, "{type: default, memory_fraction: 0}"),
        edit("capacity: more than all memory", fixed, "{type: default, memory_fraction: 1.5}"),
        set("capacity: a fraction too small", &[FRACTION, LLAMA, H100]),
        set("capacity: a model too large", &[CAPACITY, "engine.model=deepseek-ai/DeepSeek-V3", H100]),
        set("capacity: heads that do not divide", &[CAPACITY, LLAMA, H100, TENSOR]),
        set("capacity: experts on some", &[CAPACITY, "engine.model=Qwen/Qwen3-30B-A3B", H100, EXPERTS]),
        set("capacity: a version in between", &[CAPACITY, LLAMA, H100, "engine.backend_version='0.20.0'"]),
        set("capacity: memory out of range", &[CAPACITY, LLAMA, "engine.gpu_memory_gib=0.5"]),
    ]
}

/// Defaults that depend on the memory of the accelerator.
fn native_defaults() -> Vec<Case> {
    let native = "engine.defaults=native";
    vec![
        engine("native defaults: vllm on unknown hardware", "vllm", "max_sequences: 64", &[native]),
        engine("native defaults: sglang on unknown hardware", "sglang", "max_sequences: 64", &[native]),
        engine(
            "native defaults: sglang without a context length",
            "sglang",
            "chunked_prefill_size: 512",
            &[native],
        ),
        set("native defaults: memory of nothing", &[native, "engine.gpu_memory_gib=0"]),
        set("native defaults: memory without them", &["engine.gpu_memory_gib=80"]),
        engine(
            "native defaults: memory of trtllm",
            "trtllm",
            "max_sequences: 64",
            &[native, "engine.gpu_memory_gib=80"],
        ),
        set("native defaults: of whom", &["engine.defaults=vllm"]),
    ]
}

/// Several ranks in a worker.
fn ranks() -> Vec<Case> {
    let ranks = "engine.workers.aggregated.parallelism.attention_data=3";
    vec![
        edit("ranks: none", "{replicas: 2}", "{attention_data: 0}"),
        edit("ranks: 1025", "{replicas: 2}", "{attention_data: 1025}"),
        engine("ranks: chunk of the whole worker", "sglang", "chunked_prefill_size: 2", &[ranks]),
        engine("ranks: chunk beside the page", "sglang", "max_sequences: 64", &[ranks]),
        engine(
            "ranks: balancer of vllm",
            "sglang",
            "max_sequences: 64",
            &["engine.workers.aggregated.rank_placement=vllm_balancer"],
        ),
        set(
            "ranks: balancer in AISimulate",
            &[THEIRS, "engine.workers.aggregated.rank_placement=vllm_balancer"],
        ),
        set("ranks: no barrier in AISimulate", &[THEIRS, ranks, "engine.workers.aggregated.barrier=false"]),
        engine(
            "ranks: no barrier in SGLang",
            "sglang",
            "max_sequences: 64",
            &[
                "engine.workers.aggregated.parallelism={attention_data: 2}",
                "engine.workers.aggregated.barrier=false",
            ],
        ),
        edit("ranks: too many in all", "{replicas: 2}", "{replicas: 1000, attention_data: 101}"),
        set("ranks: a placement that does not exist", &["engine.workers.aggregated.rank_placement=random"]),
    ]
}

const ROW: &str = r#"{"timestamp": 10, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;

fn mooncake() -> Vec<Case> {
    let row = |name, line: &str| trace(name, &[], &[ROW, line]);
    vec![
        trace("mooncake: empty", &[], &[]),
        row("mooncake: not json", "timestamp,input_length"),
        row("mooncake: cut off", r#"{"timestamp": 10, "input_length": 600"#),
        row("mooncake: a list", "[10, 600, 5]"),
        row("mooncake: no time", r#"{"input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#),
        row("mooncake: earlier", &ROW.replace("10,", "9,")),
        row("mooncake: negative time", &ROW.replace("10,", "-1,")),
        row("mooncake: too few ids", &ROW.replace("[0, 1]", "[0]")),
        row("mooncake: too many ids", &ROW.replace("600", "20")),
        row("mooncake: no input", &ROW.replace("600", "0")),
        row("mooncake: no output", &ROW.replace("5,", "0,")),
        row("mooncake: fraction of a token", &ROW.replace("600", "600.5")),
        row("mooncake: negative id", &ROW.replace("[0, 1]", "[0, -1]")),
        row("mooncake: turn of a session", &ROW.replace("{", r#"{"session_id": "s", "#)),
        row("mooncake: misspelt", &ROW.replace("output_length", "ouput_length")),
        row("mooncake: tokens", &ROW.replace("{", r#"{"prompt_token_ids": [1], "#)),
    ]
}

fn requests() -> Vec<Case> {
    let good = r#"{"id": "a", "prompt_token_ids": [1, 2], "max_tokens": 3, "arrival_ms": 10}"#;
    let line = |name, line: &str| trace(name, &["traffic.source.format=requests"], &[good, line]);
    vec![
        trace("requests: a mooncake file", &["traffic.source.format=requests"], &[ROW]),
        line("requests: earlier", &good.replace("10}", "9}")),
        line("requests: by step", &good.replace(r#""arrival_ms": 10"#, r#""arrival_step": 3"#)),
        line("requests: aborted", &good.replace("10}", r#"10, "abort_step": 3}"#)),
        line("requests: no time", &good.replace(r#", "arrival_ms": 10"#, "")),
        line("requests: empty prompt", &good.replace("[1, 2]", "[]")),
        line("requests: text as prompt", &good.replace("[1, 2]", "\"hello\"")),
        line("requests: no output", &good.replace("3,", "0,")),
        line("requests: drafts", &good.replace("10}", r#"10, "drafts": [[1]]}"#)),
    ]
}
