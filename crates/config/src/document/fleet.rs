//! The keys below `planner` and `faults`: how the number of workers changes, and what fails.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the number of workers changes during the run.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Planner {
    /// Who decides.
    pub policy: PlannerPolicy,
    /// hpa: what is measured; needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<ScalingMetric>,
    /// hpa: what it should be; needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub target_value: Option<f64>,
    /// hpa: a measure that differs from its target by no more than this part of it changes nothing; 0.1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub tolerance: Option<f64>,
    /// hpa: time between two looks; 15 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub interval_seconds: Option<f64>,
    /// hpa: time over which rates and latencies are measured, rounded up to whole intervals; 60 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub window_seconds: Option<f64>,
    /// hpa: more workers are added only as far as all looks of this time agree; 0 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub scale_up_stabilization_seconds: Option<f64>,
    /// hpa: workers are drained only as far as all looks of this time agree; 300 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub scale_down_stabilization_seconds: Option<f64>,
    /// hpa: most workers; needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_workers: Option<u32>,
    /// Fewest workers; 1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_workers: Option<u32>,
    /// enabled: what is aimed at; needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<PlannerTarget>,
    /// enabled: plan for the demand of the last interval; true if not given. Needs target sla.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_throughput_scaling: Option<bool>,
    /// enabled: react to queues and KV caches; false if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_load_scaling: Option<bool>,
    /// enabled: time between two plans for the demand; 180 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub throughput_adjustment_interval_seconds: Option<f64>,
    /// enabled: time between two looks at the load; 5 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub load_adjustment_interval_seconds: Option<f64>,
    /// enabled: percent of a bound that may be used with one worker less; 80 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub load_scaling_down_sensitivity: Option<f64>,
    /// enabled: how the demand of the next interval is foretold. Needed where throughput scaling is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_predictor: Option<LoadPredictor>,
    /// kalman: by the logarithms of demand and lengths; false if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_predictor_log1p: Option<bool>,
    /// kalman: variance by which the level changes in an interval; 1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub kalman_q_level: Option<f64>,
    /// kalman: variance by which the trend changes in an interval; 0.1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub kalman_q_trend: Option<f64>,
    /// kalman: variance of what is measured; 10 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub kalman_r: Option<f64>,
    /// enabled: most accelerators of all workers together; 8 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_num_gpus: Option<u32>,
    /// enabled: fewest prefill workers; min_workers if not given. In mode disaggregated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub prefill_min_workers: Option<u32>,
    /// enabled: fewest decode workers; min_workers if not given. In mode disaggregated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub decode_min_workers: Option<u32>,
    /// hpa: how the number of prefill workers changes, if it does. In mode disaggregated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<RolePlanner>,
    /// hpa: how the number of decode workers changes, if it does. In mode disaggregated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<RolePlanner>,
}

impl Planner {
    /// The number of workers does not change.
    pub(crate) fn is_off(&self) -> bool {
        self.policy == PlannerPolicy::Disabled
    }

    /// What the Horizontal Pod Autoscaler of all workers reads.
    pub(crate) fn of_all(&self) -> RolePlanner {
        RolePlanner {
            metric: self.metric,
            target_value: self.target_value,
            tolerance: self.tolerance,
            interval_seconds: self.interval_seconds,
            window_seconds: self.window_seconds,
            scale_up_stabilization_seconds: self.scale_up_stabilization_seconds,
            scale_down_stabilization_seconds: self.scale_down_stabilization_seconds,
            max_workers: self.max_workers,
            min_workers: self.min_workers,
        }
    }

    /// Puts it back, with what is in effect filled in.
    pub(crate) fn set_all(&mut self, keys: RolePlanner) {
        let RolePlanner { metric, target_value, tolerance, interval_seconds, window_seconds, .. } = keys;
        (self.metric, self.target_value, self.tolerance) = (metric, target_value, tolerance);
        (self.interval_seconds, self.window_seconds) = (interval_seconds, window_seconds);
        self.scale_up_stabilization_seconds = keys.scale_up_stabilization_seconds;
        self.scale_down_stabilization_seconds = keys.scale_down_stabilization_seconds;
        (self.max_workers, self.min_workers) = (keys.max_workers, keys.min_workers);
    }
}

/// How the Horizontal Pod Autoscaler of a role's workers decides.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RolePlanner {
    /// What is measured; needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<ScalingMetric>,
    /// What it should be; needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub target_value: Option<f64>,
    /// A measure that differs from its target by no more than this part of it changes nothing; 0.1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub tolerance: Option<f64>,
    /// Time between two looks; 15 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub interval_seconds: Option<f64>,
    /// Time over which rates and latencies are measured, rounded up to whole intervals; 60 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub window_seconds: Option<f64>,
    /// More workers are added only as far as all looks of this time agree; 0 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub scale_up_stabilization_seconds: Option<f64>,
    /// Workers are drained only as far as all looks of this time agree; 300 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub scale_down_stabilization_seconds: Option<f64>,
    /// Most workers; needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_workers: Option<u32>,
    /// Fewest workers; 1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_workers: Option<u32>,
}

