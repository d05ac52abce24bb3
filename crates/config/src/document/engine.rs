//! The keys below `engine`: whose rules hold, the workers, and their scheduler, cache and timing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windtunnel_perf::models::Dtype;

/// What serves.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Engine {
    /// How the workers share the work.
    #[serde(default)]
    pub mode: Mode,
    /// Name of the model, or path of its config.json or of the folder with it. Read by capacity type default;
    /// else a label.
    #[schemars(length(min = 1), extend("pattern" = r"\S"))]
    pub model: String,
    /// Name of the accelerator. A label: the timing types of this version do not read it, only the native
    /// defaults that depend on its memory.
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
    /// Prompts longer than what is left of a pass are split. The engine's default under
    /// engine.defaults native: false for trtllm; else true.
    #[serde(default)]
    pub enable_chunked_prefill: Option<bool>,
    /// Whose rules hold where the real engine and AISimulate 0.13 differ.
    #[serde(default)]
    pub semantics: Semantics,
    /// Whose value holds where a key is left out.
    #[serde(default)]
    pub defaults: Defaults,
    /// Memory of one accelerator in GiB, for the defaults that depend on it. Needed under
    /// engine.defaults native where the hardware is not a known one.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub gpu_memory_gib: Option<f64>,
    /// Type of the matrix products, for timing and capacity of type default: that of the checkpoint if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gemm_quant_mode: Option<GemmQuantMode>,
    /// Type of the experts, for timing and capacity of type default: that of the checkpoint if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moe_quant_mode: Option<MoeQuantMode>,
    /// Type of the numbers in the KV cache, for timing and capacity of type default: that of the checkpoint if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvcache_quant_mode: Option<KvCacheQuantMode>,
    /// How KV gets from prefill to decode workers. Disaggregated only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "KvTransfer")]
    pub kv_transfer: Option<KvTransfer>,
    /// The workers, by role.
    pub workers: Workers,
}

/// Type of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GemmQuantMode {
    /// 16 bits.
    Bfloat16,
    /// 8 bits, with a scale for a row or a matrix.
    Fp8,
    /// 8 bits, with a scale for each block of a matrix.
    Fp8Block,
    /// 4 bits, with a scale for 16 of them.
    Nvfp4,
}

impl GemmQuantMode {
    /// Its name in the measurements.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GemmQuantMode::Bfloat16 => "bfloat16",
            GemmQuantMode::Fp8 => "fp8",
            GemmQuantMode::Fp8Block => "fp8_block",
            GemmQuantMode::Nvfp4 => "nvfp4",
        }
    }
}

/// Type of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MoeQuantMode {
    /// 16 bits.
    Bfloat16,
    /// 8 bits, with a scale for a row or a matrix.
    Fp8,
    /// 8 bits, with a scale for each block of a matrix.
    Fp8Block,
    /// 4 bits, with a scale for 16 of them.
    Nvfp4,
    /// Integers of 4 bits, activations of 16.
    Int4Wo,
    /// MXFP4, activations of 16 bits.
    W4a16Mxfp4,
    /// MXFP4, activations of 8 bits.
    W4a8Mxfp4Mxfp8,
}

impl MoeQuantMode {
    /// Its name in the measurements.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MoeQuantMode::Bfloat16 => "bfloat16",
            MoeQuantMode::Fp8 => "fp8",
            MoeQuantMode::Fp8Block => "fp8_block",
            MoeQuantMode::Nvfp4 => "nvfp4",
            MoeQuantMode::Int4Wo => "int4_wo",
            MoeQuantMode::W4a16Mxfp4 => "w4a16_mxfp4",
            MoeQuantMode::W4a8Mxfp4Mxfp8 => "w4a8_mxfp4_mxfp8",
        }
    }
}

/// Type of the numbers in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KvCacheQuantMode {
    /// 16 bits, half precision.
    Float16,
    /// 16 bits, with the exponent of 32.
    Bfloat16,
    /// 8 bits.
    Fp8,
}

