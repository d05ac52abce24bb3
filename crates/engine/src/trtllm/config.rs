//! The settings of a TensorRT-LLM rank, under the engine's own names where it has one, and what is refused
//! about them.
//!
//! Plain values: where they come from (YAML, a flag) is not known here.

use crate::error::ConfigError;
use crate::event::KvEventScope;

/// Who may hold blocks (`capacity_scheduler_policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityPolicy {
    /// A request starts only when prompt and longest output fit beside what all others may still need;
    /// nothing is ever paused. The engine's default.
    GuaranteedNoEvict,
    /// A request starts when its prompt fits; when a next block does not, the request started last is paused.
    MaxUtilization,
}

/// What a request whose whole prompt is cached computes before its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullHit {
    /// The end of its prompt, as the engine must: there is nothing else to sample from.
    Recompute,
    /// Nothing, as in AISimulate 0.13: it begins as a decode of its last prompt token.
    Reference,
}

/// Which side of a hand-off gives a request's first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstToken {
    /// The one that computed the prompt has sampled it, and the other gives it when the KV is there.
    Prefill,
    /// The one that goes on, by a pass of its own, as in AISimulate 0.13. Its driver makes room then.
    Decode,
}

/// Settings of one rank (llmapi/llm_args.py: `TorchLlmArgs`, `KvCacheConfig`, `SchedulerConfig`).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Blocks of the pool (`blocks_in_primary_pool`). All of them can hold tokens.
    pub num_blocks: u32,
    /// `tokens_per_block`.
    pub block_size: u32,
    /// Prompt and output together, at most.
    pub max_seq_len: u32,
    /// Requests that are active at a time. The others wait in a queue outside the scheduler.
    pub max_batch_size: u32,
    /// Token budget of a pass.
    pub max_num_tokens: u32,
    /// `capacity_scheduler_policy`.
    pub capacity_policy: CapacityPolicy,
    /// `enable_chunked_prefill`. Without it a prompt longer than the token budget is refused.
    pub chunked_prefill: bool,
    /// What chunks are rounded down to; `None`: one block, as in the engine.
    pub chunk_unit_size: Option<u32>,
    /// `enable_block_reuse`.
    pub block_reuse: bool,
    /// `enable_partial_reuse`, as far as it is modelled: of a prompt that is cached to its end, all but the
    /// last token.
    pub partial_reuse: bool,
    /// `enable_prefix_aware_scheduling`, as far as it is modelled: a request that is about to compute the
    /// same block as another waits, and then reuses it.
    pub beneficial_to_skip: bool,
    /// Schedule pass n+1 before pass n is processed (not `disable_overlap_scheduler`).
    pub overlap: bool,
    /// What a fully cached prompt computes.
    pub full_hit: FullHit,
    /// Who gives the first token of requests that are handed over.
    pub first_token: FirstToken,
    /// Cut outputs to what the pool can hold, as AISimulate does, where the engine refuses the request.
    pub clamp_output_to_pool: bool,
    /// Which events of the reuse tree are kept.
    pub kv_events: KvEventScope,
}

impl Config {
    /// The engine's defaults, for a pool and a context length.
    pub fn new(num_blocks: u32, block_size: u32, max_seq_len: u32) -> Config {
        Config {
            num_blocks,
            block_size,
            max_seq_len,
            max_batch_size: 2048,
            max_num_tokens: 8192,
            capacity_policy: CapacityPolicy::GuaranteedNoEvict,
            chunked_prefill: false,
            chunk_unit_size: None,
            block_reuse: true,
            partial_reuse: true,
            beneficial_to_skip: true,
            overlap: true,
            full_hit: FullHit::Recompute,
            first_token: FirstToken::Prefill,
            clamp_output_to_pool: false,
            kv_events: KvEventScope::Off,
        }
    }

    /// Blocks that can hold tokens.
    pub fn usable_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Passes that may be in flight.
    pub fn depth(&self) -> usize {
        if self.overlap { 2 } else { 1 }
    }

    /// What chunks are rounded down to.
    pub fn chunk_unit(&self) -> u32 {
        self.chunk_unit_size.unwrap_or(self.block_size)
    }

    /// The checks that the engine makes or that its rules need to end.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail =
            |field, got: String, problem: &str| Err(ConfigError { field, got, problem: problem.to_owned() });
        let at_least_one = [
            ("num_blocks", self.num_blocks),
            ("block_size", self.block_size),
            ("max_batch_size", self.max_batch_size),
            ("max_num_tokens", self.max_num_tokens),
        ];
        for (field, value) in at_least_one {
            if value == 0 {
                return fail(field, "0".into(), "must be at least 1");
            }
        }
        if u64::from(self.num_blocks) * u64::from(self.block_size) > 1 << 40 {
            return fail(
                "num_blocks",
                self.num_blocks.to_string(),
                "times block_size is more than 2^40 tokens",
            );
        }
        if self.num_blocks >= 1 << 31 {
            return fail("num_blocks", self.num_blocks.to_string(), "must be below 2^31");
        }
        if self.max_seq_len < 2 {
            return fail(
                "max_seq_len",
                self.max_seq_len.to_string(),
                "must be at least 2: one prompt token and one output token",
            );
        }
        // llmRequest.h, setPrepopulatedPromptLen: a chunk that is not the last ends with a block.
        let unit = self.chunk_unit();
        if unit == 0 || !unit.is_multiple_of(self.block_size) {
            return fail(
                "chunk_unit_size",
                unit.to_string(),
                &format!("must be a multiple of block_size ({})", self.block_size),
            );
        }
        if self.chunked_prefill && self.max_num_tokens < unit {
            return fail(
                "max_num_tokens",
                self.max_num_tokens.to_string(),
                &format!("must be at least chunk_unit_size ({unit}) with chunked prefill"),
            );
        }
        // A paused request computes its outputs again with its prompt; the engine fails where that exceeds
        // the token budget.
        if self.capacity_policy == CapacityPolicy::MaxUtilization
            && !self.chunked_prefill
            && self.max_num_tokens < self.max_seq_len
        {
            return fail(
                "max_num_tokens",
                self.max_num_tokens.to_string(),
                &format!(
                    "must be at least max_seq_len ({}) when requests can be paused and prompts not be split",
                    self.max_seq_len
                ),
            );
        }
        Ok(())
    }
}
