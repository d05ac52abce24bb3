//! The TensorRT-LLM core: scheduler and KV cache of one rank of its PyTorch backend.
//!
//! The engine itself was not run: every rule follows the public source and names the file and the function
//! (docs/fidelity.md has the list, with what is left out). Read in this order: [`Config`], `sequence` (a
//! request's counters), `rank` (the rank and its lists), `capacity` (who has the blocks), `micro_batch` (who
//! has the tokens), `schedule` (the pass made of both), `complete` (what a finished pass changes).
//! `hand_off` is what passes between ranks that serve prompts and those that go on.
//! `membership`, `steady` and the shared `decode_set` and `flight` make steady passes cheap; with
//! `Stepper::Plain` the decode set stays empty and every pass visits every active request.

mod capacity;
mod complete;
mod config;
mod hand_off;
mod membership;
mod micro_batch;
mod rank;
mod schedule;
mod sequence;
mod steady;
mod view;

pub use config::{CapacityPolicy, Config, FirstToken, FullHit};
pub use rank::Rank;

/// TensorRT-LLM has no version here: its source was read, and the engine not run.
pub const VERSION: &str = "source of 2025 and 2026";
