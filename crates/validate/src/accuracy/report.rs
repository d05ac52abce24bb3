//! Errors of many predictions, as a table and as JSON.

use super::Errors;
use super::errors::median;
use super::run::Outcome;
use serde::Serialize;
use std::collections::BTreeMap;

/// Errors of both quantities. None where nothing was predicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Both {
    /// Time per output token.
    pub tpot: Option<Errors>,
    /// Time to first token.
    pub ttft: Option<Errors>,
}

impl Both {
    fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Both {
        let (mut tpot, mut ttft) = (Vec::new(), Vec::new());
        for outcome in outcomes {
            if let Ok(times) = &outcome.predicted {
                tpot.push((times.tpot_ms / outcome.point.tpot_ms - 1.0) * 100.0);
                ttft.push((times.ttft_ms / outcome.point.ttft_ms - 1.0) * 100.0);
            }
        }
        Both { tpot: Errors::of(&tpot), ttft: Errors::of(&ttft) }
    }
}

/// What rows are put together by, and its value of a row.
type Way = (&'static str, fn(&Outcome) -> String);

/// Rows that belong together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Partition {
    /// By what: backend, system, model or precision.
    pub by: &'static str,
    /// Its value.
    pub key: String,
    /// Measurements.
    pub measured: usize,
    /// Their errors.
    #[serde(flatten)]
    pub errors: Both,
}

/// How well the order of deployments by throughput per accelerator is told, within a model and accelerator: Spearman's
/// rank correlation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Order {
    /// Models and accelerators with five deployments or more.
    pub groups: usize,
    /// The median of their correlations.
    pub median: Option<f64>,
    /// The mean, each group by the number of its deployments.
    pub mean: Option<f64>,
    /// The least.
    pub least: Option<f64>,
}

/// Fewer have no order to speak of.
const LEAST_GROUP: usize = 5;

impl Order {
    fn of(outcomes: &[&Outcome]) -> Order {
        let mut groups: BTreeMap<(&str, &str), Vec<(f64, f64)>> = BTreeMap::new();
        for outcome in outcomes {
            if let Ok(times) = &outcome.predicted {
                let point = &outcome.point;
                let measured = point.throughput(point.ttft_ms, point.tpot_ms);
                let predicted = point.throughput(times.ttft_ms, times.tpot_ms);
                groups.entry((&point.model, &point.system)).or_default().push((measured, predicted));
            }
        }
        let large = groups.values().filter(|pairs| pairs.len() >= LEAST_GROUP);
        let found: Vec<(f64, f64)> = large.map(|pairs| (spearman(pairs), pairs.len() as f64)).collect();
        let weight: f64 = found.iter().map(|(_, n)| n).sum();
        let each: Vec<f64> = found.iter().map(|(rho, _)| *rho).collect();
        Order {
            groups: found.len(),
            median: median(&each),
            mean: (weight > 0.0).then(|| found.iter().map(|(rho, n)| rho * n).sum::<f64>() / weight),
            least: each.iter().copied().reduce(f64::min),
        }
    }
}

impl Order {
    /// For people, where there is any.
    pub fn text(&self) -> Option<String> {
        let Order { groups, median, mean, least } = self;
        let (median, mean, least) = ((*median)?, (*mean)?, (*least)?);
        Some(format!(
            "Order by throughput per accelerator within a model and accelerator ({groups} of them), Spearman: median \
             {median:.3}, mean {mean:.3}, least {least:.3}"
        ))
    }
}

/// The correlation of the ranks of pairs.
fn spearman(pairs: &[(f64, f64)]) -> f64 {
    let first = ranks(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let second = ranks(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    let middle = (pairs.len() as f64 - 1.0) / 2.0;
    let product =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum() };
    product(&first, &second) / (product(&first, &first) * product(&second, &second)).sqrt()
}

/// The rank of each value, from 0; equal ones share the middle of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: f64| {
        let below = values.iter().filter(|other| **other < value).count();
        let equal = values.iter().filter(|other| **other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    values.iter().map(|value| rank(*value)).collect()
}

/// Why measurements have no prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uncovered {
    /// Engine, accelerator, model and precision.
    pub key: String,
    /// Measurements.
    pub n: usize,
    /// What was said of the first.
    pub why: String,
}

