//! AISimulate's JSON in place of flags: the engine's configuration of `--extra-engine-args`, and that of its estimator of
//! `--ais-perf-config` (reference-surface.md, Dynamo 1.6.1). Each becomes the flags that say the same, so that what is
//! said twice is refused, and all of it is checked by the rules of the flags.

use crate::exit::Failure;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// The file of `--extra-engine-args`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Launch {
    #[serde(default)]
    engine: Rank,
    dp_size: Option<u32>,
    tensor_parallel_size: Option<u32>,
    startup_time: Option<f64>,
    num_gpu_blocks_is_explicit: Option<bool>,
    gpu_memory_utilization: Option<f64>,
    mem_fraction_static: Option<f64>,
    free_gpu_memory_fraction: Option<f64>,
    cuda_graph_reserved_bytes: Option<u64>,
    #[serde(default)]
    dynamo: Dynamo,
}

/// Its `dynamo`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dynamo {
    enable_local_indexer: Option<bool>,
    bootstrap_port: Option<u16>,
    handoff_session_timeout_ms: Option<u64>,
    reasoning: Option<Value>,
    response_replay_trace_path: Option<String>,
    zmq_kv_events_port: Option<u16>,
    zmq_replay_port: Option<u16>,
    router_queue_policy: Option<Value>,
}

/// Its `engine`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rank {
    backend: Option<String>,
    num_gpu_blocks: Option<u32>,
    block_size: Option<u32>,
    max_model_len: Option<u32>,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
    prefill_schedule_interval: Option<u32>,
    prefill_decode_interval: Option<u32>,
    enable_prefix_caching: Option<bool>,
    enable_chunked_prefill: Option<bool>,
    speedup_ratio: Option<f64>,
    decode_speedup_ratio: Option<f64>,
    aic_nextn: Option<Value>,
    aic_nextn_accept_rates: Option<Value>,
    aic_mtp_seed: Option<u64>,
    worker_type: Option<String>,
    preemption_mode: Option<String>,
    emit_kv_events: Option<bool>,
    emit_kv_token_ids: Option<bool>,
    #[serde(alias = "kv_bytes_per_token")]
    kv_transfer_bytes_per_token: Option<u64>,
    kv_cache_bytes_per_token: Option<u64>,
    kv_cache_groups: Option<Value>,
    kv_cache_capacity_bytes: Option<Value>,
    native_host_offload: Option<Value>,
    g3_offload: Option<Value>,
    state_cache: Option<Value>,
    prefix_match_unit: Option<Value>,
    kv_transfer_bandwidth: Option<f64>,
    kv_transfer_timing_mode: Option<String>,
    timing_model: Option<Timing>,
    sglang: Option<Sglang>,
    trtllm: Option<Trtllm>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Timing {
    Polynomial {},
    Fixed { prefill_ms: f64, decode_ms: f64 },
    External { provider: String, config: Value },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sglang {
    schedule_policy: Option<String>,
    max_prefill_tokens: Option<u64>,
    chunked_prefill_size: Option<u64>,
    clip_max_new_tokens: Option<u64>,
    schedule_conservativeness: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trtllm {
    capacity_scheduler_policy: Option<String>,
}

/// Dynamo's `config` of `timing_model`, where its profile is the provider.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileAt {
    path: String,
}

/// AISimulate's `ForwardPassPerfModelConfig`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Estimator {
    model: String,
    system: String,
    backend: String,
    worker_type: Option<String>,
    backend_version: Option<String>,
    #[serde(alias = "tp_size")]
    tp: Option<u32>,
    moe_tp_size: Option<u32>,
    moe_ep_size: Option<u32>,
    #[serde(alias = "attention_dp_size")]
    attention_dp: Option<u32>,
    nextn: Option<u32>,
    estimation_mode: Option<String>,
    fallback_policy: Option<String>,
    systems_paths: Option<Vec<String>>,
    estimator_config: Option<Map<String, Value>>,
}

/// Flags, and why something has none.
struct Flags {
    source: String,
    flags: Vec<String>,
}

