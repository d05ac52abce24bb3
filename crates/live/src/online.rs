//! A workload against live workers in this process: what a prediction does in virtual time, with the wall clock
//! deciding when each instant is reached.
//!
//! Nothing waits for a request to arrive from outside, so one thread has all rank groups and handles every
//! instant in the order of virtual time: pass ends, arrivals, schedule calls. The passes are those of the
//! prediction, whatever the clock does.

use crate::clock::WallClock;
use crate::error::LiveError;
use crate::group::{GroupSettings, RankGroup};
use crate::observer::{Observers, RequestInfo, Routed};
use crate::placement::Placement;
use crate::rank::LiveRank;
use crate::recorder::Recorder;
use crate::submission::Submission;
use std::collections::HashMap;
use std::iter::Peekable;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use windtunnel_config::{Deployment, Experiment, Pace};
use windtunnel_engine::{Nanos, Rank, Rejection, RequestId, Stepper};
use windtunnel_report::{Collector, CollectorOptions, Refusal};
use windtunnel_router::{Choice, Fleet, Incoming, News, Router, Verdict, WorkerLoad, Workers};
use windtunnel_traffic::{Arrival, Source};

/// Longest time that nobody looks whether the run is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// How a workload is replayed.
pub struct OnlineOptions {
    /// What the report wants.
    pub collector: CollectorOptions,
    /// How much faster than the wall clock logical time runs, above 0.
    pub rate: f64,
    /// Set from outside to stop the run.
    pub interrupt: Arc<AtomicBool>,
}

/// What came of it.
pub struct Replayed {
    /// One for each rank group, in order.
    pub collectors: Vec<Collector>,
    /// The instant of the last pass end or arrival.
    pub end: Nanos,
    /// Whether prefills, and decodes, lay outside of what their timing was measured for.
    pub outside: [bool; 2],
}

/// Replays the workload of an experiment.
///
/// # Errors
/// A bad line of the workload, an interruption, an engine that died, requests that nothing will wake, and
/// workloads that end by virtual time.
pub fn replay(experiment: &Experiment, options: &OnlineOptions) -> Result<Replayed, LiveError> {
    let workload = &experiment.workload;
    if workload.max_virtual_time.is_some() {
        let message =
            "--online runs a workload to its end: traffic.stop.max_virtual_time_seconds is not heeded";
        return Err(LiveError::Settings(message.into()));
    }
    crate::limits::check(experiment, true)?;
    let mut run = Run::new(&experiment.deployment, options)?;
    let source = workload.open()?;
    match workload.pace {
        Pace::Arrivals => run.open_loop(source.peekable())?,
        Pace::Concurrency(seats) => run.closed_loop(source, u64::from(seats.get()))?,
    }
    run.finish()
}

struct Run<'a> {
    deployment: &'a Deployment,
    groups: Vec<RankGroup>,
    /// By group, shared with its recorders.
    collectors: Vec<Arc<Mutex<Collector>>>,
    groups_per_worker: usize,
    ranks_per_group: u32,
    router: Box<dyn Router>,
    /// Requests that the router holds back.
    held: HashMap<RequestId, Arrival>,
    /// By worker.
    placements: Vec<Placement>,
    clock: WallClock,
    interrupt: &'a AtomicBool,
    /// The instant of the last arrival.
    now: Nanos,
    /// A request was refused before it came to a rank, and nobody was let go for that yet.
    refused: bool,
}

