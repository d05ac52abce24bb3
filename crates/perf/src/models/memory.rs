//! What a model takes of the memory of one accelerator: its share of the weights, and what it keeps of a
//! token. How a model is spread is said by a [`Sharding`]; which spreads an engine can serve is not known
//! here.

use super::{Attention, Dtype, ModelDescription, Part, WeightFormat, Weights};

/// How a model is spread over the accelerators of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Tensor parallelism: accelerators that share each layer.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Accelerators over which the experts of a layer are spread, by their tensor and expert parallelism
    /// together.
    pub experts: u32,
}

impl Sharding {
    /// The whole model on one accelerator.
    pub const ONE: Sharding = Sharding { tensor: 1, pipeline: 1, experts: 1 };
}

impl ModelDescription {
    /// The model with its matrices, those of experts apart, and its experts stored in other formats, where one
    /// is given. What is never quantised stays as it is.
    #[must_use]
    pub fn stored_as(
        mut self,
        matrices: Option<WeightFormat>,
        experts: Option<WeightFormat>,
    ) -> ModelDescription {
        for part in &mut self.weights {
            let format = match part.part {
                Part::Experts => experts,
                Part::Attention
                | Part::KvProjection
                | Part::LatentProjection
                | Part::LinearAttention
                | Part::FeedForward => matrices,
                Part::Embedding | Part::OutputHead | Part::Indexer | Part::Router | Part::Norms => None,
            };
            if let Some(format) = format.filter(|format| *format != part.format) {
                part.format = format;
                part.bytes = (part.parameters as f64 * format.bytes_per_parameter()).ceil() as u64;
            }
        }
        self
    }

    /// Layers that keep keys and values of tokens: all but linear ones.
    pub fn kv_layers(&self) -> u32 {
        self.layers.saturating_sub(self.linear_attention.map_or(0, |linear| linear.layers))
    }

    /// Bytes that one layer keeps of a token on an accelerator, with tensor parallelism `tensor`: a key and
    /// a value for each of its KV heads, at least one of them; of latent attention the whole latent, on every
    /// accelerator. Sparse latent attention in 8 bits keeps the turned part in 16, and a scale of 32 bits
    /// for 128 numbers (vLLM 0.33.0 `fp8_ds_mla`: 656 bytes for 512 + 64).
    pub fn kv_bytes_per_token_and_layer(&self, tensor: u32, dtype: Dtype) -> u64 {
        match self.attention {
            Attention::Gqa { kv_heads, head_dim, .. } => {
                2 * u64::from(kv_heads.div_ceil(tensor.max(1))) * u64::from(head_dim) * dtype.bytes()
            }
            Attention::Mla { kv_lora_rank, qk_rope_head_dim, .. } => {
                let (latent, turned) = (u64::from(kv_lora_rank), u64::from(qk_rope_head_dim));
                match (self.indexer, dtype) {
                    (Some(_), Dtype::Fp8) => latent + 4 * latent.div_ceil(128) + 2 * turned,
                    _ => (latent + turned) * dtype.bytes(),
                }
            }
        }
    }

    /// Bytes that all layers keep of a token on one accelerator: layers × (2 × KV heads × their numbers, or
    /// the latent) × bytes of a number. Layers with a window count like the others, linear ones not at all;
    /// with pipeline stages it is the stage with most layers.
    pub fn kv_bytes_per_token(&self, sharding: Sharding, dtype: Dtype) -> u64 {
        let stages = sharding.pipeline.max(1);
        let layers = u64::from(self.kv_layers().div_ceil(stages));
        let indexed = self
            .indexer
            .map_or(0, |indexer| u64::from(indexer.layers.div_ceil(stages)) * indexer.bytes_per_token());
        layers * self.kv_bytes_per_token_and_layer(sharding.tensor, dtype) + indexed
    }

    /// Bytes that the linear layers keep of a sequence on one accelerator.
    pub fn state_bytes_per_sequence(&self, sharding: Sharding) -> u64 {
        self.linear_attention.map_or(0, |linear| {
            linear.state_bytes(sharding.tensor, self.dtype).div_ceil(sharding.pipeline.max(1).into())
        })
    }

    /// Bytes of the weights on one accelerator; with pipeline stages, of the one that has most: its share of
    /// the layers, with the table of embeddings or the output head.
    pub fn weight_bytes_per_rank(&self, sharding: Sharding) -> u64 {
        let stages = u64::from(sharding.pipeline.max(1));
        let mut layers = 0;
        let mut ends = [0, 0];
        for part in &self.weights {
            let bytes = self.share(part, sharding);
            match part.part {
                Part::Embedding => ends[0] += bytes,
                Part::OutputHead => ends[1] += bytes,
                _ => layers += bytes,
            }
        }
        if stages == 1 {
            return layers + ends[0] + ends[1];
        }
        // A table that serves at both ends stands at both.
        let most = ends[0].max(ends[1]);
        let of = u64::from(self.layers.max(1));
        let biggest = of.div_ceil(stages);
        u64::try_from(u128::from(layers) * u128::from(biggest) / u128::from(of)).unwrap_or(u64::MAX) + most
    }

    /// Bytes of a part on one accelerator, all stages together.
    fn share(&self, part: &Weights, sharding: Sharding) -> u64 {
        let tensor = u64::from(sharding.tensor.max(1));
        match part.part {
            Part::LatentProjection | Part::Indexer | Part::Router | Part::Norms => part.bytes,
            Part::Experts => part.bytes.div_ceil(u64::from(sharding.experts.max(1))),
            Part::KvProjection => match self.attention {
                Attention::Gqa { kv_heads, .. } => {
                    part.bytes.div_ceil(tensor.min(u64::from(kv_heads).max(1)))
                }
                Attention::Mla { .. } => part.bytes,
            },
            Part::Embedding
            | Part::OutputHead
            | Part::Attention
            | Part::LinearAttention
            | Part::FeedForward => part.bytes.div_ceil(tensor),
        }
    }
}
