//! (Invariant 12) Work conserving: with budget and a seat left, and no preemption in the pass, the first request that
//! may be admitted is waiting only because the pool cannot give it its blocks (or, without chunked prefill,
//! because its prompt exceeds the rest of the budget). Worked out from the replayed index and the free
//! queue, not from the engine's own look-up.

use crate::support::world::World;
use std::collections::HashSet;

/// To be called after `schedule`.
pub fn check(world: &World) {
    let (rank, config) = (&world.plain.rank, &world.case.config);
    let scheduled = rank.scheduled();
    let running = rank.running().count();
    let seats = config.max_num_active_seqs.unwrap_or(config.max_num_seqs) as usize;
    let budget = config.max_num_batched_tokens - scheduled.tokens as u32;
    // With a cadence of prefill, passes may leave requests waiting on purpose.
    if !scheduled.preempted.is_empty()
        || running >= seats
        || budget == 0
        || config.prefill_schedule_interval > 1
    {
        return;
    }
    // One whose output is in flight is passed over.
    let first = rank.waiting().map(|slot| world.number(slot)).find(|&n| world.requests[n].stale == 0);
    let Some(number) = first else { return };
    let (known, hits) = (world.requests[number].known(), hits(world, number));
    let eligible = world.plain.rank.unfinished() as u32;
    let mut chunk = known - hits.blocks * config.block_size;
    let mut threshold = if eligible > 1 { config.long_prefill_token_threshold } else { 0 };
    if threshold > 0 && config.long_prefill_token_threshold_adaptive {
        threshold = threshold.max(config.max_num_batched_tokens / eligible);
    }
    if threshold > 0 {
        chunk = chunk.min(threshold);
    }
    if !config.chunked_prefill && chunk > budget {
        return;
    }
    let end = hits.blocks * config.block_size + chunk.min(budget);
    let must_fit = if config.reserve_full_isl { known } else { end };
    let kept_free = match running {
        0 => 0,
        _ => (config.watermark * f64::from(config.num_blocks)) as u32,
    };
    let needed = must_fit.div_ceil(config.block_size) - hits.blocks + hits.free;
    assert!(
        needed + kept_free > rank.free_blocks(),
        "request {number} waits although it needs {needed} of {} free blocks",
        rank.free_blocks()
    );
}

struct Hits {
    blocks: u32,
    /// Of those, blocks that nobody owns.
    free: u32,
}

/// The longest cached prefix of a request that leaves a token to compute.
fn hits(world: &World, number: usize) -> Hits {
    let (config, request) = (&world.case.config, &world.requests[number]);
    let copies = world.plain.rank.cached_copies();
    let free: HashSet<u32> = world.plain.rank.free_queue().into_iter().collect();
    let mut hits = Hits { blocks: 0, free: 0 };
    for index in 0..(request.known() - 1) / config.block_size {
        let meaning = request.plan.meaning(number, index, config.block_size, world.case.id_tokens);
        let Some(key) = world.cache.find(&meaning) else { break };
        // A look-up returns the copy that was entered first.
        let first = copies.iter().find(|copy| copy.0 == key).expect("the index equals the cache").1;
        hits.blocks += 1;
        hits.free += u32::from(free.contains(&first));
    }
    hits
}
