//! `timing.type: default`: the model, the accelerator, the engine version and the spread of a deployment,
//! looked up in the data packs.

use super::engine::{TIMING, WORKER};
use super::role::RoleKeys;
use super::{Findings, model};
use crate::document::Backend;
use std::path::Path;
use windtunnel_perf::calibrated::{
    Architecture, Cell, Constants, Draft, Engine as Measured, OpenError, PassModel, Sources, Types,
};
use windtunnel_perf::models::{Dtype, ModelDescription};
use windtunnel_perf::packs::Store;

/// Compiles the timing of a deployment. Fills in the constants in effect.
pub(super) fn pass_model(keys: &mut RoleKeys, folder: &Path, findings: &mut Findings) -> Option<PassModel> {
    let model = model::described(keys, folder, findings)?;
    let engine = match keys.backend {
        Backend::Vllm => Measured::Vllm,
        Backend::Sglang => Measured::Sglang,
        Backend::Trtllm => Measured::Trtllm,
    };
    let timing = &mut keys.worker.timing;
    let allow_roofline = timing.allow_roofline.unwrap_or(false);
    let own = Constants::of(engine);
    let constants = Constants {
        pass_us: *timing.pass_us.get_or_insert(own.pass_us),
        sequence_us: *timing.sequence_us.get_or_insert(own.sequence_us),
        gpu_scale: *timing.gpu_scale.get_or_insert(own.gpu_scale),
        communication_scale: *timing.communication_scale.get_or_insert(own.communication_scale),
    };
    let sources = sources(keys, engine, allow_roofline, findings)?;
    let cell = cell(keys, &model, engine, sources.gpu.sm, findings)?;
    match PassModel::compile(&sources, &cell, constants) {
        Ok(model) => drafted(model, keys, findings),
        Err(error) => {
            let path = format!("{TIMING}.type");
            // Where that is set already, what is missing is not estimated.
            let advice = match allow_roofline {
                true => "; it is not estimated",
                false => ". timing.allow_roofline: true estimates what is not measured",
            };
            let message = format!("got \"default\"; {error}{advice}");
            findings.problem(&path, message);
            None
        }
    }
}

/// The measurements of the accelerator, or what stands in for them where only a file describes it.
fn sources(
    keys: &RoleKeys,
    engine: Measured,
    allow_roofline: bool,
    findings: &mut Findings,
) -> Option<Sources> {
    let (hardware, version) = (keys.hardware.as_str(), keys.backend_version.as_deref());
    if let Some(gpu) = &keys.gpu {
        if allow_roofline {
            return Some(Sources::roofline(gpu.clone()));
        }
        let path = keys.hardware_path();
        let message = format!(
            "got {}; timing.type default has no measurements of an accelerator that a file describes. \
             timing.allow_roofline: true estimates its times from that",
            findings.shown(path, hardware)
        );
        findings.problem(path, message);
        return None;
    }
    match Sources::open(&Store::standard(), hardware, engine, version, allow_roofline) {
        Ok(sources) => Some(sources),
        Err(error) => {
            let (path, default) = match error {
                OpenError::Version { .. } if version.is_some() => ("engine.backend_version", ""),
                OpenError::Version { .. } => ("engine.backend", engine.name()),
                OpenError::System(_) | OpenError::Pack(_) => (keys.hardware_path(), hardware),
            };
            let or = match error {
                OpenError::System(_) => {
                    ", or the path of a description is needed (gpu.txt, docs/calibrated.md)"
                }
                _ => "",
            };
            let got = findings.shown(path, default);
            // A description that is wrong has been told.
            if findings.problems.iter().all(|problem| problem.path != path) {
                findings.problem(path, format!("got {got}; timing.type default: {error}{or}"));
            }
            None
        }
    }
}

/// With speculative decoding, if it is asked for.
fn drafted(model: PassModel, keys: &RoleKeys, findings: &mut Findings) -> Option<PassModel> {
    let timing = &keys.worker.timing;
    let path = |key: &str| format!("{TIMING}.{key}");
    match (timing.draft_tokens, timing.tokens_per_pass) {
        (None, None) => Some(model),
        (Some(tokens), Some(given)) if given <= f64::from(tokens) + 1.0 => {
            Some(model.with_draft(Draft { tokens, given }))
        }
        (Some(tokens), Some(_)) => {
            let got = findings.shown(&path("tokens_per_pass"), "");
            let message = format!("got {got}; allowed is at most one more than the {tokens} draft_tokens");
            findings.problem(&path("tokens_per_pass"), message);
            None
        }
        (Some(_), None) => {
            findings.problem(&path("tokens_per_pass"), "missing; draft_tokens needs it");
            None
        }
        (None, Some(_)) => {
            findings.problem(&path("draft_tokens"), "missing; tokens_per_pass needs it");
            None
        }
    }
}

fn cell(
    keys: &RoleKeys,
    model: &ModelDescription,
    engine: Measured,
    sm: u32,
    findings: &mut Findings,
) -> Option<Cell> {
    let architecture = match Architecture::of(model) {
        Ok(architecture) => architecture,
        Err(error) => {
            let got = findings.shown("engine.model", &keys.model);
            findings.problem("engine.model", format!("got {got}; timing.type default: {error}"));
            return None;
        }
    };
    let mut types = Types::of(model, engine, sm);
    if let Some(mode) = keys.gemm_quant_mode {
        mode.name().clone_into(&mut types.gemm);
        mode.name().clone_into(&mut types.attention_gemm);
    }
    if let Some(mode) = keys.moe_quant_mode {
        mode.name().clone_into(&mut types.experts);
    }
    if let Some(mode) = keys.kvcache_quant_mode {
        types.kv = if mode.dtype() == Dtype::Fp8 { "fp8" } else { "bfloat16" }.to_owned();
    }
    let spread = &keys.worker.parallelism;
    let (accelerators, experts) =
        (spread.tensor * spread.attention_data, u64::from(spread.moe_tensor) * u64::from(spread.moe_expert));
    if architecture.experts.is_some() && experts != u64::from(accelerators) {
        let message = format!(
            "got moe_tensor {} and moe_expert {}; with timing.type default their product must be that of tensor and \
             attention_data, {accelerators}",
            spread.moe_tensor, spread.moe_expert
        );
        findings.problem(&format!("{WORKER}.parallelism"), message);
        return None;
    }
    let heads = model.heads();
    if !heads.is_multiple_of(spread.tensor) {
        let path = format!("{WORKER}.parallelism.tensor");
        let got = findings.shown(&path, spread.tensor);
        findings.problem(&path, format!("got {got}; allowed is a divisor of the model's {heads} heads"));
        return None;
    }
    Some(Cell {
        model: architecture,
        engine,
        tensor: spread.tensor,
        pipeline: spread.pipeline,
        attention_data: spread.attention_data,
        moe_tensor: spread.moe_tensor,
        moe_expert: spread.moe_expert,
        types,
    })
}
