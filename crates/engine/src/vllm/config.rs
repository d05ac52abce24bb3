//! The settings of a vLLM rank, under vLLM's own names, and what vLLM refuses about them.
//!
//! Plain values: where they come from (YAML, an oracle's config, a flag) is not known here.

use crate::error::ConfigError;
use crate::event::KvEventScope;
use crate::kv::MOST_BLOCKS;

/// Order of admission and of preemption (vLLM `--scheduling-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served.
    Fcfs,
    /// By (priority, arrival), smallest first.
    Priority,
}

/// Who loses its blocks first under [`Policy::Fcfs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptionMode {
    /// The request admitted last: what vLLM does.
    Lifo,
    /// The request admitted first: an option of AISimulate, not of vLLM.
    Fifo,
}

/// How the work of a preempted request that computes its prompt and outputs again is counted. The
/// schedule is the same; only the shape that the timing source sees differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedWork {
    /// As prefill, all of it: what the GPU does.
    Prefill,
    /// As AISimulate 0.13 does: output tokens computed again cost nothing, and the pass that gives the
    /// next token counts as one more decode of the request.
    PromptAndDecode,
}

/// Which part a rank takes in transfers of KV (vLLM `--kv-transfer-config`, `kv_role`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvRole {
    /// It loads what others computed: the decode side.
    Consumer,
    /// Others load what it computed: the prefill side.
    Producer,
    /// Both.
    Both,
}

impl KvRole {
    /// It loads.
    pub fn consumes(self) -> bool {
        self != KvRole::Producer
    }

    /// Others load from it.
    pub fn produces(self) -> bool {
        self != KvRole::Consumer
    }
}

/// When loads start and when their ends are heard of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferRules {
    /// As with NIXL's pull connector: both with passes.
    #[default]
    Nixl,
    /// As in AISimulate 0.13: a load takes its blocks when the driver says so ([`super::Rank::start_load`]), also for
    /// a prompt that is cached whole, and ends at once.
    Aisimulate013,
}

/// What becomes of a request whose load failed (vLLM `kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvLoadFailurePolicy {
    /// It ends.
    #[default]
    Fail,
    /// It computes here what is missing.
    Recompute,
}

/// Settings of one rank. Field names are vLLM 0.33.0's (config/scheduler.py, config/cache.py).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `num_gpu_blocks`. One of them is the null block, so one less can hold tokens.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// `enable_prefix_caching`.
    pub prefix_caching: bool,
    /// `enable_chunked_prefill`.
    pub chunked_prefill: bool,
    /// Token budget of a pass.
    pub max_num_batched_tokens: u32,
    /// Seats of the running list.
    pub max_num_seqs: u32,
    /// Seats for admission, when fewer than `max_num_seqs`.
    pub max_num_active_seqs: Option<u32>,
    /// Context length: prompt and output together.
    pub max_model_len: u32,
    /// Order of admission and preemption.
    pub policy: Policy,
    /// Victim under FCFS.
    pub preemption_mode: PreemptionMode,
    /// Longest prefill chunk while more than one request is present; 0 is none.
    pub long_prefill_token_threshold: u32,
    /// Floor that threshold at the budget divided by the number of requests.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Schedule pass n+1 before pass n is processed (vLLM's default).
    pub async_scheduling: bool,
    /// Fraction of the blocks kept free at admission while something is running.
    pub watermark: f64,
    /// `scheduler_reserve_full_isl`: the whole prompt must fit at admission, not only its first chunk.
    pub reserve_full_isl: bool,
    /// Passes from one that carried prefill to the next that may, while requests decode.
    pub prefill_schedule_interval: u32,
    /// Refuse a request when this many are unfinished.
    pub max_num_queued_reqs: Option<u32>,
    /// Refuse a request when this many prompt tokens await their first output.
    pub max_num_queued_tokens: Option<u64>,
    /// Its part in transfers of KV; none without a connector.
    pub kv_role: Option<KvRole>,
    /// Blocks of the host's memory to which full blocks are copied (vLLM's native CPU offload); none without it.
    pub host_blocks: Option<u32>,
    /// A disk behind it (the tier `fs` of vLLM's tiered offload), and the most blocks that it holds; the engine's own is
    /// not bounded.
    pub disk: Option<Option<u32>>,
    /// When its loads start and end.
    pub transfer_rules: TransferRules,
    /// What becomes of a request whose load failed.
    pub kv_load_failure_policy: KvLoadFailurePolicy,
    /// Which events of the prefix cache are kept.
    pub kv_events: KvEventScope,
    /// How the work of a resumed request is counted in a pass's shape.
    pub resumed_work: ResumedWork,
}

