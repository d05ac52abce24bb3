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
