//! What the AISimulate schema knows and this version cannot do: refused by name, with what there is
//! instead. A key that is set to the value that means "not used" is let pass.

use crate::error::Problem;
use crate::tree::{Node, Value, join};
use serde_json::Value as Json;

const SESSIONS: &str = "sessions of several turns are not supported yet; source.type synthetic and trace are";
const AGENTIC: &str = "agentic traces are not supported yet; formats mooncake and requests are";
const CALIBRATED: &str = "not supported yet; calibrated timing goes by the checkpoint's types, engine.gemm_quant_mode, \
     engine.moe_quant_mode and the data packs of the program";
const SHARED_DISK: &str =
    "a disk that several ranks share is not supported yet; scope worker_local is, for each rank by itself";
const SPECULATION: &str = "speculative decoding is not supported yet";
const CONTEXT_PARALLEL: &str = "context parallelism is not supported yet; allowed is 1";
const TIERS: &str = "credits KV cache tiers that several workers share, which are not supported yet";
const RECOMMEND: &str = "belongs to recommend, which is not supported yet; this is a prediction";

const NO_REGRESSION: &str = "belongs to AISimulate's regression over forward-pass metrics; the deployment's own timing \
     stands for it here, which needs no samples";
const PREDICTORS: &str =
    "belongs to the predictors arima and prophet, which are not supported yet; constant and kalman are";
const MIN_POINTS: &str =
    "is read by no predictor: Dynamo's kalman tells from the first interval on, whatever it says";

