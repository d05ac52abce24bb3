//! The workers of a pool while their number changes: which are there, what each is about, and how long they were
//! provisioned.
//!
//! A worker has a place, whose number is its name; a place that was left is used again, the first one first. What runs
//! on a worker is not known here.

use windtunnel_engine::Nanos;
use windtunnel_report::{FleetLog, Role, ScalingEvent, WorkerChange, WorkerEvent};

/// What a place is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Vacant,
    /// Provisioned, and ready at this time.
    Starting(Nanos),
    Ready,
    /// It ends what it has, since this time.
    Draining(Nanos),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    phase: Phase,
    /// Provisioned since then, unless it is vacant.
    since: Nanos,
}

/// How many workers there are of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Take requests.
    pub ready: u32,
    /// Are to do so.
    pub starting: u32,
    /// End those that they have.
    pub draining: u32,
}

impl Counts {
    /// Those that a planner counts.
    pub fn wanted(self) -> u32 {
        self.ready + self.starting
    }
}

/// The places of a pool.
pub(crate) struct Fleet {
    role: Role,
    places: Vec<Place>,
    /// Workers that take requests, in order.
    ready: Vec<u32>,
    /// Σ of the times for which workers that are gone were provisioned.
    past: u128,
    log: FleetLog,
}

impl Fleet {
    /// `workers` workers, all ready at 0.
    pub(crate) fn new(role: Role, workers: u32) -> Fleet {
        let place = Place { phase: Phase::Ready, since: Nanos::ZERO };
        Fleet {
            role,
            places: vec![place; workers as usize],
            ready: (0..workers).collect(),
            past: 0,
            log: FleetLog { peak_workers: workers, ..FleetLog::default() },
        }
    }

    /// The workers that take requests.
    pub(crate) fn ready(&self) -> &[u32] {
        &self.ready
    }

    pub(crate) fn is_ready(&self, worker: u32) -> bool {
        self.phase(worker) == Phase::Ready
    }

    /// It has requests, or may get some.
    pub(crate) fn is_serving(&self, worker: u32) -> bool {
        matches!(self.phase(worker), Phase::Ready | Phase::Draining(_))
    }

    fn phase(&self, worker: u32) -> Phase {
        self.places.get(worker as usize).map_or(Phase::Vacant, |place| place.phase)
    }

    pub(crate) fn draining(&self) -> Vec<u32> {
        self.of_phase(|phase| matches!(phase, Phase::Draining(_)))
    }

    fn of_phase(&self, is: impl Fn(Phase) -> bool) -> Vec<u32> {
        let places = (0u32..).zip(&self.places);
        places.filter(|(_, place)| is(place.phase)).map(|(worker, _)| worker).collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for place in &self.places {
            match place.phase {
                Phase::Vacant => {}
                Phase::Starting(_) => counts.starting += 1,
                Phase::Ready => counts.ready += 1,
                Phase::Draining(_) => counts.draining += 1,
            }
        }
        counts
    }

    /// When the next worker becomes ready, [`Nanos::NEVER`] if none does.
    pub(crate) fn next_ready(&self) -> Nanos {
        let starting = self.places.iter().filter_map(|place| match place.phase {
            Phase::Starting(ready) => Some(ready),
            _ => None,
        });
        starting.min().unwrap_or(Nanos::NEVER)
    }

    /// Provisions a worker at `now`, to be ready at `ready`. Its number.
    pub(crate) fn add(&mut self, now: Nanos, ready: Nanos) -> u32 {
        let vacant = self.places.iter().position(|place| place.phase == Phase::Vacant);
        let at = vacant.unwrap_or(self.places.len());
        let place = Place { phase: Phase::Starting(ready), since: now };
        match self.places.get_mut(at) {
            Some(vacant) => *vacant = place,
            None => self.places.push(place),
        }
        let provisioned = self.places.iter().filter(|place| place.phase != Phase::Vacant).count() as u32;
        self.log.peak_workers = self.log.peak_workers.max(provisioned);
        self.note(now, at as u32, WorkerChange::Added);
        at as u32
    }

    /// The workers whose time to be ready has come by `now`, which are so from then on.
    pub(crate) fn take_ready(&mut self, now: Nanos) -> Vec<u32> {
        let come = self.of_phase(|phase| matches!(phase, Phase::Starting(ready) if ready <= now));
        for &worker in &come {
            self.places[worker as usize].phase = Phase::Ready;
            self.ready.push(worker);
            self.note(now, worker, WorkerChange::Ready);
        }
        self.ready.sort_unstable();
        come
    }

