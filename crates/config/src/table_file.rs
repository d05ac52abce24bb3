//! The file of a table of pass times: JSON, as `calibrate` writes it.

use crate::profile_file::read_json;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use windtunnel_perf::Table;

/// The keys of the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TableFile {
    /// What was measured; the report repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<Box<str>>,
    /// Tokens that a pass computes, ascending.
    pub tokens: Vec<f64>,
    /// Milliseconds of such a pass without what follows, one for each.
    pub pass_ms: Vec<f64>,
    /// Milliseconds per unit of new·(new + before) of a prefill chunk.
    #[serde(default)]
    pub per_new_times_context_ms: f64,
    /// Milliseconds per sequence in the pass.
    #[serde(default)]
    pub per_sequence_ms: f64,
    /// Milliseconds per token of context of a decode.
    #[serde(default)]
    pub per_context_token_ms: f64,
}

/// Reads a table.
pub(crate) fn read(path: &Path) -> Result<Table, String> {
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let table: TableFile = read_json(file, "table of pass times")?;
    Table::new(
        table.tokens,
        table.pass_ms,
        table.per_new_times_context_ms,
        table.per_sequence_ms,
        table.per_context_token_ms,
        table.about,
    )
    .map_err(|error| error.to_string())
}
