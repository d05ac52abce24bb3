//! A log-linear histogram of nanoseconds: exact below 1024, above that 1024 buckets per power of two.
//!
//! A bucket keeps, beside its count, the sum of its values' distances from its lower end, and answers
//! with their mean. So a value that stands alone in its bucket (fixed timing, where gaps repeat) is read
//! back exactly; otherwise the answer lies in the right bucket, less than 1/1024 of the value away.
//! Powers of two that never occur take no memory: a worker with gaps from 5 to 20 ms holds 48 KiB.

const SUB_BITS: u32 = 10;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// One octave of exact values, and one for each power of two from 2^10 to 2^63.
const OCTAVES: usize = 1 + (64 - SUB_BITS as usize);

/// Values of one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    count: u64,
    /// Σ (value − lower end of the interval), saturating.
    above_low: u64,
}

/// Counts of values, readable by rank.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    /// Empty until a value falls into it.
    octaves: [Box<[Bucket]>; OCTAVES],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { octaves: std::array::from_fn(|_| Box::default()) }
    }
}

/// Octave, bucket in it, and distance from the bucket's lower end.
#[inline]
fn place(value: u64) -> (usize, usize, u64) {
    if value < SUB_BUCKETS as u64 {
        return (0, value as usize, 0);
    }
    // At least 10 here, so the shift is from 0 to 53.
    let shift = value.ilog2() - SUB_BITS;
    let bucket = (value >> shift) as usize & (SUB_BUCKETS - 1);
    (1 + shift as usize, bucket, value & ((1 << shift) - 1))
}

/// The lower end of a bucket.
fn low(octave: usize, bucket: usize) -> u64 {
    match octave {
        0 => bucket as u64,
        _ => ((SUB_BUCKETS + bucket) as u64) << (octave - 1),
    }
}

impl Histogram {
    /// Adds `value`, `count` times.
    #[inline]
    pub(crate) fn add(&mut self, value: u64, count: u64) {
        let (octave, bucket, above_low) = place(value);
        let octave = &mut self.octaves[octave];
        if octave.is_empty() {
            *octave = vec![Bucket::default(); SUB_BUCKETS].into();
        }
        let bucket = &mut octave[bucket];
        bucket.count = bucket.count.saturating_add(count);
        // The usual case needs no look at the limits.
        let above_low = match (above_low | count) >> 32 {
            0 => above_low * count,
            _ => above_low.saturating_mul(count),
        };
        bucket.above_low = bucket.above_low.saturating_add(above_low);
    }

    pub(crate) fn merge(&mut self, other: Histogram) {
        for (mine, theirs) in self.octaves.iter_mut().zip(other.octaves) {
            if mine.is_empty() {
                *mine = theirs;
                continue;
            }
            for (a, b) in mine.iter_mut().zip(theirs) {
                a.count = a.count.saturating_add(b.count);
                a.above_low = a.above_low.saturating_add(b.above_low);
            }
        }
    }

    /// The values at `ranks`, which ascend and count from 0 for the smallest. A rank beyond the last
    /// value reads the last value.
    pub(crate) fn at_ranks(&self, ranks: &[u64]) -> Vec<u64> {
        let mut values = Vec::with_capacity(ranks.len());
        let (mut seen, mut last) = (0u64, 0u64);
        for (o, octave) in self.octaves.iter().enumerate() {
            for (b, bucket) in octave.iter().enumerate().filter(|(_, bucket)| bucket.count > 0) {
                seen += bucket.count;
                last = low(o, b) + bucket.above_low / bucket.count;
                while values.len() < ranks.len() && ranks[values.len()] < seen {
                    values.push(last);
                }
                if values.len() == ranks.len() {
                    return values;
                }
            }
        }
        values.resize(ranks.len(), last);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_tile_the_whole_range() {
        for value in [0, 1, 1023, 1024, 1025, 2047, 2048, 12_000_000, u64::MAX] {
            let (octave, bucket, above) = place(value);
            assert!(octave < OCTAVES);
            assert_eq!(low(octave, bucket) + above, value);
        }
    }

    #[test]
    fn a_value_alone_in_its_bucket_is_exact() {
        let mut h = Histogram::default();
        h.add(12_000_000, 9);
        h.add(72_000_001, 1);
        assert_eq!(h.at_ranks(&[0, 8, 9, 10]), [12_000_000, 12_000_000, 72_000_001, 72_000_001]);
    }

    proptest! {
        #[test]
        fn every_rank_is_within_the_documented_error(values in prop::collection::vec(0u64..1 << 45, 1..200)) {
            let mut h = Histogram::default();
            values.iter().for_each(|&v| h.add(v, 1));
            let mut sorted = values;
            sorted.sort_unstable();
            let ranks: Vec<u64> = (0..sorted.len() as u64).collect();
            let read = h.at_ranks(&ranks);
            prop_assert!(read.is_sorted());
            for (got, want) in read.iter().zip(&sorted) {
                prop_assert!(got.abs_diff(*want) * 1024 <= *want, "{got} for {want}");
            }
        }
    }
}
