//! A run on separate prefill and decode workers that change: they come and go, crash, and become slow. The part of the run
//! that only such runs need.
//!
//! At one instant workers become ready after the passes that end with it, before transfers and arrivals; faults, drains that have ended,
//! and the planner come last, when everything else of the instant has happened on all groups.

use super::pool::{DECODE, PREFILL, ROLES};
use super::{Disaggregated, Order};
use crate::error::SimError;
use crate::faults::Fault;
use crate::group::{Group, Lanes};
use crate::lane::Sending;
use crate::planner::{Plan, RolesPlanner, Snapshot, Totals, missing};
use crate::run::refusal;
use crate::steering::{Crew, Tries};
use std::collections::{HashSet, VecDeque};
use windtunnel_config::{Experiment, Prefill, Semantics};
use windtunnel_engine::{Nanos, Rejection, RequestId};
use windtunnel_report::{Collector, CollectorOptions, FleetLog, RequestRecord, ScalingEvent};
use windtunnel_traffic::Arrival;

/// What waits for a worker that is not there.
pub(super) enum Task {
    /// A request, from its beginning.
    Send(Arrival),
    /// A prompt, for whose KV there is room.
    Compute(Arrival),
    /// A request whose prompt is computed and held, and what is known of it.
    GoOn(Arrival, Box<RequestRecord>),
}

impl Task {
    fn arrival(&self) -> &Arrival {
        match self {
            Task::Send(arrival) | Task::Compute(arrival) | Task::GoOn(arrival, _) => arrival,
        }
    }

    pub(super) fn id(&self) -> RequestId {
        self.arrival().request.id
    }
}

/// Who is there of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Staff {
    /// Somebody takes requests.
    Ready,
    /// Somebody will.
    Awaited,
    /// Nobody ever will.
    Gone,
}

/// What changes, and whom it concerns.
pub(super) struct Elastic {
    pub(super) crews: [Crew; 2],
    planner: Option<RolesPlanner>,
    pub(super) tries: Tries,
    pub(super) waiting: VecDeque<Task>,
    /// Requests that ended without a worker.
    pub(super) past: Collector,
    /// Instant of the last change.
    pub(super) last: Nanos,
}

impl Elastic {
    /// For an experiment in which something changes.
    pub(super) fn new(
        experiment: &Experiment,
        prefill: &Prefill,
        collector: CollectorOptions,
    ) -> Option<Box<Elastic>> {
        if !experiment.is_elastic() {
            return None;
        }
        let faults = [prefill.faults.as_ref(), experiment.faults.as_ref()];
        let scaling = [prefill.scaling.as_ref(), experiment.scaling.as_ref()];
        let deployments = [&prefill.deployment, &experiment.deployment];
        let crew =
            |pool: usize| Crew::new(ROLES[pool], deployments[pool], (scaling[pool], faults[pool]), collector);
        Some(Box::new(Elastic {
            crews: [crew(PREFILL), crew(DECODE)],
            planner: RolesPlanner::new([PREFILL, DECODE].map(|pool| (scaling[pool], deployments[pool]))),
            tries: Tries::new(faults.into_iter().flatten()),
            waiting: VecDeque::new(),
            past: Collector::new(collector),
            last: Nanos::ZERO,
        }))
    }

    /// A request has come to the router.
    pub(super) fn arrived(&mut self, arrival: &Arrival) {
        self.crews[DECODE].totals.arrived(arrival);
    }

    /// When something is due at the end of an instant.
    fn next_act(&self) -> Nanos {
        let tick = self.planner.as_ref().map_or(Nanos::NEVER, RolesPlanner::next_tick);
        self.crews.iter().map(|crew| crew.faults.next()).fold(tick, Nanos::min)
    }

    fn next_ready(&self) -> Nanos {
        self.crews.iter().map(|crew| crew.fleet.next_ready()).min().unwrap_or(Nanos::NEVER)
    }

    /// What fails next by `now`, and of which role.
    fn take_fault(&mut self, now: Nanos) -> Option<(usize, Fault)> {
        [PREFILL, DECODE].into_iter().find_map(|pool| Some((pool, self.crews[pool].faults.take(now)?)))
    }

