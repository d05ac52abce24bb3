//! What a random case is made of. Sizes are small so that pools run dry, budgets run out and prefixes meet.

use crate::support::plan::{Event, plan};
use proptest::prelude::*;
use windtunnel_engine::KvEventScope;
use windtunnel_engine::trtllm::{CapacityPolicy, Config, FullHit};

/// Settings, what happens, and after how many steady passes to look again.
#[derive(Clone, Debug)]
pub struct Case {
    pub config: Config,
    pub id_tokens: u32,
    pub events: Vec<Event>,
    /// Steady passes to take at once, one number for each chance; 0 leaves the chance.
    pub leaps: Vec<u8>,
}

pub fn case() -> impl Strategy<Value = Case> {
    config().prop_flat_map(load)
}

fn load(config: Config) -> impl Strategy<Value = Case> {
    let (pool, model) = (config.num_blocks * config.block_size, config.max_seq_len);
    // Now and then too long for the pool or the context, so that refusals occur.
    let longest = (pool + pool / 8).min(model + 2).clamp(2, 120);
    let prompt = prop_oneof![2 => 1..=longest.div_ceil(4), 1 => 1..=longest].boxed();
    let outputs = prop_oneof![2 => 1u32..4, 2 => 1u32..30, 1 => 1..=longest].boxed();
    let event = prop_oneof![
        8 => plan(prompt, outputs).prop_map(Event::Submit),
        1 => any::<u16>().prop_map(Event::Cancel),
        6 => prop_oneof![3 => 1u16..8, 1 => 8u16..60].prop_map(Event::Work),
    ];
    let id_tokens = prop::sample::select(vec![1u32, 2, 4, 8, 16]);
    let leaps = prop::collection::vec(prop_oneof![2 => 1u8..4, 1 => Just(0u8), 2 => 4u8..=255], 1..12);
    (id_tokens, prop::collection::vec(event, 2..50), leaps).prop_map(move |(id_tokens, events, leaps)| Case {
        config: config.clone(),
        id_tokens,
        events,
        leaps,
    })
}

type Switches = (bool, bool, bool, bool, bool, bool);

fn config() -> impl Strategy<Value = Config> {
    let pool = (
        prop::sample::select(vec![1u32, 2, 3, 4, 8, 16]),
        prop_oneof![3 => 2u32..16, 1 => 16u32..60],
        prop_oneof![Just(1000u32), 4u32..80],
    );
    let limits = (1u32..10, prop_oneof![1u32..10, 10u32..100], prop::option::weighted(0.3, 2u32..4));
    let switches = (
        any::<bool>(),
        prop::bool::weighted(0.85),
        any::<bool>(),
        prop::bool::weighted(0.8),
        any::<bool>(),
        prop::bool::weighted(0.2),
    );
    let policy =
        prop::sample::select(vec![CapacityPolicy::GuaranteedNoEvict, CapacityPolicy::MaxUtilization]);
    let full_hit = prop_oneof![3 => Just(FullHit::Recompute), 1 => Just(FullHit::Reference)];
    (pool, limits, switches, policy, full_hit).prop_map(assemble)
}

type Parts = ((u32, u32, u32), (u32, u32, Option<u32>), Switches, CapacityPolicy, FullHit);

fn assemble((pool, limits, switches, capacity_policy, full_hit): Parts) -> Config {
    let (block_size, num_blocks, max_seq_len) = pool;
    let (max_batch_size, tokens, units) = limits;
    let (chunked_prefill, block_reuse, partial_reuse, beneficial_to_skip, overlap, clamp) = switches;
    let chunk_unit_size = units.map(|units| units * block_size);
    let mut max_num_tokens = tokens;
    if chunked_prefill {
        max_num_tokens = tokens.max(chunk_unit_size.unwrap_or(block_size));
    } else if capacity_policy == CapacityPolicy::MaxUtilization {
        max_num_tokens = tokens.max(max_seq_len);
    }
    Config {
        max_batch_size,
        max_num_tokens,
        capacity_policy,
        chunked_prefill,
        chunk_unit_size,
        block_reuse,
        partial_reuse,
        beneficial_to_skip,
        overlap,
        full_hit,
        clamp_output_to_pool: clamp,
        kv_events: KvEventScope::All,
        ..Config::new(num_blocks, block_size, max_seq_len)
    }
}
