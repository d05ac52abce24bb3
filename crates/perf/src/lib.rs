//! Timing sources: how long a pass takes, as a function of its shape alone. And what models and accelerators are
//! ([`models`], [`hardware`]), and how many KV blocks fit into what the first leave of the memory of the
//! second ([`capacity`]).
//!
//! A timing model is a plain value, checked once when it is made; asking it costs a few floating-point
//! operations and never allocates. Nothing here knows schedulers, clocks or configuration.

pub mod calibrated;
pub mod capacity;
mod curve;
pub mod hardware;
mod law;
mod model;
pub mod models;
pub mod packs;
mod profile;
mod table;

pub use law::{Fixed, Law, Linear, Polynomial};
pub use model::{Composition, Outside, PolynomialDecodes, Speedup, TimingModel};
pub use profile::Profile;
pub use table::Table;

use thiserror::Error;

/// A setting of a timing model that has no meaning.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{field}: {got} {problem}")]
pub struct PerfError {
    /// The setting, under its name in the value it belongs to.
    pub field: &'static str,
    /// The value given.
    pub got: String,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl PerfError {
    pub(crate) fn new(field: &'static str, got: impl ToString, problem: impl Into<String>) -> PerfError {
        PerfError { field, got: got.to_string(), problem: problem.into() }
    }
}
