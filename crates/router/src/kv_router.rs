//! `kv_router`: the rank on which a request costs least, by the cached part of its prompt and the load that the
//! router has put there.
//!
//! cost = prefill_load_scale · ((tokens to compute + prompt) / block − credit) + blocks in use + weight · requests
//!
//! The credit is that of the blocks of the prompt that the rank has cached, and of those that follow in the tiers below.
//! After dynamo-kv-router 1.6.1
//! (scheduling/selector/reference.rs); the arithmetic is written in the same order, so that what is a tie there is
//! one here.

use crate::draw::Draw;
use crate::holders::{Holders, Overlaps};
use crate::members::Members;
use crate::queue::{Queue, QueueSettings};
use crate::tiers::{Below, LowerTiers, TierCredits};
use crate::tracker::{PrefillLoad, Prompt, Tracker};
use crate::{BelowTokens, Choice, Fleet, Incoming, News, Router, RoutingRecord, Verdict, Workers};
use std::sync::Arc;
use windtunnel_engine::{Nanos, Request, RequestId, shared_prompt_keys};

/// Whether a credit can be larger than what it is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// It can: a credit above 1 makes cached blocks worth more than the work that they save.
    None,
    /// It ends at zero, as in the reference.
    Zero,
}

/// Which part of its requests the workers serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// All of it.
    Whole,
    /// Prompts, whose KV others take: blocks in use are not counted.
    Prompts,
    /// What follows the prompt, which others have computed: caches are not asked, prompt tokens are not counted, and
    /// each request has blocks of its own.
    Outputs,
}

/// How a cost is made, and what is made of the costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvRouterSettings {
    /// Tokens of a block.
    pub block_size: u32,
    /// Credit of a cached block.
    pub overlap_score_credit: f64,
    /// How fast that credit falls with the tokens that a rank has to compute beyond the least of all; 0: not at
    /// all.
    pub overlap_score_credit_decay: f64,
    /// Whether the credit ends at what there is to compute.
    pub floor: Floor,
    /// Weight of a block to compute against one in use.
    pub prefill_load_scale: f64,
    /// Blocks that a request counts as, beside its own.
    pub decode_active_request_weight: f64,
    /// 0: the least cost wins. Otherwise a rank is drawn, each with a weight of
    /// e^(−cost / ((largest − least) · temperature)).
    pub temperature: f64,
    /// Uncomputed prompt tokens are thought to become fewer as time passes.
    pub expects_prefill_times: bool,
    /// Of deployments with tiers below the accelerator's memory: what a block there is worth.
    pub tiers: Option<TierCredits>,
    /// Requests are held back while every rank is busy.
    pub queue: Option<QueueSettings>,
    /// Which part of its requests the workers serve.
    pub serves: Serves,
    /// Of the draws.
    pub seed: u64,
}

impl Default for KvRouterSettings {
    /// The reference's, with blocks of 64 tokens.
    fn default() -> Self {
        KvRouterSettings {
            block_size: 64,
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            floor: Floor::None,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            temperature: 0.0,
            expects_prefill_times: false,
            tiers: None,
            queue: None,
            serves: Serves::Whole,
            seed: 42,
        }
    }
}

/// How long the prefill of (new tokens, tokens before them) is thought to take.
pub type PrefillTime = Arc<dyn Fn(u32, u32) -> Nanos + Send + Sync>;

/// The policy at work.
pub struct KvRouter {
    settings: KvRouterSettings,
    /// Of each worker.
    ranks: u32,
    members: Members,
    /// Changes of the members so far.
    changes: u64,
    index: Holders,
    lower: Option<LowerTiers>,
    tracker: Tracker,
    draw: Draw,
    prefill_time: Option<PrefillTime>,
    queue: Option<Queue<Waiting>>,
    /// Scratch: the prompt that is to be placed, and what the ranks have of it.
    prompt: Prompt,
    overlaps: Overlaps,
    /// Scratch: ranks and their costs.
    costs: Vec<(u32, f64)>,
}

