//! How the weights of a checkpoint are quantised: bytes of a parameter with its share of the scales, and
//! which modules are left as they are. From `quantization_config` of the model's file, or from the
//! `hf_quant_config.json` that NVIDIA's ModelOpt writes beside it.

use super::config_json::Keys;
use super::{Dtype, ModelError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How numbers of weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// 32 bits.
    Float32,
    /// 16 bits, half precision.
    Float16,
    /// 16 bits, with the exponent of 32.
    Bfloat16,
    /// 8 bits, with a scale for a matrix, a row or a column.
    Fp8,
    /// 8 bits, with a scale for each block of a matrix.
    Fp8Block,
    /// 8-bit integers.
    Int8,
    /// 4 bits, with a scale of 8 bits for 16 of them.
    Nvfp4,
    /// 4 bits, with a scale of 8 bits for 32 of them.
    Mxfp4,
    /// 4-bit integers, with a scale for each group.
    Int4,
}

impl WeightFormat {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::Float32 => "float32",
            WeightFormat::Float16 => "float16",
            WeightFormat::Bfloat16 => "bfloat16",
            WeightFormat::Fp8 => "fp8",
            WeightFormat::Fp8Block => "fp8_block",
            WeightFormat::Int8 => "int8",
            WeightFormat::Nvfp4 => "nvfp4",
            WeightFormat::Mxfp4 => "mxfp4",
            WeightFormat::Int4 => "int4",
        }
    }

    /// Bytes of one number, with its share of scales as they usually are: for blocks of 128 × 128, 16 or 32, and
    /// of integers of 4 bits for groups of 32.
    pub fn bytes_per_parameter(self) -> f64 {
        match self {
            WeightFormat::Float32 => 4.0,
            WeightFormat::Float16 | WeightFormat::Bfloat16 => 2.0,
            WeightFormat::Fp8 | WeightFormat::Int8 => 1.0,
            WeightFormat::Fp8Block => 1.0 + 4.0 / 16384.0,
            WeightFormat::Nvfp4 => 0.5 + 1.0 / 16.0,
            WeightFormat::Mxfp4 => 0.5 + 1.0 / 32.0,
            WeightFormat::Int4 => 0.5 + 2.0 / 32.0,
        }
    }

    /// That of numbers which are not quantised.
    pub fn of(dtype: Dtype) -> WeightFormat {
        match dtype {
            Dtype::Float32 => WeightFormat::Float32,
            Dtype::Float16 => WeightFormat::Float16,
            Dtype::Bfloat16 => WeightFormat::Bfloat16,
            Dtype::Fp8 => WeightFormat::Fp8,
        }
    }
}

const KNOWN: &str = "fp8, mxfp4, modelopt, compressed-tensors, awq or gptq";

/// One way to store the matrices of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantization {
    /// How it is stored.
    pub format: WeightFormat,
    /// Bytes of one parameter, scales included.
    pub bytes_per_parameter: f64,
    /// Type of the KV cache that goes with it.
    pub kv_cache: Option<Dtype>,
    /// Modules that are not quantised, as patterns in which `*` stands for anything.
    exceptions: Vec<String>,
}

impl Quantization {
    pub(super) fn read(keys: &Keys, beside: Option<&Value>) -> Result<Option<Quantization>, ModelError> {
        if let Some(section) = beside.and_then(|file| file.get("quantization")) {
            return model_optimizer(keys, section, section.get("exclude_modules")).map(Some);
        }
        let Some(section) = keys.anywhere("quantization_config") else { return Ok(None) };
        let method = section.get("quant_method").unwrap_or(&Value::Null);
        let exceptions = section.get("modules_to_not_convert").or_else(|| section.get("ignored_layers"));
        let scheme = |format: WeightFormat, bytes_per_parameter: f64| {
            let exceptions = list(keys, exceptions)?;
            Ok(Some(Quantization { format, bytes_per_parameter, kv_cache: None, exceptions }))
        };
        match method.as_str() {
            // One float32 scale for each block of a matrix.
            Some("fp8") => match section.get("weight_block_size").filter(|size| !size.is_null()) {
                None => scheme(WeightFormat::Fp8, 1.0),
                Some(size) => scheme(WeightFormat::Fp8Block, 1.0 + 4.0 / block(keys, size)?),
            },
            // 4 bits, and a scale of 8 bits for 32 of them; of the experts only.
            Some("mxfp4") => scheme(WeightFormat::Mxfp4, 0.5 + 1.0 / 32.0),
            Some("modelopt") => {
                let exceptions = section.get("exclude_modules").or_else(|| section.get("ignore"));
                model_optimizer(keys, section, exceptions).map(Some)
            }
            Some("compressed-tensors") => compressed_tensors(keys, section).map(Some),
            // A scale of 16 bits and a zero point for each group.
            Some("awq" | "gptq") => grouped(keys, section).map(|(format, bytes)| scheme(format, bytes))?,
            _ => Err(keys.wrong("quantization_config.quant_method", method, KNOWN)),
        }
    }

    /// Whether a module's matrix is quantised.
    pub(super) fn covers(&self, module: &str) -> bool {
        !self.exceptions.iter().any(|pattern| excepts(pattern, module))
    }
}

