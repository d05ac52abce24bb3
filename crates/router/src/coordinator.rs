//! What vLLM's own balancer knows of the ranks, and since when: the statistics that the coordinator
//! process of a data-parallel deployment passes on (vllm/v1/engine/coordinator.py,
//! `process_input_socket`, version 0.33.0).
//!
//! Ranks report when their counts have changed; the coordinator collects and publishes them now and then.
//! Reports take no time to reach it, nor publications to reach the balancer, which sees one with the
//! requests that come after its instant. The coordinator's clock counts whole milliseconds, here nanoseconds.

use windtunnel_engine::Nanos;

/// Least time between two publications of changed counts (`min_stats_update_interval_ms`).
const INTERVAL: Nanos = Nanos(100_000_000);
/// Time after which unchanged counts are published again.
const IDLE_INTERVAL: Nanos = Nanos(5_000_000_000);
/// Ranks in lock-step: silence after which the counts of a step are complete.
const STEP_SILENCE: Nanos = Nanos(50_000_000);

/// The load of a rank, as it reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankLoad {
    /// Requests in the waiting queue.
    pub waiting: u64,
    /// Requests in the running list.
    pub running: u64,
    /// Part of the blocks that has an owner, 0 to 1.
    pub kv_usage: f64,
}

/// The step of a rank group: the wave since the start, and the step since the start of the wave. Ranks that
/// do not step together leave it at its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupStep {
    /// Times that all ranks had nothing to do any more.
    pub wave: u64,
    /// Steps since then.
    pub step: u64,
}

/// A rank tells its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    /// When.
    pub time: Nanos,
    /// Which one.
    pub rank: u32,
    /// In which step of its group.
    pub step: GroupStep,
    /// What it tells.
    pub load: RankLoad,
}

/// Collects reports and decides when they are published.
#[derive(Clone, Debug)]
pub(crate) struct Coordinator {
    lockstep: bool,
    loads: Vec<RankLoad>,
    changed: bool,
    newest_step: Option<GroupStep>,
    /// The counts at the end of the step before the newest one.
    complete: Option<Vec<RankLoad>>,
    /// Publication before the first: long ago, the deployment has been idle.
    last_publication: Option<Nanos>,
    /// When the coordinator publishes next, unless a report comes before.
    deadline: Nanos,
}

impl Coordinator {
    pub(crate) fn new(ranks: u32, lockstep: bool) -> Coordinator {
        Coordinator {
            lockstep,
            loads: vec![RankLoad::default(); ranks as usize],
            changed: false,
            newest_step: None,
            complete: None,
            last_publication: None,
            deadline: Nanos::NEVER,
        }
    }

    /// Takes a report, of a time not before that of the one before. What is published up to then goes to
    /// `publish`.
    pub(crate) fn report(&mut self, report: &LoadReport, publish: impl FnMut(&[RankLoad])) {
        self.run_until(report.time, publish);
        if self.lockstep && self.newest_step.is_none_or(|newest| report.step > newest) {
            // The first report of a step: those before it tell the whole step before.
            if self.changed {
                self.complete = Some(self.loads.clone());
            }
            self.newest_step = Some(report.step);
        }
        self.loads[report.rank as usize] = report.load;
        self.changed = true;
        self.wait(report.time);
    }

    /// Publishes what is due before `now`.
    pub(crate) fn run_until(&mut self, now: Nanos, mut publish: impl FnMut(&[RankLoad])) {
        while self.deadline < now {
            let at = self.deadline;
            match self.complete.take() {
                Some(complete) => publish(&complete),
                None => {
                    publish(&self.loads);
                    self.changed = false;
                }
            }
            self.last_publication = Some(at);
            self.wait(at);
        }
    }

    /// Begins to wait for a report at `now`: for how long?
    fn wait(&mut self, now: Nanos) {
        let silence = if self.lockstep && self.complete.is_none() { STEP_SILENCE } else { Nanos::ZERO };
        let interval = if self.changed { INTERVAL } else { IDLE_INTERVAL };
        let next = self.last_publication.map_or(now, |last| last + interval);
        self.deadline = next.max(now + silence);
    }
}
