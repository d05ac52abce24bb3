//! The engines' own memory: what each takes and what it leaves for KV blocks. Every constant says where it
//! was read; none was fitted to the measurements that docs/accuracy.md compares with.

use super::{Backend, GIB, MIB, Request, Taken, reference};
use crate::models::{Attention, ModelDescription};

/// What the driver keeps of the memory that `nvidia-smi` shows: vLLM's logs have 79.25 of 80.00 GiB (A100),
/// 79.18 of 79.65 (H100), 94.97 of 95.59 (RTX PRO 6000), 184.31 of 185.03 (GB200), 23.52 of 23.99 (RTX
/// 4090).
const DRIVER: f64 = 0.6 * GIB;
/// What a process takes before it has loaded anything: 78.57 of 79.18 GiB are free then
/// (github.com/llm-d/llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md).
const CONTEXT: f64 = 0.61 * GIB;
/// What vLLM takes outside of PyTorch while it profiles, alone and with others (the same source: 0.13 and
/// 0.55 GiB).
const VLLM_OUTSIDE: f64 = 0.13 * GIB;
const VLLM_COLLECTIVES: f64 = 0.42 * GIB;
/// Bytes that the sampler holds at its peak for each sequence and entry of the vocabulary (the same source:
/// 4.76, 5.56 and 7.38 GiB for 1024 sequences and vocabularies of 128256, 151936 and 201088).
const SAMPLER_BYTES: f64 = 38.0;
/// Share of the KV memory that TensorRT-LLM's allocator keeps (aiconfigurator-core 0.12.0,
/// trtllm_backend.py, `KV_CACHE_MEMORY_RESERVED_FRACTION`).
const TRTLLM_RESERVE: f64 = 0.015;
/// What CUDA, cuBLAS and TensorRT-LLM itself take (aiconfigurator-core 0.12.0, `misc.other_mem`).
const TRTLLM_RUNTIME: f64 = 3584.0 * MIB;

/// What is taken, and what is left.
pub(super) fn taken(request: &Request, fraction: f64) -> Taken {
    match request.backend {
        Backend::Vllm => vllm(request, fraction),
        Backend::Sglang => sglang(request, fraction),
        Backend::Trtllm => trtllm(request, fraction),
    }
}

/// v1/worker/gpu_worker.py of 0.33.0: the fraction is of all that CUDA sees, and what is not KV is measured
/// in a pass of the largest size.
fn vllm(request: &Request, fraction: f64) -> Taken {
    let memory = request.accelerator.memory_bytes as f64;
    let weights = weights(request);
    let activations = forward(request).max(sampler(request));
    let communication = collectives(request);
    let beside = weights + activations + VLLM_OUTSIDE + communication + request.cuda_graph_bytes as f64;
    Taken {
        memory,
        weights,
        activations,
        communication,
        runtime: DRIVER + VLLM_OUTSIDE,
        reserved: 0.0,
        kv: (memory - DRIVER) * fraction - beside,
    }
}

/// model_executor/model_runner.py of SGLang: the fraction is of what is free before the weights are loaded,
/// and activations live in what it leaves.
fn sglang(request: &Request, fraction: f64) -> Taken {
    let memory = request.accelerator.memory_bytes as f64;
    let weights = weights(request);
    let communication = collectives(request);
    let runtime = DRIVER + CONTEXT;
    let free = memory - runtime - communication;
    Taken {
        memory,
        weights,
        activations: 0.0,
        communication,
        runtime,
        reserved: 0.0,
        kv: free * fraction - weights - request.cuda_graph_bytes as f64,
    }
}

/// The fraction is of what is free after a trial run, and the allocator keeps some of it. What it takes is
/// known from AISimulate's constants, which were made for it and go with the memory that it takes for an
/// accelerator's.
fn trtllm(request: &Request, fraction: f64) -> Taken {
    let memory = request.accelerator.reference_bytes as f64;
    let weights = weights(request);
    let activations = reference::activations(request);
    let communication = reference::communication(request);
    let beside = weights + activations + communication + TRTLLM_RUNTIME + request.cuda_graph_bytes as f64;
    let share = (memory - beside) * fraction;
    Taken {
        memory,
        weights,
        activations,
        communication,
        runtime: TRTLLM_RUNTIME,
        reserved: share * TRTLLM_RESERVE,
        kv: share * (1.0 - TRTLLM_RESERVE),
    }
}

pub(super) fn weights(request: &Request) -> f64 {
    request.model.weight_bytes_per_rank(request.sharding) as f64
}

fn collectives(request: &Request) -> f64 {
    let alone = request.sharding.tensor * request.sharding.pipeline * request.attention_data == 1;
    if alone { 0.0 } else { VLLM_COLLECTIVES }
}

/// Logits of all running sequences in the types that sampling goes through.
fn sampler(request: &Request) -> f64 {
    let sequences = f64::from(request.max_sequences.min(request.max_batched_tokens));
    SAMPLER_BYTES * sequences * f64::from(request.model.vocab_size)
}

/// What a layer's widest step holds: hidden state and residual, and beside them the feed-forward's input,
/// its activation, and of experts a copy for each that a token goes to (their first and last matrix share
/// one buffer).
fn forward(request: &Request) -> f64 {
    let model: &ModelDescription = request.model;
    let tensor = f64::from(request.sharding.tensor);
    let hidden = f64::from(model.hidden_size);
    let dense = model.intermediate_size.map_or(0.0, |width| 3.0 * f64::from(width) / tensor);
    let routed = model.experts.map_or(0.0, |experts| {
        let width = f64::from(experts.intermediate_size) / tensor;
        f64::from(experts.per_token) * ((2.0 * width).max(hidden) + width)
    });
    let attention = match model.attention {
        Attention::Gqa { heads, kv_heads, head_dim, .. } => {
            f64::from(head_dim) * (2.0 * f64::from(heads) + 2.0 * f64::from(kv_heads)) / tensor
        }
        Attention::Mla { heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, .. } => {
            let [nope, rope, v] = [qk_nope_head_dim, qk_rope_head_dim, v_head_dim].map(f64::from);
            f64::from(heads) * (2.0 * (nope + rope) + 2.0 * v) / tensor
        }
    };
    let width = 2.0 * hidden + dense.max(routed).max(attention);
    f64::from(request.max_batched_tokens) * width * model.dtype.bytes() as f64
}
