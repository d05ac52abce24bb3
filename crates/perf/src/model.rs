//! One timing model: a law, how its terms make up a pass, and how much faster than the law it runs.
//!
//! The one place where milliseconds become nanoseconds of a pass. What a pass holds is told by its
//! shape; who runs it and when is not known here.

use crate::PerfError;
use crate::law::{Law, Polynomial};
use std::sync::atomic::{AtomicU8, Ordering};
use windtunnel_engine::{DecodeSet, Nanos, Shape};

/// How the prefill and the decode part of one pass are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Composition {
    /// A prefill term and a decode term, each divided by its speedup and rounded on its own, then
    /// added. A linear law pays its base once for each term present.
    Sum,
    /// One term for the whole pass. Defined for linear laws and tables only.
    Mixed,
}

impl Composition {
    /// Its name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Composition::Sum => "sum",
            Composition::Mixed => "mixed",
        }
    }
}

/// Divisors of the pass time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speedup {
    /// Divides every term.
    pub ratio: f64,
    /// Divides the decode term once more.
    pub decode_ratio: f64,
}

impl Speedup {
    /// No speedup.
    pub const NONE: Speedup = Speedup { ratio: 1.0, decode_ratio: 1.0 };
}

/// Whether passes lay outside of what was measured. A copy of a model begins anew.
#[derive(Debug, Default)]
pub struct Outside(AtomicU8);

impl Outside {
    pub(crate) const PREFILL: u8 = 1;
    pub(crate) const DECODE: u8 = 2;

    #[inline]
    pub(crate) fn note(&self, inside: bool, part: u8) {
        if !inside && self.0.load(Ordering::Relaxed) & part == 0 {
            self.0.fetch_or(part, Ordering::Relaxed);
        }
    }

    /// Prefills did.
    pub fn prefill(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::PREFILL != 0
    }

    /// Decodes did.
    pub fn decode(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::DECODE != 0
    }
}

impl Clone for Outside {
    fn clone(&self) -> Self {
        Outside::default()
    }
}

/// Not a property of a model.
impl PartialEq for Outside {
    fn eq(&self, _: &Outside) -> bool {
        true
    }
}

/// Shape → duration.
#[derive(Clone, Debug, PartialEq)]
pub struct TimingModel {
    law: Law,
    composition: Composition,
    prefill_divisor: f64,
    decode_divisor: f64,
    outside: Outside,
}

impl TimingModel {
    /// A checked model. Without a composition, linear laws and tables are mixed, the others sums.
    ///
    /// # Errors
    /// A coefficient that is negative or not finite, a speedup that is not finite and above 0, `mixed`
    /// with a law that does not define it, and a decode speedup in a mixed pass, which has no decode term.
    pub fn new(
        law: Law,
        composition: Option<Composition>,
        speedup: Speedup,
    ) -> Result<TimingModel, PerfError> {
        law.validate()?;
        check_ratio("speedup_ratio", speedup.ratio)?;
        check_ratio("decode_speedup_ratio", speedup.decode_ratio)?;
        let decode_divisor = speedup.ratio * speedup.decode_ratio;
        if !(decode_divisor.is_finite() && decode_divisor > 0.0) {
            let got = format!("{:e}", speedup.decode_ratio);
            let problem = "times speedup_ratio must be a finite number above 0";
            return Err(PerfError::new("decode_speedup_ratio", got, problem));
        }
        let usual = if law.is_mixed() { Composition::Mixed } else { Composition::Sum };
        let composition = composition.unwrap_or(usual);
        if composition == Composition::Mixed {
            if !law.is_mixed() {
                let problem = format!("is not defined for {} timing, allowed is sum", law.name());
                return Err(PerfError::new("composition", composition.name(), problem));
            }
            if speedup.decode_ratio != 1.0 {
                return Err(PerfError::new(
                    "decode_speedup_ratio",
                    speedup.decode_ratio,
                    "needs composition sum: a mixed pass has no decode term of its own",
                ));
            }
        }
        Ok(TimingModel {
            law,
            composition,
            prefill_divisor: speedup.ratio,
            decode_divisor,
            outside: Outside::default(),
        })
    }

    /// How long a pass of this shape takes: round half away from zero (ms × 10⁶) of each term. A pass
    /// without tokens takes 0; none takes longer than [`windtunnel_engine::MAX_NANOS`].
    #[inline]
    pub fn pass_duration(&self, shape: &Shape) -> Nanos {
        if self.composition == Composition::Mixed {
            return whole_nanos(divided(self.law.mixed_ms(shape, &self.outside), self.prefill_divisor));
        }
        let prefill = if shape.prefill.is_empty() {
            Nanos::ZERO
        } else {
            whole_nanos(divided(self.law.prefill_ms(shape, &self.outside), self.prefill_divisor))
        };
        prefill + whole_nanos(divided(self.law.decode_ms(&shape.decode, &self.outside), self.decode_divisor))
    }

