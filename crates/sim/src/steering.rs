//! What changes the workers of a run while it goes on: the planner, the faults, and the requests that they concern.
//!
//! Here stands what is known and when something is due; what is done to rank groups and router, the run does (see
//! `elastic`). A crew is the workers of one role; tries belong to the requests, whose way leads through one or two crews.

use crate::faults::{Fault, FaultPlan};
use crate::fleet::Fleet;
use crate::group::{Group, Lanes};
use crate::planner::{Planner, Totals, planner};
use std::collections::{HashMap, HashSet, VecDeque};
use windtunnel_config::{Deployment, Experiment, Faults, Scaling};
use windtunnel_engine::{Nanos, RequestId};
use windtunnel_perf::TimingModel;
use windtunnel_report::{Collector, CollectorOptions, Refusal, RequestRecord, Role, WorkerChange};
use windtunnel_traffic::Arrival;

/// Requests kept for a retry beyond those that have not ended, before the others are sorted out.
const SLACK: usize = 1024;

/// Why a request ends whose worker crashed, if it is not sent anew.
pub(crate) const CRASHED: &str = "its worker crashed";

/// What changes the workers of a role.
pub(crate) struct Crew {
    pub(crate) fleet: Fleet,
    pub(crate) faults: FaultPlan,
    /// Bounds of their number, which a planner may change.
    pub(crate) least: u32,
    pub(crate) most: u32,
    pub(crate) is_planned: bool,
    pub(crate) startup: Nanos,
    /// How many times as long the passes of workers take.
    slow: HashMap<u32, f64>,
    /// What workers that are gone have collected.
    pub(crate) past: Collector,
    /// Their passes lay outside of what timing was measured for: prefills, decodes.
    pub(crate) outside: [bool; 2],
    /// Batches of KV events of theirs that the router never heard of.
    pub(crate) lost_batches: u64,
    /// What happened on them.
    pub(crate) totals: Totals,
}

impl Crew {
    pub(crate) fn new(
        role: Role,
        deployment: &Deployment,
        (scaling, faults): (Option<&Scaling>, Option<&Faults>),
        collector: CollectorOptions,
    ) -> Crew {
        let none = Faults {
            max_retries: 0,
            crashes: Vec::new(),
            crash_rate: None,
            slow: Vec::new(),
            kv_event_loss: None,
        };
        let workers = deployment.replicas.get();
        let mut plan = FaultPlan::new(role, faults.unwrap_or(&none));
        (0..workers).for_each(|worker| plan.started(worker, Nanos::ZERO));
        Crew {
            fleet: Fleet::new(role, workers),
            faults: plan,
            least: scaling.map_or(workers, |scaling| scaling.least),
            most: scaling.map_or(workers, |scaling| scaling.most),
            is_planned: scaling.is_some(),
            startup: deployment.startup,
            slow: HashMap::new(),
            past: Collector::new(collector),
            outside: [false; 2],
            lost_batches: 0,
            totals: Totals::default(),
        }
    }

    /// Nobody takes requests, and nobody ever will: a planner brings back the least that it may have.
    pub(crate) fn is_deserted(&self) -> bool {
        self.fleet.counts().wanted() == 0 && (!self.is_planned || self.least == 0)
    }

    /// The workers whose time to be ready has come by `now`, which are so from then on.
    pub(crate) fn take_ready(&mut self, now: Nanos) -> Vec<u32> {
        let come = self.fleet.take_ready(now);
        come.iter().for_each(|&worker| self.faults.started(worker, now));
        come
    }

    /// A worker loses all that it has, and is ready again after `restart`, if ever. False if it is not there.
    pub(crate) fn crash(&mut self, worker: u32, restart: Option<Nanos>, now: Nanos) -> bool {
        let serves = self.fleet.is_serving(worker);
        if serves {
            self.fleet.crash(worker, now, restart.map(|after| now + after));
            self.faults.stopped(worker);
        }
        serves
    }

    /// A worker's passes take so many times as long from now on.
    pub(crate) fn slow(&mut self, worker: u32, factor: f64, now: Nanos) {
        let change = if factor == 1.0 {
            self.slow.remove(&worker);
            WorkerChange::Recovered
        } else {
            self.slow.insert(worker, factor);
            WorkerChange::Slowed
        };
        self.fleet.note(now, worker, change);
    }

    /// How long the passes of a worker take that begins anew, if that is not as its deployment says.
    pub(crate) fn timing(&self, worker: u32, deployment: &Deployment) -> Option<TimingModel> {
        self.slow.get(&worker).map(|&factor| deployment.timing.slowed(factor))
    }

    /// Keeps what a group that is gone has collected.
    pub(crate) fn absorb<L: Lanes>(&mut self, group: Group<L>, now: Nanos) {
        self.totals = self.totals.plus(&group.totals());
        let outside = group.outside_of_profile();
        self.outside.iter_mut().zip(outside).for_each(|(all, here)| *all |= here);
        self.lost_batches += group.lost_batches();
        self.past.merge(group.into_collector(now));
    }

