//! `scorers`: the worker with the largest weighted sum of scores, each from 0 to 1, as the endpoint picker of llm-d and
//! of the Gateway API inference extension composes them. Equals are drawn among.

use crate::draw::Draw;
use crate::holders::{Holders, Overlaps};
use crate::kv_router::read_prompt;
use crate::members::Members;
use crate::tracker::Prompt;
use crate::{Choice, Fleet, Incoming, News, Router, RoutingRecord, Verdict, WorkerLoad, Workers};
use std::collections::HashMap;
use windtunnel_engine::Nanos;

/// What a worker is scored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScorerKind {
    /// The part of the prompt that is cached there, on the rank that has most of it.
    PrefixCache,
    /// 1 for the shortest waiting queue, 0 for the longest, in between by length.
    Queue,
    /// The part of the KV blocks that is not in use.
    KvUsage,
    /// 1 for the fewest unfinished requests, 0 for the most, in between by number.
    ActiveRequests,
    /// 1 for the worker that took the last request of the same conversation.
    Session,
}

/// A scorer and what it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scorer {
    /// What it looks at.
    pub kind: ScorerKind,
    /// Its weight.
    pub weight: f64,
}

/// The policy at work.
pub struct WeightedScorers {
    scorers: Vec<Scorer>,
    ranks: u32,
    members: Members,
    block_size: u32,
    index: Holders,
    sessions: HashMap<Box<str>, u32>,
    draw: Draw,
    /// Scratch.
    prompt: Prompt,
    overlaps: Overlaps,
    /// By place.
    loads: Vec<WorkerLoad>,
    scores: Vec<f64>,
}

impl WeightedScorers {
    /// Scorers for a fleet with empty caches, which are known in blocks of `block_size` tokens.
    pub fn new(scorers: &[Scorer], block_size: u32, fleet: Fleet, seed: u64) -> WeightedScorers {
        WeightedScorers {
            scorers: scorers.to_vec(),
            ranks: fleet.ranks.get(),
            members: Members::new(fleet.workers.get()),
            block_size,
            index: Holders::new(fleet.size()),
            sessions: HashMap::new(),
            draw: Draw::new(seed),
            prompt: Prompt::default(),
            overlaps: Overlaps::default(),
            loads: Vec::new(),
            scores: Vec::new(),
        }
    }

    /// Blocks of the prompt on the rank of a worker that has most of them.
    fn overlap(&self, worker: u32) -> u32 {
        let ranks = self.ranks;
        (worker * ranks..(worker + 1) * ranks).map(|rank| self.overlaps.of(rank)).max().unwrap_or(0)
    }

    fn score(&self, kind: ScorerKind, place: usize, worker: u32, session: Option<u32>) -> f64 {
        let load = &self.loads[place];
        match kind {
            ScorerKind::PrefixCache => f64::from(self.overlap(worker)) / f64::from(self.prompt.blocks.max(1)),
            ScorerKind::Queue => among(&self.loads, load, |load| load.waiting),
            ScorerKind::ActiveRequests => among(&self.loads, load, |load| load.unfinished),
            ScorerKind::KvUsage => 1.0 - load.used_blocks as f64 / load.usable_blocks.max(1) as f64,
            ScorerKind::Session => f64::from(u8::from(session == Some(worker))),
        }
    }
}

/// 1 for the least of all, 0 for the most; 1 for all if they are equal.
fn among(loads: &[WorkerLoad], load: &WorkerLoad, of: impl Fn(&WorkerLoad) -> u64) -> f64 {
    let least = loads.iter().map(&of).min().unwrap_or(0);
    let most = loads.iter().map(&of).max().unwrap_or(0);
    if most == least { 1.0 } else { (most - of(load)) as f64 / (most - least) as f64 }
}

impl Router for WeightedScorers {
    fn route(&mut self, incoming: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        read_prompt(incoming.request, self.block_size, &mut self.prompt);
        self.index.overlaps(&self.prompt.keys, &mut self.overlaps);
        let count = workers.count().get();
        self.loads.clear();
        self.loads.extend((0..count).map(|place| workers.load(place)));
        let session = incoming.session.and_then(|session| self.sessions.get(session).copied());
        let mut scores = std::mem::take(&mut self.scores);
        scores.clear();
        scores.extend((0..count).map(|place| {
            let worker = workers.number(place);
            let score = |scorer: &Scorer| self.score(scorer.kind, place as usize, worker, session);
            self.scorers.iter().map(|scorer| scorer.weight * score(scorer)).sum::<f64>()
        }));
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let equals = || (0u32..).zip(&scores).filter(|(_, score)| **score == largest).map(|(place, _)| place);
        let drawn = self.draw.below(equals().count() as u32) as usize;
        // There is at least one worker, and scores are finite.
        let worker = workers.number(equals().nth(drawn).unwrap_or(0));
        self.scores = scores;
        if let Some(session) = incoming.session {
            self.sessions.insert(session.into(), worker);
        }
        let record = RoutingRecord {
            overlap_tokens: self.overlap(worker) * self.block_size,
            best_overlap_tokens: self.overlaps.best() * self.block_size,
            below: None,
        };
        let looks = self.scorers.iter().any(|scorer| scorer.kind == ScorerKind::PrefixCache);
        Verdict::To(Choice { record: looks.then_some(record), ..Choice::worker(worker) })
    }

