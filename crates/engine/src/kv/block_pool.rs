//! vLLM's block pool: physical blocks, the free queue in the engine's exact order, and the prefix cache
//! with its duplicate copies (vllm/v1/core/block_pool.py, kv_cache_utils.py, version 0.33.0).
//!
//! It knows blocks and identities, not requests' progress: who needs how many blocks is decided above.
//!
//! The verbs: *allocate* takes blocks from the front of the free queue (a cached one is *evicted*),
//! *touch* takes a cached block for one more owner, *promote* gives a full block its identity, *release*
//! gives an owner's blocks back.

use super::block_table::{BlockTable, NIL};
use super::free_queue::FreeQueue;
use super::key_table::KeyTable;
use crate::event::{KvEventScope, KvEvents};
use crate::identity::{BlockKey, KeyRun, KeySpace};
use crate::request::RequestId;
use std::collections::HashMap;

/// Not a key.
const NO_KEY: BlockKey = BlockKey(u64::MAX);

/// The blocks of one rank.
///
/// The free queue is `front`, then the blocks never used yet in ascending order, then `back`. Blocks
/// without identity come back to the very front and are reused first; cached ones go to the very back.
/// So only blocks that were used exist in memory.
pub(crate) struct BlockPool {
    blocks: BlockTable,
    num_blocks: u32,
    /// A stack: its last entry is the front of the queue.
    front: Vec<u32>,
    back: FreeQueue,
    free: u32,
    /// Fewest blocks that were free at any time.
    least_free: u32,
    caching: bool,
    /// Identities that more than one request can have. A private one is that of one block, or of none, and its
    /// request knows which.
    index: KeyTable,
    /// Blocks with a private identity.
    private: u32,
    /// Of blocks with the same identity, the one that was entered next after each.
    next_copies: HashMap<u32, u32>,
    events: KvEvents,
    scope: KvEventScope,
    evictions: u64,
    watched: Vec<u32>,
    watch_next: BlockKey,
    /// The same look-up may find something else.
    watch_broken: bool,
    /// What was watched has been evicted in part.
    watch_lost: bool,
    /// The same look-up may find more, or something that costs less.
    watch_gains: bool,
}

impl BlockPool {
    /// `num_blocks` counts the null block 0, which is never handed out.
    pub(crate) fn new(num_blocks: u32, caching: bool, scope: KvEventScope) -> BlockPool {
        BlockPool {
            blocks: BlockTable::new(1),
            next_copies: HashMap::default(),
            num_blocks,
            front: Vec::new(),
            back: FreeQueue::default(),
            free: num_blocks - 1,
            least_free: num_blocks - 1,
            caching,
            index: KeyTable::default(),
            private: 0,
            events: KvEvents::default(),
            scope: if caching { scope } else { KvEventScope::Off },
            evictions: 0,
            watched: Vec::new(),
            watch_next: NO_KEY,
            watch_broken: true,
            watch_lost: false,
            watch_gains: true,
        }
    }

    /// Blocks in the free queue.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Blocks with at least one owner.
    pub(crate) fn used(&self) -> u32 {
        self.num_blocks - 1 - self.free
    }

    /// Most blocks that had an owner at any time, also inside a pass.
    pub(crate) fn peak_used(&self) -> u32 {
        self.num_blocks - 1 - self.least_free
    }

    /// Distinct identities in the prefix cache.
    pub(crate) fn cached(&self) -> u32 {
        self.index.len() + self.private
    }

    /// Cached blocks handed out again so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Events not yet published.
    pub(crate) fn events(&self) -> &KvEvents {
        &self.events
    }

    /// Takes over events of another tier, behind its own.
    pub(crate) fn tell(&mut self, events: &KvEvents) {
        self.events.append(events);
    }

    /// Marks all events as published.
    pub(crate) fn clear_events(&mut self) {
        self.events.clear();
    }

    /// Appends the blocks that a look-up of these keys returns to `into`, up to the first key that finds none;
    /// tells how many do. Of several copies it is the one entered first. A private identity is looked for in
    /// `kept`, the blocks that were promoted under these keys when their request had them last.
    pub(crate) fn find(&self, run: KeyRun, kept: &[u32], into: &mut Vec<u32>) -> u32 {
        if run.first.space() != KeySpace::Private {
            return self.index.find_run(run, into);
        }
        let still = |&(at, &block): &(u32, &u32)| self.blocks.key(block) == Some(run.key(at));
        let before = into.len();
        into.extend((0..run.count).zip(kept).take_while(still).map(|(_, &block)| block));
        (into.len() - before) as u32
    }

