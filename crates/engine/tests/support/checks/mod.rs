//! The invariants that an engine can keep or break; each was broken in some public simulator or engine at
//! least once. Each file says its own. The numbers are those of one list for the whole program, of which
//! the tests of report and sim check the others.

pub mod admission;
pub mod agreement;
pub mod blocks;
pub mod cache;
pub mod conservation;
pub mod limits;
pub mod outputs;
pub mod progress;
pub mod refusals;
pub mod shape;
