//! From a Hugging Face `config.json` to a description. A model of a type whose layers are not known to the
//! last weight is refused, and so is every setting that would make a layer another one.

use super::attention::{Layers, attention};
use super::feed_forward::feed_forward;
use super::quantization::Quantization;
use super::weights::Count;
use super::{Dtype, ModelDescription, ModelError};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest file that is read; they have a few kilobytes, and with long lists of modules some hundred.
const MOST_BYTES: u64 = 4 << 20;
/// Where the language model of a model of several kinds stands.
const NESTED: [&str; 3] = ["text_config", "language_config", "llm_config"];
const ENCODERS: [&str; 3] = ["vision_config", "audio_config", "vision_encoder"];

/// The types of layers that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Mixtral,
    Qwen3Moe,
    MinimaxM2,
    GptOss,
    Llama4,
    DeepseekV3,
    /// The same with an indexer.
    DeepseekSparse,
    Qwen35,
    Qwen35Moe,
}

const KINDS: &[(&str, Kind)] = &[
    ("llama", Kind::Llama),
    ("mistral", Kind::Mistral),
    ("qwen2", Kind::Qwen2),
    ("mimo", Kind::Qwen2),
    ("qwen3", Kind::Qwen3),
    ("qwen3_vl_text", Kind::Qwen3),
    ("mixtral", Kind::Mixtral),
    ("qwen3_moe", Kind::Qwen3Moe),
    ("qwen3_vl_moe_text", Kind::Qwen3Moe),
    ("minimax_m2", Kind::MinimaxM2),
    ("gpt_oss", Kind::GptOss),
    ("llama4_text", Kind::Llama4),
    ("deepseek_v3", Kind::DeepseekV3),
    ("kimi_k2", Kind::DeepseekV3),
    ("deepseek_v32", Kind::DeepseekSparse),
    ("glm_moe_dsa", Kind::DeepseekSparse),
    ("qwen3_5_text", Kind::Qwen35),
    ("qwen3_5_moe_text", Kind::Qwen35Moe),
];

/// Settings that make a layer keep or compute something else, whatever the type says.
const FOREIGN: &[(&str, &str)] = &[
    ("compress_ratios", "compressed attention"),
    ("linear_attn_config", "linear attention"),
    ("hybrid_override_pattern", "state-space layers"),
    ("layers_block_type", "state-space layers"),
    ("block_configs", "layers of different shapes"),
    ("hybrid_layer_pattern", "layers of different shapes"),
    ("global_head_dim", "layers of different shapes"),
];

/// The keys of one file.
pub(super) struct Keys<'a> {
    file: &'a str,
    outer: &'a Map<String, Value>,
    inner: &'a Map<String, Value>,
    /// Where the inner ones stand, with a dot, or nothing.
    prefix: String,
}

impl<'a> Keys<'a> {
    pub(super) fn error(&self, message: impl Into<String>) -> ModelError {
        ModelError { file: self.file.to_owned(), message: message.into() }
    }

    /// A key of the language model; null is the same as not given.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.inner.get(key).filter(|value| !value.is_null())
    }

    /// One that may stand at the top as well.
    pub(super) fn anywhere(&self, key: &str) -> Option<&'a Value> {
        self.get(key).or_else(|| self.outer.get(key).filter(|value| !value.is_null()))
    }

    pub(super) fn wrong(&self, key: &str, value: &Value, allowed: &str) -> ModelError {
        let mut got = value.to_string();
        if got.chars().count() > 100 {
            got = got.chars().take(100).chain(['…']).collect();
        }
        self.error(format!("{}{key}: got {got}; allowed is {allowed}", self.prefix))
    }

    /// A number from `least` to 2^31 − 1.
    fn bounded(&self, key: &str, value: &Value, least: u64) -> Result<u32, ModelError> {
        let number = value.as_u64().filter(|number| (least..=0x7fff_ffff).contains(number));
        number
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| self.wrong(key, value, &format!("an integer from {least} to 2^31 - 1")))
    }

    pub(super) fn number(&self, key: &str) -> Result<u32, ModelError> {
        self.optional(key)?.ok_or_else(|| {
            self.error(format!("{}{key}: missing; needed is an integer of at least 1", self.prefix))
        })
    }

    pub(super) fn optional(&self, key: &str) -> Result<Option<u32>, ModelError> {
        self.get(key).map(|value| self.bounded(key, value, 1)).transpose()
    }

    /// A number that may be 0, or the default.
    pub(super) fn count(&self, key: &str, default: u32) -> Result<u32, ModelError> {
        self.get(key).map_or(Ok(default), |value| self.bounded(key, value, 0))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        self.get(key)
            .map_or(Ok(false), |value| value.as_bool().ok_or_else(|| self.wrong(key, value, "true or false")))
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &str, value: &Value) -> Result<Vec<String>, ModelError> {
        let items = value.as_array().ok_or_else(|| self.wrong(key, value, "a list of texts"))?;
        let text = |item: &Value| {
            item.as_str().map(str::to_owned).ok_or_else(|| self.wrong(key, item, "a list of texts"))
        };
        items.iter().map(text).collect()
    }
}

