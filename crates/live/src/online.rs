//! A workload against live workers in this process: what a prediction does in virtual time, with the wall clock
//! deciding when each instant is reached.
//!
//! Nothing waits for a request to arrive from outside, so one thread has all rank groups and handles every
//! instant in the order of virtual time: pass ends, arrivals, schedule calls. The passes are those of the
//! prediction, whatever the clock does. A `side` is the workers of one role; `apart` is the run with two of them.

mod apart;
mod side;

use crate::clock::WallClock;
use crate::error::LiveError;
use crate::group::RankGroup;
use crate::observer::{RequestInfo, Routed};
use crate::recorder::Prefilled;
use crate::submission::Submission;
use apart::Apart;
use side::Side;
use std::collections::HashMap;
use std::iter::Peekable;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use windtunnel_config::{Deployment, Experiment, Pace};
use windtunnel_engine::{Nanos, RequestId};
use windtunnel_report::{Collector, CollectorOptions, Refusal, Role};
use windtunnel_router::{Choice, Verdict, WorkerLoad, Workers};
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
    /// The same of prefill workers, where there are such.
    pub prefill_outside: [bool; 2],
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
    crate::limits::check(experiment)?;
    if let Some(prefill) = &experiment.prefill {
        return Apart::new(experiment, prefill, options)?.run(workload.open()?, workload.pace);
    }
    let mut run = Run::new(&experiment.deployment, options)?;
    let source = workload.open()?;
    match workload.pace {
        Pace::Arrivals => run.open_loop(source.peekable())?,
        Pace::Concurrency(seats) => run.closed_loop(source, u64::from(seats.get()))?,
    }
    run.finish()
}

/// Waits for the wall clock.
struct Pacer<'a> {
    clock: WallClock,
    interrupt: &'a AtomicBool,
}

impl<'a> Pacer<'a> {
    fn new(options: &'a OnlineOptions) -> Pacer<'a> {
        Pacer { clock: WallClock::with_rate(options.rate), interrupt: &options.interrupt }
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
}

struct Run<'a> {
    side: Side<'a>,
    /// Requests that the router holds back.
    held: HashMap<RequestId, Arrival>,
    pacer: Pacer<'a>,
    /// The instant of the last arrival.
    now: Nanos,
    /// A request was refused before it came to a rank, and nobody was let go for that yet.
    refused: bool,
}

impl<'a> Run<'a> {
    fn new(deployment: &'a Deployment, options: &'a OnlineOptions) -> Result<Run<'a>, LiveError> {
        Ok(Run {
            side: Side::new(deployment, options.collector, Role::Aggregated, &Prefilled::default())?,
            held: HashMap::new(),
            pacer: Pacer::new(options),
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
            let instant = self.side.next_instant().min(arrival);
            if instant == Nanos::NEVER {
                return Ok(());
            }
            self.pacer.reach(instant)?;
            self.side.complete(instant);
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
            instant = self.side.next_instant();
            if instant == Nanos::NEVER {
                return Ok(());
            }
            self.pacer.reach(instant)?;
            self.side.complete(instant);
            self.let_go(instant);
        }
    }

    /// Tells the router what is known by `now`, and places the requests that it lets go for that.
    fn let_go(&mut self, now: Nanos) {
        while self.hear(now) {
            while let Some((id, choice)) = self.side.release(now) {
                // A router names requests that it holds, each once.
                if let Some(arrival) = self.held.remove(&id) {
                    self.place(arrival, choice, now);
                }
            }
        }
    }

    fn hear(&mut self, now: Nanos) -> bool {
        let refused = std::mem::take(&mut self.refused);
        self.side.hear(now) | refused
    }

    /// Takes every schedule call that is due at `instant`.
    fn schedule(&mut self, instant: Nanos) -> Result<(), LiveError> {
        (0..self.side.groups.len()).try_for_each(|group| self.side.schedule(group, instant))
    }

    /// Requests that have not ended, those that are held back among them.
    fn unfinished(&self) -> u64 {
        self.side.unfinished() + self.held.len() as u64
    }

    /// Hands a request to a rank, unless the router holds it back, after those that it lets go now.
    fn send(&mut self, arrival: Arrival, now: Nanos) {
        self.now = now;
        self.let_go(now);
        match self.side.route(&arrival, now) {
            Verdict::To(choice) => self.place(arrival, choice, now),
            Verdict::Held => {
                self.held.insert(arrival.request.id, arrival);
            }
        }
    }

    fn place(&mut self, arrival: Arrival, choice: Choice, now: Nanos) {
        let Arrival { at: _, mut request, name, dp_rank, .. } = arrival;
        let came = std::mem::replace(&mut request.arrival, now);
        let (group, lane) = match self.side.place(choice, dp_rank, now) {
            Ok(place) => place,
            Err(reason) => {
                self.side.refuse(choice, &Refusal::unplaced(&request, name, came, now, reason));
                self.side.lost(choice, request.id, now);
                self.refused = true;
                return;
            }
        };
        request.output.ignore_eos.get_or_insert(self.side.deployment.ignore_eos);
        let info = RequestInfo {
            name: name.map(String::from).unwrap_or_default(),
            routed: Some(Routed { came, record: choice.record }),
            ..RequestInfo::of(&request)
        };
        self.side.groups[group].submit(lane, Submission::of(info, request), now);
    }

    fn finish(self) -> Result<Replayed, LiveError> {
        let unfinished = self.unfinished();
        if unfinished > 0 {
            return Err(LiveError::Stuck(unfinished));
        }
        let (end, outside) = (self.side.now().max(self.now), self.side.outside());
        Ok(Replayed { collectors: self.side.finish(), end, outside, prefill_outside: [false; 2] })
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
