//! Model descriptions: what a model is made of, as far as memory and time depend on it. A description is a
//! plain value; it comes from a Hugging Face `config.json` ([`ModelDescription::read`]) or is built in under
//! the model's name ([`ModelDescription::named`]). What it takes of an accelerator's memory is in `memory`.
//! Nothing is known here of accelerators or engines.

mod attention;
mod builtin;
mod config_json;
mod feed_forward;
mod layer_types;
mod memory;
mod quantization;
mod weights;

pub use builtin::{aliases, names};
pub use memory::Sharding;
pub use quantization::WeightFormat;

use serde::{Deserialize, Serialize};
use std::path::Path;
use thiserror::Error;

/// A `config.json` that cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: {message}")]
pub struct ModelError {
    /// The file.
    pub file: String,
    /// The key in it, its value, and what is allowed.
    pub message: String,
}

/// What a model is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelDescription {
    /// Its name: that on Hugging Face, or the path of its file.
    pub name: String,
    /// Where the figures come from.
    pub source: String,
    /// `model_type` of the file: how its layers are built.
    pub model_type: String,
    /// Layers of the language model. Draft layers (multi-token prediction) are not among them.
    pub layers: u32,
    /// Width of what goes from layer to layer.
    pub hidden_size: u32,
    /// Tokens that it knows.
    pub vocab_size: u32,
    /// Longest context that it was made for, in tokens.
    pub max_position_embeddings: Option<u32>,
    /// The attention of every layer, linear ones apart.
    pub attention: Attention,
    /// The layers that keep the last tokens of a sequence only.
    pub window: Option<Window>,
    /// The layers whose attention is sparse, and what picks its tokens.
    pub indexer: Option<Indexer>,
    /// The layers that keep a state of one size for a sequence of any length, instead of its tokens.
    pub linear_attention: Option<LinearAttention>,
    /// Width of the dense feed-forward layers; none where all layers have experts.
    pub intermediate_size: Option<u32>,
    /// The experts.
    pub experts: Option<Experts>,
    /// Type of the numbers that are not quantised.
    pub dtype: Dtype,
    /// How the others are stored; none where nothing is quantised.
    pub quantization: Option<WeightFormat>,
    /// Type of the KV cache that the checkpoint asks for.
    pub kv_cache_dtype: Option<Dtype>,
    /// Has an encoder (of images, say) as well, which is not counted.
    pub has_encoder: bool,
    /// The weights, part by part.
    pub weights: Vec<Weights>,
}

/// How a layer attends, and so what it keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Attention {
    /// Grouped queries: several query heads share the key and value of one KV head. With as many of these
    /// as of those it is multi-head attention.
    Gqa {
        /// Query heads.
        heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Numbers of a head.
        head_dim: u32,
        /// A gate, as wide as the queries, is on the output.
        output_gate: bool,
    },
    /// Latent: one compressed vector for all heads.
    Mla {
        /// Query heads.
        heads: u32,
        /// Rank of the queries' compression, none without one.
        q_lora_rank: Option<u32>,
        /// Numbers of the compressed key and value.
        kv_lora_rank: u32,
        /// Numbers of a key that do not turn with the position.
        qk_nope_head_dim: u32,
        /// Numbers of a key that do, kept beside the latent.
        qk_rope_head_dim: u32,
        /// Numbers of a value.
        v_head_dim: u32,
    },
}

/// Layers that keep the last tokens of a sequence only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// How many.
    pub layers: u32,
    /// Tokens that one keeps at most.
    pub tokens: u32,
}

/// What picks the tokens that sparse attention looks at (DeepSeek's). It keeps a key for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Layers that have one; the others use what the one before them picked.
    pub layers: u32,
    /// Its heads.
    pub heads: u32,
    /// Numbers of one, and of the key that it keeps.
    pub head_dim: u32,
    /// Tokens that it picks.
    pub top_k: u32,
}

impl Indexer {
    /// Bytes that one layer keeps of a token: numbers of 8 bits, and one scale of 32 bits for 128 of them
    /// (vLLM 0.33.0 model_executor/models/deepseek_v2.py, `DeepseekV32IndexerCache`, as SGLang).
    pub fn bytes_per_token(&self) -> u64 {
        let numbers = u64::from(self.head_dim);
        numbers + 4 * numbers.div_ceil(128)
    }
}

