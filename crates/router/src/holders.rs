//! Which ranks hold which blocks: the index behind placement by KV content.
//!
//! Fed by what the ranks tell of their prefix caches, it answers one question: how far does the prompt of a
//! request lead on each rank? A rank may hold several copies of a block, and has it until the last one is gone.
//! One number stands for a block that one rank has, which are most of them in a large fleet; a set, a bit for each
//! rank, for one that several have. So a look-up is one walk along the prompt, whatever the number of ranks.

use std::collections::HashMap;
use windtunnel_engine::{BlockKey, KeyRun, KeySpace, KeyTable, KvEvent, KvEvents, Tier};

const NIL: u32 = KeyTable::NIL;
/// Some rank has more than one copy of the block.
const COPIED: u32 = 1 << 31;
/// Entries below are ranks, those from here on sets.
const FIRST_SET: u32 = 1 << 24;

/// Blocks and who holds them.
#[derive(Clone, Default)]
pub struct Holders {
    ranks: u32,
    /// Words of a set.
    words: usize,
    table: KeyTable,
    sets: Vec<u64>,
    vacant: Vec<u32>,
    /// Copies beyond the first.
    more: HashMap<(BlockKey, u32), u32>,
    /// Distinct blocks of each rank.
    held: Vec<u64>,
}

impl Holders {
    /// Nobody holds anything. At most 2^24 ranks.
    pub fn new(ranks: u32) -> Holders {
        debug_assert!(ranks <= FIRST_SET);
        Holders {
            ranks,
            words: (ranks as usize).div_ceil(64),
            held: vec![0; ranks as usize],
            ..Holders::default()
        }
    }

    /// There are `ranks` ranks from now on, no fewer than before. The new ones hold nothing.
    pub fn grow(&mut self, ranks: u32) {
        debug_assert!(self.ranks <= ranks && ranks <= FIRST_SET);
        let (before, words) = (self.words, (ranks as usize).div_ceil(64));
        if words > before && !self.sets.is_empty() {
            let mut sets = vec![0; self.sets.len() / before * words];
            for (new, old) in sets.chunks_exact_mut(words).zip(self.sets.chunks_exact(before)) {
                new[..before].copy_from_slice(old);
            }
            self.sets = sets;
        }
        (self.ranks, self.words) = (ranks, words);
        self.held.resize(ranks as usize, 0);
    }