    /// A draining worker did something last at `done`, and serves no more.
    pub(crate) fn drained(&mut self, worker: u32, done: Nanos) {
        self.fleet.drained(worker, done);
        self.faults.stopped(worker);
    }
}

/// How often requests were sent, and those that may be sent anew.
pub(crate) struct Tries {
    /// How often a request is sent anew.
    max_retries: u32,
    /// What was sent and has not ended, as it came; requests that have ended may be among them. None where no worker
    /// crashes.
    sent: Option<HashMap<RequestId, Arrival>>,
    /// How many of `sent` may be there before they are sorted out.
    room: usize,
    /// How often requests lost their workers.
    retries: HashMap<RequestId, u32>,
}

impl Tries {
    /// Where any of these happen.
    pub(crate) fn new<'a>(faults: impl IntoIterator<Item = &'a Faults>) -> Tries {
        let mut tries = Tries { max_retries: 0, sent: None, room: SLACK, retries: HashMap::new() };
        for faults in faults {
            tries.max_retries = faults.max_retries;
            if faults.crashes() {
                tries.sent.get_or_insert_default();
            }
        }
        tries
    }

    /// A request goes to a worker. Tells how often it was sent before.
    pub(crate) fn sends(&mut self, arrival: &Arrival) -> u32 {
        let id = arrival.request.id;
        if let Some(sent) = &mut self.sent {
            sent.insert(id, arrival.clone());
        }
        self.of(id)
    }

    /// How often a request was sent anew.
    pub(crate) fn of(&self, id: RequestId) -> u32 {
        if self.retries.is_empty() { 0 } else { self.retries.get(&id).copied().unwrap_or(0) }
    }

    /// Requests that were sent may be sorted out.
    pub(crate) fn is_crowded(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.len() > self.room)
    }

    /// Forgets the requests that have ended: all but these.
    pub(crate) fn keep(&mut self, unfinished: &HashSet<u64>) {
        if let Some(sent) = &mut self.sent {
            sent.retain(|id, _| unfinished.contains(&id.0));
            self.room = 2 * sent.len() + SLACK;
        }
    }

    /// A request has lost its worker: as it is to be sent anew, if it is.
    pub(crate) fn lost(&mut self, id: RequestId) -> Option<Arrival> {
        let arrival = self.sent.as_mut()?.remove(&id)?;
        let retries = self.retries.entry(id).or_default();
        if *retries >= self.max_retries {
            return None;
        }
        *retries += 1;
        Some(arrival)
    }
}

/// All that changes workers for prefill and decode.
pub(crate) struct Steering {
    pub(crate) crew: Crew,
    pub(crate) planner: Option<Box<dyn Planner>>,
    pub(crate) tries: Tries,
    /// Requests for which no worker was there.
    pub(crate) waiting: VecDeque<Arrival>,
    /// Requests that ended with their workers.
    pub(crate) ended: u64,
    /// Instant of the last change.
    pub(crate) last: Nanos,
}

impl Steering {
    /// For an experiment in which something changes.
    pub(crate) fn new(experiment: &Experiment, collector: CollectorOptions) -> Option<Box<Steering>> {
        if !experiment.is_elastic() {
            return None;
        }
        let deployment = &experiment.deployment;
        let (scaling, faults) = (experiment.scaling.as_ref(), experiment.faults.as_ref());
        Some(Box::new(Steering {
            crew: Crew::new(Role::Aggregated, deployment, (scaling, faults), collector),
            planner: scaling.map(|scaling| planner(scaling, deployment)),
            tries: Tries::new(faults),
            waiting: VecDeque::new(),
            ended: 0,
            last: Nanos::ZERO,
        }))
    }

    /// When something is due at the end of an instant.
    pub(crate) fn next_act(&self) -> Nanos {
        let tick = self.planner.as_ref().map_or(Nanos::NEVER, |planner| planner.next_tick());
        tick.min(self.crew.faults.next())
    }

    /// When something is due at all: workers become ready at the beginning of an instant.
    pub(crate) fn next_instant(&self) -> Nanos {
        self.next_act().min(self.crew.fleet.next_ready())
    }

    /// What fails at `now`.
    pub(crate) fn take_fault(&mut self, now: Nanos) -> Option<Fault> {
        self.crew.faults.take(now)
    }

    /// A request has come to the router.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) {
        self.crew.totals.arrived(arrival);
    }

    /// A request ends because of what happened to its worker.
    pub(crate) fn fail(&mut self, record: &RequestRecord, cause: &str, now: Nanos) {
        self.crew.past.failed(record, cause);
        self.ended += 1;
        self.last = self.last.max(now);
    }

    /// A request is refused because there is no worker.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) {
        self.crew.past.rejected(refusal);
        self.ended += 1;
        self.last = self.last.max(refusal.refused);
    }
}
