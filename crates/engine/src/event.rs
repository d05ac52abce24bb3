//! KV events: what enters and leaves a rank's prefix cache, in the order in which the engine would
//! publish it. Consumers see them when a pass completes, never earlier.

use crate::identity::{BlockKey, KeySpace};
use crate::request::RequestId;

/// Which changes of its prefix cache a rank keeps as events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvEventScope {
    /// None.
    #[default]
    Off,
    /// Those of identities that several requests can have: all that a placement policy can make use of.
    Shared {
        /// Each is told with the pass that made it. Otherwise passes of a stretch tell theirs when it ends.
        timed: bool,
    },
    /// All, each with the pass that made it.
    All,
}

impl KvEventScope {
    /// Events are kept.
    pub fn is_on(self) -> bool {
        self != KvEventScope::Off
    }

    /// Events are told with their pass, so that passes which make some cannot be told in one go.
    pub fn is_timed(self) -> bool {
        matches!(self, KvEventScope::All | KvEventScope::Shared { timed: true })
    }

    /// The changes of this identity are kept.
    #[inline]
    pub(crate) fn tells(self, key: BlockKey) -> bool {
        match self {
            KvEventScope::Off => false,
            KvEventScope::Shared { .. } => key.space() != KeySpace::Private,
            KvEventScope::All => true,
        }
    }
}

impl From<bool> for KvEventScope {
    /// All, or none.
    fn from(on: bool) -> KvEventScope {
        if on { KvEventScope::All } else { KvEventScope::Off }
    }
}

/// Where a copy of a block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// In the accelerator's memory.
    #[default]
    Device,
    /// In the host's.
    Host,
    /// On a disk.
    Disk,
}

/// One change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Full blocks of a request became findable.
    Stored {
        /// Where.
        tier: Tier,
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
        /// From where.
        tier: Tier,
        /// Their identities, in order of removal. vLLM publishes one block an event, SGLang all that go
        /// one after the other.
        blocks: &'a [BlockKey],
    },
    /// The cache is empty (SGLang publishes it when it starts).
    Cleared,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// `joined`: with the one before it, it is one event.
    Stored {
        tier: Tier,
        request: RequestId,
        first_block: u32,
        parent: Option<BlockKey>,
        count: u32,
        joined: bool,
    },
    Removed {
        tier: Tier,
        count: u32,
    },
    Cleared,
}

impl Entry {
    fn count(self) -> u32 {
        match self {
            Entry::Stored { count, .. } | Entry::Removed { count, .. } => count,
            Entry::Cleared => 0,
        }
    }

    fn event(self, blocks: &[BlockKey]) -> KvEvent<'_> {
        match self {
            Entry::Removed { tier, .. } => KvEvent::Removed { tier, blocks },
            Entry::Cleared => KvEvent::Cleared,
            Entry::Stored { tier, request, first_block, parent, .. } => {
                KvEvent::Stored { tier, request, first_block, parent, blocks }
            }
        }
    }
}

/// Events in order, stored flat so that publishing allocates nothing once warm.
#[derive(Clone, Debug, Default)]
pub struct KvEvents {
    entries: Vec<Entry>,
    /// Of the entries, those that are part of the event before them.
    joined: usize,
    keys: Vec<BlockKey>,
}

