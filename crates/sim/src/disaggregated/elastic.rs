//! A run on separate prefill and decode workers that change: they come and go, crash, and become slow. The part of the run
//! that only such runs need.
//!
//! At one instant workers become ready after the passes that end with it, before transfers and arrivals; faults, drains that have ended,
//! and the planner come last, when everything else of the instant has happened on all groups.
//!
//! A request whose KV has come to its decode worker is that worker's alone. Until then it needs both sides: when the
//! worker of one crashes, the other one lets go of it, at once.

use super::pool::{DECODE, PREFILL, ROLES};
use super::trips::{Site, Trip};
use super::{Disaggregated, Order};
use crate::error::SimError;
use crate::faults::Fault;
use crate::group::{Group, Lanes};
use crate::lane::{Loading, Sending};
use crate::run::refusal;
use crate::steering::{CRASHED, Crew, Tries};
use std::collections::{BTreeMap, HashSet, VecDeque};
use windtunnel_config::{Experiment, Prefill, Semantics};
use windtunnel_engine::{Nanos, Rejection, RequestId};
use windtunnel_report::{Collector, CollectorOptions, FleetLog, RequestRecord};
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

    fn id(&self) -> RequestId {
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
    crews: [Crew; 2],
    tries: Tries,
    waiting: VecDeque<Task>,
    /// Requests that ended without a worker.
    past: Collector,
    /// Instant of the last change.
    pub(super) last: Nanos,
}

