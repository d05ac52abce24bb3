//! (Invariant 10) Replaying all KV events into an empty index gives exactly the engine's cached set, copy by copy; none
//! is removed that is not there, and none is stored before its parent is. Equal keys mean equal prefixes,
//! and only full blocks whose tokens are known are stored.
//! (Invariant 7) Hits never exceed what was looked up. (Invariant 11) Without prefix caching there are neither hits nor events.

use crate::support::plan::{Case, Meaning};
use crate::support::world::{Tracked, World};
use std::collections::HashMap;
use windtunnel_engine::{BlockKey, KvEvent, KvEvents};

/// An index of the prefix cache that knows nothing but events.
#[derive(Default)]
pub struct Mirror {
    copies: HashMap<BlockKey, u32>,
    /// What each key was first stored for, and the other way round.
    meanings: HashMap<BlockKey, Meaning>,
    keys: HashMap<Meaning, BlockKey>,
    events: u64,
    removed: u64,
}

impl Mirror {
    /// Whether a block of this meaning is cached, and under which key.
    pub fn find(&self, meaning: &Meaning) -> Option<BlockKey> {
        self.keys.get(meaning).copied().filter(|key| self.copies.contains_key(key))
    }

    /// Takes in events in order.
    pub fn replay(&mut self, events: &KvEvents, requests: &[Tracked], case: &Case) {
        for event in events.iter() {
            self.events += 1;
            match event {
                KvEvent::Removed { blocks, .. } => blocks.iter().for_each(|&block| self.remove(block)),
                KvEvent::Cleared => unreachable!("vLLM publishes no such event"),
                KvEvent::Stored { request, first_block, mut parent, blocks, .. } => {
                    assert!(!blocks.is_empty());
                    let number = request.0 as usize;
                    let tracked = &requests[number];
                    let meaning =
                        |index| tracked.plan.meaning(number, index, case.config.block_size, case.id_tokens);
                    // A token is known one pass before it is delivered to anybody, at the earliest.
                    let end = (first_block + blocks.len() as u32) * case.config.block_size;
                    assert!(end <= tracked.known() + 1, "a block is full when its last token is known");
                    let before = first_block.checked_sub(1).map(|index| self.keys[&meaning(index)]);
                    assert_eq!(parent, before, "the parent is the block before");
                    for (index, &block) in (first_block..).zip(blocks) {
                        assert!(parent.is_none_or(|parent| self.copies.contains_key(&parent)));
                        self.store(block, meaning(index));
                        parent = Some(block);
                    }
                }
            }
        }
    }

    fn store(&mut self, key: BlockKey, meaning: Meaning) {
        let known = self.meanings.entry(key).or_insert_with(|| meaning.clone());
        assert_eq!(*known, meaning, "one key, one prefix");
        assert_eq!(*self.keys.entry(meaning).or_insert(key), key, "one prefix, one key");
        *self.copies.entry(key).or_default() += 1;
    }

    fn remove(&mut self, key: BlockKey) {
        self.removed += 1;
        let copies = self.copies.get_mut(&key).expect("no copy is removed that was not stored");
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&key);
        }
    }
}

pub fn check(world: &World) {
    let (rank, mirror) = (&world.plain.rank, &world.cache);
    let stats = rank.stats();
    let mut copies: HashMap<BlockKey, u32> = HashMap::new();
    for (key, _) in rank.cached_copies() {
        *copies.entry(key).or_default() += 1;
    }
    assert_eq!(copies, mirror.copies);
    assert_eq!(stats.cached_blocks as usize, mirror.copies.len());
    assert_eq!(stats.evictions, mirror.removed);
    assert!(stats.prefix_hits <= stats.prefix_queries);

    for admission in &rank.scheduled().admitted {
        assert!(admission.hit_tokens < admission.known_tokens, "at least one token is computed");
        assert_eq!(admission.hit_tokens % world.case.config.block_size, 0, "whole blocks only");
    }
    if !world.case.config.prefix_caching {
        assert_eq!((mirror.events, stats.prefix_queries, stats.prefix_hits), (0, 0, 0));
        assert!(rank.scheduled().admitted.iter().all(|admission| admission.hit_tokens == 0));
    }
}
