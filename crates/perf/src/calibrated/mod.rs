//! Calibrated timing: how long a pass of a model takes on an accelerator, from measured times of the
//! operations that it is made of.
//!
//! [`Cell`] says which model, engine and spread; [`PassModel::compile`] looks the operations up in the data
//! packs ([`crate::packs`]) once and folds them into a few curves, so that a pass is a few look-ups. What it
//! cannot find is an error that names the cell, or is made of the accelerator's peak figures if that is
//! allowed. Every figure knows where it comes from ([`Use`]). Schedulers and configuration are not known
//! here.

mod cell;
mod communication;
mod curve;
mod describe;
mod experts;
mod layers;
mod outvoted;
mod pass;
mod peak;
mod product;
mod sources;
mod sparse;
mod surface;

pub use cell::{Architecture, AttentionKind, Cell, Engine, ExpertLayers, LinearLayers, SparseLayers, Types};
pub use pass::{Constants, Draft, PassModel};
pub use sources::{How, OpenError, Sources, Use};

use thiserror::Error;

/// What no measurement covers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{operation} is not measured for {cell}; nearest: {nearest}")]
pub struct Uncovered {
    /// The operation.
    pub operation: &'static str,
    /// What was looked for.
    pub cell: String,
    /// What there is.
    pub nearest: String,
}
