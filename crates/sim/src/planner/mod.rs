//! Planners: how many workers there should be, by what is seen of those that are there; of one role, or of prefill and
//! decode workers together.
//!
//! A planner is asked at the instants that it names and sees a [`Snapshot`]; it reads no clock and knows nothing of
//! rank groups or routers. A new one: a type that implements [`Planner`], and a variant of
//! `windtunnel_config::PlannerPolicy` that holds its settings.

mod dynamo;
mod hpa;
mod predictor;

pub use crate::fleet::Counts;

use dynamo::{Dynamo, DynamoRoles};
use hpa::HpaRule;
use windtunnel_config::{Deployment, PlannerPolicy, Scaling};
use windtunnel_engine::Nanos;
use windtunnel_traffic::Arrival;

/// What is seen of a pool of workers at the end of an instant.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The instant.
    pub now: Nanos,
    /// How many workers there are.
    pub workers: Counts,
    /// The ranks of the workers that take requests, by worker and rank.
    pub ranks: Vec<RankLoad>,
    /// Requests that no worker has yet: the router holds them back, or nobody is ready.
    pub held: u64,
    /// What has happened since the start of the run, on all workers.
    pub totals: Totals,
}

/// What a rank has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Running requests.
    pub running: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// KV blocks in use.
    pub used_blocks: u64,
    /// KV blocks that can hold tokens.
    pub usable_blocks: u64,
    /// Prompt tokens of requests that were never admitted.
    pub queued_prefill_tokens: u64,
    /// Tokens of requests that were preempted and wait.
    pub queued_decode_tokens: u64,
    /// Tokens of running requests, prompt and output.
    pub running_tokens: u64,
}

/// Sums since the start of the run: what differs between two snapshots happened between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that came to the router.
    pub arrivals: u64,
    /// Their prompt tokens.
    pub arrived_tokens: u64,
    /// Requests that got their first token.
    pub first_tokens: u64,
    /// Σ of their TTFT, in nanoseconds.
    pub ttft: u128,
    /// Gaps between two tokens.
    pub gaps: u64,
    /// Their sum, in nanoseconds.
    pub gap_time: u128,
    /// Completed requests.
    pub completed: u64,
    /// Their prompt tokens.
    pub input_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// Their prompt tokens that were found in the cache.
    pub reused_tokens: u64,
}

impl Totals {
    /// What happened after `earlier`.
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            arrivals: self.arrivals - earlier.arrivals,
            arrived_tokens: self.arrived_tokens - earlier.arrived_tokens,
            first_tokens: self.first_tokens - earlier.first_tokens,
            ttft: self.ttft - earlier.ttft,
            gaps: self.gaps - earlier.gaps,
            gap_time: self.gap_time - earlier.gap_time,
            completed: self.completed - earlier.completed,
            input_tokens: self.input_tokens - earlier.input_tokens,
            output_tokens: self.output_tokens - earlier.output_tokens,
            reused_tokens: self.reused_tokens - earlier.reused_tokens,
        }
    }

    /// A request has come to the router.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) {
        self.arrivals += 1;
        self.arrived_tokens += u64::from(arrival.request.prompt_tokens);
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Totals) -> Totals {
        Totals {
            arrivals: self.arrivals + other.arrivals,
            arrived_tokens: self.arrived_tokens + other.arrived_tokens,
            first_tokens: self.first_tokens + other.first_tokens,
            ttft: self.ttft + other.ttft,
            gaps: self.gaps + other.gaps,
            gap_time: self.gap_time + other.gap_time,
            completed: self.completed + other.completed,
            input_tokens: self.input_tokens + other.input_tokens,
            output_tokens: self.output_tokens + other.output_tokens,
            reused_tokens: self.reused_tokens + other.reused_tokens,
        }
    }

    /// Mean TTFT in ms, none without a first token.
    pub fn mean_ttft_ms(&self) -> Option<f64> {
        (self.first_tokens > 0).then(|| self.ttft as f64 / self.first_tokens as f64 / 1e6)
    }

    /// The part of the prompts of completed requests that was found in the cache.
    pub(crate) fn hit_rate(&self) -> f64 {
        self.reused_tokens as f64 / self.input_tokens.max(1) as f64
    }

    /// Mean gap in ms, none without a gap.
    pub fn mean_itl_ms(&self) -> Option<f64> {
        (self.gaps > 0).then(|| self.gap_time as f64 / self.gaps as f64 / 1e6)
    }
}

/// The plan where a planner has none and workers are gone: at least so many there are to be.
pub(crate) fn missing(workers: u32, least: u32) -> Option<Plan> {
    let reason = || format!("workers {workers}, at least {least}");
    (workers < least).then(|| Plan { workers: least, reason: reason() })
}

/// How many workers there should be, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ready and starting ones together.
    pub workers: u32,
    /// In words.
    pub reason: String,
}

/// Decides on the number of workers.
pub trait Planner: Send {
    /// When it is to be asked next.
    fn next_tick(&self) -> Nanos;

    /// How many workers there should be. None: as many as there are. Whoever asks keeps to the bounds.
    fn tick(&mut self, snapshot: &Snapshot) -> Option<Plan>;
}

/// The planner of a deployment.
pub(crate) fn planner(scaling: &Scaling, deployment: &Deployment) -> Box<dyn Planner> {
    match &scaling.planner {
        PlannerPolicy::Hpa(settings) => Box::new(HpaRule::new(settings.clone(), scaling.least, scaling.most)),
        PlannerPolicy::Dynamo(settings) => Box::new(Dynamo::new(settings.clone(), scaling, deployment)),
    }
}

/// What decides on the numbers of prefill and decode workers, where these are others.
pub(crate) enum RolesPlanner {
    /// Each role by itself, if at all.
    Apart([Option<Box<dyn Planner>>; 2]),
    /// Both together.
    Together(Box<DynamoRoles>),
}

impl RolesPlanner {
    /// Of both roles, prefill first. None if neither changes.
    pub(crate) fn new(roles: [(Option<&Scaling>, &Deployment); 2]) -> Option<RolesPlanner> {
        if let [(Some(first), prefill), (Some(second), decode)] = roles
            && let PlannerPolicy::Dynamo(settings) = &first.planner
        {
            let roles = [(first, prefill), (second, decode)];
            return Some(RolesPlanner::Together(Box::new(DynamoRoles::new(settings.clone(), roles))));
        }
        let apart = roles.map(|(scaling, deployment)| scaling.map(|scaling| planner(scaling, deployment)));
        apart.iter().any(Option::is_some).then_some(RolesPlanner::Apart(apart))
    }

    /// When one of them is to be asked next.
    pub(crate) fn next_tick(&self) -> Nanos {
        match self {
            RolesPlanner::Together(planner) => planner.next_tick(),
            RolesPlanner::Apart(planners) => {
                let ticks = planners.iter().flatten().map(|planner| planner.next_tick());
                ticks.min().unwrap_or(Nanos::NEVER)
            }
        }
    }

    /// How many workers of each role there should be. None: as many as there are.
    pub(crate) fn tick(&mut self, snapshots: &[Snapshot; 2]) -> [Option<Plan>; 2] {
        match self {
            RolesPlanner::Together(planner) => planner.tick(snapshots),
            RolesPlanner::Apart(planners) => [0, 1].map(|role| {
                let due = |planner: &&mut Box<dyn Planner>| planner.next_tick() <= snapshots[role].now;
                planners[role].as_mut().filter(due)?.tick(&snapshots[role])
            }),
        }
    }
}