impl KvCacheQuantMode {
    /// The type.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            KvCacheQuantMode::Float16 => Dtype::Float16,
            KvCacheQuantMode::Bfloat16 => Dtype::Bfloat16,
            KvCacheQuantMode::Fp8 => Dtype::Fp8,
        }
    }
}

/// How the workers share the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Every worker does prefill and decode.
    #[default]
    Aggregated,
    /// Some workers do prefill, others decode.
    Disaggregated,
}

/// How KV gets from prefill to decode workers.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KvTransfer {
    /// KV bytes of one token on an accelerator. Auto: by the model, which then has to be a known one where transfers
    /// take time, and the prefill workers' tensor parallelism.
    pub bytes_per_token: BytesPerToken,
    /// Bytes per nanosecond of one transfer. Without it, and without nic_gb_per_second, transfers take no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub bandwidth_gb_per_second: Option<f64>,
    /// Which tokens are charged.
    pub timing_mode: TransferTiming,
    /// What transfers share.
    pub links: LinkSharing,
    /// Bytes per nanosecond of the network interface of a worker, for each direction. With links fair_share only, and
    /// needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub nic_gb_per_second: Option<f64>,
    /// Layers of the model, whose KV is sent layer by layer while the next ones are computed. Not given: all of it is
    /// sent when the prompt is computed. With links per_request only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub overlap_layers: Option<u32>,
}

/// Which tokens of a prompt are charged to its transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransferTiming {
    /// Those of the blocks that the decode worker does not have.
    #[default]
    DestinationMissing,
    /// All.
    FullPrompt,
}

/// What transfers share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LinkSharing {
    /// Nothing: each has its bandwidth.
    #[default]
    PerRequest,
    /// The interfaces of their two workers, evenly.
    FairShare,
}

/// The engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backend {
    /// vLLM, scheduler of version 0.33.0.
    #[default]
    Vllm,
    /// SGLang, scheduler of version 0.5.23.
    Sglang,
    /// TensorRT-LLM, scheduler of its PyTorch backend.
    Trtllm,
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

/// Whose value holds where a key is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Defaults {
    /// That of the AISimulate schema.
    #[default]
    Aisimulate,
    /// The engine's own, as its server has it.
    Native,
}

/// The workers, by role.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workers {
    /// Workers that do prefill and decode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Worker")]
    pub aggregated: Option<Worker>,
    /// Workers that do prefill only. In mode disaggregated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Worker")]
    pub prefill: Option<Worker>,
    /// Workers that do decode only. In mode disaggregated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Worker")]
    pub decode: Option<Worker>,
}

/// One pool of equal workers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worker {
    /// Name of the accelerators of the role, where they are others than engine.hardware. Prefill and decode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// From the decision to add a worker during the run to its readiness. The workers of the start are
    /// ready at 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub startup_seconds: f64,
    /// How many workers there are, and how the model is spread over the accelerators of one.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// Which rank of a worker takes a request: vllm_balancer for vLLM under native semantics, else
    /// round_robin.
    #[serde(default)]
    pub rank_placement: Option<RankPlacement>,
    /// The ranks of a worker start their passes together and wait for the slowest: true under
    /// aisimulate_0_13, for SGLang and TensorRT-LLM, and for vLLM with experts spread over accelerators.
    /// False with one rank, which waits for nobody.
    #[serde(default)]
    pub barrier: Option<bool>,
    /// What goes into a pass.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// The KV cache of one rank.
    #[serde(default)]
    pub kv_cache: KvCache,
    /// How long a pass takes.
    #[serde(default)]
    pub timing: Timing,
}

/// How many workers there are, and how the model is spread over the accelerators of one.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Parallelism {
    /// Workers.
    #[schemars(range(min = 1, max = 100_000))]
    pub replicas: u32,
    /// Tensor parallelism: accelerators of one rank.
    #[schemars(range(min = 1, max = 100_000))]
    pub tensor: u32,
    /// Pipeline stages.
    #[schemars(range(min = 1, max = 1))]
    pub pipeline: u32,
    /// Data-parallel ranks of one worker, each with a scheduler and a KV cache of its own. Multiplies the
    /// accelerators.
    #[schemars(range(min = 1, max = 1024))]
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

