//! `windtunnel models`: the models that are known by name, and the description of one, by name or file.

use crate::args::Models;
use crate::exit::Failure;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use windtunnel_perf::models::{Attention, Indexer, ModelDescription, Sharding, names};

const GIB: f64 = (1u64 << 30) as f64;

/// Runs the command.
pub fn run(arguments: &Models) -> Result<(), Failure> {
    let text = match &arguments.model {
        Some(model) => one(&find(model)?, arguments.json)?,
        None => all(arguments.json)?,
    };
    write(&text)
}

/// The model of a name, or of a `config.json` at a path.
pub fn find(model: &str) -> Result<ModelDescription, Failure> {
    if let Some(description) = ModelDescription::named(model) {
        return Ok(description);
    }
    let path = Path::new(model);
    if path.exists() {
        return ModelDescription::read(path).map_err(Failure::input);
    }
    Err(Failure::Input(format!(
        "model {model:?} is neither built in (`windtunnel models` lists those that are) nor a config.json"
    )))
}

/// Prints to standard output.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

/// A value as JSON, for people to read.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(value).map_err(Failure::run)? + "\n")
}

fn all(as_json: bool) -> Result<String, Failure> {
    let models: Vec<ModelDescription> =
        names().iter().filter_map(|name| ModelDescription::named(name)).collect();
    if as_json {
        return json(&models);
    }
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|model| {
            vec![
                model.name.clone(),
                billions(model.parameters()),
                model.layers.to_string(),
                kind(&model.attention).to_owned(),
                model.experts.map_or("-".into(), |experts| experts.count.to_string()),
                format!("{:.1}", model.weight_bytes() as f64 / GIB),
                model.kv_bytes_per_token(Sharding::ONE, model.own_kv_dtype()).to_string(),
            ]
        })
        .collect();
    let header = ["Model", "parameters", "layers", "attention", "experts", "weights (GiB)", "KV bytes/token"];
    Ok(windtunnel_report::columns(&header, &rows) + "\n")
}

fn one(model: &ModelDescription, as_json: bool) -> Result<String, Failure> {
    if as_json {
        return json(model);
    }
    let mut lines = vec![
        ("Model", model.name.clone()),
        ("Source", model.source.clone()),
        ("Type", model.model_type.clone()),
        ("Parameters", format!("{} ({})", billions(model.parameters()), model.parameters())),
        ("Layers", model.layers.to_string()),
        ("Hidden size", model.hidden_size.to_string()),
        ("Vocabulary", format!("{} tokens", model.vocab_size)),
        ("Attention", attention(&model.attention)),
    ];
    if let Some(tokens) = model.max_position_embeddings {
        lines.push(("Context", format!("{tokens} tokens")));
    }
    if let Some(window) = model.window {
        let text = format!("{} layers keep the last {} tokens only", window.layers, window.tokens);
        lines.push(("Window", text));
    }
    if let Some(Indexer { layers, heads, head_dim, top_k }) = model.indexer {
        let text = format!("{top_k} tokens, picked in {layers} layers by {heads} heads of {head_dim}");
        lines.push(("Sparse attention", text));
    }
    if let Some(linear) = model.linear_attention {
        lines.push((
            "Linear attention",
            format!(
                "{} layers keep a state of {} bytes in all for each sequence",
                linear.layers,
                linear.state_bytes(1, model.dtype)
            ),
        ));
    }
    if let Some(width) = model.intermediate_size {
        lines.push(("Feed-forward", format!("{width} wide")));
    }
    if let Some(experts) = model.experts {
        let shared = experts.shared_intermediate_size.map(|width| format!(", shared {width} wide"));
        lines.push((
            "Experts",
            format!(
                "{} in each of {} layers, {} per token, {} wide{}",
                experts.count,
                experts.layers,
                experts.per_token,
                experts.intermediate_size,
                shared.unwrap_or_default()
            ),
        ));
    }
    let quantized = model.quantization.map(|format| format!(", quantised to {}", format.name()));
    lines.push((
        "Weights",
        format!(
            "{:.3} GiB, {}{}",
            model.weight_bytes() as f64 / GIB,
            model.dtype.name(),
            quantized.unwrap_or_default()
        ),
    ));
    let dtype = model.own_kv_dtype();
    lines.push((
        "KV cache",
        format!("{} bytes a token, {}", model.kv_bytes_per_token(Sharding::ONE, dtype), dtype.name()),
    ));
    if model.has_encoder {
        lines.push(("Note", "its encoder is not counted".into()));
    }
    Ok(facts(&lines))
}

/// Lines of a label and a text.
pub fn facts(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(label, text)| format!("{label:<22}{text}\n")).collect()
}

fn kind(attention: &Attention) -> &'static str {
    match attention {
        Attention::Gqa { heads, kv_heads, .. } if heads == kv_heads => "MHA",
        Attention::Gqa { .. } => "GQA",
        Attention::Mla { .. } => "MLA",
    }
}

fn attention(attention: &Attention) -> String {
    match attention {
        Attention::Gqa { heads, kv_heads, head_dim, output_gate } => {
            let gate = if *output_gate { ", a gate on the output" } else { "" };
            format!("{}, {heads} heads of {head_dim}, {kv_heads} KV heads{gate}", kind(attention))
        }
        Attention::Mla { heads, kv_lora_rank, qk_rope_head_dim, .. } => {
            format!("MLA, {heads} heads, a latent of {kv_lora_rank} + {qk_rope_head_dim}")
        }
    }
}

fn billions(parameters: u64) -> String {
    format!("{:.2} B", parameters as f64 / 1e9)
}