impl<'a> Run<'a> {
    fn new(deployment: &'a Deployment, options: &'a OnlineOptions) -> Result<Run<'a>, LiveError> {
        let ranks = deployment.ranks.get();
        let ranks_per_group = if deployment.barrier { ranks } else { 1 };
        let mut settings = GroupSettings::new(deployment, 1.0);
        let telling = deployment.telling();
        let (scope, tokens) = telling.scope(settings.engine.block_size());
        settings.engine.set_kv_events(scope, tokens);
        let (mut groups, mut collectors) = (Vec::new(), Vec::new());
        for worker in 0..deployment.replicas.get() {
            for first in (0..ranks).step_by(ranks_per_group as usize) {
                let collector = Arc::new(Mutex::new(Collector::new(options.collector)));
                let lanes = (first..first + ranks_per_group).map(|rank| {
                    let scheduler = Rank::new(settings.engine.clone(), Stepper::Plain)?;
                    let usable = u64::from(settings.engine.usable_blocks());
                    let mut observers = Observers::default();
                    observers.push(Box::new(Recorder::new(collector.clone(), (worker, rank), usable)));
                    Ok(LiveRank::new(settings.engine.clone(), scheduler, observers, telling.book()))
                });
                let lanes = lanes.collect::<Result<Vec<_>, LiveError>>()?;
                groups.push(RankGroup::new(first, lanes, settings.clone()));
                collectors.push(collector);
            }
        }
        Ok(Run {
            deployment,
            groups,
            collectors,
            groups_per_worker: (ranks / ranks_per_group) as usize,
            ranks_per_group,
            router: deployment.router.router(
                Fleet { workers: deployment.replicas, ranks: deployment.ranks },
                Some(deployment.prefill_time()),
            ),
            held: HashMap::new(),
            placements: (0..deployment.replicas.get()).map(|_| Placement::new(deployment)).collect(),
            clock: WallClock::with_rate(options.rate),
            interrupt: &options.interrupt,
            now: Nanos::ZERO,
            refused: false,
        })
    }

    /// Requests come at the times of their source, whatever becomes of those before them.
    fn open_loop(&mut self, mut source: Peekable<Source>) -> Result<(), LiveError> {
        loop {
            let arrival = match source.peek() {
                Some(Ok(arrival)) => arrival.at,
                Some(Err(_)) | None => Nanos::NEVER,
            };
            if arrival == Nanos::NEVER
                && let Some(Err(error)) = source.next()
            {
                return Err(error.into());
            }
            let instant = self.next_instant().min(arrival);
            if instant == Nanos::NEVER {
                return Ok(());
            }
            self.reach(instant)?;
            self.complete(instant);
            self.let_go(instant);
            while let Some(Ok(arrival)) = source.next_if(|next| next.as_ref().is_ok_and(|a| a.at <= instant))
            {
                self.send(arrival, instant);
            }
            self.schedule(instant)?;
        }
    }

    /// A number of requests is kept in flight; the next is sent when one ends.
    fn closed_loop(&mut self, mut source: Source, seats: u64) -> Result<(), LiveError> {
        let mut instant = Nanos::ZERO;
        loop {
            while self.unfinished() < seats {
                let Some(arrival) = source.next() else { break };
                let mut arrival = arrival?;
                arrival.request.arrival = instant;
                self.send(arrival, instant);
            }
            self.schedule(instant)?;
            instant = self.next_instant();
            if instant == Nanos::NEVER {
                return Ok(());
            }
            self.reach(instant)?;
            self.complete(instant);
            self.let_go(instant);
        }
    }

    fn next_instant(&self) -> Nanos {
        self.groups.iter().map(RankGroup::next_instant).min().unwrap_or(Nanos::NEVER)
    }

    /// Waits until the wall clock has reached an instant.
    fn reach(&self, instant: Nanos) -> Result<(), LiveError> {
        loop {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(LiveError::Interrupted);
            }
            let wait = self.clock.until(instant);
            if wait.is_zero() {
                return Ok(());
            }
            std::thread::sleep(wait.min(LOOK));
        }
    }

    /// Completes every pass that ends at `instant`.
    fn complete(&mut self, instant: Nanos) {
        for group in &mut self.groups {
            while !group.is_due() && group.next_instant() <= instant {
                group.advance(instant);
                group.deliver();
            }
        }
    }

    /// Tells the router what is known by `now`, and places the requests that it lets go for that.
    fn let_go(&mut self, now: Nanos) {
        while self.hear(now) {
            while let Some((id, choice)) = self.router.release(now) {
                // A router names requests that it holds, each once.
                if let Some(arrival) = self.held.remove(&id) {
                    self.place(arrival, choice, now);
                }
            }
        }
    }

    fn hear(&mut self, now: Nanos) -> bool {
        let mut told = std::mem::take(&mut self.refused);
        for (group, first) in self.groups.iter_mut().zip((0..).step_by(self.ranks_per_group as usize)) {
            told |= group.tell(first, now, self.router.as_mut());
        }
        told
    }

    /// Takes every schedule call that is due at `instant`.
    fn schedule(&mut self, instant: Nanos) -> Result<(), LiveError> {
        for group in &mut self.groups {
            while group.is_due() && group.next_instant() <= instant {
                group.advance(instant);
                group.deliver();
            }
            if let Some(words) = group.dead() {
                return Err(LiveError::Dead(words));
            }
        }
        Ok(())
    }

    /// Requests that have not ended, those that are held back among them.
    fn unfinished(&self) -> u64 {
        self.groups.iter().map(RankGroup::unfinished).sum::<u64>() + self.held.len() as u64
    }

    /// Hands a request to a rank, unless the router holds it back, after those that it lets go now.
    fn send(&mut self, arrival: Arrival, now: Nanos) {
        self.now = now;
        self.let_go(now);
        let Arrival { request, dp_rank, session, .. } = &arrival;
        let incoming = Incoming { request, session: session.as_deref(), dp_rank: *dp_rank, now };
        let workers = self.deployment.replicas;
        let mut workers = Loads { groups: &self.groups, per_worker: self.groups_per_worker, workers };
        match self.router.route(&incoming, &mut workers) {
            Verdict::To(choice) => self.place(arrival, choice, now),
            Verdict::Held => {
                self.held.insert(arrival.request.id, arrival);
            }
        }
    }

    fn place(&mut self, arrival: Arrival, choice: Choice, now: Nanos) {
        let worker = choice.worker as usize;
        let first = worker * self.groups_per_worker;
        let Arrival { at: _, mut request, name, dp_rank, .. } = arrival;
        let dp_rank = dp_rank.or(choice.rank);
        let came = std::mem::replace(&mut request.arrival, now);
        let ranks = self.deployment.ranks.get();
        let rank = match dp_rank {
            Some(dp_rank) if dp_rank >= ranks => {
                let mut collector = self.collectors[first].lock().unwrap_or_else(PoisonError::into_inner);
                let reason = Rejection::NoSuchRank { dp_rank, ranks };
                collector.rejected(&Refusal::unplaced(&request, name, came, now, reason));
                drop(collector);
                let number = choice.worker * ranks;
                self.router.tell(number, now, News::Ended(request.id));
                self.refused = true;
                return;
            }
            Some(dp_rank) => dp_rank,
            None if ranks == 1 => 0,
            None => self.pick(worker, now),
        };
        request.output.ignore_eos.get_or_insert(self.deployment.ignore_eos);
        let info = RequestInfo {
            name: name.map(String::from).unwrap_or_default(),
            routed: Some(Routed { came, record: choice.record }),
            ..RequestInfo::of(&request)
        };
        let (group, lane) = ((rank / self.ranks_per_group) as usize, (rank % self.ranks_per_group) as usize);
        self.groups[first + group].submit(lane, Submission::of(info, request), now);
    }

    /// Asks the policy of a worker.
    fn pick(&mut self, worker: usize, now: Nanos) -> u32 {
        let groups = worker * self.groups_per_worker..(worker + 1) * self.groups_per_worker;
        let mut reports: Vec<_> =
            self.groups[groups.clone()].iter_mut().flat_map(RankGroup::take_reports).collect();
        // Stable: what a group tells at one instant keeps its order.
        reports.sort_by_key(|report| report.time);
        let placement = &mut self.placements[worker];
        reports.iter().for_each(|report| placement.report(report));
        let unfinished: Vec<u64> =
            self.groups[groups].iter().flat_map(RankGroup::unfinished_by_rank).collect();
        placement.pick(now, |rank| unfinished[rank as usize])
    }

    fn finish(self) -> Result<Replayed, LiveError> {
        let unfinished = self.unfinished();
        if unfinished > 0 {
            return Err(LiveError::Stuck(unfinished));
        }
        let end = self.groups.iter().map(RankGroup::now).fold(self.now, Nanos::max);
        let outside = self.groups.iter().map(RankGroup::outside_of_profile);
        let outside = outside.fold([false; 2], |[p, d], [more_p, more_d]| [p | more_p, d | more_d]);
        // The recorders hand over their counters when their ranks go.
        drop(self.groups);
        let collectors = self.collectors.into_iter().map(|collector| {
            let mut collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *collector)
        });
        Ok(Replayed { collectors: collectors.collect(), end, outside })
    }
}

/// What the workers have to do at an instant that all groups have come to.
struct Loads<'a> {
    /// By worker and rank.
    groups: &'a [RankGroup],
    per_worker: usize,
    workers: NonZeroU32,
}

impl Workers for Loads<'_> {
    fn count(&self) -> NonZeroU32 {
        self.workers
    }

    fn load(&mut self, worker: u32) -> WorkerLoad {
        let mut load = WorkerLoad::default();
        let groups = self.groups.iter().skip(worker as usize * self.per_worker).take(self.per_worker);
        groups.for_each(|group| group.add_to(&mut load));
        load
    }
}
