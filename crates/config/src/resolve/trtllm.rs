//! The settings of a TensorRT-LLM rank, with their defaults.

use super::Findings;
use super::capacity::{self, Limits};
use super::engine::{Rank, SCHEDULER, ahead, context_length, refuse};
use super::role::RoleKeys;
use crate::document::{CapacityPolicy as CapacityKey, Defaults, QueuePolicy};
use crate::experiment::Semantics;
use std::path::Path;
use windtunnel_engine::trtllm::{CapacityPolicy, Config, FirstToken, FullHit};

/// TensorRT-LLM's fields that have another name here, and their paths.
const NAMES: &[(&str, &str)] = &[
    ("num_blocks", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("block_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("chunk_unit_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("max_seq_len", "engine.context_length"),
    ("max_batch_size", "engine.workers.aggregated.scheduler.max_sequences"),
    ("max_num_tokens", "engine.workers.aggregated.scheduler.max_batched_tokens"),
];

/// Makes the settings and fills in the defaults. Under engine.defaults native they are the PyTorch backend's
/// (tensorrt_llm/llmapi/llm_args.py: max_batch_size, max_num_tokens, enable_chunked_prefill). The block size
/// is in the keys already.
pub(super) fn rank(
    keys: &mut RoleKeys,
    folder: &Path,
    semantics: Semantics,
    findings: &mut Findings,
) -> Option<Rank<Config>> {
    let native = keys.defaults == Defaults::Native;
    let scheduler = &mut keys.worker.scheduler;
    let limits = Limits {
        max_batched_tokens: *scheduler.max_batched_tokens.get_or_insert(8192),
        max_sequences: *scheduler.max_sequences.get_or_insert(match (native, keys.role) {
            (true, _) => 2048,
            // Prefill workers of AISimulate take one prompt at a time.
            (false, "prefill") => 1,
            (false, _) => 256,
        }),
    };
    let blocks = capacity::blocks(keys, &limits, folder, semantics, findings)?;
    let cache = &mut keys.worker.kv_cache;
    let block_size = cache.block_size?;
    let prefix_reuse = *cache.prefix_caching.get_or_insert(true);
    let chunked_context = *keys.enable_chunked_prefill.get_or_insert(!native);
    let scheduler = &mut keys.worker.scheduler;
    scheduler.policy.get_or_insert(QueuePolicy::Fcfs);
    let capacity = *scheduler.capacity_policy.get_or_insert(CapacityKey::GuaranteedNoEvict);
    let reference = semantics == Semantics::Aisimulate013;
    let config = Config {
        capacity_policy: match capacity {
            CapacityKey::GuaranteedNoEvict => CapacityPolicy::GuaranteedNoEvict,
            CapacityKey::MaxUtilization => CapacityPolicy::MaxUtilization,
        },
        max_batch_size: limits.max_sequences,
        max_num_tokens: limits.max_batched_tokens,
        chunked_prefill: chunked_context,
        block_reuse: prefix_reuse,
        overlap: ahead(&mut scheduler.overlap, "overlap", semantics, findings),
        // AISimulate's core is shaped like vLLM's: whole blocks are reused, duplicates are not put off, a
        // prompt that is cached whole is not computed again, and outputs are cut to the pool.
        partial_reuse: !reference,
        beneficial_to_skip: !reference,
        full_hit: if reference { FullHit::Reference } else { FullHit::Recompute },
        first_token: if reference && keys.role != "aggregated" {
            FirstToken::Decode
        } else {
            FirstToken::Prefill
        },
        clamp_output_to_pool: reference,
        ..Config::new(blocks.number, block_size, context_length(keys.context_length))
    };
    if capacity == CapacityKey::MaxUtilization && reference {
        let message =
            "got \"max_utilization\"; engine.semantics aisimulate_0_13 knows guaranteed_no_evict only";
        findings.problem(&format!("{SCHEDULER}.capacity_policy"), message);
    }
    if capacity == CapacityKey::MaxUtilization && keys.role != "aggregated" {
        let message =
            "got \"max_utilization\"; separate prefill and decode workers know guaranteed_no_evict only";
        findings.problem(&format!("{SCHEDULER}.capacity_policy"), message);
    }
    match config.validate() {
        Ok(()) => Some(Rank { config, blocks }),
        Err(error) => {
            refuse(NAMES, &error, findings);
            None
        }
    }
}