    /// Requests wait for a worker.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl<L: Lanes> Disaggregated<'_, L> {
    /// When the workers change next, at the beginning of an instant or at its end.
    pub(super) fn next_change(&self) -> Nanos {
        self.elastic.as_ref().map_or(Nanos::NEVER, |elastic| elastic.next_act().min(elastic.next_ready()))
    }

    /// How often a request was sent before.
    pub(super) fn retries(&self, id: RequestId) -> u32 {
        self.elastic.as_ref().map_or(0, |elastic| elastic.tries.of(id))
    }

    /// Who is there of a role.
    pub(super) fn staff(&self, pool: usize) -> Staff {
        match &self.elastic {
            _ if self.pools[pool].is_staffed() => Staff::Ready,
            Some(elastic) if !elastic.crews[pool].is_deserted() => Staff::Awaited,
            _ => Staff::Gone,
        }
    }

    pub(super) fn wait(&mut self, task: Task) {
        if let Some(elastic) = &mut self.elastic {
            elastic.waiting.push_back(task);
        }
    }

    /// Sends a request on its way, if the workers are there that it needs first; otherwise it waits.
    pub(super) fn dispatch(&mut self, mut arrival: Arrival, now: Nanos) {
        let first: &[usize] = match (self.order, self.prefill.deployment.semantics) {
            (Order::PromptFirst, _) => &[PREFILL],
            (Order::RoomFirst, Semantics::Native) => &[PREFILL, DECODE],
            (Order::RoomFirst, Semantics::Aisimulate013) => &[DECODE],
        };
        let roles = [PREFILL, DECODE];
        if roles.iter().any(|&pool| self.staff(pool) == Staff::Gone) {
            return self.refuse_without_worker(arrival, now);
        }
        if first.iter().any(|&pool| self.staff(pool) != Staff::Ready) {
            return self.wait(Task::Send(arrival));
        }
        if let Some(elastic) = &mut self.elastic {
            elastic.tries.sends(&arrival);
        }
        arrival.request.arrival = now;
        self.begin(arrival, now);
        self.sort_out();
    }

    /// Nobody will ever take a request.
    pub(super) fn refuse_without_worker(&mut self, arrival: Arrival, now: Nanos) {
        let sending = Sending { came: arrival.at, ..Sending::unrouted(arrival) };
        if let Some(elastic) = &mut self.elastic {
            elastic.past.rejected(&refusal(sending, now, Rejection::NoWorker));
        }
        self.end_one(now);
    }

    /// A request has ended without a worker.
    pub(super) fn end_one(&mut self, now: Nanos) {
        self.elastic.iter_mut().for_each(|elastic| elastic.last = elastic.last.max(now));
        self.ended += 1;
        self.freed += 1;
        self.freed_at = now;
    }

    /// Workers become ready, and take the requests that waited for one.
    pub(super) fn make_ready(&mut self, now: Nanos) {
        let Some(elastic) = &mut self.elastic else { return };
        if elastic.next_ready() > now {
            return;
        }
        for (crew, pool) in elastic.crews.iter_mut().zip(&mut self.pools) {
            for worker in crew.take_ready(now) {
                pool.join(worker);
            }
            pool.set_ready(crew.fleet.ready());
        }
        self.resume(now);
    }

    /// Those who waited try again.
    pub(super) fn resume(&mut self, now: Nanos) {
        let Some(elastic) = &mut self.elastic else { return };
        for task in std::mem::take(&mut elastic.waiting) {
            match task {
                Task::Send(arrival) => self.dispatch(arrival, now),
                Task::Compute(arrival) => self.compute(arrival, now),
                Task::GoOn(arrival, record) => self.go_on(arrival, *record, now),
            }
        }
    }

    /// The end of an instant, at which all groups have settled: what fails, who is done, and what is decided.
    pub(super) fn act(&mut self, now: Nanos) -> Result<(), SimError> {
        if self.elastic.as_ref().is_none_or(|elastic| elastic.next_act() > now) {
            return Ok(());
        }
        while let Some((pool, fault)) = self.elastic.as_mut().and_then(|elastic| elastic.take_fault(now)) {
            match fault {
                Fault::Crash { worker, restart } => self.crash(pool, worker, restart, now)?,
                Fault::Slow { worker, factor } => self.slow(pool, worker, factor, now),
            }
        }
        self.end_drains(now);
        self.decide(now)?;
        // Without a start-up time they are there at once.
        self.make_ready(now);
        self.schedule(now);
        Ok(())
    }

