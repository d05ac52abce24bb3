//! Conformance: replaying an oracle's scenario through our scheduler and comparing every step with the
//! trace of the real one.
//!
//! `engine` names the engines; each has a folder of its own with its settings, its replay and its lines.
//! What they share stands here once: `scenario` reads the inputs, `arrivals` lets requests and aborts in,
//! `trace` holds what is written alike, `check` compares. Of these only `engine`, `scenario` and `trace`
//! know which engines there are.

mod arrivals;
mod check;
mod engine;
mod error;
mod files;
mod scenario;
pub mod sglang;
mod trace;
pub mod vllm;

pub use check::{Difference, ScenarioResult, check_golden, find_goldens};
pub use engine::{Engine, replay};
pub use error::ConformanceError;
pub use scenario::{Scenario, Settings};
pub use trace::{Event, Header, Ordered, Step, Summary, TraceLine};
