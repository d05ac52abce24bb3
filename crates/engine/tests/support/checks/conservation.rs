//! (Invariant 1) Submitted = finished + cancelled + refused + running + waiting: nobody is lost and nobody is twice.

use crate::support::world::{Fate, World};
use std::collections::HashSet;

pub fn check(world: &World) {
    let rank = &world.plain.rank;
    let stats = rank.stats();
    let queued: Vec<usize> = rank.running().chain(rank.waiting()).map(|slot| world.number(slot)).collect();
    let live: HashSet<usize> = world.live().map(|(number, _)| number).collect();
    assert_eq!(queued.len(), live.len());
    assert_eq!(queued.into_iter().collect::<HashSet<_>>(), live);
    assert_eq!(stats.running + stats.waiting, live.len());
    assert_eq!(rank.unfinished(), live.len());
    assert_eq!(rank.in_flight(), world.flights.len());
    let preemptions: u32 = world.requests.iter().map(|request| request.preemptions).sum();
    assert_eq!(stats.preemptions, u64::from(preemptions));
}

/// When a rank has nothing to do, every request has ended and every block is free.
pub fn at_rest(world: &World) {
    assert!(world.requests.iter().all(|request| request.fate != Fate::Live));
    assert_eq!(world.plain.rank.stats().used_blocks, 0);
    assert_eq!(world.plain.rank.free_blocks(), world.case.config.usable_blocks());
}
