//! One measured deployment in virtual time: its configuration, its load, and the times that come out.

use super::benchmark::Settings;
use super::points::Point;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::Experiment;
use windtunnel_perf::models::ModelDescription;
use windtunnel_sim::{Options, Stepper};

/// Measured and predicted times of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Which.
    pub point: Point,
    /// Predicted, or why not.
    pub predicted: Result<Times, String>,
}

impl Outcome {
    /// The names of the fields of [`csv_row`](Self::csv_row).
    pub const CSV_HEADER: &str = "id,backend,version,system,model,precision,mode,isl,osl,concurrency,tensor,attention_data,\
        moe_tensor,moe_expert,measured_ttft_ms,measured_tpot_ms,ttft_ms,tpot_ms,why";

    /// The measurement, the prediction, and why there is none.
    pub fn csv_row(&self) -> String {
        let (point, spread) = (&self.point, self.point.spread);
        let mode = if point.disaggregated { "disagg" } else { "agg" };
        let predicted = match &self.predicted {
            Ok(times) => format!("{},{},", times.ttft_ms, times.tpot_ms),
            Err(why) => format!(",,\"{}\"", why.replace('"', "'")),
        };
        format!(
            "{},{},{},{},{},{},{mode},{},{},{},{},{},{},{},{},{},{predicted}",
            point.id,
            point.backend,
            point.version,
            point.system,
            point.model,
            point.precision,
            point.input_tokens,
            point.output_tokens,
            point.concurrency,
            spread.tensor,
            spread.attention_data,
            spread.moe_tensor,
            spread.moe_expert,
            point.ttft_ms,
            point.tpot_ms
        )
    }
}

/// Means over the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Time to first token in milliseconds.
    pub ttft_ms: f64,
    /// Time per output token in milliseconds.
    pub tpot_ms: f64,
}

/// Constants in place of those of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tried {
    /// `timing.pass_us`.
    pub pass_us: Option<f64>,
    /// `timing.sequence_us`.
    pub sequence_us: Option<f64>,
    /// `timing.gpu_scale`.
    pub gpu_scale: Option<f64>,
    /// `timing.communication_scale`.
    pub communication_scale: Option<f64>,
    /// `timing.allow_roofline`.
    pub allow_roofline: bool,
}

/// The shortest drawn length, as a share of what was asked for: the public benchmark (InferenceX,
/// `random_range_ratio` 0.8) draws from that share to all of it.
const SHORTEST_SHARE: f64 = 0.8;
/// Requests for each one in flight, as the benchmark sends: so a tenth of them come at once, at the start.
const REQUESTS_PER_SLOT: u32 = 10;

/// Requests of exactly one length that came together stay together, and wait for each other in every round. The rows
/// with exact lengths show that under SGLang, which computes the prompts of all before it goes on with any; where
/// prompts and decodes share passes, the client's own unevenness has taken them apart, as drawn lengths do.
fn keeps_in_step(point: &Point) -> bool {
    !point.drawn && point.backend == "sglang"
}

/// What multi-token prediction drafts and gives: the public benchmark's setting for DeepSeek-R1, and about what
/// its acceptance figures say.
const DRAFT_TOKENS: u32 = 3;
const TOKENS_PER_PASS: f64 = 2.4;

/// What stands before a request reaches the scheduler and after its first token leaves it: the client, HTTP, the
/// tokenizer. The simulator does not have it, and the measured times to first token do; fitted to them, in
/// milliseconds.
const FRONT_MS: [(&str, f64); 3] = [("vllm", 50.0), ("sglang", 140.0), ("trtllm", 110.0)];

/// Predicts a deployment.
pub fn predict(point: &Point, tried: Tried, interrupt: Arc<AtomicBool>) -> Outcome {
    let settings = Settings::of(point);
    let predicted = experiment(point, &settings, tried)
        .and_then(|experiment| run(&experiment, point, &settings, interrupt));
    Outcome { point: point.clone(), predicted }
}

fn run(
    experiment: &Experiment,
    point: &Point,
    settings: &Settings,
    interrupt: Arc<AtomicBool>,
) -> Result<Times, String> {
    let options = Options { stepper: Stepper::Fast, threads: 1, interrupt, ..Options::default() };
    let report = windtunnel_sim::run(experiment, options).map_err(|error| error.to_string())?;
    let value = |name: &str| {
        let value = report.summary.get(name).as_f64();
        value.ok_or_else(|| format!("the run gave no {name}"))
    };
    let front_ms = FRONT_MS.iter().find(|(name, _)| *name == point.backend).map_or(0.0, |(_, ms)| *ms);
    let tpot_ms = value("mean_tpot_ms")?;
    let given = if point.is_drafted() { TOKENS_PER_PASS } else { 1.0 };
    let waited_ms = settings.waited_passes * tpot_ms * given;
    Ok(Times { ttft_ms: value("mean_ttft_ms")? + front_ms + waited_ms, tpot_ms })
}