    /// How long a pass of these decodes and nothing else takes.
    #[inline]
    pub fn decode_duration(&self, decode: &DecodeSet) -> Nanos {
        self.pass_duration(&Shape { prefill: &[], decode: *decode })
    }

    /// The same for who asks for many in a row, where the law is the polynomial.
    pub fn polynomial_decodes(&self) -> Option<PolynomialDecodes> {
        match self.law {
            Law::Polynomial(polynomial) => {
                Some(PolynomialDecodes { polynomial, divisor: self.decode_divisor })
            }
            _ => None,
        }
    }

    /// How long a pass of these decodes and nothing else takes, if it takes as long while their contexts grow.
    pub fn steady_duration(&self, decode: DecodeSet) -> Option<Nanos> {
        let shape = Shape { prefill: &[], decode };
        self.law.ignores_growth(&decode).then(|| self.pass_duration(&shape))
    }

    /// A time below which no pass of these decodes lies, now or when their contexts have grown.
    pub fn least_duration(&self, decode: DecodeSet) -> Nanos {
        if !self.law.grows() {
            return Nanos::ZERO;
        }
        // One off, for the roundings.
        Nanos(self.pass_duration(&Shape { prefill: &[], decode }).0.saturating_sub(1))
    }

    /// The same with every pass `factor` times as long.
    pub fn slowed(&self, factor: f64) -> TimingModel {
        let (prefill_divisor, decode_divisor) = (self.prefill_divisor / factor, self.decode_divisor / factor);
        TimingModel { prefill_divisor, decode_divisor, ..self.clone() }
    }

    /// Which of the passes asked for lay outside of what was measured.
    pub fn outside(&self) -> &Outside {
        &self.outside
    }

    /// The law.
    pub fn law(&self) -> &Law {
        &self.law
    }

    /// The composition in effect.
    pub fn composition(&self) -> Composition {
        self.composition
    }
}

/// Durations of passes that only decode, by the polynomial.
#[derive(Clone, Copy, Debug)]
pub struct PolynomialDecodes {
    polynomial: Polynomial,
    divisor: f64,
}

impl PolynomialDecodes {
    /// How long a pass of these decodes takes: what [`TimingModel::decode_duration`] says.
    #[inline]
    pub fn duration(&self, decode: &DecodeSet) -> Nanos {
        whole_nanos(divided(self.polynomial.decode_ms(decode), self.divisor))
    }
}

fn check_ratio(field: &'static str, ratio: f64) -> Result<(), PerfError> {
    if ratio == 0.0 {
        let problem = "is not accepted: AISimulate 0.13 treats 0 as unscaled, so leave the key out";
        return Err(PerfError::new(field, ratio, problem));
    }
    if ratio.is_finite() && ratio > 0.0 {
        Ok(())
    } else {
        Err(PerfError::new(field, ratio, "must be a finite number above 0"))
    }
}

/// `ms / divisor`. A division takes as long as all the rest of a law, and most divisors are 1.
#[inline]
fn divided(ms: f64, divisor: f64) -> f64 {
    if divisor == 1.0 { ms } else { ms / divisor }
}

/// Rounds half away from zero, as `f64::round` does, for times, which are never negative: a float less
/// its whole part is exact, so there is no need of a library call in every pass.
fn whole_nanos(ms: f64) -> Nanos {
    let ns = ms * 1e6;
    // A float beyond the range of i64 becomes its largest value, MAX_NANOS − 1. (Conversions from and to signed
    // integers are one instruction each, which those of unsigned ones are not.)
    let whole = ns as i64;
    Nanos(whole as u64 + u64::from(ns - whole as f64 >= 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windtunnel_engine::MAX_NANOS;

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        let mut ms = vec![0.0, 0.000_000_5, 0.000_000_499_999_999_9, 4_503_599_627.370_496, 9e12];
        for i in 0..20_000 {
            ms.push(f64::from(i) * 0.000_000_25);
            ms.push(f64::from(i).powi(3) * 0.123_456_789);
        }
        for ms in ms {
            assert_eq!(whole_nanos(ms).0, (ms * 1e6).round() as u64, "{ms}");
        }
        assert_eq!(whole_nanos(f64::INFINITY).0, MAX_NANOS);
        assert_eq!(whole_nanos(1e300).0, MAX_NANOS);
    }
}
