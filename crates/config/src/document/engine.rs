//! The keys below `engine`: whose rules hold, the workers, and their scheduler, cache and timing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What serves.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Engine {
    /// How the workers share the work.
    #[serde(default)]
    pub mode: Mode,
    /// Name of the model. A label: the timing types of this version do not read it.
    #[schemars(length(min = 1), extend("pattern" = r"\S"))]
    pub model: String,
    /// Name of the accelerator. A label: the timing types of this version do not read it.
    #[schemars(length(min = 1), extend("pattern" = r"\S"))]
    pub hardware: String,
    /// The engine.
    #[serde(default)]
    pub backend: Backend,
    /// Version of the engine, in quotes. A label: it does not change how the scheduler behaves.
    #[serde(default)]
    #[schemars(length(min = 1), extend("pattern" = r"\S"))]
    pub backend_version: Option<String>,
    /// Most tokens of prompt and output together, or max: no limit, since the model is only a name.
    #[serde(default)]
    pub context_length: ContextLength,
    /// Prompts longer than what is left of a pass are split.
    #[serde(default = "yes")]
    pub enable_chunked_prefill: bool,
    /// Whose rules hold where the real engine and AISimulate 0.13 differ.
    #[serde(default)]
    pub semantics: Semantics,
    /// The workers, by role.
    pub workers: Workers,
}

fn yes() -> bool {
    true
}

/// How the workers share the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Every worker does prefill and decode.
    #[default]
    Aggregated,
}

/// The engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backend {
    /// vLLM, scheduler of version 0.33.0.
    #[default]
    Vllm,
}

/// Most tokens of prompt and output together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ContextLength {
    /// A number.
    Tokens(#[schemars(range(min = 2, max = 2_147_483_647))] u32),
    /// No limit.
    Max(Max),
}

impl Default for ContextLength {
    fn default() -> ContextLength {
        ContextLength::Max(Max::Max)
    }
}

/// The word max.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Max {
    /// No limit.
    Max,
}

/// Whose rules hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Semantics {
    /// The real engine's.
    #[default]
    Native,
    /// Those of AISimulate 0.13.
    #[serde(rename = "aisimulate_0_13")]
    Aisimulate013,
}

/// The workers, by role.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workers {
    /// Workers that do prefill and decode.
    pub aggregated: Worker,
}

/// One pool of equal workers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worker {
    /// From the decision to add a worker during the run to its readiness. The workers of the start are
    /// ready at 0, and this version adds none.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub startup_seconds: f64,
    /// How many workers there are, and how the model is spread over the accelerators of one.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// What goes into a pass.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// The KV cache of one rank.
    pub kv_cache: KvCache,
    /// How long a pass takes.
    pub timing: Timing,
}

/// How many workers there are, and how the model is spread over the accelerators of one.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Parallelism {
    /// Workers.
    #[schemars(range(min = 1, max = 100_000))]
    pub replicas: u32,
    /// Tensor parallelism: accelerators of one worker.
    #[schemars(range(min = 1, max = 100_000))]
    pub tensor: u32,
    /// Pipeline stages.
    #[schemars(range(min = 1, max = 1))]
    pub pipeline: u32,
    /// Data-parallel ranks of one worker.
    #[schemars(range(min = 1, max = 1))]
    pub attention_data: u32,
    /// Tensor parallelism of the experts. Adds no accelerator; the timing types of this version do not
    /// read it.
    #[schemars(range(min = 1, max = 100_000))]
    pub moe_tensor: u32,
    /// Expert parallelism. Adds no accelerator; the timing types of this version do not read it.
    #[schemars(range(min = 1, max = 100_000))]
    pub moe_expert: u32,
}

impl Default for Parallelism {
    fn default() -> Parallelism {
        Parallelism { replicas: 1, tensor: 1, pipeline: 1, attention_data: 1, moe_tensor: 1, moe_expert: 1 }
    }
}

