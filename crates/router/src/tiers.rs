//! The tiers below the accelerator's memory, as a router that credits them knows them: who has which block in its host's
//! memory or on its disk, and how far these lead a prompt on from where the tiers before them end.
//!
//! After dynamo-kv-router 1.6.1 (indexer/lower_tier_indexers.rs, scheduling/overlap.rs): a rank's blocks in a tier count
//! from the end of what it has in the tiers before it, up to the first one that it lacks; what it has twice counts once.

use crate::holders::{Holders, Overlaps, runs};
use windtunnel_engine::{KeyRun, KvEvent, KvEvents, Tier};

/// Tiers below the accelerator's memory, the fastest first.
const LOWER: [Tier; 2] = [Tier::Host, Tier::Disk];

/// What a block in a tier is worth against one in the accelerator's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierCredits {
    /// In the host's memory.
    pub host: f64,
    /// On a disk.
    pub disk: f64,
}

impl Default for TierCredits {
    /// The reference's (`host_cache_hit_weight`, `disk_cache_hit_weight`).
    fn default() -> Self {
        TierCredits { host: 0.75, disk: 0.25 }
    }
}

/// Blocks of a prompt that a rank has below its accelerator's memory, each behind those of the tiers before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) host: u32,
    pub(crate) disk: u32,
}

impl Below {
    fn in_tier(&mut self, at: usize) -> &mut u32 {
        match LOWER[at] {
            Tier::Disk => &mut self.disk,
            Tier::Host | Tier::Device => &mut self.host,
        }
    }
}

/// The index of a deployment with such tiers, and what the last look-up found.
pub(crate) struct LowerTiers {
    credits: TierCredits,
    /// In the order of [`LOWER`].
    holders: [Holders; LOWER.len()],
    /// By rank.
    below: Vec<Below>,
    /// Scratch: where each rank's walk begins, the ranks in that order, and what a walk found.
    starts: Vec<u32>,
    order: Vec<u32>,
    found: Overlaps,
}

impl LowerTiers {
    /// Nobody holds anything.
    pub(crate) fn new(credits: TierCredits, ranks: u32) -> LowerTiers {
        LowerTiers {
            credits,
            holders: [Holders::new(ranks), Holders::new(ranks)],
            below: vec![Below::default(); ranks as usize],
            starts: Vec::new(),
            order: Vec::new(),
            found: Overlaps::default(),
        }
    }

    /// There are `ranks` ranks from now on, no fewer than before.
    pub(crate) fn grow(&mut self, ranks: u32) {
        self.holders.iter_mut().for_each(|holders| holders.grow(ranks));
        self.below.resize(ranks as usize, Below::default());
    }

    /// A rank holds nothing any more.
    pub(crate) fn clear(&mut self, rank: u32) {
        self.holders.iter_mut().for_each(|holders| holders.clear(rank));
    }

    /// Takes in what a rank tells of these tiers. What it tells of the accelerator's memory is not for here.
    pub(crate) fn apply(&mut self, rank: u32, events: &KvEvents) {
        let at = |tier: Tier| LOWER.iter().position(|&lower| lower == tier);
        for event in events.iter() {
            match event {
                KvEvent::Stored { tier, blocks, .. } => {
                    let Some(at) = at(tier) else { continue };
                    runs(blocks, |run| self.holders[at].add(rank, run));
                }
                KvEvent::Removed { tier, blocks } => {
                    let Some(at) = at(tier) else { continue };
                    runs(blocks, |run| self.holders[at].remove(rank, run));
                }
                KvEvent::Cleared => {}
            }
        }
    }

    /// Looks up how far each rank's lower tiers lead a prompt on. `device` is what the ranks have of it in their
    /// accelerators' memory.
    pub(crate) fn look_up(&mut self, prompt: &[KeyRun], device: &Overlaps) {
        let LowerTiers { holders, below, starts, order, found, .. } = self;
        starts.clear();
        starts.extend_from_slice(device.all());
        order.clear();
        order.extend(0..starts.len() as u32);
        below.fill(Below::default());
        for (at, holders) in holders.iter().enumerate() {
            order.sort_by_key(|&rank| starts[rank as usize]);
            holders.overlaps_from(prompt, (starts.as_slice(), order.as_slice()), found);
            for &rank in found.some() {
                let blocks = found.of(rank);
                *below[rank as usize].in_tier(at) = blocks;
                starts[rank as usize] += blocks;
            }
        }
    }

