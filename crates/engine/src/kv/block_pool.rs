//! vLLM's block pool: physical blocks, the free queue in the engine's exact order, and the prefix cache
//! with its duplicate copies (vllm/v1/core/block_pool.py, kv_cache_utils.py, version 0.33.0).
//!
//! It knows blocks and identities, not requests' progress: who needs how many blocks is decided above.
//!
//! The verbs: *allocate* takes blocks from the front of the free queue (a cached one is *evicted*),
//! *touch* takes a cached block for one more owner, *promote* gives a full block its identity, *release*
//! gives an owner's blocks back.

use super::prefix_index::{NIL, PrefixIndex};
use crate::event::KvEvents;
use crate::identity::{BlockKey, KeySpace};
use crate::request::RequestId;

/// Not a key: no identity yet.
const NO_KEY: BlockKey = BlockKey(u64::MAX);

#[derive(Clone, Copy)]
struct Block {
    key: BlockKey,
    /// Neighbours in the back of the free queue.
    prev: u32,
    next: u32,
    /// Number of owners; the top bit is set while the block is part of the watched prefix.
    owners: u32,
    /// The next copy under the same key, in order of entry.
    next_copy: u32,
}

const WATCHED: u32 = 1 << 31;

impl Block {
    const FRESH: Block = Block { key: NO_KEY, prev: NIL, next: NIL, owners: 1, next_copy: NIL };
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: List = List { head: NIL, tail: NIL };
}

