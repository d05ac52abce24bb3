//! Count, sum and sum of squares as integers: mean and deviation without a float before the last
//! division, so that the order of additions cannot show.
//!
//! Additions saturate. Saturating addition of non-negative numbers does not depend on order either, and
//! a saturated sum reports no deviation instead of a wrong one.

use crate::ratio::ratio;

/// Sums over weighted integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moments {
    count: u64,
    sum: u128,
    squares: u128,
}

/// Values below this, added fewer than [`SMALL_COUNT`] times at once, are small: 68 seconds in nanoseconds.
const SMALL_VALUE: u64 = 1 << 36;
const SMALL_COUNT: u64 = 1 << 12;
/// Additions of small values whose sums surely fit: their sum stays below 2^(36 + 12 + 16), their squares below 2^100.
const SAFE_ADDITIONS: u32 = 1 << 16;

/// Sums that are added to in every pass: small values are gathered without a look at the limits, which cannot be
/// reached before they are handed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gathered {
    total: Moments,
    recent: Recent,
}

/// Sums over few enough small values.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    count: u64,
    sum: u64,
    squares: u128,
    additions: u32,
}

/// Whether `value`, `count` times, is small enough to be gathered.
#[inline]
pub(crate) fn is_small(value: u64, count: u64) -> bool {
    value < SMALL_VALUE && count < SMALL_COUNT
}

impl Gathered {
    /// Adds `value`, `count` times, both small.
    #[inline]
    pub(crate) fn add_small(&mut self, value: u64, count: u64) {
        let product = value * count;
        self.recent.count += count;
        self.recent.sum += product;
        self.recent.squares += u128::from(product) * u128::from(value);
        self.recent.additions += 1;
        if self.recent.additions == SAFE_ADDITIONS {
            self.hand_on();
        }
    }

    /// Adds `value`, `count` times.
    #[cold]
    pub(crate) fn add(&mut self, value: u64, count: u64) {
        self.total.add(value, count);
    }

    #[cold]
    fn hand_on(&mut self) {
        let Recent { count, sum, squares, .. } = std::mem::take(&mut self.recent);
        self.total.merge(&Moments { count, sum: sum.into(), squares });
    }

    /// Count and sum of all that was added.
    pub(crate) fn so_far(&self) -> (u64, u128) {
        let (total, recent) = (&self.total, &self.recent);
        (total.count.saturating_add(recent.count), total.sum.saturating_add(recent.sum.into()))
    }

    /// All that was added.
    pub(crate) fn total(mut self) -> Moments {
        self.hand_on();
        self.total
    }

    pub(crate) fn merge(&mut self, other: Gathered) {
        self.hand_on();
        self.total.merge(&other.total());
    }
}

impl Moments {
    /// Adds `value`, `count` times.
    #[inline]
    pub(crate) fn add(&mut self, value: u64, count: u64) {
        let (v, n) = (u128::from(value), u128::from(count));
        self.count = self.count.saturating_add(count);
        self.sum = self.sum.saturating_add(v * n);
        self.squares = self.squares.saturating_add((v * v).saturating_mul(n));
    }

    pub(crate) fn merge(&mut self, other: &Moments) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = self.squares.saturating_add(other.squares);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The mean in a unit that holds `per_unit` of the summed ones. None without values.
    pub(crate) fn mean(&self, per_unit: u64) -> Option<f64> {
        ratio(self.sum, u128::from(self.count) * u128::from(per_unit))
    }

    /// The population standard deviation in the same unit. None without values, or when a sum is full.
    pub(crate) fn std(&self, per_unit: u64) -> Option<f64> {
        if self.count == 0 || self.squares == u128::MAX || self.sum == u128::MAX {
            return None;
        }
        let n = u128::from(self.count);
        // Around the whole part m of the mean, with rest r = Σx − n·m: Σ(x−m)² = Σx² − m·(Σx + r), an
        // exact integer, and n²·variance = n·Σ(x−m)² − r².
        let (m, r) = (self.sum / n, self.sum % n);
        let around = self.squares.checked_sub(m.checked_mul(self.sum.checked_add(r)?)?)?;
        let variance = match around.checked_mul(n).and_then(|scaled| scaled.checked_sub(r * r)) {
            Some(scaled) => scaled as f64 / self.count as f64 / self.count as f64,
            None => (around as f64 / self.count as f64 - (r as f64 / self.count as f64).powi(2)).max(0.0),
        };
        Some(variance.sqrt() / per_unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn population_deviation_of_four_latencies() {
        let mut m = Moments::default();
        for ms in [12, 14, 16, 18] {
            m.add(ms * 1_000_000, 1);
        }
        assert_eq!(m.mean(1_000_000), Some(15.0));
        assert_eq!(format!("{:.5}", m.std(1_000_000).unwrap()), "2.23607");
    }

    #[test]
    fn gathered_values_are_the_same_values() {
        let (mut gathered, mut plain) = (Gathered::default(), Moments::default());
        for i in 0..200_000u64 {
            let (value, count) = (i * 77_777 % SMALL_VALUE, i % 900);
            assert!(is_small(value, count));
            gathered.add_small(value, count);
            plain.add(value, count);
        }
        gathered.add_small(SMALL_VALUE - 1, SMALL_COUNT - 1);
        plain.add(SMALL_VALUE - 1, SMALL_COUNT - 1);
        gathered.add(u64::MAX, 3);
        plain.add(u64::MAX, 3);
        assert!(!is_small(SMALL_VALUE, 1) && !is_small(1, SMALL_COUNT));
        assert_eq!(gathered.total(), plain);
    }

    #[test]
    fn equal_values_have_no_deviation_at_any_size() {
        for value in [1, 12_000_000, (1 << 40) + 1] {
            let mut m = Moments::default();
            m.add(value, 4_000_000_001);
            assert_eq!((m.mean(1), m.std(1)), (Some(value as f64), Some(0.0)), "{value}");
        }
    }

    #[test]
    fn a_full_sum_reports_no_deviation() {
        let mut m = Moments::default();
        m.add(u64::MAX, u64::MAX);
        assert_eq!(m.std(1), None);
        assert_eq!(Moments::default().mean(1), None);
    }
}
