//! The models that are built in: figures of public `config.json` files, in `data/models/models.json`, each
//! entry as `windtunnel models PATH --json` prints it (`tools/make_models.py` makes the file). A model that
//! has the figures of another one, as instruction-tuned ones have, is an alias of it.

use super::ModelDescription;

const FILE: &str = include_str!("../../../../data/models/models.json");

/// Other names, and the model whose figures are theirs.
const ALIASES: &[(&str, &str)] = &[
    ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "meta-llama/Meta-Llama-3.1-70B"),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Meta-Llama-3.1-8B"),
    ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
    ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3"),
    ("meta-llama/Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B"),
    ("meta-llama/Llama-3.1-405B-Instruct", "meta-llama/Meta-Llama-3.1-405B"),
    ("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
    ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
    ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
    ("meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B"),
    ("meta-llama/Llama-3.2-3B-Instruct", "meta-llama/Llama-3.2-3B"),
    ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
    ("meta-llama/Meta-Llama-3-70B-Instruct", "meta-llama/Meta-Llama-3-70B"),
    ("meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B"),
    ("meta-llama/Meta-Llama-3.1-405B-Instruct", "meta-llama/Meta-Llama-3.1-405B"),
    ("meta-llama/Meta-Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
    ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
    ("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.5"),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
    ("mistralai/Mistral-Nemo-Instruct-2407", "mistralai/Mistral-Nemo-Base-2407"),
    ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mistralai/Mixtral-8x22B-v0.1"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
    ("zhipuai/GLM-5", "zai-org/GLM-5"),
];

/// All of them, in the order of the file. The file is constant, and a test reads it.
fn all() -> Vec<ModelDescription> {
    serde_json::from_str(FILE).unwrap_or_default()
}

/// Their names, sorted without regard to case.
pub fn names() -> Vec<String> {
    all().into_iter().map(|model| model.name).collect()
}

/// Other names of theirs, each with the model that it stands for.
pub fn aliases() -> &'static [(&'static str, &'static str)] {
    ALIASES
}

pub(super) fn find(name: &str) -> Option<ModelDescription> {
    let same = |other: &str| other.eq_ignore_ascii_case(name);
    let own = ALIASES.iter().find(|(alias, _)| same(alias)).map_or(name, |(_, own)| own);
    all().into_iter().find(|model| model.name.eq_ignore_ascii_case(own))
}