/// The configuration of a deployment.
fn experiment(point: &Point, settings: &Settings, tried: Tried) -> Result<Experiment, String> {
    if point.disaggregated {
        return Err("prefill and decode in workers of their own".into());
    }
    let checkpoint = Checkpoint::of(point)?;
    let spread = point.spread;
    let share = if keeps_in_step(point) { 1.0 } else { SHORTEST_SHARE };
    let slots = point.concurrency;
    let requests = slots.saturating_mul(REQUESTS_PER_SLOT);
    let constant =
        |name: &str, value: Option<f64>| value.map_or(String::new(), |value| format!(", {name}: {value}"));
    let draft = if point.is_drafted() {
        format!(", draft_tokens: {DRAFT_TOKENS}, tokens_per_pass: {TOKENS_PER_PASS}")
    } else {
        String::new()
    };
    let timing = format!(
        "{{type: default, allow_roofline: {}{}{}{}{}{draft}}}",
        tried.allow_roofline,
        constant("pass_us", tried.pass_us),
        constant("sequence_us", tried.sequence_us),
        constant("gpu_scale", tried.gpu_scale),
        constant("communication_scale", tried.communication_scale)
    );
    let Settings { seats, scheduler, memory_fraction, fp8_kv, .. } = settings;
    let fraction = memory_fraction.map_or(String::new(), |fraction| format!(", memory_fraction: {fraction}"));
    let kv = if *fp8_kv { "\n  kvcache_quant_mode: fp8" } else { "" };
    let text = format!(
        "traffic:
  source: {{type: synthetic, input_tokens: {}, output_tokens: {}, shortest_share: {share}}}
  load: {{type: concurrency, concurrency: {slots}}}
  stop: {{requests: {requests}}}
engine:
  model: {}
  hardware: {}
  backend: {}
  defaults: native{}{kv}
  workers:
    aggregated:
      parallelism: {{tensor: {}, attention_data: {}, moe_tensor: {}, moe_expert: {}}}
      scheduler: {{max_sequences: {seats}{scheduler}}}
      kv_cache: {{prefix_caching: false, capacity: {{type: default{fraction}}}}}
      timing: {timing}
",
        point.input_tokens,
        point.output_tokens,
        checkpoint.model,
        point.system,
        point.backend,
        checkpoint.types,
        spread.tensor,
        spread.attention_data,
        spread.moe_tensor,
        spread.moe_expert
    );
    windtunnel_config::from_str(&point.id, &text, &[]).map_err(|error| {
        let problems: Vec<String> = error.problems.iter().map(|problem| problem.message.clone()).collect();
        problems.join("; ")
    })
}

/// The checkpoint that was served, and types that it does not have by itself.
struct Checkpoint {
    model: String,
    types: String,
}

/// Checkpoints by model and precision, where the precision is not the model's own.
const CHECKPOINTS: &[(&str, &str, &str)] = &[
    ("deepseek-ai/DeepSeek-R1", "fp4", "nvidia/DeepSeek-V3.1-NVFP4"),
    ("deepseek-ai/DeepSeek-V3", "fp4", "nvidia/DeepSeek-V3.1-NVFP4"),
    ("nvidia/DeepSeek-R1-NVFP4", "fp4", "nvidia/DeepSeek-V3.1-NVFP4"),
    ("MiniMaxAI/MiniMax-M2.5", "fp4", "nvidia/MiniMax-M2.5-NVFP4"),
    ("moonshotai/Kimi-K2.5", "fp4", "nvidia/Kimi-K2.5-NVFP4"),
    ("Qwen/Qwen3.5-397B-A17B", "fp4", "nvidia/Qwen3.5-397B-A17B-NVFP4"),
    ("zhipuai/GLM-5", "fp8", "zai-org/GLM-5-FP8"),
    ("zhipuai/GLM-5", "fp4", "nvidia/GLM-5-NVFP4"),
    ("meta-llama/Llama-3.1-70B", "fp8", "nvidia/Llama-3.1-70B-Instruct-FP8"),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "meta-llama/Llama-3.1-8B-Instruct"),
    ("nvidia/Qwen3-32B-NVFP4", "fp4", "Qwen/Qwen3-32B"),
];

impl Checkpoint {
    fn of(point: &Point) -> Result<Checkpoint, String> {
        let known = CHECKPOINTS.iter().find(|(model, precision, _)| {
            (*model, *precision) == (point.model.as_str(), point.precision.as_str())
        });
        let model = known.map_or(point.model.as_str(), |(.., checkpoint)| checkpoint);
        let Some(description) = ModelDescription::named(model) else {
            return Err(format!("the model {model} is not built in"));
        };
        // The NVFP4 releases of the 70B model have 8-bit KV caches and all products in 4 bits.
        let own = description.quantization.is_some();
        let types = match point.precision.as_str() {
            "fp8" if !own => "\n  gemm_quant_mode: fp8\n  moe_quant_mode: fp8",
            "fp4" if !own && description.experts.is_none() => "\n  gemm_quant_mode: nvfp4",
            _ => "",
        };
        Ok(Checkpoint { model: model.to_owned(), types: types.to_owned() })
    }
}
