//! (Invariant 13) Termination: between two tokens of anybody there are no more passes than the requests present have
//! tokens to compute, some of them twice. The exception is named, and only where it is known.

use crate::support::world::World;
use windtunnel_engine::vllm::{Policy, PreemptionMode};

/// Passes since something came, went, or gave a token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    passes: u64,
}

impl Progress {
    pub fn renew(&mut self) {
        self.passes = 0;
    }

    pub fn scheduled(&mut self) {
        self.passes += 1;
    }

    /// False in a livelock.
    pub fn is_being_made(&self, world: &World) -> bool {
        let config = &world.case.config;
        let longest: u64 = world.live().map(|(_, request)| u64::from(request.known())).sum();
        let bound = 2 * longest + u64::from(config.prefill_schedule_interval) + 8;
        self.passes <= bound
    }
}

/// Taking blocks from the request admitted first, without having seen at admission that a whole prompt
/// fits, lets two prompts in chunks take each other's blocks in turn. AISimulate, whose option FIFO is, has
/// no chunk threshold and always wants the whole prompt to fit; requests of equal urgency do not exist where
/// a clock stamps arrivals.
pub fn assert_known_livelock(world: &World) {
    let config = &world.case.config;
    let first_loses = match config.policy {
        Policy::Fcfs => config.preemption_mode == PreemptionMode::Fifo,
        Policy::Priority => world.live().any(|(_, request)| request.plan.same_arrival),
    };
    let several_prompts_in_chunks = config.long_prefill_token_threshold > 0;
    assert!(
        first_loses && several_prompts_in_chunks && !config.reserve_full_isl,
        "passes without end: {config:?}"
    );
}