/// A request that is held back, and what the ranks had of it when it came.
struct Waiting {
    id: RequestId,
    dp_rank: Option<u32>,
    prompt: Prompt,
    overlaps: Vec<(u32, u32)>,
    below: Vec<(u32, Below)>,
    /// [`KvRouter::changes`] when it came: other workers have cached other things.
    changes: u64,
}

impl KvRouter {
    /// An idle fleet with empty caches. Without `prefill_time`, prompts count in full until their first token.
    pub fn new(settings: KvRouterSettings, fleet: Fleet, prefill_time: Option<PrefillTime>) -> KvRouter {
        let prefill_time = prefill_time.filter(|_| settings.expects_prefill_times);
        KvRouter {
            settings,
            ranks: fleet.ranks.get(),
            members: Members::new(fleet.workers.get()),
            changes: 0,
            index: Holders::new(fleet.size()),
            lower: settings.tiers.map(|credits| LowerTiers::new(credits, fleet.size())),
            tracker: Tracker::new(fleet.size(), prefill_time.is_some()),
            draw: Draw::new(settings.seed),
            prefill_time,
            queue: settings.queue.map(|queue| Queue::new(queue.policy)),
            prompt: Prompt::default(),
            overlaps: Overlaps::default(),
            costs: Vec::new(),
        }
    }

    /// All ranks that a request may name, of workers here or gone.
    fn candidates(&self, dp_rank: Option<u32>) -> impl Iterator<Item = u32> + Clone + use<> {
        let (all, ranks) = (self.members.numbers() * self.ranks, self.ranks);
        let (first, step) = match dp_rank {
            Some(rank) if rank < ranks => (rank, ranks),
            _ => (0, 1),
        };
        (first..all).step_by(step as usize)
    }

    /// The ranks of a worker.
    fn ranks_of(&self, worker: u32) -> std::ops::Range<u32> {
        worker * self.ranks..(worker + 1) * self.ranks
    }

    /// Every rank has as much to compute as it should get.
    fn all_busy(&self, now: Nanos) -> bool {
        let Some(queue) = self.settings.queue else { return false };
        let mut ranks = self.members.iter().flat_map(|worker| self.ranks_of(worker));
        ranks.all(|rank| queue.is_busy(self.tracker.prefill_tokens(rank, now)))
    }

    /// Finds the place for the prompt at hand, and enters it in the books.
    fn place(&mut self, id: RequestId, dp_rank: Option<u32>, now: Nanos) -> Choice {
        self.tracker.look_up(&self.prompt);
        let rank = self.choose(dp_rank, now);
        let cached = self.cached(rank);
        let uncached = if self.settings.serves == Serves::Outputs { 0 } else { self.prompt.tokens - cached };
        let prefill = (uncached > 0).then(|| PrefillLoad {
            tokens: uncached.into(),
            time: self.prefill_time.as_ref().map(|time| time(uncached, cached)),
        });
        self.tracker.add(id, rank, &self.prompt, prefill, now);
        let block_size = self.settings.block_size;
        let record = RoutingRecord {
            overlap_tokens: cached,
            best_overlap_tokens: self.best_cached(),
            below: self.lower.as_ref().map(|lower| {
                let Below { host, disk } = lower.of(rank);
                BelowTokens { host: host * block_size, disk: disk * block_size }
            }),
        };
        let ranks = self.ranks;
        let record = (self.settings.serves != Serves::Outputs).then_some(record);
        Choice { worker: rank / ranks, rank: Some(rank % ranks), record }
    }

    /// Tokens of the prompt at hand that need not be computed on a rank, those in lower tiers by what they are worth.
    fn cached(&self, rank: u32) -> u32 {
        let (device, block) = (self.overlaps.of(rank), self.settings.block_size);
        let tokens = match &self.lower {
            None => device * block,
            Some(lower) => (lower.credit(rank, f64::from(device)) * f64::from(block)).round() as u32,
        };
        tokens.min(self.prompt.tokens)
    }

    /// The most of it on any rank.
    fn best_cached(&self) -> u32 {
        let device = self.overlaps.best() * self.settings.block_size;
        let below = self.lower.iter().flat_map(|lower| lower.some()).map(|(rank, _)| self.cached(rank));
        below.fold(device, u32::max)
    }