/// What goes into a pass. Limits are those of one rank. A key that only some engines have is refused for
/// the others.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scheduler {
    /// Token budget of a pass: 8192, or the engine's own default. SGLang has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_batched_tokens: Option<u32>,
    /// Seats of the running list: 256, or the engine's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_sequences: Option<u32>,
    /// Passes from one that carried prefill to the next that may, while requests decode; 1 if not given.
    /// vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub prefill_schedule_interval: Option<u32>,
    /// Decode passes after a prefill pass before the next one; 0 if not given. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_decode_interval: Option<u32>,
    /// Seats for admission, when fewer than max_sequences. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_num_active_seqs: Option<u32>,
    /// The next pass is scheduled before this one is processed: true under native semantics, false under
    /// aisimulate_0_13. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_scheduling: Option<bool>,
    /// The same for SGLang and TensorRT-LLM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<bool>,
    /// Who loses its blocks first under policy fcfs; lifo if not given. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_mode: Option<PreemptionMode>,
    /// Longest prefill chunk while more than one request is present; 0, if not given, is none. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_prefill_token_threshold: Option<u32>,
    /// Floor that threshold at the budget divided by the number of requests; false if not given. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_prefill_token_threshold_adaptive: Option<bool>,
    /// Order of admission and preemption; fcfs if not given. Priority for vLLM and SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<QueuePolicy>,
    /// Fraction of the blocks kept free at admission while something runs, below 1; 0 if not given. vLLM
    /// only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub watermark: Option<f64>,
    /// The whole prompt must fit at admission, not only its first chunk; true if not given. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_full_isl: Option<bool>,
    /// Refuse a request when this many are unfinished. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_num_queued_reqs: Option<u32>,
    /// Refuse a request when this many prompt tokens await their first output. vLLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_num_queued_tokens: Option<u64>,
    /// Order of the waiting queue; fcfs if not given. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_policy: Option<SchedulePolicy>,
    /// Longest prefill of a pass of the whole worker, longer prompts are split; the ranks divide it by their
    /// number. 8192, or the engine's own default. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunked_prefill_size: Option<ChunkedPrefillSize>,
    /// Token budget of a prefill pass; 16384 if not given. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_prefill_tokens: Option<u32>,
    /// Most output tokens that admission reserves for a request; 4096 if not given. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub clip_max_new_tokens: Option<u32>,
    /// Scales the share of the outputs that is reserved for running requests; 1 if not given. Several ranks
    /// multiply it by 0.3. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e9))]
    pub schedule_conservativeness: Option<f64>,
    /// Decodes ride along with prefills; false if not given. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixed_chunk: Option<bool>,
    /// Every request is sent with ignore_eos: it ends by length only, and admission reserves its whole
    /// output; false if not given. SGLang only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// The smaller priority is the more urgent one; false if not given. SGLang with policy priority only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_low_priority_values_first: Option<bool>,
    /// A running request may be preempted for one that is more urgent by more than this; 10 if not given.
    /// SGLang with policy priority only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_preemption_threshold: Option<PreemptionThreshold>,
    /// Tokens that stay free for each request when room is made for another one; 512 if not given. SGLang's decode
    /// workers only, under native semantics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_reserved_decode_tokens: Option<u32>,
    /// Requests that may receive KV beyond the seats; twice the seats up to 32 of them, else 0, if not given. SGLang's
    /// decode workers only, under native semantics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_decode_extra_slots: Option<u32>,
    /// Who is admitted by the blocks that are left; guaranteed_no_evict if not given. TensorRT-LLM only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_policy: Option<CapacityPolicy>,
}

/// Order of the waiting queue of SGLang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SchedulePolicy {
    /// First come, first served.
    Fcfs,
    /// Longest cached prefix first.
    Lpm,
    /// Depth first through the cached prefixes, the heaviest subtree first.
    DfsWeight,
    /// Longest output first.
    Lof,
}

/// Longest prefill of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ChunkedPrefillSize {
    /// A number.
    Tokens(#[schemars(range(min = 1))] u32),
    /// Prompts are not split.
    Off(Off),
}

