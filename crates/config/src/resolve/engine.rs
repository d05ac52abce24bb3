//! `engine`: the deployment, with the settings of each rank and its timing model.

use super::Findings;
use crate::document::{
    Backend, BytesPerToken, CapacityType, Composition as CompositionKey, ContextLength, Engine, Mode,
    PreemptionMode as PreemptionKey, QueuePolicy, Semantics as SemanticsKey, Timing, TimingType, Worker,
};
use crate::experiment::{Deployment, Parallelism, Placement, Semantics};
use std::num::NonZeroU32;
use windtunnel_engine::vllm::{Config, Policy, PreemptionMode, ResumedWork};
use windtunnel_engine::{Nanos, RankConfig};
use windtunnel_perf::{Composition, Fixed, Law, Linear, PerfError, Polynomial, Speedup, TimingModel};
use windtunnel_router::Policy as RouterPolicy;

/// The context length of a rank without a limit: larger than every prompt and output together that a
/// workload can hold.
pub const NO_CONTEXT_LIMIT: u32 = u32::MAX / 2;

const WORKER: &str = "engine.workers.aggregated";
const SCHEDULER: &str = "engine.workers.aggregated.scheduler";
const KV_CACHE: &str = "engine.workers.aggregated.kv_cache";
const TIMING: &str = "engine.workers.aggregated.timing";

/// Makes the deployment and fills in the defaults that depend on the semantics.
pub(super) fn deployment(
    keys: &mut Engine,
    router: RouterPolicy,
    findings: &mut Findings,
) -> Option<Deployment> {
    let (Mode::Aggregated, Backend::Vllm) = (keys.mode, keys.backend);
    let semantics = match keys.semantics {
        SemanticsKey::Native => Semantics::Native,
        SemanticsKey::Aisimulate013 => Semantics::Aisimulate013,
    };
    let engine = rank(keys, semantics, findings);
    let worker = &mut keys.workers.aggregated;
    let timing = timing(worker, semantics, findings);
    let startup = findings.time(&format!("{WORKER}.startup_seconds"), worker.startup_seconds * 1e3);
    let spread = &worker.parallelism;
    Some(Deployment {
        semantics,
        model: keys.model.clone(),
        hardware: keys.hardware.clone(),
        backend_version: keys.backend_version.clone(),
        role: "aggregated",
        replicas: NonZeroU32::new(spread.replicas)?,
        startup: startup?,
        parallelism: Parallelism {
            tensor: spread.tensor,
            moe_tensor: spread.moe_tensor,
            moe_expert: spread.moe_expert,
        },
        // Pipeline stages and data-parallel ranks multiply it too, and are one each in this version.
        gpus_per_worker: spread.tensor,
        ranks: NonZeroU32::MIN,
        placement: Placement::RoundRobin,
        barrier: false,
        engine: RankConfig::Vllm(engine?),
        timing: timing?,
        kv_bytes_per_token: match worker.kv_cache.bytes_per_token {
            BytesPerToken::Bytes(bytes) => Some(bytes),
            BytesPerToken::Auto(_) => None,
        },
        router,
    })
}

