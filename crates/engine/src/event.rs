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
    /// One physical copy of a block is gone. Other copies of the same identity may remain.
    Removed {
        /// Its identity.
        block: BlockKey,
    },
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Stored { request: RequestId, first_block: u32, parent: Option<BlockKey>, count: u32 },
    Removed { block: BlockKey },
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
        self.entries.iter().map(move |entry| match *entry {
            Entry::Removed { block } => KvEvent::Removed { block },
            Entry::Stored { request, first_block, parent, count } => {
                let start = next;
                next += count as usize;
                KvEvent::Stored { request, first_block, parent, blocks: &self.keys[start..next] }
            }
        })
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
    }

    pub(crate) fn removed(&mut self, block: BlockKey) {
        self.entries.push(Entry::Removed { block });
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
