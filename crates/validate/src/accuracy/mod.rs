//! Predictions beside public measurements of real deployments: how far the one is from the other. Each kind of
//! measurement has a file of its own here; what an error is, in `errors`, is the same for all.

mod capacity;
mod errors;
mod table;

pub use capacity::{CapacityReport, CapacityRow, capacities};
pub use errors::{Errors, Partition};

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
