//! `windtunnel mocker` and `windtunnel serve`: their arguments, and what they mean as overrides of a configuration.
//!
//! Flags have the names of the engines' servers, vLLM's first; each is a key of the configuration by another
//! name, so that file, `--set` and flags are checked by the same rules.

mod extra;
mod keys;
mod launcher;
mod refused;
mod roles;
mod text;
mod traces;

pub use launcher::stands_for;
pub use refused::why;

use crate::exit::Failure;
use crate::say::say;
use clap::{ArgAction, Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windtunnel_config::NO_CONTEXT_LIMIT;
use windtunnel_engine::RankConfig;
use windtunnel_live::http::{Dialect, FaultKind, FaultSettings, ServerSettings};
use windtunnel_live::kv_events::hash::HashAlgorithm;
use windtunnel_live::kv_events::{self, KvEventsConfig};
use windtunnel_live::mocker::{Ended, MockerSettings, Pool};
use windtunnel_live::outlets::{ForwardPasses, OutletSettings};
use windtunnel_live::text::{Dataset, Replays, Reply, ReplySource, Thinking};
use windtunnel_live::{Endpoint, LiveError};

/// Context length where neither file nor flag gives one.
const CONTEXT: u32 = 131_072;

/// What stands in place of a file.
const NO_FILE: &str = "
engine:
  model: mock
  hardware: mock
  context_length: 131072
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 16384}}
      timing: {type: polynomial}
";

