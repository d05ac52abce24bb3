//! What must hold after every call.

use super::case::Case;
use super::world::{Tracked, World};
use crate::support::plan::{Meaning, Plan};
use std::collections::{HashMap, HashSet};
use windtunnel_engine::trtllm::{CapacityPolicy, Config, FullHit, Rank};
use windtunnel_engine::{BlockKey, KvEvent, KvEvents, Rejection, Scheduled, Slot};

/// Output tokens that a request may have, or why it is refused.
pub fn refusal(config: &Config, plan: &Plan) -> Result<u32, Rejection> {
    let prompt_tokens = plan.prompt;
    if prompt_tokens >= config.max_seq_len {
        return Err(Rejection::PromptTooLong {
            prompt_tokens,
            max_model_len: config.max_seq_len,
            longest: config.max_seq_len - 1,
        });
    }
    if !config.chunked_prefill && prompt_tokens > config.max_num_tokens {
        let max_num_tokens = config.max_num_tokens;
        return Err(Rejection::PromptExceedsBudget { prompt_tokens, max_num_tokens });
    }
    let pool = config.num_blocks * config.block_size;
    let mut outputs = plan.max_tokens.min(config.max_seq_len - prompt_tokens);
    if config.clamp_output_to_pool && prompt_tokens < pool {
        outputs = outputs.min(pool - prompt_tokens);
    } else if config.clamp_output_to_pool {
        outputs = 1;
    }
    let (needed, usable) = ((prompt_tokens + outputs).div_ceil(config.block_size), config.num_blocks);
    if needed > usable {
        return Err(Rejection::LargerThanPool { needed_blocks: needed.into(), usable_blocks: usable.into() });
    }
    Ok(outputs)
}

/// Everything that can be seen of a rank between two calls is the same whatever the stepper.
pub fn states(plain: &Rank, fast: &Rank) {
    assert_eq!(fast.stats(), plain.stats());
    assert_eq!((fast.in_flight(), fast.has_work()), (plain.in_flight(), plain.has_work()));
    assert!(fast.running().eq(plain.running()) && fast.waiting().eq(plain.waiting()));
    assert_eq!(fast.batch(), plain.batch());
    for slot in plain.running().chain(plain.waiting()) {
        assert_eq!(fast.id(slot), plain.id(slot));
        assert_eq!(fast.computed_tokens(slot), plain.computed_tokens(slot), "{slot:?}");
        assert_eq!(fast.known_tokens(slot), plain.known_tokens(slot), "{slot:?}");
        assert_eq!(fast.is_context(slot), plain.is_context(slot), "{slot:?}");
        assert_eq!(fast.pauses(slot), plain.pauses(slot));
        assert_eq!(fast.blocks(slot), plain.blocks(slot));
    }
    assert_eq!(fast.free_queue(), plain.free_queue());
    assert_eq!(fast.cached_blocks(), plain.cached_blocks());
    assert_eq!(fast.reserved_blocks(), plain.reserved_blocks());
}

/// An index of the reuse tree that knows nothing but events.
#[derive(Default)]
pub struct Mirror {
    /// Each reusable block and the one before it.
    held: HashMap<BlockKey, Option<BlockKey>>,
    meanings: HashMap<BlockKey, Meaning>,
    keys: HashMap<Meaning, BlockKey>,
    events: u64,
}

impl Mirror {
    fn holds(&self, meaning: &Meaning) -> bool {
        self.keys.get(meaning).is_some_and(|key| self.held.contains_key(key))
    }

    /// Takes in events in order: nothing is stored twice or before its parent, and nothing goes that is not
    /// there. Equal keys mean equal prefixes, and only full blocks of known tokens are stored.
    pub fn replay(&mut self, events: &KvEvents, requests: &[Tracked], case: &Case) {
        for event in events.iter() {
            self.events += 1;
            match event {
                KvEvent::Removed { blocks, .. } => {
                    for block in blocks {
                        assert!(self.held.remove(block).is_some(), "no block is removed that was not stored");
                        assert!(
                            self.held.values().all(|parent| parent.as_ref() != Some(block)),
                            "children first"
                        );
                    }
                }
                KvEvent::Cleared => unreachable!("there is no such event"),
                KvEvent::Stored { request, first_block, mut parent, blocks, .. } => {
                    let number = request.0 as usize;
                    let (size, tracked) = (case.config.block_size, &requests[number]);
                    assert!(!blocks.is_empty());
                    assert!(
                        (first_block + blocks.len() as u32) * size <= tracked.known(),
                        "known tokens only"
                    );
                    assert_eq!(parent.is_none(), first_block == 0);
                    for (index, &key) in (first_block..).zip(blocks) {
                        assert!(parent.is_none_or(|parent| self.held.contains_key(&parent)), "parents first");
                        let meaning = tracked.plan.meaning(number, index, size, case.id_tokens);
                        let known = self.meanings.entry(key).or_insert_with(|| meaning.clone());
                        assert_eq!(*known, meaning, "one key, one prefix");
                        assert_eq!(*self.keys.entry(meaning).or_insert(key), key, "one prefix, one key");
                        assert_eq!(self.held.insert(key, parent), None, "one block for one identity");
                        parent = Some(key);
                    }
                }
            }
        }
    }
}

