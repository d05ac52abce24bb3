//! The settings of a vLLM rank, checked as vLLM checks them.

use super::capacity::{self, Limits};
use super::engine::{Rank, SCHEDULER, ahead, context_length, refuse};
use super::role::RoleKeys;
use super::{Findings, gpu, host};
use crate::document::{ContextLength, Defaults, PreemptionMode as PreemptionKey, QueuePolicy};
use crate::experiment::Semantics;
use std::path::Path;
use windtunnel_engine::vllm::{Config, KvRole, Policy, PreemptionMode, ResumedWork, TransferRules};

/// vLLM's own default (config/cache.py of 0.33.0).
pub(super) const BLOCK_SIZE: u32 = 16;

/// vLLM's fields that have another name here, and their paths.
const NAMES: &[(&str, &str)] = &[
    ("num_blocks", "engine.workers.aggregated.kv_cache.capacity.blocks"),
    ("block_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("max_num_seqs", "engine.workers.aggregated.scheduler.max_sequences"),
    ("max_num_batched_tokens", "engine.workers.aggregated.scheduler.max_batched_tokens"),
    ("max_model_len", "engine.context_length"),
];

/// Makes the settings and fills in the defaults. The block size is in the keys already.
pub(super) fn rank(
    keys: &mut RoleKeys,
    folder: &Path,
    semantics: Semantics,
    findings: &mut Findings,
) -> Option<Rank<Config>> {
    let chunked_prefill = *keys.enable_chunked_prefill.get_or_insert(true);
    let limits = limits(keys, chunked_prefill, findings);
    let memory = limits.and_then(|(max_batched_tokens, max_sequences)| {
        let limits = Limits { max_batched_tokens, max_sequences };
        capacity::blocks(keys, &limits, folder, semantics, findings)
    });
    // Elsewhere that it is given is refused.
    let offloads = keys.role == "aggregated" && semantics == Semantics::Native;
    let host_blocks = if offloads { host::vllm_blocks(keys, findings) } else { None };
    let several = keys.worker.parallelism.attention_data > 1;
    let cache = &mut keys.worker.kv_cache;
    let scheduler = &mut keys.worker.scheduler;
    let interval = *scheduler.prefill_schedule_interval.get_or_insert(1);
    if semantics == Semantics::Aisimulate013 && interval != 1 && !several {
        let message = format!(
            "got {interval}; under engine.semantics aisimulate_0_13 it works with attention_data above 1 only: \
             allowed is 1"
        );
        findings.problem(&format!("{SCHEDULER}.prefill_schedule_interval"), message);
    }
    let async_scheduling = ahead(&mut scheduler.async_scheduling, "async_scheduling", semantics, findings);
    let (max_num_batched_tokens, max_num_seqs) = limits?;
    let blocks = memory?;
    // There, every block holds tokens; here, one of them is the null block. The number is bounded, so this does
    // not overflow.
    let null_block = if semantics == Semantics::Aisimulate013 { 1 } else { 0 };
    let config = Config {
        prefix_caching: *cache.prefix_caching.get_or_insert(true),
        chunked_prefill,
        max_num_batched_tokens,
        max_num_seqs,
        max_num_active_seqs: scheduler.max_num_active_seqs,
        policy: match scheduler.policy.get_or_insert(QueuePolicy::Fcfs) {
            QueuePolicy::Fcfs => Policy::Fcfs,
            QueuePolicy::Priority => Policy::Priority,
        },
        preemption_mode: match scheduler.preemption_mode.get_or_insert(PreemptionKey::Lifo) {
            PreemptionKey::Lifo => PreemptionMode::Lifo,
            PreemptionKey::Fifo => PreemptionMode::Fifo,
        },
        long_prefill_token_threshold: *scheduler.long_prefill_token_threshold.get_or_insert(0),
        long_prefill_token_threshold_adaptive: *scheduler
            .long_prefill_token_threshold_adaptive
            .get_or_insert(false),
        async_scheduling,
        watermark: *scheduler.watermark.get_or_insert(0.0),
        reserve_full_isl: *scheduler.reserve_full_isl.get_or_insert(true),
        prefill_schedule_interval: interval,
        max_num_queued_reqs: scheduler.max_num_queued_reqs,
        max_num_queued_tokens: scheduler.max_num_queued_tokens,
        resumed_work: match semantics {
            Semantics::Native => ResumedWork::Prefill,
            Semantics::Aisimulate013 => ResumedWork::PromptAndDecode,
        },
        kv_role: match keys.role {
            "prefill" => Some(KvRole::Producer),
            "decode" => Some(KvRole::Consumer),
            _ => host_blocks.map(|_| KvRole::Both),
        },
        host_blocks,
        disk: cache.g3_offload.as_ref().filter(|_| host_blocks.is_some()).map(|disk| disk.num_g3_blocks),
        transfer_rules: match semantics {
            Semantics::Native => TransferRules::Nixl,
            Semantics::Aisimulate013 => TransferRules::Aisimulate013,
        },
        ..Config::new(blocks.number + null_block, cache.block_size?, context_length(keys.context_length))
    };
    match config.validate() {
        Ok(()) => Some(Rank { config, blocks }),
        Err(error) => {
            refuse(NAMES, &error, findings);
            None
        }
    }
}

/// Token budget and seats, filled in.
fn limits(keys: &mut RoleKeys, chunked_prefill: bool, findings: &mut Findings) -> Option<(u32, u32)> {
    let scheduler = &keys.worker.scheduler;
    let (tokens, seats) = match (scheduler.max_batched_tokens, scheduler.max_sequences) {
        (Some(tokens), Some(seats)) => (tokens, seats),
        (tokens, seats) => match keys.defaults {
            // Prefill workers of AISimulate take one prompt at a time.
            Defaults::Aisimulate if keys.role == "prefill" => (tokens.unwrap_or(8192), seats.unwrap_or(1)),
            Defaults::Aisimulate => (tokens.unwrap_or(8192), seats.unwrap_or(256)),
            Defaults::Native => own_limits(keys, tokens, seats, chunked_prefill, findings)?,
        },
    };
    let scheduler = &mut keys.worker.scheduler;
    scheduler.max_batched_tokens = Some(tokens);
    scheduler.max_sequences = Some(seats);
    Some((tokens, seats))
}

/// Those that vLLM's API server takes for what is not given (engine/arg_utils.py of 0.33.0,
/// `get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args`).
fn own_limits(
    keys: &mut RoleKeys,
    tokens: Option<u32>,
    seats: Option<u32>,
    chunked_prefill: bool,
    findings: &mut Findings,
) -> Option<(u32, u32)> {
    let needed = if tokens.is_none() { "scheduler.max_batched_tokens" } else { "scheduler.max_sequences" };
    let memory = gpu::memory_gib(keys, needed, findings)?;
    let hardware = keys.hardware.to_lowercase();
    let (own_tokens, own_seats) = if memory >= 160.0 {
        (16384, 1024)
    } else if memory >= 70.0 && !hardware.contains("a100") && !hardware.contains("gb10") {
        (8192, 1024)
    } else {
        (2048, 256)
    };
    let limited_seats = seats.unwrap_or(own_seats);
    let tokens = tokens.unwrap_or_else(|| match keys.context_length {
        ContextLength::Max(_) => own_tokens,
        ContextLength::Tokens(length) => {
            let whole_prompts = if chunked_prefill { own_tokens } else { own_tokens.max(length) };
            whole_prompts.min(limited_seats.saturating_mul(length))
        }
    });
    Some((tokens, seats.unwrap_or(own_seats.min(tokens))))
}
