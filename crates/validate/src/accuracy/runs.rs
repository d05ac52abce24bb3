//! Measured runs beside predictions: as the file itself describes their deployment, with the constants of the engine
//! where there are measurements of the accelerator, and else with pass times fitted to the run's first requests.

use super::AccuracyError;
use crate::calibrate::{LawKind, fit};
use crate::compare::{Comparison, compare, with_requests};
use crate::measured::{MeasuredRun, Prompts};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::Experiment;
use windtunnel_traffic::Arrival;

/// Requests that the pass times of an accelerator without measurements are fitted to; the others are predicted.
const FITTED_REQUESTS: usize = 100;

/// A run beside its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// Its name.
    pub run: String,
    /// The model.
    pub model: String,
    /// The accelerator.
    pub system: String,
    /// Where the pass times come from.
    pub pass_times: String,
    /// What came out, or why nothing did.
    #[serde(flatten)]
    pub outcome: RunOutcome,
}

/// What came out for a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", untagged)]
pub enum RunOutcome {
    /// Requests compared, and each metric measured and predicted.
    Compared(Comparison),
    /// Not predicted.
    Uncovered {
        /// Why.
        uncovered: String,
    },
}

/// How a run's deployment is described in its file: the arguments of vLLM's engine.
#[derive(Clone, Debug, Deserialize)]
struct Described {
    kind: Option<String>,
    run: Option<String>,
    model: Option<String>,
    engine_kwargs: Option<Arguments>,
    kv_cache: Option<KvCache>,
    hardware: Option<Hardware>,
}

#[derive(Clone, Debug, Deserialize)]
struct Arguments {
    tensor_parallel_size: Option<u32>,
    data_parallel_size: Option<u32>,
    enable_expert_parallel: Option<bool>,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
    max_model_len: Option<u32>,
    pipeline_parallel_size: Option<u32>,
    enable_chunked_prefill: Option<bool>,
    speculative_config: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Deserialize)]
