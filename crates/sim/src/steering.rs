//! What changes the workers of a run while it goes on: the planner, the faults, and the requests that they concern.
//!
//! Here stands what is known and when something is due; what is done to rank groups and router, the run does (see
//! `elastic`).

use crate::faults::{Fault, FaultPlan};
use crate::fleet::Fleet;
use crate::planner::{Planner, Totals, planner};
use std::collections::{HashMap, VecDeque};
use windtunnel_config::Experiment;
use windtunnel_engine::{Nanos, RequestId};
use windtunnel_report::{Collector, CollectorOptions, Refusal, RequestRecord, Role};
use windtunnel_traffic::Arrival;

/// Requests kept for a retry beyond those that have not ended, before the others are sorted out.
const SLACK: usize = 1024;

pub(crate) struct Steering {
    pub(crate) fleet: Fleet,
    pub(crate) planner: Option<Box<dyn Planner>>,
    pub(crate) least: u32,
    pub(crate) most: u32,
    pub(crate) startup: Nanos,
    pub(crate) faults: FaultPlan,
    /// How often a request is sent anew.
    max_retries: u32,
    /// What was sent and has not ended, as it came; requests that have ended may be among them. None where no worker
    /// crashes.
    sent: Option<HashMap<RequestId, Arrival>>,
    /// How many of `sent` may be there before they are sorted out.
    room: usize,
    /// How often requests lost their workers.
    retries: HashMap<RequestId, u32>,
    /// Requests for which no worker was there.
    pub(crate) waiting: VecDeque<Arrival>,
    /// How many times as long the passes of workers take.
    pub(crate) slow: HashMap<u32, f64>,
    /// What workers that are gone have collected, and what ended without one.
    pub(crate) past: Collector,
    /// Their passes lay outside of what timing was measured for: prefills, decodes.
    pub(crate) outside: [bool; 2],
    /// Batches of KV events of theirs that the router never heard of.
    pub(crate) lost_batches: u64,
    /// What happened on them, and what arrived.
    pub(crate) totals: Totals,
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
        let workers = deployment.replicas.get();
        let none = windtunnel_config::Faults {
            max_retries: 0,
            crashes: Vec::new(),
            crash_rate: None,
            slow: Vec::new(),
            kv_event_loss: None,
        };
        let faults = experiment.faults.as_ref().unwrap_or(&none);
        let mut plan = FaultPlan::new(faults);
        (0..workers).for_each(|worker| plan.started(worker, Nanos::ZERO));
        let scaling = experiment.scaling.as_ref();
        Some(Box::new(Steering {
            fleet: Fleet::new(Role::Aggregated, workers),
            planner: scaling.map(|scaling| planner(scaling, deployment)),
            least: scaling.map_or(workers, |scaling| scaling.least),
            most: scaling.map_or(workers, |scaling| scaling.most),
            startup: deployment.startup,
            faults: plan,
            max_retries: faults.max_retries,
            sent: faults.crashes().then(HashMap::new),
            room: SLACK,
            retries: HashMap::new(),
            waiting: VecDeque::new(),
            slow: HashMap::new(),
            past: Collector::new(collector),
            outside: [false; 2],
            lost_batches: 0,
            totals: Totals::default(),
            ended: 0,
            last: Nanos::ZERO,
        }))
    }

    /// When something is due at the end of an instant.
    pub(crate) fn next_act(&self) -> Nanos {
        let tick = self.planner.as_ref().map_or(Nanos::NEVER, |planner| planner.next_tick());
        tick.min(self.faults.next())
    }

    /// When something is due at all: workers become ready at the beginning of an instant.
    pub(crate) fn next_instant(&self) -> Nanos {
        self.next_act().min(self.fleet.next_ready())
    }

    /// What fails at `now`.
    pub(crate) fn take_fault(&mut self, now: Nanos) -> Option<Fault> {
        self.faults.take(now)
    }

    /// A request has come to the router.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) {
        self.totals.arrivals += 1;
        self.totals.arrived_tokens += u64::from(arrival.request.prompt_tokens);
    }

    /// A request goes to a worker. Tells how often it was sent before.
    pub(crate) fn sends(&mut self, arrival: &Arrival) -> u32 {
        let id = arrival.request.id;
        if let Some(sent) = &mut self.sent {
            sent.insert(id, arrival.clone());
        }
        if self.retries.is_empty() { 0 } else { self.retries.get(&id).copied().unwrap_or(0) }
    }

    /// Requests that were sent may be sorted out.
    pub(crate) fn is_crowded(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.len() > self.room)
    }

    /// Forgets the requests that have ended: all but these.
    pub(crate) fn keep(&mut self, unfinished: &std::collections::HashSet<u64>) {
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

    /// A request ends because of what happened to its worker.
    pub(crate) fn fail(&mut self, record: &RequestRecord, cause: &str, now: Nanos) {
        self.past.failed(record, cause);
        self.ended += 1;
        self.last = self.last.max(now);
    }

    /// A request is refused because there is no worker.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) {
        self.past.rejected(refusal);
        self.ended += 1;
        self.last = self.last.max(refusal.refused);
    }

    /// Nobody takes requests, and nobody ever will: a planner brings back the least that it may have.
    pub(crate) fn is_deserted(&self) -> bool {
        self.fleet.counts().wanted() == 0 && (self.planner.is_none() || self.least == 0)
    }
}
