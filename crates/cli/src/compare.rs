//! `windtunnel compare`: a measured run beside the prediction of the same requests.

use crate::args::{Compare, MeasuredInput};
use crate::exit::Failure;
use crate::models::{json, write};
use crate::say::say;
use crate::signals::interrupt_flag;
use std::sync::Arc;
use windtunnel_config::Experiment;
use windtunnel_report::{columns, short};
use windtunnel_sim::SimError;
use windtunnel_traffic::Arrival;
use windtunnel_validate::compare::{Comparison, compare, with_requests};
use windtunnel_validate::measured::{MeasuredRun, Prompts};

/// Runs the command.
pub fn run(arguments: &Compare) -> Result<(), Failure> {
    let Inputs { experiment, run, requests } = read(&arguments.input)?;
    let experiment = with_requests(&experiment, &run, &requests);
    let comparison = compare(&experiment, &run, &interrupt_flag()?).map_err(failed)?;
    if comparison.requests < run.requests.len() {
        let left = run.requests.len() - comparison.requests;
        say(format_args!("warning: {left} requests did not complete in the prediction; they are left out"));
    }
    if arguments.json {
        return write(&json(&comparison)?);
    }
    write(&format!("{}: {} requests\n{}\n", run.name, comparison.requests, table(&comparison)))
}

/// What a command that looks at a measured run begins with.
pub struct Inputs {
    /// The deployment, with its own workload.
    pub experiment: Experiment,
    /// What was measured.
    pub run: MeasuredRun,
    /// The same requests as a workload.
    pub requests: Arc<[Arrival]>,
}

/// Reads the files.
pub fn read(input: &MeasuredInput) -> Result<Inputs, Failure> {
    let experiment = windtunnel_config::load(&input.config, &input.set).map_err(Failure::input)?;
    let run = MeasuredRun::read(&input.measured, input.run.as_deref()).map_err(Failure::input)?;
    let prompts = input.workload.as_deref().map(Prompts::read).transpose().map_err(Failure::input)?;
    let requests = run.workload(prompts.as_ref()).map_err(Failure::input)?;
    if run.failed > 0 {
        say(format_args!("warning: {} requests of the measured run failed; they are left out", run.failed));
    }
    Ok(Inputs { experiment, run, requests })
}

/// How a run that did not end well is told.
pub fn failed(error: SimError) -> Failure {
    match error {
        SimError::Interrupted => Failure::Interrupted,
        SimError::Traffic(e) => Failure::input(e),
        SimError::Engine(e) => Failure::input(e),
        other => Failure::run(other),
    }
}

/// A comparison as a table.
pub fn table(comparison: &Comparison) -> String {
    let rows: Vec<Vec<String>> = comparison
        .metrics
        .iter()
        .map(|metric| {
            let error = metric.error_pct.map_or("-".into(), |error| format!("{error:+.2}"));
            vec![metric.name.to_owned(), short(metric.measured), short(metric.predicted), error]
        })
        .collect();
    columns(&["Metric", "measured", "predicted", "error (%)"], &rows)
}