    /// Whether a block is free, so that touching it costs one free block.
    #[inline]
    pub(crate) fn is_free(&self, block: u32) -> bool {
        self.blocks.is_free(block)
    }

    /// Adds an owner to a cached block.
    #[inline]
    pub(crate) fn touch(&mut self, block: u32) {
        if self.blocks.is_watched(block) {
            (self.watch_broken, self.watch_gains) = (true, true);
        }
        if let Some(place) = self.blocks.own(block) {
            // Only blocks with an identity can be touched, and those are freed to the back.
            self.back.remove(place);
            self.free -= 1;
            self.least_free = self.least_free.min(self.free);
        }
    }

    /// To be called after a number of touches.
    pub(crate) fn tidy(&mut self) {
        let blocks = &mut self.blocks;
        self.back.tidy(|block, place| blocks.moved(block, place));
    }

    /// Appends `count` blocks to `into`, each with one owner. The caller has checked `free()`.
    pub(crate) fn allocate(&mut self, count: u32, into: &mut Vec<u32>) {
        debug_assert!(count <= self.free);
        self.free -= count;
        self.least_free = self.least_free.min(self.free);
        let mut missing = count;
        let again = (missing as usize).min(self.front.len());
        for block in self.front.drain(self.front.len() - again..).rev() {
            self.blocks.renew(block);
            into.push(block);
        }
        missing -= again as u32;
        // Blocks never used yet, all at once.
        let next = self.blocks.len();
        let fresh = missing.min(self.num_blocks - next);
        self.blocks.add(fresh);
        into.extend(next..next + fresh);
        for _ in fresh..missing {
            let Some(block) = self.back.pop() else {
                unreachable!("the caller has asked whether blocks are free")
            };
            self.evict(block);
            into.push(block);
        }
    }

    /// Drops a free block's identity and gives it an owner. Other copies under the identity stay.
    #[inline]
    fn evict(&mut self, block: u32) {
        let (key, copied) = (self.blocks.key(block).unwrap_or(NO_KEY), self.blocks.is_copied(block));
        if self.blocks.is_watched(block) {
            (self.watch_broken, self.watch_lost) = (true, true);
        }
        self.blocks.renew(block);
        if key.space() == KeySpace::Private {
            self.private -= 1;
        } else if copied || !self.index.remove_if(key, block) {
            self.evict_copy(block, key);
        }
        self.evictions += 1;
        if self.scope.tells(key) {
            self.events.removed(key);
        }
    }

    /// Takes one of several copies out of their chain.
    #[cold]
    fn evict_copy(&mut self, block: u32, key: BlockKey) {
        let next_copy = self.next_copies.remove(&block);
        let first = self.index.get(key);
        if first == block {
            self.index.replace(key, next_copy.unwrap_or(NIL));
            return;
        }
        let mut at = first;
        while self.next_copies[&at] != block {
            at = self.next_copies[&at];
        }
        match next_copy {
            Some(next) => {
                self.next_copies.insert(at, next);
            }
            None => {
                self.next_copies.remove(&at);
                self.blocks.set_copied(at, false);
            }
        }
    }

    /// Gives full blocks of a request their identities, in order.
    pub(crate) fn promote(&mut self, blocks: &[u32], run: KeyRun) {
        // What was lost can come back, and with an owner costs less than before.
        if !self.watch_gains
            && (run.contains(self.watch_next) || (self.watch_lost && run.first.space() != KeySpace::Private))
        {
            (self.watch_broken, self.watch_gains) = (true, true);
        }
        for (at, &block) in (0..).zip(blocks) {
            self.blocks.set_key(block, run.key(at));
        }
        if run.first.space() == KeySpace::Private {
            self.private += run.count;
            return;
        }
        let BlockPool { blocks: table, next_copies, index, .. } = self;
        index.enter_run(run, blocks, |at, first| {
            let mut last = first;
            while let Some(&next) = next_copies.get(&last) {
                last = next;
            }
            next_copies.insert(last, blocks[at]);
            table.set_copied(last, true);
        });
    }

