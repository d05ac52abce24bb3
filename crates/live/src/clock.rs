//! The wall clock as logical time: whole nanoseconds since a worker started.
//!
//! Decisions are made in logical time; this clock says when they may be seen. Nothing else in the crate
//! asks what time it is, apart from time stamps that a protocol wants.

use std::time::{Duration, Instant};
use windtunnel_engine::Nanos;

/// Logical time that runs with the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Instant,
}

impl WallClock {
    /// A clock that shows 0 now.
    pub fn start() -> WallClock {
        WallClock { start: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long until `instant`: zero when it has passed.
    pub fn until(&self, instant: Nanos) -> Duration {
        Duration::from_nanos(instant.since(self.now()).0)
    }
}
