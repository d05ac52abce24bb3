//! (Invariant 1) A request is refused at once, with the reason that a reader of the settings expects, or it can run
//! to its end: nothing is accepted that could wait for ever.

use crate::support::plan::Plan;
use crate::support::world::World;
use windtunnel_engine::Rejection;

/// The refusal of a request that is submitted now.
pub fn expected(world: &World, plan: &Plan) -> Option<Rejection> {
    let config = &world.case.config;
    let (prompt_tokens, max_model_len) = (plan.prompt, config.max_model_len);
    if prompt_tokens >= max_model_len {
        return Some(Rejection::PromptTooLong { prompt_tokens, max_model_len, longest: max_model_len - 1 });
    }
    // The last output token is never computed.
    let slots = prompt_tokens + plan.outputs(max_model_len) - 1;
    let (needed, usable) = (slots.div_ceil(config.block_size), config.usable_blocks());
    if needed > usable {
        return Some(Rejection::LargerThanPool {
            needed_blocks: needed.into(),
            usable_blocks: usable.into(),
        });
    }
    let live = world.live().count();
    if let Some(limit) = config.max_num_queued_reqs.filter(|&limit| live >= limit as usize) {
        return Some(Rejection::QueueFull { max_num_queued_reqs: limit });
    }
    let awaiting = world.live().filter(|(_, request)| request.outputs == 0);
    let tokens: u64 = awaiting.map(|(_, request)| u64::from(request.plan.prompt)).sum();
    let limit = config.max_num_queued_tokens.filter(|&limit| tokens >= limit)?;
    Some(Rejection::QueuedTokensFull { max_num_queued_tokens: limit })
}
