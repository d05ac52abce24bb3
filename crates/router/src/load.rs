//! Policies that go by loads, and the one that goes by nothing: any worker, the one with the fewest requests,
//! the one with the least KV cache in use, the better of two. Equals are drawn among; a draw is taken only
//! where there is something to draw.

use crate::draw::Draw;
use crate::{Choice, Incoming, Router, Verdict, WorkerLoad, Workers};
use std::cmp::Ordering;

/// Any worker, each as likely as the others.
#[derive(Clone, Debug)]
pub struct Random(Draw);

impl Random {
    /// With the seed of its draws.
    pub fn new(seed: u64) -> Random {
        Random(Draw::new(seed))
    }
}

impl Router for Random {
    fn route(&mut self, _: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        let place = self.0.below(workers.count().get());
        Verdict::To(Choice::worker(workers.number(place)))
    }
}

/// The worker with the fewest unfinished requests.
#[derive(Clone, Debug)]
pub struct LeastRequests(Least);

impl LeastRequests {
    /// With the seed of the draws among equals.
    pub fn new(seed: u64) -> LeastRequests {
        LeastRequests(Least::new(seed))
    }
}

impl LeastRequests {
    pub(crate) fn pick(&mut self, workers: &mut dyn Workers) -> u32 {
        self.0.pick(workers, by_requests)
    }
}

impl Router for LeastRequests {
    fn route(&mut self, _: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        Verdict::To(Choice::worker(self.pick(workers)))
    }
}

/// The worker with the smallest part of its KV blocks in use. A request that waits uses none.
#[derive(Clone, Debug)]
pub struct LeastKv(Least);

impl LeastKv {
    /// With the seed of the draws among equals.
    pub fn new(seed: u64) -> LeastKv {
        LeastKv(Least::new(seed))
    }
}

impl Router for LeastKv {
    fn route(&mut self, _: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        Verdict::To(Choice::worker(self.0.pick(workers, by_kv)))
    }
}

/// Of two different workers drawn at random the one with fewer unfinished requests, the first of equals.
#[derive(Clone, Debug)]
pub struct PowerOfTwo(Draw);

impl PowerOfTwo {
    /// With the seed of its draws.
    pub fn new(seed: u64) -> PowerOfTwo {
        PowerOfTwo(Draw::new(seed))
    }
}

impl Router for PowerOfTwo {
    fn route(&mut self, _: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        let count = workers.count().get();
        let first = self.0.below(count);
        if count == 1 {
            return Verdict::To(Choice::worker(workers.number(first)));
        }
        let second = (first + 1 + self.0.below(count - 1)) % count;
        let (one, other) = (workers.load(first), workers.load(second));
        let fewer = if by_requests(&other, &one) == Ordering::Less { second } else { first };
        Verdict::To(Choice::worker(workers.number(fewer)))
    }
}

fn by_requests(one: &WorkerLoad, other: &WorkerLoad) -> Ordering {
    one.unfinished.cmp(&other.unfinished)
}

/// Compares used / usable, exactly.
fn by_kv(one: &WorkerLoad, other: &WorkerLoad) -> Ordering {
    let part =
        |used: &WorkerLoad, of: &WorkerLoad| u128::from(used.used_blocks) * u128::from(of.usable_blocks);
    part(one, other).cmp(&part(other, one))
}

/// Finds the least load, and draws among equals.
#[derive(Clone, Debug)]
struct Least {
    draw: Draw,
    /// Scratch: the places of the workers with the least load so far.
    equals: Vec<u32>,
}

impl Least {
    fn new(seed: u64) -> Least {
        Least { draw: Draw::new(seed), equals: Vec::new() }
    }