/// By how much more urgent a request must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PreemptionThreshold {
    /// A number.
    Above(#[schemars(range(max = 2_147_483_647))] u32),
    /// Nobody is preempted.
    Off(Off),
}

/// The word off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Off {
    /// Not used.
    Off,
}

/// Who is admitted by the blocks that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CapacityPolicy {
    /// Whoever can surely run to its end.
    GuaranteedNoEvict,
    /// Whoever fits now; running requests may be paused later.
    MaxUtilization,
}

/// Which rank of a worker takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RankPlacement {
    /// One after the other.
    RoundRobin,
    /// The rank with the lowest load, as vLLM's own balancer.
    VllmBalancer,
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
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KvCache {
    /// Tokens of a block, which SGLang calls a page: 64 for vLLM, 1 for SGLang, 32 for TensorRT-LLM; under
    /// engine.defaults native 16 for vLLM.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub block_size: Option<u32>,
    /// Blocks of equal prefixes are shared: true, but false on SGLang's decode workers under engine.defaults native or
    /// with several ranks, as the engine has it.
    #[serde(default)]
    pub prefix_caching: Option<bool>,
    /// KV bytes of one token, or auto. Kept for the report.
    #[serde(default)]
    pub bytes_per_token: BytesPerToken,
    /// How many blocks there are.
    #[serde(default)]
    pub capacity: Capacity,
    /// KV is copied to the host's memory and comes back from there: vLLM's native CPU offload, or SGLang's HiCache.
    /// Under native semantics, for aggregated workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_offload: Option<HostOffload>,
    /// What reaches the host's memory is copied on to a disk, and comes back from there: vLLM's tiered offload with a tier
    /// of files. Needs host_offload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub g3_offload: Option<G3Offload>,
}

/// The host's memory of one rank.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostOffload {
    /// Blocks there, or pages. Needed for vLLM; for SGLang instead of hicache_ratio or hicache_size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_000_000_000u32))]
    pub num_host_blocks: Option<u32>,
    /// Tokens there for each token of the pool, and a page more: 2 if neither this nor another size is given. SGLang
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub hicache_ratio: Option<f64>,
    /// The host's memory in GB. SGLang only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub hicache_size: Option<u32>,
    /// When KV is copied to the host: write_through if not given. SGLang only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hicache_write_policy: Option<HicacheWritePolicy>,
    /// Who shares it.
    #[serde(default)]
    pub scope: OffloadScope,
    /// Bytes per nanosecond to the host; 0 is no limit.
    #[serde(default = "host_bandwidth")]
    #[schemars(range(min = 0))]
    pub d2h_bandwidth_gbps: f64,
    /// Bytes per nanosecond from the host; 0 is no limit.
    #[serde(default = "host_bandwidth")]
    #[schemars(range(min = 0))]
    pub h2d_bandwidth_gbps: f64,
    /// Added to each copy.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub latency_to_first_byte_ms: f64,
}

/// The disk of one rank.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct G3Offload {
    /// Who shares it.
    pub scope: G3Scope,
    /// Most blocks there: those used least recently go for others. No bound if not given, as with vLLM's own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_000_000_000u32))]
    pub num_g3_blocks: Option<u32>,
    /// Added to each copy; and how long a look-up takes.
    #[serde(default = "g3_latency")]
    #[schemars(range(min = 0))]
    pub latency_to_first_byte_ms: f64,
    /// Bytes per nanosecond from the disk; 0 is no limit.
    #[serde(default = "g3_bandwidth")]
    #[schemars(range(min = 0))]
    pub read_bandwidth_gbps: f64,
    /// Bytes per nanosecond to the disk; 0 is no limit.
    #[serde(default = "g3_bandwidth")]
    #[schemars(range(min = 0))]
    pub write_bandwidth_gbps: f64,
}

fn g3_latency() -> f64 {
    0.1
}

fn g3_bandwidth() -> f64 {
    10.0
}

/// Who shares a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum G3Scope {
    /// Nobody: each rank has its own.
    WorkerLocal,
}