    fn slow(&mut self, pool: usize, worker: u32, factor: f64, now: Nanos) {
        let Some(elastic) = &mut self.elastic else { return };
        elastic.crews[pool].slow(worker, factor, now);
        let (groups, all) = (self.pools[pool].groups_of(worker), self.pools[pool].range());
        for at in groups.start..groups.end.min(all.end) {
            self.groups[at].set_timing(self.pools[pool].deployment.timing.slowed(factor));
            self.note_due(at);
        }
    }

    /// Asks the planner, if it is its turn, and does what it says.
    fn decide(&mut self, now: Nanos) -> Result<(), SimError> {
        let Some(elastic) = &self.elastic else { return Ok(()) };
        if elastic.planner.as_ref().is_none_or(|planner| planner.next_tick() > now) {
            return Ok(());
        }
        let snapshots = [PREFILL, DECODE].map(|pool| self.snapshot(elastic, pool, now));
        let plans = match self.elastic.as_mut().and_then(|elastic| elastic.planner.as_mut()) {
            Some(planner) => planner.tick(&snapshots),
            None => return Ok(()),
        };
        for (pool, plan) in plans.into_iter().enumerate() {
            self.scale(pool, plan, snapshots[pool].workers.wanted(), now)?;
        }
        self.end_drains(now);
        Ok(())
    }

    /// Has as many workers of a role as the plan says, where there were `from`.
    fn scale(&mut self, pool: usize, plan: Option<Plan>, from: u32, now: Nanos) -> Result<(), SimError> {
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        let crew = &mut elastic.crews[pool];
        let Some(Plan { workers, reason }) = plan.or_else(|| missing(from, crew.least)) else {
            return Ok(());
        };
        let to = workers.clamp(crew.least, crew.most);
        if from == to || !crew.is_planned {
            return Ok(());
        }
        crew.fleet.decided(ScalingEvent { time: now, role: ROLES[pool], from, to, reason });
        for _ in from..to {
            let Some(elastic) = &mut self.elastic else { break };
            let crew = &mut elastic.crews[pool];
            let worker = crew.fleet.add(now, now + crew.startup);
            self.renew(pool, worker, now)?;
        }
        for _ in to..from {
            let Some(elastic) = &mut self.elastic else { break };
            let fleet = &mut elastic.crews[pool].fleet;
            if let Some(worker) = fleet.drain_one(now) {
                self.pools[pool].leave(worker);
                self.pools[pool].set_ready(fleet.ready());
            }
        }
        Ok(())
    }

    /// What a planner sees of a role. What clients see is the same for both.
    fn snapshot(&self, elastic: &Elastic, pool: usize, now: Nanos) -> Snapshot {
        let fleet = &elastic.crews[pool].fleet;
        let ready = fleet.ready().iter().flat_map(|&worker| self.pools[pool].groups_of(worker));
        let held = elastic.waiting.iter().filter(|task| match task {
            Task::Send(_) => pool == PREFILL || self.order == Order::RoomFirst,
            Task::Compute(_) => pool == PREFILL,
            Task::GoOn(..) => pool == DECODE,
        });
        let decodes = &self.groups[self.pools[DECODE].range()];
        let gone = elastic.crews[DECODE].totals;
        Snapshot {
            now,
            workers: fleet.counts(),
            ranks: ready.flat_map(|at| self.groups[at].lanes()).map(|lane| lane.load()).collect(),
            held: held.count() as u64,
            totals: decodes.iter().fold(gone, |sum: Totals, group| sum.plus(&group.totals())),
        }
    }