/// The blocks of one rank.
///
/// The free queue is `front`, then the blocks never used yet in ascending order, then `back`. Blocks
/// without identity come back to the very front and are reused first; cached ones go to the very back.
/// So only blocks that were used exist in memory.
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    num_blocks: u32,
    /// A stack: its last entry is the front of the queue.
    front: Vec<u32>,
    back: List,
    free: u32,
    /// Fewest blocks that were free at any time.
    least_free: u32,
    caching: bool,
    index: PrefixIndex,
    events: KvEvents,
    events_on: bool,
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
    pub(crate) fn new(num_blocks: u32, caching: bool, events_on: bool) -> BlockPool {
        BlockPool {
            blocks: vec![Block::FRESH],
            num_blocks,
            front: Vec::new(),
            back: List::EMPTY,
            free: num_blocks - 1,
            least_free: num_blocks - 1,
            caching,
            index: PrefixIndex::default(),
            events: KvEvents::default(),
            events_on: events_on && caching,
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
        self.index.len()
    }

    /// Cached blocks handed out again so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Events not yet published.
    pub(crate) fn events(&self) -> &KvEvents {
        &self.events
    }

    /// Marks all events as published.
    pub(crate) fn clear_events(&mut self) {
        self.events.clear();
    }

    /// The block that a look-up of `key` returns: of several copies the one entered first.
    #[inline]
    pub(crate) fn find(&self, key: BlockKey) -> Option<u32> {
        let block = self.index.get(key);
        (block != NIL).then_some(block)
    }

    /// Whether a block is free, so that touching it costs one free block.
    #[inline]
    pub(crate) fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].owners & !WATCHED == 0
    }

    /// Adds an owner to a cached block.
    pub(crate) fn touch(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        if b.owners & WATCHED != 0 {
            (self.watch_broken, self.watch_gains) = (true, true);
        }
        b.owners += 1;
        if b.owners & !WATCHED == 1 {
            // Only blocks with an identity can be touched, and those are freed to the back.
            self.unlink_from_back(block);
            self.free -= 1;
            self.least_free = self.least_free.min(self.free);
        }
    }

    /// Appends `count` blocks to `into`, each with one owner. The caller has checked `free()`.
    pub(crate) fn allocate(&mut self, count: u32, into: &mut Vec<u32>) {
        debug_assert!(count <= self.free);
        self.free -= count;
        self.least_free = self.least_free.min(self.free);
        let mut missing = count;
        while missing > 0 && !self.front.is_empty() {
            into.push(self.take_first());
            missing -= 1;
        }
        // Blocks never used yet, all at once.
        let next = self.blocks.len() as u32;
        let fresh = missing.min(self.num_blocks - next);
        self.blocks.extend(std::iter::repeat_n(Block::FRESH, fresh as usize));
        into.extend(next..next + fresh);
        for _ in fresh..missing {
            let block = self.take_first();
            into.push(block);
        }
    }

    /// The first of the blocks that were used before.
    fn take_first(&mut self) -> u32 {
        if let Some(block) = self.front.pop() {
            self.blocks[block as usize].owners = 1;
            return block;
        }
        let block = self.back.head;
        self.unlink_from_back(block);
        self.evict(block);
        self.blocks[block as usize].owners = 1;
        block
    }

    /// Drops a block's identity. Other copies under it stay.
    fn evict(&mut self, block: u32) {
        let key = self.blocks[block as usize].key;
        if self.blocks[block as usize].owners & WATCHED != 0 {
            (self.watch_broken, self.watch_lost) = (true, true);
        }
        let next_copy = self.blocks[block as usize].next_copy;
        let first = self.index.get(key);
        if first == block {
            match next_copy {
                NIL => self.index.remove(key),
                _ => self.index.replace(key, next_copy),
            }
        } else {
            let mut at = first;
            while self.blocks[at as usize].next_copy != block {
                at = self.blocks[at as usize].next_copy;
            }
            self.blocks[at as usize].next_copy = next_copy;
        }
        let b = &mut self.blocks[block as usize];
        b.key = NO_KEY;
        b.next_copy = NIL;
        self.evictions += 1;
        if self.events_on {
            self.events.removed(key);
        }
    }

    /// Gives the full blocks `blocks[from..]` of a request their identities `keys`, in order, and
    /// announces them. The block before them, if there is one, has its identity already.
    pub(crate) fn promote(&mut self, request: RequestId, blocks: &[u32], from: u32, keys: &[BlockKey]) {
        for (&block, &key) in blocks[from as usize..].iter().zip(keys) {
            self.enter(block, key);
        }
        if self.events_on {
            let parent = from.checked_sub(1).map(|before| self.blocks[blocks[before as usize] as usize].key);
            self.events.stored(request, from, parent, keys);
        }
    }

    fn enter(&mut self, block: u32, key: BlockKey) {
        // What was lost can come back, and with an owner costs less than before.
        if key == self.watch_next || (self.watch_lost && key.space() != KeySpace::Private) {
            (self.watch_broken, self.watch_gains) = (true, true);
        }
        self.blocks[block as usize].key = key;
        let first = self.index.enter(key, block);
        if first == NIL {
            return;
        }
        let mut at = first;
        while self.blocks[at as usize].next_copy != NIL {
            at = self.blocks[at as usize].next_copy;
        }
        self.blocks[at as usize].next_copy = block;
    }

    /// Takes one owner from each of a request's blocks. The first `promoted` of them have an identity.
    ///
    /// The engine walks them from the last to the first: cached ones go to the back of the queue in that
    /// order, so that the tail of a prompt is evicted before its head; the others go to the front
    /// together, the last block foremost.
    pub(crate) fn release(&mut self, blocks: &[u32], promoted: u32) {
        let (cached, bare) = blocks.split_at(promoted as usize);
        for &block in cached.iter().rev() {
            let owners = &mut self.blocks[block as usize].owners;
            *owners -= 1;
            if *owners & !WATCHED == 0 {
                if *owners & WATCHED != 0 {
                    (self.watch_broken, self.watch_gains) = (true, true);
                }
                self.push_back(block);
                self.free += 1;
            }
        }
        for &block in bare {
            self.blocks[block as usize].owners = 0;
            self.front.push(block);
            self.free += 1;
        }
    }

    fn push_back(&mut self, block: u32) {
        let last = self.back.tail;
        let b = &mut self.blocks[block as usize];
        b.prev = last;
        b.next = NIL;
        self.back.tail = block;
        match last {
            NIL => self.back.head = block,
            _ => self.blocks[last as usize].next = block,
        }
    }

    fn unlink_from_back(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        match prev {
            NIL => self.back.head = next,
            _ => self.blocks[prev as usize].next = next,
        }
        match next {
            NIL => self.back.tail = prev,
            _ => self.blocks[next as usize].prev = prev,
        }
    }

    /// Remembers the outcome of a look-up: `hits` were found, `next` was not. Until
    /// [`watch_holds`](Self::watch_holds) turns false, the same look-up finds the same blocks with the
    /// same owners or lack of owners.
    pub(crate) fn watch(&mut self, hits: &[u32], next: Option<BlockKey>) {
        for &block in &self.watched {
            self.blocks[block as usize].owners &= !WATCHED;
        }
        self.watched.clear();
        self.watched.extend_from_slice(hits);
        for &block in hits {
            self.blocks[block as usize].owners |= WATCHED;
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

    /// Events are recorded.
    pub(crate) fn events_on(&self) -> bool {
        self.events_on
    }

    /// The free queue from front to back.
    pub(crate) fn free_queue(&self) -> Vec<u32> {
        let mut queue = Vec::with_capacity(self.free as usize);
        queue.extend(self.front.iter().rev());
        queue.extend(self.blocks.len() as u32..self.num_blocks);
        let mut at = self.back.head;
        while at != NIL {
            queue.push(at);
            at = self.blocks[at as usize].next;
        }
        queue
    }

    /// Every copy in the prefix cache with its block, as look-ups would find them: by identity, and the
    /// copies of one identity in order of entry.
    pub(crate) fn cached_copies(&self) -> Vec<(BlockKey, u32)> {
        let mut keys: Vec<BlockKey> =
            self.blocks.iter().map(|b| b.key).filter(|&key| key != NO_KEY).collect();
        keys.sort_unstable();
        keys.dedup();
        let next_copy =
            |&block: &u32| Some(self.blocks[block as usize].next_copy).filter(|&next| next != NIL);
        let copies_of = |key| std::iter::successors(self.find(key), next_copy).map(move |block| (key, block));
        keys.into_iter().flat_map(copies_of).collect()
    }

    /// Whether blocks are given identities at all.
    pub(crate) fn caching(&self) -> bool {
        self.caching
    }
}
