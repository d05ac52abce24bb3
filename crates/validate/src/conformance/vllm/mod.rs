//! vLLM: the config of its oracle, the replay, and the lines of its traces.

mod copies;
mod disk;
mod replay;
mod scenario;
mod trace;
mod transfers;

pub(super) use replay::replay;
pub use scenario::{KvLoadFailurePolicyName, KvRoleName, PolicyName, Settings};
pub use trace::{Copied, Header, KvMoved, KvQueues, Step, Summary};