impl Flags {
    fn put(&mut self, flag: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.flags.push(format!("{flag}={}", value.to_string()));
        }
    }

    /// A key of the configuration that has no flag.
    fn set(&mut self, roles: &[&str], path: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            let value = value.to_string();
            let sets = roles.iter().map(|role| format!("--set=engine.workers.{role}.{path}={value}"));
            self.flags.extend(sets);
        }
    }

    fn switch(&mut self, on: Option<bool>, flag: &str) {
        match on {
            Some(true) => self.flags.push(format!("--{flag}")),
            Some(false) => self.flags.push(format!("--no-{flag}")),
            None => {}
        }
    }

    fn wrong(&self, message: impl std::fmt::Display) -> Failure {
        Failure::Input(format!("{}: {message}", self.source))
    }

    /// Refuses what is given and is not what means nothing.
    fn refuse(&self, key: &str, given: bool, why: &str) -> Result<(), Failure> {
        if given { Err(self.wrong(format_args!("{key}: {why}"))) } else { Ok(()) }
    }
}

/// What the file of `--extra-engine-args` says; `model`: what `--model` names.
pub(super) fn engine_flags(file: &Path, model: Option<&str>) -> Result<Vec<String>, Failure> {
    let mut flags = Flags { source: format!("--extra-engine-args: {}", file.display()), flags: Vec::new() };
    let text = std::fs::read_to_string(file)
        .map_err(|error| flags.wrong(format_args!("cannot be read: {error}")))?;
    let Launch { engine, dynamo, .. } = {
        let launch: Launch = serde_json::from_str(&text).map_err(|error| flags.wrong(error))?;
        flags.put("--data-parallel-size", launch.dp_size);
        flags.put("--tensor-parallel-size", launch.tensor_parallel_size);
        flags.put("--startup-time", launch.startup_time);
        flags.put("--gpu-memory-utilization", launch.gpu_memory_utilization);
        flags.put("--mem-fraction-static", launch.mem_fraction_static);
        flags.put("--free-gpu-memory-fraction", launch.free_gpu_memory_fraction);
        let reserved = launch.cuda_graph_reserved_bytes.is_some_and(|bytes| bytes > 0);
        flags.refuse("cuda_graph_reserved_bytes", reserved, "a file has it (-c), as a key of capacity")?;
        // A number that is only the default stands for no number.
        let blocks =
            launch.engine.num_gpu_blocks.filter(|_| launch.num_gpu_blocks_is_explicit != Some(false));
        flags.put("--num-gpu-blocks-override", blocks);
        launch
    };
    flags.of_dynamo(&dynamo)?;
    flags.of_rank(&engine, model)?;
    Ok(flags.flags)
}

/// What `--ais-perf-config` says, in itself or in a file.
pub(super) fn perf_flags(config: &str, model: Option<&str>) -> Result<Vec<String>, Failure> {
    let mut flags = Flags { source: "--ais-perf-config".into(), flags: Vec::new() };
    let text = match config.trim_start().starts_with('{') {
        true => config.to_owned(),
        false => std::fs::read_to_string(config)
            .map_err(|error| flags.wrong(format_args!("{config}: cannot be read: {error}")))?,
    };
    let config: Value = serde_json::from_str(&text).map_err(|error| flags.wrong(error))?;
    flags.of_estimator(config, model, true)?;
    Ok(flags.flags)
}

impl Flags {
    fn of_dynamo(&mut self, dynamo: &Dynamo) -> Result<(), Failure> {
        let own = "belongs to Dynamo's own runtime";
        self.refuse("dynamo.enable_local_indexer", dynamo.enable_local_indexer == Some(true), own)?;
        let queue = dynamo.router_queue_policy.as_ref().is_some_and(|policy| !policy.is_null());
        self.refuse("dynamo.router_queue_policy", queue, "is router.queue_policy of a file (-c), for serve")?;
        let timeout = dynamo.handoff_session_timeout_ms.is_some_and(|ms| ms != 300_000);
        let instead = "allowed is 300000; SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and …_WAITING_TIMEOUT say how \
                       long SGLang's workers wait";
        self.refuse("dynamo.handoff_session_timeout_ms", timeout, instead)?;
        self.put("--bootstrap-ports", dynamo.bootstrap_port);
        self.put("--reasoning", dynamo.reasoning.as_ref().filter(|reasoning| !reasoning.is_null()));
        self.put("--response-replay-trace-path", dynamo.response_replay_trace_path.as_ref());
        self.put("--zmq-kv-events-ports", dynamo.zmq_kv_events_port);
        self.put("--zmq-replay-ports", dynamo.zmq_replay_port);
        Ok(())
    }