/// When SGLang copies KV to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "SGLang's own names")]
pub(crate) enum HicacheWritePolicy {
    /// When it is entered in the cache.
    WriteThrough,
    /// When it is used for the second time.
    WriteThroughSelective,
    /// When it is evicted.
    WriteBack,
}

fn host_bandwidth() -> f64 {
    32.0
}

/// Who shares the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OffloadScope {
    /// Nobody: each rank has its own.
    #[default]
    DpRankLocal,
}

/// KV bytes of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum BytesPerToken {
    /// A number.
    Bytes(#[schemars(range(min = 1, max = 1_000_000_000))] u64),
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
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Capacity {
    /// Where the number comes from.
    #[serde(rename = "type")]
    pub kind: CapacityType,
    /// Blocks, or pages. Under native semantics one of vLLM's is the null block and holds no tokens; under
    /// aisimulate_0_13, and of the other engines, all hold tokens. Fixed only, and needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_000_000_000u32))]
    pub blocks: Option<u32>,
    /// Share of the memory that the engine takes: gpu_memory_utilization, mem_fraction_static or
    /// free_gpu_memory_fraction. The engine version's own if not given. Default only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub memory_fraction: Option<f64>,
    /// Bytes kept for CUDA graphs; 0 if not given. Default only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_graph_reserved_bytes: Option<u64>,
}

/// Where the number of blocks comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CapacityType {
    /// From model and hardware.
    #[default]
    Default,
    /// It is given.
    Fixed,
}

/// How long a pass takes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Timing {
    /// The law.
    #[serde(default, rename = "type")]
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
    /// The file of the profile (.npz or .json), or the folder that the profiler left, or the file of the table (.json), looked for beside the configuration file, then
    /// in the working directory. Profile and table only, and needed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Operations that nobody measured are estimated from what the accelerator can do at best; false if not
    /// given. Default only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_roofline: Option<bool>,
    /// Microseconds of the host for a pass, beside what the accelerator does; the engine's own, fitted to
    /// measured deployments, if not given. Default only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e9))]
    pub pass_us: Option<f64>,
    /// Microseconds of the host for each sequence in a pass (its inputs, its sampled token, its output); the engine's
    /// own, fitted to measured deployments, if not given. Default only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e6))]
    pub sequence_us: Option<f64>,
    /// The operations of a pass take together so many times what each takes alone; the engine's own, fitted to
    /// measured deployments, if not given. Default only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000), extend("exclusiveMinimum" = 0))]
    pub gpu_scale: Option<f64>,
    /// Communication between accelerators takes so many times what was measured; 1 if not given. Default
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub communication_scale: Option<f64>,
    /// Speculative decoding as a mean: tokens that a pass drafts for each decode. Needs tokens_per_pass.
    /// Default only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub draft_tokens: Option<u32>,
    /// Tokens that such a pass gives on average, up to one more than are drafted. Needs draft_tokens. Default only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 17))]
    pub tokens_per_pass: Option<f64>,
    /// How the prefill and decode parts of a pass are put together: mixed for default, linear and table
    /// timing under native semantics, else sum.
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

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            kind: TimingType::Default,
            prefill_ms: None,
            decode_ms: None,
            linear: None,
            path: None,
            allow_roofline: None,
            pass_us: None,
            sequence_us: None,
            gpu_scale: None,
            communication_scale: None,
            draft_tokens: None,
            tokens_per_pass: None,
            composition: None,
            speedup_ratio: 1.0,
            decode_speedup_ratio: 1.0,
        }
    }
}

/// The law of pass time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimingType {
    /// From measured times of the operations that a pass of this model is made of.
    #[default]
    Default,
    /// Two constants.
    Fixed,
    /// Linear in tokens, sequences and context.
    Linear,
    /// The polynomials of AISimulate, over the fill of the KV cache.
    Polynomial,
    /// Measured on a grid, as Dynamo's profiler writes it.
    Profile,
    /// Measured by the number of tokens, with what attention adds: what `calibrate` writes.
    Table,
}

/// How the parts of a pass are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Composition {
    /// A prefill term and a decode term, rounded one by one and added.
    Sum,
    /// One term for the whole pass. Default, linear and table only.
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