    /// Looks up what the ranks have of the prompt at hand.
    fn look_up(&mut self) {
        self.index.overlaps(&self.prompt.keys, &mut self.overlaps);
        if let Some(lower) = &mut self.lower {
            lower.look_up(&self.prompt.keys, &self.overlaps);
        }
    }

    fn choose(&mut self, dp_rank: Option<u32>, now: Nanos) -> u32 {
        let candidates = self.candidates(dp_rank);
        if self.members.is_full() {
            return self.choose_among(candidates, now);
        }
        let (members, ranks) = (self.members.clone(), self.ranks);
        self.choose_among(candidates.filter(|rank| members.has(rank / ranks)), now)
    }

    #[inline]
    fn choose_among(&mut self, candidates: impl Iterator<Item = u32> + Clone, now: Nanos) -> u32 {
        // Who has no lower tiers is not to pay for a look at them, rank by rank.
        match self.lower.take() {
            None => self.choose_by(candidates, now, |_, credit| credit),
            Some(lower) => {
                let chosen = self.choose_by(candidates, now, |rank, credit| lower.credit(rank, credit));
                self.lower = Some(lower);
                chosen
            }
        }
    }

    #[inline]
    fn choose_by(
        &mut self,
        candidates: impl Iterator<Item = u32> + Clone,
        now: Nanos,
        credit: impl Fn(u32, f64) -> f64,
    ) -> u32 {
        let least_load = if self.settings.overlap_score_credit_decay > 0.0 {
            candidates.clone().map(|rank| self.tracker.prefill_tokens(rank, now)).min().unwrap_or(0)
        } else {
            0
        };
        let mut costs = std::mem::take(&mut self.costs);
        costs.clear();
        let drawn = self.settings.temperature > 0.0;
        let mut least = f64::INFINITY;
        for rank in candidates {
            let cost = self.cost(rank, least_load, now, &credit);
            if !drawn {
                if cost > least {
                    continue;
                }
                if cost < least {
                    least = cost;
                    costs.clear();
                }
            }
            costs.push((rank, cost));
        }
        let at = if drawn {
            sample(&costs, self.settings.temperature, self.draw.unit())
        } else {
            self.draw.below(costs.len() as u32) as usize
        };
        // Costs are finite, and there is at least one candidate.
        let rank = costs[at].0;
        self.costs = costs;
        rank
    }

    #[inline]
    fn cost(&self, rank: u32, least_load: u64, now: Nanos, with_tiers: impl Fn(u32, f64) -> f64) -> f64 {
        let settings = &self.settings;
        let block = f64::from(settings.block_size);
        let load = self.tracker.prefill_tokens(rank, now);
        let decay = if settings.overlap_score_credit_decay > 0.0 {
            let excess = (load - least_load) as f64 / block;
            let blocks = self.prompt.tokens.div_ceil(settings.block_size).max(1);
            1.0 / (1.0 + settings.overlap_score_credit_decay * (excess / f64::from(blocks)))
        } else {
            1.0
        };
        let device = settings.overlap_score_credit * decay * f64::from(self.overlaps.of(rank));
        let credit = with_tiers(rank, device);
        let raw = (load + u64::from(self.prompt.tokens)) as f64 / block;
        let adjusted = match settings.floor {
            Floor::Zero => (raw - credit).max(0.0),
            Floor::None => raw - credit,
        };
        let in_use = self.tracker.blocks_with(rank, self.prompt.blocks) as f64;
        let requests = settings.decode_active_request_weight * self.tracker.requests(rank) as f64;
        settings.prefill_load_scale * adjusted + in_use + requests
    }
}

