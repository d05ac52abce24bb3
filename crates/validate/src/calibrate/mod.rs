//! Pass times from measured runs: the numbers of a timing law under which the simulation gives the times that were
//! measured.
//!
//! Nothing but the requests has to have been measured. The simulation schedules them as the engine did, so what is
//! left to find is how long passes take: every guess is a whole run, and costs some milliseconds.

mod constants;
mod evolution;
mod family;
mod passes;

pub use constants::{ConstantsFit, fit_constants};
pub use family::LawKind;
pub use passes::{MeasuredPass, PassErrors, PassFit, fit_passes, read_passes};

use crate::compare::{Comparison, Times, comparison, predict, with_requests};
use crate::measured::MeasuredRun;
use family::Family;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::{ConfigError, Experiment};
use windtunnel_perf::{Law, PerfError, Speedup, TimingModel};
use windtunnel_sim::SimError;
use windtunnel_traffic::Arrival;

/// Whole runs that a search makes at most, for each number of the law.
const RUNS_PER_NUMBER: usize = 400;

/// The law, and how well it fits.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The law with its numbers.
    pub law: Law,
    /// The requests that were fitted.
    pub fitted: Comparison,
    /// Those that were not, if any were left.
    pub held_out: Option<Comparison>,
    /// Runs that it took.
    pub runs: u64,
}

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// A run failed or was interrupted.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A guess was no law. Not expected: every guess is made of positive numbers.
    #[error("{0}")]
    Law(#[from] PerfError),
    /// The law of the configuration has no constants.
    #[error("engine.workers.aggregated.timing.type: got {0:?}; allowed for constants is \"default\"")]
    NotDefault(&'static str),
    /// Prefill and decode have pass times of their own.
    #[error(
        "engine.mode: got \"disaggregated\"; pass times of one kind of worker are fitted, so allowed is \"aggregated\""
    )]
    Apart,
    /// The operations could not be looked up anew.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The deployment does not answer some request that was answered.
    #[error("request {request} was answered in the measured run, and is not in the simulated one: {hint}")]
    Unanswered {
        /// Its place in order of arrival.
        request: usize,
        /// What to look at.
        hint: &'static str,
    },
}

/// Finds the law under which the first `first` requests of a run, by arrival, come out as measured. The requests behind
/// them run as well, as they did, but their times are not looked at.
///
/// # Errors
/// What a run says, and a request that the deployment refuses.
pub fn fit(
    experiment: &Experiment,
    run: &MeasuredRun,
    requests: &Arc<[Arrival]>,
    kind: LawKind,
    first: usize,
    interrupt: &Arc<AtomicBool>,
) -> Result<Fit, FitError> {
    let mut trial = Trial::new(experiment, run, requests, first, interrupt)?;
    let pass_tokens = experiment.deployment.engine.pass_tokens();
    let mut law = None;
    for step in kind.steps(pass_tokens) {
        let start = step.start(law.as_ref(), &trial.measured);
        if law.is_none() {
            trial.check_answered(step.law(&start))?;
        }
        let least = evolution::minimize(&start, 0.4, RUNS_PER_NUMBER * start.len(), |numbers| {
            trial.distance(step.law(numbers))
        })?;
        law = Some(step.law(&least.at));
    }
    // invariant: every kind of law has at least one step
    let law = law.unwrap_or_else(|| Family::linear().law(&Family::linear().start(None, &trial.measured)));
    trial.end(law)
}

/// A measured run, and runs of the same requests under one law after the other.
struct Trial<'a> {
    experiment: Experiment,
    run: &'a MeasuredRun,
    /// Of the requests that are fitted.
    measured: Vec<Times>,
    weights: Weights,
    interrupt: &'a Arc<AtomicBool>,
    runs: u64,
}

impl<'a> Trial<'a> {
    fn new(
        experiment: &Experiment,
        run: &'a MeasuredRun,
        requests: &Arc<[Arrival]>,
        first: usize,
        interrupt: &'a Arc<AtomicBool>,
    ) -> Result<Trial<'a>, FitError> {
        if experiment.prefill.is_some() {
            return Err(FitError::Apart);
        }
        let first = first.clamp(1, run.requests.len());
        let measured: Vec<Times> = run.requests[..first].iter().map(Times::measured).collect();
        let weights = Weights::of(&measured);
        let experiment = with_requests(experiment, run, requests);
        Ok(Trial { experiment, run, measured, weights, interrupt, runs: 0 })
    }

    fn simulate(&mut self, law: Law) -> Result<Vec<Option<Times>>, FitError> {
        self.runs += 1;
        self.experiment.deployment.timing = TimingModel::new(law, None, Speedup::NONE)?;
        Ok(predict(&self.experiment, self.run.requests.len(), self.interrupt)?)
    }

    /// How far off the fitted requests are.
    fn distance(&mut self, law: Law) -> Result<f64, FitError> {
        let predicted = self.simulate(law)?;
        Ok(self.weights.distance(&self.measured, &predicted))
    }

    fn check_answered(&mut self, law: Law) -> Result<(), FitError> {
        check_answered(&self.simulate(law)?, self.measured.len())
    }

    /// The law that was found, with the errors under it.
    fn end(mut self, law: Law) -> Result<Fit, FitError> {
        let predicted = self.simulate(law.clone())?;
        let (run, first) = (self.run, self.measured.len());
        let held_out =
            (first < run.requests.len()).then(|| comparison(run, &predicted, first..run.requests.len()));
        Ok(Fit { law, fitted: comparison(run, &predicted, 0..first), held_out, runs: self.runs })
    }
}

fn check_answered(predicted: &[Option<Times>], first: usize) -> Result<(), FitError> {
    match predicted[..first].iter().position(Option::is_none) {
        Some(request) => {
            let hint =
                "compare context length, capacity and limits of the deployment with those of the engine";
            Err(FitError::Unanswered { request, hint })
        }
        None => Ok(()),
    }
}

/// How far a prediction is from what was measured: of each request, how far off its TTFT is as a share of itself or of
/// the mean TTFT, whatever is more, and its time from first to last token as a share of itself. Shares, so that long
/// and short ones count the same; absolute values, so that a few odd ones (a first pass that compiled something)
/// do not move all others.
struct Weights {
    least_ttft: f64,
}

impl Weights {
    fn of(measured: &[Times]) -> Weights {
        let mean = measured.iter().map(Times::ttft).sum::<f64>() / measured.len() as f64;
        Weights { least_ttft: mean.max(1e-3) }
    }

    fn distance(&self, measured: &[Times], predicted: &[Option<Times>]) -> f64 {
        let mut sum = 0.0;
        for (measured, predicted) in measured.iter().zip(predicted) {
            let Some(predicted) = predicted else { return f64::INFINITY };
            sum += (predicted.ttft() - measured.ttft()).abs() / measured.ttft().max(self.least_ttft);
            if measured.decode() > 0.0 {
                sum += (predicted.decode() - measured.decode()).abs() / measured.decode();
            }
        }
        sum / measured.len() as f64
    }
}
