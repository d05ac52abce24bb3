//! Which rank of a worker takes a request: vLLM's own load balancer over data-parallel ranks
//! (vllm/v1/engine/core_client.py, `DPLBAsyncMPClient.get_core_engine_for_request`, version 0.33.0).
//!
//! One client sends all requests. It knows exactly how many of them each rank has not finished; what else
//! it knows of a rank is as old as the coordinator's last publication.

use crate::coordinator::{Coordinator, LoadReport, RankLoad};
use std::num::NonZeroU32;
use windtunnel_engine::Nanos;

/// Weight of a waiting request at full KV usage, beyond [`KV_PRESSURE`].
const WAITING_WEIGHT: f64 = 6.0;
/// KV usage from which waiting requests weigh more.
const KV_PRESSURE: f64 = 0.5;

/// The balancer of one worker.
#[derive(Clone, Debug)]
pub struct VllmBalancer {
    coordinator: Coordinator,
    /// The last publication, and in it the requests sent since.
    seen: Vec<RankLoad>,
    /// Where the search for the least load begins, one further for each request.
    start: usize,
}

impl VllmBalancer {
    /// A balancer that has sent nothing yet. `lockstep`: the ranks step together.
    pub fn new(ranks: NonZeroU32, lockstep: bool) -> VllmBalancer {
        VllmBalancer {
            coordinator: Coordinator::new(ranks.get(), lockstep),
            seen: vec![RankLoad::default(); ranks.get() as usize],
            start: 0,
        }
    }

    /// A rank reports its load, which it does when its counts have changed. In order of time.
    pub fn report(&mut self, report: &LoadReport) {
        let seen = &mut self.seen;
        self.coordinator.report(report, |loads| seen.copy_from_slice(loads));
    }

    /// The rank that takes a request at `now`: the first of the least load, from a place that moves on by
    /// one with each request. `unfinished` is the number of the client's requests that each rank has not
    /// finished. Requests whose rank is given are not asked for, and change nothing here.
    pub fn pick(&mut self, now: Nanos, unfinished: impl Fn(u32) -> u64) -> u32 {
        let seen = &mut self.seen;
        self.coordinator.run_until(now, |loads| seen.copy_from_slice(loads));
        let ranks = seen.len();
        let (mut best, mut least) = (0, f64::INFINITY);
        for place in 0..ranks {
            let rank = (self.start + place) % ranks;
            let score = score(&seen[rank], unfinished(rank as u32));
            if score < least {
                (best, least) = (rank, score);
            }
        }
        seen[best].waiting += 1;
        self.start = (self.start + 1) % ranks;
        best as u32
    }
}

