//! Placement policies: which worker takes the next request, and which of its ranks.
//!
//! One implementation for virtual and wall-clock time. A policy is a [`Router`]: it is asked at the instant of an
//! arrival, sees the request, may ask for the loads of the workers, and is told what it has said that it needs
//! (see [`Needs`]). What a worker is, and what it holds, it learns only through its own arguments. It reads no
//! clock, and what it leaves to chance comes from a seed.
//!
//! A new policy: a type that implements [`Router`], a variant of [`Policy`] that names it, holds its settings,
//! says what it needs and makes it. Driver and configuration know policies only by these.

mod balancer;
mod cache_aware;
mod coordinator;
mod draw;
mod holders;
mod kv_router;
mod load;
mod members;
mod news;
mod policy;
mod prefix_hash;
mod queue;
mod round_robin;
mod scorers;
mod session;
#[cfg(test)]
mod testing;
mod tiers;
mod tracker;

pub use balancer::VllmBalancer;
pub use cache_aware::{CacheAware, CacheAwareSettings};
pub use coordinator::{GroupStep, LoadReport, RankLoad};
pub use draw::unit;
pub use holders::{Holders, Overlaps};
pub use kv_router::{Floor, KvRouter, KvRouterSettings, PrefillTime, Serves};
pub use load::{LeastKv, LeastRequests, PowerOfTwo, Random};
pub use news::{EventLoss, NewsBook, Telling};
pub use policy::Policy;
pub use prefix_hash::{PrefixHash, PrefixHashSettings};
pub use queue::{QueuePolicy, QueueSettings};
pub use round_robin::RoundRobin;
pub use scorers::{Scorer, ScorerKind, WeightedScorers};
pub use session::SessionAffinity;
pub use tiers::TierCredits;

use std::num::NonZeroU32;
use windtunnel_engine::{KvEvents, Nanos, RankStats, Request, RequestId};

/// What a worker has to do at the instant of an arrival: the sums over its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Requests that have not ended, running or waiting.
    pub unfinished: u64,
    /// Requests in the running lists.
    pub running: u64,
    /// Requests in the waiting queues.
    pub waiting: u64,
    /// KV blocks with an owner.
    pub used_blocks: u64,
    /// KV blocks that can hold tokens.
    pub usable_blocks: u64,
}

impl WorkerLoad {
    /// Adds what a rank has to do, which has so many requests that have not ended.
    pub fn add_rank(&mut self, unfinished: usize, stats: &RankStats) {
        self.unfinished += unfinished as u64;
        self.running += stats.running as u64;
        self.waiting += stats.waiting as u64;
        self.used_blocks += u64::from(stats.used_blocks);
        self.usable_blocks += u64::from(stats.usable_blocks);
    }
}

/// The workers that can take a request, as they are when it arrives. Their loads are worked out when a policy
/// asks, so that one that asks for two of them costs no more than two.
///
/// They stand in order of their numbers, which have gaps where workers have gone.
pub trait Workers {
    /// How many there are.
    fn count(&self) -> NonZeroU32;

    /// The number of the worker at a place, below [`count`](Workers::count), among them.
    fn number(&self, place: u32) -> u32 {
        place
    }

    /// What the worker at a place has to do.
    fn load(&mut self, place: u32) -> WorkerLoad;
}

/// Workers of which nothing is known but their number, for policies that never ask for more.
impl Workers for NonZeroU32 {
    fn count(&self) -> NonZeroU32 {
        *self
    }

    fn load(&mut self, _: u32) -> WorkerLoad {
        WorkerLoad::default()
    }
}

/// The ranks behind a router when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Workers.
    pub workers: NonZeroU32,
    /// Data-parallel ranks of each.
    pub ranks: NonZeroU32,
}

impl Fleet {
    /// All ranks: rank r of worker w is number w · ranks + r.
    pub fn size(self) -> u32 {
        self.workers.get() * self.ranks.get()
    }
}

/// A request that has come and wants a place.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The request.
    pub request: &'a Request,
    /// The conversation that it belongs to, if it says so.
    pub session: Option<&'a str>,
    /// The rank of its worker that it names.
    pub dp_rank: Option<u32>,
    /// When.
    pub now: Nanos,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The worker.
    pub worker: u32,
    /// Its rank, if the policy chooses that too.
    pub rank: Option<u32>,
    /// What the policy knew of its prompt.
    pub record: Option<RoutingRecord>,
}

impl Choice {
    /// A worker, and whichever of its ranks.
    pub fn worker(worker: u32) -> Choice {
        Choice { worker, rank: None, record: None }
    }
}

/// How much of a prompt a policy thought to be cached when it placed the request. In tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutingRecord {
    /// On the rank, or worker, that was chosen. What is in a tier below the accelerator's memory counts by what it is
    /// worth.
    pub overlap_tokens: u32,
    /// On that which has most of it.
    pub best_overlap_tokens: u32,
    /// Where such tiers are credited: what they were thought to hold of it on the one that was chosen.
    pub below: Option<BelowTokens>,
}

/// Tokens of a prompt in tiers below the accelerator's memory, each behind those of the tiers before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BelowTokens {
    /// In the host's memory.
    pub host: u32,
    /// On a disk.
    pub disk: u32,
}

/// The answer of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request goes there at once.
    To(Choice),
    /// The router keeps it until [`Router::release`] names it.
    Held,
}

/// What becomes known of a rank.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A request has its first token: its prompt is computed.
    FirstToken(RequestId),
    /// A request has ended, or was refused.
    Ended(RequestId),
    /// The prefix cache has changed.
    Cache(&'a KvEvents),
}

/// What a policy has to be told, or asks for. What nobody needs is not worked out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// It asks for the loads of workers.
    pub loads: bool,
    /// It is told of first tokens and ends.
    pub progress: bool,
    /// It is told of changes of the prefix caches: of identities that several requests can have, in blocks of
    /// this many tokens.
    pub cache: Option<u32>,
    /// It may hold requests back.
    pub holds: bool,
}

impl Needs {
    /// It knows nothing of the workers. What one worker does then never depends on another.
    pub fn is_nothing(self) -> bool {
        self == Needs::default()
    }

    /// It has to be told something.
    pub fn news(self) -> bool {
        self.progress || self.cache.is_some()
    }
}

/// A placement policy at work.
pub trait Router: Send {
    /// Where a request that has just come goes. Everything that was to be told up to then has been.
    fn route(&mut self, incoming: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict;

    /// Something became known of a rank, numbered as [`Fleet::size`] says, at `time`: what each rank tells comes
    /// in order of time.
    fn tell(&mut self, rank: u32, time: Nanos, news: News<'_>) {
        let _ = (rank, time, news);
    }

    /// A worker takes requests from now on. Its caches are empty. The number may be new, the next one above those
    /// that were, or that of a worker that has gone.
    fn joined(&mut self, worker: u32) {
        let _ = worker;
    }

    /// A worker takes no more requests. Ends of those that it has are still told; what it has cached is of no more
    /// use.
    fn left(&mut self, worker: u32) {
        let _ = worker;
    }

    /// A request that was held back and goes now, and where. To be called until there is none, whenever
    /// something was told.
    fn release(&mut self, now: Nanos) -> Option<(RequestId, Choice)> {
        let _ = now;
        None
    }

    /// It holds requests back.
    fn is_holding(&self) -> bool {
        false
    }
}
