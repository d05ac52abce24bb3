//! JSON lines: one value a line, the form of requests, events and telemetry.

use serde::Serialize;
use std::io::{self, Write};

/// Writes one line.
pub(crate) fn write(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}
