//! Exact values of one latency, one per request: eight bytes each, nothing else is kept, because exact
//! percentiles need every value and a run may have millions of requests. Which latency it is, and in
//! which unit, its owner knows.

use crate::moments::{Gathered, is_small};
use crate::percentile::{PERCENTILES, PercentileMethod};
use crate::ratio::ratio;
use crate::summary::Stats;

/// Values in the order in which requests ended, which the statistics do not depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    values: Vec<u64>,
}

impl Samples {
    /// Adds a value where it is defined.
    pub(crate) fn add(&mut self, value: Option<u64>) {
        self.values.extend(value);
    }

    pub(crate) fn merge(&mut self, other: Samples) {
        if self.values.is_empty() {
            *self = other;
        } else {
            self.values.extend(other.values);
        }
    }

    /// The statistics in a unit that holds `per_unit` of the values' own.
    pub(crate) fn stats(mut self, method: PercentileMethod, per_unit: u64) -> Stats {
        let (Some(&min), Some(&max)) = (self.values.iter().min(), self.values.iter().max()) else {
            return Stats::default();
        };
        let mut sums = Gathered::default();
        for &value in &self.values {
            match is_small(value, 1) {
                true => sums.add_small(value, 1),
                false => sums.add(value, 1),
            }
        }
        let moments = sums.total();
        let n = self.values.len() as u64;
        let positions = PERCENTILES.map(|p| method.position(n, p));
        let mut ranks: Vec<u64> = positions.iter().flat_map(|p| p.ranks()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let selected = select(&mut self.values, &ranks);
        // Every rank asked for below is one of `ranks`.
        let x = |rank| selected[ranks.partition_point(|&r| r < rank)];
        Stats {
            count: n,
            mean: moments.mean(per_unit),
            std: moments.std(per_unit),
            min: ratio(min.into(), per_unit.into()),
            max: ratio(max.into(), per_unit.into()),
            percentiles: positions.map(|p| ratio(p.of_integers(x), 100 * u128::from(per_unit))),
        }
    }
}

/// The values at ascending `ranks`: each selection leaves only the part above it to the next, so this
/// is linear where sorting would not be.
fn select(values: &mut [u64], ranks: &[u64]) -> Vec<u64> {
    let mut rest = values;
    let mut below = 0u64;
    let mut selected = Vec::with_capacity(ranks.len());
    for &rank in ranks {
        let (_, value, above) = rest.select_nth_unstable((rank - below) as usize);
        selected.push(*value);
        rest = above;
        below = rank + 1;
    }
    selected
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_ms(values: &[u64]) -> Samples {
        Samples { values: values.iter().map(|ms| ms * 1_000_000).collect() }
    }

    #[test]
    fn four_latencies_by_nearest_rank() {
        let stats = of_ms(&[18, 12, 16, 14]).stats(PercentileMethod::NearestRankRound, 1_000_000);
        assert_eq!(stats.percentiles, [16.0, 16.0, 18.0, 18.0, 18.0].map(Some));
        assert_eq!((stats.mean, stats.min, stats.max), (Some(15.0), Some(12.0), Some(18.0)));
    }

    #[test]
    fn four_latencies_interpolated() {
        let stats = of_ms(&[40, 30, 20, 10]).stats(PercentileMethod::Linear, 1_000_000);
        assert_eq!(stats.percentiles, [25.0, 32.5, 37.0, 38.5, 39.7].map(Some));
    }

    #[test]
    fn one_value_is_every_percentile_and_none_is_null() {
        let stats = of_ms(&[7]).stats(PercentileMethod::Linear, 1_000_000);
        assert_eq!(stats.percentiles, [Some(7.0); 5]);
        assert_eq!(stats.std, Some(0.0));
        assert_eq!(of_ms(&[]).stats(PercentileMethod::Linear, 1_000_000), Stats::default());
    }

    proptest! {
        #[test]
        fn selection_equals_sorting(mut values in prop::collection::vec(0u64..50, 1..60)) {
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let ranks: Vec<u64> = (0..values.len() as u64).step_by(3).collect();
            let got = select(&mut values, &ranks);
            let want: Vec<u64> = ranks.iter().map(|&r| sorted[r as usize]).collect();
            prop_assert_eq!(got, want);
        }
    }
}