/// The load that a request would meet, for one client.
fn score(seen: &RankLoad, unfinished: u64) -> f64 {
    let mut score = unfinished.max(seen.waiting + seen.running) as f64;
    if seen.waiting > 0 {
        score += seen.waiting as f64 * WAITING_WEIGHT * (seen.kv_usage - KV_PRESSURE).max(0.0);
    }
    score
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::GroupStep;

    const MS: u64 = 1_000_000;

    fn balancer(ranks: u32, lockstep: bool) -> VllmBalancer {
        VllmBalancer::new(NonZeroU32::new(ranks).unwrap(), lockstep)
    }

    fn report(ms: u64, rank: u32, step: u64, (waiting, running, kv_usage): (u64, u64, f64)) -> LoadReport {
        LoadReport {
            time: Nanos(ms * MS),
            rank,
            step: GroupStep { wave: 0, step },
            load: RankLoad { waiting, running, kv_usage },
        }
    }

    /// What the balancer believes at `ms`.
    fn believed(balancer: &mut VllmBalancer, ms: u64) -> Vec<(u64, u64)> {
        let seen = &mut balancer.seen;
        balancer.coordinator.run_until(Nanos(ms * MS), |loads| seen.copy_from_slice(loads));
        seen.iter().map(|load| (load.waiting, load.running)).collect()
    }

    #[test]
    fn a_burst_goes_round() {
        let mut balancer = balancer(3, false);
        let mut sent = [0u64; 3];
        let picks: Vec<u32> = (0..7)
            .map(|_| {
                let rank = balancer.pick(Nanos::ZERO, |rank| sent[rank as usize]);
                sent[rank as usize] += 1;
                rank
            })
            .collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2, 0]);
    }

    /// The rank of the least load is taken; among equal ones the first from a place that moves on.
    #[test]
    fn the_least_load_wins_and_ties_rotate() {
        let mut balancer = balancer(3, false);
        let unfinished = |rank: u32| [4, 2, 2][rank as usize];
        let picks = [(); 4].map(|()| balancer.pick(Nanos::ZERO, unfinished));
        // Places begin at 0, 1, 2, 0; after two picks each of 1 and 2 is thought to have 1 waiting, less
        // than the 2 unfinished.
        assert_eq!(picks, [1, 1, 2, 1]);
    }

    /// max(unfinished, waiting + running) + 6 · waiting · max(0, usage − 0.5).
    #[test]
    fn waiting_weighs_more_the_fuller_the_cache_is() {
        let load = |waiting, running, kv_usage| RankLoad { waiting, running, kv_usage };
        assert_eq!(score(&load(2, 2, 1.0), 3), 4.0 + 6.0);
        assert_eq!(score(&load(2, 2, 0.75), 9), 9.0 + 3.0);
        assert_eq!(score(&load(2, 2, 0.5), 0), 4.0);
        assert_eq!(score(&load(0, 4, 1.0), 0), 4.0);
        // Rank 0 has fewer requests, but they wait for blocks.
        let mut balancer = balancer(2, false);
        balancer.report(&report(0, 0, 0, (2, 2, 0.9)));
        balancer.report(&report(0, 1, 0, (0, 8, 0.9)));
        assert_eq!(balancer.pick(Nanos(MS), |rank| [4, 8][rank as usize]), 1);
    }

    /// The first change after a long rest is published at once, later ones every 100 ms. A request that comes
    /// at the instant of a publication does not see it. What was sent since is counted as waiting, until the
    /// next publication.
    #[test]
    fn changes_are_published_every_100_ms() {
        let mut balancer = balancer(2, false);
        balancer.report(&report(10, 0, 0, (3, 0, 0.0)));
        assert_eq!(believed(&mut balancer, 10), [(0, 0), (0, 0)]);
        assert_eq!(believed(&mut balancer, 11), [(3, 0), (0, 0)]);
        balancer.report(&report(20, 0, 0, (0, 3, 0.0)));
        balancer.report(&report(30, 1, 0, (0, 1, 0.0)));
        assert_eq!(balancer.pick(Nanos(50 * MS), |_| 0), 1);
        assert_eq!(believed(&mut balancer, 110), [(3, 0), (1, 0)]);
        assert_eq!(believed(&mut balancer, 111), [(0, 3), (0, 1)]);
        // Nothing new: nothing for five seconds, and then the same again.
        balancer.report(&report(400, 1, 0, (0, 0, 0.0)));
        assert_eq!(believed(&mut balancer, 401), [(0, 3), (0, 0)]);
        assert_eq!(balancer.pick(Nanos(500 * MS), |rank| u64::from(rank == 0) * 3), 1);
        assert_eq!(believed(&mut balancer, 5400), [(0, 3), (1, 0)]);
        assert_eq!(believed(&mut balancer, 5401), [(0, 3), (0, 0)]);
    }

    /// Ranks in lock-step: published is what all of them told of one step. With the first report of the next
    /// step that is known, without one 50 ms of silence say so.
    #[test]
    fn ranks_in_lockstep_are_published_step_by_step() {
        let mut balancer = balancer(2, true);
        balancer.report(&report(10, 0, 0, (1, 0, 0.0)));
        balancer.report(&report(30, 1, 0, (2, 0, 0.0)));
        assert_eq!(believed(&mut balancer, 80), [(0, 0), (0, 0)]);
        assert_eq!(believed(&mut balancer, 81), [(1, 0), (2, 0)]);
        // Next due at 180. The report of step 2 makes step 1 complete, which is then published alone.
        balancer.report(&report(100, 0, 1, (0, 1, 0.0)));
        balancer.report(&report(110, 1, 1, (0, 2, 0.0)));
        balancer.report(&report(170, 0, 2, (0, 0, 0.0)));
        assert_eq!(believed(&mut balancer, 181), [(0, 1), (0, 2)]);
        // And step 2 a hundred later.
        assert_eq!(believed(&mut balancer, 280), [(0, 1), (0, 2)]);
        assert_eq!(believed(&mut balancer, 281), [(0, 0), (0, 2)]);
    }
}
