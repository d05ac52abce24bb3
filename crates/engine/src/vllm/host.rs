//! The host tier of vLLM's CPU offload: chunks by identity, and which of them go when room is needed
//! (vllm/v1/kv_offload/cpu/manager.py and policies/lru.py, version 0.33.0).
//!
//! A chunk holds one block. Recency is a request's, not a transfer's: while a request runs, what it used has its
//! rank, later positions first; when it ends, each of these gets a rank of its own. What moves, and when, is not
//! known here.

use crate::identity::BlockKey;
use std::collections::{BTreeSet, HashMap, HashSet};

/// When a chunk was used: the smaller goes first.
type Rank = (u64, i64);

#[derive(Clone, Copy, Debug)]
struct Chunk {
    id: u32,
    /// Loads that read it; none while it is being written.
    readers: Option<u32>,
    rank: Rank,
}

/// What a look-up finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// It is being written.
    Unready,
    Ready,
}

/// What a request has used: its part in the order.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    rank: Option<u64>,
    /// Identities with their positions.
    seen: Vec<(u32, BlockKey)>,
    known: HashSet<BlockKey>,
}

/// The chunks.
#[derive(Clone, Debug)]
pub(super) struct HostPool {
    capacity: u32,
    /// Chunks that were used at least once.
    allocated: u32,
    /// A stack.
    free: Vec<u32>,
    chunks: HashMap<BlockKey, Chunk>,
    /// Chunks that can go.
    idle: BTreeSet<(Rank, BlockKey)>,
    next_rank: u64,
    /// Identities that left, by the store that they made room for.
    pub(super) removed: Vec<BlockKey>,
    /// Counts what can make room, or be new to who has used it.
    pub(super) changes: u64,
}

impl HostPool {
    pub(super) fn new(capacity: u32) -> HostPool {
        HostPool {
            capacity,
            allocated: 0,
            free: Vec::new(),
            chunks: HashMap::new(),
            idle: BTreeSet::new(),
            next_rank: 0,
            removed: Vec::new(),
            changes: 0,
        }
    }

    pub(super) fn find(&self, key: BlockKey) -> Found {
        match self.chunks.get(&key) {
            None => Found::Nothing,
            Some(Chunk { readers: None, .. }) => Found::Unready,
            Some(_) => Found::Ready,
        }
    }

    /// Chunks in use or filled.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// A load begins to read these, which are ready. Tells their chunks.
    pub(super) fn read(&mut self, keys: &[(u32, BlockKey)], uses: &mut Uses) -> Vec<u32> {
        let identities: Vec<BlockKey> = keys.iter().map(|&(_, key)| key).collect();
        self.hold(&identities);
        self.note_use(keys, uses);
        identities.iter().filter_map(|key| Some(self.chunks.get(key)?.id)).collect()
    }

    /// A copy to another tier begins to read these, which are ready: that is no use of them (`prepare_read`).
    pub(super) fn hold(&mut self, keys: &[BlockKey]) {
        self.changes += 1;
        for &key in keys {
            if let Some(chunk) = self.chunks.get_mut(&key) {
                if chunk.readers == Some(0) {
                    self.idle.remove(&(chunk.rank, key));
                }
                chunk.readers = chunk.readers.map(|readers| readers + 1);
            }
        }
    }

    /// A load has read these.
    pub(super) fn end_read(&mut self, keys: &[BlockKey]) {
        self.changes += 1;
        for &key in keys {
            if let Some(chunk) = self.chunks.get_mut(&key) {
                chunk.readers = chunk.readers.map(|readers| readers - 1);
                if chunk.readers == Some(0) {
                    self.idle.insert((chunk.rank, key));
                }
            }
        }
    }

