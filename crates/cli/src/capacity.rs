//! `windtunnel capacity`: how the KV blocks of a deployment come about, item by item; and the same in a report.

use crate::args::Capacity;
use crate::exit::Failure;
use crate::models::{facts, json, write};
use windtunnel_config::{Deployment, Semantics};
use windtunnel_perf::capacity::{Budget, FractionSource};
use windtunnel_report::CapacityRow;

const GIB: f64 = (1u64 << 30) as f64;

/// Runs the command.
pub fn run(arguments: &Capacity) -> Result<(), Failure> {
    let experiment = windtunnel_config::load(&arguments.file, &arguments.set).map_err(Failure::input)?;
    let deployment = &experiment.deployment;
    let Some(budget) = &deployment.capacity else {
        return Err(Failure::Input(format!(
            "{}: engine.workers.{role}.kv_cache.capacity.type is fixed, so there is nothing to work out; \
             try --set engine.workers.{role}.kv_cache.capacity='{{type: default}}'",
            arguments.file.display(),
            role = deployment.role,
        )));
    };
    if arguments.json {
        write(&json(&row(deployment, budget)?.detail)?)
    } else {
        write(&text(deployment, budget))
    }
}

/// What a report says of the capacity of a deployment.
pub fn rows(deployment: &Deployment) -> Result<Vec<CapacityRow>, Failure> {
    deployment.capacity.iter().map(|budget| row(deployment, budget)).collect()
}

fn row(deployment: &Deployment, budget: &Budget) -> Result<CapacityRow, Failure> {
    let mut detail = serde_json::to_value(budget).map_err(Failure::run)?;
    if let Some(fields) = detail.as_object_mut() {
        fields.insert("role".into(), deployment.role.into());
    }
    let line = format!(
        "{} blocks of {} tokens in {} of {} GiB (weights {}, fraction {})",
        budget.blocks,
        budget.block_size,
        gib(budget.kv_bytes),
        gib(budget.memory_bytes),
        gib(budget.weight_bytes),
        budget.memory_fraction
    );
    Ok(CapacityRow { line, detail })
}

fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / GIB)
}

fn text(deployment: &Deployment, budget: &Budget) -> String {
    let source = match budget.memory_fraction_source {
        FractionSource::Given => "given",
        FractionSource::Default => match deployment.semantics {
            Semantics::Native => "the engine's own",
            Semantics::Aisimulate013 => "AISimulate's",
        },
    };
    let of = if budget.accelerators == 1 { "" } else { ", on each of the rank's accelerators" };
    let mut lines = vec![
        ("Model", budget.model.clone()),
        ("Hardware", deployment.hardware.clone()),
        ("Engine", format!("{} ({of_rank})", deployment.engine.engine().0, of_rank = accelerators(budget))),
        (
            "Memory fraction",
            format!("{} ({source}; {})", budget.memory_fraction, budget.backend.fraction_name()),
        ),
        ("Memory", format!("{} GiB{of}", gib(budget.memory_bytes))),
    ];
    let items = [
        ("  weights", budget.weight_bytes),
        ("  activations", budget.activation_bytes),
        ("  communication", budget.communication_bytes),
        ("  runtime", budget.runtime_bytes),
        ("  CUDA graphs", budget.cuda_graph_bytes),
        ("  kept by allocator", budget.reserved_bytes),
        ("  left unused", budget.unused_bytes),
        ("  KV cache", budget.kv_bytes),
    ];
    lines.extend(items.iter().map(|(label, bytes)| (*label, format!("{:>8} GiB", gib(*bytes)))));
    for (label, bytes) in [("    states", budget.state_bytes), ("    windows", budget.window_bytes)] {
        if bytes > 0 {
            lines.push((label, format!("{:>8} GiB", gib(bytes))));
        }
    }
    let dtype = budget.kv_dtype.name();
    lines.push(("KV bytes of a token", format!("{} ({dtype})", budget.kv_bytes_per_token)));
    lines.push(("Blocks of a rank", format!("{} of {} tokens", budget.blocks, budget.block_size)));
    lines.push(("Tokens of a rank", budget.tokens.to_string()));
    lines.extend(budget.notes.iter().map(|note| ("Note", note.clone())));
    facts(&lines)
}

fn accelerators(budget: &Budget) -> String {
    match budget.accelerators {
        1 => "1 accelerator to a rank".into(),
        several => format!("{several} accelerators to a rank"),
    }
}
