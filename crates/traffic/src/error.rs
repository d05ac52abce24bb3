//! What can be wrong with a workload, as values that name file, line, field, what was found and what
//! is allowed. No other file of this crate words an error of its own.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a workload yields no further request.
#[derive(Debug, Error)]
pub enum TrafficError {
    /// The file cannot be opened.
    #[error("{}: cannot be opened: {error}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file cannot be read on.
    #[error("{}, line {line}: cannot be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The line that was being read, from 1.
        line: u64,
        /// What the system or the decompressor says.
        error: io::Error,
    },
    /// The file holds no request.
    #[error("{}: holds no request; allowed is one JSON object a line", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A line is not one JSON object.
    #[error("{}, line {line}: {problem}; allowed is one JSON object a line", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong, with the column where known.
        problem: String,
    },
    /// A field of a line is wrong.
    #[error("{}, line {line}: {field}: {got}; {allowed}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The field, as the file spells it.
        field: String,
        /// What was found there.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// A setting of a workload, not of a file, is wrong.
    #[error("{field}: {got} {problem}")]
    Setting {
        /// The setting, under its name in the value it belongs to.
        field: &'static str,
        /// The value given.
        got: String,
        /// What is wrong with it.
        problem: String,
    },
}
