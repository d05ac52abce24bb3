//! A measured run beside what the simulation says of the same requests.

use crate::measured::{MeasuredRequest, MeasuredRun};
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::Experiment;
use windtunnel_report::RequestRecord;
use windtunnel_sim::{Options, SimError};
use windtunnel_traffic::{Arrival, WorkloadSource};

/// What is compared: of each request, its TTFT, its TPOT and its E2E; of all, how long they took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Requests compared.
    pub requests: usize,
    /// Metrics, in the order in which they are shown.
    pub metrics: Vec<Metric>,
}

/// One metric, measured and predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// Its name in prediction.json.
    pub name: &'static str,
    /// What was measured.
    pub measured: f64,
    /// What is predicted.
    pub predicted: f64,
    /// (predicted − measured) / measured, in percent. None where nothing was measured.
    pub error_pct: Option<f64>,
}

impl Comparison {
    /// A metric by its name.
    pub fn get(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }
}

/// The times of one request in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub arrival: f64,
    pub first: f64,
    pub last: f64,
    pub output_tokens: u32,
}

impl Times {
    pub fn measured(request: &MeasuredRequest) -> Times {
        Times {
            arrival: request.arrival.as_ms(),
            first: request.first_token.as_ms(),
            last: request.last_token.as_ms(),
            output_tokens: request.output_tokens,
        }
    }

    fn predicted(record: &RequestRecord) -> Option<Times> {
        Some(Times {
            arrival: record.arrival.as_ms(),
            first: record.first_token?.as_ms(),
            last: record.last_token?.as_ms(),
            output_tokens: record.output_tokens,
        })
    }

    pub fn ttft(&self) -> f64 {
        self.first - self.arrival
    }

    pub fn decode(&self) -> f64 {
        self.last - self.first
    }

    /// None with one token.
    fn tpot(&self) -> Option<f64> {
        (self.output_tokens > 1).then(|| self.decode() / f64::from(self.output_tokens - 1))
    }
}

/// The experiment with the requests of a measured run instead of its own.
pub fn with_requests(experiment: &Experiment, run: &MeasuredRun, requests: &Arc<[Arrival]>) -> Experiment {
    let mut experiment = experiment.clone();
    experiment.workload.source = WorkloadSource::Given(requests.clone());
    experiment.workload.pace = run.pace;
    experiment.workload.max_virtual_time = None;
    experiment
}

/// Predicts a run, request by request. None for a request that did not complete.
pub(crate) fn predict(
    experiment: &Experiment,
    requests: usize,
    interrupt: &Arc<AtomicBool>,
) -> Result<Vec<Option<Times>>, SimError> {
    let options = Options { capture: true, interrupt: interrupt.clone(), ..Options::default() };
    let report = windtunnel_sim::run(experiment, options)?;
    let mut times = vec![None; requests];
    for record in report.completed() {
        if let Some(slot) = times.get_mut(record.id.0 as usize) {
            *slot = Times::predicted(record);
        }
    }
    Ok(times)
}

/// Compares a measured run with a prediction of `experiment`, which must have its requests.
///
/// # Errors
/// What [`windtunnel_sim::run`] says.
pub fn compare(
    experiment: &Experiment,
    run: &MeasuredRun,
    interrupt: &Arc<AtomicBool>,
) -> Result<Comparison, SimError> {
    let predicted = predict(experiment, run.requests.len(), interrupt)?;
    Ok(comparison(run, &predicted, 0..run.requests.len()))
}

/// Compares some of the requests, by their order of arrival. A request that the prediction did not complete is left out.
pub(crate) fn comparison(run: &MeasuredRun, predicted: &[Option<Times>], range: Range<usize>) -> Comparison {
    let pairs: Vec<(Times, Times)> =
        range.filter_map(|i| Some((Times::measured(&run.requests[i]), predicted[i]?))).collect();
    let mut metrics = Vec::new();
    let mut add = |name, measured: Option<f64>, predicted: Option<f64>| {
        if let (Some(measured), Some(predicted)) = (measured, predicted) {
            let error_pct = (measured > 0.0).then(|| (predicted - measured) / measured * 100.0);
            metrics.push(Metric { name, measured, predicted, error_pct });
        }
    };
    let statistics: [Statistic; 4] =
        [mean, |x| quantile(x, 0.5), |x| quantile(x, 0.9), |x| quantile(x, 0.99)];
    for (names, of) in LATENCIES {
        let measured = sorted(pairs.iter().filter_map(|pair| of(&pair.0)));
        let predicted = sorted(pairs.iter().filter_map(|pair| of(&pair.1)));
        for (name, statistic) in names.into_iter().zip(statistics) {
            add(name, statistic(&measured), statistic(&predicted));
        }
    }
    let of_both = |of: fn(&[&Times]) -> Option<f64>| {
        let all = |side: fn(&(Times, Times)) -> &Times| of(&pairs.iter().map(side).collect::<Vec<_>>());
        (all(|pair| &pair.0), all(|pair| &pair.1))
    };
    for (name, of) in
        [("duration_ms", duration as fn(&[&Times]) -> Option<f64>), ("output_throughput_tok_s", throughput)]
    {
        let (measured, predicted) = of_both(of);
        add(name, measured, predicted);
    }
    Comparison { requests: pairs.len(), metrics }
}

/// A latency of one request, in milliseconds.
type Latency = fn(&Times) -> Option<f64>;

/// What is made of sorted values.
type Statistic = fn(&[f64]) -> Option<f64>;

/// The latencies that are compared, with the names of their mean, median and two percentiles.
const LATENCIES: [([&str; 4], Latency); 3] = [
    (["mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms"], |times| Some(times.ttft())),
    (["mean_tpot_ms", "median_tpot_ms", "p90_tpot_ms", "p99_tpot_ms"], Times::tpot),
    (["mean_e2e_latency_ms", "median_e2e_latency_ms", "p90_e2e_latency_ms", "p99_e2e_latency_ms"], |times| {
        Some(times.last - times.arrival)
    }),
];

/// First arrival to last token.
fn duration(times: &[&Times]) -> Option<f64> {
    let start = times.iter().map(|times| times.arrival).min_by(f64::total_cmp)?;
    let end = times.iter().map(|times| times.last).max_by(f64::total_cmp)?;
    Some(end - start)
}

fn throughput(times: &[&Times]) -> Option<f64> {
    let tokens: f64 = times.iter().map(|times| f64::from(times.output_tokens)).sum();
    duration(times).filter(|&duration| duration > 0.0).map(|duration| tokens / duration * 1e3)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Linearly interpolated between neighbours, numpy's default.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = last as f64 * share;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}
