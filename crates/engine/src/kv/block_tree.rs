//! TensorRT-LLM's block manager: physical blocks, the free queue in the engine's order, and the tree of
//! blocks that can be reused (cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp and evictionPolicy.cpp).
//!
//! It differs from vLLM's pool in what counts: an identity has one block, later copies stay outside; every
//! freed block goes to the back of the free queue, whether it can be reused or not; and a block that is
//! handed out again takes everything that follows it out of the tree.
//!
//! The verbs: *allocate* takes blocks from the front of the free queue, *touch* takes a reusable block for
//! one more owner, *store* makes an owner's blocks reusable, *release* gives an owner's blocks back.

use super::key_table::{KeyTable, NIL};
use crate::event::{KvEventScope, KvEvents, Tier};
use crate::identity::BlockKey;
use crate::request::RequestId;
use std::collections::HashSet;

/// Not a key: outside the tree.
const NO_KEY: BlockKey = BlockKey(u64::MAX);

/// Set in `owners` while a remembered look-up found the block.
const WATCHED: u32 = 1 << 31;

#[derive(Clone, Copy)]
struct Block {
    key: BlockKey,
    owners: u32,
    /// Neighbours in the free queue.
    prev: u32,
    next: u32,
    /// In the tree: the block before it, its first follower, and its neighbours among the followers of `parent`.
    parent: u32,
    child: u32,
    left: u32,
    right: u32,
}

impl Block {
    const FRESH: Block = Block {
        key: NO_KEY,
        owners: 1,
        prev: NIL,
        next: NIL,
        parent: NIL,
        child: NIL,
        left: NIL,
        right: NIL,
    };
}

/// The blocks of one rank. The free queue is the blocks never used yet, in ascending order, then those given
/// back, in that order. Only blocks that were used exist in memory.
pub(crate) struct BlockTree {
    blocks: Vec<Block>,
    num_blocks: u32,
    head: u32,
    tail: u32,
    free: u32,
    least_free: u32,
    reuse: bool,
    index: KeyTable,
    events: KvEvents,
    scope: KvEventScope,
    evictions: u64,
    /// What the remembered look-ups found, and the keys at which they ended.
    watched: Vec<u32>,
    missed: HashSet<BlockKey>,
    watch_broken: bool,
}

impl BlockTree {
    pub(crate) fn new(num_blocks: u32, reuse: bool, scope: KvEventScope) -> BlockTree {
        BlockTree {
            blocks: Vec::new(),
            num_blocks,
            head: NIL,
            tail: NIL,
            free: num_blocks,
            least_free: num_blocks,
            reuse,
            index: KeyTable::default(),
            events: KvEvents::default(),
            scope: if reuse { scope } else { KvEventScope::Off },
            evictions: 0,
            watched: Vec::new(),
            missed: HashSet::new(),
            watch_broken: false,
        }
    }

    /// Blocks in the free queue.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Blocks with at least one owner.
    pub(crate) fn used(&self) -> u32 {
        self.num_blocks - self.free
    }

    /// Most blocks that had an owner at any time, also inside a pass.
    pub(crate) fn peak_used(&self) -> u32 {
        self.num_blocks - self.least_free
    }

    /// Blocks that can be reused.
    pub(crate) fn cached(&self) -> u32 {
        self.index.len()
    }

    /// Reusable blocks lost so far: handed out again, or behind one that was.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Whether blocks are made reusable at all.
    pub(crate) fn reuse(&self) -> bool {
        self.reuse
    }

    /// Which events are recorded.
    pub(crate) fn scope(&self) -> KvEventScope {
        self.scope
    }

    /// Events not yet published.
    pub(crate) fn events(&self) -> &KvEvents {
        &self.events
    }

    /// Marks all events as published.
    pub(crate) fn clear_events(&mut self) {
        self.events.clear();
    }

    /// The reusable block of an identity. A block is in the tree only while the one before it is.
    pub(crate) fn find(&self, key: BlockKey) -> Option<u32> {
        let block = self.index.get(key);
        (block != NIL).then_some(block)
    }

    /// Number of owners of a block.
    pub(crate) fn owners(&self, block: u32) -> u32 {
        self.blocks[block as usize].owners & !WATCHED
    }

    /// Adds an owner to a reusable block. One without an owner leaves the free queue.
    pub(crate) fn touch(&mut self, block: u32) {
        if self.owners(block) == 0 {
            self.unlink(block);
            self.free -= 1;
            self.least_free = self.least_free.min(self.free);
            self.note(block);
        }
        self.blocks[block as usize].owners += 1;
    }

    /// Appends `count` blocks to `into`, each with one owner. The caller has checked `free()`.
    pub(crate) fn allocate(&mut self, count: u32, into: &mut Vec<u32>) {
        debug_assert!(count <= self.free);
        self.free -= count;
        self.least_free = self.least_free.min(self.free);
        let next = self.blocks.len() as u32;
        let fresh = count.min(self.num_blocks - next);
        self.blocks.extend(std::iter::repeat_n(Block::FRESH, fresh as usize));
        into.extend(next..next + fresh);
        for _ in fresh..count {
            let block = self.head;
            self.unlink(block);
            if self.blocks[block as usize].key != NO_KEY {
                self.detach(block);
            }
            self.blocks[block as usize].owners += 1;
            into.push(block);
        }
    }

