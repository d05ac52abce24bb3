//! What is wrong with a configuration: every problem found, each with its place, path, value and
//! remedy, so that a file is put right in one round.

use std::fmt;
use std::sync::Arc;
use windtunnel_traffic::escaped;

/// Letters of an override that are shown.
const SHOWN: usize = 300;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file.
    File {
        /// Its name.
        file: Arc<str>,
        /// The line, from 1; 0 when it is about the whole file.
        line: usize,
    },
    /// In an override.
    Override(Arc<str>),
}

impl Place {
    /// Lines of the file first, then overrides.
    pub(crate) fn order(&self) -> (bool, usize) {
        match self {
            Place::File { line, .. } => (false, *line),
            Place::Override(_) => (true, 0),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { file, line: 0 } => write!(f, "{}", escaped(file)),
            Place::File { file, line } => write!(f, "{}, line {line}", escaped(file)),
            Place::Override(text) => match text.char_indices().nth(SHOWN) {
                Some((end, _)) => write!(f, "--set {}…", escaped(&text[..end])),
                None => write!(f, "--set {}", escaped(text)),
            },
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub place: Place,
    /// The dotted path of the key, empty when it is about the whole.
    pub path: String,
    /// What was found and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", escaped(&self.path))?;
        }
        write!(f, "{}", escaped(&self.message))
    }
}

/// Why a configuration was refused. Displays one line for each problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// What is wrong, in the order of the file. Never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
