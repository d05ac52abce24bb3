//! What happened to the workers themselves: decisions to have more or fewer of them, and what became of each. Only of
//! runs in which their number can change or something fails.

use crate::numbers::short;
use crate::rank::Role;
use serde::{Serialize, Serializer};
use windtunnel_engine::Nanos;

/// A decision to have another number of workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScalingEvent {
    /// When.
    #[serde(rename = "time_ms", serialize_with = "as_ms")]
    pub time: Nanos,
    /// Of which role.
    pub role: Role,
    /// Workers that took requests, or were to do so, before.
    pub from: u32,
    /// The same after.
    pub to: u32,
    /// Why, in words.
    pub reason: String,
}

/// What became of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerChange {
    /// It is provisioned, and not ready yet.
    Added,
    /// It takes requests.
    Ready,
    /// It takes no more, and ends those that it has.
    Draining,
    /// It is no more provisioned.
    Removed,
    /// It has lost its requests and its cache.
    Crashed,
    /// Its passes take longer from now on.
    Slowed,
    /// They take as long as they should.
    Recovered,
}

/// A change of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerEvent {
    /// When.
    #[serde(rename = "time_ms", serialize_with = "as_ms")]
    pub time: Nanos,
    /// Its role.
    pub role: Role,
    /// Its number. That of a worker that was removed may be used again.
    pub worker: u32,
    /// What became of it.
    pub event: WorkerChange,
}

/// All of a run, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetLog {
    /// Decisions.
    pub scaling: Vec<ScalingEvent>,
    /// What became of workers.
    pub workers: Vec<WorkerEvent>,
    /// Most workers that were provisioned at a time.
    pub peak_workers: u32,
    /// Batches of KV events that the router never heard of.
    pub lost_kv_event_batches: u64,
}

impl FleetLog {
    /// What happened to the workers of two roles, of which there were so many at the start.
    pub fn of_roles([mut all, other]: [FleetLog; 2], at_start: u32) -> FleetLog {
        all.scaling.extend(other.scaling);
        all.workers.extend(other.workers);
        // Stable: of one instant the first role's come first.
        all.scaling.sort_by_key(|event| event.time);
        all.workers.sort_by_key(|event| event.time);
        all.lost_kv_event_batches += other.lost_kv_event_batches;
        let mut there = at_start;
        all.peak_workers = at_start;
        for change in &all.workers {
            match change.event {
                WorkerChange::Added => there += 1,
                WorkerChange::Removed => there -= 1,
                _ => {}
            }
            all.peak_workers = all.peak_workers.max(there);
        }
        all
    }

    /// How often a worker changed in this way.
    pub(crate) fn count(&self, event: WorkerChange) -> u64 {
        self.workers.iter().filter(|change| change.event == event).count() as u64
    }

    /// Decisions for more, and for fewer.
    pub(crate) fn scalings(&self) -> (u64, u64) {
        let ups = self.scaling.iter().filter(|event| event.to > event.from).count() as u64;
        (ups, self.scaling.len() as u64 - ups)
    }

    /// For the terminal.
    pub(crate) fn line(&self, end: Nanos, worker_seconds: f64) -> String {
        let (ups, downs) = self.scalings();
        let mean = worker_seconds / end.as_seconds().max(1e-9);
        let crashes = self.count(WorkerChange::Crashed);
        let mut line = format!(
            "{} on average, {} at most, scaled up {ups}×, down {downs}×",
            short(mean),
            self.peak_workers
        );
        if crashes > 0 {
            line.push_str(&format!(", {crashes} crashed"));
        }
        line
    }
}

fn as_ms<S: Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_ms())
}
