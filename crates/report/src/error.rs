//! What can go wrong when a report is written, each with the path and the cause, so that a command can
//! tell a full disk from a folder in use and from a reader who has seen enough. How a command reports
//! it, and with which exit code, is not known here.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a report could not be written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The output folder holds something and may not be reused.
    #[error("output folder {path} is not empty (it holds {found}); choose another one or pass --overwrite", path = path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// Something else stands where the output folder should be.
    #[error("{path} is not a folder", path = path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// A folder stands where a file of the run should be.
    #[error("{path} is a folder", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Whoever read standard output has closed it (`… | head`). Not a fault of the run.
    #[error("standard output was closed by its reader")]
    ClosedPipe,
    /// Standard output failed in another way.
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    /// A writer that has no path failed.
    #[error("cannot write the report: {0}")]
    Writer(io::Error),
}

impl ReportError {
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReportError {
        let path = path.to_owned();
        move |source| ReportError::File { action, path, source }
    }
}

/// The error of a writer. An [`crate::OutputFile`] puts the path and the cause inside; they come out
/// again here.
impl From<io::Error> for ReportError {
    fn from(error: io::Error) -> ReportError {
        error.downcast::<ReportError>().unwrap_or_else(ReportError::Writer)
    }
}