/// Arguments of `mocker` and `serve`.
#[derive(Debug, Args)]
pub struct Mocker {
    /// Configuration file (YAML); of it, `engine` counts. Without one, flags and defaults say everything
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one value of the configuration, as a.b.c=VALUE (YAML); repeatable, the last one wins
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Whose server and scheduler
    #[arg(long, value_enum, alias = "engine-type")]
    engine: Option<Engine>,
    /// Name or path of the model
    #[arg(long, alias = "model-path", value_name = "NAME")]
    model: Option<String>,
    /// Names that requests may use for the model; the first is the one in answers
    #[arg(long, alias = "model-name", value_name = "NAME", num_args = 1..)]
    served_model_name: Vec<String>,
    /// Address to listen at
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port; of a mocker's first worker, the others take those behind it; 0: any
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Workers; of a mocker, each with a port of its own
    #[arg(long, value_name = "N")]
    num_workers: Option<u32>,
    /// Data-parallel ranks of a worker
    #[arg(long, aliases = ["dp-size", "ais-attention-dp-size", "aic-attention-dp-size"], value_name = "N")]
    data_parallel_size: Option<u32>,
    /// Tokens of a block
    #[arg(long, aliases = ["page-size", "tokens-per-block", "sglang-page-size"], value_name = "TOKENS")]
    block_size: Option<u32>,
    /// KV blocks of a rank
    #[arg(long, value_name = "N")]
    num_gpu_blocks_override: Option<u32>,
    /// Most tokens of prompt and output together
    #[arg(long, aliases = ["context-length", "max-seq-len", "max_seq_len"], value_name = "TOKENS")]
    max_model_len: Option<u32>,
    /// Seats of the running list
    #[arg(long, aliases = ["max-running-requests", "max-batch-size", "max_batch_size"], value_name = "N")]
    max_num_seqs: Option<u32>,
    /// Token budget of a pass
    #[arg(long, aliases = ["max-num-tokens", "max_num_tokens"], value_name = "TOKENS")]
    max_num_batched_tokens: Option<u32>,
    /// Requests that may be unfinished before more are refused with 503 (vLLM)
    #[arg(long, value_name = "N")]
    max_num_queued_reqs: Option<u32>,
    /// Share blocks of equal prefixes
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    enable_prefix_caching: bool,
    /// Share none
    #[arg(long, alias = "disable-radix-cache")]
    no_enable_prefix_caching: bool,
    /// Split prompts that are longer than what is left of a pass
    #[arg(long, overrides_with = "no_enable_chunked_prefill")]
    enable_chunked_prefill: bool,
    /// Split none
    #[arg(long)]
    no_enable_chunked_prefill: bool,
    /// Schedule a pass before the one before it is processed
    #[arg(long, overrides_with = "no_async_scheduling")]
    async_scheduling: bool,
    /// Wait for it
    #[arg(long, alias = "disable-overlap-schedule")]
    no_async_scheduling: bool,
    /// Order of admission and preemption
    #[arg(long, value_enum)]
    scheduling_policy: Option<SchedulingPolicy>,
    /// How much faster than the timing law passes are; 0: they take no time
    #[arg(long, value_name = "RATIO")]
    speedup_ratio: Option<f64>,
    /// How much faster decodes are beyond that
    #[arg(long, value_name = "RATIO")]
    decode_speedup_ratio: Option<f64>,
    /// Keys of which a request needs one; VLLM_API_KEY in the environment if not given
    #[arg(long, value_name = "KEY", num_args = 1..)]
    api_key: Vec<String>,
    /// Answers carry the request's id in x-request-id
    #[arg(long)]
    enable_request_id_headers: bool,
    /// Leave out of `usage` how many prompt tokens were cached
    #[arg(long = "no-enable-prompt-tokens-details", action = ArgAction::SetFalse)]
    prompt_tokens_details: bool,
    /// What the model says
    #[arg(long, value_enum, default_value_t = Response::Random)]
    response: Response,
    /// Answers, for --response dataset: JSON lines of "response" and, if it belongs to one, "prompt"
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// The model thinks first, in random replies: {"thinking_ratio": 0.3}, and with "start_thinking_token_id" and
    /// "end_thinking_token_id" between which tokens
    #[arg(long, value_name = "JSON")]
    reasoning: Option<String>,
    /// Mean length of a random reply that may end by itself, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    mean_output_tokens: u32,
    /// Seed of what it says
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// LoRA adapters that requests may name as their model; nothing is read from the path
    #[arg(long, value_name = "NAME=PATH", num_args = 1..)]
    lora_modules: Vec<String>,
    #[command(flatten)]
    text: text::TextArguments,
    #[command(flatten)]
    roles: roles::RoleArguments,
    #[command(flatten)]
    traces: traces::TraceArguments,
    #[command(flatten)]
    launcher: launcher::LauncherArguments,
    /// Where and how KV events are published, as the engine's own JSON
    #[arg(long, value_name = "JSON")]
    kv_events_config: Option<String>,
    /// How blocks are named in KV events (vLLM); PYTHONHASHSEED in the environment counts as for vLLM
    #[arg(long, value_name = "ALGORITHM", value_parser = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])]
    prefix_caching_hash_algo: Option<String>,
    /// Decode batches from one publication of KV events to the next (SGLang)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    decode_log_interval: Option<u64>,
    /// Serve /metrics (SGLang; the others always do)
    #[arg(long)]
    enable_metrics: bool,
    /// Publish what every pass computes over ZeroMQ
    #[arg(long)]
    enable_forward_pass_metrics: bool,
    /// What the worker is called there
    #[arg(long, value_name = "NAME", default_value = "", requires = "enable_forward_pass_metrics")]
    forward_pass_metrics_worker_id: String,
    /// Where the first rank publishes it, the others on the ports behind it
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "tcp://127.0.0.1:5560",
        requires = "enable_forward_pass_metrics"
    )]
    forward_pass_metrics_ipc_name: String,
    /// Part of the requests that fail on purpose, 0 to 1
    #[arg(long, alias = "failure-injection-rate", value_name = "RATE", default_value_t = 0.0)]
    failure_rate: f64,
    /// How they fail; those that are an error status if not given
    #[arg(long, value_name = "KIND", num_args = 1.., value_delimiter = ',')]
    failure_types: Vec<String>,
    /// Requests served at a time; more are answered 429
    #[arg(long, value_name = "N")]
    max_concurrent_requests: Option<u64>,
    /// Seconds after the start during which everything is answered 503
    #[arg(long, alias = "startup-duration", value_name = "SECONDS", default_value_t = 0.0)]
    startup_time: f64,
    /// Seconds that requests at work have to end in after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    shutdown_timeout: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    Vllm,
    Sglang,
    Trtllm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SchedulingPolicy {
    Fcfs,
    Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Response {
    /// Words at random
    Random,
    /// The last message of the user, or the prompt
    Echo,
    /// What --dataset says
    Dataset,
}

/// `--reasoning`, as AISimulate's launcher has it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    thinking_ratio: f64,
    start_thinking_token_id: Option<u32>,
    end_thinking_token_id: Option<u32>,
}

/// Runs the command; `together`: all workers behind one address.
pub fn run(arguments: &Mocker, together: bool) -> Result<(), Failure> {
    let pools = roles::pools(arguments, together)?;
    let settings = settings(arguments, pools, together)?;
    let engine = settings.pools[0].deployment.engine.engine();
    let ended = windtunnel_live::mocker::run(&settings, |addresses| {
        for address in addresses {
            say(format_args!("{} {} at http://{address}", engine.0, engine.1));
        }
    });
    match ended {
        Ok(Ended::Drained) => Ok(()),
        Ok(Ended::CutOff) => Err(Failure::run("requests were cut off")),
        Ok(Ended::Interrupted) => Err(Failure::Interrupted),
        Err(error @ (LiveError::Engine(_) | LiveError::Settings(_))) => Err(Failure::input(error)),
        Err(error) => Err(Failure::run(error)),
    }
}

