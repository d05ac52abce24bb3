//! Copies between an accelerator and its host's memory in virtual time: a lane for each direction, first come first
//! served.
//!
//! As vLLM's worker does it: a store waits for the launch of the next pass, or of its own if that has to wait for it; a
//! load starts with its pass; what has ended is asked for when a pass is launched. What is copied, and why, the rank
//! says.

use windtunnel_config::HostOffload;
use windtunnel_engine::{HostJob, Nanos, Rank, RequestId};

/// A copy under way.
#[derive(Clone, Copy, Debug)]
struct Copy {
    end: Nanos,
    job: u64,
    /// The request that waits for it, if it is a load.
    loads: Option<RequestId>,
}

/// The copies of a rank.
pub(crate) struct HostCopies {
    offload: HostOffload,
    /// When the lane to the host, and the one from it, have done what they were given.
    free_at: [Nanos; 2],
    /// The worker may be ahead of its passes: it waited for a copy.
    now: Nanos,
    running: Vec<Copy>,
    /// Stores that start with the next launch.
    put_off: Vec<HostJob>,
}

impl HostCopies {
    pub(crate) fn new(offload: HostOffload) -> HostCopies {
        HostCopies {
            offload,
            free_at: [Nanos::ZERO; 2],
            now: Nanos::ZERO,
            running: Vec::new(),
            put_off: Vec::new(),
        }
    }

    /// Launches the pass scheduled last, with these jobs, of which it has to wait for those in `flush`. Tells the rank
    /// what has ended, and when the pass can start.
    pub(crate) fn launch(
        &mut self,
        rank: &mut Rank,
        mut jobs: Vec<HostJob>,
        flush: &[u64],
        now: Nanos,
    ) -> Nanos {
        self.now = self.now.max(now);
        let mut loads = jobs.extract_if(.., |job| job.load).collect::<Vec<_>>();
        let mut starting = std::mem::take(&mut self.put_off);
        starting.extend(jobs.extract_if(.., |job| flush.contains(&job.job)));
        self.put_off = jobs;
        starting.drain(..).for_each(|job| self.start(&job));
        for copy in self.running.iter().filter(|copy| flush.contains(&copy.job)) {
            self.now = self.now.max(copy.end);
        }
        loads.drain(..).for_each(|job| self.start(&job));
        let now = self.now;
        let mut done: Vec<Copy> = self.running.extract_if(.., |copy| copy.end <= now).collect();
        done.sort_by_key(|copy| (copy.end, copy.job));
        for copy in done {
            rank.job_done(copy.job);
            if let Some(slot) = copy.loads.and_then(|id| rank.slot_of(id)) {
                rank.kv_loaded(slot);
            }
        }
        now
    }

    fn start(&mut self, job: &HostJob) {
        let bytes = job.blocks.len() as f64 * self.offload.bytes_per_block as f64;
        let rate = if job.load { self.offload.from_host } else { self.offload.to_host };
        let time = rate.map_or(0.0, |rate| bytes / rate).round() as u64;
        let lane = &mut self.free_at[usize::from(job.load)];
        let end = self.now.max(*lane) + self.offload.latency + Nanos(time);
        *lane = end;
        self.running.push(Copy { end, job: job.job, loads: job.load.then_some(job.request) });
    }

    /// When something next ends or can start.
    pub(crate) fn next_end(&self) -> Nanos {
        let running = self.running.iter().map(|copy| copy.end).min().unwrap_or(Nanos::NEVER);
        if self.put_off.is_empty() { running } else { self.now }
    }
}
