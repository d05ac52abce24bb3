//! Settings that an engine refuses.

use thiserror::Error;

/// A setting that the engine would refuse.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{field}: {got} {problem}")]
pub struct ConfigError {
    /// The field, under its name in the engine's settings.
    pub field: &'static str,
    /// The value.
    pub got: String,
    /// What is wrong with it.
    pub problem: String,
}
