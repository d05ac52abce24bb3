//! How many KV blocks a rank has: what is left of an accelerator's memory after weights, activations,
//! communication and runtime, by each engine's own rule for its memory fraction, divided by what a block
//! takes. The engines' rules stand in `native`, AISimulate's in `reference`, the fractions that hold where
//! none is given in `fraction`. Nothing here measures anything; docs/accuracy.md says how far it is off.

mod fraction;
mod native;
mod reference;

use crate::hardware::Accelerator;
use crate::models::{Attention, Dtype, ModelDescription, Sharding};
use serde::Serialize;
use thiserror::Error;

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1024.0 * MIB;
/// Tokens of a cache at most, as everywhere in this program.
const MOST_TOKENS: u64 = 1 << 40;

/// The engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl Backend {
    /// What the engine calls its memory fraction.
    pub fn fraction_name(self) -> &'static str {
        match self {
            Backend::Vllm => "gpu_memory_utilization",
            Backend::Sglang => "mem_fraction_static",
            Backend::Trtllm => "free_gpu_memory_fraction",
        }
    }
}

/// Whose memory model holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rules {
    /// The engine's, as far as it is known.
    Native,
    /// That of AISimulate 0.13.
    #[serde(rename = "aisimulate_0_13")]
    Aisimulate013,
}

/// What the number of blocks depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a ModelDescription,
    /// Every accelerator of the rank.
    pub accelerator: &'a Accelerator,
    /// The engine.
    pub backend: Backend,
    /// Its version, for the default of the memory fraction; none is the version that this program is true to.
    pub backend_version: Option<&'a str>,
    /// Whose memory model holds.
    pub rules: Rules,
    /// How the model is spread over the accelerators of the rank.
    pub sharding: Sharding,
    /// Data-parallel ranks of the worker.
    pub attention_data: u32,
    /// The memory fraction; none is the engine's own default.
    pub memory_fraction: Option<f64>,
    /// Kept for CUDA graphs, beside everything else.
    pub cuda_graph_bytes: u64,
    /// Type of the KV cache; none is the checkpoint's own.
    pub kv_dtype: Option<Dtype>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Tokens of a pass at most; of SGLang the longest prefill chunk of the worker.
    pub max_batched_tokens: u32,
    /// Sequences that run at most.
    pub max_sequences: u32,
}

/// Where a memory fraction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FractionSource {
    /// It was given.
    Given,
    /// It is the engine's own.
    Default,
}

/// The memory of one accelerator of a rank, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// The model's name.
    pub model: String,
    /// Name of the accelerator, if it has one.
    pub hardware: Option<String>,
    /// The engine.
    pub backend: Backend,
    /// Whose memory model holds.
    pub rules: Rules,
    /// Accelerators of the rank.
    pub accelerators: u32,
    /// All memory.
    pub memory_bytes: u64,
    /// The engine's memory fraction.
    pub memory_fraction: f64,
    /// Where it comes from.
    pub memory_fraction_source: FractionSource,
    /// Weights.
    pub weight_bytes: u64,
    /// Activations of the largest pass. SGLang's rule leaves them in the share beside its fraction.
    pub activation_bytes: u64,
    /// Buffers of collective communication.
    pub communication_bytes: u64,
    /// Driver, context and runtime.
    pub runtime_bytes: u64,
    /// Kept for CUDA graphs.
    pub cuda_graph_bytes: u64,
    /// What the engine's allocator keeps back of the KV memory.
    pub reserved_bytes: u64,
    /// What the fraction leaves unused.
    pub unused_bytes: u64,
    /// What is left for sequences: KV blocks, and the next two.
    pub kv_bytes: u64,
    /// Set aside of it for the states of linear layers.
    pub state_bytes: u64,
    /// Set aside of it for what layers with a window keep.
    pub window_bytes: u64,
    /// Type of the KV cache.
    pub kv_dtype: Dtype,
    /// KV bytes that a block holds of one token: those of layers with a window are set aside where that is
    /// less.
    pub kv_bytes_per_token: u64,
    /// Tokens of a block.
    pub block_size: u32,
    /// Tokens of the largest pass, which the activations go by.
    pub max_batched_tokens: u32,
    /// Sequences that run at most.
    pub max_sequences: u32,
    /// Whole blocks that fit.
    pub blocks: u64,
    /// Tokens that these hold.
    pub tokens: u64,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
}