/// What a pass is decided on.
pub struct Before {
    free: u32,
    /// Of requests without blocks: whole blocks at their start that can be reused, and what the block
    /// behind them is, if it is full.
    prefixes: HashMap<Slot, (u32, Option<Meaning>)>,
    /// First new block of each prompt that is being computed.
    begun: Vec<Meaning>,
    /// Prompts that are being computed.
    contexts: usize,
    held: HashMap<Slot, usize>,
}

impl Before {
    pub fn of(world: &World) -> Before {
        let rank = &world.plain.rank;
        let prefix = |slot: Slot| {
            let (number, size) = (world.number(slot), world.case.config.block_size);
            let request = &world.requests[number];
            let full = request.known() / size;
            let meaning = |index| request.plan.meaning(number, index, size, world.case.id_tokens);
            let hits = match world.case.config.block_reuse {
                true => (0..full).take_while(|&index| world.cache.holds(&meaning(index))).count() as u32,
                false => 0,
            };
            (hits, (hits < full).then(|| meaning(hits)))
        };
        Before {
            free: rank.free_blocks(),
            prefixes: rank.waiting().map(|slot| (slot, prefix(slot))).collect(),
            begun: rank
                .running()
                .filter(|&slot| rank.is_context(slot))
                .filter_map(|slot| prefix(slot).1)
                .collect(),
            contexts: rank.running().filter(|&slot| rank.is_context(slot)).count(),
            held: rank.running().map(|slot| (slot, rank.blocks(slot).len())).collect(),
        }
    }
}

/// To be called after `schedule`.
pub fn pass(world: &mut World, before: &Before, scheduled: &Scheduled, batch: &[(Slot, u32)]) {
    let (rank, config) = (&world.plain.rank, &world.case.config);
    let size = config.block_size;
    // Invariant 8.
    assert!(scheduled.tokens <= u64::from(config.max_num_tokens));
    assert_eq!(batch.iter().map(|&(_, tokens)| u64::from(tokens)).sum::<u64>(), scheduled.tokens);
    assert_eq!(scheduled.shape().tokens(), scheduled.tokens);
    let slots: HashSet<Slot> = batch.iter().map(|&(slot, _)| slot).collect();
    assert_eq!(slots.len(), batch.len(), "nobody twice");

    let mut first_new: HashSet<Meaning> = before.begun.iter().cloned().collect();
    for admission in &scheduled.admitted {
        let (hits, new) = &before.prefixes[&admission.slot];
        let known = admission.known_tokens;
        assert_eq!(known, world.requests[world.number(admission.slot)].known());
        let expected = match (hits * size == known, config.full_hit, config.partial_reuse) {
            (false, ..) | (true, FullHit::Reference, _) => hits * size,
            (true, FullHit::Recompute, true) => known - 1,
            (true, FullHit::Recompute, false) => known - size,
        };
        assert_eq!(admission.hit_tokens, expected, "what the events say is there");
        assert_eq!(
            rank.blocks(admission.slot).len() as u32,
            known.div_ceil(size),
            "the whole prompt at once"
        );
        if config.beneficial_to_skip && config.block_reuse {
            let fresh = new.clone().is_none_or(|meaning| first_new.insert(meaning));
            assert!(fresh, "two prompts of a pass do not compute the same block first");
        }
    }
    for chunk in &scheduled.prefill {
        assert!(chunk.new_tokens > 0);
    }
    for slot in rank.running().filter(|&slot| rank.is_context(slot)) {
        assert_eq!(rank.computed_tokens(slot) % size, 0, "a chunk that is not the last ends with a block");
        assert!(config.chunked_prefill);
        world.tally.chunks += 1;
    }
    // Invariant 12. Who had somebody paused may sit out the pass, but not the next one.
    if rank.running().count() == 0 && scheduled.preempted.is_empty() {
        assert_eq!(rank.waiting().count(), 0, "nothing runs although somebody waits");
    }
    if config.capacity_policy == CapacityPolicy::GuaranteedNoEvict {
        assert!(scheduled.preempted.is_empty() && rank.stats().preemptions == 0);
        // What requests past their prompt may still need is there.
        let total = |slot: Slot| {
            let request = &world.requests[world.number(slot)];
            (request.plan.prompt + request.max_tokens).div_ceil(size)
        };
        let generating = rank.running().filter(|&slot| !rank.is_context(slot));
        let reserve: u32 = generating.map(|slot| total(slot) - rank.blocks(slot).len() as u32).sum();
        assert_eq!(u64::from(reserve), rank.reserved_blocks());
        assert!(reserve <= rank.free_blocks());
        // Head of line: the first prompt that waits was skipped, or did not fit.
        let admitted: u32 = scheduled.admitted.len() as u32;
        let first = rank.waiting().next().filter(|slot| before.prefixes.contains_key(slot));
        if let Some(slot) = first
            && admitted == 0
            && config.chunked_prefill
            && before.contexts == 0
            && rank.running().count() < config.max_batch_size as usize
            && scheduled.tokens + u64::from(config.chunk_unit()) <= u64::from(config.max_num_tokens)
        {
            let grown: u32 = before
                .held
                .iter()
                .filter(|&(&slot, _)| rank.running().any(|other| other == slot))
                .map(|(&slot, &held)| rank.blocks(slot).len() as u32 - held as u32)
                .sum();
            assert_eq!(before.free - grown, rank.free_blocks(), "growth alone took blocks");
            assert!(total(slot) > rank.free_blocks() - reserve, "{slot:?} waits although it fits");
        }
    }
    let skipped = rank.waiting().filter(|slot| {
        before
            .prefixes
            .get(slot)
            .is_some_and(|(_, new)| new.as_ref().is_some_and(|new| first_new.contains(new)))
    });
    world.tally.skips += skipped.count() as u64;
}

