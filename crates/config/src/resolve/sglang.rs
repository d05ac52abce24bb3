//! The settings of an SGLang rank, checked as SGLang checks them. Names are those of server_args.py of
//! 0.5.23; where a default or a rule is worked out by its code, the comment names the file.

use super::capacity::{self, Limits};
use super::engine::{KV_CACHE, Rank, SCHEDULER, ahead, context_length, refuse};
use super::role::RoleKeys;
use super::{Findings, gpu, host};
use crate::document::{
    ChunkedPrefillSize, ContextLength, Defaults, Off, PreemptionThreshold, QueuePolicy, SchedulePolicy,
    Scheduler, Semantics as SemanticsKey,
};
use crate::experiment::Semantics;
use std::path::Path;
use windtunnel_engine::sglang::{Config, Disaggregation, HandOffRules, Policy, Priority};

/// SGLang's fields that have another name here, and their paths.
const NAMES: &[(&str, &str)] = &[
    ("page_size", "engine.workers.aggregated.kv_cache.block_size"),
    ("max_running_requests", "engine.workers.aggregated.scheduler.max_sequences"),
    ("context_length", "engine.context_length"),
];

/// Makes the settings and fills in the defaults. The block size is in the keys already.
pub(super) fn rank(
    keys: &mut RoleKeys,
    folder: &Path,
    semantics: Semantics,
    findings: &mut Findings,
) -> Option<Rank<Config>> {
    let page_size = keys.worker.kv_cache.block_size?;
    let chunk = chunk(keys, semantics, findings);
    let blocks = chunk.and_then(|_| {
        let limits = limits(keys);
        capacity::blocks(keys, &limits, folder, semantics, findings)
    });
    let max_total_tokens = blocks.as_ref().and_then(|blocks| pool(blocks.number, page_size, findings));
    let seats = max_total_tokens.and_then(|tokens| seats(keys, tokens, semantics, findings));
    let ranks = keys.worker.parallelism.attention_data;
    let radix_cache = radix_cache(keys, semantics, findings);
    let disaggregation = disaggregation(keys, semantics, seats);
    let scheduler = &mut keys.worker.scheduler;
    let overlap = ahead(&mut scheduler.overlap, "overlap", semantics, findings);
    let conservativeness = *scheduler.schedule_conservativeness.get_or_insert(1.0);
    let max_total_tokens = max_total_tokens?;
    let host = match (keys.semantics, keys.role) {
        (SemanticsKey::Native, "aggregated") => {
            host::hicache(keys, folder, (max_total_tokens, page_size), findings)
        }
        // Refused where the copies are looked at.
        _ => None,
    };
    let scheduler = &mut keys.worker.scheduler;
    let config = Config {
        max_running_requests: seats?,
        max_prefill_tokens: *scheduler.max_prefill_tokens.get_or_insert(16384),
        chunked_prefill_size: chunk?,
        mixed_chunk: *scheduler.mixed_chunk.get_or_insert(false),
        schedule_policy: match scheduler.schedule_policy.get_or_insert(SchedulePolicy::Fcfs) {
            SchedulePolicy::Fcfs => Policy::Fcfs,
            SchedulePolicy::Lpm => Policy::Lpm,
            SchedulePolicy::DfsWeight => Policy::DfsWeight,
            SchedulePolicy::Lof => Policy::Lof,
        },
        priority: priority(scheduler),
        // arg_groups/parallel_hook.py: attention data parallelism scales it once, whatever its degree.
        schedule_conservativeness: if ranks > 1 { conservativeness * 0.3 } else { conservativeness },
        clip_max_new_tokens: *scheduler.clip_max_new_tokens.get_or_insert(4096),
        radix_cache,
        host: host.filter(|_| radix_cache),
        overlap,
        prefill_decode_interval: *scheduler.prefill_decode_interval.get_or_insert(0),
        disaggregation,
        hand_off_rules: match (disaggregation, semantics) {
            (Disaggregation::Off, _) | (_, Semantics::Native) => HandOffRules::InTurns,
            (_, Semantics::Aisimulate013) => HandOffRules::AtOnce,
        },
        ..Config::new(max_total_tokens, page_size, context_length(keys.context_length))
    };
    scheduler.ignore_eos.get_or_insert(false);
    match config.validate() {
        Ok(()) => Some(Rank { config, blocks: blocks? }),
        Err(error) => {
            refuse(NAMES, &error, findings);
            None
        }
    }
}