/// What goes into a pass. Limits are those of one rank.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scheduler {
    /// Token budget of a pass.
    #[schemars(range(min = 1))]
    pub max_batched_tokens: u32,
    /// Seats of the running list.
    #[schemars(range(min = 1))]
    pub max_sequences: u32,
    /// Passes from one that carried prefill to the next that may, while requests decode.
    #[schemars(range(min = 1))]
    pub prefill_schedule_interval: u32,
    /// Seats for admission, when fewer than max_sequences.
    #[schemars(range(min = 1))]
    pub max_num_active_seqs: Option<u32>,
    /// The next pass is scheduled before this one is processed: true under native semantics, false under
    /// aisimulate_0_13.
    pub async_scheduling: Option<bool>,
    /// Who loses its blocks first under policy fcfs.
    pub preemption_mode: PreemptionMode,
    /// Longest prefill chunk while more than one request is present; 0 is none.
    pub long_prefill_token_threshold: u32,
    /// Floor that threshold at the budget divided by the number of requests.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Order of admission and preemption.
    pub policy: QueuePolicy,
    /// Fraction of the blocks kept free at admission while something runs, below 1.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub watermark: f64,
    /// The whole prompt must fit at admission, not only its first chunk.
    pub reserve_full_isl: bool,
    /// Refuse a request when this many are unfinished.
    #[schemars(range(min = 1))]
    pub max_num_queued_reqs: Option<u32>,
    /// Refuse a request when this many prompt tokens await their first output.
    #[schemars(range(min = 1))]
    pub max_num_queued_tokens: Option<u64>,
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler {
            max_batched_tokens: 8192,
            max_sequences: 256,
            prefill_schedule_interval: 1,
            max_num_active_seqs: None,
            async_scheduling: None,
            preemption_mode: PreemptionMode::Lifo,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            policy: QueuePolicy::Fcfs,
            watermark: 0.0,
            reserve_full_isl: true,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
        }
    }
}

/// Who loses its blocks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PreemptionMode {
    /// The request admitted last.
    Lifo,
    /// The request admitted first.
    Fifo,
}

/// Order of admission and preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueuePolicy {
    /// First come, first served.
    Fcfs,
    /// By priority and then arrival, smallest first.
    Priority,
}

/// The KV cache of one rank.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KvCache {
    /// Tokens of a block.
    #[serde(default = "vllm_block_size")]
    #[schemars(range(min = 1))]
    pub block_size: u32,
    /// Blocks of equal prefixes are shared.
    #[serde(default = "yes")]
    pub prefix_caching: bool,
    /// KV bytes of one token, or auto. Kept for the report.
    #[serde(default)]
    pub bytes_per_token: BytesPerToken,
    /// How many blocks there are.
    pub capacity: Capacity,
}

fn vllm_block_size() -> u32 {
    64
}

/// KV bytes of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum BytesPerToken {
    /// A number.
    Bytes(#[schemars(range(min = 1))] u64),
    /// Not known.
    Auto(Auto),
}

impl Default for BytesPerToken {
    fn default() -> BytesPerToken {
        BytesPerToken::Auto(Auto::Auto)
    }
}

/// The word auto.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Auto {
    /// Not known.
    Auto,
}

/// How many blocks a rank has.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Capacity {
    /// Where the number comes from.
    #[serde(rename = "type")]
    pub kind: CapacityType,
    /// Blocks. Under native semantics one of them is vLLM's null block and holds no tokens; under
    /// aisimulate_0_13 all hold tokens.
    #[schemars(range(min = 1, max = 4_000_000_000u32))]
    pub blocks: u32,
}

/// Where the number of blocks comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CapacityType {
    /// It is given.
    Fixed,
}

/// How long a pass takes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Timing {
    /// The law.
    #[serde(rename = "type")]
    pub kind: TimingType,
    /// Milliseconds of a pass with prefill work. Fixed only, and needed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub prefill_ms: Option<f64>,
    /// Milliseconds of a pass with decode work. Fixed only, and needed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub decode_ms: Option<f64>,
    /// Coefficients. Linear only, and needed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear: Option<LinearTiming>,
    /// How the prefill and decode parts of a pass are put together: mixed for linear timing under native
    /// semantics, else sum.
    #[serde(default)]
    pub composition: Option<Composition>,
    /// Divides every term.
    #[serde(default = "one")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub speedup_ratio: f64,
    /// Divides the decode term once more. Needs composition sum.
    #[serde(default = "one")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub decode_speedup_ratio: f64,
}

fn one() -> f64 {
    1.0
}

/// The law of pass time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimingType {
    /// Two constants.
    Fixed,
    /// Linear in tokens, sequences and context.
    Linear,
    /// The polynomials of AISimulate, over the fill of the KV cache.
    Polynomial,
}

/// How the parts of a pass are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Composition {
    /// A prefill term and a decode term, rounded one by one and added.
    Sum,
    /// One term for the whole pass. Linear only.
    Mixed,
}

/// Coefficients of linear timing, in milliseconds.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LinearTiming {
    /// Per pass; with composition sum, per term.
    #[schemars(range(min = 0))]
    pub base_ms: f64,
    /// Per token computed.
    #[schemars(range(min = 0))]
    pub per_new_token_ms: f64,
    /// Per unit of new·(new + before) of a prefill chunk.
    #[schemars(range(min = 0))]
    pub per_new_times_context_ms: f64,
    /// Per sequence in the pass.
    #[schemars(range(min = 0))]
    pub per_sequence_ms: f64,
    /// Per token of context of a decode.
    #[schemars(range(min = 0))]
    pub per_context_token_ms: f64,
}
