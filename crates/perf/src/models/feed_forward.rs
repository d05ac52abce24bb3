//! The feed-forward layers of a model: dense ones, experts, the shared expert, and their weights. Which
//! layers have experts follows the type's model in the `transformers` library.

use super::config_json::{Keys, Kind};
use super::weights::Count;
use super::{Experts, ModelError, Part};

/// What a type calls its experts' modules: those of a layer, and the matrices of one.
struct Names {
    experts: &'static str,
    shared: &'static str,
    matrices: [&'static str; 3],
}

const GATED: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Reads them and counts their weights: width of the dense ones, and the experts. `(layers, hidden)`:
/// layers, and their width.
pub(super) fn feed_forward(
    keys: &Keys,
    kind: Kind,
    (layers, hidden): (u32, u32),
    count: &mut Count,
) -> Result<(Option<u32>, Option<Experts>), ModelError> {
    let experts = experts(keys, kind)?;
    let has_experts = layers_with_experts(keys, kind, layers)?;
    let with_experts = has_experts.iter().filter(|with| **with).count() as u32;
    let dense = match (with_experts == layers, kind) {
        (true, _) => None,
        (false, Kind::Llama4) => Some(keys.number("intermediate_size_mlp")?),
        (false, _) => Some(keys.number("intermediate_size")?),
    };
    let h = u128::from(hidden);
    let names = match kind {
        Kind::Mixtral | Kind::MinimaxM2 => Names {
            experts: "block_sparse_moe.experts",
            shared: "shared_experts",
            matrices: ["w1", "w3", "w2"],
        },
        Kind::Qwen35Moe => Names { experts: "mlp.experts", shared: "shared_expert", matrices: GATED },
        _ => Names { experts: "mlp.experts", shared: "shared_experts", matrices: GATED },
    };
    let mlp_bias = kind == Kind::Llama && keys.flag("mlp_bias")?;
    for (layer, with) in has_experts.iter().enumerate() {
        let module = |name: &str| format!("model.layers.{layer}.{name}");
        match (with, experts) {
            (true, Some(experts)) => {
                let (n, inter) = (u128::from(experts.count), u128::from(experts.intermediate_size));
                for matrix in names.matrices {
                    let name = module(&format!("{}.0.{matrix}", names.experts));
                    count.matrix(Part::Experts, &name, n * h * inter);
                }
                if kind == Kind::GptOss {
                    count.plain(Part::Experts, n * (2 * inter + h));
                }
                let biases =
                    matches!(kind, Kind::GptOss | Kind::MinimaxM2 | Kind::DeepseekV3 | Kind::DeepseekSparse);
                count.plain(Part::Router, n * h + if biases { n } else { 0 });
                if let Some(shared) = experts.shared_intermediate_size {
                    for matrix in GATED {
                        let name = module(&format!("mlp.{}.{matrix}", names.shared));
                        count.matrix(Part::FeedForward, &name, h * u128::from(shared));
                    }
                    if kind == Kind::Qwen35Moe {
                        count.plain(Part::Router, h);
                    }
                }
            }
            _ => {
                let inter = u128::from(dense.unwrap_or(0));
                for matrix in GATED {
                    count.matrix(Part::FeedForward, &module(&format!("mlp.{matrix}")), h * inter);
                }
                if mlp_bias {
                    count.plain(Part::Norms, 2 * inter + h);
                }
            }
        }
    }
    Ok((dense, experts.map(|experts| Experts { layers: with_experts, ..experts })))
}

/// The experts of a layer that has them; how many layers do is filled in later.
fn experts(keys: &Keys, kind: Kind) -> Result<Option<Experts>, ModelError> {
    let (count, width) = match kind {
        Kind::Llama | Kind::Mistral | Kind::Qwen2 | Kind::Qwen3 | Kind::Qwen35 => return Ok(None),
        Kind::Qwen3Moe | Kind::Qwen35Moe => ("num_experts", "moe_intermediate_size"),
        Kind::DeepseekV3 | Kind::DeepseekSparse => ("n_routed_experts", "moe_intermediate_size"),
        Kind::Mixtral | Kind::MinimaxM2 | Kind::GptOss | Kind::Llama4 => {
            ("num_local_experts", "intermediate_size")
        }
    };
    let intermediate_size = keys.number(width)?;
    let shared_intermediate_size = match kind {
        Kind::Llama4 => Some(intermediate_size),
        Kind::Qwen35Moe => Some(keys.count("shared_expert_intermediate_size", 0)?).filter(|width| *width > 0),
        Kind::DeepseekV3 | Kind::DeepseekSparse => {
            let shared = keys.count("n_shared_experts", 0)?.checked_mul(intermediate_size);
            let too_wide = || keys.error("n_shared_experts: times moe_intermediate_size is above 2^32 - 1");
            Some(shared.ok_or_else(too_wide)?).filter(|width| *width > 0)
        }
        Kind::MinimaxM2 => Some(keys.count("shared_intermediate_size", 0)?).filter(|width| *width > 0),
        _ => None,
    };
    Ok(Some(Experts {
        layers: 0,
        count: keys.number(count)?,
        per_token: keys.number("num_experts_per_tok")?,
        intermediate_size,
        shared_intermediate_size,
    }))
}

/// For each layer, whether it has experts.
fn layers_with_experts(keys: &Keys, kind: Kind, layers: u32) -> Result<Vec<bool>, ModelError> {
    let every = |step: u32| move |layer: u32| (layer + 1).is_multiple_of(step);
    Ok(match kind {
        Kind::Llama | Kind::Mistral | Kind::Qwen2 | Kind::Qwen3 | Kind::Qwen35 => {
            vec![false; layers as usize]
        }
        Kind::Mixtral | Kind::MinimaxM2 | Kind::GptOss => vec![true; layers as usize],
        Kind::Llama4 => (0..layers).map(every(keys.count("interleave_moe_layer_step", 1)?.max(1))).collect(),
        Kind::Qwen3Moe | Kind::Qwen35Moe => {
            let mut with: Vec<bool> =
                (0..layers).map(every(keys.count("decoder_sparse_step", 1)?.max(1))).collect();
            let dense = keys.get("mlp_only_layers");
            for value in dense.and_then(|list| list.as_array()).into_iter().flatten() {
                let layer = value.as_u64().and_then(|layer| with.get_mut(layer as usize));
                match layer {
                    Some(layer) => *layer = false,
                    None => return Err(keys.wrong("mlp_only_layers", value, "a list of layers, from 0")),
                }
            }
            with
        }
        Kind::DeepseekV3 | Kind::DeepseekSparse => {
            let first = keys.count("first_k_dense_replace", 0)?;
            let step = keys.count("moe_layer_freq", 1)?.max(1);
            (0..layers).map(|layer| layer >= first && layer.is_multiple_of(step)).collect()
        }
    })
}