/// Whether prefixes are kept. On workers that decode for others the engine does so only where it is told to
/// (`--disaggregation-decode-enable-radix-cache`), and not with several ranks
/// (arg_groups/pd_disaggregation_hook.py).
fn radix_cache(keys: &mut RoleKeys, semantics: Semantics, findings: &mut Findings) -> bool {
    let ranks = keys.worker.parallelism.attention_data;
    let decodes = keys.role == "decode" && semantics == Semantics::Native;
    if decodes && ranks > 1 && keys.worker.kv_cache.prefix_caching == Some(true) {
        let message = format!(
            "got true; decode workers of SGLang with several ranks (attention_data {ranks}) keep no prefixes: allowed is false"
        );
        findings.problem(&format!("{KV_CACHE}.prefix_caching"), message);
    }
    let own = !(decodes && (keys.defaults == Defaults::Native || ranks > 1));
    *keys.worker.kv_cache.prefix_caching.get_or_insert(own)
}

/// Which part of its requests a worker serves.
fn disaggregation(keys: &mut RoleKeys, semantics: Semantics, seats: Option<u32>) -> Disaggregation {
    let scheduler = &mut keys.worker.scheduler;
    match (keys.role, semantics) {
        ("prefill", _) => Disaggregation::Prefill,
        ("decode", Semantics::Native) => {
            let usual = seats.map_or(0, Disaggregation::usual_extra_slots);
            Disaggregation::Decode {
                reserved_tokens: *scheduler.num_reserved_decode_tokens.get_or_insert(512),
                extra_slots: *scheduler.disaggregation_decode_extra_slots.get_or_insert(usual),
            }
        }
        ("decode", Semantics::Aisimulate013) => Disaggregation::Decode { reserved_tokens: 0, extra_slots: 0 },
        _ => Disaggregation::Off,
    }
}

/// What the memory goes by: the longest chunk of the worker, or without one the budget of a prefill pass; and
/// the seats, or where they depend on the memory in turn what AISimulate has.
fn limits(keys: &RoleKeys) -> Limits {
    let scheduler = &keys.worker.scheduler;
    Limits {
        max_batched_tokens: match scheduler.chunked_prefill_size {
            Some(ChunkedPrefillSize::Tokens(size)) => size,
            _ => scheduler.max_prefill_tokens.unwrap_or(16384),
        },
        max_sequences: scheduler.max_sequences.unwrap_or(256),
    }
}

/// Tokens of the KV pool.
fn pool(pages: u32, page_size: u32, findings: &mut Findings) -> Option<u32> {
    let tokens = u64::from(pages) * u64::from(page_size);
    let wrong = match u32::try_from(tokens) {
        Ok(tokens) if tokens >= 8 => return Some(tokens),
        Ok(_) => "fewer than 8",
        Err(_) => "more than 2^32 - 1",
    };
    let message = format!("{pages} times block_size ({page_size}) is {wrong} tokens");
    findings.problem(&format!("{KV_CACHE}.capacity.blocks"), message);
    None
}

/// Priority scheduling, when the policy asks for it.
fn priority(scheduler: &mut Scheduler) -> Option<Priority> {
    if *scheduler.policy.get_or_insert(QueuePolicy::Fcfs) == QueuePolicy::Fcfs {
        return None;
    }
    let low_values_first = *scheduler.schedule_low_priority_values_first.get_or_insert(false);
    let threshold = *scheduler.priority_preemption_threshold.get_or_insert(PreemptionThreshold::Above(10));
    Some(Priority {
        low_values_first,
        preemption_threshold: match threshold {
            PreemptionThreshold::Above(difference) => Some(difference.try_into().unwrap_or(i32::MAX)),
            PreemptionThreshold::Off(_) => None,
        },
    })
}