    /// Announces a request's blocks from `from` on, which were given the identities `keys`. The block before
    /// them, if there is one, has its identity already.
    pub(crate) fn announce(
        &mut self,
        request: RequestId,
        blocks: &[u32],
        from: u32,
        keys: &mut Vec<BlockKey>,
    ) {
        // Private identities stand at the end.
        while keys.last().is_some_and(|&key| !self.scope.tells(key)) {
            keys.pop();
        }
        if keys.is_empty() {
            return;
        }
        let parent = from.checked_sub(1).and_then(|before| self.blocks.key(blocks[before as usize]));
        self.events.stored(request, from, parent, keys);
    }

    /// Takes one owner from each of a request's blocks. The first `promoted` of them have an identity.
    ///
    /// The engine walks them from the last to the first: cached ones go to the back of the queue in that
    /// order, so that the tail of a prompt is evicted before its head; the others go to the front
    /// together, the last block foremost.
    pub(crate) fn release(&mut self, blocks: &[u32], promoted: u32) {
        let (cached, bare) = blocks.split_at(promoted as usize);
        let mut freed = bare.len() as u32;
        let mut watched = false;
        self.back.push_with(cached.len(), |back| {
            for &block in cached.iter().rev() {
                if self.blocks.disown(block, || back.push(block)) {
                    watched |= self.blocks.is_watched(block);
                    freed += 1;
                }
            }
        });
        self.watch_broken |= watched;
        self.watch_gains |= watched;
        for &block in bare {
            self.blocks.put_aside(block);
        }
        self.front.extend_from_slice(bare);
        self.free += freed;
    }

    /// Remembers the outcome of a look-up: `hits` were found, `next` was not. Until
    /// [`watch_holds`](Self::watch_holds) turns false, the same look-up finds the same blocks with the
    /// same owners or lack of owners.
    pub(crate) fn watch(&mut self, hits: &[u32], next: Option<BlockKey>) {
        for &block in &self.watched {
            self.blocks.watch(block, false);
        }
        self.watched.clear();
        self.watched.extend_from_slice(hits);
        for &block in hits {
            self.blocks.watch(block, true);
        }
        self.watch_next = next.unwrap_or(NO_KEY);
        (self.watch_broken, self.watch_lost, self.watch_gains) = (false, false, false);
    }

    /// Nothing has happened that could change the watched look-up.
    pub(crate) fn watch_holds(&self) -> bool {
        !self.watch_broken
    }

    /// The watched look-up would find at most what it found, and nothing that costs fewer free blocks. An
    /// eviction leaves it so: a block that is lost was free, and costs one of the free blocks either way.
    pub(crate) fn watch_gains_nothing(&self) -> bool {
        !self.watch_gains
    }

    /// Which events are recorded.
    pub(crate) fn scope(&self) -> KvEventScope {
        self.scope
    }

    /// Of the free blocks, those that are taken first and have no identity to lose.
    pub(crate) fn bare(&self) -> u32 {
        self.front.len() as u32 + (self.num_blocks - self.blocks.len())
    }

    /// The free queue from front to back.
    pub(crate) fn free_queue(&self) -> Vec<u32> {
        let mut queue = Vec::with_capacity(self.free as usize);
        queue.extend(self.front.iter().rev());
        queue.extend(self.blocks.len()..self.num_blocks);
        queue.extend(self.back.iter());
        queue
    }

    /// Every copy in the prefix cache with its block, as look-ups would find them: by identity, and the
    /// copies of one identity in order of entry.
    pub(crate) fn cached_copies(&self) -> Vec<(BlockKey, u32)> {
        let cached = |block| self.blocks.key(block).map(|key| (key, block));
        let mut copies: Vec<(BlockKey, u32)> = (0..self.blocks.len()).filter_map(cached).collect();
        copies.sort_unstable();
        for group in copies.chunk_by_mut(|a, b| a.0 == b.0) {
            let key = group[0].0;
            if key.space() == KeySpace::Private {
                assert_eq!(group.len(), 1, "a private identity has one copy");
                continue;
            }
            let mut block = self.index.get(key);
            for copy in group {
                copy.1 = block;
                block = self.next_copies.get(&block).copied().unwrap_or(NIL);
            }
        }
        copies
    }

    /// Whether blocks are given identities at all.
    pub(crate) fn caching(&self) -> bool {
        self.caching
    }
}