    /// Takes the worker away that is missed least: one that is not ready, the latest of them, or else the last one,
    /// which has to end what it has. It is told in that case.
    pub(crate) fn drain_one(&mut self, now: Nanos) -> Option<u32> {
        let starting = (0u32..).zip(&self.places).filter_map(|(worker, place)| match place.phase {
            Phase::Starting(ready) => Some((ready, worker)),
            _ => None,
        });
        if let Some((_, worker)) = starting.max() {
            self.remove(worker, now);
            return None;
        }
        let worker = self.ready.pop()?;
        self.places[worker as usize].phase = Phase::Draining(now);
        self.note(now, worker, WorkerChange::Draining);
        Some(worker)
    }

    /// A draining worker did something last at `done`: it is no more provisioned.
    pub(crate) fn drained(&mut self, worker: u32, done: Nanos) {
        let since = match self.phase(worker) {
            Phase::Draining(since) => since,
            _ => done,
        };
        self.remove(worker, done.max(since));
    }

    /// A worker is no more provisioned from `at` on.
    pub(crate) fn remove(&mut self, worker: u32, at: Nanos) {
        let place = &mut self.places[worker as usize];
        self.past += u128::from(at.since(place.since).0);
        place.phase = Phase::Vacant;
        self.ready.retain(|&other| other != worker);
        self.note(at, worker, WorkerChange::Removed);
    }

    /// A worker loses all that it has, and is ready again at `back`, if ever. One that was draining is not awaited.
    pub(crate) fn crash(&mut self, worker: u32, now: Nanos, back: Option<Nanos>) {
        self.note(now, worker, WorkerChange::Crashed);
        let was_ready = self.is_ready(worker);
        match back.filter(|_| was_ready) {
            Some(back) => {
                self.places[worker as usize].phase = Phase::Starting(back);
                self.ready.retain(|&other| other != worker);
            }
            None => self.remove(worker, now),
        }
    }

    /// Another number of workers was decided on.
    pub(crate) fn decided(&mut self, event: ScalingEvent) {
        self.log.scaling.push(event);
    }

    pub(crate) fn note(&mut self, time: Nanos, worker: u32, event: WorkerChange) {
        self.log.workers.push(WorkerEvent { time, role: self.role, worker, event });
    }

    /// Σ of the times for which workers were provisioned until `end`, and what happened.
    pub(crate) fn finish(mut self, end: Nanos) -> (u128, FleetLog) {
        let there = self.places.iter().filter(|place| place.phase != Phase::Vacant);
        let present: u128 = there.map(|place| u128::from(end.since(place.since).0)).sum();
        // A drain ends when its last request does, which is found out later.
        self.log.workers.sort_by_key(|event| event.time);
        (self.past + present, self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Two workers from 0; a third one provisioned at 10, ready at 15, that is drained at 20 and done at 22, all in
    /// seconds; until 30 that makes 30 + 30 + 12.
    #[test]
    fn a_worker_is_paid_for_from_its_provisioning_to_the_end_of_its_drain() {
        let mut fleet = Fleet::new(Role::Aggregated, 2);
        assert_eq!(fleet.add(Nanos(10 * S), Nanos(15 * S)), 2);
        assert_eq!((fleet.next_ready(), fleet.ready()), (Nanos(15 * S), &[0, 1][..]));
        assert_eq!(fleet.take_ready(Nanos(15 * S)), [2]);
        assert_eq!(fleet.drain_one(Nanos(20 * S)), Some(2));
        assert_eq!(fleet.counts(), Counts { ready: 2, starting: 0, draining: 1 });
        fleet.drained(2, Nanos(22 * S));
        let (time, log) = fleet.finish(Nanos(30 * S));
        assert_eq!((time, log.peak_workers), (72 * u128::from(S), 3));
    }

    /// Who is not ready goes first, at once; a place that was left is used again.
    #[test]
    fn who_is_missed_least_goes_first() {
        let mut fleet = Fleet::new(Role::Aggregated, 2);
        fleet.add(Nanos(0), Nanos(5 * S));
        assert_eq!(fleet.drain_one(Nanos(S)), None);
        assert_eq!(fleet.counts(), Counts { ready: 2, starting: 0, draining: 0 });
        assert_eq!(fleet.drain_one(Nanos(S)), Some(1));
        // It had nothing to do since before.
        fleet.drained(1, Nanos(0));
        assert_eq!(fleet.add(Nanos(2 * S), Nanos(2 * S)), 1);
    }

    /// A crashed worker stays provisioned while it is awaited, and is not when it never comes back.
    #[test]
    fn a_crashed_worker_is_paid_for_if_it_comes_back() {
        let mut fleet = Fleet::new(Role::Aggregated, 2);
        fleet.crash(0, Nanos(4 * S), Some(Nanos(6 * S)));
        fleet.crash(1, Nanos(4 * S), None);
        assert!(fleet.ready().is_empty());
        assert_eq!(fleet.take_ready(Nanos(6 * S)), [0]);
        assert_eq!(fleet.finish(Nanos(10 * S)).0, 14 * u128::from(S));
    }
}