/// AWQ or GPTQ.
fn grouped(keys: &Keys, section: &Value) -> Result<(WeightFormat, f64), ModelError> {
    let number = |key: &str, allowed: &str, fits: &dyn Fn(u64) -> bool| {
        let value = section.get(key).unwrap_or(&Value::Null);
        let wrong = || keys.wrong(&format!("quantization_config.{key}"), value, allowed);
        value.as_u64().filter(|number| fits(*number)).ok_or_else(wrong)
    };
    let bits = number("bits", "4 or 8", &|bits| matches!(bits, 4 | 8))?;
    let group = number("group_size", "an integer from 1 to 1024", &|size| (1..=1024).contains(&size))? as f64;
    let bytes = bits as f64 / 8.0;
    Ok((integers(bits), bytes + (2.0 + bytes) / group))
}

fn integers(bits: u64) -> WeightFormat {
    if bits == 4 { WeightFormat::Int4 } else { WeightFormat::Int8 }
}

/// FP8 or NVFP4: 8 bits, or 4 bits and a scale of 8 bits for 16 of them.
fn model_optimizer(
    keys: &Keys,
    section: &Value,
    exceptions: Option<&Value>,
) -> Result<Quantization, ModelError> {
    let algorithm = section.get("quant_algo").unwrap_or(&Value::Null);
    let (format, bytes_per_parameter) = match algorithm.as_str() {
        Some("FP8") => (WeightFormat::Fp8, 1.0),
        Some("NVFP4") => (WeightFormat::Nvfp4, 0.5 + 1.0 / 16.0),
        _ => return Err(keys.wrong("quantization.quant_algo", algorithm, "FP8 or NVFP4")),
    };
    let scheme = section.get("kv_cache_quant_algo").or_else(|| section.get("kv_cache_scheme"));
    let kv_cache = match scheme.filter(|scheme| !scheme.is_null()) {
        None => None,
        Some(scheme) if is_eight_bits(scheme) => Some(Dtype::Fp8),
        Some(scheme) => return Err(keys.wrong("quantization.kv_cache_quant_algo", scheme, "FP8")),
    };
    Ok(Quantization { format, bytes_per_parameter, kv_cache, exceptions: list(keys, exceptions)? })
}

fn is_eight_bits(scheme: &Value) -> bool {
    scheme.as_str() == Some("FP8") || scheme.get("num_bits").and_then(Value::as_u64) == Some(8)
}

/// One group of weights of 4 or 8 bits, with a scale of 16 bits for each group of a row.
fn compressed_tensors(keys: &Keys, section: &Value) -> Result<Quantization, ModelError> {
    let key = "quantization_config.config_groups";
    let groups = section.get("config_groups").and_then(Value::as_object);
    let group = match groups.map(|groups| groups.values().collect::<Vec<_>>()).as_deref() {
        Some([group]) => *group,
        _ => return Err(keys.wrong(key, section.get("config_groups").unwrap_or(&Value::Null), "one group")),
    };
    let weights = group.get("weights").unwrap_or(&Value::Null);
    let bits = match weights.get("num_bits").and_then(Value::as_u64) {
        Some(bits @ (4 | 8)) => bits,
        _ => return Err(keys.wrong(&format!("{key}.weights"), weights, "num_bits 4 or 8")),
    };
    let floats = bits == 8 && weights.get("type").and_then(Value::as_str) == Some("float");
    let scales = weights.get("group_size").and_then(Value::as_u64).filter(|size| *size > 0);
    let scale_bytes = scales.map_or(0.0, |size| 2.0 / size as f64);
    let kv_cache = section.get("kv_cache_scheme").filter(|scheme| !scheme.is_null());
    Ok(Quantization {
        format: if floats { WeightFormat::Fp8 } else { integers(bits) },
        bytes_per_parameter: bits as f64 / 8.0 + scale_bytes,
        kv_cache: kv_cache.filter(|scheme| is_eight_bits(scheme)).map(|_| Dtype::Fp8),
        exceptions: list(keys, section.get("ignore"))?,
    })
}

fn block(keys: &Keys, size: &Value) -> Result<f64, ModelError> {
    let sides: Option<Vec<u64>> =
        size.as_array().and_then(|sides| sides.iter().map(|side| side.as_u64().filter(|n| *n > 0)).collect());
    match sides.as_deref() {
        Some([rows, columns]) => Ok(*rows as f64 * *columns as f64),
        _ => Err(keys.wrong("quantization_config.weight_block_size", size, "two integers above 0")),
    }
}

fn list(keys: &Keys, value: Option<&Value>) -> Result<Vec<String>, ModelError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let patterns = keys.texts("quantization_config", value)?;
    Ok(patterns.iter().map(|pattern| plain(pattern)).collect())
}

/// A pattern over our names of modules: a language model inside another one has a name before them.
fn plain(pattern: &str) -> String {
    let pattern = match pattern.strip_prefix("re:") {
        Some(regex) => {
            regex.trim_end_matches('$').trim_start_matches('^').replace(".*", "*").replace('\\', "")
        }
        None => pattern.to_owned(),
    };
    let inner = pattern.strip_prefix("language_model.").unwrap_or(&pattern);
    inner.replacen("model.language_model.", "model.", 1)
}

/// Whether a pattern means a module: by its whole name, by that of a module around it, or, if it is a
/// single word, by any part of it.
fn excepts(pattern: &str, module: &str) -> bool {
    if !pattern.contains(['.', '*']) {
        return module.split('.').any(|part| part == pattern);
    }
    let ends = module.match_indices('.').map(|(at, _)| at).chain([module.len()]);
    ends.into_iter().any(|end| glob(pattern.as_bytes(), &module.as_bytes()[..end]))
}

/// Whether a text fits a pattern in which `*` stands for any letters.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
}