struct KvCache {
    num_gpu_blocks: Option<u32>,
    block_size: Option<u32>,
    enable_prefix_caching: Option<bool>,
    gpu_memory_utilization: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Hardware {
    device_name: Option<String>,
}

/// Accelerators by what their device names and the runs' names hold.
const SYSTEMS: &[(&str, &str)] = &[
    ("rtxpro6000", "rtx_pro_6000_server"),
    ("gb300", "gb300"),
    ("gb200", "gb200"),
    ("b300", "b300_sxm"),
    ("b200", "b200_sxm"),
    ("h200", "h200_sxm"),
    ("h100", "h100_sxm"),
    ("a100", "a100_sxm"),
    ("l40s", "l40s"),
];

/// Predicts every run of a file. `workloads`: their prompts, each file tried in turn; without any, prompts share
/// nothing.
///
/// # Errors
/// A file that cannot be read or is not one of measured runs.
pub fn runs(
    path: &Path,
    workloads: &[Prompts],
    interrupt: &Arc<AtomicBool>,
) -> Result<Vec<RunReport>, AccuracyError> {
    let failed = |reason: String| AccuracyError { path: path.to_owned(), reason };
    let (measured, described) = MeasuredRun::all(path).map_err(|error| failed(error.to_string()))?;
    let mut all = Vec::new();
    for (line, text) in &described {
        let one = serde_json::from_str::<Described>(text);
        all.push(one.map_err(|error| failed(format!("line {line}: what describes a run: {error}")))?);
    }
    let described = all;
    Ok(measured
        .iter()
        .map(|run| {
            let about = described.iter().find(|about| {
                about.kind.as_deref() == Some("meta") && about.run.as_deref() == Some(run.name.as_str())
            });
            report(run, about, workloads, interrupt)
        })
        .collect())
}

fn report(
    run: &MeasuredRun,
    about: Option<&Described>,
    workloads: &[Prompts],
    interrupt: &Arc<AtomicBool>,
) -> RunReport {
    let device = about.and_then(|about| about.hardware.as_ref()?.device_name.clone());
    let name = device.unwrap_or_else(|| run.name.split('/').next().unwrap_or_default().to_owned());
    let plain: String = name.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let known = SYSTEMS.iter().find(|(part, _)| plain.contains(part)).map(|(_, system)| *system);
    let model = about.and_then(|about| about.model.clone()).unwrap_or_default();
    let pass_times = match known {
        Some(_) => "measured operations, constants of the engine".to_owned(),
        None => format!("fitted to the first {FITTED_REQUESTS} requests, which are not compared"),
    };
    let outcome = about
        .ok_or_else(|| "its deployment is not described (a line of kind \"meta\")".to_owned())
        .and_then(|about| compared(run, about, known, workloads, interrupt));
    let outcome = match outcome {
        Ok(comparison) => RunOutcome::Compared(comparison),
        Err(uncovered) => RunOutcome::Uncovered { uncovered },
    };
    RunReport { run: run.name.clone(), model, system: known.map_or(name, str::to_owned), pass_times, outcome }
}

fn compared(
    run: &MeasuredRun,
    about: &Described,
    system: Option<&str>,
    workloads: &[Prompts],
    interrupt: &Arc<AtomicBool>,
) -> Result<Comparison, String> {
    let experiment = experiment(about, system)?;
    let requests = requests(run, workloads)?;
    if system.is_some() {
        let experiment = with_requests(&experiment, run, &requests);
        return compare(&experiment, run, interrupt).map_err(|error| error.to_string());
    }
    let fitted = fit(&experiment, run, &requests, LawKind::Linear, FITTED_REQUESTS, interrupt)
        .map_err(|error| error.to_string())?;
    fitted.held_out.ok_or_else(|| {
        format!("its accelerator is not measured, and it has no more than {FITTED_REQUESTS} requests")
    })
}

fn requests(run: &MeasuredRun, workloads: &[Prompts]) -> Result<Arc<[Arrival]>, String> {
    let mut why = None;
    for prompts in workloads {
        match run.workload(Some(prompts)) {
            Ok(requests) => return Ok(requests),
            Err(error) => why = Some(error.to_string()),
        }
    }
    match why {
        Some(why) => Err(why),
        None => run.workload(None).map_err(|error| error.to_string()),
    }
}

/// The deployment that a run's arguments describe.
fn experiment(about: &Described, system: Option<&str>) -> Result<Experiment, String> {
    let model = about.model.as_deref().ok_or("its model is not told")?;
    let arguments = about.engine_kwargs.as_ref().ok_or("its engine's arguments are not told")?;
    if arguments.speculative_config.is_some() {
        return Err(
            "it drafts tokens (speculative_config), of which the file does not say how many are taken".into(),
        );
    }
    if let Some(stages) = arguments.pipeline_parallel_size.filter(|stages| *stages != 1) {
        return Err(format!("pipeline_parallel_size: got {stages}; pipeline parallelism is not modelled"));
    }
    let key = |name: &str, value: Option<u32>| value.map_or(String::new(), |v| format!("{name}: {v}, "));
    let (tensor, ranks) =
        (arguments.tensor_parallel_size.unwrap_or(1), arguments.data_parallel_size.unwrap_or(1));
    let spread = match arguments.enable_expert_parallel {
        Some(true) => format!(", moe_expert: {}", tensor * ranks),
        _ => String::new(),
    };
    let kv = about.kv_cache.as_ref();
    let block_size = kv.and_then(|kv| kv.block_size).unwrap_or(16);
    let capacity = match kv.and_then(|kv| kv.num_gpu_blocks) {
        Some(blocks) => format!("{{type: fixed, blocks: {blocks}}}"),
        None => match kv.and_then(|kv| kv.gpu_memory_utilization) {
            Some(fraction) => format!("{{type: default, memory_fraction: {fraction}}}"),
            None => "{type: default}".to_owned(),
        },
    };
    let caching = kv.and_then(|kv| kv.enable_prefix_caching).unwrap_or(true);
    let chunked = arguments
        .enable_chunked_prefill
        .map_or(String::new(), |on| format!("enable_chunked_prefill: {on}\n  "));
    let timing = match system {
        Some(_) => "{type: default}",
        // Replaced by what is fitted.
        None => "{type: fixed, prefill_ms: 1, decode_ms: 1}",
    };
    let text = format!(
        "engine:
  model: {model}
  hardware: {}
  backend: vllm
  defaults: native
  {}{chunked}workers:
    aggregated:
      parallelism: {{tensor: {tensor}, attention_data: {ranks}{spread}}}
      scheduler: {{{}{}}}
      kv_cache: {{block_size: {block_size}, prefix_caching: {caching}, capacity: {capacity}}}
      timing: {timing}
traffic:
  source: {{type: synthetic, input_tokens: 1, output_tokens: 1}}
  load: {{type: concurrency, concurrency: 1}}
  stop: {{requests: 1}}
",
        system.unwrap_or("not_measured"),
        arguments.max_model_len.map_or(String::new(), |length| format!("context_length: {length}\n  ")),
        key("max_sequences", arguments.max_num_seqs),
        key("max_batched_tokens", arguments.max_num_batched_tokens),
    );
    windtunnel_config::from_str("the run's own description", &text, &[]).map_err(|error| {
        let problems: Vec<String> =
            error.problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
        problems.join("; ")
    })
}
