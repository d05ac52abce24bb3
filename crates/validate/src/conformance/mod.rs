//! Conformance: replaying an oracle's scenario through our scheduler and comparing every step with the
//! trace of the real one.
//!
//! `scenario` reads the inputs, `replay` drives the rank as the oracle drives the engine, `trace` is the
//! line format of both, `check` compares.

mod check;
mod error;
mod replay;
mod scenario;
mod trace;

pub use check::{Difference, ScenarioResult, check_golden, find_goldens};
pub use error::ConformanceError;
pub use replay::replay;
pub use scenario::{Scenario, Settings};
pub use trace::{Event, Step, Summary, TraceLine};