    /// A rank holds nothing any more. Takes as long as there are blocks in all.
    pub fn clear(&mut self, rank: u32) {
        let Holders { table, sets, vacant, more, words, .. } = self;
        table.update_all(|entry| {
            let (who, copied) = (entry & !COPIED, entry & COPIED);
            if who < FIRST_SET {
                return if who == rank { NIL } else { entry };
            }
            let set = who - FIRST_SET;
            match take_member(sets, vacant, *words, set, rank) {
                Some(Some(last)) => last | copied,
                Some(None) | None => entry,
            }
        });
        more.retain(|&(_, holder), _| holder != rank);
        self.held[rank as usize] = 0;
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Distinct blocks that a rank holds.
    pub fn held(&self, rank: u32) -> u64 {
        self.held[rank as usize]
    }

    /// Takes in what a rank tells of its prefix cache.
    pub fn apply(&mut self, rank: u32, events: &KvEvents) {
        for event in events.iter() {
            match event {
                // Copies in other tiers are for the index of these.
                KvEvent::Stored { tier, .. } | KvEvent::Removed { tier, .. } if tier != Tier::Device => {}
                KvEvent::Stored { blocks, .. } => runs(blocks, |run| self.add(rank, run)),
                KvEvent::Removed { blocks, .. } => runs(blocks, |run| self.remove(rank, run)),
                // An engine says so also when it starts, and nothing is known of it then.
                KvEvent::Cleared if self.held(rank) > 0 => self.clear(rank),
                KvEvent::Cleared => {}
            }
        }
    }

    /// A rank has one more copy of each block of a run.
    #[inline]
    pub fn add(&mut self, rank: u32, run: KeyRun) {
        let Holders { table, sets, vacant, more, held, words, .. } = self;
        let mut new = 0;
        table.update_run(run, |key, entry| {
            if entry == NIL {
                new += 1;
                return rank;
            }
            let (who, copied) = (entry & !COPIED, entry & COPIED);
            let mut again = || {
                *more.entry((key, rank)).or_default() += 1;
                entry | COPIED
            };
            if who == rank {
                return again();
            }
            let set = if who < FIRST_SET {
                let set = fresh_set(sets, vacant, *words);
                insert(sets, set, *words, who);
                set
            } else {
                who - FIRST_SET
            };
            if !insert(sets, set, *words, rank) {
                return again();
            }
            new += 1;
            (FIRST_SET + set) | copied
        });
        held[rank as usize] += new;
    }

    /// A rank has one copy of each block of a run less. Of a block that it does not have, nothing is to be taken.
    #[inline]
    pub fn remove(&mut self, rank: u32, run: KeyRun) {
        let Holders { table, sets, vacant, more, held, words, .. } = self;
        table.update_run(run, |key, entry| {
            if entry == NIL {
                return NIL;
            }
            let (who, copied) = (entry & !COPIED, entry & COPIED);
            if copied != 0
                && let Some(copies) = more.get_mut(&(key, rank))
            {
                *copies -= 1;
                if *copies == 0 {
                    more.remove(&(key, rank));
                }
                return entry;
            }
            if who < FIRST_SET {
                if who != rank {
                    return entry;
                }
                held[rank as usize] -= 1;
                return NIL;
            }
            match take_member(sets, vacant, *words, who - FIRST_SET, rank) {
                None => entry,
                Some(last) => {
                    held[rank as usize] -= 1;
                    last.map_or(entry, |last| last | copied)
                }
            }
        });
    }

    /// How many blocks from the start of a prompt each rank holds, for the ranks that hold any. `prompt` are
    /// the keys of the whole blocks of the prompt.
    pub fn overlaps(&self, prompt: &[KeyRun], found: &mut Overlaps) {
        found.clear(self.ranks, self.words);
        let mut walk = Walk { holders: self, found, depth: 0, who: Who::All };
        for &run in prompt {
            if !self.table.read_run(run, |entries| walk.along(entries)) {
                break;
            }
        }
        walk.finish();
    }

    /// How many blocks of a prompt each rank holds from a position of its own on. `starts` are these by rank, and the
    /// ranks in the order of theirs.
    pub(crate) fn overlaps_from(
        &self,
        prompt: &[KeyRun],
        (starts, order): (&[u32], &[u32]),
        found: &mut Overlaps,
    ) {
        found.clear(self.ranks, self.words);
        found.active.fill(0);
        let keys = prompt.iter().flat_map(|run| (0..run.count).map(|at| run.key(at)));
        let (mut waiting, mut active) = (order.iter().peekable(), 0u32);
        let mut end = 0;
        for (depth, key) in (0u32..).zip(keys) {
            while let Some(&rank) = waiting.next_if(|&&rank| starts[rank as usize] == depth) {
                found.active[rank as usize / 64] |= 1 << (rank % 64);
                active += 1;
            }
            end = depth + 1;
            if active == 0 {
                if waiting.peek().is_none() {
                    break;
                }
                continue;
            }
            let entry = self.table.get(key);
            for word in 0..self.words {
                let members = match entry & !COPIED {
                    _ if entry == NIL => 0,
                    rank if rank < FIRST_SET => u64::from(rank as usize / 64 == word) << (rank % 64),
                    set => self.sets[(set - FIRST_SET) as usize * self.words + word],
                };
                let gone = found.active[word] & !members;
                if gone != 0 {
                    found.active[word] &= members;
                    active -= drop_behind(found, word, gone, starts, depth);
                }
            }
        }
        for word in 0..self.words {
            let left = std::mem::take(&mut found.active[word]);
            drop_behind(found, word, left, starts, end);
        }
    }
}

/// The ranks with a bit in `gone` have what lies between their starts and `depth`. Tells how many they are.
fn drop_behind(found: &mut Overlaps, word: usize, mut gone: u64, starts: &[u32], depth: u32) -> u32 {
    let count = gone.count_ones();
    while gone != 0 {
        let rank = word as u32 * 64 + gone.trailing_zeros();
        found.set(rank, depth - starts[rank as usize]);
        gone &= gone - 1;
    }
    count
}

/// Gives `take` the keys that several requests can have, in runs: those of a prompt that follow each other are mostly
/// consecutive.
pub(crate) fn runs(keys: &[BlockKey], mut take: impl FnMut(KeyRun)) {
    keys.chunk_by(|one, next| next.0 == one.0.wrapping_add(1) && one.space() == next.space())
        .filter(|run| run[0].space() != KeySpace::Private)
        .for_each(|run| take(KeyRun { first: run[0], count: run.len() as u32 }));
}

/// A set with no members.
fn fresh_set(sets: &mut Vec<u64>, vacant: &mut Vec<u32>, words: usize) -> u32 {
    vacant.pop().unwrap_or_else(|| {
        let set = sets.len() / words;
        sets.resize(sets.len() + words, 0);
        set as u32
    })
}

/// Takes a rank out of a set, which has at least two members: None if it is none of them. Of two the other one is told,
/// and the set is vacant then.
fn take_member(
    sets: &mut [u64],
    vacant: &mut Vec<u32>,
    words: usize,
    set: u32,
    rank: u32,
) -> Option<Option<u32>> {
    let members = &mut sets[set as usize * words..][..words];
    let (word, bit) = (rank as usize / 64, 1 << (rank % 64));
    if members[word] & bit == 0 {
        return None;
    }
    members[word] &= !bit;
    let mut left = (0u32..).zip(&*members).filter(|(_, word)| **word != 0);
    let (word, &bits) = left.next()?;
    if bits & (bits - 1) != 0 || left.next().is_some() {
        return Some(None);
    }
    members.fill(0);
    vacant.push(set);
    Some(Some(word * 64 + bits.trailing_zeros()))
}

/// Makes a rank a member. False if it is one.
fn insert(sets: &mut [u64], set: u32, words: usize, rank: u32) -> bool {
    let word = &mut sets[set as usize * words + rank as usize / 64];
    let bit = 1 << (rank % 64);
    let new = *word & bit == 0;
    *word |= bit;
    new
}

/// What a look-up found. Used again for the next one.
#[derive(Clone, Debug, Default)]
pub struct Overlaps {
    /// By rank.
    blocks: Vec<u32>,
    /// Ranks that hold some.
    some: Vec<u32>,
    /// Scratch: the ranks that have all so far.
    active: Vec<u64>,
}

impl Overlaps {
    /// Blocks from the start of the prompt that a rank holds.
    #[inline]
    pub fn of(&self, rank: u32) -> u32 {
        self.blocks[rank as usize]
    }