/// What a capacity cannot be worked out for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {message}")]
pub struct CapacityError {
    /// The field of [`Request`] that is wrong.
    pub field: &'static str,
    /// Its value, and what is allowed.
    pub message: String,
}

fn refuse<T>(field: &'static str, message: String) -> Result<T, CapacityError> {
    Err(CapacityError { field, message })
}

/// What is taken of the memory of an accelerator, in bytes, and what is left.
struct Taken {
    memory: f64,
    weights: f64,
    activations: f64,
    communication: f64,
    runtime: f64,
    reserved: f64,
    kv: f64,
}

/// Works out the budget of a rank.
///
/// # Errors
/// A spread that the model does not have, a fraction that is not one or not known, and a memory that holds
/// no block: by how much is said.
pub fn budget(request: &Request) -> Result<Budget, CapacityError> {
    check(request)?;
    let Request { model, accelerator, backend, sharding, .. } = *request;
    let (fraction, source) = match request.memory_fraction {
        Some(fraction) => (fraction, FractionSource::Given),
        None => (fraction::default(request)?, FractionSource::Default),
    };
    let taken = match request.rules {
        Rules::Native => native::taken(request, fraction),
        Rules::Aisimulate013 => reference::taken(request, fraction),
    };
    let kv_dtype = request.kv_dtype.unwrap_or(model.own_kv_dtype());
    let pool = pool(request, taken.kv, kv_dtype);
    let block = pool.bytes_per_token * u64::from(request.block_size);
    let blocks = (pool.bytes / block.max(1) as f64) as u64;
    if blocks == 0 {
        return refuse("accelerator", lack(request, fraction, &taken, pool.bytes, block));
    }
    let tokens = blocks.saturating_mul(request.block_size.into());
    if tokens > MOST_TOKENS {
        return refuse("accelerator", format!("{tokens} tokens of KV cache are more than 2^40"));
    }
    let whole = |bytes: f64| bytes.max(0.0) as u64;
    let beside = taken.weights
        + taken.activations
        + taken.communication
        + taken.runtime
        + request.cuda_graph_bytes as f64
        + taken.reserved
        + taken.kv;
    Ok(Budget {
        model: model.name.clone(),
        hardware: accelerator.name.clone(),
        backend,
        rules: request.rules,
        accelerators: sharding.tensor * sharding.pipeline,
        memory_bytes: whole(taken.memory),
        memory_fraction: fraction,
        memory_fraction_source: source,
        weight_bytes: whole(taken.weights),
        activation_bytes: whole(taken.activations),
        communication_bytes: whole(taken.communication),
        runtime_bytes: whole(taken.runtime),
        cuda_graph_bytes: request.cuda_graph_bytes,
        reserved_bytes: whole(taken.reserved),
        unused_bytes: whole(taken.memory - beside),
        kv_bytes: whole(taken.kv),
        state_bytes: whole(pool.states),
        window_bytes: whole(pool.windows),
        kv_dtype,
        kv_bytes_per_token: pool.bytes_per_token,
        block_size: request.block_size,
        max_batched_tokens: request.max_batched_tokens,
        max_sequences: request.max_sequences,
        blocks,
        tokens,
        notes: notes(model),
    })
}

/// The memory that blocks share, and what a token takes of it.
struct Pool {
    bytes: f64,
    bytes_per_token: u64,
    states: f64,
    windows: f64,
}

