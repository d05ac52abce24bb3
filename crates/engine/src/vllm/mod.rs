//! The vLLM core: scheduler and KV cache of vLLM 0.33.0, one rank.

mod config;

pub use config::{Config, ConfigError, Policy, PreemptionMode};