impl KvEvents {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.entries.len() - self.joined
    }

    /// No event is waiting.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes over the events of `other`, behind its own.
    pub fn append(&mut self, other: &KvEvents) {
        self.entries.extend_from_slice(&other.entries);
        self.keys.extend_from_slice(&other.keys);
    }

    /// The events in order.
    pub fn iter(&self) -> impl Iterator<Item = KvEvent<'_>> {
        let (mut at, mut next) = (0, 0usize);
        std::iter::from_fn(move || {
            let entry = *self.entries.get(at)?;
            at += 1;
            let mut total = entry.count();
            while let Some(&Entry::Stored { count, joined: true, .. }) = self.entries.get(at) {
                total += count;
                at += 1;
            }
            let blocks = &self.keys[next..next + total as usize];
            next += total as usize;
            Some(entry.event(blocks))
        })
    }

    /// The same, but with blocks that several requests stored as one event (SGLang joins them) given request by
    /// request: the tokens of each block are those of the request named with it.
    pub fn parts(&self) -> impl Iterator<Item = KvEvent<'_>> {
        let mut next = 0usize;
        self.entries.iter().map(move |entry| {
            let start = next;
            next += entry.count() as usize;
            entry.event(&self.keys[start..next])
        })
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.joined = 0;
        self.keys.clear();
    }

    pub(crate) fn removed(&mut self, block: BlockKey) {
        self.removed_as_one(Tier::Device, &[block]);
    }

    /// Blocks that go together, joined with those of the event before if those went from the same tier.
    pub(crate) fn removed_together(&mut self, from: Tier, blocks: &[BlockKey]) {
        if let Some(Entry::Removed { tier, count }) = self.entries.last_mut()
            && *tier == from
        {
            self.keys.extend_from_slice(blocks);
            *count += blocks.len() as u32;
        } else {
            self.removed_as_one(from, blocks);
        }
    }

    /// Blocks of a request, joined with those of the event before if they continue its chain in the same tier.
    pub(crate) fn stored_joined(
        &mut self,
        into: Tier,
        request: RequestId,
        first_block: u32,
        parent: Option<BlockKey>,
        blocks: &[BlockKey],
    ) {
        let last = self.keys.last().copied();
        let goes_on = matches!(self.entries.last(), Some(Entry::Stored { tier, .. }) if *tier == into)
            && parent.is_some()
            && parent == last;
        self.stored_in(into, request, first_block, parent, blocks);
        if goes_on && let Some(Entry::Stored { joined, .. }) = self.entries.last_mut() {
            *joined = true;
            self.joined += 1;
        }
    }

    /// Blocks that go together, as an event of their own.
    pub(crate) fn removed_as_one(&mut self, tier: Tier, blocks: &[BlockKey]) {
        self.keys.extend_from_slice(blocks);
        self.entries.push(Entry::Removed { tier, count: blocks.len() as u32 });
    }

    /// Blocks of a request that entered a tier, or else left it.
    pub fn of_tier(tier: Tier, request: RequestId, blocks: &[BlockKey], stored: bool) -> KvEvents {
        let mut events = KvEvents::default();
        match stored {
            true => events.stored_in(tier, request, 0, None, blocks),
            false => events.removed_as_one(tier, blocks),
        }
        events
    }

    /// The cache was emptied, all at once.
    pub fn cleared(&mut self) {
        self.entries.push(Entry::Cleared);
    }

    pub(crate) fn stored(
        &mut self,
        request: RequestId,
        first_block: u32,
        parent: Option<BlockKey>,
        blocks: &[BlockKey],
    ) {
        self.stored_in(Tier::Device, request, first_block, parent, blocks);
    }

    pub(crate) fn stored_in(
        &mut self,
        tier: Tier,
        request: RequestId,
        first_block: u32,
        parent: Option<BlockKey>,
        blocks: &[BlockKey],
    ) {
        self.keys.extend_from_slice(blocks);
        let count = blocks.len() as u32;
        self.entries.push(Entry::Stored { tier, request, first_block, parent, count, joined: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: u64) -> BlockKey {
        BlockKey(value)
    }

    /// Two requests that finish one after the other, the second going on where the first ends: one event
    /// (sglang/srt/mem_cache/events.py `enqueue`, 0.5.23), two parts.
    #[test]
    fn joined_blocks_keep_their_requests() {
        let mut events = KvEvents::default();
        events.stored_joined(Tier::Device, RequestId(1), 0, None, &[key(10), key(11)]);
        events.stored_joined(Tier::Device, RequestId(2), 2, Some(key(11)), &[key(12)]);
        events.removed_together(Tier::Device, &[key(5)]);
        events.stored_joined(Tier::Device, RequestId(3), 3, Some(key(12)), &[key(13)]);
        assert_eq!(events.len(), 3);
        let all: Vec<_> = events.iter().collect();
        let blocks = [key(10), key(11), key(12)];
        assert_eq!(
            all[0],
            KvEvent::Stored {
                tier: Tier::Device,
                request: RequestId(1),
                first_block: 0,
                parent: None,
                blocks: &blocks
            }
        );
        assert_eq!(all.len(), 3);
        let parts: Vec<_> = events.parts().collect();
        assert_eq!(parts.len(), 4);
        assert_eq!(
            parts[1],
            KvEvent::Stored {
                tier: Tier::Device,
                request: RequestId(2),
                first_block: 2,
                parent: Some(key(11)),
                blocks: &blocks[2..]
            }
        );
        assert_eq!((parts[2], parts[3]), (all[1], all[2]));
    }

    /// What goes from, or to, different tiers is never one event (events.py `enqueue`: `tail.medium == event.medium`).
    #[test]
    fn tiers_part_events() {
        let mut events = KvEvents::default();
        events.stored_joined(Tier::Device, RequestId(1), 0, None, &[key(1)]);
        events.stored_joined(Tier::Host, RequestId(1), 1, Some(key(1)), &[key(2)]);
        events.removed_together(Tier::Host, &[key(2)]);
        events.removed_together(Tier::Device, &[key(1)]);
        events.removed_together(Tier::Device, &[key(3)]);
        assert_eq!(events.len(), 4);
        let last = KvEvent::Removed { tier: Tier::Device, blocks: &[key(1), key(3)] };
        assert_eq!(events.iter().last(), Some(last));
    }
}