    /// Takes chunks for those of `keys` that have none, and tells which these are and their chunks. None if there is
    /// no room, now.
    pub(super) fn write(
        &mut self,
        keys: &[(u32, BlockKey)],
        uses: &mut Uses,
    ) -> Option<Vec<(u32, BlockKey, u32)>> {
        let (mut missing, mut used) = (Vec::new(), Vec::new());
        for &(position, key) in keys {
            match self.find(key) {
                Found::Nothing => {
                    missing.push((position, key));
                    used.push((position, key));
                }
                Found::Ready => used.push((position, key)),
                Found::Unready => {}
            }
        }
        self.note_use(&used, uses);
        let room = self.free.len() + (self.capacity - self.allocated) as usize;
        let lacking = missing.len().saturating_sub(room);
        if lacking > 0 && !self.evict(lacking, keys) {
            return None;
        }
        self.changes += 1;
        let rank = if missing.is_empty() { 0 } else { self.rank_of(uses) };
        let fresh = missing.len().min((self.capacity - self.allocated) as usize);
        let mut written = Vec::with_capacity(missing.len());
        for (at, (position, key)) in missing.into_iter().enumerate() {
            let id = if at < fresh {
                self.allocated += 1;
                self.allocated - 1
            } else {
                let Some(id) = self.free.pop() else { unreachable!("as many as lack were evicted") };
                id
            };
            let rank = (rank, -i64::from(position));
            self.chunks.insert(key, Chunk { id, readers: None, rank });
            written.push((position, key, id));
        }
        Some(written)
    }

    /// These have been written. Tells which.
    pub(super) fn end_write(&mut self, keys: &[BlockKey]) -> Vec<BlockKey> {
        self.changes += 1;
        let mut ready = Vec::with_capacity(keys.len());
        for &key in keys {
            if let Some(chunk) = self.chunks.get_mut(&key).filter(|chunk| chunk.readers.is_none()) {
                chunk.readers = Some(0);
                self.idle.insert((chunk.rank, key));
                ready.push(key);
            }
        }
        ready
    }

    /// A request has ended: what it used is what was used last, the head of it last of all.
    pub(super) fn end_request(&mut self, mut uses: Uses) {
        uses.seen.sort_by_key(|&(position, _)| position);
        for (_, key) in uses.seen.into_iter().rev() {
            if self.chunks.contains_key(&key) {
                self.next_rank += 1;
                self.set_rank(key, (self.next_rank, 0));
            }
        }
    }

    fn rank_of(&mut self, uses: &mut Uses) -> u64 {
        *uses.rank.get_or_insert_with(|| {
            self.next_rank += 1;
            self.next_rank
        })
    }

    fn note_use(&mut self, keys: &[(u32, BlockKey)], uses: &mut Uses) {
        let mut new = Vec::new();
        for &(position, key) in keys {
            if uses.known.insert(key) {
                uses.seen.push((position, key));
                new.push((position, key));
            }
        }
        if new.is_empty() {
            return;
        }
        let rank = self.rank_of(uses);
        for (position, key) in new {
            let rank = (rank, -i64::from(position));
            if self.chunks.get(&key).is_some_and(|chunk| chunk.rank < rank) {
                self.set_rank(key, rank);
            }
        }
    }

    fn set_rank(&mut self, key: BlockKey, rank: Rank) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        let before = std::mem::replace(&mut chunk.rank, rank);
        if chunk.readers == Some(0) {
            self.idle.remove(&(before, key));
            self.idle.insert((rank, key));
        }
    }

    /// Drops `count` chunks, none of those under `protected`. False, with nothing changed, if there are not so many.
    fn evict(&mut self, count: usize, protected: &[(u32, BlockKey)]) -> bool {
        let protected: HashSet<BlockKey> = protected.iter().map(|&(_, key)| key).collect();
        let victims: Vec<(Rank, BlockKey)> =
            self.idle.iter().filter(|(_, key)| !protected.contains(key)).take(count).copied().collect();
        if victims.len() < count {
            return false;
        }
        for victim in victims {
            self.idle.remove(&victim);
            if let Some(chunk) = self.chunks.remove(&victim.1) {
                self.free.push(chunk.id);
            }
            self.removed.push(victim.1);
        }
        true
    }
}
