//! vLLM: the config of its oracle, the replay, and the lines of its traces.

mod replay;
mod scenario;
mod trace;

pub(super) use replay::replay;
pub use scenario::{PolicyName, Settings};
pub use trace::{Header, Step, Summary};
