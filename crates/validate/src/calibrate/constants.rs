//! The constants of calibrated timing from a measured run: what its host takes for a pass and for a sequence, how the
//! operations of a pass add up, and how fast its accelerators talk to each other.
//!
//! Three of them are factors of what was looked up, so a guess costs a run. Communication is folded into the curves
//! with other operations, so another scale costs a look-up of all operations; it is fitted by steps of a fixed ratio,
//! and each step is looked up once.

use super::{Fit, FitError, RUNS_PER_NUMBER, Trial, evolution};
use crate::measured::MeasuredRun;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::{ConfigError, Experiment};
use windtunnel_perf::Law;
use windtunnel_perf::calibrated::{Constants, PassModel};
use windtunnel_traffic::Arrival;

/// Ratio of neighbouring scales of communication.
const STEP: f64 = 1.02;

/// What a constant ten times as large as the engine's own weighs, as a share of the error of a request, over (ln 10)²: so
/// little that it decides only between constants that stand in for each other.
const NEAR: f64 = 5e-4;

/// The constants, and how well they fit.
#[derive(Clone, Debug)]
pub struct ConstantsFit {
    /// What was found. Without communication its scale is as it was.
    pub constants: Constants,
    /// Errors, and the law that these constants make.
    pub fit: Fit,
}

/// Finds the constants under which the first `first` requests of a run come out as measured. `anew` gives the deployment
/// with another scale of communication.
///
/// # Errors
/// A timing that is not calibrated, what a run says, what `anew` says, and a request that the deployment refuses.
pub fn fit_constants(
    experiment: &Experiment,
    run: &MeasuredRun,
    requests: &Arc<[Arrival]>,
    anew: &dyn Fn(f64) -> Result<Experiment, ConfigError>,
    first: usize,
    interrupt: &Arc<AtomicBool>,
) -> Result<ConstantsFit, FitError> {
    let mut trial = Trial::new(experiment, run, requests, first, interrupt)?;
    let given = model_of(experiment)?.clone();
    let begin = given.constants();
    let mut models = HashMap::new();
    trial.check_answered(Law::Calibrated(given.clone()))?;
    // Logarithms, so that all are positive whatever the search tries. What is 0 begins at a little.
    let mut start: Vec<f64> =
        [begin.pass_us.max(1.0), begin.sequence_us.max(0.1), begin.gpu_scale].map(f64::ln).to_vec();
    if given.communicates() {
        start.push(begin.communication_scale.max(0.01).ln());
    }
    let mut law = |numbers: &[f64]| -> Result<Arc<PassModel>, FitError> {
        let model = match numbers.get(3) {
            None => given.clone(),
            Some(scale) => {
                // Scales beyond these bounds are beyond sense, and the key's own bounds.
                let step = (scale / STEP.ln()).round().clamp(-200.0, 200.0) as i32;
                match models.get(&step) {
                    Some(model) => Arc::clone(model),
                    None => {
                        let model = model_of(&anew(rounded(STEP.powi(step)))?)?.clone();
                        models.insert(step, Arc::clone(&model));
                        model
                    }
                }
            }
        };
        let [pass_us, sequence_us, gpu_scale] =
            [0, 1, 2].map(|i| rounded(numbers[i].clamp(-20.0, 13.0).exp()));
        Ok(Arc::new(PassModel::clone(&model).with_host(pass_us, sequence_us, gpu_scale)))
    };
    let near = |numbers: &[f64]| -> f64 {
        numbers.iter().zip(&start).map(|(number, start)| (number - start).powi(2)).sum()
    };
    let least = evolution::minimize(&start, 0.3, RUNS_PER_NUMBER * start.len(), |numbers| {
        let distance = trial.distance(Law::Calibrated(law(numbers)?))?;
        Ok::<f64, FitError>(distance + NEAR * near(numbers))
    })?;
    let model = law(&least.at)?;
    Ok(ConstantsFit { constants: model.constants(), fit: trial.end(Law::Calibrated(model))? })
}

/// Five digits, so that what is printed is what was tried.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

fn model_of(experiment: &Experiment) -> Result<&Arc<PassModel>, FitError> {
    match experiment.deployment.timing.law() {
        Law::Calibrated(model) => Ok(model),
        other => Err(FitError::NotDefault(other.name())),
    }
}
