//! How many KV blocks a rank has: as many as the file says, or as fit into what the model leaves of the
//! accelerator's memory. Each engine asks when its limits are known, which the memory depends on.

use super::engine::{KV_CACHE, WORKER};
use super::role::RoleKeys;
use super::{Findings, gpu, model};
use crate::document::{
    Backend as BackendKey, CapacityType, GemmQuantMode, KvCacheQuantMode, MoeQuantMode, TimingType,
};
use crate::experiment::Semantics;
use std::path::Path;
use windtunnel_perf::capacity::{Backend, Budget, CapacityError, Request, Rules, budget};
use windtunnel_perf::models::{ModelDescription, Sharding, WeightFormat};

/// The blocks of a rank, and how they were worked out unless they were given.
pub(super) struct Blocks {
    pub number: u32,
    pub budget: Option<Budget>,
}

/// The limits of a rank that its memory depends on.
pub(super) struct Limits {
    /// Tokens of a pass; of SGLang the longest chunk of the worker.
    pub max_batched_tokens: u32,
    /// Sequences that run.
    pub max_sequences: u32,
}

/// The blocks of each rank.
pub(super) fn blocks(
    keys: &mut RoleKeys,
    limits: &Limits,
    folder: &Path,
    semantics: Semantics,
    findings: &mut Findings,
) -> Option<Blocks> {
    let path = |key: &str| format!("{KV_CACHE}.capacity.{key}");
    let capacity = &keys.worker.kv_cache.capacity;
    match (capacity.kind, capacity.blocks) {
        (CapacityType::Fixed, Some(number)) => {
            let fraction = capacity.memory_fraction.is_some();
            let graphs = capacity.cuda_graph_reserved_bytes.is_some_and(|bytes| bytes > 0);
            findings.foreign(&path("memory_fraction"), fraction, "capacity.type default", "fixed");
            findings.foreign(&path("cuda_graph_reserved_bytes"), graphs, "capacity.type default", "fixed");
            if keys.worker.timing.kind != TimingType::Default {
                for (key, given) in [
                    ("gemm_quant_mode", keys.gemm_quant_mode.is_some()),
                    ("moe_quant_mode", keys.moe_quant_mode.is_some()),
                    ("kvcache_quant_mode", keys.kvcache_quant_mode.is_some() && !keys.sizes_transfers),
                ] {
                    let owner = "timing or capacity of type default";
                    findings.foreign(&format!("engine.{key}"), given, owner, "neither");
                }
            }
            keys.worker.kv_cache.capacity.cuda_graph_reserved_bytes = None;
            Some(Blocks { number, budget: None })
        }
        (CapacityType::Fixed, None) => {
            let message = "missing; capacity.type fixed needs an integer from 1 to 4000000000";
            findings.problem(&path("blocks"), message);
            None
        }
        (CapacityType::Default, Some(number)) => {
            let message = format!(
                "got {number}; capacity.type default works the number out: leave it out, or give type fixed"
            );
            findings.problem(&path("blocks"), message);
            None
        }
        (CapacityType::Default, None) => estimated(keys, limits, folder, semantics, findings),
    }
}

fn estimated(
    keys: &mut RoleKeys,
    limits: &Limits,
    folder: &Path,
    semantics: Semantics,
    findings: &mut Findings,
) -> Option<Blocks> {
    let model = model::described(keys, folder, findings).map(|model| stored(model, keys));
    let accelerator = gpu::accelerator(keys, "kv_cache.capacity.type default", findings);
    let (model, accelerator) = (model?, accelerator?);
    let worker = &keys.worker;
    let spread = &worker.parallelism;
    let all = spread.tensor.saturating_mul(spread.attention_data);
    let given = spread.moe_tensor.saturating_mul(spread.moe_expert);
    if model.experts.is_some() && given != 1 && given != all {
        let message = format!(
            "got moe_tensor {} times moe_expert {}, {given}; the experts of {} are spread over all {all} \
             accelerators (tensor · attention_data) of a worker",
            spread.moe_tensor, spread.moe_expert, model.name
        );
        findings.problem(&format!("{WORKER}.parallelism.moe_expert"), message);
        return None;
    }
    let capacity = &worker.kv_cache.capacity;
    let request = Request {
        model: &model,
        accelerator: &accelerator,
        backend: match keys.backend {
            BackendKey::Vllm => Backend::Vllm,
            BackendKey::Sglang => Backend::Sglang,
            BackendKey::Trtllm => Backend::Trtllm,
        },
        backend_version: keys.backend_version.as_deref(),
        rules: match semantics {
            Semantics::Native => Rules::Native,
            Semantics::Aisimulate013 => Rules::Aisimulate013,
        },
        sharding: Sharding {
            tensor: spread.tensor,
            pipeline: spread.pipeline,
            experts: if model.experts.is_some() { all } else { 1 },
        },
        attention_data: spread.attention_data,
        memory_fraction: capacity.memory_fraction,
        cuda_graph_bytes: capacity.cuda_graph_reserved_bytes.unwrap_or(0),
        kv_dtype: keys.kvcache_quant_mode.map(KvCacheQuantMode::dtype),
        block_size: worker.kv_cache.block_size?,
        max_batched_tokens: limits.max_batched_tokens,
        max_sequences: limits.max_sequences,
    };
    match budget(&request).map(|budget| (u32::try_from(budget.blocks), budget)) {
        Ok((Ok(number), budget)) if number <= 4_000_000_000 => Some(Blocks { number, budget: Some(budget) }),
        Ok((_, budget)) => {
            let message =
                format!("{} blocks fit; allowed are 4000000000: give a larger block_size", budget.blocks);
            findings.problem(&format!("{KV_CACHE}.block_size"), message);
            None
        }
        Err(CapacityError { field, message }) => {
            let path = match field {
                "tensor" | "pipeline" => format!("{WORKER}.parallelism.{field}"),
                "experts" => format!("{WORKER}.parallelism.moe_expert"),
                "backend_version" => "engine.backend_version".into(),
                "accelerator" => keys.hardware_path().into(),
                "memory_fraction" => format!("{KV_CACHE}.capacity.memory_fraction"),
                _ => format!("{KV_CACHE}.{field}"),
            };
            findings.problem(&path, message);
            None
        }
    }
}

/// The model with its weights stored as the keys say.
fn stored(model: ModelDescription, keys: &RoleKeys) -> ModelDescription {
    let matrices = keys.gemm_quant_mode.map(|mode| match mode {
        GemmQuantMode::Bfloat16 => WeightFormat::Bfloat16,
        GemmQuantMode::Fp8 => WeightFormat::Fp8,
        GemmQuantMode::Fp8Block => WeightFormat::Fp8Block,
        GemmQuantMode::Nvfp4 => WeightFormat::Nvfp4,
    });
    let experts = keys.moe_quant_mode.map(|mode| match mode {
        MoeQuantMode::Bfloat16 => WeightFormat::Bfloat16,
        MoeQuantMode::Fp8 => WeightFormat::Fp8,
        MoeQuantMode::Fp8Block => WeightFormat::Fp8Block,
        MoeQuantMode::Nvfp4 => WeightFormat::Nvfp4,
        MoeQuantMode::Int4Wo => WeightFormat::Int4,
        MoeQuantMode::W4a16Mxfp4 | MoeQuantMode::W4a8Mxfp4Mxfp8 => WeightFormat::Mxfp4,
    });
    model.stored_as(matrices, experts)
}
