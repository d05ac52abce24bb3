//! Errors of predictions, and their statistics. An error is predicted / measured − 1, in percent.

use serde::Serialize;
use std::collections::BTreeMap;

/// Statistics over the errors of a set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// How many.
    pub n: usize,
    /// Median of |error|.
    pub median_abs_pct: f64,
    /// Mean of |error|.
    pub mean_abs_pct: f64,
    /// Largest |error|.
    pub max_abs_pct: f64,
    /// Median of the error: below 0, predictions are too small.
    pub median_signed_pct: f64,
    /// Mean of the error.
    pub mean_signed_pct: f64,
}

impl Errors {
    /// None of nothing.
    pub fn of(errors_pct: &[f64]) -> Option<Errors> {
        let n = errors_pct.len();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / n as f64;
        let absolute: Vec<f64> = errors_pct.iter().map(|error| error.abs()).collect();
        Some(Errors {
            n,
            median_abs_pct: median(&absolute)?,
            mean_abs_pct: mean(&absolute),
            max_abs_pct: absolute.iter().copied().fold(0.0, f64::max),
            median_signed_pct: median(errors_pct)?,
            mean_signed_pct: mean(errors_pct),
        })
    }
}

/// The errors of measurements that have something in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Partition {
    /// What: by field, its value.
    pub key: BTreeMap<&'static str, String>,
    /// Their errors.
    #[serde(flatten)]
    pub errors: Errors,
}

impl Partition {
    /// The partitions of measurements, each given by its keys and its error, in the order of the keys.
    pub fn all(rows: impl IntoIterator<Item = (BTreeMap<&'static str, String>, f64)>) -> Vec<Partition> {
        let mut parts: BTreeMap<BTreeMap<&'static str, String>, Vec<f64>> = BTreeMap::new();
        for (key, error) in rows {
            parts.entry(key).or_default().push(error);
        }
        parts
            .into_iter()
            .filter_map(|(key, errors)| Some(Partition { key, errors: Errors::of(&errors)? }))
            .collect()
    }
}

/// The middle value, or the mean of the two.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let above = *sorted.get(sorted.len() / 2)?;
    let below = sorted[(sorted.len() - 1) / 2];
    Some((below + above) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_a_few() {
        let errors = Errors::of(&[-10.0, 2.0, 4.0, 8.0]).unwrap();
        assert_eq!((errors.n, errors.median_abs_pct, errors.mean_abs_pct), (4, 6.0, 6.0));
        assert_eq!((errors.max_abs_pct, errors.median_signed_pct, errors.mean_signed_pct), (10.0, 3.0, 1.0));
        assert_eq!(Errors::of(&[-5.0]).unwrap().median_signed_pct, -5.0);
        assert_eq!(Errors::of(&[]), None);
    }

    #[test]
    fn partitions_are_by_key_in_its_order() {
        let row = |system: &str, error| (BTreeMap::from([("system", system.to_owned())]), error);
        let parts = Partition::all([row("b", 1.0), row("a", 3.0), row("b", 3.0)]);
        let seen: Vec<_> = parts.iter().map(|part| (part.key["system"].as_str(), part.errors.n)).collect();
        assert_eq!(seen, [("a", 1), ("b", 2)]);
        assert_eq!(parts[1].errors.mean_abs_pct, 2.0);
    }
}
