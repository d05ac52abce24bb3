//! The times of a trace: checked, shifted so that the first is 0, divided by the speedup, rounded to
//! whole nanoseconds. One rule for every file format.

use crate::lines::Fault;
use crate::{Times, TrafficError};
use windtunnel_engine::{MAX_NANOS, Nanos};

/// Turns the recorded times of one file, in order, into arrivals.
#[derive(Clone, Debug)]
pub(crate) struct TimeLine {
    /// None when times are ignored.
    speedup: Option<f64>,
    first_ms: Option<f64>,
    last_ms: f64,
}

impl TimeLine {
    pub(crate) fn new(times: Times) -> Result<TimeLine, TrafficError> {
        let speedup = match times {
            Times::Ignored => None,
            Times::Recorded { speedup } if speedup.is_finite() && speedup > 0.0 => Some(speedup),
            Times::Recorded { speedup } => {
                return Err(TrafficError::Setting {
                    field: "speedup",
                    got: speedup.to_string(),
                    problem: "must be a finite number above 0".into(),
                });
            }
        };
        Ok(TimeLine { speedup, first_ms: None, last_ms: 0.0 })
    }

    /// The arrival of the next line: round half away from zero ((time − first) / speedup · 10⁶) ns.
    pub(crate) fn at(&mut self, field: &str, time_ms: Option<f64>) -> Result<Nanos, Fault> {
        let Some(speedup) = self.speedup else { return Ok(Nanos::ZERO) };
        let Some(ms) = time_ms else {
            return Err(Fault::new(field, "missing", "each line needs a time in milliseconds"));
        };
        if !(ms.is_finite() && ms >= 0.0) {
            return Err(Fault::new(
                field,
                format!("got {ms}"),
                "allowed is a number of milliseconds of at least 0",
            ));
        }
        let first_ms = *self.first_ms.get_or_insert(ms);
        if ms < self.last_ms {
            let allowed = format!("must not be before the line above ({})", self.last_ms);
            return Err(Fault::new(field, format!("got {ms}"), allowed));
        }
        self.last_ms = ms;
        Nanos::from_ms((ms - first_ms) / speedup).ok_or_else(|| {
            let days = MAX_NANOS / (24 * 3600 * 1_000_000_000);
            let allowed = format!("must be within {days} days of the first, after division by the speedup");
            Fault::new(field, format!("got {ms}"), allowed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(times: &[f64], speedup: f64) -> Vec<Result<u64, String>> {
        let mut line = TimeLine::new(Times::Recorded { speedup }).unwrap();
        times
            .iter()
            .map(|&ms| line.at("timestamp", Some(ms)).map(|at| at.0).map_err(|fault| fault.allowed))
            .collect()
    }

    #[test]
    fn the_first_arrival_is_at_zero_and_gaps_are_kept() {
        // A trace that begins at eight in the morning does not idle for eight hours.
        assert_eq!(
            line(&[28_800_000.0, 28_800_001.5, 28_803_000.0], 1.0),
            [Ok(0), Ok(1_500_000), Ok(3_000_000_000)]
        );
    }

    #[test]
    fn speedup_divides_and_rounds_half_away() {
        assert_eq!(line(&[5.0, 6.0], 3.0), [Ok(0), Ok(333_333)]);
        assert_eq!(line(&[0.0, 1.0], 2e6), [Ok(0), Ok(1)], "half a nanosecond");
    }

    #[test]
    fn times_may_repeat_but_not_decrease() {
        assert_eq!(
            line(&[7.0, 7.0, 6.5], 1.0),
            [Ok(0), Ok(0), Err("must not be before the line above (7)".into())]
        );
    }

    #[test]
    fn a_time_beyond_the_longest_run_is_refused() {
        let all = line(&[0.0, 1e13], 1.0);
        assert!(all[1].as_ref().unwrap_err().starts_with("must be within"), "{all:?}");
    }
}
