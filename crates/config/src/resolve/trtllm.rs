//! The settings of a TensorRT-LLM rank. They are worked out and checked like those of the other engines;
//! its scheduler is not part of this version, so the last word is that it is not available.

use super::Findings;
use super::engine::{KV_CACHE, SCHEDULER, ahead, context_length};
use crate::document::{CapacityPolicy, Defaults, Engine, QueuePolicy};
use crate::experiment::Semantics;
use windtunnel_engine::RankConfig;

/// Who is admitted by the blocks that are left (`capacity_scheduler_policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Whoever can surely run to its end.
    GuaranteedNoEvict,
    /// Whoever fits now.
    MaxUtilization,
}

/// What a prompt costs that is in the cache to its last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FullHit {
    /// Its last token is computed again.
    Recompute,
    /// Nothing, as in AISimulate 0.13.
    Reference,
}

/// The settings of one rank, under TensorRT-LLM's names.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    policy: Policy,
    num_blocks: u32,
    block_size: u32,
    max_seq_len: u32,
    max_batch_size: u32,
    max_num_tokens: u32,
    chunked_context: bool,
    prefix_reuse: bool,
    overlap: bool,
    full_hit: FullHit,
}

/// Makes the settings, fills in the defaults, and says that they cannot be run.
pub(super) fn rank(keys: &mut Engine, semantics: Semantics, findings: &mut Findings) -> Option<RankConfig> {
    let _settings = settings(keys, semantics, findings)?;
    let message = "got \"trtllm\"; the scheduler of TensorRT-LLM is not supported yet; vllm and sglang are";
    findings.problem("engine.backend", message);
    None
}

/// Defaults under engine.defaults native are those of the PyTorch backend (tensorrt_llm/llmapi/llm_args.py:
/// max_batch_size, max_num_tokens, enable_chunked_prefill). The block size is in the keys already.
fn settings(keys: &mut Engine, semantics: Semantics, findings: &mut Findings) -> Option<Settings> {
    let native = keys.defaults == Defaults::Native;
    let cache = &keys.workers.aggregated.kv_cache;
    let (num_blocks, block_size) = (cache.capacity.blocks, cache.block_size?);
    let prefix_reuse = cache.prefix_caching;
    let chunked_context = *keys.enable_chunked_prefill.get_or_insert(!native);
    let scheduler = &mut keys.workers.aggregated.scheduler;
    scheduler.policy.get_or_insert(QueuePolicy::Fcfs);
    let capacity = *scheduler.capacity_policy.get_or_insert(CapacityPolicy::GuaranteedNoEvict);
    let settings = Settings {
        policy: match capacity {
            CapacityPolicy::GuaranteedNoEvict => Policy::GuaranteedNoEvict,
            CapacityPolicy::MaxUtilization => Policy::MaxUtilization,
        },
        num_blocks,
        block_size,
        max_seq_len: context_length(keys.context_length),
        max_batch_size: *scheduler.max_sequences.get_or_insert(if native { 2048 } else { 256 }),
        max_num_tokens: *scheduler.max_batched_tokens.get_or_insert(8192),
        chunked_context,
        prefix_reuse,
        overlap: ahead(&mut scheduler.overlap, "overlap", semantics, findings),
        full_hit: match semantics {
            Semantics::Native => FullHit::Recompute,
            Semantics::Aisimulate013 => FullHit::Reference,
        },
    };
    if capacity == CapacityPolicy::MaxUtilization && semantics == Semantics::Aisimulate013 {
        let message =
            "got \"max_utilization\"; engine.semantics aisimulate_0_13 knows guaranteed_no_evict only";
        findings.problem(&format!("{SCHEDULER}.capacity_policy"), message);
    }
    if u64::from(num_blocks) * u64::from(block_size) > 1 << 40 {
        let message = format!("{num_blocks} times block_size ({block_size}) is more than 2^40 tokens");
        findings.problem(&format!("{KV_CACHE}.capacity.blocks"), message);
    }
    Some(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Place;
    use crate::resolve::NO_CONTEXT_LIMIT;
    use crate::tree::{Node, Value};

    /// The settings of 64 blocks of 32 tokens, and the problems.
    fn settled(changes: &[(&str, serde_json::Value)], semantics: Semantics) -> (Settings, Vec<String>) {
        let mut engine = serde_json::json!({
            "model": "m", "hardware": "h", "backend": "trtllm",
            "workers": {"aggregated": {
                "scheduler": {},
                "kv_cache": {"block_size": 32, "capacity": {"type": "fixed", "blocks": 64}},
                "timing": {"type": "polynomial"},
            }},
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            engine.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        let mut keys = serde_json::from_value(engine).unwrap();
        let root = Node::new(Value::Null, Place::File { file: "case.yaml".into(), line: 1 });
        let mut findings = Findings { root: &root, problems: Vec::new() };
        let settings = settings(&mut keys, semantics, &mut findings).unwrap();
        (settings, findings.problems.into_iter().map(|problem| problem.path).collect())
    }

    const DEFAULT: Settings = Settings {
        policy: Policy::GuaranteedNoEvict,
        num_blocks: 64,
        block_size: 32,
        max_seq_len: NO_CONTEXT_LIMIT,
        max_batch_size: 256,
        max_num_tokens: 8192,
        chunked_context: true,
        prefix_reuse: true,
        overlap: true,
        full_hit: FullHit::Recompute,
    };

    #[test]
    fn what_is_left_out_has_its_default() {
        assert_eq!(settled(&[], Semantics::Native), (DEFAULT, vec![]));
        let theirs = Settings { overlap: false, full_hit: FullHit::Reference, ..DEFAULT };
        assert_eq!(settled(&[], Semantics::Aisimulate013), (theirs, vec![]));
        let own = Settings { max_batch_size: 2048, chunked_context: false, ..DEFAULT };
        assert_eq!(settled(&[("/defaults", "native".into())], Semantics::Native), (own, vec![]));
    }

    #[test]
    fn the_reference_never_evicts() {
        let utilization = [("/workers/aggregated/scheduler/capacity_policy", "max_utilization".into())];
        let (settings, problems) = settled(&utilization, Semantics::Native);
        assert_eq!((settings.policy, problems.len()), (Policy::MaxUtilization, 0));
        let (_, problems) = settled(&utilization, Semantics::Aisimulate013);
        assert_eq!(problems, ["engine.workers.aggregated.scheduler.capacity_policy"]);
    }
}
