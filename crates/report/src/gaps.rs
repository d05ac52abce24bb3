//! Inter-token gaps of one collector: entered once per pass with the number of requests that had that
//! gap, read as two distributions, ITL and output throughput per user.
//!
//! This is the one place of the report that is called per pass, so it must stay near 10 ns. Equal gaps
//! in a row (fixed timing) are gathered first and cost less.

use crate::histogram::Histogram;
use crate::moments::{Gathered, is_small};
use crate::percentile::{PERCENTILES, PercentileMethod};
use crate::ratio::ratio;
use crate::summary::Stats;
use windtunnel_engine::Nanos;

/// A gap of one nanosecond, as a rate in micro-tokens per second.
const MICRO_RATE: u64 = 1_000_000_000_000_000;

/// From this gap on, in nanoseconds, rates are small numbers (see [`is_small`]).
const SHORT: u64 = 15_000;

const MICROS_PER_TOKEN: u64 = 1_000_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// The rate of one token per gap, in tokens per second.
fn rate(gap: u64) -> f64 {
    1e9 / gap as f64
}

/// All gaps seen so far.
#[derive(Clone, Debug)]
pub(crate) struct Gaps {
    /// The gap of the last call, and how many of it are not entered yet.
    last: u64,
    pending: u64,
    entered: Entered,
}

#[derive(Clone, Debug)]
struct Entered {
    gaps: Gathered,
    /// Micro-tokens per second of every gap above zero, rounded to the nearest.
    rates: Gathered,
    min: u64,
    max: u64,
    /// Smallest gap above zero.
    min_above_zero: u64,
    histogram: Histogram,
}

impl Default for Gaps {
    fn default() -> Self {
        let entered = Entered {
            gaps: Gathered::default(),
            rates: Gathered::default(),
            min: u64::MAX,
            max: 0,
            min_above_zero: u64::MAX,
            histogram: Histogram::default(),
        };
        Gaps { last: 0, pending: 0, entered }
    }
}

impl Gaps {
    #[inline]
    pub(crate) fn add(&mut self, gap: Nanos, count: u64) {
        if gap.0 == self.last {
            self.pending = self.pending.saturating_add(count);
            return;
        }
        self.entered.add(self.last, self.pending);
        (self.last, self.pending) = (gap.0, count);
    }

    fn settle(&mut self) {
        self.entered.add(self.last, self.pending);
        self.pending = 0;
    }

    /// How many there are, and their sum in nanoseconds.
    pub(crate) fn so_far(&self) -> (u64, u128) {
        let (count, sum) = self.entered.gaps.so_far();
        let pending = u128::from(self.pending) * u128::from(self.last);
        (count.saturating_add(self.pending), sum.saturating_add(pending))
    }

    pub(crate) fn merge(&mut self, mut other: Gaps) {
        self.settle();
        other.settle();
        self.entered.merge(other.entered);
    }

    /// (ITL in ms, output tokens per second and user).
    pub(crate) fn stats(mut self, method: PercentileMethod) -> (Stats, Stats) {
        self.settle();
        self.entered.stats(method)
    }
}

impl Entered {
    #[inline]
    fn add(&mut self, gap: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.min = self.min.min(gap);
        self.max = self.max.max(gap);
        if !is_small(gap, count) || gap < SHORT {
            return self.add_unusual(gap, count);
        }
        self.min_above_zero = self.min_above_zero.min(gap);
        self.gaps.add_small(gap, count);
        self.rates.add_small((MICRO_RATE + gap / 2) / gap, count);
        self.histogram.add(gap, count);
    }

    /// A gap of minutes or of microseconds, whose rate or square is large.
    #[cold]
    fn add_unusual(&mut self, gap: u64, count: u64) {
        self.gaps.add(gap, count);
        self.histogram.add(gap, count);
        if gap > 0 {
            self.min_above_zero = self.min_above_zero.min(gap);
            self.rates.add((MICRO_RATE + gap / 2) / gap, count);
        }
    }

    fn merge(&mut self, other: Entered) {
        self.gaps.merge(other.gaps);
        self.rates.merge(other.rates);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.min_above_zero = self.min_above_zero.min(other.min_above_zero);
        self.histogram.merge(other.histogram);
    }

    fn stats(&self, method: PercentileMethod) -> (Stats, Stats) {
        (self.gap_stats(method), self.rate_stats(method))
    }

    fn gap_stats(&self, method: PercentileMethod) -> Stats {
        let gaps = self.gaps.total();
        let n = gaps.count();
        if n == 0 {
            return Stats::default();
        }
        let positions = PERCENTILES.map(|p| method.position(n, p));
        let ranks = ascending(positions.iter().flat_map(|p| p.ranks()));
        let values = self.histogram.at_ranks(&ranks);
        let x = |rank| self.exact_ends(n, rank, lookup(&ranks, &values, rank));
        Stats {
            count: n,
            mean: gaps.mean(NANOS_PER_MS),
            std: gaps.std(NANOS_PER_MS),
            min: ratio(self.min.into(), NANOS_PER_MS.into()),
            max: ratio(self.max.into(), NANOS_PER_MS.into()),
            percentiles: positions.map(|p| ratio(p.of_integers(x), 100 * u128::from(NANOS_PER_MS))),
        }
    }

    fn rate_stats(&self, method: PercentileMethod) -> Stats {
        let rates = self.rates.total();
        let n = rates.count();
        if n == 0 {
            return Stats::default();
        }
        // The fastest rate is the smallest gap: rank r of the rates is rank (all − 1 − r) of the gaps.
        let all = self.gaps.total().count();
        let mirrored = |rank: u64| all - 1 - rank;
        let positions = PERCENTILES.map(|p| method.position(n, p));
        let ranks = ascending(positions.iter().flat_map(|p| p.ranks()).map(mirrored));
        let values = self.histogram.at_ranks(&ranks);
        let x = |rank| {
            let gap = lookup(&ranks, &values, mirrored(rank)).max(self.min_above_zero);
            rate(if rank == n - 1 { self.min_above_zero } else { self.exact_ends(all, mirrored(rank), gap) })
        };
        let (min, max) = (rate(self.max), rate(self.min_above_zero));
        Stats {
            count: n,
            // Each rate was rounded to a micro-token, which may lead just outside the exact ends.
            mean: rates.mean(MICROS_PER_TOKEN).map(|mean| mean.clamp(min, max)),
            std: rates.std(MICROS_PER_TOKEN),
            min: Some(min),
            max: Some(max),
            percentiles: positions.map(|p| {
                let low = x(p.below);
                let above = if p.hundredths == 0 { low } else { x(p.below + 1) };
                Some((low + (above - low) * (p.hundredths as f64 / 100.0)).min(above))
            }),
        }
    }

    /// The first and the last value are known exactly; the histogram is asked for the others.
    fn exact_ends(&self, n: u64, rank: u64, read: u64) -> u64 {
        match rank {
            0 => self.min,
            last if last == n - 1 => self.max,
            _ => read,
        }
    }
}

fn ascending(ranks: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut ranks: Vec<u64> = ranks.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The value read at `rank`, which is one of `ranks`.
fn lookup(ranks: &[u64], values: &[u64], rank: u64) -> u64 {
    let at = ranks.partition_point(|&r| r < rank);
    values.get(at).copied().unwrap_or_default()
}
