//! Virtual time: whole nanoseconds since the start of a run.
//!
//! Integers, so that sums do not depend on the order in which they were made. Milliseconds,
//! the unit of every file and report, exist only at the edges; the conversion rule stands here once.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in virtual time or a duration, in whole nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// Largest time a run may reach, about 292 years. Everything above it is refused where text becomes a
/// value, so that no sum of two times can overflow.
pub const MAX_NANOS: u64 = 1 << 63;

impl Nanos {
    /// The start of a run, and the empty duration.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than everything that happens.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// `ms` milliseconds, rounded half away from zero to whole nanoseconds.
    ///
    /// `None` when `ms` is negative, not a number, or beyond [`MAX_NANOS`].
    pub fn from_ms(ms: f64) -> Option<Nanos> {
        let ns = (ms * 1e6).round();
        (ns >= 0.0 && ns <= MAX_NANOS as f64).then_some(Nanos(ns as u64))
    }

    /// This time in milliseconds, for printing.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// This time in seconds, for printing.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self - earlier`, or zero when `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.as_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_round_half_away_from_zero() {
        assert_eq!(Nanos::from_ms(0.000_000_5), Some(Nanos(1)));
        assert_eq!(Nanos::from_ms(169.136_918_400_000_02), Some(Nanos(169_136_918)));
        assert_eq!(Nanos::from_ms(-0.1), None);
        assert_eq!(Nanos::from_ms(f64::NAN), None);
        assert_eq!(Nanos::from_ms(f64::INFINITY), None);
    }
}
