//! Where a percentile lies in a sorted list. Integer arithmetic, so that every place that needs a
//! percentile (exact samples, the gap histogram, rates in reverse order) picks the same one. How the
//! sorted list is kept is not known here.

/// How a percentile is read from a sorted list of n values, x\[0\] to x\[n−1\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PercentileMethod {
    /// Linear interpolation at position (n−1)·p/100, numpy's default.
    #[default]
    Linear,
    /// x\[round((n−1)·p/100)\], half away from zero: what `semantics: aisimulate_0_13` compares with.
    NearestRankRound,
}

/// The percentiles of every report, ascending.
pub(crate) const PERCENTILES: [u64; 5] = [50, 75, 90, 95, 99];

/// A percentile's place: `x[below] + (x[below + 1] − x[below]) · hundredths / 100`. With `hundredths` 0
/// nothing beyond `below` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub below: u64,
    pub hundredths: u64,
}

impl PercentileMethod {
    /// Its name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            PercentileMethod::Linear => "linear",
            PercentileMethod::NearestRankRound => "nearest_rank_round",
        }
    }

    /// The place of percentile `p` (0 to 100) among `n` values, `n` at least 1.
    pub(crate) fn position(self, n: u64, p: u64) -> Position {
        let scaled = u128::from(n - 1) * u128::from(p);
        // At most n − 1, so both casts are exact.
        match self {
            PercentileMethod::Linear => {
                Position { below: (scaled / 100) as u64, hundredths: (scaled % 100) as u64 }
            }
            PercentileMethod::NearestRankRound => {
                Position { below: ((scaled + 50) / 100) as u64, hundredths: 0 }
            }
        }
    }
}

impl Position {
    /// The ranks that must be known to read this percentile.
    pub(crate) fn ranks(self) -> impl Iterator<Item = u64> {
        let above = (self.hundredths > 0).then_some(self.below + 1);
        std::iter::once(self.below).chain(above)
    }

    /// The percentile of integers, given x at a rank, in hundredths of their unit: exact.
    pub(crate) fn of_integers(self, x: impl Fn(u64) -> u64) -> u128 {
        let low = u128::from(x(self.below));
        if self.hundredths == 0 {
            return low * 100;
        }
        let high = u128::from(x(self.below + 1));
        low * 100 + (high - low) * u128::from(self.hundredths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: PercentileMethod, values: &[u64], p: u64) -> u128 {
        method.position(values.len() as u64, p).of_integers(|rank| values[rank as usize])
    }

    #[test]
    fn linear_is_numpys_default() {
        // numpy.percentile([10, 20, 30, 40], [50, 75, 90, 95, 99]) = 25, 32.5, 37, 38.5, 39.7
        let values = [10, 20, 30, 40];
        let got: Vec<_> = PERCENTILES.iter().map(|&p| of(PercentileMethod::Linear, &values, p)).collect();
        assert_eq!(got, [2500, 3250, 3700, 3850, 3970]);
    }

    #[test]
    fn nearest_rank_rounds_half_away_from_zero() {
        // (4−1)·0.5 = 1.5 → 2; 2.25 → 2; 2.7 → 3.
        let values = [12, 14, 16, 18];
        let got: Vec<_> =
            PERCENTILES.iter().map(|&p| of(PercentileMethod::NearestRankRound, &values, p)).collect();
        assert_eq!(got, [1600, 1600, 1800, 1800, 1800]);
    }

    #[test]
    fn one_value_is_every_percentile() {
        for method in [PercentileMethod::Linear, PercentileMethod::NearestRankRound] {
            assert!(PERCENTILES.iter().all(|&p| of(method, &[7], p) == 700));
        }
    }
}
