//! vLLM: the config of its oracle, the replay, and the lines of its traces.

mod replay;
mod scenario;
mod trace;
mod transfers;

pub(super) use replay::replay;
pub use scenario::{KvLoadFailurePolicyName, KvRoleName, PolicyName, Settings};
pub use trace::{Header, KvMoved, KvQueues, Step, Summary};
