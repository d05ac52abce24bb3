//! Predictions beside public measurements of real deployments: rows of one deployment each ([`points`]), a run
//! of it in virtual time ([`run`]), and tables of the errors ([`report`]).

pub mod points;
pub mod report;
pub mod run;

use thiserror::Error;

/// A file of measurements that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}, line {line}: {message}")]
pub struct AccuracyError {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 is the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}