pub(super) fn read(path: &Path) -> Result<ModelDescription, ModelError> {
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let file = path.display().to_string();
    let config = json(&path)?;
    let beside = path.with_file_name("hf_quant_config.json");
    let quantization = if beside.is_file() { Some(json(&beside)?) } else { None };
    describe(&file, &config, quantization.as_ref())
}

fn json(path: &Path) -> Result<Value, ModelError> {
    let error = |message: String| ModelError { file: path.display().to_string(), message };
    let mut text = Vec::new();
    let file = File::open(path).map_err(|cause| error(format!("cannot be read: {cause}")))?;
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|cause| error(format!("cannot be read: {cause}")))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(error(format!("longer than {MOST_BYTES} bytes, the most that a model's file may have")));
    }
    serde_json::from_slice(&text).map_err(|cause| error(format!("not JSON: {cause}")))
}

/// The description of the model of a file. `quantization` is the content of its `hf_quant_config.json`.
pub(super) fn describe(
    file: &str,
    config: &Value,
    quantization: Option<&Value>,
) -> Result<ModelDescription, ModelError> {
    let not_a_mapping = || ModelError { file: file.to_owned(), message: "is not a JSON object".into() };
    let outer = config.as_object().ok_or_else(not_a_mapping)?;
    let nested = NESTED.iter().find_map(|key| Some((key, outer.get(*key)?.as_object()?)));
    let (prefix, inner) = match nested {
        Some((key, inner)) => (format!("{key}."), inner),
        None => (String::new(), outer),
    };
    let keys = Keys { file, outer, inner, prefix };
    let (model_type, kind) = kind(&keys)?;
    let sparse = ("index_topk", "sparse attention with an indexer");
    for (key, what) in FOREIGN.iter().chain((kind != Kind::DeepseekSparse).then_some(&sparse)) {
        if let Some(value) = keys.get(key) {
            return Err(keys.wrong(key, value, &format!("nothing: {what} cannot be described yet")));
        }
    }
    let layers = keys.number("num_hidden_layers")?;
    if layers > 10_000 {
        return Err(keys.error(format!("num_hidden_layers: got {layers}; allowed is at most 10000")));
    }
    let hidden_size = keys.number("hidden_size")?;
    let vocab_size = keys.number("vocab_size")?;
    let dtype = dtype(&keys)?;
    let quantization = Quantization::read(&keys, quantization)?;
    let mut count = Count::new(dtype, quantization.as_ref());
    let Layers { attention, window, indexer, linear_attention } =
        attention(&keys, kind, (layers, hidden_size), &mut count)?;
    let (intermediate_size, experts) = feed_forward(&keys, kind, (layers, hidden_size), &mut count)?;
    let tied = match keys.anywhere("tie_word_embeddings") {
        None => false,
        Some(value) => {
            value.as_bool().ok_or_else(|| keys.wrong("tie_word_embeddings", value, "true or false"))?
        }
    };
    let weights = count.finish(u64::from(vocab_size) * u64::from(hidden_size), tied, hidden_size);
    let weights = weights.ok_or_else(|| keys.error("has more than 2^60 parameters"))?;
    Ok(ModelDescription {
        name: file.to_owned(),
        source: file.to_owned(),
        model_type,
        layers,
        hidden_size,
        vocab_size,
        max_position_embeddings: keys.optional("max_position_embeddings")?,
        attention,
        window,
        indexer,
        linear_attention,
        intermediate_size,
        experts,
        dtype,
        kv_cache_dtype: quantization.as_ref().and_then(|scheme| scheme.kv_cache),
        quantization: quantization.map(|scheme| scheme.format),
        has_encoder: ENCODERS.iter().any(|key| outer.get(*key).is_some_and(Value::is_object)),
        weights,
    })
}

fn kind(keys: &Keys) -> Result<(String, Kind), ModelError> {
    let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
    let Some(value) = keys.get("model_type") else {
        return Err(keys.error(format!(
            "{}model_type: missing; known are {}",
            keys.prefix,
            known.join(", ")
        )));
    };
    match KINDS.iter().find(|(name, _)| value.as_str() == Some(name)) {
        Some((name, kind)) => Ok(((*name).to_owned(), *kind)),
        None => Err(keys.wrong("model_type", value, &format!("one of {}", known.join(", ")))),
    }
}

/// What is not quantised. A file that does not say has the type of today's checkpoints.
fn dtype(keys: &Keys) -> Result<Dtype, ModelError> {
    let given = ["torch_dtype", "dtype"].iter().find_map(|key| Some((*key, keys.anywhere(key)?)));
    match given {
        None => Ok(Dtype::Bfloat16),
        Some((key, value)) => match value.as_str() {
            Some("bfloat16") => Ok(Dtype::Bfloat16),
            Some("float16") => Ok(Dtype::Float16),
            Some("float32") => Ok(Dtype::Float32),
            _ => Err(keys.wrong(key, value, "bfloat16, float16 or float32")),
        },
    }
}
