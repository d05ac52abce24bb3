//! When synthetic requests arrive: all at once, at a constant rate, or as a Poisson process.
//!
//! Times are computed in f64 milliseconds in the order written here and rounded once for each arrival;
//! the logarithm is a software one, so that a seed gives the same times on every machine.

use crate::TrafficError;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use windtunnel_engine::Nanos;

/// The rule of arrival. The first arrival is always at 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All at 0: for a driver that keeps a number of requests in flight and takes the next one
    /// whenever it has room.
    AtOnce,
    /// Arrival k at k·1000/rate ms.
    Constant {
        /// Requests per second.
        requests_per_second: f64,
    },
    /// Gaps of −ln(u)·1000/rate ms with u uniform in (0, 1].
    Poisson {
        /// Mean requests per second.
        requests_per_second: f64,
        /// Seed of the gaps.
        seed: u64,
    },
}

impl Arrivals {
    pub(crate) fn rate(&self) -> Option<f64> {
        match *self {
            Arrivals::AtOnce => None,
            Arrivals::Constant { requests_per_second } => Some(requests_per_second),
            Arrivals::Poisson { requests_per_second, .. } => Some(requests_per_second),
        }
    }
}

/// Yields the times one after the other.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    AtOnce,
    Constant { rate: f64, next: u64 },
    Poisson { rate: f64, random: Box<ChaCha8Rng>, next_ms: f64 },
}

impl Clock {
    pub(crate) fn new(arrivals: &Arrivals) -> Result<Clock, TrafficError> {
        if let Some(rate) = arrivals.rate()
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(TrafficError::Setting {
                field: "requests_per_second",
                got: rate.to_string(),
                problem: "must be a finite number above 0".into(),
            });
        }
        Ok(match *arrivals {
            Arrivals::AtOnce => Clock::AtOnce,
            Arrivals::Constant { requests_per_second } => {
                Clock::Constant { rate: requests_per_second, next: 0 }
            }
            Arrivals::Poisson { requests_per_second, seed } => Clock::Poisson {
                rate: requests_per_second,
                random: Box::new(ChaCha8Rng::seed_from_u64(seed)),
                next_ms: 0.0,
            },
        })
    }

    /// The next time, or none when it lies beyond the longest possible run.
    pub(crate) fn next(&mut self) -> Option<Nanos> {
        match self {
            Clock::AtOnce => Some(Nanos::ZERO),
            Clock::Constant { rate, next } => {
                let at = Nanos::from_ms(*next as f64 * 1000.0 / *rate);
                *next += 1;
                at
            }
            Clock::Poisson { rate, random, next_ms } => {
                let at = Nanos::from_ms(*next_ms);
                // 53 random bits, shifted from [0, 1) to (0, 1] so that the logarithm exists.
                let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                *next_ms += -libm::log(uniform) * 1000.0 / *rate;
                at
            }
        }
    }
}
