//! AISimulate's memory model, under `engine.semantics: aisimulate_0_13`. Figures are those of
//! aiconfigurator-core 0.12.0 (`sdk/backends/base_backend.py`, `_get_memory_usage`, and the backends' files;
//! `systems/*.yaml`, `misc`), and SGLang's rule that of AISimulate 0.13 (docs/perf-model/memory.md). Weights
//! are counted by ours.

use super::{Backend, MIB, Request, Taken, native};
use crate::models::Attention;

/// What is taken, and what is left.
pub(super) fn taken(request: &Request, fraction: f64) -> Taken {
    let memory = request.accelerator.reference_bytes as f64;
    let weights = native::weights(request);
    let communication = communication(request);
    let runtime = runtime(request);
    let graphs = request.cuda_graph_bytes as f64;
    let all = activations(request);
    let (activations, kv) = match request.backend {
        Backend::Vllm => (all, memory * fraction - weights - all - communication - runtime - graphs),
        Backend::Sglang => (0.0, (memory - communication - runtime) * fraction - weights - graphs),
        Backend::Trtllm => (all, (memory - weights - all - communication - runtime - graphs) * fraction),
    };
    Taken { memory, weights, activations, communication, runtime, reserved: 0.0, kv }
}

fn runtime(request: &Request) -> f64 {
    let small = request.accelerator.name.as_deref() == Some("b60");
    let bytes = if small { 500.0 * MIB } else { 3584.0 * MIB };
    if request.backend == Backend::Sglang { bytes * 1.2 } else { bytes }
}

/// Buffers of NCCL.
pub(super) fn communication(request: &Request) -> f64 {
    match request.sharding.tensor {
        1 => 0.0,
        2 => 342.0 * MIB,
        _ => 392.0 * MIB,
    }
}

/// Bytes of the activations of the largest pass: 2 · tokens · width · c, where c falls with the degree of
/// tensor parallelism, and for latent attention with experts what dispatches scaled blocks to these.
pub(super) fn activations(request: &Request) -> f64 {
    let model = request.model;
    let tokens = f64::from(request.max_batched_tokens);
    let width = match model.attention {
        Attention::Gqa { heads, head_dim, .. } => f64::from(heads) * f64::from(head_dim),
        Attention::Mla { .. } => f64::from(model.hidden_size),
    };
    let by_degree = match (request.backend, model.experts.is_some()) {
        (Backend::Sglang, false) => [14.0, 8.5, 6.5],
        (Backend::Sglang, true) => [28.0, 17.0, 13.0],
        (_, false) => [11.0, 6.5, 5.0],
        (_, true) => [22.0, 13.0, 10.0],
    };
    let degree = match request.sharding.tensor {
        1 => 0,
        2 | 3 => 1,
        _ => 2,
    };
    let mut bytes = 2.0 * tokens * width * by_degree[degree];
    if let (Attention::Mla { .. }, Some(experts)) = (model.attention, model.experts) {
        let ranks = f64::from(request.attention_data);
        let chosen = f64::from(experts.count) * f64::from(experts.per_token);
        let spread = f64::from(request.sharding.experts.max(1));
        bytes += tokens * width * ranks * chosen / spread / 128.0 * 4.0;
    }
    match request.backend {
        Backend::Sglang => bytes.max(90.0 * MIB) * 1.15,
        Backend::Vllm | Backend::Trtllm => bytes.max(70.0 * MIB),
    }
}