fn finite(flag: &str, number: f64) -> Result<String, Failure> {
    if number.is_finite() && number > 0.0 {
        return Ok(format!("{number:?}"));
    }
    Err(Failure::Input(format!("{flag}: got {number}, allowed is a number above 0")))
}

/// Those of the command line, or else that of the environment, which others on the machine cannot read.
fn api_keys(arguments: &Mocker) -> Vec<String> {
    let given = arguments.api_key.iter().cloned();
    let keys = match arguments.api_key.is_empty() {
        true => std::env::var("VLLM_API_KEY").into_iter().collect(),
        false => given.collect::<Vec<_>>(),
    };
    keys.into_iter().filter(|key| !key.is_empty()).collect()
}

fn seconds(flag: &str, number: f64) -> Result<Duration, Failure> {
    // Within a century, so that no sum of times overflows.
    let allowed = Duration::try_from_secs_f64(number).ok().filter(|time| time.as_secs() < 3_000_000_000);
    allowed.ok_or_else(|| {
        Failure::Input(format!("{flag}: got {number}, allowed is a number of seconds from 0 to 3e9"))
    })
}

/// `name=path`, as vLLM takes it.
fn lora(module: &str) -> Result<(String, String), Failure> {
    match module.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.into(), path.into())),
        _ => Err(Failure::Input(format!("--lora-modules: got \"{module}\", allowed is NAME=PATH"))),
    }
}

fn faults(arguments: &Mocker) -> Result<FaultSettings, Failure> {
    let mut faults = FaultSettings { failure_rate: arguments.failure_rate, ..FaultSettings::default() };
    if !arguments.failure_types.is_empty() {
        let kind = |name: &String| {
            FaultKind::of(name).ok_or_else(|| {
                let names = FaultKind::ALL.map(FaultKind::name).join(", ");
                Failure::Input(format!("--failure-types: got \"{name}\", allowed are {names}"))
            })
        };
        faults.failure_types = arguments.failure_types.iter().map(kind).collect::<Result<_, _>>()?;
    }
    faults.check().map_err(|message| Failure::Input(format!("--failure-rate: {message}")))?;
    Ok(faults)
}

/// What is told beside answers.
fn outlets(
    arguments: &Mocker,
    engine: &RankConfig,
    (workers, together): (u32, bool),
) -> Result<OutletSettings, Failure> {
    let dialect = match engine {
        RankConfig::Sglang(_) => kv_events::Dialect::Sglang,
        RankConfig::Vllm(_) | RankConfig::Trtllm(_) => kv_events::Dialect::Vllm,
    };
    let only = |flag: &str, of: &str| Err(Failure::Input(format!("{flag}: only {of} has it")));
    if arguments.prefix_caching_hash_algo.is_some() && !matches!(engine, RankConfig::Vllm(_)) {
        return only("--prefix-caching-hash-algo", "vLLM");
    }
    if !matches!(engine, RankConfig::Sglang(_)) && arguments.decode_log_interval.is_some() {
        return only("--decode-log-interval", "SGLang");
    }
    if !matches!(engine, RankConfig::Sglang(_)) && arguments.enable_metrics {
        return only("--enable-metrics", "SGLang");
    }
    let launcher = &arguments.launcher;
    let kv_events = match arguments.kv_events_config.as_deref() {
        Some(json) => KvEventsConfig::parse(dialect, json).map_err(Failure::input)?,
        None => launcher.kv_events(dialect)?,
    };
    let algorithm = arguments.prefix_caching_hash_algo.as_deref();
    let named = HashAlgorithm::ALL.into_iter().find(|known| Some(known.name()) == algorithm);
    let forward_passes = match arguments.enable_forward_pass_metrics {
        false => None,
        true => Some(ForwardPasses {
            endpoint: Endpoint::parse(&arguments.forward_pass_metrics_ipc_name)
                .map_err(|e| Failure::Input(format!("--forward-pass-metrics-ipc-name: {e}")))?,
            worker_id: arguments.forward_pass_metrics_worker_id.clone(),
        }),
    };
    Ok(OutletSettings {
        kv_events,
        kv_event_places: launcher.kv_event_places((workers, together), arguments.host)?,
        hash_algorithm: named.unwrap_or_default(),
        hash_seed: std::env::var("PYTHONHASHSEED").ok(),
        decode_log_interval: arguments.decode_log_interval,
        sglang_metrics: arguments.enable_metrics,
        forward_passes,
        traces: None,
    })
}

