//! How the number of workers changes, and what fails, as plain checked values.

use windtunnel_engine::Nanos;

/// How the number of workers changes during a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// Who decides.
    pub planner: PlannerPolicy,
    /// Fewest workers of the pool.
    pub least: u32,
    /// Most workers of the pool.
    pub most: u32,
}

/// Who decides on the number of workers.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannerPolicy {
    /// The rule of the Kubernetes Horizontal Pod Autoscaler.
    Hpa(Hpa),
    /// The rules of Dynamo's planner.
    Dynamo(DynamoPlanner),
}

/// Settings of the Horizontal Pod Autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct Hpa {
    /// What is measured.
    pub metric: ScalingMetric,
    /// What it should be.
    pub target: f64,
    /// A measure that differs from the target by no more than this part of it changes nothing.
    pub tolerance: f64,
    /// Time between two looks.
    pub interval: Nanos,
    /// Looks over which rates and latencies are measured, at least 1.
    pub window: u64,
    /// Workers are added only as far as all looks of this time agree.
    pub up_stabilization: Nanos,
    /// Workers are drained only as far as all looks of this time agree.
    pub down_stabilization: Nanos,
}

/// What is measured of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingMetric {
    /// Waiting requests of a worker.
    Waiting,
    /// Running requests of a worker.
    Running,
    /// Unfinished requests of a worker.
    Requests,
    /// The part of the KV blocks in use.
    KvUsage,
    /// Mean TTFT, in ms.
    Ttft,
    /// Mean gap between tokens, in ms.
    Itl,
    /// Requests that arrive for a worker in one second.
    RequestRate,
    /// Output tokens of a worker in one second.
    OutputRate,
}

/// Settings of Dynamo's planner.
#[derive(Clone, Debug, PartialEq)]
pub struct DynamoPlanner {
    /// What is aimed at.
    pub target: PlannerTarget,
    /// Time between two plans for the demand, if there are any.
    pub throughput_interval: Option<Nanos>,
    /// Time between two looks at the load, if there are any.
    pub load_interval: Option<Nanos>,
    /// The part of a bound that may be used with one worker less.
    pub sensitivity: f64,
    /// How the demand of the next interval is foretold.
    pub predictor: LoadPredictor,
    /// Most accelerators of all workers together.
    pub max_gpus: u32,
}

/// How demand is foretold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadPredictor {
    /// It will be as it was.
    Constant,
    /// By a Kalman filter of level and trend.
    Kalman {
        /// Variance by which the level changes in an interval.
        level: f64,
        /// Variance by which the trend does.
        trend: f64,
        /// Variance of what is measured.
        measured: f64,
        /// It goes by the logarithms of one more.
        log1p: bool,
    },
}

/// What Dynamo's planner aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannerTarget {
    /// Full KV caches.
    Throughput,
    /// Empty ones.
    Latency,
    /// Bounds.
    Sla {
        /// Of the time to the first token.
        ttft: Nanos,
        /// Of the time between tokens.
        itl: Nanos,
    },
}

/// What fails in virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// How often a request whose worker crashed is sent anew; after that it fails.
    pub max_retries: u32,
    /// Crashes at given times, in order of time.
    pub crashes: Vec<Crash>,
    /// Crashes at random times.
    pub crash_rate: Option<CrashRate>,
    /// Workers whose passes take longer for a while.
    pub slow: Vec<Slow>,
    /// KV events that do not reach the router.
    pub kv_event_loss: Option<KvEventLoss>,
}

impl Faults {
    /// Workers crash.
    pub fn crashes(&self) -> bool {
        !self.crashes.is_empty() || self.crash_rate.is_some()
    }
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The worker.
    pub worker: u32,
    /// When.
    pub at: Nanos,
    /// From the crash to its readiness; none if it does not come back.
    pub restart: Option<Nanos>,
}

/// Crashes at random times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrashRate {
    /// In an hour of a worker that is ready, on average.
    pub per_worker_hour: f64,
    /// From a crash to the worker's readiness.
    pub restart: Nanos,
    /// Of the draws.
    pub seed: u64,
}

/// A worker whose passes take longer for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// The worker.
    pub worker: u32,
    /// Passes scheduled from here on
    pub from: Nanos,
    /// and before this.
    pub to: Nanos,
    /// How many times as long.
    pub factor: f64,
}

/// KV events that do not reach the router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvEventLoss {
    /// The part of the batches.
    pub rate: f64,
    /// Of the draws.
    pub seed: u64,
}