/// Layers with a gated delta rule (Qwen3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearAttention {
    /// How many.
    pub layers: u32,
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Numbers of one.
    pub key_head_dim: u32,
    /// Heads of values.
    pub value_heads: u32,
    /// Numbers of one.
    pub value_head_dim: u32,
    /// Tokens under the convolution before the rule.
    pub convolution: u32,
    /// Type of the state.
    pub state_dtype: Dtype,
}

impl LinearAttention {
    /// Bytes that all these layers keep of a sequence on an accelerator, with tensor parallelism `tensor`:
    /// the state of each head of values, and the last inputs of the convolution.
    pub fn state_bytes(&self, tensor: u32, dtype: Dtype) -> u64 {
        let tensor = u64::from(tensor.max(1));
        let [keys, key, values, value, convolution] =
            [self.key_heads, self.key_head_dim, self.value_heads, self.value_head_dim, self.convolution]
                .map(u64::from);
        let state = values.div_ceil(tensor) * key * value * self.state_dtype.bytes();
        let inputs = (2 * keys * key + values * value).div_ceil(tensor);
        u64::from(self.layers) * (state + inputs * convolution.saturating_sub(1) * dtype.bytes())
    }
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Layers that have them.
    pub layers: u32,
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a token goes to.
    pub per_token: u32,
    /// Width of one.
    pub intermediate_size: u32,
    /// Width of the shared expert that every token goes to.
    pub shared_intermediate_size: Option<u32>,
}

/// Type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32 bits.
    Float32,
    /// 16 bits, half precision.
    Float16,
    /// 16 bits, with the exponent of 32.
    Bfloat16,
    /// 8 bits.
    Fp8,
}

impl Dtype {
    /// Bytes of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Float32 => 4,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Fp8 => 1,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Fp8 => "fp8",
        }
    }
}

/// A part of the weights, spread over accelerators in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The table of token embeddings. Split by tensor parallelism.
    Embedding,
    /// The output layer, unless it is that table. Split by tensor parallelism.
    OutputHead,
    /// Projections of the attention. Split by tensor parallelism; KV heads that are fewer than its
    /// degree are repeated.
    Attention,
    /// Layers with linear attention. Split by tensor parallelism.
    LinearAttention,
    /// Projections of the keys and values of grouped queries, which go by KV heads.
    KvProjection,
    /// Projections into the latent. Every accelerator has them.
    LatentProjection,
    /// What picks the tokens of sparse attention. Every accelerator has it.
    Indexer,
    /// Dense feed-forward layers and shared experts. Split by tensor parallelism.
    FeedForward,
    /// Experts. Split by the parallelism of experts.
    Experts,
    /// What chooses experts. Every accelerator has it.
    Router,
    /// Norms, and other small ones. Every accelerator has them.
    Norms,
}

/// One part of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Which.
    pub part: Part,
    /// Numbers in it.
    pub parameters: u64,
    /// Bytes that they take, with the scales of quantised ones.
    pub bytes: u64,
    /// How most of them are stored.
    pub format: WeightFormat,
}

impl ModelDescription {
    /// The built-in model of this name, or of one that has the same figures (an instruction-tuned one, say).
    pub fn named(name: &str) -> Option<ModelDescription> {
        builtin::find(name)
    }

    /// Reads a `config.json`, or the one in a folder, with the `hf_quant_config.json` beside it if there is
    /// one.
    ///
    /// # Errors
    /// A file that cannot be read, or a model that cannot be described.
    pub fn read(path: &Path) -> Result<ModelDescription, ModelError> {
        config_json::read(path)
    }

    /// All parameters.
    pub fn parameters(&self) -> u64 {
        self.weights.iter().map(|part| part.parameters).sum()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|part| part.bytes).sum()
    }

    /// Query heads.
    pub fn heads(&self) -> u32 {
        match self.attention {
            Attention::Gqa { heads, .. } | Attention::Mla { heads, .. } => heads,
        }
    }

    /// The type of the KV cache where nobody asks for another one.
    pub fn own_kv_dtype(&self) -> Dtype {
        self.kv_cache_dtype.unwrap_or(self.dtype)
    }
}
