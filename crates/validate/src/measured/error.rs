//! What can be wrong with the files of a measured run.

use std::path::{Path, PathBuf};
use thiserror::Error;
use windtunnel_traffic::TrafficError;

/// A measured run that could not be read.
#[derive(Debug, Error)]
pub enum MeasuredError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A file as a whole is wrong.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file with the prompts is wrong.
    #[error(transparent)]
    Prompts(#[from] TrafficError),
}

impl MeasuredError {
    pub(super) fn whole(path: &Path, reason: String) -> MeasuredError {
        MeasuredError::File { path: path.into(), reason }
    }
}