/// The settings of one rank, checked as vLLM checks them.
fn rank(keys: &mut Engine, semantics: Semantics, findings: &mut Findings) -> Option<Config> {
    let worker = &mut keys.workers.aggregated;
    let scheduler = &mut worker.scheduler;
    let CapacityType::Fixed = worker.kv_cache.capacity.kind;
    let mut blocks = worker.kv_cache.capacity.blocks;
    if semantics == Semantics::Aisimulate013 {
        // There, every block holds tokens; here, one of them is the null block. The schema bounds the
        // number, so this does not overflow.
        blocks += 1;
        check_aisimulate(scheduler.async_scheduling, scheduler.prefill_schedule_interval, findings);
    }
    let async_scheduling = *scheduler.async_scheduling.get_or_insert(semantics == Semantics::Native);
    let priority = scheduler.policy == QueuePolicy::Priority;
    let fifo = scheduler.preemption_mode == PreemptionKey::Fifo;
    let path = format!("{SCHEDULER}.preemption_mode");
    findings.foreign(&path, priority && fifo, "scheduler.policy fcfs", "scheduler.policy priority");
    let config = Config {
        prefix_caching: worker.kv_cache.prefix_caching,
        chunked_prefill: keys.enable_chunked_prefill,
        max_num_batched_tokens: scheduler.max_batched_tokens,
        max_num_seqs: scheduler.max_sequences,
        max_num_active_seqs: scheduler.max_num_active_seqs,
        policy: if priority { Policy::Priority } else { Policy::Fcfs },
        preemption_mode: if fifo { PreemptionMode::Fifo } else { PreemptionMode::Lifo },
        long_prefill_token_threshold: scheduler.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive: scheduler.long_prefill_token_threshold_adaptive,
        async_scheduling,
        watermark: scheduler.watermark,
        reserve_full_isl: scheduler.reserve_full_isl,
        prefill_schedule_interval: scheduler.prefill_schedule_interval,
        max_num_queued_reqs: scheduler.max_num_queued_reqs,
        max_num_queued_tokens: scheduler.max_num_queued_tokens,
        resumed_work: match semantics {
            Semantics::Native => ResumedWork::Prefill,
            Semantics::Aisimulate013 => ResumedWork::PromptAndDecode,
        },
        ..Config::new(blocks, worker.kv_cache.block_size, context_length(keys.context_length))
    };
    match config.validate() {
        Ok(()) => Some(config),
        Err(error) => {
            let path = path_of_rank_field(error.field);
            let got = findings.shown(&path, &error.got);
            findings.problem(&path, format!("{got} {}", in_words_of_the_file(&error.problem)));
            None
        }
    }
}

fn context_length(key: ContextLength) -> u32 {
    match key {
        ContextLength::Tokens(tokens) => tokens,
        ContextLength::Max(_) => NO_CONTEXT_LIMIT,
    }
}

/// What the semantics of AISimulate 0.13 exclude.
fn check_aisimulate(async_scheduling: Option<bool>, interval: u32, findings: &mut Findings) {
    if async_scheduling == Some(true) {
        let message = "got true; engine.semantics aisimulate_0_13 schedules synchronously: allowed is false";
        findings.problem(&format!("{SCHEDULER}.async_scheduling"), message);
    }
    if interval != 1 {
        let message = format!(
            "got {interval}; under engine.semantics aisimulate_0_13 it works with attention_data above 1 only, \
             which is not supported yet: allowed is 1"
        );
        findings.problem(&format!("{SCHEDULER}.prefill_schedule_interval"), message);
    }
}

/// Where a setting of a rank stands in the file.
fn path_of_rank_field(field: &str) -> String {
    match field {
        "num_blocks" => format!("{KV_CACHE}.capacity.blocks"),
        "block_size" => format!("{KV_CACHE}.block_size"),
        "max_num_seqs" => format!("{SCHEDULER}.max_sequences"),
        "max_num_batched_tokens" => format!("{SCHEDULER}.max_batched_tokens"),
        "max_model_len" => "engine.context_length".into(),
        other => format!("{SCHEDULER}.{other}"),
    }
}

/// A sentence about the settings of a rank, with the names that the file has for them.
fn in_words_of_the_file(problem: &str) -> String {
    problem
        .replace(
            &format!("max_model_len ({NO_CONTEXT_LIMIT})"),
            "context_length (max: no limit is known, give one)",
        )
        .replace("max_model_len", "context_length")
        .replace("max_num_seqs", "max_sequences")
}

