//! Predictions beside public measurements of real deployments: how far the one is from the other. Each kind of
//! measurement has files of its own here (`capacity`; `points`, `benchmark`, `run` and `report`; `runs`); what an error
//! is, in `errors`, is the same for all.

mod benchmark;
mod capacity;
mod errors;
pub mod points;
pub mod report;
pub mod run;
mod runs;
mod table;

pub use capacity::{CapacityReport, CapacityRow, capacities};
pub use errors::{Errors, Partition};
pub use runs::{RunOutcome, RunReport, runs};

use std::path::PathBuf;
use thiserror::Error;

/// Measurements that cannot be compared with.
#[derive(Debug, Error)]
#[error("{}: {reason}", path.display())]
pub struct AccuracyError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, with the line.
    pub reason: String,
}