impl Config {
    /// vLLM's defaults on a GPU below 70 GiB (engine/arg_utils.py), for a pool and a context length.
    pub fn new(num_blocks: u32, block_size: u32, max_model_len: u32) -> Config {
        Config {
            num_blocks,
            block_size,
            prefix_caching: true,
            chunked_prefill: true,
            max_num_batched_tokens: 2048,
            max_num_seqs: 256,
            max_num_active_seqs: None,
            max_model_len,
            policy: Policy::Fcfs,
            preemption_mode: PreemptionMode::Lifo,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            async_scheduling: true,
            watermark: 0.0,
            reserve_full_isl: true,
            prefill_schedule_interval: 1,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            kv_role: None,
            host_blocks: None,
            disk: None,
            transfer_rules: TransferRules::Nixl,
            kv_load_failure_policy: KvLoadFailurePolicy::Fail,
            kv_events: KvEventScope::Off,
            resumed_work: ResumedWork::Prefill,
        }
    }

    /// Blocks that can hold tokens.
    pub fn usable_blocks(&self) -> u32 {
        self.num_blocks - 1
    }

    /// Batches that may be in flight (`max_concurrent_batches` without pipeline parallelism).
    pub fn depth(&self) -> usize {
        if self.async_scheduling { 2 } else { 1 }
    }

    /// The checks of vLLM's own configuration, and the bounds of this implementation.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail =
            |field, got: String, problem: &str| Err(ConfigError { field, got, problem: problem.to_owned() });
        if self.num_blocks < 2 {
            return fail(
                "num_blocks",
                self.num_blocks.to_string(),
                "is too few: one is the null block, at least 2 are needed",
            );
        }
        if self.num_blocks > MOST_BLOCKS {
            return fail("num_blocks", self.num_blocks.to_string(), "is more than 2^28");
        }
        if self.block_size == 0 {
            return fail("block_size", "0".into(), "must be at least 1");
        }
        if u64::from(self.num_blocks) * u64::from(self.block_size) > 1 << 40 {
            return fail(
                "num_blocks",
                self.num_blocks.to_string(),
                "times block_size is more than 2^40 tokens",
            );
        }
        if self.max_num_seqs == 0 {
            return fail("max_num_seqs", "0".into(), "must be at least 1");
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return fail(
                "max_num_batched_tokens",
                self.max_num_batched_tokens.to_string(),
                &format!("must be at least max_num_seqs ({})", self.max_num_seqs),
            );
        }
        if self.max_model_len < 2 {
            return fail(
                "max_model_len",
                self.max_model_len.to_string(),
                "must be at least 2: one prompt token and one output token",
            );
        }
        if !self.chunked_prefill && self.max_num_batched_tokens < self.max_model_len {
            return fail(
                "max_num_batched_tokens",
                self.max_num_batched_tokens.to_string(),
                &format!(
                    "must be at least max_model_len ({}) when chunked prefill is off",
                    self.max_model_len
                ),
            );
        }
        if let Some(active) = self.max_num_active_seqs
            && (active == 0 || active > self.max_num_seqs)
        {
            return fail(
                "max_num_active_seqs",
                active.to_string(),
                &format!("must be from 1 to max_num_seqs ({})", self.max_num_seqs),
            );
        }
        if self.long_prefill_token_threshold > self.max_model_len {
            return fail(
                "long_prefill_token_threshold",
                self.long_prefill_token_threshold.to_string(),
                &format!("must not exceed max_model_len ({})", self.max_model_len),
            );
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return fail("watermark", self.watermark.to_string(), "must be from 0 to below 1");
        }
        if self.host_blocks.is_some() && self.kv_role != Some(KvRole::Both) {
            return fail("host_blocks", "some".into(), "need kv_role both: the offload loads and stores");
        }
        if self.disk.is_some() && self.host_blocks.is_none() {
            return fail(
                "disk",
                "some".into(),
                "needs host_blocks: what is on a disk comes by way of the host",
            );
        }
        if self.host_blocks == Some(0) {
            return fail("host_blocks", "0".into(), "must be at least 1");
        }
        if self.prefill_schedule_interval == 0 {
            return fail("prefill_schedule_interval", "0".into(), "must be at least 1");
        }
        Ok(())
    }
}