fn timing(worker: &mut Worker, semantics: Semantics, findings: &mut Findings) -> Option<TimingModel> {
    let cache = &worker.kv_cache;
    let capacity_tokens = u64::from(cache.capacity.blocks) * u64::from(cache.block_size);
    let keys = &mut worker.timing;
    let law = law(keys, capacity_tokens, findings);
    let composition = match (keys.composition, semantics) {
        (Some(CompositionKey::Mixed), Semantics::Aisimulate013) => {
            let message = "got \"mixed\"; engine.semantics aisimulate_0_13 adds the parts: allowed is sum";
            findings.problem(&format!("{TIMING}.composition"), message);
            return None;
        }
        (Some(CompositionKey::Mixed), Semantics::Native) => Some(Composition::Mixed),
        (Some(CompositionKey::Sum), _) | (None, Semantics::Aisimulate013) => Some(Composition::Sum),
        (None, Semantics::Native) => None,
    };
    let speedup = Speedup { ratio: keys.speedup_ratio, decode_ratio: keys.decode_speedup_ratio };
    match TimingModel::new(law?, composition, speedup) {
        Ok(model) => {
            if let Law::Fixed(fixed) = model.law() {
                check_fixed(fixed, speedup, findings)?;
            }
            keys.composition = Some(match model.composition() {
                Composition::Sum => CompositionKey::Sum,
                Composition::Mixed => CompositionKey::Mixed,
            });
            Some(model)
        }
        Err(PerfError { field, got, problem }) => {
            let path = format!("{TIMING}.{field}");
            let got = findings.shown(&path, got);
            findings.problem(&path, format!("{got} {problem}"));
            None
        }
    }
}

/// No pass of fixed times may be longer than the longest run: each time as it is given, each after its
/// speedup, and both in one pass. (What other laws come to is known in the run only.)
fn check_fixed(fixed: &Fixed, speedup: Speedup, findings: &mut Findings) -> Option<()> {
    let prefill = findings.time(&format!("{TIMING}.prefill_ms"), fixed.prefill_ms);
    let decode = findings.time(&format!("{TIMING}.decode_ms"), fixed.decode_ms);
    prefill?;
    decode?;
    let prefill_ms = fixed.prefill_ms / speedup.ratio;
    let decode_ms = fixed.decode_ms / (speedup.ratio * speedup.decode_ratio);
    if Nanos::from_ms(prefill_ms + decode_ms).is_some() {
        return Some(());
    }
    let ratios = [("speedup_ratio", speedup.ratio), ("decode_speedup_ratio", speedup.decode_ratio)];
    let slowing = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).min_by(|a, b| a.1.total_cmp(&b.1));
    let (key, value) = slowing.copied().unwrap_or(("decode_ms", fixed.decode_ms));
    let path = format!("{TIMING}.{key}");
    let got = findings.shown(&path, value);
    let message = format!(
        "got {got}; a pass with prefill and decode would take too long: a time must be below 292 years"
    );
    findings.problem(&path, message);
    None
}

fn law(keys: &Timing, capacity_tokens: u64, findings: &mut Findings) -> Option<Law> {
    let fixed = keys.kind == TimingType::Fixed;
    let linear = keys.kind == TimingType::Linear;
    let here = match keys.kind {
        TimingType::Fixed => "timing.type fixed",
        TimingType::Linear => "timing.type linear",
        TimingType::Polynomial => "timing.type polynomial",
    };
    for (key, given) in [("prefill_ms", keys.prefill_ms.is_some()), ("decode_ms", keys.decode_ms.is_some())] {
        let path = format!("{TIMING}.{key}");
        findings.foreign(&path, given && !fixed, "timing.type fixed", here);
        if fixed && !given {
            findings.problem(&path, "missing; timing.type fixed needs a number of at least 0");
        }
    }
    let given = keys.linear.is_some();
    findings.foreign(&format!("{TIMING}.linear"), given && !linear, "timing.type linear", here);
    if linear && !given {
        let message = "missing; timing.type linear needs a mapping with base_ms, per_new_token_ms, …";
        findings.problem(&format!("{TIMING}.linear"), message);
    }
    Some(match keys.kind {
        TimingType::Fixed => Law::Fixed(Fixed { prefill_ms: keys.prefill_ms?, decode_ms: keys.decode_ms? }),
        TimingType::Linear => {
            let linear = keys.linear.as_ref()?;
            Law::Linear(Linear {
                base_ms: linear.base_ms,
                per_new_token_ms: linear.per_new_token_ms,
                per_new_times_context_ms: linear.per_new_times_context_ms,
                per_sequence_ms: linear.per_sequence_ms,
                per_context_token_ms: linear.per_context_token_ms,
            })
        }
        TimingType::Polynomial => Law::Polynomial(Polynomial { capacity_tokens }),
    })
}
