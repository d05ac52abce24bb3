//! The attention of a model: heads, latent, windows, and the weights of its projections. Which projections
//! a type has, and which of them have biases, follows its model in the `transformers` library.

use super::config_json::{Keys, Kind};
use super::layer_types::LayerTypes;
use super::weights::Count;
use super::{Attention, Indexer, LinearAttention, ModelError, Part, Window};
use serde_json::Value;

/// What the layers keep, and how they look at it.
pub(super) struct Layers {
    /// The attention of those that are not linear.
    pub attention: Attention,
    /// Those with a window.
    pub window: Option<Window>,
    /// Those with an indexer.
    pub indexer: Option<Indexer>,
    /// The linear ones.
    pub linear_attention: Option<LinearAttention>,
}

/// Reads them and counts their weights. `(layers, hidden)`: how many, and their width.
pub(super) fn attention(
    keys: &Keys,
    kind: Kind,
    (layers, hidden): (u32, u32),
    count: &mut Count,
) -> Result<Layers, ModelError> {
    let latent_kind = matches!(kind, Kind::DeepseekV3 | Kind::DeepseekSparse);
    let attention = if latent_kind { latent(keys)? } else { grouped(keys, kind, hidden)? };
    let bias = keys.flag("attention_bias")?;
    let types = LayerTypes::read(keys, kind, layers)?;
    let linear = types.linear(keys)?;
    let indexer = types.indexer(keys, kind)?;
    for layer in 0..layers {
        let module = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        match (linear, attention) {
            (Some(linear), _) if types.is_linear(layer) => {
                delta_rule(linear, &format!("model.layers.{layer}.linear_attn"), hidden, count);
            }
            (_, Attention::Gqa { heads, kv_heads, head_dim, output_gate }) => {
                let h = u128::from(hidden);
                let q = u128::from(heads) * u128::from(head_dim);
                let kv = u128::from(kv_heads) * u128::from(head_dim);
                let gate = if output_gate { q } else { 0 };
                count.matrix(Part::Attention, &module("q_proj"), h * (q + gate));
                count.matrix(Part::KvProjection, &module("k_proj"), h * kv);
                count.matrix(Part::KvProjection, &module("v_proj"), h * kv);
                count.matrix(Part::Attention, &module("o_proj"), q * h);
                count.plain(Part::Norms, small(kind, bias, (h, q, kv), (heads, head_dim)));
            }
            (_, Attention::Mla { .. }) => {
                compressed(attention, &module, hidden, count);
                if let Some(indexer) = indexer.filter(|_| types.is_indexed(layer)) {
                    indexing(indexer, attention, &module, hidden, count);
                }
            }
        }
        // The norms before attention and feed-forward.
        count.plain(Part::Norms, 2 * u128::from(hidden));
    }
    let window = window(keys, kind, &types, layers)?;
    Ok(Layers { attention, window, indexer, linear_attention: linear })
}

/// The weights of latent attention.
fn compressed(attention: Attention, module: &impl Fn(&str) -> String, hidden: u32, count: &mut Count) {
    let Attention::Mla { heads, q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim } =
        attention
    else {
        return;
    };
    let [h, n, latent, nope, rope, v] =
        [hidden, heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim].map(u128::from);
    match q_lora_rank.map(u128::from) {
        Some(rank) => {
            count.matrix(Part::LatentProjection, &module("q_a_proj"), h * rank);
            count.matrix(Part::Attention, &module("q_b_proj"), rank * n * (nope + rope));
            count.plain(Part::Norms, rank);
        }
        None => count.matrix(Part::Attention, &module("q_proj"), h * n * (nope + rope)),
    }
    count.matrix(Part::LatentProjection, &module("kv_a_proj_with_mqa"), h * (latent + rope));
    count.matrix(Part::Attention, &module("kv_b_proj"), latent * n * (nope + v));
    count.matrix(Part::Attention, &module("o_proj"), n * v * h);
    count.plain(Part::Norms, latent);
}

/// The weights of an indexer: its queries come from the compressed ones, its key from the hidden state. What
/// weighs its heads is never quantised.
fn indexing(
    indexer: Indexer,
    attention: Attention,
    module: &impl Fn(&str) -> String,
    hidden: u32,
    count: &mut Count,
) {
    let rank = match attention {
        Attention::Mla { q_lora_rank: Some(rank), .. } => rank,
        _ => hidden,
    };
    let [h, rank, n, d] = [hidden, rank, indexer.heads, indexer.head_dim].map(u128::from);
    count.matrix(Part::Indexer, &module("indexer.wq_b"), rank * n * d);
    count.matrix(Part::Indexer, &module("indexer.wk"), h * d);
    count.plain(Part::Indexer, h * n + 2 * d);
}

/// The weights of a layer with a gated delta rule.
fn delta_rule(linear: LinearAttention, module: &str, hidden: u32, count: &mut Count) {
    let [h, keys, key, values, value, taps] = [
        hidden,
        linear.key_heads,
        linear.key_head_dim,
        linear.value_heads,
        linear.value_head_dim,
        linear.convolution,
    ]
    .map(u128::from);
    let (k, v) = (keys * key, values * value);
    count.matrix(Part::LinearAttention, &format!("{module}.in_proj_qkv"), h * (2 * k + v));
    count.matrix(Part::LinearAttention, &format!("{module}.in_proj_z"), h * v);
    count.matrix(Part::LinearAttention, &format!("{module}.in_proj_b"), h * values);
    count.matrix(Part::LinearAttention, &format!("{module}.in_proj_a"), h * values);
    count.matrix(Part::LinearAttention, &format!("{module}.out_proj"), v * h);
    // The convolution, a step and a decay for each head of values, and their norm.
    count.plain(Part::LinearAttention, (2 * k + v) * taps + 2 * values + value);
}

