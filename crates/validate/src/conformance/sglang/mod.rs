//! SGLang: the config of its oracle, the replay, and the lines of its traces.

mod copies;
mod replay;
mod scenario;
mod trace;

pub(super) use replay::replay;
pub use scenario::Settings;
pub use trace::{Batch, Decode, Effective, Extend, Header, NewTokenRatio, NoBatch, Retract, Step, Summary};
