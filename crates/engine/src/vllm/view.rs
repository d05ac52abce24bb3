//! What can be seen of a rank from outside between two calls: for traces, tests and live metrics. Nothing
//! here changes anything.

use super::rank::Rank;
use super::sequence::State;
use crate::identity::BlockKey;
use crate::pass::Slot;
use crate::request::RequestId;

impl Rank {
    /// Requests of the last `schedule` with their tokens, in batch order.
    pub fn batch(&self) -> Vec<(Slot, u32)> {
        let Some(pass) = self.flight.back() else { return Vec::new() };
        let named = |slot: u32, serial: u32| {
            pass.members.iter().find(|m| m.slot == slot && m.serial == serial).map(|m| m.tokens)
        };
        self.running
            .iter()
            .filter_map(|&slot| {
                let s = &self.sequences[slot as usize];
                let implied = s.state == State::Attached
                    && pass.decode_number > s.joined
                    && pass.decode_number == self.decoders.scheduled;
                match implied {
                    true => Some((Slot(slot), 1)),
                    false => named(slot, s.serial).map(|n| (Slot(slot), n)),
                }
            })
            .collect()
    }

    /// The running list, in order.
    pub fn running(&self) -> impl Iterator<Item = Slot> + '_ {
        self.running.iter().map(|&s| Slot(s))
    }

    /// The waiting queue, in order.
    pub fn waiting(&self) -> impl Iterator<Item = Slot> + '_ {
        self.waiting.iter().map(Slot)
    }

    /// The queue of those that wait with blocks, in order (vLLM `kv_holding_waiting`).
    pub fn holding(&self) -> impl Iterator<Item = Slot> + '_ {
        self.holding.iter().map(Slot)
    }

    /// A waiting request that waits for KV to be loaded, or for admission to come to it after that
    /// (vLLM `WAITING_FOR_REMOTE_KVS`).
    pub fn waits_for_kv(&self, slot: Slot) -> bool {
        matches!(self.sequences[slot.0 as usize].state, State::Loading | State::Loaded)
    }

    /// Waiting requests that were passed over at least once (vLLM `deferred_waiting`).
    pub fn deferred(&self) -> impl Iterator<Item = Slot> + '_ {
        self.holding().chain(self.waiting()).filter(|slot| self.sequences[slot.0 as usize].deferred)
    }

    /// Every request that holds blocks, ended ones too, in no order.
    pub fn holders(&self) -> impl Iterator<Item = Slot> + '_ {
        (0u32..).zip(&self.sequences).filter(|(_, s)| !s.blocks.is_empty()).map(|(slot, _)| Slot(slot))
    }

    /// It has ended and its blocks are still to be read or written.
    pub fn is_held(&self, slot: Slot) -> bool {
        self.sequences[slot.0 as usize].state == State::Held
    }

    /// It was preempted with output in flight that has not come yet.
    pub fn has_stale_output(&self, slot: Slot) -> bool {
        self.sequences[slot.0 as usize].stale > 0
    }

    /// The request in a slot.
    pub fn id(&self, slot: Slot) -> RequestId {
        self.sequences[slot.0 as usize].id
    }

    /// `num_computed_tokens`.
    pub fn computed_tokens(&self, slot: Slot) -> u32 {
        self.computed(slot.0)
    }

    /// Whether its last scheduled chunk left part of it uncomputed, so that it gives no token.
    pub fn is_prefill_chunk(&self, slot: Slot) -> bool {
        self.sequences[slot.0 as usize].prefill_chunk
    }

    /// Times it was preempted.
    pub fn preemptions(&self, slot: Slot) -> u32 {
        self.sequences[slot.0 as usize].preemptions
    }

    /// Whether the last pass that held no prefill back left requests waiting (vLLM `prefill_capacity_bound`).
    pub fn prefill_capacity_bound(&self) -> bool {
        self.prefill_capacity_bound
    }

    /// Physical blocks it holds, in order.
    pub fn blocks(&self, slot: Slot) -> &[u32] {
        &self.sequences[slot.0 as usize].blocks
    }

    /// Physical blocks without an owner, the next to be handed out first.
    pub fn free_queue(&self) -> Vec<u32> {
        self.pool.free_queue()
    }

    /// Number of blocks without an owner.
    pub fn free_blocks(&self) -> u32 {
        self.pool.free()
    }

    /// Every copy in the prefix cache with its physical block: by identity, and the copies of one identity
    /// in order of entry, which is the order in which look-ups prefer them.
    pub fn cached_copies(&self) -> Vec<(BlockKey, u32)> {
        self.pool.cached_copies()
    }
}
