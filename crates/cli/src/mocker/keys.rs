//! What the flags say, as keys of the configuration.

use super::{Engine, Mocker, finite};
use crate::exit::Failure;

/// A key, and its value in YAML.
pub(super) struct Key {
    path: String,
    value: String,
}

pub(super) fn key(path: impl Into<String>, value: impl Into<String>) -> Key {
    Key { path: path.into(), value: value.into() }
}

/// What the flags say, as overrides of the configuration, whose workers have these roles.
pub(super) fn overrides(arguments: &Mocker, roles: &[&str]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    if let Some(engine) = arguments.engine {
        all.push(key("engine.backend", format!("{engine:?}").to_lowercase()));
    }
    if let Some(model) = &arguments.model {
        all.push(key("engine.model", serde_json::Value::from(model.as_str()).to_string()));
    }
    if let Some(tokens) = arguments.max_model_len {
        all.push(key("engine.context_length", tokens.to_string()));
    }
    if let Some(on) = switch(arguments.enable_chunked_prefill, arguments.no_enable_chunked_prefill) {
        all.push(key("engine.enable_chunked_prefill", on.to_string()));
    }
    all.extend(arguments.launcher.engine_keys(arguments.config.is_some()));
    for role in roles {
        all.extend(worker_keys(arguments, &format!("engine.workers.{role}"))?);
    }
    Ok(all.into_iter().map(|Key { path, value }| format!("{path}={value}")).collect())
}

/// What they say of the workers of one role. Timing comes before the ratios, which are keys of it.
fn worker_keys(arguments: &Mocker, worker: &str) -> Result<Vec<Key>, Failure> {
    let numbers = [
        ("parallelism.replicas", arguments.num_workers),
        ("parallelism.attention_data", arguments.data_parallel_size),
        ("kv_cache.block_size", arguments.block_size),
        ("scheduler.max_sequences", arguments.max_num_seqs),
        ("scheduler.max_batched_tokens", arguments.max_num_batched_tokens),
        ("scheduler.max_num_queued_reqs", arguments.max_num_queued_reqs),
    ];
    let of_worker = |path: &str| format!("{worker}.{path}");
    let given = numbers.into_iter().filter_map(|(path, number)| Some((path, number?)));
    let mut all: Vec<Key> = given.map(|(path, number)| key(of_worker(path), number.to_string())).collect();
    if let Some(blocks) = arguments.num_gpu_blocks_override {
        all.push(key(of_worker("kv_cache.capacity"), format!("{{type: fixed, blocks: {blocks}}}")));
    }
    let ahead = match arguments.engine {
        Some(Engine::Sglang | Engine::Trtllm) => "scheduler.overlap",
        Some(Engine::Vllm) | None => "scheduler.async_scheduling",
    };
    let caching = switch(arguments.enable_prefix_caching, arguments.no_enable_prefix_caching);
    let switches = [
        ("kv_cache.prefix_caching", caching),
        (ahead, switch(arguments.async_scheduling, arguments.no_async_scheduling)),
    ];
    let given = switches.into_iter().filter_map(|(path, on)| Some((path, on?)));
    all.extend(given.map(|(path, on)| key(of_worker(path), on.to_string())));
    if let Some(policy) = arguments.scheduling_policy {
        all.push(key(of_worker("scheduler.policy"), format!("{policy:?}").to_lowercase()));
    }
    let blocks = arguments.num_gpu_blocks_override.is_some() || arguments.config.is_some();
    all.extend(arguments.launcher.worker_keys(worker, blocks)?);
    if let Some(ratio) = arguments.speedup_ratio.filter(|ratio| *ratio != 0.0) {
        all.push(key(of_worker("timing.speedup_ratio"), finite("--speedup-ratio", ratio)?));
    }
    if let Some(ratio) = arguments.decode_speedup_ratio {
        let ratio = finite("--decode-speedup-ratio", ratio)?;
        all.push(key(of_worker("timing.decode_speedup_ratio"), ratio));
    }
    Ok(all)
}

/// What a pair of flags says, if it says anything.
fn switch(on: bool, off: bool) -> Option<bool> {
    (on || off).then_some(on && !off)
}