impl Router for KvRouter {
    fn route(&mut self, incoming: &Incoming<'_>, _: &mut dyn Workers) -> Verdict {
        let (request, serves) = (incoming.request, self.settings.serves);
        read_prompt(request, self.settings.block_size, &mut self.prompt);
        if serves == Serves::Outputs {
            self.prompt.keys.clear();
        }
        self.look_up();
        if serves == Serves::Prompts {
            self.prompt.keys.clear();
            self.prompt.blocks = 0;
        }
        let id = incoming.request.id;
        let holds = self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) || self.all_busy(incoming.now);
        let uncached = if holds { self.prompt.tokens - self.best_cached() } else { 0 };
        if holds && let Some(queue) = &mut self.queue {
            let some = self.overlaps.some().iter().map(|&rank| (rank, self.overlaps.of(rank))).collect();
            let (dp_rank, prompt, changes) = (incoming.dp_rank, self.prompt.clone(), self.changes);
            let below = self.lower.iter().flat_map(LowerTiers::some).collect();
            let waiting = Waiting { id, dp_rank, prompt, overlaps: some, below, changes };
            queue.push(waiting, incoming.now, incoming.request.priority, uncached);
            return Verdict::Held;
        }
        Verdict::To(self.place(id, incoming.dp_rank, incoming.now))
    }

    fn tell(&mut self, rank: u32, time: Nanos, news: News<'_>) {
        match news {
            News::FirstToken(id) => self.tracker.first_token(id, time),
            News::Ended(id) => self.tracker.end(id, time),
            News::Cache(events) if self.members.has(rank / self.ranks) => {
                self.index.apply(rank, events);
                if let Some(lower) = &mut self.lower {
                    lower.apply(rank, events);
                }
            }
            News::Cache(_) => {}
        }
    }

    fn joined(&mut self, worker: u32) {
        self.members.join(worker);
        let ranks = self.members.numbers() * self.ranks;
        self.index.grow(ranks);
        if let Some(lower) = &mut self.lower {
            lower.grow(ranks);
        }
        self.tracker.grow(ranks);
        self.changes += 1;
    }

    fn left(&mut self, worker: u32) {
        self.members.leave(worker);
        for rank in self.ranks_of(worker) {
            self.index.clear(rank);
            if let Some(lower) = &mut self.lower {
                lower.clear(rank);
            }
        }
        self.changes += 1;
    }

    fn release(&mut self, now: Nanos) -> Option<(RequestId, Choice)> {
        if self.members.is_empty() || self.all_busy(now) {
            return None;
        }
        let Waiting { id, dp_rank, prompt, overlaps, below, changes } = self.queue.as_mut()?.pop()?;
        self.prompt = prompt;
        if changes == self.changes {
            // What the ranks had when it came: its turn is no new look-up.
            self.overlaps.restore(&overlaps);
            if let Some(lower) = &mut self.lower {
                lower.restore(&below);
            }
        } else {
            self.look_up();
        }
        Some((id, self.place(id, dp_rank, now)))
    }

    fn is_holding(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.is_empty())
    }
}

/// Reads what a router needs of a request's prompt.
pub(crate) fn read_prompt(request: &Request, block_size: u32, prompt: &mut Prompt) {
    prompt.tokens = request.prompt_tokens;
    prompt.blocks = request.prompt_tokens / block_size;
    prompt.keys.clear();
    shared_prompt_keys(request, block_size, |run| {
        prompt.keys.push(run);
        true
    });
}

/// The place of the entry that `drawn`, from 0 to below 1, hits: each entry has a part of the weight
/// e^(−cost / ((largest − least) · temperature)).
fn sample(costs: &[(u32, f64)], temperature: f64, drawn: f64) -> usize {
    let least = costs.iter().map(|entry| entry.1).fold(f64::INFINITY, f64::min);
    let largest = costs.iter().map(|entry| entry.1).fold(f64::NEG_INFINITY, f64::max);
    let range = (largest - least) * temperature;
    let weight = |cost: f64| if range > 0.0 { libm::exp(-(cost - least) / range) } else { 1.0 };
    let sum: f64 = costs.iter().map(|entry| weight(entry.1)).sum();
    let mut left = drawn * sum;
    for (at, &(_, cost)) in costs.iter().enumerate() {
        left -= weight(cost);
        if left < 0.0 {
            return at;
        }
    }
    costs.len() - 1
}

#[cfg(test)]
mod tests;
