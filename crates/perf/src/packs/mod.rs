//! Data packs: measured times of the operations that passes are made of, for one accelerator, one engine
//! and one version of it, as text that zstd packs small.
//!
//! [`Store`] knows which packs there are, [`Pack`] reads one, [`Gpu`] is the description of an accelerator
//! that lies beside them. What the times mean for a model is not known here (see `calibrated`). Packs are
//! made by `build`, of public measurements, with the feature `pack-builder`.

#[cfg(feature = "pack-builder")]
pub mod build;
mod gpu;
mod pack;
mod store;

pub use gpu::Gpu;
pub use pack::{FORMAT, Pack, Row, Table};
pub use store::{FOLDER_VARIABLE, Files, PackName, Store, provide};

use thiserror::Error;

/// Tokens before the chunks of sparse attention that packs hold, out of all that were measured.
pub(crate) const CHUNKS_BEHIND: [u32; 2] = [16_384, 65_536];

/// A pack, or a file of the packs, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: {message}")]
pub struct PackError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub message: String,
}

impl PackError {
    pub(crate) fn new(file: impl Into<String>, message: impl Into<String>) -> PackError {
        PackError { file: file.into(), message: message.into() }
    }
}
