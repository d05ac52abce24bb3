//! Times over batch and length: as they were measured, in a grid with gaps, and as a pass reads them, in one
//! without.

/// Measured times in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Batch, length, time.
    pub(super) points: Vec<(u32, u32, f64)>,
}

/// A full grid over batch and length.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Surface {
    batches: Vec<f64>,
    lengths: Vec<f64>,
    /// Row by row, a row for each length.
    us: Vec<f64>,
    /// Between lengths the root of the time is straight, not the time.
    root: bool,
    /// The longest length and the largest batch that were measured.
    range: (f64, f64),
}

/// Beyond what was measured a surface goes on to these.
const LONGEST: f64 = 2_097_152.0;
const LARGEST: f64 = 4096.0;
/// Measured points by which a gap is filled.
const NEIGHBOURS: usize = 4;

impl Surface {
    /// Fills the gaps and goes on beyond the edges by the least possible time `least(batch, length)` at the
    /// efficiency of the nearest measured points. None without points.
    pub(super) fn new(measured: &Measured, root: bool, least: &dyn Fn(f64, f64) -> f64) -> Option<Surface> {
        let axis = |of: fn(&(u32, u32, f64)) -> u32, end: f64| {
            let mut values: Vec<f64> = measured.points.iter().map(|point| f64::from(of(point))).collect();
            values.push(1.0);
            values.sort_by(f64::total_cmp);
            values.dedup();
            while let Some(&last) = values.last()
                && last < end
            {
                values.push((2.0 * last).min(end));
            }
            values
        };
        let (batches, lengths) = (axis(|p| p.0, LARGEST), axis(|p| p.1, LONGEST));
        let longest = measured.points.iter().map(|point| f64::from(point.1)).fold(0.0, f64::max);
        let largest = measured.points.iter().map(|point| f64::from(point.0)).fold(0.0, f64::max);
        if measured.points.is_empty() {
            return None;
        }
        let mut known = vec![f64::NAN; batches.len() * lengths.len()];
        for (batch, length, us) in &measured.points {
            let column = batches.partition_point(|at| *at < f64::from(*batch));
            let row = lengths.partition_point(|at| *at < f64::from(*length));
            known[row * batches.len() + column] = *us;
        }
        let anchors: Vec<Anchor> = measured.points.iter().map(|point| Anchor::new(*point, least)).collect();
        let mut us = known;
        for (row, length) in lengths.iter().enumerate() {
            for (column, batch) in batches.iter().enumerate() {
                let at = &mut us[row * batches.len() + column];
                if at.is_nan() {
                    *at = least(*batch, *length) / efficiency(&anchors, *batch, *length);
                }
            }
        }
        Some(Surface { batches, lengths, us, root, range: (longest, largest) })
    }

    /// The sum of two surfaces with the same law between lengths.
    pub(super) fn plus(self, other: &Surface) -> Surface {
        let both = |a: &[f64], b: &[f64]| {
            let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
            all.sort_by(f64::total_cmp);
            all.dedup();
            all
        };
        let batches = both(&self.batches, &other.batches);
        let lengths = both(&self.lengths, &other.lengths);
        let cells = lengths.iter().flat_map(|length| batches.iter().map(move |batch| (*batch, *length)));
        let us = cells.map(|(batch, length)| self.at(batch, length) + other.at(batch, length)).collect();
        let range = (self.range.0.min(other.range.0), self.range.1.min(other.range.1));
        Surface { us, root: self.root, range, batches, lengths }
    }

    /// The same, times `factor`.
    pub(super) fn times(mut self, factor: f64) -> Surface {
        self.us.iter_mut().for_each(|us| *us *= factor);
        self
    }

    /// The time at a batch and a length, both at least 1.
    #[inline]
    pub(super) fn at(&self, batch: f64, length: f64) -> f64 {
        let (column, across) = place(&self.batches, batch);
        let (row, along) = place(&self.lengths, length);
        let width = self.batches.len();
        let line = |row: usize| {
            let cells = &self.us[row * width + column..];
            cells[0] + (cells[1] - cells[0]) * across
        };
        let (short, long) = (line(row), line(row + 1));
        if self.root {
            let root = short.sqrt() + (long.sqrt() - short.sqrt()) * along;
            root * root
        } else {
            short + (long - short) * along
        }
    }

