//! The loop of a run: arrivals meet workers.

use crate::error::SimError;
use crate::observer::{Events, Observer, Telemetry};
use crate::worker::Worker;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use windtunnel_config::{Deployment, Experiment, Pace, Semantics, Workload};
use windtunnel_engine::Nanos;
use windtunnel_engine::vllm::Stepper;
use windtunnel_report::{CollectorOptions, PercentileMethod, Pool, Report, RunEnd, Sla};
use windtunnel_router::RoundRobin;
use windtunnel_traffic::{Arrival, Source};

/// How far a run is, for people who wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests sent so far.
    pub sent: u64,
    /// Virtual time reached.
    pub now: Nanos,
}

/// Arrivals between two progress reports.
const PROGRESS_STEP: u64 = 256;

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
    /// Told now and then how far the run is.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
    /// Set from outside to stop the run.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            stepper: Stepper::Fast,
            capture: false,
            telemetry: None,
            events: None,
            progress: None,
            interrupt: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// Runs a workload through a deployment.
///
/// # Errors
/// A bad line of the workload, a destination that cannot be written, an interruption, or requests that
/// nothing will wake.
pub fn run<'a>(experiment: &'a Experiment, options: Options<'a>) -> Result<Report, SimError> {
    Run::new(experiment, options)?.run(&experiment.workload)
}

struct Run<'a> {
    deployment: &'a Deployment,
    workers: Vec<Worker>,
    router: RoundRobin,
    observer: Observer<'a>,
    progress: Option<&'a mut dyn FnMut(Progress)>,
    interrupt: Arc<AtomicBool>,
    sent: u64,
    cutoff: Nanos,
}