    fn of_rank(&mut self, rank: &Rank, model: Option<&str>) -> Result<(), Failure> {
        self.refuse_of_rank(rank)?;
        let vllm = matches!(rank.backend.as_deref(), None | Some("vllm"));
        let apart = matches!(rank.worker_type.as_deref(), Some("prefill" | "decode"));
        // As what stands in place of a file has it.
        let roles: &[&str] = if apart && !vllm { &["prefill", "decode"] } else { &["aggregated"] };
        self.put("--engine", rank.backend.as_ref());
        self.put("--block-size", rank.block_size);
        self.put("--max-model-len", rank.max_model_len);
        self.put("--max-num-seqs", rank.max_num_seqs);
        self.put("--max-num-batched-tokens", rank.max_num_batched_tokens);
        self.set(roles, "scheduler.prefill_schedule_interval", rank.prefill_schedule_interval);
        self.set(roles, "scheduler.prefill_decode_interval", rank.prefill_decode_interval);
        self.switch(rank.enable_prefix_caching, "enable-prefix-caching");
        self.switch(rank.enable_chunked_prefill, "enable-chunked-prefill");
        // AISimulate's 0 is not that of the flag: it leaves passes as they are.
        self.put("--speedup-ratio", rank.speedup_ratio.filter(|ratio| *ratio != 0.0));
        self.put("--decode-speedup-ratio", rank.decode_speedup_ratio);
        self.put("--disaggregation-mode", rank.worker_type.as_deref().filter(|_| apart));
        self.put("--preemption-mode", rank.preemption_mode.as_ref().filter(|_| vllm));
        self.put("--kv-bytes-per-token", rank.kv_transfer_bytes_per_token);
        self.set(roles, "kv_cache.bytes_per_token", rank.kv_cache_bytes_per_token);
        self.put("--kv-transfer-bandwidth", rank.kv_transfer_bandwidth);
        // The engine's default is not that of a file.
        let mode = rank.kv_transfer_timing_mode.as_deref().or(apart.then_some("full_prompt"));
        self.put("--kv-transfer-timing-mode", mode);
        if let Some(sglang) = &rank.sglang {
            self.put("--schedule-policy", sglang.schedule_policy.as_ref());
            self.put("--max-prefill-tokens", sglang.max_prefill_tokens);
            self.put("--chunked-prefill-size", sglang.chunked_prefill_size);
            self.put("--sglang-clip-max-new-tokens", sglang.clip_max_new_tokens);
            self.put("--schedule-conservativeness", sglang.schedule_conservativeness);
        }
        if let Some(trtllm) = &rank.trtllm {
            self.put("--trtllm-capacity-scheduler-policy", trtllm.capacity_scheduler_policy.as_ref());
        }
        match &rank.timing_model {
            None => {}
            Some(Timing::Polynomial {}) => self.set(roles, "timing", Some("{type: polynomial}")),
            Some(Timing::Fixed { prefill_ms, decode_ms }) => {
                let law = format!("{{type: fixed, prefill_ms: {prefill_ms:?}, decode_ms: {decode_ms:?}}}");
                self.set(roles, "timing", Some(law));
            }
            Some(Timing::External { provider, config }) => match provider.as_str() {
                "ais" | "aic" => self.of_estimator(config.clone(), model, false)?,
                "dynamo_profile" => {
                    let profile = ProfileAt::deserialize(config).map_err(|error| self.wrong(error))?;
                    self.put("--planner-profile-data", Some(profile.path));
                }
                other => {
                    let message = format!(
                        "timing_model.provider: got \"{other}\", allowed is ais, aic, dynamo_profile"
                    );
                    return Err(self.wrong(message));
                }
            },
        }
        Ok(())
    }