    /// What the last look-up found on a rank.
    #[inline]
    pub(crate) fn of(&self, rank: u32) -> Below {
        self.below[rank as usize]
    }

    /// A credit in blocks, with what these blocks are worth.
    #[inline]
    pub(crate) fn credit(&self, rank: u32, device: f64) -> f64 {
        let Below { host, disk } = self.of(rank);
        device + self.credits.host * f64::from(host) + self.credits.disk * f64::from(disk)
    }

    /// What it found, of the ranks where that is anything.
    pub(crate) fn some(&self) -> impl Iterator<Item = (u32, Below)> {
        (0u32..)
            .zip(&self.below)
            .filter(|(_, below)| **below != Below::default())
            .map(|(at, below)| (at, *below))
    }

    /// Sets what a look-up found earlier.
    pub(crate) fn restore(&mut self, found: &[(u32, Below)]) {
        self.below.fill(Below::default());
        found.iter().for_each(|&(rank, below)| self.below[rank as usize] = below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use windtunnel_engine::BlockKey;

    fn chain(keys: &[u64]) -> Vec<KeyRun> {
        keys.iter().map(|&number| KeyRun { first: BlockKey(number), count: 1 }).collect()
    }

    proptest! {
        /// Whoever has what, and whatever the prompt: a tier leads on from where those before it end, for each rank by
        /// itself.
        #[test]
        fn each_tier_leads_on_from_the_one_before(
            ranks in prop::sample::select(vec![1u32, 3, 8, 65]),
            copies in prop::collection::vec((0u8..3, 0u32..65, 0u64..24), 0..300),
            dropped in prop::sample::select(vec![None, Some(0u32), Some(2)]),
            prompt in prop::collection::vec(0u64..24, 0..16),
        ) {
            let mut device = Holders::new(ranks);
            let mut lower = LowerTiers::new(TierCredits::default(), ranks);
            let mut has = HashSet::new();
            for &(tier, rank, number) in &copies {
                let rank = rank % ranks;
                if !has.insert((tier, rank, number)) {
                    continue;
                }
                let run = chain(&[number])[0];
                match tier {
                    0 => device.add(rank, run),
                    at => lower.holders[usize::from(at) - 1].add(rank, run),
                }
            }
            if let Some(rank) = dropped.filter(|rank| *rank < ranks) {
                lower.clear(rank);
                has.retain(|&(tier, holder, _)| tier == 0 || holder != rank);
            }
            let mut found = Overlaps::default();
            // As a run where it is one, so that pages and pieces of them are walked, too.
            let whole: Vec<u64> = (3..20).collect();
            for keys in [&prompt, &whole] {
                let runs = if *keys == whole {
                    vec![KeyRun { first: BlockKey(3), count: 17 }]
                } else {
                    chain(keys)
                };
                device.overlaps(&runs, &mut found);
                lower.look_up(&runs, &found);
                let mut some = vec![];
                for rank in 0..ranks {
                    let mut left = keys.as_slice();
                    let mut counts = [0u32; 3];
                    for (tier, count) in (0u8..).zip(&mut counts) {
                        let led = left.iter().take_while(|&&number| has.contains(&(tier, rank, number))).count();
                        *count = led as u32;
                        left = &left[led..];
                    }
                    let below = Below { host: counts[1], disk: counts[2] };
                    prop_assert_eq!((found.of(rank), lower.of(rank)), (counts[0], below), "rank {}", rank);
                    some.extend((below != Below::default()).then_some((rank, below)));
                }
                prop_assert_eq!(lower.some().collect::<Vec<_>>(), some.clone());
                lower.restore(&[]);
                prop_assert_eq!(lower.some().count(), 0);
                lower.restore(&some);
                prop_assert_eq!(lower.some().collect::<Vec<_>>(), some);
            }
        }
    }
}