/// Keys: path, the values that mean "not used" (as JSON), and why it is refused.
const KEYS: &[(&str, &[&str], &str)] = &[
    ("optimization", &["null"], RECOMMEND),
    ("optimizer", &["null"], RECOMMEND),
    ("planner.max_num_fpm_samples", &["null", "64"], NO_REGRESSION),
    ("planner.fpm_sample_bucket_size", &["null", "16"], NO_REGRESSION),
    ("planner.load_min_observations", &["null", "5"], NO_REGRESSION),
    ("planner.prophet_window_size", &["null", "50"], PREDICTORS),
    ("planner.kalman_min_points", &["null", "5"], MIN_POINTS),
    ("traffic.source.images", &["null"], "prompts with images are not supported yet"),
    ("traffic.source.new_input_tokens_per_turn", &["null"], SESSIONS),
    ("traffic.source.output_tokens_per_turn", &["null"], SESSIONS),
    ("traffic.source.session", &["null"], SESSIONS),
    ("traffic.source.nested_timestamp_basis", &["null", r#""auto""#], AGENTIC),
    ("traffic.load.sessions_per_second", &["null"], SESSIONS),
    ("traffic.load.fraction", &["null"], "load relative to the KV capacity is not supported yet"),
    ("traffic.load.agentic_lanes", &["null"], AGENTIC),
    ("traffic.load.agentic_snapshot", &["null"], AGENTIC),
    ("traffic.load.agentic_warmup", &["null", "false"], AGENTIC),
    ("traffic.load.agentic_profile", &["null"], AGENTIC),
    ("traffic.stop.sessions", &["null"], SESSIONS),
    ("traffic.stop.sessions_per_load_unit", &["null"], SESSIONS),
    ("engine.forward_model", &["null"], CALIBRATED),
    ("engine.systems_path", &["null"], CALIBRATED),
    ("engine.speculation", &["null"], SPECULATION),
    ("engine.nextn", &["null", "0"], SPECULATION),
    ("engine.nextn_accepted", &["null", "0"], SPECULATION),
    ("engine.fmha_quant_mode", &["null"], CALIBRATED),
    ("engine.comm_quant_mode", &["null"], CALIBRATED),
    ("engine.attention_backend", &["null"], CALIBRATED),
    ("engine.moe_backend", &["null"], CALIBRATED),
    ("engine.moe_kernel_source", &["null"], CALIBRATED),
    ("engine.enable_eplb", &["null", "false"], CALIBRATED),
    ("engine.wideep_num_slots", &["null"], CALIBRATED),
    ("engine.workers.attention", &["null"], "separate attention and expert workers are not supported yet"),
    ("engine.workers.ffn", &["null"], "separate attention and expert workers are not supported yet"),
    ("engine.workers.encoder", &["null"], "prompts with images are not supported yet"),
    ("engine.workers.aggregated.parallelism.context", &["null", "1"], CONTEXT_PARALLEL),
    ("engine.workers.aggregated.parallelism.prefill_context", &["null", "1"], CONTEXT_PARALLEL),
    ("engine.workers.aggregated.parallelism.decode_context", &["null", "1"], CONTEXT_PARALLEL),
    (
        "engine.workers.aggregated.scheduler.max_loras",
        &["null", "0"],
        "limits on the LoRA adapters of a batch are not supported yet",
    ),
    (
        "engine.workers.aggregated.kv_cache.sliding_window",
        &["null"],
        "sliding-window cache groups are not supported yet; every block is kept for full attention",
    ),
    (
        "engine.workers.aggregated.kv_cache.kv_cache_groups",
        &["null"],
        "several cache groups, as hybrid models have, are not supported yet; one full-attention group is",
    ),
    ("engine.workers.aggregated.kv_cache.g3_offload.shared_read_bandwidth_gbps", &["null"], SHARED_DISK),
    ("engine.workers.aggregated.kv_cache.g3_offload.shared_write_bandwidth_gbps", &["null"], SHARED_DISK),
    (
        "engine.workers.aggregated.kv_cache.state_cache",
        &["null"],
        "state caches of hybrid models are not supported yet",
    ),
    (
        "engine.workers.aggregated.kv_cache.prefix_match_unit",
        &["null"],
        "prefix matches of a unit other than the block are not supported yet",
    ),
    (
        "engine.workers.aggregated.kv_cache.capacity.bytes",
        &["null"],
        "capacity in bytes is not supported yet; give blocks",
    ),
    ("engine.workers.aggregated.timing.forward_model", &["null"], CALIBRATED),
    ("engine.workers.aggregated.timing.fpm_parquet_path", &["null"], CALIBRATED),
    ("engine.workers.aggregated.timing.estimator_config", &["null"], CALIBRATED),
    ("router.shared_cache_multiplier", &[], TIERS),
];

/// Any value that the schema does not allow.
const ANY: &str = "*";
const ZERO_SPEEDUP: &str =
    "allowed is a number above 0. AISimulate 0.13 treats 0 as unscaled, so leave the key out";

/// Values: path, the value (as JSON), and why it is refused.
const VALUES: &[(&str, &str, &str)] = &[
    ("traffic.source.type", r#""synthetic-session""#, SESSIONS),
    ("traffic.source.format", r#""mooncake-delta""#, SESSIONS),
    ("traffic.source.format", r#""agentic_mooncake""#, AGENTIC),
    ("traffic.source.format", r#""weka""#, AGENTIC),
    ("traffic.source.format", r#""applied_compute_agentic""#, AGENTIC),
    (
        "traffic.source.format",
        r#""dynamo""#,
        "Dynamo request traces are not supported yet; formats mooncake and requests are",
    ),
    ("traffic.load.type", r#""kv_capacity_fraction""#, RECOMMEND),
    ("planner.target", r#""load""#, "target load is not supported yet; throughput, latency and sla are"),
    ("planner.load_predictor", r#""arima""#, PREDICTORS),
    ("planner.load_predictor", r#""prophet""#, PREDICTORS),
    ("engine.hardware", r#""auto""#, RECOMMEND),
    ("engine.workers.aggregated.kv_cache.g3_offload.scope", r#""cluster_shared""#, SHARED_DISK),
    ("engine.mode", r#""afd""#, "separate attention and expert workers are not supported yet; aggregated is"),
    (
        "engine.workers.aggregated.parallelism.pipeline",
        ANY,
        "pipeline parallelism is not supported yet; allowed is 1",
    ),
    ("engine.workers.aggregated.timing.speedup_ratio", "0", ZERO_SPEEDUP),
    ("engine.workers.aggregated.timing.speedup_ratio", "0.0", ZERO_SPEEDUP),
    ("engine.workers.aggregated.timing.decode_speedup_ratio", "0", ZERO_SPEEDUP),
    ("engine.workers.aggregated.timing.decode_speedup_ratio", "0.0", ZERO_SPEEDUP),
    (
        "router.prefill_load_model.type",
        r#""ais""#,
        "needs AIConfigurator's estimates; type timing takes those of the deployment's own timing",
    ),
];

/// The roles of workers, whose keys are the same.
const ROLES: [&str; 3] = ["aggregated", "prefill", "decode"];

/// The path of the same key in the role that the tables name.
pub(crate) fn usual(path: &str) -> String {
    let role = ROLES.iter().find(|role| path.starts_with(&format!("engine.workers.{role}.")));
    role.map_or_else(|| path.to_owned(), |role| path.replacen(role, ROLES[0], 1))
}

/// Takes the keys that cannot be served out of the tree. Those that mean something become problems, and
/// the mapping they stood in is returned as excused from lacking others.
pub(crate) fn take_out(root: &mut Node) -> (Vec<Problem>, Vec<String>) {
    let mut found = (Vec::new(), Vec::new());
    take_out_below(root, "", &mut found);
    if wants_other_roles(root) {
        found.1.push("engine.workers".into());
    }
    found
}

/// A mode that this version refuses needs other workers than the ones it knows.
fn wants_other_roles(root: &Node) -> bool {
    let mode = root.find("engine.mode");
    mode.is_some_and(|mode| value("engine.mode", mode, true).is_some())
}

/// Puts the keys that may be given the values that mean "not used" into a schema, with these values.
pub(crate) fn add_unused_keys(schema: &mut Json) {
    let unused = KEYS.iter().filter(|(_, unused, _)| !unused.is_empty());
    for ((path, unused, why), role) in unused.flat_map(|of| ROLES.map(|role| (of, role))) {
        let path = &*path.replace("workers.aggregated", &format!("workers.{role}"));
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut keys = parent.split('.').filter(|key| !key.is_empty());
        let parent = keys.try_fold(&mut *schema, |schema, key| schema.get_mut("properties")?.get_mut(key));
        // The tables are constant, and a test goes through all of them.
        let Some(properties) = parent.and_then(|parent| parent.get_mut("properties")) else { continue };
        let values: Vec<Json> = unused.iter().filter_map(|value| serde_json::from_str(value).ok()).collect();
        let description = format!("Not used, or refused: {why}.");
        properties[key] = serde_json::json!({ "enum": values, "description": description });
    }
}

fn take_out_below(node: &mut Node, path: &str, found: &mut (Vec<Problem>, Vec<String>)) {
    let Value::Map(entries) = &mut node.value else { return };
    entries.retain(|(key, child)| {
        let key_path = join(path, key);
        let Some((_, unused, why)) = KEYS.iter().find(|(refused, _, _)| *refused == usual(&key_path)) else {
            return true;
        };
        if !unused.contains(&child.to_json().to_string().as_str()) {
            let problem = Problem { place: child.place.clone(), path: key_path, message: (*why).to_owned() };
            found.0.push(problem);
            found.1.push(path.to_owned());
        }
        false
    });
    for (key, child) in entries {
        take_out_below(child, &join(path, key), found);
    }
}

/// Why a value of AISimulate's is refused. `allowed` says whether the schema, which does not know them
/// all, would take it.
pub(crate) fn value(path: &str, node: &Node, allowed: bool) -> Option<&'static str> {
    let integer = matches!(node.value, Value::Int(_));
    let here = node.to_json().to_string();
    let path = &*usual(path);
    let refused = |value: &str| if value == ANY { integer && !allowed } else { value == here };
    VALUES.iter().find(|(at, value, _)| *at == path && refused(value)).map(|(_, _, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_key_with_exactly_the_values_that_mean_not_used() {
        let schema = crate::schema();
        for (path, unused, why) in KEYS {
            let property = path.split('.').fold(&schema, |schema, key| &schema["properties"][key]);
            if unused.is_empty() {
                assert!(property.is_null(), "{path} has no such value");
                continue;
            }
            let values: Vec<String> =
                property["enum"].as_array().unwrap().iter().map(Json::to_string).collect();
            assert_eq!(values, *unused, "{path}");
            assert!(property["description"].as_str().unwrap().contains(why), "{path}");
        }
    }
}
