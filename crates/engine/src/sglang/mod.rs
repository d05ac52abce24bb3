//! The SGLang core: scheduler and KV cache of SGLang 0.5.23, one rank.
//!
//! Read in this order: [`Config`], `sequence` (a request's counters), `rank` (the rank and its queues),
//! `schedule` (which batch comes next), `queue` (order of the waiting requests), `prefill` (who is
//! admitted), `priority` (who makes room), `decode` (the running batch and retraction), `kv` (what a request
//! gives to the tree and takes from it), `complete` (what a finished pass changes). `batch`,
//! `membership`, `page_starts`, `steady` and the shared `decode_set` and `flight` make steady passes cheap; with `Stepper::Plain` the decode set stays
//! empty and every pass visits every running request, which is the engine's own loop.

mod batch;
mod complete;
mod config;
mod decode;
mod hand_off;
mod kv;
mod membership;
mod page_starts;
mod prefill;
mod priority;
mod queue;
mod rank;
mod ratio;
mod receive;
mod schedule;
mod sequence;
mod shuffle;
mod steady;
mod view;

pub use crate::kv::{HostTier, WritePolicy};
pub use config::{Config, Disaggregation, HandOffRules, Policy, Priority};
pub use rank::Rank;
pub use view::{Mode, Retraction};

/// The version of SGLang whose behaviour is reproduced.
pub const VERSION: &str = "0.5.23";
