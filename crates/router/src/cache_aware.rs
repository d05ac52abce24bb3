//! `cache_aware`: SGLang's router. While workers are about equally loaded, a request goes where most of its prompt was
//! sent before; if little of it was sent anywhere, to the worker to which the least was sent in all. Otherwise it goes
//! to the worker with the fewest requests.
//!
//! After sgl-router (src/policies/cache_aware.rs). It knows nothing of the workers but what it has sent them: a tree of
//! prompts for each, from which the longest unused parts go when it becomes too large. Its tree is of text; here it is
//! of whole blocks. Loads are the router's own count of requests that have not ended.

use crate::draw::Draw;
use crate::holders::{Holders, Overlaps};
use crate::kv_router::read_prompt;
use crate::members::Members;
use crate::tracker::Prompt;
use crate::{Choice, Incoming, News, Router, RoutingRecord, Verdict, Workers};
use std::collections::{HashMap, VecDeque};
use windtunnel_engine::{KeyRun, Nanos, RequestId};

/// When the tree decides, and how large it becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAwareSettings {
    /// Tokens of a block.
    pub block_size: u32,
    /// A prompt goes to its prefix when more than this part of it was sent there.
    pub cache_threshold: f64,
    /// Loads are unequal when largest and least differ by more than this,
    pub balance_abs_threshold: u64,
    /// and the largest is more than this times the least.
    pub balance_rel_threshold: f64,
    /// Most tokens of a worker's tree.
    pub max_tree_tokens: u64,
    /// Of the draws among equals.
    pub seed: u64,
}

/// The policy at work.
pub struct CacheAware {
    settings: CacheAwareSettings,
    ranks: u32,
    members: Members,
    /// What was sent where: each prompt counts as one copy, so that a block is there while a prompt that holds it is.
    sent: Holders,
    /// Prompts by worker, the oldest first.
    prompts: Vec<VecDeque<Vec<KeyRun>>>,
    loads: Vec<u64>,
    live: HashMap<RequestId, u32>,
    draw: Draw,
    /// Scratch.
    prompt: Prompt,
    overlaps: Overlaps,
    equals: Vec<u32>,
}

impl CacheAware {
    /// `workers` workers of `ranks` ranks each, to which nothing was sent.
    pub fn new(settings: CacheAwareSettings, workers: u32, ranks: u32) -> CacheAware {
        CacheAware {
            settings,
            ranks,
            members: Members::new(workers),
            sent: Holders::new(workers),
            prompts: vec![VecDeque::new(); workers as usize],
            loads: vec![0; workers as usize],
            live: HashMap::new(),
            draw: Draw::new(settings.seed),
            prompt: Prompt::default(),
            overlaps: Overlaps::default(),
            equals: Vec::new(),
        }
    }

    fn choose(&mut self) -> u32 {
        let loads = || self.members.iter().map(|worker| self.loads[worker as usize]);
        let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        let settings = &self.settings;
        let unequal = most - least > settings.balance_abs_threshold
            && most as f64 > least as f64 * settings.balance_rel_threshold;
        if unequal {
            return self.draw_least(|router, worker| router.loads[worker as usize]);
        }
        let best = self.overlaps.best();
        let known = f64::from(best) * f64::from(settings.block_size) / f64::from(self.prompt.tokens.max(1));
        if known > settings.cache_threshold {
            return self.draw_least(|router, worker| u64::from(best - router.overlaps.of(worker)));
        }
        self.draw_least(|router, worker| router.sent.held(worker))
    }

    /// The worker with the least of something, one of several drawn.
    fn draw_least(&mut self, of: impl Fn(&Self, u32) -> u64) -> u32 {
        let mut equals = std::mem::take(&mut self.equals);
        equals.clear();
        let mut least = u64::MAX;
        for worker in self.members.iter() {
            let here = of(self, worker);
            if here < least {
                least = here;
                equals.clear();
            }
            if here == least {
                equals.push(worker);
            }
        }
        let worker = equals[self.draw.below(equals.len() as u32) as usize];
        self.equals = equals;
        worker
    }

    /// Enters the prompt at hand in a worker's tree, and takes out what was used least recently if it is too large.
    fn enter(&mut self, worker: u32) {
        let keys = self.prompt.keys.clone();
        keys.iter().for_each(|&run| self.sent.add(worker, run));
        let prompts = &mut self.prompts[worker as usize];
        if !keys.is_empty() {
            prompts.push_back(keys);
        }
        let most = self.settings.max_tree_tokens / u64::from(self.settings.block_size);
        while self.sent.held(worker) > most
            && let Some(oldest) = prompts.pop_front()
        {
            oldest.iter().for_each(|&run| self.sent.remove(worker, run));
        }
    }
}