    fn tell(&mut self, rank: u32, _: Nanos, news: News<'_>) {
        if let News::Cache(events) = news
            && self.members.has(rank / self.ranks)
        {
            self.index.apply(rank, events);
        }
    }

    fn joined(&mut self, worker: u32) {
        self.members.join(worker);
        self.index.grow(self.members.numbers() * self.ranks);
    }

    fn left(&mut self, worker: u32) {
        self.members.leave(worker);
        (worker * self.ranks..(worker + 1) * self.ranks).for_each(|rank| self.index.clear(rank));
        self.sessions.retain(|_, known| *known != worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Loads, fleet, incoming, request, sent};
    use windtunnel_engine::{Content, KeyRun, Request, shared_prompt_keys};

    fn router(scorers: &[(ScorerKind, f64)], workers: u32) -> WeightedScorers {
        let scorers: Vec<Scorer> = scorers.iter().map(|&(kind, weight)| Scorer { kind, weight }).collect();
        WeightedScorers::new(&scorers, 16, fleet(workers, 1), 7)
    }

    fn asked() -> Request {
        request(0, 64, Content::Prefixes { ids: vec![1, 2, 3, 4].into(), id_tokens: 16 })
    }

    /// Blocks of [`asked`] from its start become cached.
    fn cache(router: &mut WeightedScorers, rank: u32, blocks: u32) {
        let mut left = blocks;
        shared_prompt_keys(&asked(), 16, |run: KeyRun| {
            let count = run.count.min(left);
            router.index.add(rank, KeyRun { count, ..run });
            left -= count;
            left > 0
        });
    }

    fn worker(router: &mut WeightedScorers, loads: &[WorkerLoad]) -> u32 {
        sent(router, &incoming(&asked(), Nanos::ZERO), &mut Loads(loads.to_vec())).worker
    }

    fn load(waiting: u64, unfinished: u64, used_blocks: u64) -> WorkerLoad {
        WorkerLoad { waiting, unfinished, running: unfinished - waiting, used_blocks, usable_blocks: 100 }
    }

    /// 3 · 2/4 + 2 · 0/10 + 2 · 0.5 = 2.5 on worker 0; 3 · 0 + 2 · 1 + 2 · 0.9 = 3.8 on worker 1; with all four blocks
    /// cached worker 0 has 4.
    #[test]
    fn scores_are_weighed_and_added() {
        use ScorerKind::{KvUsage, PrefixCache, Queue};
        let loads = [load(10, 20, 50), load(0, 30, 10)];
        for (blocks, expected) in [(2, 1), (4, 0)] {
            let mut router = router(&[(PrefixCache, 3.0), (Queue, 2.0), (KvUsage, 2.0)], 2);
            cache(&mut router, 0, blocks);
            assert_eq!(worker(&mut router, &loads), expected, "{blocks} blocks");
        }
    }

    #[test]
    fn each_scorer_looks_at_its_own() {
        use ScorerKind::{ActiveRequests, KvUsage, PrefixCache, Queue};
        let loads = [load(5, 9, 10), load(1, 10, 30), load(3, 4, 90), load(9, 9, 5)];
        for (kind, expected) in [(Queue, 1), (ActiveRequests, 2), (KvUsage, 3)] {
            assert_eq!(worker(&mut router(&[(kind, 1.0)], 4), &loads), expected, "{kind:?}");
        }
        let mut router = router(&[(PrefixCache, 1.0)], 4);
        cache(&mut router, 0, 1);
        cache(&mut router, 2, 3);
        assert_eq!(worker(&mut router, &loads), 2);
    }

    /// A conversation stays, and equals are drawn evenly: 4000 draws of 4, give or take five standard deviations.
    #[test]
    fn sessions_and_ties() {
        let mut router = router(&[(ScorerKind::Session, 1.0)], 4);
        let (asked, loads) = (asked(), [load(0, 0, 0); 4]);
        let of = |router: &mut WeightedScorers, session| {
            let incoming = Incoming { session, ..incoming(&asked, Nanos::ZERO) };
            sent(router, &incoming, &mut Loads(loads.to_vec())).worker
        };
        let first = of(&mut router, Some("a"));
        assert!((0..20).all(|_| of(&mut router, Some("a")) == first));
        let mut counts = [0u32; 4];
        (0..4000).for_each(|_| counts[of(&mut router, None) as usize] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 137), "{counts:?}");
    }
}
