//! Which layer is which: the lists of layer types in a model's file, and what stands for them where there is
//! none. A type of layer that is not known is refused.

use super::config_json::{Keys, Kind};
use super::{Dtype, Indexer, LinearAttention, ModelError};
use serde_json::Value;

/// One layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Full,
    Windowed,
    Linear,
}

/// The layers, from the first to the last.
pub(super) struct LayerTypes {
    layers: Vec<Layer>,
    /// Whether the file lists them.
    listed: bool,
    /// Which have an indexer of their own, where any have.
    indexed: Vec<bool>,
}

impl LayerTypes {
    pub(super) fn read(keys: &Keys, kind: Kind, layers: u32) -> Result<LayerTypes, ModelError> {
        let hybrid = matches!(kind, Kind::Qwen35 | Kind::Qwen35Moe);
        // Llama 4 has a rule of its own, which its file must not contradict.
        let value = keys.get("layer_types").filter(|_| kind != Kind::Llama4);
        let listed = value.is_some();
        let layers = match value {
            Some(value) => each(keys, "layer_types", value, layers, |word| match word {
                "full_attention" => Some(Layer::Full),
                "deepseek_sparse_attention" if kind == Kind::DeepseekSparse => Some(Layer::Full),
                "sliding_attention" if !hybrid => Some(Layer::Windowed),
                "linear_attention" if hybrid => Some(Layer::Linear),
                _ => None,
            })?,
            None if hybrid => {
                let every = keys.optional("full_attention_interval")?.unwrap_or(4);
                let full = |layer: u32| (layer + 1).is_multiple_of(every);
                (0..layers).map(|layer| if full(layer) { Layer::Full } else { Layer::Linear }).collect()
            }
            None => vec![Layer::Full; layers as usize],
        };
        let indexed = match keys.get("indexer_types").filter(|_| kind == Kind::DeepseekSparse) {
            Some(value) => each(keys, "indexer_types", value, layers.len() as u32, |word| match word {
                "full" => Some(true),
                "shared" => Some(false),
                _ => None,
            })?,
            None => vec![kind == Kind::DeepseekSparse; layers.len()],
        };
        Ok(LayerTypes { layers, listed, indexed })
    }

    pub(super) fn is_linear(&self, layer: u32) -> bool {
        self.layers.get(layer as usize) == Some(&Layer::Linear)
    }

    pub(super) fn is_indexed(&self, layer: u32) -> bool {
        self.indexed.get(layer as usize) == Some(&true)
    }

    /// How many have a window, if the file lists them.
    pub(super) fn windowed(&self) -> Option<u32> {
        self.listed.then(|| self.count(Layer::Windowed))
    }

    fn count(&self, which: Layer) -> u32 {
        self.layers.iter().filter(|layer| **layer == which).count() as u32
    }

    /// What the linear layers are.
    pub(super) fn linear(&self, keys: &Keys) -> Result<Option<LinearAttention>, ModelError> {
        let layers = self.count(Layer::Linear);
        if layers == 0 {
            return Ok(None);
        }
        let state_dtype = match keys.get("mamba_ssm_dtype") {
            None => Dtype::Float32,
            Some(value) => match value.as_str() {
                Some("float32") => Dtype::Float32,
                Some("bfloat16") => Dtype::Bfloat16,
                Some("float16") => Dtype::Float16,
                _ => return Err(keys.wrong("mamba_ssm_dtype", value, "float32, bfloat16 or float16")),
            },
        };
        Ok(Some(LinearAttention {
            layers,
            key_heads: keys.number("linear_num_key_heads")?,
            key_head_dim: keys.number("linear_key_head_dim")?,
            value_heads: keys.number("linear_num_value_heads")?,
            value_head_dim: keys.number("linear_value_head_dim")?,
            convolution: keys.number("linear_conv_kernel_dim")?,
            state_dtype,
        }))
    }

    /// What the indexers are.
    pub(super) fn indexer(&self, keys: &Keys, kind: Kind) -> Result<Option<Indexer>, ModelError> {
        if kind != Kind::DeepseekSparse {
            return Ok(None);
        }
        Ok(Some(Indexer {
            layers: self.indexed.iter().filter(|indexed| **indexed).count() as u32,
            heads: keys.number("index_n_heads")?,
            head_dim: keys.number("index_head_dim")?,
            top_k: keys.number("index_topk")?,
        }))
    }
}

/// A list with one word for each layer.
fn each<T>(
    keys: &Keys,
    key: &str,
    value: &Value,
    layers: u32,
    meaning: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, ModelError> {
    let words = keys.texts(key, value)?;
    if words.len() != layers as usize {
        return Err(keys.error(format!("{key}: got {} words; there are {layers} layers", words.len())));
    }
    let known = |word: &String| {
        let allowed = "layers of a known type; this one cannot be described yet";
        meaning(word).ok_or_else(|| keys.wrong(key, &Value::from(word.as_str()), allowed))
    };
    words.iter().map(known).collect()
}
