//! From a model's description to what is timed: its layers, and the names that measurements have for its
//! types of numbers.

use super::cell::{Architecture, AttentionKind, ExpertLayers, LinearLayers, SparseLayers, Types};
use super::{Engine, Uncovered};
use crate::models::{Attention, Dtype, ModelDescription, Part, WeightFormat};

impl Architecture {
    /// Of a description.
    ///
    /// # Errors
    /// Layers whose operations nobody measured: other sizes of latent attention, other sparse ones.
    pub fn of(model: &ModelDescription) -> Result<Architecture, Uncovered> {
        let sparse = match model.indexer {
            None => None,
            Some(indexer) => {
                match ["deepseek_v32", "glm_moe_dsa"].into_iter().find(|kind| model.model_type == *kind) {
                    Some(kind) => {
                        Some(SparseLayers { model: kind, choosing: indexer.layers, top: indexer.top_k })
                    }
                    None => {
                        let nearest = "deepseek_v32, glm_moe_dsa".to_owned();
                        let cell = format!("{} ({})", model.name, model.model_type);
                        return Err(Uncovered { operation: "sparse attention", cell, nearest });
                    }
                }
            }
        };
        let attention = match model.attention {
            Attention::Gqa { heads, kv_heads, head_dim, output_gate } => AttentionKind::Gqa {
                heads,
                kv_heads,
                head_dim,
                gate: output_gate,
                norms: ["qwen3", "minimax"].iter().any(|kind| model.model_type.starts_with(kind)),
            },
            Attention::Mla {
                heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim,
                qk_rope_head_dim,
                v_head_dim,
            } => {
                if sparse.is_none()
                    && (qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank) != (128, 64, 128, 512)
                {
                    let cell =
                        format!("{qk_nope_head_dim}+{qk_rope_head_dim} and {v_head_dim} numbers of a head");
                    let nearest = "128+64 and 128".to_owned();
                    return Err(Uncovered { operation: "latent attention", cell, nearest });
                }
                AttentionKind::Mla {
                    heads,
                    q_rank: q_lora_rank.unwrap_or(model.hidden_size),
                    kv_rank: kv_lora_rank,
                }
            }
        };
        let experts = model.experts.map(|experts| ExpertLayers {
            layers: experts.layers,
            count: experts.count,
            per_token: experts.per_token,
            intermediate: experts.intermediate_size,
            shared: experts.shared_intermediate_size.unwrap_or(0),
        });
        Ok(Architecture {
            layers: model.layers,
            hidden: model.hidden_size,
            vocabulary: model.vocab_size,
            attention,
            sparse,
            window: model.window.map(|window| (window.layers, window.tokens)),
            linear: model.linear_attention.map(|linear| LinearLayers {
                layers: linear.layers,
                key_heads: linear.key_heads,
                value_heads: linear.value_heads,
            }),
            intermediate: model.intermediate_size.unwrap_or(0),
            experts,
        })
    }
}

impl Types {
    /// Those of a checkpoint as it is.
    pub fn of(model: &ModelDescription, engine: Engine, sm: u32) -> Types {
        let format = |part: Part| {
            let weights = model.weights.iter().find(|weights| weights.part == part);
            weights.map_or(WeightFormat::of(model.dtype), |weights| weights.format)
        };
        let dense = |format: WeightFormat| match format {
            // TensorRT-LLM serves checkpoints of ModelOpt, which bring the scales of the activations.
            WeightFormat::Fp8 if engine == Engine::Trtllm => "fp8_static",
            WeightFormat::Fp8 => "fp8",
            WeightFormat::Fp8Block => "fp8_block",
            WeightFormat::Nvfp4 => "nvfp4",
            WeightFormat::Int4 => "int4_wo",
            WeightFormat::Int8 => "int8_wo",
            // Of MXFP4 checkpoints the experts are all that is.
            WeightFormat::Mxfp4 | WeightFormat::Bfloat16 | WeightFormat::Float16 | WeightFormat::Float32 => {
                "bfloat16"
            }
        };
        let experts = match format(Part::Experts) {
            // The engines pick kernels with activations of 8 bits where the accelerator has units for it.
            WeightFormat::Mxfp4 if sm >= 100 && engine != Engine::Sglang => "w4a8_mxfp4_mxfp8",
            WeightFormat::Mxfp4 if sm >= 100 => "w4a8_mxfp4_mxfp8_trtllm",
            WeightFormat::Mxfp4 => "w4a16_mxfp4",
            // Kernels of experts scale inside.
            WeightFormat::Fp8 => "fp8",
            other => dense(other),
        };
        let has = |part: Part| model.weights.iter().any(|weights| weights.part == part);
        let gemm = if has(Part::FeedForward) { Part::FeedForward } else { Part::Attention };
        Types {
            gemm: dense(format(gemm)).to_owned(),
            experts: experts.to_owned(),
            attention_gemm: dense(format(Part::Attention)).to_owned(),
            kv: if model.own_kv_dtype() == Dtype::Fp8 { "fp8" } else { "bfloat16" }.to_owned(),
        }
    }
}
