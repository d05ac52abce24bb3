//! What can be seen of a rank from outside between two calls: for traces, tests and live metrics. Nothing
//! here changes anything.

use super::rank::Rank;
use super::sequence::State;
use crate::identity::BlockKey;
use crate::pass::Slot;
use crate::request::RequestId;

impl Rank {
    /// Requests of the last `schedule` with their tokens, in batch order: prompts, then decodes.
    pub fn batch(&self) -> Vec<(Slot, u32)> {
        let Some(pass) = self.flight.back() else { return Vec::new() };
        let live = |slot: u32, serial: u32| self.sequences[slot as usize].serial == serial;
        let members = || pass.members.iter().filter(|m| live(m.slot, m.serial));
        let prompts = members().filter(|m| m.prefill).map(|m| (Slot(m.slot), m.tokens));
        let implied = self.active.iter().copied().filter(|&slot| {
            let s = &self.sequences[slot as usize];
            s.state == State::Attached
                && pass.decode_number > s.joined
                && pass.decode_number == self.decoders.scheduled
        });
        let named = members().filter(|m| !m.prefill).map(|m| m.slot);
        let mut decodes: Vec<u32> = named.chain(implied).collect();
        decodes.sort_unstable_by_key(|&slot| self.sequences[slot as usize].ticket);
        prompts.chain(decodes.into_iter().map(|slot| (Slot(slot), 1))).collect()
    }

    /// Active requests that hold blocks, in order.
    pub fn running(&self) -> impl Iterator<Item = Slot> + '_ {
        self.active.iter().filter(|&&s| self.sequences[s as usize].started).map(|&s| Slot(s))
    }

    /// Requests that hold none: the active ones in order, then the queue.
    pub fn waiting(&self) -> impl Iterator<Item = Slot> + '_ {
        let idle = self.active.iter().filter(|&&s| !self.sequences[s as usize].started);
        idle.chain(&self.queue).map(|&s| Slot(s))
    }

    /// The request in a slot.
    pub fn id(&self, slot: Slot) -> RequestId {
        self.sequences[slot.0 as usize].id
    }

    /// Tokens in the KV cache, those of passes in flight included.
    pub fn computed_tokens(&self, slot: Slot) -> u32 {
        self.computed(slot.0)
    }

    /// Prompt and outputs processed so far.
    pub fn known_tokens(&self, slot: Slot) -> u32 {
        self.known(slot.0)
    }

    /// Its prompt is not computed to the end.
    pub fn is_context(&self, slot: Slot) -> bool {
        matches!(self.sequences[slot.0 as usize].state, State::Context | State::Queued)
    }

    /// Output tokens that the rank lets it have.
    pub fn max_tokens(&self, slot: Slot) -> u32 {
        self.sequences[slot.0 as usize].max_tokens
    }

    /// Times it was paused.
    pub fn pauses(&self, slot: Slot) -> u32 {
        self.sequences[slot.0 as usize].pauses
    }

    /// Physical blocks it holds, in order.
    pub fn blocks(&self, slot: Slot) -> &[u32] {
        &self.sequences[slot.0 as usize].blocks
    }

    /// Physical blocks without an owner, the next to be handed out first.
    pub fn free_queue(&self) -> Vec<u32> {
        self.tree.free_queue()
    }

    /// Number of blocks without an owner.
    pub fn free_blocks(&self) -> u32 {
        self.tree.free()
    }

    /// Blocks that requests past their prompt may still take.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved
    }

    /// Every reusable block with its identity, by identity.
    pub fn cached_blocks(&self) -> Vec<(BlockKey, u32)> {
        self.tree.cached_blocks()
    }
}
