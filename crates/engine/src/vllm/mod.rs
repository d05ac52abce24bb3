//! The vLLM core: scheduler and KV cache of vLLM 0.33.0, one rank.
//!
//! Read in this order: [`Config`], `sequence` (a request's counters), `rank` (the rank and its queues),
//! `schedule` (running requests), `admit` (waiting requests), `complete` (what a finished pass changes).
//! `transfer` is KV that comes from elsewhere or goes there, `offload` and `host` the tier in the host's memory, `disk` the
//! one behind it. `membership`, `growth`, `steady` and the shared `decode_set` and `flight` make steady passes cheap; with
//! `Stepper::Plain` the decode set stays empty and every pass visits every running request, which is the
//! engine's own loop.

mod admit;
mod complete;
mod config;
mod disk;
mod growth;
mod host;
mod membership;
mod offload;
mod rank;
mod running;
mod schedule;
mod sequence;
mod steady;
mod transfer;
mod view;
mod waiting;

pub use config::{Config, KvLoadFailurePolicy, KvRole, Policy, PreemptionMode, ResumedWork, TransferRules};
pub use rank::Rank;

/// The version of vLLM whose behaviour is reproduced.
pub const VERSION: &str = "0.33.0";
