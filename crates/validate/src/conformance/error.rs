//! What can be wrong with a scenario, a trace, or the way to them.

use std::path::PathBuf;
use thiserror::Error;
use windtunnel_traffic::TrafficError;

/// A conformance run that could not be made. Differences are results, not errors.
#[derive(Debug, Error)]
pub enum ConformanceError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line or file does not have the oracle's format.
    #[error("{}:{line}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A request file is wrong.
    #[error(transparent)]
    Requests(#[from] TrafficError),
    /// Nothing to check was found.
    #[error("{}: {reason}", path.display())]
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// The scenario asks for something that this scheduler does not do.
    #[error("{scenario}: {reason}")]
    Unsupported {
        /// The scenario.
        scenario: String,
        /// What is missing.
        reason: String,
    },
}
