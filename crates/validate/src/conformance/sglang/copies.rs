//! The copies between SGLang's device and its host tier, as times: a lane for each direction. A copy starts when it is
//! handed over, the copies before it have ended and so has the pass that was launched last, behind which the engine
//! fences both (cache_controller.py `write_fence_stream` and `load_fence_stream`, 0.5.23). A pass computes a layer when
//! its part of the load is there, so it ends no sooner than its load.

use super::scenario::Settings;
use crate::conformance::trace::rounded_ms;
use windtunnel_engine::HostJob;
use windtunnel_engine::sglang::Rank;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The scheduler's clock, which goes on where it waits for a copy.
    pub(super) now_ms: f64,
    /// When the pass launched last ends.
    pub(super) gpu_free_ms: f64,
    /// When the lane to the host, and the one from it, have done what they were given.
    lanes_ms: [f64; 2],
    running: Vec<(f64, u64)>,
    /// When the load of the pass being scheduled ends.
    load_end_ms: f64,
}

/// A copy as a line has it: kind, tokens, end.
pub(super) type Started = (&'static str, u32, f64);

impl Copies {
    /// Tells the rank of the copies that have ended, before it schedules.
    pub(super) fn report(&mut self, rank: &mut Rank, now_ms: f64) {
        (self.now_ms, self.load_end_ms) = (now_ms, 0.0);
        let mut ended: Vec<(f64, u64)> =
            self.running.extract_if(.., |copy| copy.0 <= now_ms + 1e-9).collect();
        ended.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ended.iter().for_each(|&(_, job)| rank.job_done(job));
    }

    /// Starts what was handed over, and waits where the engine does.
    pub(super) fn start(&mut self, jobs: &[HostJob], awaited: &[u64], settings: &Settings) -> Vec<Started> {
        jobs.iter().map(|job| self.start_one(job, awaited.contains(&job.job), settings)).collect()
    }

    fn start_one(&mut self, job: &HostJob, is_awaited: bool, settings: &Settings) -> Started {
        let (latency_ms, per_token_ms) = settings.copy_ms(job.load);
        let lane = &mut self.lanes_ms[usize::from(job.load)];
        let start = self.now_ms.max(*lane).max(self.gpu_free_ms);
        let end = start + latency_ms + per_token_ms * f64::from(job.tokens);
        *lane = end;
        if job.load {
            self.load_end_ms = end;
        }
        if is_awaited {
            self.now_ms = self.now_ms.max(end);
        } else {
            self.running.push((end, job.job));
        }
        (if job.load { "load" } else { "store" }, job.tokens, rounded_ms(end))
    }

    /// When a pass that would end at `end_ms` ends.
    pub(super) fn pass_end(&mut self, end_ms: f64) -> f64 {
        self.gpu_free_ms = end_ms.max(self.load_end_ms);
        self.gpu_free_ms
    }

    /// When the next one ends.
    pub(super) fn next_ms(&self) -> Option<f64> {
        self.running.iter().map(|copy| copy.0).reduce(f64::min)
    }
}