/// The longest prefill of a pass of one rank, `Some(None)` if prompts are not split. The key holds that of
/// the worker, which the ranks of attention data parallelism divide by their number
/// (arg_groups/parallel_hook.py).
fn chunk(keys: &mut RoleKeys, semantics: Semantics, findings: &mut Findings) -> Option<Option<u32>> {
    let path = format!("{SCHEDULER}.chunked_prefill_size");
    let given = keys.worker.scheduler.chunked_prefill_size;
    let off = ChunkedPrefillSize::Off(Off::Off);
    let size = match (keys.enable_chunked_prefill, given) {
        (Some(false), Some(ChunkedPrefillSize::Tokens(size))) => {
            let message = format!("got {size}; engine.enable_chunked_prefill is false: allowed is off");
            findings.problem(&path, message);
            return None;
        }
        (Some(true), Some(ChunkedPrefillSize::Off(_))) => {
            findings
                .problem(&path, "got \"off\"; engine.enable_chunked_prefill is true: allowed is a number");
            return None;
        }
        (_, Some(size)) => size,
        (Some(false), None) => off,
        (_, None) => ChunkedPrefillSize::Tokens(match keys.defaults {
            Defaults::Aisimulate => 8192,
            Defaults::Native => own_chunk(gpu::memory_gib(keys, "scheduler.chunked_prefill_size", findings)?),
        }),
    };
    if size == off && semantics == Semantics::Aisimulate013 {
        let (path, got) = match given {
            Some(_) => (path.as_str(), "\"off\""),
            None => ("engine.enable_chunked_prefill", "false"),
        };
        let message =
            format!("got {got}; under engine.semantics aisimulate_0_13 backend sglang always splits prompts");
        findings.problem(path, message);
        return None;
    }
    keys.enable_chunked_prefill = Some(size != off);
    let worker = &mut keys.worker;
    worker.scheduler.chunked_prefill_size = Some(size);
    let ChunkedPrefillSize::Tokens(of_worker) = size else { return Some(None) };
    let (ranks, page) = (worker.parallelism.attention_data, worker.kv_cache.block_size?);
    let mut of_rank = of_worker / ranks;
    if ranks > 1 && semantics == Semantics::Aisimulate013 {
        // It takes chunks in whole pages, so what is left over is never used.
        of_rank -= of_rank % page;
    }
    if ranks > 1 && (of_rank == 0 || !of_rank.is_multiple_of(page)) {
        let got = findings.shown(&path, of_worker);
        let message = format!(
            "got {got}; divided among {ranks} ranks (attention_data) it is {of_rank}, which must be a multiple \
             of block_size ({page}) above 0"
        );
        findings.problem(&path, message);
        return None;
    }
    Some(Some(of_rank))
}

/// SGLang's own default (arg_groups/memory_hook.py).
fn own_chunk(memory_gib: f64) -> u32 {
    if memory_gib < 20.0 {
        2048
    } else if memory_gib < 60.0 {
        4096
    } else if memory_gib < 160.0 {
        8192
    } else {
        16384
    }
}

/// Seats of the running batch. SGLang cuts them to half the tokens of the pool
/// (mem_cache/kv_cache_configurator.py, `resolve_max_num_reqs`); AISimulate does not.
fn seats(keys: &mut RoleKeys, tokens: u32, semantics: Semantics, findings: &mut Findings) -> Option<u32> {
    let at_most = match semantics {
        Semantics::Native => (tokens / 2).max(1),
        Semantics::Aisimulate013 => u32::MAX,
    };
    let wanted = match (keys.worker.scheduler.max_sequences, keys.defaults) {
        (Some(seats), _) => seats,
        // Prefill workers of AISimulate take one prompt at a time.
        (None, Defaults::Aisimulate) if keys.role == "prefill" => 1,
        (None, Defaults::Aisimulate) => 256,
        (None, Defaults::Native) => match keys.context_length {
            ContextLength::Tokens(length) => {
                let estimate = f64::from(tokens) / f64::from(length) * 512.0;
                // Between the bounds it is a small number.
                estimate.clamp(2048.0, 4096.0) as u32
            }
            ContextLength::Max(_) if tokens / 2 <= 2048 => (tokens / 2).max(1),
            ContextLength::Max(_) => {
                let message = "max: no limit is known, on which the native default of scheduler.max_sequences \
                     depends (512 times the prompts of full length that the pool holds, from 2048 to 4096): \
                     give it, or the key itself";
                findings.problem("engine.context_length", message);
                return None;
            }
        },
    };
    let seats = wanted.min(at_most);
    keys.worker.scheduler.max_sequences = Some(seats);
    Some(seats)
}
