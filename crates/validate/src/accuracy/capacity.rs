//! Measured KV capacities of TensorRT-LLM: how many sequences of a length run at once, beside what the memory
//! model says. The measurements are those of ai-dynamo/aiconfigurator
//! (tests/integration/test_trtllm_kv_cache_capacity.py): a cache of 16 bits, blocks of 32 tokens, passes of
//! twice the input, and sequences of input, output and 1000 tokens more.

use super::table::rows;
use super::{AccuracyError, Errors, Partition};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use windtunnel_perf::capacity::{Backend, Request, Rules, budget};
use windtunnel_perf::hardware::Accelerator;
use windtunnel_perf::models::{Dtype, ModelDescription, Sharding};

/// What the benchmark allowed a sequence beyond input and output (`max_seq_len`).
const SLACK: u64 = 1000;
/// TensorRT-LLM's block, and its batch at most.
const BLOCK_SIZE: u32 = 32;
const MAX_BATCH: u32 = 2048;

/// One row of the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Measured {
    system: String,
    model: String,
    tp: u32,
    isl: u32,
    osl: u32,
    free_gpu_memory_fraction: f64,
    max_concurrent_sequences: u64,
}

/// One measurement with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapacityRow {
    /// The accelerator.
    pub system: String,
    /// The model.
    pub model: String,
    /// Tensor parallelism.
    pub tensor: u32,
    /// Input tokens.
    pub isl: u32,
    /// Output tokens.
    pub osl: u32,
    /// Memory fraction.
    pub memory_fraction: f64,
    /// Sequences at once, measured.
    pub measured: u64,
    /// The same, predicted: what the tokens of the cache suffice for.
    pub predicted: u64,
    /// predicted / measured − 1, in percent.
    pub error_pct: f64,
}

/// All of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapacityReport {
    /// Errors over all rows.
    pub overall: Errors,
    /// By system, model and tensor parallelism.
    pub partitions: Vec<Partition>,
    /// Rows that could not be predicted, by reason.
    pub uncovered: BTreeMap<String, usize>,
    /// Row by row.
    pub rows: Vec<CapacityRow>,
}

/// Compares all rows of a file.
///
/// # Errors
/// A file that cannot be read, a row that does not fit, and one of which no row can be predicted.
pub fn capacities(path: &Path) -> Result<CapacityReport, AccuracyError> {
    let mut compared = Vec::new();
    let mut uncovered = BTreeMap::new();
    for (line, row) in rows::<Measured>(path, &[])? {
        if row.max_concurrent_sequences == 0 {
            let reason = format!("line {line}: max_concurrent_sequences is 0; needed is at least 1");
            return Err(AccuracyError { path: path.to_owned(), reason });
        }
        match predict(&row) {
            Ok(predicted) => compared.push(compare(row, predicted)),
            Err(reason) => *uncovered.entry(reason).or_insert(0) += 1,
        }
    }
    let errors: Vec<f64> = compared.iter().map(|row| row.error_pct).collect();
    let Some(overall) = Errors::of(&errors) else {
        let reason = match uncovered.keys().next() {
            Some(reason) => format!("no row can be predicted: {reason}"),
            None => "has no rows".to_owned(),
        };
        return Err(AccuracyError { path: path.to_owned(), reason });
    };
    let key = |row: &CapacityRow| {
        BTreeMap::from([
            ("system", row.system.clone()),
            ("model", row.model.clone()),
            ("tensor", row.tensor.to_string()),
        ])
    };
    let partitions = Partition::all(compared.iter().map(|row| (key(row), row.error_pct)));
    Ok(CapacityReport { overall, partitions, uncovered, rows: compared })
}

fn compare(row: Measured, predicted: u64) -> CapacityRow {
    CapacityRow {
        system: row.system,
        model: row.model,
        tensor: row.tp,
        isl: row.isl,
        osl: row.osl,
        memory_fraction: row.free_gpu_memory_fraction,
        measured: row.max_concurrent_sequences,
        predicted,
        error_pct: (predicted as f64 / row.max_concurrent_sequences as f64 - 1.0) * 100.0,
    }
}

/// Whole sequences whose tokens the cache holds.
fn predict(row: &Measured) -> Result<u64, String> {
    let model =
        ModelDescription::named(&row.model).ok_or_else(|| format!("model {} is not known", row.model))?;
    let accelerator =
        Accelerator::named(&row.system).ok_or_else(|| format!("system {} is not known", row.system))?;
    let request = Request {
        model: &model,
        accelerator: &accelerator,
        backend: Backend::Trtllm,
        backend_version: None,
        rules: Rules::Native,
        sharding: Sharding {
            tensor: row.tp,
            pipeline: 1,
            experts: if model.experts.is_some() { row.tp } else { 1 },
        },
        attention_data: 1,
        memory_fraction: Some(row.free_gpu_memory_fraction),
        cuda_graph_bytes: 0,
        kv_dtype: Some(Dtype::Bfloat16),
        block_size: BLOCK_SIZE,
        max_batched_tokens: row.isl.saturating_mul(2),
        max_sequences: MAX_BATCH,
    };
    let budget = budget(&request).map_err(|error| error.to_string())?;
    Ok(budget.tokens / (u64::from(row.isl) + u64::from(row.osl) + SLACK))
}
