//! The invariants of facts/bug-cases.md, section 8, that an engine can keep or break. Each file says its
//! own; the numbers are those of that list.

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
