//! The engines' names of settings that have another name here, or another place: for whoever moves a
//! command line into a file. Only names that an unknown key can have are known, no values, so a setting
//! whose value reads otherwise here is not among them.

/// Ways to say how many blocks there are that this version has not, and what to give instead.
const MEMORY: [&str; 1] = ["kv_cache_memory_bytes"];

/// What is said of a key called `key` that an engine has and this version has only as what it comes to.
pub(crate) fn instead(key: &str) -> Option<&'static str> {
    MEMORY.contains(&&*plain(key)).then_some(
        "give the number of blocks as engine.workers.aggregated.kv_cache.capacity.blocks, or the share of the \
         memory as engine.workers.aggregated.kv_cache.capacity.memory_fraction",
    )
}

fn plain(key: &str) -> String {
    key.trim_start_matches('-').replace('-', "_")
}

/// The path that a key called `key`, with or without dashes, has here.
pub(crate) fn path_here(key: &str) -> Option<&'static str> {
    let name = plain(key);
    NAMES.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
}

/// The engine's name, and the path here.
pub(crate) const NAMES: &[(&str, &str)] = &[
    // vLLM.
    ("max_num_seqs", "engine.workers.aggregated.scheduler.max_sequences"),
    ("max_num_batched_tokens", "engine.workers.aggregated.scheduler.max_batched_tokens"),
    ("scheduling_policy", "engine.workers.aggregated.scheduler.policy"),
    ("scheduler_reserve_full_isl", "engine.workers.aggregated.scheduler.reserve_full_isl"),
    ("max_model_len", "engine.context_length"),
    ("block_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("enable_prefix_caching", "engine.workers.aggregated.kv_cache.prefix_caching"),
    ("num_gpu_blocks", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("num_gpu_blocks_override", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("gpu_memory_utilization", "engine.workers.aggregated.kv_cache.capacity.memory_fraction"),
    ("kv_cache_dtype", "engine.kvcache_quant_mode"),
    ("tensor_parallel_size", "engine.workers.aggregated.parallelism.tensor"),
    ("pipeline_parallel_size", "engine.workers.aggregated.parallelism.pipeline"),
    ("data_parallel_size", "engine.workers.aggregated.parallelism.attention_data"),
    ("served_model_name", "engine.model"),
    // SGLang.
    ("max_running_requests", "engine.workers.aggregated.scheduler.max_sequences"),
    ("enable_mixed_chunk", "engine.workers.aggregated.scheduler.mixed_chunk"),
    (
        "priority_scheduling_preemption_threshold",
        "engine.workers.aggregated.scheduler.priority_preemption_threshold",
    ),
    ("mem_fraction_static", "engine.workers.aggregated.kv_cache.capacity.memory_fraction"),
    ("page_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("tp_size", "engine.workers.aggregated.parallelism.tensor"),
    ("dp_size", "engine.workers.aggregated.parallelism.attention_data"),
    // TensorRT-LLM.
    ("free_gpu_memory_fraction", "engine.workers.aggregated.kv_cache.capacity.memory_fraction"),
    ("max_batch_size", "engine.workers.aggregated.scheduler.max_sequences"),
    ("max_num_tokens", "engine.workers.aggregated.scheduler.max_batched_tokens"),
    ("capacity_scheduler_policy", "engine.workers.aggregated.scheduler.capacity_policy"),
    ("max_seq_len", "engine.context_length"),
    ("tokens_per_block", "engine.workers.aggregated.kv_cache.block_size"),
    ("enable_block_reuse", "engine.workers.aggregated.kv_cache.prefix_caching"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_a_key_that_there_is() {
        let schema = crate::schema();
        for (theirs, ours) in NAMES {
            let key = ours.split('.').fold(&schema, |schema, key| &schema["properties"][key]);
            assert!(key["description"].is_string(), "{theirs}: {ours}");
        }
        assert_eq!(path_here("--max-num-seqs"), path_here("max_num_seqs"));
        assert_eq!(path_here("max_sequences"), None);
    }
}
