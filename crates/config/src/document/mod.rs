//! The layout of a configuration file: every key that exists, with its type, default and bounds.
//!
//! These types are the only place where a key is declared. The JSON Schema is made from them, the checks
//! run on that schema, and the values in effect are these types written out again. Their comments are
//! the descriptions that a person reads. What keys mean together is not known here (see `resolve`).

mod engine;
mod fleet;
mod traffic;

pub(crate) use engine::{
    Backend, BytesPerToken, CapacityPolicy, CapacityType, ChunkedPrefillSize, Composition, ContextLength,
    Defaults, Engine, GemmQuantMode, HicacheWritePolicy, KvCacheQuantMode, KvTransfer, LinkSharing, Mode,
    MoeQuantMode, Off, PreemptionMode, PreemptionThreshold, QueuePolicy, RankPlacement, SchedulePolicy,
    Scheduler, Semantics, Timing, TimingType, TransferTiming, Worker,
};
pub(crate) use fleet::{
    Faults, LoadPredictor, OnCrash, Planner, PlannerPolicy, PlannerTarget, RoleFaults, RolePlanner,
    ScalingMetric,
};
pub(crate) use traffic::{LoadType, SourceType, TraceFormat, Traffic};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

/// One prediction: what serves, and what is asked of it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Windtunnel prediction")]
pub(crate) struct Document {
    /// What is asked. Left out: 100 synthetic requests of 1024 input and 128 output tokens, 10 at a
    /// time. Given: nothing of that default is merged in.
    #[serde(default)]
    pub traffic: Traffic,
    /// What serves.
    pub engine: Engine,
    /// Who takes the next request.
    #[serde(default)]
    pub router: Router,
    /// How the number of workers changes during the run.
    #[serde(default, skip_serializing_if = "Planner::is_off")]
    pub planner: Planner,
    /// What fails.
    #[serde(default, skip_serializing_if = "Faults::is_none")]
    pub faults: Faults,
    /// What a good request is, and what serving costs.
    #[serde(default)]
    pub evaluation: Evaluation,
}

/// Who takes the next request.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Router {
    /// How a worker is chosen.
    pub policy: RouterPolicy,
    /// How a decode worker is chosen where prefill and decode have workers of their own, of the policies that look at
    /// loads or at nothing; if not given the same as policy, if it is one of them, else least_requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_policy: Option<RouterPolicy>,
    /// Seed of what the policy draws, 42 if not given. Not of round_robin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Tokens of the blocks in which the router knows the prefix caches. The engine's, for SGLang a multiple of a
    /// page, 64 if that is smaller than 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub block_size: Option<u32>,
    /// kv_router: credit of a cached block against a block of prompt to compute; 1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub overlap_score_credit: Option<f64>,
    /// kv_router: how fast that credit falls with the prompt tokens that a rank has to compute beyond the least
    /// of all; 0 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub overlap_score_credit_decay: Option<f64>,
    /// kv_router: credit of a block of the prompt in the host's memory, behind those on the accelerator; 0.75 if not
    /// given. Needs kv_cache.host_offload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub host_cache_hit_weight: Option<f64>,
    /// kv_router: credit of a block of the prompt on a disk, behind those of the host; 0.25 if not given. Needs
    /// kv_cache.g3_offload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub disk_cache_hit_weight: Option<f64>,
    /// kv_router: weight of a block of prompt to compute against a block in use; 1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub prefill_load_scale: Option<f64>,
    /// kv_router: blocks that each unfinished request counts as, beside its own; 0 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub decode_active_request_weight: Option<f64>,
    /// kv_router: 0, or if not given, the least cost wins; above, a rank is drawn by costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub temperature: Option<f64>,
    /// kv_router: whether prompts being computed count less as time passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_load_model: Option<PrefillLoadModel>,
    /// kv_router: hold requests back while every rank has more than this part of its token budget of prompt to
    /// compute. Never if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub queue_threshold: Option<f64>,
    /// kv_router: who goes first of those held back; fcfs if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_policy: Option<QueueOrder>,
    /// prefix_hash: whole blocks from the start of a prompt that decide; 4 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub prefix_blocks: Option<u32>,
    /// prefix_hash: most unfinished requests of a worker, in means; 1.25 if not given, 0 for no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub load_factor: Option<f64>,
    /// cache_aware: a prompt goes to its prefix when more than this part of it was sent there; 0.3 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub cache_threshold: Option<f64>,
    /// cache_aware: loads are unequal when they differ by more than this; 64 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_abs_threshold: Option<u64>,
    /// cache_aware: and by more than this factor; 1.5 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1e9))]
    pub balance_rel_threshold: Option<f64>,
    /// cache_aware: most tokens of what is remembered to have been sent to a worker; 2^24 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_tree_tokens: Option<u64>,
    /// scorers: what workers are scored by, at least one; prefix_cache 3, queue 2 and kv_usage 2 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorers: Option<Vec<ScorerKeys>>,
    /// From a change of a prefix cache, at the end of a pass, to the instant at which the router knows of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub kv_event_lag_ms: Option<f64>,
}