/// What the model says.
fn reply(arguments: &Mocker) -> Result<Reply, Failure> {
    let source = match (arguments.response, &arguments.dataset) {
        (Response::Random, None) => ReplySource::Random,
        (Response::Echo, None) => ReplySource::Echo,
        (Response::Dataset, Some(file)) => {
            let dataset =
                Dataset::read(file).map_err(|error| Failure::Input(format!("--dataset: {error}")))?;
            ReplySource::Dataset(Arc::new(dataset))
        }
        (Response::Dataset, None) => {
            return Err(Failure::Input("--response: dataset needs --dataset".into()));
        }
        (_, Some(_)) => return Err(Failure::Input("--dataset: belongs to --response dataset".into())),
    };
    let thinking = arguments.reasoning.as_deref().map(thinking).transpose()?;
    if thinking.is_some() && source != ReplySource::Random {
        return Err(Failure::Input("--reasoning: belongs to --response random".into()));
    }
    Ok(Reply { source, mean_tokens: arguments.mean_output_tokens, seed: arguments.seed, thinking })
}

fn thinking(json: &str) -> Result<Thinking, Failure> {
    let wrong = |message: String| Failure::Input(format!("--reasoning: {message}"));
    let keys: Reasoning = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
    let ratio = keys.thinking_ratio;
    if !(0.0..=1.0).contains(&ratio) {
        return Err(wrong(format!("thinking_ratio: got {ratio}, allowed is 0 to 1")));
    }
    Ok(Thinking { ratio, start: keys.start_thinking_token_id, end: keys.end_thinking_token_id })
}

fn settings(arguments: &Mocker, pools: Vec<Pool>, together: bool) -> Result<MockerSettings, Failure> {
    let deployment = &pools[0].deployment;
    let drain = seconds("--shutdown-timeout", arguments.shutdown_timeout)?;
    let (dialect, version) = match &deployment.engine {
        RankConfig::Vllm(_) => (Dialect::Vllm, deployment.engine.engine().1),
        RankConfig::Sglang(_) => (Dialect::Sglang, deployment.engine.engine().1),
        RankConfig::Trtllm(_) => (Dialect::Trtllm, deployment.engine.engine().1),
    };
    let max_model_len = match &deployment.engine {
        RankConfig::Vllm(config) => config.max_model_len,
        RankConfig::Sglang(config) => config.context_length,
        RankConfig::Trtllm(config) => config.max_seq_len,
    };
    let max_model_len = if max_model_len == NO_CONTEXT_LIMIT { CONTEXT } else { max_model_len };
    let version = deployment.backend_version.as_deref().unwrap_or(version);
    let mut server = ServerSettings::new(dialect, version, &deployment.model, max_model_len);
    if !arguments.served_model_name.is_empty() {
        server.served_names.clone_from(&arguments.served_model_name);
    }
    server.api_keys = api_keys(arguments);
    server.request_id_headers = arguments.enable_request_id_headers;
    server.cached_in_usage = arguments.prompt_tokens_details;
    server.loras = arguments.lora_modules.iter().map(|module| lora(module)).collect::<Result<_, _>>()?;
    server.faults = faults(arguments)?;
    server.most_requests = arguments.max_concurrent_requests.unwrap_or(u64::MAX);
    server.startup = seconds("--startup-time", arguments.startup_time)?;
    server.replays = match &arguments.launcher.response_replay_trace_path {
        Some(file) => {
            let wrong = |error| Failure::Input(format!("--response-replay-trace-path: {error}"));
            Some(Arc::new(Replays::read(file).map_err(wrong)?))
        }
        None => None,
    };
    let reply = reply(arguments)?;
    let workers = pools.iter().map(|pool| pool.deployment.replicas.get()).sum();
    let traces = arguments.traces.settings(&deployment.engine)?;
    let outlets = outlets(arguments, &deployment.engine, (workers, together))?;
    arguments.launcher.check(&deployment.engine)?;
    Ok(MockerSettings {
        pools,
        outlets,
        traces,
        together,
        stagger: arguments.launcher.stagger(workers, together)?,
        no_delay: arguments.speedup_ratio == Some(0.0),
        host: arguments.host,
        port: arguments.port,
        server,
        language: arguments.text.language()?,
        reply,
        drain,
    })
}