    fn pick(
        &mut self,
        workers: &mut dyn Workers,
        order: impl Fn(&WorkerLoad, &WorkerLoad) -> Ordering,
    ) -> u32 {
        let mut least = workers.load(0);
        self.equals.clear();
        self.equals.push(0);
        for worker in 1..workers.count().get() {
            let load = workers.load(worker);
            match order(&load, &least) {
                Ordering::Greater => continue,
                Ordering::Equal => {}
                Ordering::Less => {
                    least = load;
                    self.equals.clear();
                }
            }
            self.equals.push(worker);
        }
        workers.number(self.equals[self.draw.below(self.equals.len() as u32) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use crate::testing::{chosen, one_rank_each};
    use std::num::NonZeroU32;

    /// Workers of (unfinished requests, used blocks, usable blocks), and which were asked.
    struct Known {
        loads: Vec<(u64, u64, u64)>,
        asked: Vec<u32>,
    }

    impl Workers for Known {
        fn count(&self) -> NonZeroU32 {
            NonZeroU32::new(self.loads.len() as u32).unwrap()
        }

        fn load(&mut self, worker: u32) -> WorkerLoad {
            self.asked.push(worker);
            let (unfinished, used_blocks, usable_blocks) = self.loads[worker as usize];
            WorkerLoad { unfinished, used_blocks, usable_blocks, ..WorkerLoad::default() }
        }
    }

    fn known(loads: &[(u64, u64, u64)]) -> Known {
        Known { loads: loads.to_vec(), asked: Vec::new() }
    }

    fn picks(policy: Policy, loads: &[(u64, u64, u64)], times: usize) -> Vec<u32> {
        let mut workers = known(loads);
        let mut router = policy.router(one_rank_each(workers.count()), None);
        (0..times).map(|_| chosen(router.as_mut(), &mut workers)).collect()
    }

    const ALL: [fn(u64) -> Policy; 4] = [
        |seed| Policy::Random { seed },
        |seed| Policy::LeastRequests { seed },
        |seed| Policy::LeastKv { seed },
        |seed| Policy::PowerOfTwo { seed },
    ];

    #[test]
    fn the_least_load_wins_by_its_own_measure() {
        let loads = [(3, 10, 100), (1, 90, 100), (2, 9, 100)];
        assert_eq!(picks(Policy::LeastRequests { seed: 1 }, &loads, 5), [1; 5]);
        assert_eq!(picks(Policy::LeastKv { seed: 1 }, &loads, 5), [2; 5]);
        // 1/3 is more than 333/1000 and less than 334/1000: parts, not counts, and not rounded.
        assert_eq!(picks(Policy::LeastKv { seed: 1 }, &[(0, 1, 3), (0, 333, 1000)], 5), [1; 5]);
        assert_eq!(picks(Policy::LeastKv { seed: 1 }, &[(0, 1, 3), (0, 334, 1000)], 5), [0; 5]);
    }

    /// Of two workers both are drawn, so the less loaded takes everything; the most loaded of three never does.
    #[test]
    fn the_better_of_two_is_never_the_worst_of_all() {
        assert_eq!(picks(Policy::PowerOfTwo { seed: 5 }, &[(4, 0, 1), (3, 0, 1)], 20), [1; 20]);
        let picks = picks(Policy::PowerOfTwo { seed: 5 }, &[(4, 0, 1), (9, 0, 1), (5, 0, 1)], 300);
        // The least loaded is drawn in two of the three pairs.
        let count = |worker| picks.iter().filter(|&&pick| pick == worker).count();
        assert_eq!(count(1), 0);
        // 200, give or take four standard deviations, 4 · √(300 · 2/3 · 1/3) = 33.
        assert!(count(0).abs_diff(200) < 33, "{}", count(0));
    }

    /// Only the two that were drawn are asked for their loads, and the policy that needs none asks nobody.
    #[test]
    fn no_more_loads_are_asked_for_than_needed() {
        let loads = [(1, 1, 1); 9];
        for (policy, asked) in [(ALL[0](3), 0), (ALL[1](3), 9), (ALL[2](3), 9), (ALL[3](3), 2)] {
            let mut workers = known(&loads);
            let mut router = policy.router(one_rank_each(workers.count()), None);
            chosen(router.as_mut(), &mut workers);
            assert_eq!(workers.asked.len(), asked, "{}", policy.name());
            assert_eq!(policy.needs().loads, asked > 0, "{}", policy.name());
        }
    }

    /// Among equals everyone is as likely (dynamo#6253: not always the first, nor the order of a hash map):
    /// 8000 draws of 8 are 1000 each, give or take five standard deviations, 5 · √(8000 · 1/8 · 7/8) = 148.
    #[test]
    fn ties_are_drawn_evenly() {
        for policy in ALL.map(|policy| policy(42)) {
            let picks = picks(policy.clone(), &[(2, 5, 10); 8], 8000);
            for worker in 0..8 {
                let count = picks.iter().filter(|&&pick| pick == worker).count();
                assert!(count.abs_diff(1000) < 148, "{}: worker {worker} {count} times", policy.name());
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_picks_and_another_seed_others() {
        for policy in ALL {
            let with = |seed| picks(policy(seed), &[(2, 5, 10); 8], 100);
            assert_eq!(with(42), with(42));
            assert_ne!(with(42), with(43));
        }
    }

    #[test]
    fn one_worker_takes_everything() {
        for policy in ALL {
            assert_eq!(picks(policy(42), &[(7, 7, 7)], 3), [0; 3]);
        }
    }
}
