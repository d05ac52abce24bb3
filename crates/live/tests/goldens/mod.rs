//! What the tests of this crate share.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod drive;

use serde::Deserialize;
use std::path::Path;

/// The lines of a golden of `tests/wire`.
pub fn golden_lines<T: for<'a> Deserialize<'a>>(name: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/wire").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{name}: {e}"))).collect()
}

/// Payloads in hexadecimal, compared one by one, so that the first that differs is seen.
pub fn assert_payloads(name: &str, ours: &[String], theirs: &[String]) {
    for (number, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(shown(ours), shown(theirs), "{name}: batch {number}");
        assert_eq!(ours, theirs, "{name}: batch {number}");
    }
    assert_eq!(ours.len(), theirs.len(), "{name}: number of batches");
}

/// The class names of the events in a payload.
pub fn event_kinds(payload: &str) -> Vec<&'static str> {
    let text = shown(payload);
    ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
        .into_iter()
        .filter(|kind| text.contains(kind))
        .collect()
}

/// A payload with its texts to be read.
fn shown(payload: &str) -> String {
    let bytes =
        (0..payload.len() / 2).map(|at| u8::from_str_radix(&payload[2 * at..2 * at + 2], 16).unwrap());
    bytes
        .map(|b| if b.is_ascii_graphic() { char::from(b).to_string() } else { format!("<{b:02x}>") })
        .collect()
}
