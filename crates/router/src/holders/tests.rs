//! The index against a count of copies, and runs against their keys one by one.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// A key like those of a trace (dense), or like those of tokens (a hash).
fn key(number: u64) -> BlockKey {
    if number < 400 { BlockKey(number) } else { BlockKey((2 << 62) | (number * 0x9e37_79b9_7f4a)) }
}

fn chain(keys: &[u64]) -> Vec<KeyRun> {
    keys.iter().map(|&number| KeyRun { first: key(number), count: 1 }).collect()
}

proptest! {
    /// Copies, of few and of many ranks, come and go in any order, ranks lose all that they have, and more ranks come:
    /// a rank has a block while it has a copy,
    /// and a prompt leads as far as it has all blocks.
    #[test]
    fn the_index_is_a_count_of_copies(
        ranks in prop::sample::select(vec![1u32, 3, 8, 64, 65, 200]),
        steps in prop::collection::vec((0u32..60, 0u32..200, 0u64..40), 1..400),
        grown in prop::sample::select(vec![0u32, 1, 60, 130]),
        prompts in prop::collection::vec(prop::collection::vec(0u64..40, 0..12), 1..20),
        spread in prop::sample::select(vec![1u64, 7, 20]),
    ) {
        let mut ranks = ranks;
        let mut holders = Holders::new(ranks);
        let mut copies = HashMap::<(u64, u32), u32>::new();
        let mut found = Overlaps::default();
        for (at, (what, rank, number)) in steps.iter().enumerate() {
            if at == steps.len() / 2 {
                ranks += grown;
                holders.grow(ranks);
            }
            let (rank, number) = (rank % ranks, number * spread);
            let count = copies.entry((number, rank)).or_default();
            if *what == 0 {
                copies.retain(|&(_, holder), _| holder != rank);
                holders.clear(rank);
            } else if *what < 32 {
                *count += 1;
                holders.add(rank, chain(&[number])[0]);
            } else {
                *count = count.saturating_sub(1);
                holders.remove(rank, chain(&[number])[0]);
            }
            if at % 16 != 0 && at + 1 != steps.len() {
                continue;
            }
            let has = |rank: u32, number: u64| copies.get(&(number, rank)).is_some_and(|&count| count > 0);
            for rank in 0..ranks {
                let held = copies.iter().filter(|((_, holder), count)| *holder == rank && **count > 0).count();
                prop_assert_eq!(holders.held(rank), held as u64);
            }
            for prompt in &prompts {
                let prompt: Vec<u64> = prompt.iter().map(|number| number * spread).collect();
                holders.overlaps(&chain(&prompt), &mut found);
                for rank in 0..ranks {
                    let depth = prompt.iter().take_while(|&&number| has(rank, number)).count();
                    prop_assert_eq!(found.of(rank), depth as u32, "rank {} of {:?}", rank, prompt);
                }
                let some: Vec<u32> = (0..ranks).filter(|&rank| found.of(rank) > 0).collect();
                let mut told = found.some().to_vec();
                told.sort_unstable();
                prop_assert_eq!(told, some);
                prop_assert_eq!(found.best(), found.all().iter().copied().max().unwrap_or(0));
            }
        }
        // Everything that came goes, and nothing is left.
        for ((number, rank), count) in copies {
            (0..count).for_each(|_| holders.remove(rank, chain(&[number])[0]));
        }
        prop_assert!((0..ranks).all(|rank| holders.held(rank) == 0));
        prop_assert!(holders.more.is_empty());
    }
}

/// dynamo#12525: two blocks with the same tokens behind different prefixes are two blocks; an identity stands
/// for the whole prefix.
#[test]
fn a_run_of_consecutive_keys_is_read_as_its_keys_one_by_one() {
    let mut holders = Holders::new(2);
    let run = |first, count| KeyRun { first: BlockKey(first), count };
    holders.add(0, run(0, 600));
    (0..300).for_each(|number| holders.add(1, run(number, 1)));
    let mut found = Overlaps::default();
    holders.overlaps(&[KeyRun { first: BlockKey(0), count: 600 }], &mut found);
    assert_eq!(found.all(), [600, 300]);
    holders.remove(0, run(257, 1));
    holders.overlaps(&[KeyRun { first: BlockKey(0), count: 600 }], &mut found);
    assert_eq!(found.all(), [257, 300]);
    holders.overlaps(&[KeyRun { first: BlockKey(258), count: 600 }], &mut found);
    assert_eq!(found.all(), [342, 42]);
}
