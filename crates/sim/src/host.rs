//! Copies between an accelerator and its host's memory in virtual time: a lane for each direction, first come first
//! served. What is copied, and why, the rank says.
//!
//! vLLM's worker: a store waits for the launch of the next pass, or of its own if that has to wait for it; a load starts
//! with its pass; both begin when the pass launched before has ended; what has ended is asked for when a pass is
//! launched. SGLang's cache controller: a copy starts when it is handed over and the pass launched last has ended; what
//! has ended is asked for before a pass is scheduled; a pass computes a layer when its part of the load is there, so it
//! ends no sooner than its load.

use crate::copy_lanes::CopyLanes;
use windtunnel_config::HostOffload;
use windtunnel_engine::{HostJob, Nanos, Rank, RequestId, Scheduled};

/// A copy under way.
#[derive(Clone, Copy, Debug)]
struct Copy {
    end: Nanos,
    job: u64,
    /// The request that waits for it, if it is a load of vLLM's.
    loads: Option<RequestId>,
}

/// What copies mean for the pass that was just scheduled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Launch {
    /// It cannot start sooner.
    pub(crate) ready: Nanos,
    /// It cannot end sooner.
    pub(crate) loaded: Nanos,
    /// The scheduler does nothing else until then.
    pub(crate) held: Nanos,
    /// Something has ended, which the rank reads when this pass is processed.
    pub(crate) reported: bool,
}

/// The copies of a rank.
pub(crate) struct HostCopies {
    /// To the host, and from it.
    lanes: CopyLanes,
    /// The worker (SGLang: the scheduler) may be ahead of its passes: it waited for a copy.
    now: Nanos,
    running: Vec<Copy>,
    /// Stores that start with the next launch (vLLM).
    put_off: Vec<HostJob>,
}

impl HostCopies {
    pub(crate) fn new(offload: HostOffload) -> HostCopies {
        HostCopies {
            lanes: CopyLanes::new(
                offload.bytes_per_token,
                [offload.to_host, offload.from_host],
                offload.latency,
            ),
            now: Nanos::ZERO,
            running: Vec::new(),
            put_off: Vec::new(),
        }
    }

    /// Bytes copied to the host, and from it.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.lanes.bytes()
    }

    /// Before a pass is scheduled at `now`, tells the rank what has ended (SGLang). True if something has.
    pub(crate) fn report(&mut self, rank: &mut Rank, now: Nanos) -> bool {
        if !matches!(rank, Rank::Sglang(_)) {
            return false;
        }
        let ended = self.take_ended(now);
        ended.iter().for_each(|copy| rank.job_done(copy.job));
        !ended.is_empty()
    }

    /// The pass scheduled last is launched: its copies start, and those that it has to wait for are waited for. Tells the
    /// rank what has ended, if its engine asks now. `busy_until`: the end of the pass launched before it.
    pub(crate) fn launch(
        &mut self,
        rank: &mut Rank,
        jobs: Vec<HostJob>,
        flush: &[u64],
        (now, busy_until): (Nanos, Nanos),
    ) -> Launch {
        self.now = self.now.max(now);
        match rank {
            Rank::Sglang(_) => self.hand_over(&jobs, flush, busy_until),
            _ => {
                let reported = self.launch_worker(rank, jobs, flush, busy_until);
                Launch { ready: self.now, reported, ..Launch::default() }
            }
        }
    }

    /// The result of a pass of SGLang was processed at `now`, with which these copies are handed over.
    pub(crate) fn completed(&mut self, jobs: &[HostJob], now: Nanos, busy_until: Nanos) {
        self.now = self.now.max(now);
        self.hand_over(jobs, &[], busy_until);
    }

    fn hand_over(&mut self, jobs: &[HostJob], awaited: &[u64], busy_until: Nanos) -> Launch {
        let mut loaded = Nanos::ZERO;
        for job in jobs {
            let end = self.start(job, busy_until);
            if job.load {
                loaded = end;
            }
            if awaited.contains(&job.job) {
                self.running.pop();
                self.now = self.now.max(end);
            }
        }
        let held = if awaited.is_empty() { Nanos::ZERO } else { self.now };
        Launch { ready: held, loaded, held, reported: false }
    }

    /// True if something has ended. Copies wait for the pass launched before: it computes what stores read, and still
    /// uses what loads write to (vllm/v1/kv_offload/cpu/gpu_worker.py: their stream waits for the model's).
    fn launch_worker(
        &mut self,
        rank: &mut Rank,
        mut jobs: Vec<HostJob>,
        flush: &[u64],
        busy_until: Nanos,
    ) -> bool {
        let mut loads = jobs.extract_if(.., |job| job.load).collect::<Vec<_>>();
        let mut starting = std::mem::take(&mut self.put_off);
        starting.extend(jobs.extract_if(.., |job| flush.contains(&job.job)));
        self.put_off = jobs;
        starting.drain(..).for_each(|job| {
            self.start(&job, busy_until);
        });
        for copy in self.running.iter().filter(|copy| flush.contains(&copy.job)) {
            self.now = self.now.max(copy.end);
        }
        loads.drain(..).for_each(|job| {
            self.start(&job, busy_until);
        });
        let ended = self.take_ended(self.now);
        for copy in &ended {
            rank.job_done(copy.job);
            if let Some(slot) = copy.loads.and_then(|id| rank.slot_of(id)) {
                rank.kv_loaded(slot);
            }
        }
        !ended.is_empty()
    }

    /// Takes the copies that have ended at `now`, in order.
    fn take_ended(&mut self, now: Nanos) -> Vec<Copy> {
        let mut ended: Vec<Copy> = self.running.extract_if(.., |copy| copy.end <= now).collect();
        ended.sort_by_key(|copy| (copy.end, copy.job));
        ended
    }

    fn start(&mut self, job: &HostJob, busy_until: Nanos) -> Nanos {
        let end = self.lanes.copy(usize::from(job.load), job.tokens, self.now.max(busy_until));
        self.running.push(Copy { end, job: job.job, loads: job.request.filter(|_| job.load) });
        end
    }

    /// When something next ends or can start.
    pub(crate) fn next_end(&self) -> Nanos {
        let running = self.running.iter().map(|copy| copy.end).min().unwrap_or(Nanos::NEVER);
        if self.put_off.is_empty() { running } else { self.now }
    }
}

/// What a schedule call said of copies.
pub(crate) fn jobs_of(scheduled: &Scheduled) -> (Vec<HostJob>, Vec<u64>) {
    (scheduled.host_jobs.clone(), scheduled.flush.clone())
}