/// Errors over a file of measured deployments. Aggregated ones only; the others stand apart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PointsReport {
    /// Aggregated measurements.
    pub measured: usize,
    /// Of those, predicted.
    pub predicted: usize,
    /// Rows with separate prefill and decode workers.
    pub disaggregated: usize,
    /// All errors.
    pub overall: Both,
    /// How well throughput per accelerator is ordered.
    pub order: Order,
    /// The same by backend, system, model and precision.
    pub partitions: Vec<Partition>,
    /// What was not predicted.
    pub uncovered: Vec<Uncovered>,
}

impl PointsReport {
    /// Of all outcomes.
    pub fn new(outcomes: &[Outcome]) -> PointsReport {
        let aggregated: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| !outcome.point.disaggregated).collect();
        let mut partitions = Vec::new();
        let ways: [Way; 4] = [
            ("backend", |outcome| outcome.point.backend.clone()),
            ("system", |outcome| outcome.point.system.clone()),
            ("model", |outcome| outcome.point.model.clone()),
            ("precision", |outcome| outcome.point.precision.clone()),
        ];
        for (by, key) in ways {
            let mut groups: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
            for &outcome in &aggregated {
                groups.entry(key(outcome)).or_default().push(outcome);
            }
            partitions.extend(groups.into_iter().map(|(key, group)| Partition {
                by,
                measured: group.len(),
                errors: Both::of(group.into_iter()),
                key: if key.is_empty() { "as the checkpoint".into() } else { key },
            }));
        }
        let mut uncovered: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for outcome in &aggregated {
            if let Err(why) = &outcome.predicted {
                let point = &outcome.point;
                let key = format!("{} {} {} {}", point.backend, point.system, point.model, point.precision);
                uncovered.entry(key).or_insert_with(|| (0, why.clone())).0 += 1;
            }
        }
        PointsReport {
            measured: aggregated.len(),
            predicted: aggregated.iter().filter(|outcome| outcome.predicted.is_ok()).count(),
            disaggregated: outcomes.len() - aggregated.len(),
            overall: Both::of(aggregated.iter().copied()),
            order: Order::of(&aggregated),
            partitions,
            uncovered: uncovered.into_iter().map(|(key, (n, why))| Uncovered { key, n, why }).collect(),
        }
    }

    /// The header of [`rows`](Self::rows).
    pub const HEADER: [&str; 9] =
        ["", "rows", "told", "TPOT |%|", "mean |%|", "±%", "TTFT |%|", "mean |%|", "±%"];

    /// Median and mean of |error| and median of the error, in percent, of TPOT and of TTFT: of all, and by backend,
    /// system, model and precision.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |by: &str, key: &str, measured: usize, errors: &Both| {
            let one = |errors: &Option<Errors>| match errors {
                Some(errors) => [errors.median_abs_pct, errors.mean_abs_pct, errors.median_signed_pct]
                    .map(|value| format!("{value:.1}")),
                None => ["-", "-", "-"].map(str::to_owned),
            };
            let told = errors.tpot.as_ref().map_or(0, |errors| errors.n);
            let mut cells = vec![format!("{by} {key}"), measured.to_string(), told.to_string()];
            cells.extend(one(&errors.tpot));
            cells.extend(one(&errors.ttft));
            cells
        };
        let mut rows = vec![row("all", "", self.measured, &self.overall)];
        rows.extend(self.partitions.iter().map(|part| row(part.by, &part.key, part.measured, &part.errors)));
        rows
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = windtunnel_report::columns(&PointsReport::HEADER, &self.rows());
        for uncovered in &self.uncovered {
            text += &format!("\nnot covered: {} rows of {}: {}", uncovered.n, uncovered.key, uncovered.why);
        }
        if let Some(order) = self.order.text() {
            text += &format!("\n{order}");
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_correlation_of_a_few() {
        // 1 − 6·Σd²/(n(n² − 1)) without ties: d = 0, 1, −1, 0.
        assert_eq!(spearman(&[(1.0, 10.0), (2.0, 30.0), (3.0, 20.0), (4.0, 40.0)]), 0.8);
        assert_eq!(spearman(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), -1.0);
        assert_eq!(ranks(&[5.0, 1.0, 5.0]), [1.5, 0.0, 1.5]);
    }
}
