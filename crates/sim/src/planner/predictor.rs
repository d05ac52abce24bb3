//! What the next interval will bring, by what the intervals before it brought: one series of numbers each of demand, prompt
//! and output lengths.
//!
//! After ai-dynamo/dynamo components/src/dynamo/planner/core/load_predictor.py: idle intervals before the first demand do
//! not count; the Kalman filter has a level and a trend, starts at the first number without trend, is unsure of both
//! (variance 1000), and tells the level one step ahead.

use windtunnel_config::LoadPredictor;

/// Tells the next number of a series.
#[derive(Clone, Debug)]
pub(super) struct Predictor {
    kind: LoadPredictor,
    last: f64,
    filter: Option<Filter>,
}

/// A local linear trend: what is believed of level and trend, and how sure that is.
#[derive(Clone, Copy, Debug)]
struct Filter {
    level: f64,
    trend: f64,
    /// Variance of the level, covariance, variance of the trend.
    variance: (f64, f64, f64),
}

const UNSURE: f64 = 1000.0;
/// Least variances, so that a filter never divides by nothing.
const LEAST_MEASURED: f64 = 1e-9;
const LEAST_PROCESS: f64 = 1e-12;

impl Predictor {
    pub(super) fn new(kind: LoadPredictor) -> Predictor {
        Predictor { kind, last: 0.0, filter: None }
    }

    /// Takes the number of an interval that ended, and tells that of the next one.
    pub(super) fn next(&mut self, value: f64) -> f64 {
        self.last = value;
        let LoadPredictor::Kalman { level, trend, measured, log1p } = self.kind else { return self.last };
        if value == 0.0 && self.filter.is_none() {
            return 0.0;
        }
        let seen = if log1p { value.max(0.0).ln_1p() } else { value };
        let mut filter = match self.filter {
            None => Filter { level: seen, trend: 0.0, variance: (UNSURE, 0.0, UNSURE) },
            Some(believed) => believed.corrected(seen, measured.max(LEAST_MEASURED)),
        };
        filter = filter.ahead(level.max(LEAST_PROCESS), trend.max(LEAST_PROCESS));
        self.filter = Some(filter);
        if log1p { filter.level.exp_m1().max(0.0) } else { filter.level }
    }
}

impl Filter {
    /// One step on: the level moves by the trend, and both become less sure.
    fn ahead(self, level: f64, trend: f64) -> Filter {
        let (p, c, t) = self.variance;
        Filter {
            level: self.level + self.trend,
            trend: self.trend,
            variance: (p + 2.0 * c + t + level, c + t, t + trend),
        }
    }

    /// With a measured level.
    fn corrected(self, seen: f64, measured: f64) -> Filter {
        let (p, c, t) = self.variance;
        let gain = (p / (p + measured), c / (p + measured));
        let off = seen - self.level;
        Filter {
            level: self.level + gain.0 * off,
            trend: self.trend + gain.1 * off,
            variance: (p * (1.0 - gain.0), c * (1.0 - gain.0), t - gain.1 * c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: LoadPredictor, series: &[f64]) -> Vec<f64> {
        let mut predictor = Predictor::new(kind);
        series.iter().map(|value| predictor.next(*value)).collect()
    }

    #[test]
    fn constant_is_what_was() {
        assert_eq!(told(LoadPredictor::Constant, &[0.0, 3.0, 5.0]), [0.0, 3.0, 5.0]);
    }

    /// filterpy 1.4.5's KalmanFilter(dim_x=2, dim_z=1) with F [[1, 1], [0, 1]], H [[1, 0]], P 1000, Q diag(1, 0.1) and R 10.
    #[test]
    fn kalman_is_filterpys() {
        let kalman = |log1p| LoadPredictor::Kalman { level: 1.0, trend: 0.1, measured: 10.0, log1p };
        let near = |told: Vec<f64>, expected: &[f64]| {
            assert_eq!(told.len(), expected.len());
            for (told, expected) in told.iter().zip(expected) {
                assert!((told - expected).abs() < 1e-9 * expected.abs().max(1.0), "{told} {expected}");
            }
        };
        let series = [0.0, 100.0, 120.0, 140.0, 90.0, 0.0, 300.0];
        near(told(kalman(false), &series), &RAW);
        near(told(kalman(true), &series), &LOG);
    }
    const RAW: [f64; 7] = [
        0.0,
        100.0,
        129.84584783689706,
        159.41602417369236,
        87.13340512007247,
        -15.52290199661882,
        205.53756224564805,
    ];
    const LOG: [f64; 7] = [
        0.0,
        100.00000000000003,
        131.25515195848422,
        162.74630233705534,
        86.48195662744351,
        0.0,
        24.052869353960155,
    ];
}
