//! `prefix_hash`: requests whose prompts begin alike go to the same worker, found by consistent hashing, unless it has
//! too much to do (consistent hashing with bounded loads).
//!
//! Workers have points on a ring of numbers; a prompt's beginning is a number, and the worker of the next point takes
//! the request. When a worker comes or goes, only the prompts between its points and those before them move.

use crate::{Choice, Incoming, Router, Verdict, Workers};
use windtunnel_engine::shared_prompt_keys;

/// Points of each worker on the ring: with so many, the shares of two workers differ by about a tenth.
const POINTS: u32 = 256;

/// What counts as the beginning, and what is too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixHashSettings {
    /// Tokens of a block.
    pub block_size: u32,
    /// Whole blocks from the start of a prompt that decide.
    pub prefix_blocks: u32,
    /// A worker takes no more unfinished requests than this times the mean, rounded up. None: it always does.
    pub load_factor: Option<f64>,
}

/// The policy at work.
pub struct PrefixHash {
    settings: PrefixHashSettings,
    /// Points and their workers, in order.
    ring: Vec<(u64, u32)>,
    /// Scratch: unfinished requests.
    loads: Vec<u64>,
}

impl PrefixHash {
    /// A ring for `workers` workers.
    pub fn new(settings: PrefixHashSettings, workers: u32) -> PrefixHash {
        let mut ring: Vec<(u64, u32)> = (0..workers).flat_map(points).collect();
        ring.sort_unstable();
        PrefixHash { settings, ring, loads: Vec::new() }
    }

    /// The number of a prompt's beginning. A prompt that shares no whole block with another one has its own.
    fn beginning(&self, incoming: &Incoming<'_>) -> u64 {
        let mut left = self.settings.prefix_blocks;
        let mut last = None;
        shared_prompt_keys(incoming.request, self.settings.block_size, |run| {
            // An identity stands for everything before it, too.
            let count = run.count.min(left);
            last = Some(run.key(count - 1));
            left -= count;
            left > 0
        });
        // Mixed twice, so that small numbers are not those of the points of the first worker.
        match last {
            Some(key) => mixed(mixed(key.0)),
            None => mixed(mixed(!incoming.request.id.0)),
        }
    }

    /// The workers in the order in which the ring gives them from a number on; each comes up several times.
    fn from(&self, number: u64) -> impl Iterator<Item = u32> + '_ {
        let start = self.ring.partition_point(|&(point, _)| point < number);
        self.ring[start..].iter().chain(&self.ring[..start]).map(|&(_, worker)| worker)
    }
}

impl Router for PrefixHash {
    fn route(&mut self, incoming: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        let number = self.beginning(incoming);
        let Some(factor) = self.settings.load_factor else {
            // A ring of at least one worker.
            return Verdict::To(Choice::worker(self.from(number).next().unwrap_or(0)));
        };
        let count = workers.count().get();
        let mut loads = std::mem::take(&mut self.loads);
        loads.clear();
        let mut all = 1;
        for place in 0..count {
            let (worker, load) = (workers.number(place) as usize, workers.load(place).unfinished);
            loads.resize(loads.len().max(worker + 1), 0);
            loads[worker] = load;
            all += load;
        }
        let most = (factor * all as f64 / f64::from(count)).ceil() as u64;
        // A factor of at least 1 leaves room somewhere.
        let worker = self.from(number).find(|&worker| loads[worker as usize] < most).unwrap_or(0);
        self.loads = loads;
        Verdict::To(Choice::worker(worker))
    }

    fn joined(&mut self, worker: u32) {
        self.left(worker);
        self.ring.extend(points(worker));
        self.ring.sort_unstable();
    }

    fn left(&mut self, worker: u32) {
        self.ring.retain(|&(_, of)| of != worker);
    }
}

/// The points of a worker.
fn points(worker: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..POINTS).map(move |copy| (mixed(u64::from(worker) << 32 | u64::from(copy)), worker))
}

/// Spreads numbers that lie close to each other (the finalizer of splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Loads, incoming, request, sent};
    use windtunnel_engine::{Content, Nanos, Request};

    fn settings(load_factor: Option<f64>) -> PrefixHashSettings {
        PrefixHashSettings { block_size: 16, prefix_blocks: 2, load_factor }
    }

    fn of_ids(id: u64, ids: &[u64], tokens: u32) -> Request {
        request(id, tokens, Content::Prefixes { ids: ids.into(), id_tokens: 16 })
    }

    fn worker(router: &mut PrefixHash, request: &Request, loads: &[u64]) -> u32 {
        sent(router, &incoming(request, Nanos::ZERO), &mut Loads::unfinished(loads)).worker
    }

    /// Two blocks decide: what comes behind them does not matter, what differs in them does.
    #[test]
    fn prompts_that_begin_alike_go_to_one_worker() {
        let mut router = PrefixHash::new(settings(None), 50);
        let of = |router: &mut PrefixHash, ids: &[u64]| worker(router, &of_ids(1, ids, 64), &[0; 50]);
        let mut others = std::collections::BTreeSet::new();
        for first in (0..400).step_by(10) {
            let one = of(&mut router, &[first, first + 1, first + 2, first + 3]);
            assert_eq!(of(&mut router, &[first, first + 1, 9000, 9001]), one);
            others.insert(one);
        }
        assert!(others.len() > 20, "40 beginnings on {} of 50 workers", others.len());
        // A prompt of one whole block is decided by that one.
        let short = worker(&mut router, &of_ids(1, &[0, 1], 20), &[0; 50]);
        assert_eq!(worker(&mut router, &of_ids(2, &[0, 7], 31), &[0; 50]), short);
    }

    /// What shares nothing is spread: 10,000 prompts on 10 workers, 1000 each, give or take a third.
    #[test]
    fn prompts_of_their_own_are_spread() {
        let mut router = PrefixHash::new(settings(None), 10);
        let mut counts = [0u32; 10];
        for id in 0..10_000 {
            counts[worker(&mut router, &request(id, 64, Content::Private), &[0; 10]) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| count.abs_diff(1000) < 333), "{counts:?}");
    }

    /// One more worker takes prompts from the others, and none of those that stay move between them.
    #[test]
    fn a_new_worker_moves_few() {
        let (mut nine, mut ten) = (PrefixHash::new(settings(None), 9), PrefixHash::new(settings(None), 10));
        let mut moved = 0;
        for id in 0..2000 {
            let asked = request(id, 64, Content::Private);
            let (before, after) = (worker(&mut nine, &asked, &[0; 9]), worker(&mut ten, &asked, &[0; 10]));
            assert!(before == after || after == 9);
            moved += u32::from(before != after);
        }
        // A tenth.
        assert!((100..320).contains(&moved), "{moved} of 2000");
    }

    /// With a factor of 1.25 and 8 requests on 4 workers, the ninth may make 3 of a worker, ⌈1.25 · 9 / 4⌉; whose
    /// worker has 3 already goes to the next one on the ring, the same for all that begin alike.
    #[test]
    fn a_worker_with_too_much_is_passed() {
        let mut router = PrefixHash::new(settings(Some(1.25)), 4);
        let asked = of_ids(1, &[0, 1], 32);
        let home = worker(&mut router, &asked, &[2; 4]);
        let mut loads = [1; 4];
        loads[home as usize] = 5;
        let next = worker(&mut router, &asked, &loads);
        assert_ne!(next, home);
        assert_eq!(worker(&mut router, &asked, &loads), next);
        loads = [2; 4];
        loads[home as usize] = 2;
        assert_eq!(worker(&mut router, &asked, &loads), home);
    }
}