    /// Takes a block and all that follow it out of the tree, the last ones first (`freeChildren`).
    fn detach(&mut self, block: u32) {
        // Down to a block without followers, out with it, and up again: no recursion, chains are long.
        let mut at = block;
        loop {
            let b = self.blocks[at as usize];
            if b.child != NIL {
                at = b.child;
                continue;
            }
            self.leave_parent(at);
            self.note(at);
            self.index.remove(b.key);
            self.blocks[at as usize].key = NO_KEY;
            self.evictions += 1;
            if self.scope.tells(b.key) {
                self.events.removed_together(Tier::Device, &[b.key]);
            }
            if at == block {
                return;
            }
            at = b.parent;
        }
    }

    fn leave_parent(&mut self, block: u32) {
        let Block { parent, left, right, .. } = self.blocks[block as usize];
        if left != NIL {
            self.blocks[left as usize].right = right;
        } else if parent != NIL {
            self.blocks[parent as usize].child = right;
        }
        if right != NIL {
            self.blocks[right as usize].left = left;
        }
        let b = &mut self.blocks[block as usize];
        (b.parent, b.left, b.right) = (NIL, NIL, NIL);
    }

    /// Makes the full blocks `blocks` of a request, which have the identities `keys`, reusable
    /// (`storeBlocks`): as long as the tree has a block of the same identity, that one stands for it and the
    /// request's own stays outside; from the first one that is missing, the request's own go in.
    pub(crate) fn store(&mut self, request: RequestId, blocks: &[u32], keys: &[BlockKey]) {
        let mut parent = NIL;
        let mut first = 0;
        while first < keys.len() {
            let found = self.index.get(keys[first]);
            if found == NIL {
                break;
            }
            parent = found;
            first += 1;
        }
        if first == keys.len() {
            return;
        }
        for (&block, &key) in blocks[first..].iter().zip(&keys[first..]) {
            debug_assert!(
                self.blocks[block as usize].key == NO_KEY,
                "in the tree with its parent or not at all"
            );
            self.watch_broken |= self.missed.contains(&key);
            self.index.enter(key, block);
            let right = match parent {
                NIL => NIL,
                _ => std::mem::replace(&mut self.blocks[parent as usize].child, block),
            };
            if right != NIL {
                self.blocks[right as usize].left = block;
            }
            let b = &mut self.blocks[block as usize];
            (b.key, b.parent, b.left, b.right) = (key, parent, NIL, right);
            parent = block;
        }
        // Private identities stand at the end.
        let told = keys[first..].iter().take_while(|&&key| self.scope.tells(key)).count();
        if told > 0 {
            let before = first.checked_sub(1).map(|before| keys[before]);
            self.events.stored(request, first as u32, before, &keys[first..first + told]);
        }
    }

    /// Takes one owner from each of a request's blocks, from the last to the first. Those left without one
    /// go to the back of the free queue (`releaseBlocks`, and `releaseBlock` of the eviction policy).
    pub(crate) fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            self.blocks[block as usize].owners -= 1;
            if self.owners(block) == 0 {
                self.note(block);
                let last = std::mem::replace(&mut self.tail, block);
                let b = &mut self.blocks[block as usize];
                (b.prev, b.next) = (last, NIL);
                match last {
                    NIL => self.head = block,
                    _ => self.blocks[last as usize].next = block,
                }
                self.free += 1;
            }
        }
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        match prev {
            NIL => self.head = next,
            _ => self.blocks[prev as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => self.blocks[next as usize].prev = prev,
        }
    }

    /// Something about this block has changed that a look-up tells.
    fn note(&mut self, block: u32) {
        self.watch_broken |= self.blocks[block as usize].owners & WATCHED != 0;
    }

    /// Remembers one more look-up: `hits` were found, `next` was not.
    pub(crate) fn watch(&mut self, hits: &[u32], next: Option<BlockKey>) {
        for &block in hits {
            let owners = &mut self.blocks[block as usize].owners;
            if *owners & WATCHED == 0 {
                *owners |= WATCHED;
                self.watched.push(block);
            }
        }
        self.missed.extend(next);
    }

    /// Something has changed that a remembered look-up might see.
    pub(crate) fn watch_broken(&self) -> bool {
        self.watch_broken
    }

    /// Forgets all look-ups.
    pub(crate) fn watch_anew(&mut self) {
        for block in self.watched.drain(..) {
            self.blocks[block as usize].owners &= !WATCHED;
        }
        self.missed.clear();
        self.watch_broken = false;
    }

    /// The free queue from front to back.
    pub(crate) fn free_queue(&self) -> Vec<u32> {
        let mut queue: Vec<u32> = (self.blocks.len() as u32..self.num_blocks).collect();
        let mut at = self.head;
        while at != NIL {
            queue.push(at);
            at = self.blocks[at as usize].next;
        }
        queue
    }

    /// Every reusable block, by identity.
    pub(crate) fn cached_blocks(&self) -> Vec<(BlockKey, u32)> {
        let in_tree = |(block, b): (usize, &Block)| (b.key != NO_KEY).then_some((b.key, block as u32));
        let mut all: Vec<_> = self.blocks.iter().enumerate().filter_map(in_tree).collect();
        all.sort_unstable();
        all
    }
}
