//! Times along one axis: as they were measured, and as a pass reads them.

/// Measured times in microseconds by position, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// None without points.
    pub(super) fn new(points: impl IntoIterator<Item = (u32, f64)>) -> Option<Curve> {
        let points: Vec<(f64, f64)> = points.into_iter().map(|(at, us)| (f64::from(at), us)).collect();
        (!points.is_empty()).then_some(Curve { points })
    }

    /// The time at `x`: between two points by a straight line; beyond the last ones by the least possible
    /// time `least` at the efficiency that the `tail` outermost points have (their median).
    pub(super) fn at(&self, x: f64, least: &dyn Fn(f64) -> f64, tail: usize) -> f64 {
        let points = &self.points;
        let above = points.partition_point(|(at, _)| *at < x);
        if let Some((at, us)) = points.get(above)
            && *at == x
        {
            return *us;
        }
        let tail = tail.min(points.len());
        let edge = match above {
            0 => &points[..tail],
            n if n == points.len() => &points[n - tail..],
            n => {
                let ((x0, y0), (x1, y1)) = (points[n - 1], points[n]);
                return y0 + (y1 - y0) * ((x - x0) / (x1 - x0));
            }
        };
        let mut slower: Vec<f64> = edge.iter().map(|(at, us)| us / least(*at)).collect();
        slower.sort_by(f64::total_cmp);
        let middle = slower.len() / 2;
        // The median of the efficiencies, of which these are the inverses.
        let factor = if slower.len() % 2 == 1 {
            slower[middle]
        } else {
            2.0 / (1.0 / slower[middle - 1] + 1.0 / slower[middle])
        };
        least(x) * factor
    }

    /// Where it was measured.
    pub(super) fn positions(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|(at, _)| *at)
    }

    /// The range that was measured.
    pub(super) fn range(&self) -> (f64, f64) {
        (self.points[0].0, self.points[self.points.len() - 1].0)
    }
}

/// Positions up to which a line holds a value for every whole number.
const DENSE: usize = 4096;

/// A function of a whole number from 0 on that is straight between its knots; after the last one it goes on
/// as between the last two.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    dense: Vec<f64>,
    knots: Vec<(f64, f64)>,
}

impl Line {
    /// Of the values at `knots`, of which there are at least two.
    pub(super) fn new(mut knots: Vec<f64>, value: impl Fn(f64) -> f64) -> Line {
        knots.sort_by(f64::total_cmp);
        knots.dedup();
        let knots: Vec<(f64, f64)> = knots.into_iter().map(|at| (at, value(at))).collect();
        let mut line = Line { dense: Vec::new(), knots };
        line.dense = (0..=DENSE).map(|at| line.between(at as f64)).collect();
        line
    }

    #[inline]
    pub(super) fn at(&self, x: u64) -> f64 {
        match self.dense.get(x as usize) {
            Some(us) => *us,
            None => self.between(x as f64),
        }
    }

    fn between(&self, x: f64) -> f64 {
        let last = self.knots.len() - 1;
        let above = self.knots.partition_point(|(at, _)| *at < x).clamp(1, last.max(1));
        let ((x0, y0), (x1, y1)) = (self.knots[above - 1], self.knots[above.min(last)]);
        if x1 > x0 { (y0 + (y1 - y0) * ((x - x0) / (x1 - x0))).max(0.0) } else { y0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_its_ends_a_curve_keeps_its_efficiency() {
        let curve = Curve::new([(1, 10.0), (2, 12.0), (4, 20.0)]).unwrap();
        let least = |x: f64| 2.0 * x;
        assert_eq!(curve.at(2.0, &least, 3), 12.0);
        assert_eq!(curve.at(3.0, &least, 3), 16.0);
        // The least times are 2, 4 and 8; the efficiencies 0.2, 1/3 and 0.4, their median 1/3: 2·8·3.
        assert_eq!(curve.at(8.0, &least, 3), 48.0);
        // The efficiency of the last point alone is 0.4: 2·8/0.4.
        assert_eq!(curve.at(8.0, &least, 1), 40.0);
    }

    #[test]
    fn a_line_is_straight_between_its_knots_and_after_them() {
        let line = Line::new(vec![0.0, 10.0, 6000.0], |x| if x > 10.0 { 600.0 + x } else { x });
        assert_eq!((line.at(0), line.at(5), line.at(10)), (0.0, 5.0, 10.0));
        assert_eq!(line.at(6000), 6600.0);
        let slope = (6600.0 - 10.0) / 5990.0;
        assert!((line.at(12_000) - (6600.0 + 6000.0 * slope)).abs() < 1e-6);
    }
}