/// Where the engine's rules let nobody go on: a prompt that was skipped comes back in front of one that has begun
/// since, and needs more than is free; the pass over the prompts ends there, so that the one that has begun
/// is never reached again, nor its blocks given back.
pub fn assert_known_deadlock(world: &World) {
    let (rank, config) = (&world.plain.rank, &world.case.config);
    assert_eq!(config.capacity_policy, CapacityPolicy::GuaranteedNoEvict);
    assert!(config.chunked_prefill && config.beneficial_to_skip && config.block_reuse);
    assert!(rank.running().all(|slot| rank.is_context(slot)) && rank.scheduled().tokens == 0);
    let first_begun = rank.running().next().map(|slot| world.number(slot));
    let first_waiting = rank.waiting().next().map(|slot| world.number(slot));
    assert!(first_waiting < first_begun, "{first_waiting:?} stands in front of {first_begun:?}");
}

/// To be called after every call.
pub fn between_calls(world: &World) {
    let (rank, config) = (&world.plain.rank, &world.case.config);
    let stats = rank.stats();
    // Invariant 1.
    let queued: HashSet<usize> =
        rank.running().chain(rank.waiting()).map(|slot| world.number(slot)).collect();
    let live: HashSet<usize> = world.live().map(|(number, _)| number).collect();
    assert_eq!(queued, live);
    assert_eq!((stats.running + stats.waiting, rank.unfinished()), (live.len(), live.len()));
    assert!(stats.running <= config.max_batch_size as usize);
    // Invariant 2.
    let mut held = HashSet::new();
    for slot in rank.running() {
        let request = &world.requests[world.number(slot)];
        let needed = rank.computed_tokens(slot).max(request.context).div_ceil(config.block_size);
        assert_eq!(rank.blocks(slot).len() as u32, needed, "{slot:?}");
        let own: HashSet<u32> = rank.blocks(slot).iter().copied().collect();
        assert_eq!(own.len(), rank.blocks(slot).len(), "no block twice in a request");
        held.extend(own);
    }
    assert!(rank.waiting().all(|slot| rank.blocks(slot).is_empty() && rank.computed_tokens(slot) == 0));
    let free: HashSet<u32> = rank.free_queue().into_iter().collect();
    assert!(free.is_disjoint(&held));
    assert_eq!((free.len(), held.len()), (rank.free_blocks() as usize, stats.used_blocks as usize));
    assert_eq!(rank.free_blocks() + stats.used_blocks, config.num_blocks);
    assert!(stats.used_blocks <= stats.peak_used_blocks && stats.peak_used_blocks <= stats.usable_blocks);
    // Invariants 7, 10 and 11.
    let cached: HashSet<BlockKey> = rank.cached_blocks().into_iter().map(|(key, _)| key).collect();
    assert_eq!(cached, world.cache.held.keys().copied().collect());
    assert_eq!(stats.cached_blocks as usize, cached.len());
    assert!(stats.prefix_hits <= stats.prefix_queries);
    if !config.block_reuse {
        assert_eq!((world.cache.events, stats.prefix_hits, stats.prefix_queries), (0, 0, 0));
    }
}
