//! The policies there are, by name: what each needs, and how it begins.

use crate::{
    CacheAware, CacheAwareSettings, Fleet, KvRouter, KvRouterSettings, LeastKv, LeastRequests, Needs,
    PowerOfTwo, PrefillTime, PrefixHash, PrefixHashSettings, Random, RoundRobin, Router, Scorer, ScorerKind,
    Serves, SessionAffinity, WeightedScorers,
};

/// A policy with its settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Policy {
    /// Every worker in turn.
    #[default]
    RoundRobin,
    /// Any worker, each as likely as the others.
    Random {
        /// Of the draws.
        seed: u64,
    },
    /// The worker with the fewest unfinished requests.
    LeastRequests {
        /// Of the draws among equals.
        seed: u64,
    },
    /// The worker with the smallest part of its KV blocks in use.
    LeastKv {
        /// Of the draws among equals.
        seed: u64,
    },
    /// Of two workers drawn at random, the one with fewer unfinished requests.
    PowerOfTwo {
        /// Of the draws.
        seed: u64,
    },
    /// The worker on a ring of hashes that the beginning of the prompt leads to.
    PrefixHash(PrefixHashSettings),
    /// The worker that took the conversation's first request.
    Session {
        /// Of the draws among equals, for those that begin one.
        seed: u64,
    },
    /// The worker to which most of the prompt was sent before.
    CacheAware(CacheAwareSettings),
    /// The worker with the largest sum of scores.
    Scorers {
        /// What they are.
        scorers: Vec<Scorer>,
        /// Tokens of a block.
        block_size: u32,
        /// Of the draws among equals.
        seed: u64,
    },
    /// The rank on which the request costs least.
    KvRouter(KvRouterSettings),
}

impl Policy {
    /// Its name in configuration files.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::RoundRobin => "round_robin",
            Policy::Random { .. } => "random",
            Policy::LeastRequests { .. } => "least_requests",
            Policy::LeastKv { .. } => "least_kv",
            Policy::PowerOfTwo { .. } => "power_of_two",
            Policy::PrefixHash(_) => "prefix_hash",
            Policy::Session { .. } => "session",
            Policy::CacheAware(_) => "cache_aware",
            Policy::Scorers { .. } => "scorers",
            Policy::KvRouter(_) => "kv_router",
        }
    }

    /// What it asks for and has to be told.
    pub fn needs(&self) -> Needs {
        match self {
            Policy::RoundRobin | Policy::Random { .. } => Needs::default(),
            Policy::LeastRequests { .. }
            | Policy::LeastKv { .. }
            | Policy::PowerOfTwo { .. }
            | Policy::Session { .. } => Needs { loads: true, ..Needs::default() },
            Policy::PrefixHash(settings) => {
                Needs { loads: settings.load_factor.is_some(), ..Needs::default() }
            }
            Policy::CacheAware(_) => Needs { progress: true, ..Needs::default() },
            Policy::Scorers { scorers, block_size, .. } => {
                let looks = scorers.iter().any(|scorer| scorer.kind == ScorerKind::PrefixCache);
                Needs { loads: true, cache: looks.then_some(*block_size), ..Needs::default() }
            }
            Policy::KvRouter(settings) => Needs {
                progress: true,
                cache: (settings.serves != Serves::Outputs).then_some(settings.block_size),
                holds: settings.queue.is_some(),
                ..Needs::default()
            },
        }
    }

    /// The policy at its start, for these workers. `prefill_time` is what it may expect of prefills.
    pub fn router(&self, fleet: Fleet, prefill_time: Option<PrefillTime>) -> Box<dyn Router> {
        let workers = fleet.workers.get();
        match *self {
            Policy::RoundRobin => Box::new(RoundRobin::new()),
            Policy::Random { seed } => Box::new(Random::new(seed)),
            Policy::LeastRequests { seed } => Box::new(LeastRequests::new(seed)),
            Policy::LeastKv { seed } => Box::new(LeastKv::new(seed)),
            Policy::PowerOfTwo { seed } => Box::new(PowerOfTwo::new(seed)),
            Policy::PrefixHash(settings) => Box::new(PrefixHash::new(settings, workers)),
            Policy::Session { seed } => Box::new(SessionAffinity::new(seed)),
            Policy::CacheAware(settings) => Box::new(CacheAware::new(settings, workers, fleet.ranks.get())),
            Policy::Scorers { ref scorers, block_size, seed } => {
                Box::new(WeightedScorers::new(scorers, block_size, fleet, seed))
            }
            Policy::KvRouter(settings) => Box::new(KvRouter::new(settings, fleet, prefill_time)),
        }
    }
}