    /// Puts empty groups in a worker's place, and keeps what those before them have collected.
    pub(super) fn renew(&mut self, pool: usize, worker: u32, now: Nanos) -> Result<(), SimError> {
        // What has happened there is to be told first.
        self.observer.write_events(&mut self.groups)?;
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        let (crew, of) = (&mut elastic.crews[pool], &self.pools[pool]);
        let mut fresh = of.fresh(ROLES[pool], worker)?;
        if let Some(timing) = crew.timing(worker, of.deployment) {
            fresh.iter_mut().for_each(|group| group.set_timing(timing.clone()));
        }
        let places = of.groups_of(worker);
        if places.start == of.range().end {
            self.insert(pool, fresh);
        } else {
            for (at, group) in places.clone().zip(fresh) {
                let mut before: Group<L> = std::mem::replace(&mut self.groups[at], group);
                // Of a worker that lagged behind nobody has asked.
                self.ended += before.take_ended();
                elastic.last = elastic.last.max(before.now());
                elastic.crews[pool].absorb(before, now);
            }
        }
        places.for_each(|at| self.pools[pool].renewed(at));
        Ok(())
    }

    /// Groups of a worker that is new, behind the others of its role.
    fn insert(&mut self, pool: usize, fresh: Vec<Group<L>>) {
        let (at, by) = (self.pools[pool].range().end, fresh.len());
        self.groups.splice(at..at, fresh);
        self.pools[pool].count += by;
        if pool == PREFILL {
            self.pools[DECODE].first += by;
            self.trips.renumber(by);
            self.agenda.renumber(at, by);
            self.touched.iter_mut().filter(|group| **group >= at).for_each(|group| *group += by);
        }
    }

    /// Workers that have ended what they had, and whose blocks nobody is to read any more, are no more provisioned from
    /// then on.
    fn end_drains(&mut self, now: Nanos) {
        let Some(elastic) = &mut self.elastic else { return };
        for (pool, crew) in elastic.crews.iter_mut().enumerate() {
            for worker in crew.fleet.draining() {
                let places = self.pools[pool].groups_of(worker);
                let groups = &self.groups[places.clone()];
                let idle = |group: &Group<L>| group.unfinished() == 0 && group.next_instant() == Nanos::NEVER;
                if groups.iter().all(idle) && (pool == DECODE || !self.trips.any_in(&places)) {
                    let done = groups.iter().map(Group::now).max().unwrap_or(Nanos::ZERO);
                    places.for_each(|at| self.pools[pool].hear_all(&mut self.groups, at, now));
                    crew.drained(worker, done);
                }
            }
        }
    }

    /// Sorts out the requests that are kept for a retry, when there are many more than have not ended.
    fn sort_out(&mut self) {
        let Some(elastic) = &mut self.elastic else { return };
        if elastic.tries.is_crowded() {
            let lanes = self.groups.iter().flat_map(|group| group.lanes());
            let mut unfinished: HashSet<u64> = lanes.flat_map(|lane| lane.unfinished_requests()).collect();
            unfinished.extend(self.trips.ids().map(|id| id.0));
            elastic.tries.keep(&unfinished);
        }
    }

    /// The time for which workers of both roles were provisioned, and what became of them; what was collected of
    /// requests and workers that are gone; and whether passes of these lay outside of what timing was measured for.
    pub(super) fn take_fleets(&mut self, end: Nanos) -> Option<Gone> {
        self.end_drains(end);
        let Elastic { crews: [prefill, decode], past, .. } = *self.elastic.take()?;
        let outside = [prefill.outside, decode.outside];
        let mut collectors = vec![past];
        let mut pool = 0;
        let fleets = [prefill, decode].map(|crew| {
            let groups = &self.groups[self.pools[pool].range()];
            pool += 1;
            let lost = crew.lost_batches + groups.iter().map(Group::lost_batches).sum::<u64>();
            collectors.push(crew.past);
            let (time, log) = crew.fleet.finish(end);
            (time, FleetLog { lost_kv_event_batches: lost, ..log })
        });
        Some(Gone { fleets, collectors, outside })
    }
}

/// What is left of workers that are gone, and known of all.
pub(super) struct Gone {
    pub(super) fleets: [(u128, FleetLog); 2],
    pub(super) collectors: Vec<Collector>,
    pub(super) outside: [[bool; 2]; 2],
}