/// Takes from the KV memory what does not grow with the tokens of a sequence. A layer with a window keeps at
/// most the window of each running sequence. So for T tokens in all, whatever their sequences' lengths, such
/// layers need no more than min(T, sequences · window) tokens: either they count like the others, or what
/// all sequences can need is set aside, whichever leaves more. AISimulate thinks of one sequence.
fn pool(request: &Request, kv: f64, dtype: Dtype) -> Pool {
    let Request { model, sharding, .. } = *request;
    let sequences = match request.rules {
        Rules::Native => f64::from(request.max_sequences),
        Rules::Aisimulate013 => 1.0,
    };
    let states = model.state_bytes_per_sequence(sharding) as f64 * sequences;
    let bytes = kv - states;
    let all = model.kv_bytes_per_token(sharding, dtype);
    let whole = Pool { bytes, bytes_per_token: all, states, windows: 0.0 };
    let Some(window) = model.window else { return whole };
    let layers = u64::from(window.layers.div_ceil(sharding.pipeline.max(1)));
    let windowed = layers * model.kv_bytes_per_token_and_layer(sharding.tensor, dtype);
    let windows = windowed as f64 * f64::from(window.tokens) * sequences;
    let rest = all.saturating_sub(windowed);
    if rest == 0 || (bytes - windows) / rest as f64 <= bytes / all.max(1) as f64 {
        return whole;
    }
    Pool { bytes: bytes - windows, bytes_per_token: rest, states, windows }
}

fn notes(model: &ModelDescription) -> Vec<String> {
    let mut notes = Vec::new();
    let name = &model.name;
    if let Some(window) = model.window {
        notes.push(format!(
            "{} of the {} layers of {name} keep the last {} tokens only; the KV cache is simulated as if every \
             layer kept all of them, and its size is what such sequences leave room for",
            window.layers, model.layers, window.tokens
        ));
    }
    if let Some(linear) = model.linear_attention {
        notes.push(format!(
            "{} of the {} layers of {name} keep a state instead of tokens; it is set aside for every sequence \
             that may run, and prefixes are simulated as if it could be shared like tokens",
            linear.layers, model.layers
        ));
    }
    if model.has_encoder {
        notes.push(format!("the memory of {name}'s encoder is not counted"));
    }
    notes
}

/// Says what is missing for one block.
fn lack(request: &Request, fraction: f64, taken: &Taken, bytes: f64, block: u64) -> String {
    let gib = |bytes: f64| format!("{:.1}", bytes / GIB);
    format!(
        "{} GiB of memory have no room for KV blocks, {} GiB are missing: weights take {} GiB, activations {}, \
         communication {}, runtime and CUDA graphs {}, and {} is {fraction}; more accelerators to a rank, more \
         memory or a larger fraction are needed",
        gib(taken.memory),
        gib(block as f64 - bytes),
        gib(taken.weights),
        gib(taken.activations),
        gib(taken.communication),
        gib(taken.runtime + request.cuda_graph_bytes as f64),
        request.backend.fraction_name(),
    )
}

fn check(request: &Request) -> Result<(), CapacityError> {
    let Request { model, sharding: Sharding { tensor, pipeline, experts }, .. } = *request;
    let name = &model.name;
    let heads = model.heads();
    if tensor == 0 || !heads.is_multiple_of(tensor) {
        return refuse("tensor", format!("got {tensor}; it must divide the {heads} heads of {name}"));
    }
    if let Attention::Gqa { kv_heads, .. } = model.attention
        && !kv_heads.is_multiple_of(tensor)
        && !tensor.is_multiple_of(kv_heads)
    {
        let message =
            format!("got {tensor}; it must divide the {kv_heads} KV heads of {name}, or be a multiple");
        return refuse("tensor", message);
    }
    if pipeline == 0 || pipeline > model.layers {
        let layers = model.layers;
        return refuse("pipeline", format!("got {pipeline}; allowed is 1 to the {layers} layers of {name}"));
    }
    let all = u64::from(tensor) * u64::from(request.attention_data);
    if model.experts.is_some() && u64::from(experts) != all {
        let message = format!("got {experts}; the experts of {name} are spread over all {all} accelerators");
        return refuse("experts", message);
    }
    if request.block_size == 0 || request.max_batched_tokens == 0 || request.max_sequences == 0 {
        return refuse("block_size", "block size, tokens of a pass and sequences must be at least 1".into());
    }
    match request.memory_fraction {
        Some(fraction) if !(fraction > 0.0 && fraction <= 1.0) => {
            refuse("memory_fraction", format!("got {fraction}; allowed is a number above 0 and at most 1"))
        }
        _ => Ok(()),
    }
}