/// What workers are scored by.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScorerKeys {
    /// What it looks at.
    #[serde(rename = "type")]
    pub kind: ScorerType,
    /// What it counts.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub weight: f64,
}

/// What a scorer looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScorerType {
    /// The part of the prompt that is cached.
    PrefixCache,
    /// Waiting requests.
    Queue,
    /// KV blocks in use.
    KvUsage,
    /// Unfinished requests.
    ActiveRequests,
    /// Where the conversation was last.
    Session,
}

/// Whether prompts being computed count less as time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrefillLoadModel {
    /// none: a prompt counts in full until its first token; timing: less by the time that the deployment's timing
    /// gives for it.
    #[serde(rename = "type")]
    pub kind: PrefillLoadKind,
}

impl PrefillLoadModel {
    pub(crate) const NONE: PrefillLoadModel = PrefillLoadModel { kind: PrefillLoadKind::None };
}

/// How prompts being computed count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PrefillLoadKind {
    /// In full until the first token.
    None,
    /// Less by the time that the deployment's timing gives for them.
    Timing,
}

/// Who goes first of the requests that a router holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueueOrder {
    /// Who came first.
    Fcfs,
    /// Who came last.
    Lcfs,
    /// Who has the fewest uncached prompt tokens for its priority.
    Wspt,
}

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RouterPolicy {
    /// Every worker in turn.
    #[default]
    RoundRobin,
    /// Any worker, each as likely as the others.
    Random,
    /// The one with the fewest unfinished requests.
    LeastRequests,
    /// The one with the smallest part of its KV blocks in use.
    LeastKv,
    /// Of two drawn at random, the one with fewer unfinished requests.
    PowerOfTwo,
    /// The one on a ring of hashes that the beginning of the prompt leads to.
    PrefixHash,
    /// The one that took the conversation's first request.
    Session,
    /// The one to which most of the prompt was sent before, while loads are about equal.
    CacheAware,
    /// The one with the largest weighted sum of scores.
    Scorers,
    /// The rank where the request costs least, by what is cached of its prompt and by load.
    KvRouter,
}

impl RouterPolicy {
    /// Its name in configuration files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RouterPolicy::RoundRobin => "round_robin",
            RouterPolicy::Random => "random",
            RouterPolicy::LeastRequests => "least_requests",
            RouterPolicy::LeastKv => "least_kv",
            RouterPolicy::PowerOfTwo => "power_of_two",
            RouterPolicy::PrefixHash => "prefix_hash",
            RouterPolicy::Session => "session",
            RouterPolicy::CacheAware => "cache_aware",
            RouterPolicy::Scorers => "scorers",
            RouterPolicy::KvRouter => "kv_router",
        }
    }
}

/// What a good request is, and what serving costs.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Evaluation {
    /// Bounds that make a request count as good: ttft_ms and itl_ms, or e2e_ms.
    pub sla: Sla,
    /// What an hour of an accelerator costs, in any currency. Without it no cost is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub price_per_gpu_hour: Option<f64>,
}

/// Bounds that make a request count as good.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sla {
    /// Longest time from arrival to the first token.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub ttft_ms: Option<f64>,
    /// Longest mean time between tokens.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub itl_ms: Option<f64>,
    /// Longest time from arrival to the last token. Not together with the other two.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub e2e_ms: Option<f64>,
}

/// The JSON Schema of a file, without references, so that it can be walked key by key.
pub(crate) fn json_schema() -> serde_json::Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Document>().into();
    join_lines(&mut schema);
    schema
}

/// Descriptions are comments, broken into lines; here they are texts again.
fn join_lines(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    serde_json::Value::String(text) if key == "description" => {
                        *text = text.replace('\n', " ")
                    }
                    value => join_lines(value),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}
