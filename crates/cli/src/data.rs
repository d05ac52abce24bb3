//! The data packs that are part of the program.

use windtunnel_perf::packs::Files;

/// Every file below `data/perf` of the checkout that this program was built from.
pub const PACKS: Files = include!(concat!(env!("OUT_DIR"), "/packs.rs"));