    fn refuse_of_rank(&self, rank: &Rank) -> Result<(), Failure> {
        let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let drafts = "speculative decoding is not supported yet";
        self.refuse("engine.aic_nextn", given(&rank.aic_nextn), drafts)?;
        self.refuse("engine.aic_nextn_accept_rates", given(&rank.aic_nextn_accept_rates), drafts)?;
        self.refuse("engine.aic_mtp_seed", rank.aic_mtp_seed.is_some_and(|seed| seed != 42), drafts)?;
        let host = "live workers have no tier in the host's memory";
        self.refuse("engine.native_host_offload", given(&rank.native_host_offload), host)?;
        self.refuse("engine.g3_offload", given(&rank.g3_offload), host)?;
        let groups = "cache groups, state caches and other units than the block are not supported yet";
        for (key, value) in [
            ("engine.kv_cache_groups", &rank.kv_cache_groups),
            ("engine.kv_cache_capacity_bytes", &rank.kv_cache_capacity_bytes),
            ("engine.state_cache", &rank.state_cache),
            ("engine.prefix_match_unit", &rank.prefix_match_unit),
        ] {
            self.refuse(key, given(value), groups)?;
        }
        let events = "KV events are published where dynamo.zmq_kv_events_port says, with their tokens";
        self.refuse("engine.emit_kv_events", rank.emit_kv_events == Some(true), events)?;
        self.refuse("engine.emit_kv_token_ids", rank.emit_kv_token_ids == Some(true), events)?;
        match rank.worker_type.as_deref() {
            None | Some("aggregated" | "prefill" | "decode") => Ok(()),
            Some(other) => {
                let message =
                    format!("engine.worker_type: got \"{other}\", allowed is aggregated, prefill, decode");
                Err(self.wrong(message))
            }
        }
    }

    /// `alone`: nothing else says which engine and role it is.
    fn of_estimator(&mut self, config: Value, model: Option<&str>, alone: bool) -> Result<(), Failure> {
        let config = Estimator::deserialize(config).map_err(|error| self.wrong(error))?;
        match model {
            None => self.put("--model", Some(&config.model)),
            Some(model) if model == config.model => {}
            Some(model) => {
                let message = format!("model: got \"{}\", and --model is \"{model}\"", config.model);
                return Err(self.wrong(message));
            }
        }
        let own = "is AISimulate's estimator's own; calibrated times come with the program, and an accelerator that \
                   nobody measured is described by a file, as --ais-system";
        let mode = config.estimation_mode.is_some_and(|mode| mode != "auto");
        self.refuse("estimation_mode", mode, own)?;
        let policy = config.fallback_policy.is_some_and(|policy| policy != "deny");
        self.refuse("fallback_policy", policy, own)?;
        self.refuse("systems_paths", config.systems_paths.is_some_and(|paths| !paths.is_empty()), own)?;
        let settings = config.estimator_config.is_some_and(|settings| !settings.is_empty());
        self.refuse("estimator_config", settings, own)?;
        self.refuse(
            "nextn",
            config.nextn.is_some_and(|n| n > 0),
            "speculative decoding is not supported yet",
        )?;
        self.flags.push("--ais-perf-model".into());
        self.put("--ais-system", Some(config.system));
        self.put("--ais-backend", Some(config.backend));
        self.put("--ais-backend-version", config.backend_version);
        self.put("--ais-tp-size", config.tp.filter(|tp| alone || *tp > 1));
        self.put("--ais-moe-tp-size", config.moe_tp_size);
        self.put("--ais-moe-ep-size", config.moe_ep_size);
        self.put("--data-parallel-size", config.attention_dp.filter(|dp| alone || *dp > 1));
        if alone {
            let role = config.worker_type.filter(|role| role != "aggregated");
            self.put("--disaggregation-mode", role);
        }
        Ok(())
    }
}
