//! What a run is asked to do beside computing its report, and who watches it: what people who wait are told, and what
//! stops it.

use crate::error::SimError;
use crate::faults::seed_of;
use crate::group::{Group, GroupOptions, Lanes};
use crate::observer::{Events, Observer, Telemetry};
use crate::reporting::collector_options;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use windtunnel_config::{Deployment, Experiment, Faults};
use windtunnel_engine::{Nanos, Stepper};
use windtunnel_report::Role;
use windtunnel_router::{EventLoss, Telling};

/// How far a run is, for people who wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests sent so far.
    pub sent: u64,
    /// Virtual time reached.
    pub now: Nanos,
}

/// Arrivals between two progress reports.
pub(crate) const PROGRESS_STEP: u64 = 256;

/// Periodic samples of every rank.
pub struct TelemetryOptions<'a> {
    /// Virtual time between samples, above zero.
    pub interval: Nanos,
    /// Destination, buffered.
    pub out: Box<dyn Write + 'a>,
}

/// What a run should do beside computing its report.
pub struct Options<'a> {
    /// How passes are computed; the results are the same.
    pub stepper: Stepper,
    /// Keep every request for requests.jsonl.
    pub capture: bool,
    /// Write samples.
    pub telemetry: Option<TelemetryOptions<'a>>,
    /// Write every KV event and preemption, buffered.
    pub events: Option<Box<dyn Write + 'a>>,
    /// Threads that may be used where that changes nothing but the time it takes, at least 1.
    pub threads: u32,
    /// Told now and then how far the run is.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
    /// Set from outside to stop the run.
    pub interrupt: Arc<AtomicBool>,
}

impl Options<'_> {
    /// The same for a run that nobody watches.
    pub(crate) fn of(other: &Options<'_>) -> Self {
        Options { stepper: other.stepper, capture: other.capture, ..Options::default() }
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            stepper: Stepper::Fast,
            capture: false,
            telemetry: None,
            events: None,
            threads: 1,
            progress: None,
            interrupt: Arc::new(AtomicBool::new(false)),
        }
    }
}

impl GroupOptions {
    pub(crate) fn new(experiment: &Experiment, options: &Options<'_>) -> GroupOptions {
        GroupOptions {
            stepper: options.stepper,
            collector: collector_options(experiment, options.capture),
            log_events: options.events.is_some(),
            telling: Telling::default(),
            interrupt: options.interrupt.clone(),
        }
    }

    /// The same for workers of a role, with what fails of them.
    pub(crate) fn of_role(
        &self,
        role: Role,
        deployment: &Deployment,
        faults: Option<&Faults>,
    ) -> GroupOptions {
        let loss = faults.and_then(|faults| faults.kv_event_loss);
        let loss = loss.map(|loss| EventLoss { rate: loss.rate, seed: seed_of(role, loss.seed) });
        GroupOptions { telling: deployment.telling().losing(loss), ..self.clone() }
    }
}

impl<'a> Options<'a> {
    /// Who looks at the run from outside.
    pub(crate) fn watchers(self) -> (Observer<'a>, Watch<'a>) {
        let observer = Observer {
            events: self.events.map(Events::new),
            telemetry: self.telemetry.map(|t| Telemetry::new(t.out, t.interval)),
        };
        (observer, Watch { progress: self.progress, interrupt: self.interrupt })
    }
}

/// Who waits for the run and may stop it.
pub(crate) struct Watch<'a> {
    progress: Option<&'a mut dyn FnMut(Progress)>,
    interrupt: Arc<AtomicBool>,
}

impl Watch<'_> {
    pub(crate) fn tell(&mut self, how_far: Progress) {
        if let Some(progress) = &mut self.progress {
            progress(how_far);
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// Why the run was stopped, if it was: from outside, or by one of the groups.
    pub(crate) fn check<L: Lanes>(&self, groups: &[Group<L>]) -> Result<(), SimError> {
        if !self.is_interrupted() {
            return Ok(());
        }
        let cause = |group: &Group<L>| {
            let worker = group.worker();
            if let Some((rank, words)) = group.fault() {
                return Some(SimError::EngineFault { worker, rank, words });
            }
            if let Some(duration) = group.endless() {
                return Some(SimError::Endless { worker, duration });
            }
            let (rank, requests) = group.fruitless()?;
            Some(SimError::Livelock { worker, rank, requests })
        };
        Err(groups.iter().find_map(cause).unwrap_or(SimError::Interrupted))
    }
}