impl Router for CacheAware {
    fn route(&mut self, incoming: &Incoming<'_>, _: &mut dyn Workers) -> Verdict {
        read_prompt(incoming.request, self.settings.block_size, &mut self.prompt);
        self.sent.overlaps(&self.prompt.keys, &mut self.overlaps);
        let worker = self.choose();
        let tokens = |blocks: u32| blocks * self.settings.block_size;
        let record = RoutingRecord {
            overlap_tokens: tokens(self.overlaps.of(worker)),
            best_overlap_tokens: tokens(self.overlaps.best()),
            below: None,
        };
        self.enter(worker);
        self.loads[worker as usize] += 1;
        self.live.insert(incoming.request.id, worker);
        Verdict::To(Choice { record: Some(record), ..Choice::worker(worker) })
    }

    fn tell(&mut self, rank: u32, _: Nanos, news: News<'_>) {
        if let News::Ended(id) = news
            && let Some(worker) = self.live.remove(&id)
        {
            debug_assert_eq!(worker, rank / self.ranks);
            self.loads[worker as usize] -= 1;
        }
    }

    fn joined(&mut self, worker: u32) {
        self.members.join(worker);
        let workers = self.members.numbers();
        self.sent.grow(workers);
        self.prompts.resize(workers as usize, VecDeque::new());
        self.loads.resize(workers as usize, 0);
    }

    fn left(&mut self, worker: u32) {
        self.members.leave(worker);
        self.sent.clear(worker);
        self.prompts[worker as usize].clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Loads, incoming, request, sent};
    use windtunnel_engine::{Content, Request};

    const SETTINGS: CacheAwareSettings = CacheAwareSettings {
        block_size: 16,
        cache_threshold: 0.5,
        balance_abs_threshold: 2,
        balance_rel_threshold: 1.5,
        max_tree_tokens: 1_000_000,
        seed: 1,
    };

    fn of_ids(id: u64, ids: &[u64]) -> Request {
        request(id, ids.len() as u32 * 16, Content::Prefixes { ids: ids.into(), id_tokens: 16 })
    }

    fn route(router: &mut CacheAware, request: &Request) -> Choice {
        let mut workers = Loads::unfinished(&vec![0; router.loads.len()]);
        sent(router, &incoming(request, Nanos::ZERO), &mut workers)
    }

    fn end(router: &mut CacheAware, id: u64) {
        let worker = router.live[&RequestId(id)];
        router.tell(worker, Nanos::ZERO, News::Ended(RequestId(id)));
    }

    /// Of 4 blocks 3 were sent to a worker, more than half: it gets the prompt. Of 8, 3 are less: the worker to which
    /// less was sent gets it.
    #[test]
    fn a_prompt_goes_to_its_prefix_if_enough_is_known() {
        for seed in 0..20 {
            let mut router = CacheAware::new(CacheAwareSettings { seed, ..SETTINGS }, 2, 1);
            let first = route(&mut router, &of_ids(0, &[1, 2, 3])).worker;
            let choice = route(&mut router, &of_ids(1, &[1, 2, 3, 4]));
            assert_eq!((choice.worker, choice.record.unwrap().overlap_tokens), (first, 48));
            let choice = route(&mut router, &of_ids(2, &[1, 2, 3, 90, 91, 92, 93, 94]));
            assert_eq!((choice.worker, choice.record.unwrap().overlap_tokens), (1 - first, 0));
            assert_eq!(choice.record.unwrap().best_overlap_tokens, 48);
        }
    }

    /// Three more than the least, and more than one and a half times: load decides, until requests have ended.
    #[test]
    fn unequal_loads_come_first() {
        let mut router = CacheAware::new(SETTINGS, 2, 1);
        let first = route(&mut router, &of_ids(0, &[1, 2])).worker;
        assert!((1..3).all(|id| route(&mut router, &of_ids(id, &[1, 2])).worker == first));
        assert_eq!(router.loads[first as usize], 3);
        assert_eq!(route(&mut router, &of_ids(3, &[1, 2])).worker, 1 - first, "3 against 0");
        // Both know the prefix now, and 3 against 1 is not unequal.
        end(&mut router, 0);
        end(&mut router, 1);
        assert_eq!(route(&mut router, &of_ids(4, &[9])).worker, route(&mut router, &of_ids(5, &[9])).worker);
        (2..6).for_each(|id| end(&mut router, id));
        assert_eq!(router.loads, [0, 0]);
    }

    /// A tree of 4 blocks: a third prompt of 2 pushes the first one out, but what the second one used, too, stays.
    #[test]
    fn a_tree_forgets_what_was_used_least_recently() {
        let mut router = CacheAware::new(CacheAwareSettings { max_tree_tokens: 64, ..SETTINGS }, 1, 1);
        route(&mut router, &of_ids(0, &[1, 2]));
        route(&mut router, &of_ids(1, &[1, 3]));
        route(&mut router, &of_ids(2, &[5, 6]));
        let known = |router: &mut CacheAware, ids: &[u64]| {
            read_prompt(&of_ids(9, ids), 16, &mut router.prompt);
            router.sent.overlaps(&router.prompt.keys, &mut router.overlaps);
            router.overlaps.of(0)
        };
        assert_eq!(
            (known(&mut router, &[1, 2]), known(&mut router, &[1, 3]), known(&mut router, &[5, 6])),
            (1, 2, 2)
        );
    }
}