/// Biases, norms of queries and keys, and sinks of one layer. `(h, q, kv)`: widths.
fn small(kind: Kind, bias: bool, (h, q, kv): (u128, u128, u128), (heads, head_dim): (u32, u32)) -> u128 {
    let biases = q + 2 * kv;
    match kind {
        Kind::Qwen2 => biases,
        Kind::Qwen3 | Kind::Qwen3Moe | Kind::Qwen35 | Kind::Qwen35Moe => {
            2 * u128::from(head_dim) + if bias { biases + h } else { 0 }
        }
        Kind::MinimaxM2 => q + kv,
        Kind::GptOss => biases + h + u128::from(heads),
        _ if bias => biases + h,
        _ => 0,
    }
}

fn grouped(keys: &Keys, kind: Kind, hidden: u32) -> Result<Attention, ModelError> {
    let heads = keys.number("num_attention_heads")?;
    let kv_heads = match (keys.optional("num_key_value_heads")?, kind) {
        (Some(kv_heads), _) => kv_heads,
        (None, Kind::Llama) => heads,
        (None, _) => keys.number("num_key_value_heads")?,
    };
    if !heads.is_multiple_of(kv_heads) {
        let message =
            format!("num_key_value_heads: got {kv_heads}; allowed is a divisor of the {heads} heads");
        return Err(keys.error(message));
    }
    // Of some types the library's own default is not the quotient: there it has to be given.
    let explicit = matches!(
        kind,
        Kind::Qwen3 | Kind::GptOss | Kind::Llama4 | Kind::MinimaxM2 | Kind::Qwen35 | Kind::Qwen35Moe
    );
    let head_dim = match keys.optional("head_dim")? {
        Some(head_dim) => head_dim,
        None if explicit => keys.number("head_dim")?,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let message =
                format!("head_dim: missing, and {heads} heads do not divide hidden_size ({hidden})");
            return Err(keys.error(message));
        }
    };
    let output_gate = match kind {
        Kind::Qwen35 | Kind::Qwen35Moe => gate(keys)?,
        _ => false,
    };
    Ok(Attention::Gqa { heads, kv_heads, head_dim, output_gate })
}

fn latent(keys: &Keys) -> Result<Attention, ModelError> {
    Ok(Attention::Mla {
        heads: keys.number("num_attention_heads")?,
        q_lora_rank: keys.optional("q_lora_rank")?,
        kv_lora_rank: keys.number("kv_lora_rank")?,
        qk_nope_head_dim: keys.number("qk_nope_head_dim")?,
        qk_rope_head_dim: keys.number("qk_rope_head_dim")?,
        v_head_dim: keys.number("v_head_dim")?,
    })
}

/// Whether a gate is on the output: in Qwen3.5 it is, unless the file says otherwise.
fn gate(keys: &Keys) -> Result<bool, ModelError> {
    match keys.get("attn_output_gate") {
        None => Ok(true),
        Some(_) => keys.flag("attn_output_gate"),
    }
}

/// The layers with a window.
fn window(keys: &Keys, kind: Kind, types: &LayerTypes, layers: u32) -> Result<Option<Window>, ModelError> {
    if kind == Kind::Llama4 {
        return chunks(keys, layers);
    }
    let tokens = keys.optional("sliding_window")?;
    let listed = types.windowed();
    let windowed = match (kind, tokens) {
        (_, None) => listed.unwrap_or(0),
        (Kind::Qwen2 | Kind::Qwen3 | Kind::Qwen3Moe, Some(_)) => {
            match (keys.flag("use_sliding_window")?, listed) {
                (false, _) => 0,
                (true, Some(listed)) => listed,
                (true, None) => layers.saturating_sub(keys.number("max_window_layers")?),
            }
        }
        (Kind::Mistral | Kind::Mixtral, Some(_)) => listed.unwrap_or(layers),
        // Every other layer, beginning with the first.
        (Kind::GptOss, Some(_)) => listed.unwrap_or(layers.div_ceil(2)),
        (_, Some(tokens)) => {
            let message = "nothing: layers of this model_type have no window";
            return Err(keys.wrong("sliding_window", &Value::from(tokens), message));
        }
    };
    match (windowed, tokens) {
        (0, _) => Ok(None),
        (layers, Some(tokens)) => Ok(Some(Window { layers, tokens })),
        (_, None) => Ok(Some(Window { layers: windowed, tokens: keys.number("sliding_window")? })),
    }
}

/// Llama 4: three layers of four attend within chunks of the sequence.
fn chunks(keys: &Keys, layers: u32) -> Result<Option<Window>, ModelError> {
    let Some(tokens) = keys.optional("attention_chunk_size")? else { return Ok(None) };
    for key in ["no_rope_layers", "layer_types"] {
        if let Some(value) =
            keys.get(key).filter(|value| value.as_array().is_none_or(|list| !list.is_empty()))
        {
            let allowed = "nothing: every fourth layer attends to the whole sequence";
            return Err(keys.wrong(key, value, allowed));
        }
    }
    Ok(Some(Window { layers: layers - layers / 4, tokens }))
}