impl<'a> Run<'a> {
    fn new(experiment: &'a Experiment, options: Options<'a>) -> Result<Run<'a>, SimError> {
        let deployment = &experiment.deployment;
        let sla = experiment.sla.map(|sla| match sla.e2e {
            Some(bound) => Sla::E2e(bound),
            None => Sla::Tokens { ttft: sla.ttft, itl: sla.itl },
        });
        let collector = CollectorOptions { sla, capture: options.capture };
        let workers = (0..deployment.replicas.get())
            .map(|index| {
                let log_events = options.events.is_some();
                let interrupt = options.interrupt.clone();
                Worker::new(index, deployment, options.stepper, collector, log_events, interrupt)
            })
            .collect::<Result<_, _>>()?;
        let observer = Observer {
            events: options.events.map(Events::new),
            telemetry: options.telemetry.map(|t| Telemetry::new(t.out, t.interval)),
        };
        Ok(Run {
            deployment,
            workers,
            router: RoundRobin::new(),
            observer,
            progress: options.progress,
            interrupt: options.interrupt,
            sent: 0,
            cutoff: experiment.workload.max_virtual_time.unwrap_or(Nanos::NEVER),
        })
    }

    fn run(mut self, workload: &Workload) -> Result<Report, SimError> {
        let mut source = workload.open()?;
        match workload.pace {
            Pace::Arrivals => self.open_loop(&mut source)?,
            Pace::Concurrency(seats) => self.closed_loop(&mut source, u64::from(seats.get()))?,
        }
        self.observer.write_events(&mut self.workers)?;
        self.observer.finish()?;
        let unfinished: u64 = self.workers.iter().map(|w| w.unfinished() as u64).sum();
        if unfinished > 0 && self.cutoff == Nanos::NEVER {
            let mut requests: Vec<u64> = self.workers.iter().flat_map(Worker::unfinished_requests).collect();
            requests.sort_unstable();
            return Err(SimError::Stuck { requests });
        }
        Ok(self.report(unfinished))
    }

    /// Requests come at the times of their source, whatever becomes of those before them.
    fn open_loop(&mut self, source: &mut Source) -> Result<(), SimError> {
        for arrival in source {
            let arrival = arrival?;
            let now = arrival.at;
            if now > self.cutoff {
                break;
            }
            self.observe_before(now)?;
            self.send(arrival, now)?;
        }
        let cutoff = self.cutoff;
        while self.busy() {
            let next = self.observer.next_instant();
            if next == Nanos::NEVER || next > cutoff {
                break;
            }
            self.observe_before(next + Nanos(1))?;
        }
        for at in 0..self.workers.len() {
            self.workers[at].run_until(cutoff, false);
            self.tick(cutoff)?;
        }
        Ok(())
    }

    /// A number of requests is kept in flight; the next is sent when one ends.
    fn closed_loop(&mut self, source: &mut Source, seats: u64) -> Result<(), SimError> {
        self.fill(source, seats, Nanos::ZERO)?;
        loop {
            let Some((at, now, others)) = self.next_worker() else { return Ok(()) };
            if now > self.cutoff {
                return Ok(());
            }
            self.observe_before(now)?;
            let mut ended_at = now;
            if others > now {
                // Alone until another worker does something, unless a request ends.
                let horizon = others.min(self.cutoff).min(self.observer.next_instant());
                self.workers[at].run_until(horizon, true);
                ended_at = self.workers[at].now();
                if ended_at == others {
                    self.workers.iter_mut().for_each(|w| w.run_until(others, false));
                }
            } else {
                self.workers.iter_mut().for_each(|w| w.run_until(now, false));
            }
            let ended = self.take_ended();
            if ended > 0 {
                self.fill(source, ended, ended_at)?;
            } else {
                // Every pass end of this instant and what followed from it is done.
                for worker in &mut self.workers {
                    worker.schedule_at(now);
                }
            }
            self.check_interrupt()?;
        }
    }

    /// Sends `seats` requests at `now`, and one more for each that is refused at once.
    fn fill(&mut self, source: &mut Source, mut seats: u64, now: Nanos) -> Result<(), SimError> {
        while seats > 0 {
            seats -= 1;
            let Some(arrival) = source.next() else { return Ok(()) };
            let mut arrival = arrival?;
            arrival.request.arrival = now;
            self.send(arrival, now)?;
            seats += self.take_ended();
        }
        Ok(())
    }

    fn send(&mut self, arrival: Arrival, now: Nanos) -> Result<(), SimError> {
        let worker = &mut self.workers[self.router.pick(self.deployment.replicas) as usize];
        worker.run_until(now, false);
        worker.submit(arrival, now);
        self.sent += 1;
        if self.sent.is_multiple_of(PROGRESS_STEP) {
            self.tick(now)?;
        }
        Ok(())
    }

    fn take_ended(&mut self) -> u64 {
        self.workers.iter_mut().map(Worker::take_ended).sum()
    }

    /// The worker that does something next, when, and when the first of the others does.
    fn next_worker(&self) -> Option<(usize, Nanos, Nanos)> {
        let (mut first, mut second) = ((0, Nanos::NEVER), Nanos::NEVER);
        for (at, worker) in self.workers.iter().enumerate() {
            let instant = worker.next_instant();
            if instant < first.1 {
                (first, second) = ((at, instant), first.1);
            } else {
                second = second.min(instant);
            }
        }
        (first.1 < Nanos::NEVER).then_some((first.0, first.1, second))
    }

    fn busy(&self) -> bool {
        self.workers.iter().any(|w| w.next_instant() < Nanos::NEVER)
    }

    /// Lets the observer look at all instants before `now`.
    fn observe_before(&mut self, now: Nanos) -> Result<(), SimError> {
        loop {
            let instant = self.observer.next_instant();
            if instant >= now {
                return Ok(());
            }
            for worker in &mut self.workers {
                worker.run_until(instant, false);
                while worker.schedule_at(instant) {
                    worker.run_until(instant, false);
                }
            }
            self.observer.look(&mut self.workers, instant)?;
            self.check_interrupt()?;
        }
    }

    fn tick(&mut self, now: Nanos) -> Result<(), SimError> {
        if let Some(progress) = &mut self.progress {
            progress(Progress { sent: self.sent, now });
        }
        self.check_interrupt()
    }

    fn check_interrupt(&self) -> Result<(), SimError> {
        match self.interrupt.load(Ordering::Relaxed) {
            true => Err(SimError::Interrupted),
            false => Ok(()),
        }
    }

    fn report(self, unfinished: u64) -> Report {
        let end = match self.cutoff {
            Nanos::NEVER => self.workers.iter().map(Worker::now).max().unwrap_or(Nanos::ZERO),
            cutoff => cutoff,
        };
        let replicas = u128::from(self.deployment.replicas.get());
        let percentiles = match self.deployment.semantics {
            Semantics::Native => PercentileMethod::Linear,
            Semantics::Aisimulate013 => PercentileMethod::NearestRankRound,
        };
        let collectors = self.workers.into_iter().map(|worker| worker.into_collector(end));
        let end = RunEnd {
            end,
            unfinished,
            prefill: Pool::default(),
            decode: Pool {
                worker_time: replicas * u128::from(end.0),
                gpus_per_worker: self.deployment.gpus_per_worker,
            },
            percentiles,
        };
        Report::new(collectors, &end)
    }
}
