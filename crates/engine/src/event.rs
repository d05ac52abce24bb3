//! KV events: what enters and leaves a rank's prefix cache, in the order in which the engine would
//! publish it. Consumers see them when a pass completes, never earlier.

use crate::identity::BlockKey;
use crate::request::RequestId;

/// One change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Full blocks of a request became findable.
    Stored {
        /// The request whose blocks they are.
        request: RequestId,
        /// Index of the first one among the request's blocks.
        first_block: u32,
        /// Identity of the block before the first, none at the start of a prompt.
        parent: Option<BlockKey>,
        /// Identities, in order.
        blocks: &'a [BlockKey],
    },
    /// One physical copy of each of these blocks is gone. Other copies of the same identity may remain.
    Removed {
        /// Their identities, in order of removal. vLLM publishes one block an event, SGLang all that go
        /// one after the other.
        blocks: &'a [BlockKey],
    },
    /// The cache is empty (SGLang publishes it when it starts).
    Cleared,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Stored { request: RequestId, first_block: u32, parent: Option<BlockKey>, count: u32 },
    Removed { count: u32 },
    Cleared,
}

/// Events in order, stored flat so that publishing allocates nothing once warm.
#[derive(Clone, Debug, Default)]
pub struct KvEvents {
    entries: Vec<Entry>,
    keys: Vec<BlockKey>,
}

impl KvEvents {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No event is waiting.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The events in order.
    pub fn iter(&self) -> impl Iterator<Item = KvEvent<'_>> {
        let mut next = 0usize;
        let mut take = move |count: u32| {
            let start = next;
            next += count as usize;
            &self.keys[start..next]
        };
        self.entries.iter().map(move |entry| match *entry {
            Entry::Removed { count } => KvEvent::Removed { blocks: take(count) },
            Entry::Cleared => KvEvent::Cleared,
            Entry::Stored { request, first_block, parent, count } => {
                KvEvent::Stored { request, first_block, parent, blocks: take(count) }
            }
        })
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
    }

    pub(crate) fn removed(&mut self, block: BlockKey) {
        self.keys.push(block);
        self.entries.push(Entry::Removed { count: 1 });
    }

    /// Blocks that go together, joined with those of the event before if that is a removal too.
    pub(crate) fn removed_together(&mut self, blocks: &[BlockKey]) {
        self.keys.extend_from_slice(blocks);
        let more = blocks.len() as u32;
        match self.entries.last_mut() {
            Some(Entry::Removed { count }) => *count += more,
            _ => self.entries.push(Entry::Removed { count: more }),
        }
    }

    /// Blocks of a request, joined with those of the event before if they continue its chain.
    pub(crate) fn stored_joined(
        &mut self,
        request: RequestId,
        first_block: u32,
        parent: Option<BlockKey>,
        blocks: &[BlockKey],
    ) {
        let last = self.keys.last().copied();
        match self.entries.last_mut() {
            Some(Entry::Stored { count, .. }) if parent.is_some() && parent == last => {
                self.keys.extend_from_slice(blocks);
                *count += blocks.len() as u32;
            }
            _ => self.stored(request, first_block, parent, blocks),
        }
    }

    pub(crate) fn cleared(&mut self) {
        self.entries.push(Entry::Cleared);
    }

    pub(crate) fn stored(
        &mut self,
        request: RequestId,
        first_block: u32,
        parent: Option<BlockKey>,
        blocks: &[BlockKey],
    ) {
        self.keys.extend_from_slice(blocks);
        let count = blocks.len() as u32;
        self.entries.push(Entry::Stored { request, first_block, parent, count });
    }
}
