//! The worker side of vLLM's CPU offload: copies as times. A store is handed over with the step that fills its blocks
//! and starts when the next one is launched, unless a step has to wait for it before; a load starts with its step.

use super::scenario::Settings;
use super::trace::Copied;
use crate::conformance::scenario::Scenario;
use crate::conformance::trace::rounded_ms;
use windtunnel_engine::vllm::Rank;
use windtunnel_engine::{HostJob, RequestId};

/// A copy under way.
#[derive(Clone, Copy, Debug)]
struct Copy {
    done_ms: f64,
    job: u64,
    /// The request that waits for it, if it is a load.
    loads: Option<RequestId>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The worker may be ahead of the step: it waited for a copy.
    now: f64,
    running: Vec<Copy>,
    /// Stores that start with the next launch.
    put_off: Vec<HostJob>,
}

impl Copies {
    /// Launches the step scheduled last and tells the rank of the copies that have ended. Tells, too, when the step
    /// can start.
    pub(super) fn launch(
        &mut self,
        rank: &mut Rank,
        scenario: &Scenario,
        settings: &Settings,
        now: f64,
    ) -> (Copied, f64) {
        self.now = self.now.max(now);
        let scheduled = rank.scheduled();
        let (jobs, flush) = (scheduled.host_jobs.clone(), scheduled.flush.clone());
        let mut copied = Copied { flush: flush.clone(), ..Copied::default() };
        let line = |job: &HostJob| {
            let request = job.request.map_or_else(String::new, |id| scenario.name(id.0 as usize));
            (job.job, request, job.blocks.clone(), job.chunks.clone())
        };
        let (loads, mut stores): (Vec<HostJob>, Vec<HostJob>) = jobs.into_iter().partition(|job| job.load);
        copied.load_jobs = loads.iter().map(line).collect();
        copied.store_jobs = stores.iter().map(line).collect();
        self.put_off.extend(stores.extract_if(.., |job| flush.contains(&job.job)));
        for job in std::mem::take(&mut self.put_off) {
            self.start(&job, settings, &mut copied);
        }
        for copy in self.running.iter().filter(|copy| flush.contains(&copy.job)) {
            self.now = self.now.max(copy.done_ms);
        }
        for job in &loads {
            self.start(job, settings, &mut copied);
        }
        self.put_off = stores;
        let ended = |copy: &mut Copy| copy.done_ms <= self.now + 1e-9;
        let mut done: Vec<Copy> = self.running.extract_if(.., ended).collect();
        done.sort_by(|a, b| a.done_ms.total_cmp(&b.done_ms).then(a.job.cmp(&b.job)));
        let mut received: Vec<RequestId> = Vec::new();
        for copy in done {
            copied.jobs_done.push(copy.job);
            rank.job_done(copy.job);
            received.extend(copy.loads);
        }
        received.sort_by_key(|id| scenario.name(id.0 as usize));
        received.iter().filter_map(|&id| rank.slot_of(id)).collect::<Vec<_>>().into_iter().for_each(|slot| {
            rank.kv_loaded(slot);
        });
        copied.recv_done = scenario.names(received);
        copied.t_waited_ms = rounded_ms(self.now);
        (copied, self.now)
    }

    fn start(&mut self, job: &HostJob, settings: &Settings, copied: &mut Copied) {
        let (kind, ms) = match job.load {
            true => ("load", settings.load_ms(job.tokens)),
            false => ("store", settings.store_ms(job.tokens)),
        };
        let done_ms = rounded_ms(self.now + ms);
        self.running.push(Copy { done_ms, job: job.job, loads: job.request.filter(|_| job.load) });
        copied.submitted.push((kind, job.job, done_ms));
    }

    /// When the next one ends.
    pub(super) fn next_ms(&self) -> Option<f64> {
        self.running.iter().map(|copy| copy.done_ms).reduce(f64::min)
    }
}