    /// The point lies within what was measured.
    #[inline]
    pub(super) fn covers(&self, batch: f64, length: f64) -> bool {
        length <= self.range.0 && batch <= self.range.1
    }
}

/// The interval of an axis that `x` lies in, and where in it. Beyond the axis: past its end.
#[inline]
fn place(axis: &[f64], x: f64) -> (usize, f64) {
    let mut low = 0;
    let mut high = axis.len() - 1;
    while high - low > 1 {
        let middle = (low + high) / 2;
        if axis[middle] <= x { low = middle } else { high = middle }
    }
    (low, ((x - axis[low]) / (axis[low + 1] - axis[low])).max(0.0))
}

/// A measured point, by the logarithms of its place, with its efficiency.
struct Anchor {
    batch: f64,
    length: f64,
    efficiency: f64,
}

impl Anchor {
    fn new((batch, length, us): (u32, u32, f64), least: &dyn Fn(f64, f64) -> f64) -> Anchor {
        let (batch, length) = (f64::from(batch), f64::from(length));
        Anchor { batch: batch.log2(), length: length.log2(), efficiency: least(batch, length) / us }
    }
}

/// The mean efficiency of the nearest points, distances counted in octaves; the weight of a point falls to 0
/// towards the first one that is left out.
fn efficiency(anchors: &[Anchor], batch: f64, length: f64) -> f64 {
    let (batch, length) = (batch.log2(), length.log2());
    let mut nearest: Vec<(f64, f64)> = Vec::with_capacity(NEIGHBOURS + 2);
    for anchor in anchors {
        let distance = (anchor.batch - batch).hypot(anchor.length - length);
        let at = nearest.partition_point(|(other, _)| *other <= distance);
        if at <= NEIGHBOURS {
            nearest.insert(at, (distance, anchor.efficiency));
            nearest.truncate(NEIGHBOURS + 1);
        }
    }
    let support = if nearest.len() > NEIGHBOURS { nearest[NEIGHBOURS].0 } else { f64::INFINITY };
    let weight = |distance: f64| {
        let part = if support.is_finite() { (support - distance) / support } else { 1.0 };
        (part / (distance + 1e-12)).powi(2)
    };
    let of = |nearest: &[(f64, f64)], weight: &dyn Fn(f64) -> f64| {
        let total: f64 = nearest.iter().map(|(distance, _)| weight(*distance)).sum();
        nearest.iter().map(|(distance, value)| weight(*distance) * value).sum::<f64>() / total
    };
    let near = &nearest[..nearest.len().min(NEIGHBOURS)];
    let mean = of(near, &weight);
    // All at the distance of the first one left out.
    if mean.is_finite() && mean > 0.0 { mean } else { of(near, &|_| 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(root: bool) -> Surface {
        let mut measured = Measured::default();
        for batch in [1, 2, 4] {
            for length in [16, 64, 256] {
                if (batch, length) != (4, 256) {
                    measured.points.push((batch, length, f64::from(batch) * f64::from(length).powi(2)));
                }
            }
        }
        Surface::new(&measured, root, &|batch, length| 0.5 * batch * length * length).unwrap()
    }

    #[test]
    fn measured_points_are_kept_and_squares_lie_on_straight_roots() {
        let surface = squares(true);
        // But for the last digits that go with a root.
        assert!((surface.at(2.0, 64.0) / (2.0 * 64.0 * 64.0) - 1.0).abs() < 1e-12);
        assert!((surface.at(3.0, 100.0) - 3.0 * 1e4).abs() < 1e-6);
        // Straight times overshoot between 64 and 256: 16384·3/… is above 160².
        assert!(squares(false).at(1.0, 160.0) > 160.0 * 160.0);
    }

    #[test]
    fn gaps_and_what_lies_beyond_keep_the_efficiency() {
        let surface = squares(true);
        assert!((surface.at(4.0, 256.0) / (4.0 * 65_536.0) - 1.0).abs() < 1e-9);
        assert!((surface.at(8.0, 1024.0) / (8.0 * 1_048_576.0) - 1.0).abs() < 1e-9);
        assert!(surface.covers(4.0, 256.0) && !surface.covers(5.0, 16.0) && !surface.covers(1.0, 257.0));
    }

    #[test]
    fn sums_hold_at_the_points_of_both() {
        let sum = squares(false).plus(&squares(false).times(2.0));
        assert_eq!(sum.at(2.0, 64.0), 3.0 * 2.0 * 4096.0);
    }
}
