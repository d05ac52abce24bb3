//! The wall clock as logical time: whole nanoseconds since a worker started.
//!
//! Decisions are made in logical time; this clock says when they may be seen. Nothing else in the crate
//! asks what time it is, apart from time stamps that a protocol wants.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windtunnel_engine::Nanos;

/// Logical time that runs with the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Instant,
    /// The same instant in Unix time.
    unix: Duration,
    rate: f64,
}

impl WallClock {
    /// A clock that shows 0 now.
    pub fn start() -> WallClock {
        WallClock::with_rate(1.0)
    }

    /// The same, running `rate` times as fast as the wall clock.
    pub fn with_rate(rate: f64) -> WallClock {
        // A clock before 1970 tells nothing.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallClock { start: Instant::now(), unix, rate }
    }

    /// The time now.
    pub fn now(&self) -> Nanos {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Nanos(if self.rate == 1.0 { elapsed } else { (elapsed as f64 * self.rate) as u64 })
    }

    /// An instant in nanoseconds of Unix time, by what the system's clock showed at the start.
    pub fn unix_nanos(&self, at: Nanos) -> u64 {
        let after = if self.rate == 1.0 { at.0 } else { (at.0 as f64 / self.rate) as u64 };
        u64::try_from(self.unix.as_nanos()).unwrap_or(u64::MAX).saturating_add(after)
    }

    /// How long until `instant`: zero when it has passed.
    pub fn until(&self, instant: Nanos) -> Duration {
        let left = instant.since(self.now()).0;
        // At least a nanosecond while anything is left, so that nobody is early.
        Duration::from_nanos(if self.rate == 1.0 { left } else { (left as f64 / self.rate).ceil() as u64 })
    }
}