    /// By rank.
    pub fn all(&self) -> &[u32] {
        &self.blocks
    }

    /// The ranks that hold some of them, in no order.
    pub fn some(&self) -> &[u32] {
        &self.some
    }

    /// The most that a rank holds.
    pub fn best(&self) -> u32 {
        self.some.iter().map(|&rank| self.of(rank)).max().unwrap_or(0)
    }

    /// Sets what a look-up found earlier, among as many ranks.
    pub(crate) fn restore(&mut self, found: &[(u32, u32)]) {
        self.clear(self.blocks.len() as u32, self.active.len());
        found.iter().for_each(|&(rank, blocks)| self.set(rank, blocks));
    }

    fn clear(&mut self, ranks: u32, words: usize) {
        self.blocks.resize(ranks as usize, 0);
        for rank in self.some.drain(..) {
            self.blocks[rank as usize] = 0;
        }
        self.active.resize(words, 0);
    }

    fn set(&mut self, rank: u32, blocks: u32) {
        if blocks > 0 {
            self.blocks[rank as usize] = blocks;
            self.some.push(rank);
        }
    }
}

/// The ranks that have all blocks so far.
#[derive(Clone, Copy)]
enum Who {
    /// Nothing was looked at.
    All,
    One(u32),
    /// Those of the scratch set.
    Several,
    Nobody,
}

struct Walk<'a> {
    holders: &'a Holders,
    found: &'a mut Overlaps,
    depth: u32,
    who: Who,
}

impl Walk<'_> {
    /// Goes along the next entries, none of which is empty. False when nobody is left.
    fn along(&mut self, entries: &[u32]) -> bool {
        let mut last = NIL;
        for &entry in entries {
            let entry = entry & !COPIED;
            // The next block of a chain mostly lies where the one before it does.
            if entry != last || entry >= FIRST_SET {
                self.narrow(entry);
                if matches!(self.who, Who::Nobody) {
                    return false;
                }
                last = entry;
            }
            self.depth += 1;
        }
        true
    }

    /// Leaves those who have this block, too.
    fn narrow(&mut self, entry: u32) {
        if entry < FIRST_SET {
            match self.who {
                Who::All => self.who = Who::One(entry),
                Who::One(rank) if rank == entry => {}
                Who::One(rank) => self.drop_last(rank),
                Who::Several => {
                    let (word, bit) = (entry as usize / 64, 1 << (entry % 64));
                    let stays = self.found.active[word] & bit != 0;
                    self.found.active[word] &= !bit;
                    self.drop_active();
                    self.who = if stays { Who::One(entry) } else { Who::Nobody };
                }
                Who::Nobody => {}
            }
            return;
        }
        let words = self.holders.words;
        let set = &self.holders.sets[(entry - FIRST_SET) as usize * words..][..words];
        match self.who {
            Who::All => {
                self.found.active.copy_from_slice(set);
                self.who = Who::Several;
            }
            Who::One(rank) => {
                if set[rank as usize / 64] & (1 << (rank % 64)) == 0 {
                    self.drop_last(rank);
                }
            }
            Who::Several => {
                let mut left = 0;
                for (word, &members) in set.iter().enumerate() {
                    let gone = self.found.active[word] & !members;
                    if gone != 0 {
                        self.found.active[word] &= members;
                        drop_word(self.found, word, gone, self.depth);
                    }
                    left |= self.found.active[word];
                }
                if left == 0 {
                    self.who = Who::Nobody;
                }
            }
            Who::Nobody => {}
        }
    }

    fn drop_last(&mut self, rank: u32) {
        self.found.set(rank, self.depth);
        self.who = Who::Nobody;
    }

    fn drop_active(&mut self) {
        for word in 0..self.holders.words {
            let gone = std::mem::take(&mut self.found.active[word]);
            drop_word(self.found, word, gone, self.depth);
        }
    }

    /// Those who are left have all that was looked at.
    fn finish(mut self) {
        match self.who {
            Who::One(rank) => self.drop_last(rank),
            Who::Several => self.drop_active(),
            Who::All | Who::Nobody => {}
        }
    }
}

/// The ranks with a bit in `gone` have `depth` blocks.
fn drop_word(found: &mut Overlaps, word: usize, mut gone: u64, depth: u32) {
    while gone != 0 {
        found.set(word as u32 * 64 + gone.trailing_zeros(), depth);
        gone &= gone - 1;
    }
}

#[cfg(test)]
mod tests;
