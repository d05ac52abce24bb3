//! What is timed: a model's layers, the engine, and how they are spread over accelerators.

use crate::packs::Gpu;

/// The engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl Engine {
    /// Its name in packs.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
            Engine::Trtllm => "trtllm",
        }
    }
}

/// The layers of a model, as far as their times depend on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Layers.
    pub layers: u32,
    /// Width of what goes from layer to layer.
    pub hidden: u32,
    /// Tokens that it knows.
    pub vocabulary: u32,
    /// The attention.
    pub attention: AttentionKind,
    /// Its latent attention looks at some tokens only.
    pub sparse: Option<SparseLayers>,
    /// Layers that keep the last tokens of a sequence only, and how many tokens.
    pub window: Option<(u32, u32)>,
    /// Layers with a state of fixed size in place of attention.
    pub linear: Option<LinearLayers>,
    /// Width of the dense feed-forward layers.
    pub intermediate: u32,
    /// Layers with experts, in place of dense ones.
    pub experts: Option<ExpertLayers>,
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// Grouped queries.
    Gqa {
        /// Query heads.
        heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Numbers of a head.
        head_dim: u32,
        /// A gate, as wide as the queries, is on the output.
        gate: bool,
        /// Queries and keys are normed.
        norms: bool,
    },
    /// Latent, with the sizes of DeepSeek-V3 where it is not sparse: no others were measured.
    Mla {
        /// Heads.
        heads: u32,
        /// Width of the queries' compression.
        q_rank: u32,
        /// Width of the latent.
        kv_rank: u32,
    },
}

/// Sparse attention: an indexer chooses the tokens that a layer looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseLayers {
    /// The architecture, by the name that measurements have for it; it stands for all sizes.
    pub model: &'static str,
    /// Layers that choose; the others take over what the one before them chose.
    pub choosing: u32,
    /// Tokens that are looked at, at most.
    pub top: u32,
}

/// Layers with a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearLayers {
    /// How many.
    pub layers: u32,
    /// Heads of queries and keys, of 128 numbers.
    pub key_heads: u32,
    /// Heads of values, of 128 numbers.
    pub value_heads: u32,
}

/// Layers with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayers {
    /// How many.
    pub layers: u32,
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a token goes to.
    pub per_token: u32,
    /// Width of one.
    pub intermediate: u32,
    /// Width of the expert that all tokens go to.
    pub shared: u32,
}

/// Types of numbers, by the names that the measurements have for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Types {
    /// Of matrix products: bfloat16, fp8, fp8_static (the scales of the activations are known before), fp8_block,
    /// nvfp4 …
    pub gemm: String,
    /// Of experts: the same, int4_wo, w4a16_mxfp4 …
    pub experts: String,
    /// Of the projections of the attention, where they differ from the other products.
    pub attention_gemm: String,
    /// Of the KV cache: bfloat16 or fp8.
    pub kv: String,
}

/// One rank of one deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The model.
    pub model: Architecture,
    /// The engine.
    pub engine: Engine,
    /// Accelerators of a rank.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Data-parallel ranks that share the experts.
    pub attention_data: u32,
    /// Tensor parallelism of the experts.
    pub moe_tensor: u32,
    /// Expert parallelism.
    pub moe_expert: u32,
    /// Types of numbers.
    pub types: Types,
}

impl Cell {
    /// Accelerators that the experts are spread over.
    pub(super) fn expert_gpus(&self) -> u32 {
        (self.moe_tensor * self.moe_expert).max(1)
    }

    /// Query and KV heads of one accelerator: KV heads that are fewer than accelerators are repeated.
    pub(super) fn heads(&self, heads: u32, kv_heads: u32) -> (u32, u32) {
        (heads.div_ceil(self.tensor), kv_heads.div_ceil(self.tensor))
    }

    /// How tokens choose experts, as in the measurements: DeepSeek's models level it out.
    pub(super) fn distribution(&self) -> &'static str {
        match self.model.attention {
            AttentionKind::Mla { .. } => "power_law_1.01",
            AttentionKind::Gqa { .. } => "power_law_1.2",
        }
    }
}

/// Bytes of a number, and bits of the units that multiply it, by the name of its type.
pub(super) fn bytes_and_bits(dtype: &str) -> (f64, u32) {
    match dtype {
        "fp8" | "fp8_static" | "fp8_block" | "int8" | "sq" => (1.0, 8),
        "int8_wo" => (1.0, 16),
        "nvfp4" => (0.5625, 4),
        "w4a8_mxfp4_mxfp8" | "w4a8_mxfp4_mxfp8_trtllm" => (0.53125, 8),
        "w4a16_mxfp4" | "w4a16_mxfp4_cutlass" => (0.53125, 16),
        "int4_wo" => (0.5, 16),
        _ => (2.0, 16),
    }
}

/// The least microseconds of a matrix product: by arithmetic, or by moving operands and result.
pub(super) fn least_gemm(gpu: &Gpu, dtype: &str, m: f64, n: f64, k: f64) -> f64 {
    let (bytes, bits) = bytes_and_bits(dtype);
    let arithmetic = 2.0 * m * n * k / gpu.flops(bits);
    let moving = bytes * (m * n + m * k + n * k) / gpu.memory_bandwidth;
    arithmetic.max(moving) * 1e6
}
