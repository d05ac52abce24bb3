//! Random workloads against a rank: what is asked of it (`plan`), how it is driven (`world`), and what must
//! hold after every step (`checks`, one invariant a file). Used by the property tests of this crate. `bench`
//! is for cases that are followed by hand; `trtllm` is the world of the TensorRT-LLM core.
//!
//! The world knows a request's plan and what was delivered of it; what a scheduler ought to decide is known
//! to the checks alone, each from first principles and not from the code under test.

#![allow(dead_code)] // Each test binary uses its own part.

pub mod bench;
pub mod checks;
pub mod plan;
pub mod runner;
pub mod sglang;
pub mod stamps;
pub mod trtllm;
pub mod world;
