//! vLLM's names of settings that have another name here, or another place: for whoever moves a command
//! line into a file. Only names that an unknown key can have are known, no values.

/// The path that a key called `key`, with or without dashes, has here.
pub(crate) fn path_here(key: &str) -> Option<&'static str> {
    let name = key.trim_start_matches('-').replace('-', "_");
    NAMES.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
}

/// vLLM's name, and the path here.
pub(crate) const NAMES: &[(&str, &str)] = &[
    ("max_num_seqs", "engine.workers.aggregated.scheduler.max_sequences"),
    ("max_num_batched_tokens", "engine.workers.aggregated.scheduler.max_batched_tokens"),
    ("scheduling_policy", "engine.workers.aggregated.scheduler.policy"),
    ("scheduler_reserve_full_isl", "engine.workers.aggregated.scheduler.reserve_full_isl"),
    ("max_model_len", "engine.context_length"),
    ("block_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("enable_prefix_caching", "engine.workers.aggregated.kv_cache.prefix_caching"),
    // A share of a memory that is not modelled: what it comes to is a number of blocks.
    ("gpu_memory_utilization", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("kv_cache_memory_bytes", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("num_gpu_blocks", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("num_gpu_blocks_override", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("tensor_parallel_size", "engine.workers.aggregated.parallelism.tensor"),
    ("pipeline_parallel_size", "engine.workers.aggregated.parallelism.pipeline"),
    // Ranks of vLLM that share nothing but the queue in front of them.
    ("data_parallel_size", "engine.workers.aggregated.parallelism.replicas"),
    ("served_model_name", "engine.model"),
];
