//! (Invariant 2) Free + used = all blocks, after every call; none is used when nothing runs. A running request holds
//! the blocks of the tokens computed of it and no other; a waiting one holds none. The null block is never
//! handed out.

use crate::support::world::World;
use std::collections::HashSet;

pub fn check(world: &World) {
    let (rank, config) = (&world.plain.rank, &world.case.config);
    let mut held = HashSet::new();
    for slot in rank.running() {
        let blocks = rank.blocks(slot);
        assert_eq!(blocks.len() as u32, rank.computed_tokens(slot).div_ceil(config.block_size), "{slot:?}");
        let own: HashSet<u32> = blocks.iter().copied().collect();
        assert_eq!(own.len(), blocks.len(), "no block twice in a request");
        held.extend(own);
    }
    assert!(rank.waiting().all(|slot| rank.blocks(slot).is_empty() && rank.computed_tokens(slot) == 0));

    let queue = rank.free_queue();
    let free: HashSet<u32> = queue.iter().copied().collect();
    assert_eq!(free.len(), queue.len(), "no block twice in the free queue");
    assert!(free.is_disjoint(&held));
    assert!(free.iter().chain(&held).all(|&block| block > 0 && block < config.num_blocks));

    let stats = rank.stats();
    assert_eq!((queue.len() as u32, held.len() as u32), (rank.free_blocks(), stats.used_blocks));
    assert_eq!(rank.free_blocks() + stats.used_blocks, config.usable_blocks());
    assert!(stats.used_blocks <= stats.peak_used_blocks && stats.peak_used_blocks <= stats.usable_blocks);
}
