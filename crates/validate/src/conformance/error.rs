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
    /// A request file is wrong in a way that has no line.
    #[error(transparent)]
    Requests(TrafficError),
    /// Nothing to check was found.
    #[error("{}: {reason}", path.display())]
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// The scenario asks for something that this scheduler does not do.
    #[error("{}: {reason}", path.display())]
    Unsupported {
        /// The file that asks for it.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
}

impl ConformanceError {
    /// What is wrong with a JSON text, in the words of JSON rather than of our types. The line stands
    /// elsewhere in a message; the column stays.
    pub(crate) fn json_reason(error: &serde_json::Error) -> String {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let mut reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
        for (ours, theirs) in [
            ("expected u32", "expected an integer from 0 to 4294967295"),
            ("expected u64", "expected an integer of at least 0"),
            ("expected i32", "expected an integer from -2147483648 to 2147483647"),
            ("expected i64", "expected an integer"),
            ("expected f64", "expected a number"),
            ("expected struct Settings", "expected an object"),
        ] {
            reason = reason.replace(ours, theirs);
        }
        if error.column() > 0 { format!("column {}: {reason}", error.column()) } else { reason }
    }
}

impl From<TrafficError> for ConformanceError {
    fn from(error: TrafficError) -> ConformanceError {
        let format = |path, line, reason| ConformanceError::Format { path, line: line as usize, reason };
        match error {
            TrafficError::Open { file, error } => ConformanceError::Io { path: file, source: error },
            TrafficError::Read { file, line, error } => {
                format(file, line, format!("cannot be read: {error}"))
            }
            TrafficError::Syntax { file, line, problem } => {
                format(file, line, format!("{problem}; allowed is one JSON object a line"))
            }
            TrafficError::Field { file, line, field, got, allowed } => {
                format(file, line, format!("{field}: {got}; {allowed}"))
            }
            other => ConformanceError::Requests(other),
        }
    }
}
