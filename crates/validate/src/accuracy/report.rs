//! Errors of many predictions, as a table and as JSON.

use super::Errors;
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
            partitions,
            uncovered: uncovered.into_iter().map(|(key, (n, why))| Uncovered { key, n, why }).collect(),
        }
    }

    /// For people.
    pub fn table(&self) -> String {
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
        let header = ["", "rows", "told", "TPOT |%|", "mean |%|", "±%", "TTFT |%|", "mean |%|", "±%"];
        let mut text = windtunnel_report::columns(&header, &rows);
        for uncovered in &self.uncovered {
            text += &format!("\nnot covered: {} rows of {}: {}", uncovered.n, uncovered.key, uncovered.why);
        }
        text + "\n"
    }
}
