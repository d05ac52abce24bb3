//! What can be wrong with a workload, as values that name file, line, field, what was found and what
//! is allowed. No other file of this crate words an error of its own.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A text for one line of a terminal: what would move the cursor, ring, colour, begin a line or turn the
/// direction of reading, which input can hold, is written out as an escape.
pub fn escaped(text: &str) -> impl fmt::Display + use<> {
    let hidden = |letter: char| {
        let turns =
            matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        letter.is_control() || turns || matches!(letter, '\u{2028}' | '\u{2029}')
    };
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if hidden(letter) { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

fn name(file: &Path) -> impl fmt::Display + use<> {
    escaped(&file.display().to_string())
}

/// Why a workload yields no further request.
#[derive(Debug, Error)]
pub enum TrafficError {
    /// The file cannot be opened.
    #[error("{}: cannot be opened: {error}", name(file))]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file cannot be read on.
    #[error("{}, line {line}: cannot be read: {error}", name(file))]
    Read {
        /// The file.
        file: PathBuf,
        /// The line that was being read, from 1.
        line: u64,
        /// What the system or the decompressor says.
        error: io::Error,
    },
    /// The file holds no request.
    #[error("{}: holds no request; allowed is one JSON object a line", name(file))]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A line is not one JSON object.
    #[error("{}, line {line}: {}; allowed is one JSON object a line", name(file), escaped(problem))]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong, with the column where known.
        problem: String,
    },
    /// A field of a line is wrong.
    #[error("{}, line {line}: {}: {}; {}", name(file), escaped(field), escaped(got), escaped(allowed))]
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
    /// A request would arrive after the longest run.
    #[error(
        "traffic.stop.requests: {requests} are too many: at traffic.load.requests_per_second {requests_per_second:?} \
         request {ordinal} would arrive after the longest run of 292 years"
    )]
    TooSlow {
        /// How many there should be.
        requests: u64,
        /// How fast they come.
        requests_per_second: f64,
        /// The first one that does not fit, from 0.
        ordinal: u64,
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
