//! Flags of the launcher of Dynamo's mocker (`python -m dynamo.mocker`, 1.6.1) that the engines' own servers have not,
//! and of SGLang's and TensorRT-LLM's schedulers: under the names of both, each a key of the configuration.

use super::keys::{Key, key};
use super::{Engine, Mocker};
use crate::exit::Failure;
use clap::{Args, ValueEnum};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use windtunnel_engine::RankConfig;
use windtunnel_live::Endpoint;
use windtunnel_live::kv_events::{Dialect, KvEventsConfig};

/// The launcher's flags.
#[derive(Debug, Args)]
pub struct LauncherArguments {
    /// AISimulate's engine configuration (JSON), in place of the engine's flags: what both say is refused
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub extra_engine_args: Option<PathBuf>,
    /// Seconds from the start of a worker to that of the next one, and two more after every 32; -1: 0 up to 32 workers,
    /// 0.1 up to 128, else 0.2
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    stagger_delay: Option<f64>,
    /// Who loses its blocks first (vLLM)
    #[arg(long, value_enum)]
    preemption_mode: Option<PreemptionMode>,
    /// Type of the numbers in the KV cache, for times and capacity that come from model and hardware
    #[arg(long, value_enum)]
    kv_cache_dtype: Option<KvCacheType>,
    /// Accelerators of a rank
    #[arg(long, aliases = ["tp-size", "tp", "tp_size", "ais-tp-size", "aic-tp-size"], value_name = "N")]
    tensor_parallel_size: Option<u32>,
    /// Pipeline stages
    #[arg(long, aliases = ["pp-size", "pp_size"], value_name = "N")]
    pipeline_parallel_size: Option<u32>,
    /// Tensor parallelism of the experts
    #[arg(long, alias = "aic-moe-tp-size", value_name = "N")]
    ais_moe_tp_size: Option<u32>,
    /// Expert parallelism
    #[arg(long, aliases = ["aic-moe-ep-size", "ep-size", "ep_size"], value_name = "N")]
    ais_moe_ep_size: Option<u32>,
    /// Blocks are what fits into this share of the accelerator's memory (vLLM)
    #[arg(long, value_name = "SHARE", group = "memory", conflicts_with = "num_gpu_blocks_override")]
    gpu_memory_utilization: Option<f64>,
    /// The same (SGLang)
    #[arg(long, value_name = "SHARE", group = "memory", conflicts_with = "num_gpu_blocks_override")]
    mem_fraction_static: Option<f64>,
    /// The same (TensorRT-LLM)
    #[arg(
        long,
        value_name = "SHARE",
        alias = "kv_cache_free_gpu_memory_fraction",
        group = "memory",
        conflicts_with = "num_gpu_blocks_override"
    )]
    free_gpu_memory_fraction: Option<f64>,
    /// Passes take the times that Dynamo's profiler measured: a .npz, .json, or its folder
    #[arg(long, value_name = "PATH", conflicts_with = "ais_perf_model")]
    planner_profile_data: Option<PathBuf>,
    /// Passes take the calibrated times of model and accelerator, and blocks are what fits, unless a file or a flag says so
    #[arg(long, alias = "aic-perf-model")]
    ais_perf_model: bool,
    /// The accelerator [default: h200_sxm, or the file's]
    #[arg(long, alias = "aic-system", value_name = "NAME", requires = "ais_perf_model")]
    ais_system: Option<String>,
    /// Whose times: the engine's that runs
    #[arg(long, alias = "aic-backend", value_enum, requires = "ais_perf_model")]
    ais_backend: Option<Engine>,
    /// Which version's
    #[arg(long, alias = "aic-backend-version", value_name = "VERSION", requires = "ais_perf_model")]
    ais_backend_version: Option<String>,
    /// All of this as AISimulate's own JSON, or a file of it
    #[arg(
        long,
        alias = "aic-perf-config",
        value_name = "JSON|FILE",
        conflicts_with = "planner_profile_data"
    )]
    pub ais_perf_config: Option<String>,
    /// Order of the waiting queue (SGLang): fcfs (also called fifo), lpm, dfs-weight, lof
    #[arg(long, alias = "sglang-schedule-policy", value_name = "POLICY")]
    schedule_policy: Option<String>,
    /// Token budget of a prefill pass (SGLang)
    #[arg(long, alias = "sglang-max-prefill-tokens", value_name = "TOKENS")]
    max_prefill_tokens: Option<u64>,
    /// Longest prefill of a pass (SGLang); -1: prompts are not split
    #[arg(long, alias = "sglang-chunked-prefill-size", value_name = "TOKENS", allow_negative_numbers = true)]
    chunked_prefill_size: Option<i64>,
    /// Most output tokens that admission reserves for a request (SGLang)
    #[arg(long, value_name = "TOKENS")]
    sglang_clip_max_new_tokens: Option<u64>,
    /// Scales the share of the outputs that is reserved for running requests (SGLang)
    #[arg(long, alias = "sglang-schedule-conservativeness", value_name = "FACTOR")]
    schedule_conservativeness: Option<f64>,
    /// Decodes ride along with prefills (SGLang)
    #[arg(long)]
    enable_mixed_chunk: bool,
    /// Serve `/generate`, which SGLang's server always has here
    #[arg(long)]
    sglang_generate: bool,
    /// Who is admitted by the blocks that are left (TensorRT-LLM): guaranteed_no_evict, max_utilization
    #[arg(long, value_name = "POLICY")]
    trtllm_capacity_scheduler_policy: Option<String>,
    /// Port of the first rank's KV events, one for each worker, ranks behind it; in place of --kv-events-config
    #[arg(long, value_name = "PORT", num_args = 1.., value_delimiter = ',', conflicts_with = "kv_events_config")]
    zmq_kv_events_ports: Vec<u16>,
    /// Likewise of what repeats them
    #[arg(long, value_name = "PORT", num_args = 1.., value_delimiter = ',', requires = "zmq_kv_events_ports")]
    zmq_replay_ports: Vec<u16>,
    /// Replies of a Mooncake trace with output_token_ids, for requests whose nvext.annotations have output_replay_id:KEY
    #[arg(long, value_name = "FILE")]
    pub response_replay_trace_path: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PreemptionMode {
    /// The request admitted last
    Lifo,
    /// The one admitted first
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum KvCacheType {
    /// The checkpoint's
    Auto,
    Bfloat16,
    Fp8,
    #[value(name = "fp8_ds_mla")]
    Fp8DsMla,
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
    #[value(name = "fp8_e5m2")]
    Fp8E5m2,
    #[value(name = "fp8_inc")]
    Fp8Inc,
}

impl LauncherArguments {
    /// What they say of the engine as a whole; `file`: there is a configuration file.
    pub(super) fn engine_keys(&self, file: bool) -> Vec<Key> {
        let mut keys = Vec::new();
        let text = |text: &str| serde_json::Value::from(text).to_string();
        if self.ais_perf_model && (self.ais_system.is_some() || !file) {
            let system = self.ais_system.as_deref().unwrap_or("h200_sxm");
            keys.push(key("engine.hardware", text(system)));
        }
        if let Some(version) = &self.ais_backend_version {
            keys.push(key("engine.backend_version", text(version)));
        }
        match self.kv_cache_dtype {
            None | Some(KvCacheType::Auto) => {}
            Some(KvCacheType::Bfloat16) => keys.push(key("engine.kvcache_quant_mode", "bfloat16")),
            Some(_) => keys.push(key("engine.kvcache_quant_mode", "fp8")),
        }
        keys
    }

    /// What they say of a role's workers; `blocks`: their number is given elsewhere.
    pub(super) fn worker_keys(&self, worker: &str, blocks: bool) -> Result<Vec<Key>, Failure> {
        let mut keys = self.time_and_memory(worker, blocks)?;
        let mut set = |path: &str, value: Option<String>| {
            keys.extend(value.map(|value| key(format!("{worker}.{path}"), value)));
        };
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        set("parallelism.tensor", number(self.tensor_parallel_size));
        set("parallelism.pipeline", number(self.pipeline_parallel_size));
        set("parallelism.moe_tensor", number(self.ais_moe_tp_size));
        set("parallelism.moe_expert", number(self.ais_moe_ep_size));
        let mode = self.preemption_mode.map(|mode| format!("{mode:?}").to_lowercase());
        set("scheduler.preemption_mode", mode);
        let policy = self.schedule_policy.as_deref().map(|policy| match policy {
            "fifo" => "fcfs".to_owned(),
            policy => serde_json::Value::from(policy).to_string(),
        });
        set("scheduler.schedule_policy", policy);
        set("scheduler.max_prefill_tokens", self.max_prefill_tokens.map(|tokens| tokens.to_string()));
        let chunk = self.chunked_prefill_size.map(|size| match size {
            -1 => "off".to_owned(),
            size => size.to_string(),
        });
        set("scheduler.chunked_prefill_size", chunk);
        let clip = self.sglang_clip_max_new_tokens.map(|tokens| tokens.to_string());
        set("scheduler.clip_max_new_tokens", clip);
        let factor = self.schedule_conservativeness.map(|factor| format!("{factor:?}"));
        set("scheduler.schedule_conservativeness", factor);
        set("scheduler.mixed_chunk", self.enable_mixed_chunk.then(|| "true".to_owned()));
        let policy = self.trtllm_capacity_scheduler_policy.as_deref();
        let policy = policy.map(|policy| serde_json::Value::from(policy).to_string());
        set("scheduler.capacity_policy", policy);
        Ok(keys)
    }

    fn time_and_memory(&self, worker: &str, blocks: bool) -> Result<Vec<Key>, Failure> {
        let mut keys = Vec::new();
        if let Some(path) = &self.planner_profile_data {
            let wrong = |message: String| Failure::Input(format!("--planner-profile-data: {message}"));
            // What a flag names is not looked for beside the file.
            let path = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
            let path = path.to_str().ok_or_else(|| wrong(format!("{}: not in UTF-8", path.display())))?;
            let timing = serde_json::json!({"type": "profile", "path": path});
            keys.push(key(format!("{worker}.timing"), timing.to_string()));
        }
        if self.ais_perf_model {
            keys.push(key(format!("{worker}.timing"), "{type: default}"));
        }
        let shares = [self.gpu_memory_utilization, self.mem_fraction_static, self.free_gpu_memory_fraction];
        let capacity = match shares.into_iter().flatten().next() {
            Some(share) => Some(format!("{{type: default, memory_fraction: {share:?}}}")),
            None => (self.ais_perf_model && !blocks).then(|| "{type: default}".to_owned()),
        };
        keys.extend(capacity.map(|capacity| key(format!("{worker}.kv_cache.capacity"), capacity)));
        Ok(keys)
    }

    /// Refuses what another engine has, or what would have no effect.
    pub(super) fn check(&self, engine: &RankConfig) -> Result<(), Failure> {
        let runs = match engine {
            RankConfig::Vllm(_) => Engine::Vllm,
            RankConfig::Sglang(_) => Engine::Sglang,
            RankConfig::Trtllm(_) => Engine::Trtllm,
        };
        let of_one = [
            ("--gpu-memory-utilization", self.gpu_memory_utilization.is_some(), Engine::Vllm, "vLLM"),
            ("--mem-fraction-static", self.mem_fraction_static.is_some(), Engine::Sglang, "SGLang"),
            (
                "--free-gpu-memory-fraction",
                self.free_gpu_memory_fraction.is_some(),
                Engine::Trtllm,
                "TensorRT-LLM",
            ),
            ("--sglang-generate", self.sglang_generate, Engine::Sglang, "SGLang"),
        ];
        for (flag, given, engine, name) in of_one {
            if given && runs != engine {
                return Err(Failure::Input(format!("{flag}: only {name} has it")));
            }
        }
        match self.ais_backend {
            Some(backend) if backend != runs => {
                let [backend, runs] = [backend, runs].map(|engine| format!("{engine:?}").to_lowercase());
                let message = format!(
                    "--ais-backend: got {backend}, but {runs} runs: calibrated times are those of the engine that runs"
                );
                Err(Failure::Input(message))
            }
            _ => Ok(()),
        }
    }

    /// How much later than the one before it each of `workers` starts.
    pub(super) fn stagger(&self, workers: u32, together: bool) -> Result<Duration, Failure> {
        let Some(given) = self.stagger_delay else { return Ok(Duration::ZERO) };
        let seconds = match given {
            -1.0 if workers <= 32 => 0.0,
            -1.0 if workers <= 128 => 0.1,
            -1.0 => 0.2,
            0.0..=3600.0 => given,
            _ => {
                let message = format!("--stagger-delay: got {given}, allowed is -1, or 0 to 3600 seconds");
                return Err(Failure::Input(message));
            }
        };
        if together && seconds > 0.0 {
            let message =
                "--stagger-delay: serve has one server, which starts once; --startup-time is its delay";
            return Err(Failure::Input(message.into()));
        }
        Ok(Duration::from_secs_f64(seconds))
    }

    /// Where each of `workers` publishes KV events, and repeats them.
    pub(super) fn kv_event_places(
        &self,
        (workers, together): (u32, bool),
        host: IpAddr,
    ) -> Result<Vec<(Endpoint, Option<Endpoint>)>, Failure> {
        if self.zmq_kv_events_ports.is_empty() {
            return Ok(Vec::new());
        }
        if together {
            let message =
                "--zmq-kv-events-ports: serve publishes as one worker; --kv-events-config says where";
            return Err(Failure::Input(message.into()));
        }
        let endpoints = |flag: &str, ports: &[u16]| -> Result<Vec<Endpoint>, Failure> {
            if ports.len() != workers as usize {
                let message =
                    format!("{flag}: got {}, allowed is one for each of {workers} workers", ports.len());
                return Err(Failure::Input(message));
            }
            let endpoint = |port| Endpoint::parse(&format!("tcp://{}", SocketAddr::new(host, port)));
            let endpoints = ports.iter().map(|&port| endpoint(port).map_err(Failure::Input));
            endpoints.collect()
        };
        let events = endpoints("--zmq-kv-events-ports", &self.zmq_kv_events_ports)?;
        let repeated = match &self.zmq_replay_ports[..] {
            [] => vec![None; workers as usize],
            ports => endpoints("--zmq-replay-ports", ports)?.into_iter().map(Some).collect(),
        };
        Ok(events.into_iter().zip(repeated).collect())
    }

    /// KV events as the flag for their ports turns them on.
    pub(super) fn kv_events(&self, dialect: Dialect) -> Result<Option<KvEventsConfig>, Failure> {
        if self.zmq_kv_events_ports.is_empty() {
            return Ok(None);
        }
        let json = match dialect {
            Dialect::Vllm => r#"{"enable_kv_cache_events": true, "bind": true}"#,
            Dialect::Sglang => r#"{"publisher": "zmq", "bind": true}"#,
        };
        KvEventsConfig::parse(dialect, json).map_err(Failure::input)
    }
}

/// What the flags that stand for others stand for.
pub fn stands_for(mocker: &Mocker) -> Result<Vec<String>, Failure> {
    let mut flags = Vec::new();
    if let Some(file) = &mocker.launcher.extra_engine_args {
        flags.extend(super::extra::engine_flags(file, mocker.model.as_deref())?);
    }
    if let Some(config) = &mocker.launcher.ais_perf_config {
        flags.extend(super::extra::perf_flags(config, mocker.model.as_deref())?);
    }
    Ok(flags)
}
