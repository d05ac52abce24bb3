//! A run whose workers change: they come and go by the planner's decisions, crash, and become slow. The part of the run
//! that only such runs need.
//!
//! At one instant workers become ready first, before what arrives; faults, drains that have ended, and the planner come
//! last, when everything else of the instant has happened on all rank groups.

use crate::error::SimError;
use crate::faults::Fault;
use crate::group::{Group, Lanes};
use crate::lane::Sending;
use crate::planner::{Plan, Snapshot, Totals, missing};
use crate::steering::CRASHED;
use std::collections::HashSet;
use windtunnel_engine::{Nanos, Rejection};
use windtunnel_report::{FleetLog, Role, ScalingEvent};
use windtunnel_traffic::Arrival;

impl<L: Lanes + Send> super::Run<'_, L> {
    /// When the workers change next, at the beginning of an instant or at its end.
    pub(super) fn next_change(&self) -> Nanos {
        self.steering.as_ref().map_or(Nanos::NEVER, |steering| steering.next_instant())
    }

    /// Requests for which there is no worker yet.
    pub(super) fn waiting_for_workers(&self) -> u64 {
        self.steering.as_ref().map_or(0, |steering| steering.waiting.len() as u64)
    }

    /// When the workers changed last.
    pub(super) fn last_change(&self) -> Nanos {
        self.steering.as_ref().map_or(Nanos::ZERO, |steering| steering.last)
    }

    /// Requests that ended because of a change of the workers, since the last call.
    pub(super) fn take_ended_by_change(&mut self) -> u64 {
        self.steering.as_mut().map_or(0, |steering| std::mem::take(&mut steering.ended))
    }

    /// The beginning of an instant: workers become ready, and take the requests that waited for one.
    pub(super) fn make_ready(&mut self, now: Nanos) {
        let Some(steering) = &mut self.steering else { return };
        if steering.crew.fleet.next_ready() > now {
            return;
        }
        for worker in steering.crew.take_ready(now) {
            self.placer.renew(worker);
            self.routing.joined(worker);
        }
        self.routing.set_ready(steering.crew.fleet.ready());
        let waiting = std::mem::take(&mut steering.waiting);
        self.let_go(now);
        while let Some((arrival, choice)) = self.routing.release(now) {
            self.place(arrival, choice, now);
        }
        waiting.into_iter().for_each(|arrival| self.dispatch(arrival, now));
    }

    /// Sends a request to a worker, if there is one; otherwise it waits.
    pub(super) fn dispatch(&mut self, arrival: Arrival, now: Nanos) {
        if let Some(steering) = &mut self.steering
            && steering.crew.fleet.ready().is_empty()
        {
            if steering.crew.is_deserted() {
                steering.refuse(&super::refusal(Sending::unrouted(arrival), now, Rejection::NoWorker));
            } else {
                steering.waiting.push_back(arrival);
            }
            return;
        }
        self.route(arrival, now);
    }

    /// The end of an instant, at which all groups have settled: what fails, who is done, and what is decided.
    pub(super) fn act(&mut self, now: Nanos) -> Result<(), SimError> {
        if self.steering.as_ref().is_none_or(|steering| steering.next_act() > now) {
            return Ok(());
        }
        while let Some(fault) = self.steering.as_mut().and_then(|steering| steering.take_fault(now)) {
            match fault {
                Fault::Crash { worker, restart } => self.crash(worker, restart, now)?,
                Fault::Slow { worker, factor } => self.slow(worker, factor, now),
            }
        }
        self.end_drains(now);
        self.decide(now)?;
        // Without a start-up time they are there at once.
        self.make_ready(now);
        self.let_go(now);
        Ok(())
    }

    fn groups_of(&self, worker: u32) -> std::ops::Range<usize> {
        let per_worker = self.groups_per_worker;
        worker as usize * per_worker..(worker as usize + 1) * per_worker
    }

    fn crash(&mut self, worker: u32, restart: Option<Nanos>, now: Nanos) -> Result<(), SimError> {
        let Some(steering) = &mut self.steering else { return Ok(()) };
        if !steering.crew.crash(worker, restart, now) {
            return Ok(());
        }
        steering.last = now;
        let mut lost = Vec::new();
        for at in self.groups_of(worker) {
            lost.extend(self.groups[at].lose(now));
            self.routing.hear_all(&mut self.groups, at, now);
        }
        self.leave(worker);
        self.renew(worker, now)?;
        lost.sort_by_key(|record| record.id);
        for record in lost {
            let again = self.steering.as_mut().and_then(|steering| steering.tries.lost(record.id));
            match again {
                Some(arrival) => self.dispatch(arrival, now),
                None => self.steering.iter_mut().for_each(|steering| steering.fail(&record, CRASHED, now)),
            }
        }
        if self.steering.as_ref().is_some_and(|steering| steering.crew.is_deserted()) {
            self.desert(now);
        }
        Ok(())
    }

    /// Nobody is left: who waits has nothing to wait for.
    fn desert(&mut self, now: Nanos) {
        let Some(steering) = &mut self.steering else { return };
        let mut waiting: Vec<Arrival> = steering.waiting.drain(..).collect();
        waiting.extend(self.routing.take_held());
        for arrival in waiting {
            steering.refuse(&super::refusal(Sending::unrouted(arrival), now, Rejection::NoWorker));
        }
    }

    /// A worker takes no more requests.
    fn leave(&mut self, worker: u32) {
        let Some(steering) = &self.steering else { return };
        self.routing.left(worker);
        self.routing.set_ready(steering.crew.fleet.ready());
    }

    /// Puts empty groups in a worker's place, and keeps what those before them have collected.
    fn renew(&mut self, worker: u32, now: Nanos) -> Result<(), SimError> {
        // What has happened there is to be told first.
        self.observer.write_events(&mut self.groups)?;
        let fresh = super::groups_of_worker(worker, self.deployment, &self.group_options)?;
        let Some(steering) = &mut self.steering else { return Ok(()) };
        let first = worker as usize * self.groups_per_worker;
        for (at, mut group) in (first..).zip(fresh) {
            if let Some(timing) = steering.crew.timing(worker, self.deployment) {
                group.set_timing(timing);
            }
            if at == self.groups.len() {
                self.groups.push(group);
            } else {
                let before = std::mem::replace(&mut self.groups[at], group);
                steering.last = steering.last.max(before.now());
                steering.crew.absorb(before, now);
            }
            self.routing.renewed(at);
        }
        Ok(())
    }

    fn slow(&mut self, worker: u32, factor: f64, now: Nanos) {
        let groups = self.groups_of(worker);
        let Some(steering) = &mut self.steering else { return };
        steering.crew.slow(worker, factor, now);
        for at in groups.start..groups.end.min(self.groups.len()) {
            self.groups[at].set_timing(self.deployment.timing.slowed(factor));
            self.routing.note(&self.groups, at);
        }
    }

    /// Workers that have ended what they had are no more provisioned from then on.
    fn end_drains(&mut self, now: Nanos) {
        let Some(steering) = &mut self.steering else { return };
        for worker in steering.crew.fleet.draining() {
            let first = worker as usize * self.groups_per_worker;
            let groups = &self.groups[first..first + self.groups_per_worker];
            if groups.iter().all(|group| group.unfinished() == 0 && group.next_instant() == Nanos::NEVER) {
                let done = groups.iter().map(Group::now).max().unwrap_or(Nanos::ZERO);
                (first..first + self.groups_per_worker)
                    .for_each(|at| self.routing.hear_all(&mut self.groups, at, now));
                steering.crew.drained(worker, done);
            }
        }
    }

    /// Asks the planner, if it is its turn, and does what it says.
    fn decide(&mut self, now: Nanos) -> Result<(), SimError> {
        let snapshot = self.snapshot(now);
        let Some(steering) = &mut self.steering else { return Ok(()) };
        let Some(planner) = steering.planner.as_mut().filter(|planner| planner.next_tick() <= now) else {
            return Ok(());
        };
        let from = snapshot.workers.wanted();
        let plan = planner.tick(&snapshot);
        let Some(Plan { workers, reason }) = plan.or_else(|| missing(from, steering.crew.least)) else {
            return Ok(());
        };
        let to = workers.clamp(steering.crew.least, steering.crew.most);
        if from == to {
            return Ok(());
        }
        steering.crew.fleet.decided(ScalingEvent { time: now, role: Role::Aggregated, from, to, reason });
        for _ in from..to {
            let Some(steering) = &mut self.steering else { break };
            let worker = steering.crew.fleet.add(now, now + steering.crew.startup);
            self.renew(worker, now)?;
        }
        for _ in to..from {
            let Some(steering) = &mut self.steering else { break };
            if let Some(worker) = steering.crew.fleet.drain_one(now) {
                self.leave(worker);
            }
        }
        self.end_drains(now);
        Ok(())
    }

    fn snapshot(&self, now: Nanos) -> Snapshot {
        let Some(steering) = &self.steering else { return Snapshot::default() };
        let ready = steering.crew.fleet.ready().iter().flat_map(|&worker| self.groups_of(worker));
        Snapshot {
            now,
            workers: steering.crew.fleet.counts(),
            ranks: ready.flat_map(|at| self.groups[at].lanes()).map(|lane| lane.load()).collect(),
            held: (steering.waiting.len() + self.routing.held()) as u64,
            totals: self
                .groups
                .iter()
                .fold(steering.crew.totals, |sum: Totals, group| sum.plus(&group.totals())),
        }
    }

    /// Sorts out the requests that are kept for a retry, when there are many more than have not ended.
    pub(super) fn sort_out(&mut self) {
        let Some(steering) = &mut self.steering else { return };
        if steering.tries.is_crowded() {
            let lanes = self.groups.iter().flat_map(|group| group.lanes());
            let unfinished: HashSet<u64> = lanes.flat_map(|lane| lane.unfinished_requests()).collect();
            steering.tries.keep(&unfinished);
        }
    }

    /// The time for which workers were provisioned, and what became of them.
    pub(super) fn take_fleet(&mut self, end: Nanos) -> Option<(u128, FleetLog)> {
        self.end_drains(end);
        let lost = self.groups.iter().map(Group::lost_batches).sum::<u64>();
        let steering = self.steering.as_mut()?;
        let lost = lost + steering.crew.lost_batches;
        let fleet =
            std::mem::replace(&mut steering.crew.fleet, crate::fleet::Fleet::new(Role::Aggregated, 0));
        let (time, log) = fleet.finish(end);
        Some((time, FleetLog { lost_kv_event_batches: lost, ..log }))
    }
}