/// A request that has lost its worker, and whether it was on the decode side.
struct Lost {
    record: RequestRecord,
    placed: bool,
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
        let of_prefill = (None, faults[PREFILL]);
        let of_decode = (None, faults[DECODE]);
        Some(Box::new(Elastic {
            crews: [
                Crew::new(ROLES[PREFILL], &prefill.deployment, of_prefill, collector),
                Crew::new(ROLES[DECODE], &experiment.deployment, of_decode, collector),
            ],
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
        self.crews.iter().map(|crew| crew.faults.next()).min().unwrap_or(Nanos::NEVER)
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
    fn end_one(&mut self, now: Nanos) {
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
    fn resume(&mut self, now: Nanos) {
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

    fn crash(
        &mut self,
        pool: usize,
        worker: u32,
        restart: Option<Nanos>,
        now: Nanos,
    ) -> Result<(), SimError> {
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        if !elastic.crews[pool].crash(worker, restart, now) {
            return Ok(());
        }
        elastic.last = now;
        self.pools[pool].set_ready(elastic.crews[pool].fleet.ready());
        let groups = self.pools[pool].groups_of(worker);
        groups.clone().for_each(|at| self.tell(at, now));
        let (lost, trips) = match pool {
            PREFILL => self.lose_prefills(groups.clone(), worker, now),
            _ => self.lose_decodes(groups.clone(), now),
        };
        groups.for_each(|at| self.pools[pool].hear_all(&mut self.groups, at, now));
        self.pools[pool].leave(worker);
        self.renew(pool, worker, now)?;
        self.part(pool, trips, now);
        for (id, lost) in lost {
            let again = self.elastic.as_mut().and_then(|elastic| elastic.tries.lost(id));
            match again {
                Some(arrival) => self.dispatch(arrival, now),
                None => self.fail(&lost, now),
            }
        }
        if self.staff(pool) == Staff::Gone {
            // Who waits has nothing to wait for.
            self.resume(now);
        }
        Ok(())
    }

    fn fail(&mut self, Lost { record, placed }: &Lost, now: Nanos) {
        if let Some(elastic) = &mut self.elastic {
            match placed {
                true => elastic.past.failed(record, CRASHED),
                false => elastic.past.failed_unplaced(record, CRASHED),
            }
        }
        self.end_one(now);
    }

    /// The requests that are lost with the prompts that a prefill worker computes or holds, and their trips.
    fn lose_prefills(
        &mut self,
        groups: std::ops::Range<usize>,
        worker: u32,
        now: Nanos,
    ) -> (BTreeMap<RequestId, Lost>, Vec<Trip>) {
        let records = groups.clone().flat_map(|at| self.groups[at].lose(now));
        let mut records: BTreeMap<RequestId, RequestRecord> =
            records.map(|record| (record.id, record)).collect();
        let (mut lost, mut trips) = (BTreeMap::new(), Vec::new());
        for id in self.trips.prefilled_in(&groups) {
            let Some(trip) = self.lose_trip(id, now) else { continue };
            if trip.arrived {
                // Nothing of it is lost.
                continue;
            }
            let waits = self.withdraw_task(id);
            let on_decode =
                trip.decode.map(|site| self.groups[site.group].record_of(site.lane, site.slot, now));
            let placed = on_decode.is_some();
            let known = on_decode.or_else(|| records.remove(&id)).or(waits);
            if let Some(known) = known {
                let record = RequestRecord {
                    prefill_worker: Some(worker),
                    output_tokens: 0,
                    first_token: None,
                    last_token: None,
                    terminal: now,
                    ..known
                };
                lost.insert(id, Lost { record, placed });
            }
            trips.push(trip);
        }
        (lost, trips)
    }

    /// The requests that a decode worker has, and the trips of those that the other side has, too.
    fn lose_decodes(
        &mut self,
        groups: std::ops::Range<usize>,
        now: Nanos,
    ) -> (BTreeMap<RequestId, Lost>, Vec<Trip>) {
        let (mut lost, mut trips) = (BTreeMap::new(), Vec::new());
        let records: Vec<RequestRecord> = groups.flat_map(|at| self.groups[at].lose(now)).collect();
        for record in records {
            let id = record.id;
            let mut prefill_worker = record.prefill_worker;
            if let Some(trip) = self.lose_trip(id, now) {
                self.withdraw_task(id);
                let on = trip.prefill.map(|site| self.groups[site.group].worker());
                prefill_worker = prefill_worker.or(on);
                trips.push(trip);
            }
            lost.insert(id, Lost { record: RequestRecord { prefill_worker, ..record }, placed: true });
        }
        (lost, trips)
    }

    /// Takes a trip out, and stops its transfer.
    fn lose_trip(&mut self, id: RequestId, now: Nanos) -> Option<Trip> {
        let trip = self.trips.lose(id)?;
        if let Some(transfer) = trip.transfer {
            self.links.cancel(transfer, now);
        }
        Some(trip)
    }

    /// A request waits for a worker no more: what was known of it, if its prompt is computed.
    fn withdraw_task(&mut self, id: RequestId) -> Option<RequestRecord> {
        let waiting = &mut self.elastic.as_mut()?.waiting;
        let at = waiting.iter().position(|task| task.id() == id)?;
        match waiting.remove(at)? {
            Task::GoOn(_, record) => Some(*record),
            Task::Send(_) | Task::Compute(_) => None,
        }
    }

    /// The side that is left lets go of the requests that are lost on the side `gone`.
    fn part(&mut self, gone: usize, trips: Vec<Trip>, now: Nanos) {
        let mut left = Vec::new();
        for trip in trips {
            let loading = trip.loading();
            match (gone, trip) {
                (PREFILL, Trip { decode: Some(Site { group, lane, slot }), .. }) => {
                    self.groups[group].withdraw(lane, slot, loading, now);
                    left.push(group);
                }
                // It is computed, for nobody.
                (DECODE, Trip { prefill: Some(site), computed: Some(_), .. }) => self.let_go(site, now),
                (DECODE, Trip { prefill: Some(Site { group, lane, slot }), .. }) => {
                    match loading {
                        Loading::Awaited => {
                            self.groups[group].withdraw(lane, slot, Loading::Nothing, now);
                            left.push(group);
                        }
                        // Its prompt is being computed, and is to the end.
                        _ => {
                            self.groups[group].disown(lane, slot, now);
                            self.note_due(group);
                        }
                    }
                }
                _ => {}
            }
        }
        left.sort_unstable();
        left.dedup();
        left.iter().for_each(|&group| self.groups[group].go_on(now));
        for group in left {
            self.touched.push(group);
            self.tell(group, now);
            self.note_due(group);
        }
    }

    /// Puts empty groups in a worker's place, and keeps what those before them have collected.
    fn renew(&mut self, pool: usize, worker: u32, now: Nanos) -> Result<(), SimError> {
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
                let before: Group<L> = std::mem::replace(&mut self.groups[at], group);
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