/// Who decides on the number of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlannerPolicy {
    /// Nobody: it does not change.
    #[default]
    Disabled,
    /// The rules of Dynamo's planner.
    Enabled,
    /// The rule of the Kubernetes Horizontal Pod Autoscaler.
    Hpa,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScalingMetric {
    /// Waiting requests of a worker.
    Waiting,
    /// Running requests of a worker.
    Running,
    /// Unfinished requests of a worker.
    Requests,
    /// The part of the KV blocks in use.
    KvUsage,
    /// Mean TTFT of the first tokens in the window.
    TtftMs,
    /// Mean gap between tokens in the window.
    ItlMs,
    /// Requests that arrive for a worker in one second, in the window.
    RequestRate,
    /// Output tokens of a worker in one second, in the window.
    OutputRate,
}

/// What Dynamo's planner aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlannerTarget {
    /// Full KV caches.
    Throughput,
    /// Empty ones.
    Latency,
    /// The bounds of evaluation.sla.
    Sla,
}

/// How demand is foretold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadPredictor {
    /// It will be as it was.
    Constant,
    /// A Kalman filter of level and trend.
    Kalman,
}

/// What fails in virtual time.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Faults {
    /// What becomes of the requests of a worker that crashes; retry if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_crash: Option<OnCrash>,
    /// retry: how often a request is sent anew at most, before it fails; 3 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// Crashes at given times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crashes: Vec<Crash>,
    /// Crashes at random times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_rate: Option<CrashRate>,
    /// Workers whose passes take longer for a while.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_workers: Vec<SlowWorker>,
    /// KV events that do not reach the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_event_loss: Option<KvEventLoss>,
    /// What fails of the prefill workers. In mode disaggregated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<RoleFaults>,
    /// What fails of the decode workers. In mode disaggregated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<RoleFaults>,
}

impl Faults {
    /// Nothing fails, and nothing was said about it.
    pub(crate) fn is_none(&self) -> bool {
        let roles = self.prefill.is_none() && self.decode.is_none();
        self.of_all().is_none() && roles && self.on_crash.is_none() && self.max_retries.is_none()
    }

    /// Those of workers for both, as those of a role.
    pub(crate) fn of_all(&self) -> RoleFaults {
        RoleFaults {
            crashes: self.crashes.clone(),
            crash_rate: self.crash_rate,
            slow_workers: self.slow_workers.clone(),
            kv_event_loss: self.kv_event_loss,
        }
    }
}

/// What fails of the workers of one role.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RoleFaults {
    /// Crashes at given times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crashes: Vec<Crash>,
    /// Crashes at random times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_rate: Option<CrashRate>,
    /// Workers whose passes take longer for a while.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_workers: Vec<SlowWorker>,
    /// KV events that do not reach the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_event_loss: Option<KvEventLoss>,
}

impl RoleFaults {
    /// Nothing fails.
    pub(crate) fn is_none(&self) -> bool {
        !self.crash() && self.slow_workers.is_empty() && self.kv_event_loss.is_none()
    }

    /// Workers crash.
    pub(crate) fn crash(&self) -> bool {
        !self.crashes.is_empty() || self.crash_rate.is_some()
    }
}

/// What becomes of requests whose worker crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnCrash {
    /// They are sent anew, from their beginning.
    Retry,
    /// They fail.
    Fail,
}

/// A crash at a given time.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Crash {
    /// The worker, counted from 0.
    #[schemars(range(max = 99_999))]
    pub worker: u32,
    /// When.
    #[schemars(range(min = 0.0))]
    pub at_seconds: f64,
    /// From the crash to its readiness with an empty cache. Never, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub restart_seconds: Option<f64>,
}

/// Crashes at random times.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CrashRate {
    /// Crashes in an hour of a worker that is ready, on average.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
    pub per_worker_hour: f64,
    /// From a crash to the worker's readiness with an empty cache.
    #[schemars(range(min = 0.0))]
    pub restart_seconds: f64,
    /// Of the draws, 42 if not given.
    #[serde(default = "seed")]
    pub seed: u64,
}

/// A worker whose passes take longer for a while.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlowWorker {
    /// The worker, counted from 0.
    #[schemars(range(max = 99_999))]
    pub worker: u32,
    /// Passes scheduled from here on
    #[schemars(range(min = 0.0))]
    pub from_seconds: f64,
    /// and before this take longer; to the end of the run, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub to_seconds: Option<f64>,
    /// By how much: 2 is twice as long.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
    pub factor: f64,
}

/// KV events that do not reach the router.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KvEventLoss {
    /// Of the batches of events, one for each pass that makes some, this part.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    pub rate: f64,
    /// Of the draws, 42 if not given.
    #[serde(default = "seed")]
    pub seed: u64,
}

fn seed() -> u64 {
    42
}
