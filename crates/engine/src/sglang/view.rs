//! What can be seen of a rank from outside between two calls: for traces, tests and live metrics. Nothing
//! here changes anything.

use super::rank::Rank;
use crate::identity::BlockKey;
use crate::pass::Slot;
use crate::request::RequestId;

/// What a batch does (SGLang's forward mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Prefill only.
    Extend,
    /// Decode only.
    Decode,
    /// Prefill, with the running requests' decodes behind.
    Mixed,
}

/// One retraction: running requests lost their KV because a decode pass did not fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Retraction {
    /// The requests, in the order in which they were hit.
    pub retracted: Vec<RequestId>,
    /// The new token ratio that follows.
    pub new_ratio: f64,
    /// Requests that were ended because even alone they did not fit.
    pub aborted: Vec<RequestId>,
    /// Free tokens before.
    pub available_before: u32,
    /// Free tokens after.
    pub available_after: u32,
}

impl Rank {
    /// What the batch of the last `schedule` does; none if it gave no batch.
    pub fn mode(&self) -> Option<Mode> {
        self.last.mode
    }

    /// Requests that the last `schedule` extends, in batch order.
    fn extended(&self) -> &[u32] {
        &self.last.extended
    }

    /// Running requests that decode in the batch of the last `schedule`, in batch order.
    fn decoding(&self) -> &[u32] {
        match self.last.mode {
            Some(Mode::Decode) => &self.running,
            Some(Mode::Mixed) => &self.last.decodes,
            Some(Mode::Extend) | None => &[],
        }
    }

    /// Requests of the last `schedule`, with their tokens, in batch order (decodes of a mixed batch behind).
    pub fn batch(&self) -> Vec<(Slot, u32)> {
        let chunks = self.extended().iter().zip(&self.scheduled.prefill);
        let extended = chunks.map(|(&slot, chunk)| (Slot(slot), chunk.new_tokens));
        extended.chain(self.decoding().iter().map(|&slot| (Slot(slot), 1))).collect()
    }

    /// For each request of `batch` the tokens that stand before those of this pass.
    pub fn prefix_lens(&self) -> Vec<u32> {
        let extended = self.scheduled.prefill.iter().map(|chunk| chunk.before);
        extended.chain(self.decoding().iter().map(|&slot| self.committed(slot) - 1)).collect()
    }

    /// KV length of each request of `batch` after the pass (`seq_lens`).
    pub fn seq_lens(&self) -> Vec<u32> {
        let extended = self.scheduled.prefill.iter().map(|chunk| chunk.before + chunk.new_tokens);
        extended.chain(self.decoding().iter().map(|&slot| self.committed(slot))).collect()
    }

    /// How many of the last requests in `batch` are decodes of a mixed batch.
    pub fn mixed_decodes(&self) -> usize {
        self.last.decodes.len()
    }

    /// The request whose prompt the batch of the last `schedule` leaves unfinished.
    pub fn chunked(&self) -> Option<Slot> {
        self.last.chunked.map(Slot)
    }

    /// `chunked_req` of the batch of the last `schedule`. The running batch keeps the one that it had as a
    /// prefill batch, also when that has ended.
    pub fn chunked_req(&self) -> Option<RequestId> {
        match self.last.mode? {
            Mode::Decode => self.running_chunked,
            Mode::Extend | Mode::Mixed => self.last.chunked_id,
        }
    }

    /// Requests that went back to the waiting queue in the last `schedule`: retracted (true) or preempted.
    pub fn requeued(&self) -> &[(Slot, bool)] {
        &self.requeued
    }

    /// Retractions of the last `schedule`.
    pub fn retractions(&self) -> &[Retraction] {
        &self.retractions
    }

    /// `new_token_ratio`.
    pub fn new_token_ratio(&self) -> f64 {
        self.ratio.current
    }

    /// Its start value, floor, and loss per decode pass.
    pub fn new_token_ratio_range(&self) -> (f64, f64, f64) {
        (self.ratio.init, self.ratio.min, self.ratio.decay)
    }

    /// Free tokens.
    pub fn available_tokens(&self) -> u32 {
        self.radix.free() as u32
    }

    /// Cached tokens that nobody holds.
    pub fn evictable_tokens(&self) -> u32 {
        self.radix.evictable() as u32
    }

    /// Cached tokens that somebody holds.
    pub fn protected_tokens(&self) -> u32 {
        self.radix.protected() as u32
    }

    /// Free and all tokens of the host tier, if there is one.
    pub fn host_tokens(&self) -> Option<(u64, u64)> {
        self.radix.host_tokens()
    }

    /// Copies to the host and from it that are not heard to have ended: nodes written, and paths loaded.
    pub fn host_transfers(&self) -> (usize, usize) {
        self.radix.host_transfers()
    }

    /// The identities on the host, where events are kept.
    pub fn host_keys(&self) -> Vec<BlockKey> {
        self.radix.host_keys()
    }

    /// `batch_is_full`: no admission until a request leaves the running batch.
    pub fn batch_is_full(&self) -> bool {
        self.full
    }

    /// The running batch, in order.
    pub fn running(&self) -> impl Iterator<Item = Slot> + '_ {
        self.running.iter().map(|&slot| Slot(slot))
    }

    /// The waiting queue, in order.
    pub fn waiting(&self) -> impl Iterator<Item = Slot> + '_ {
        self.waiting.iter().map(|&slot| Slot(slot))
    }

    /// The request in a slot.
    pub fn id(&self, slot: Slot) -> RequestId {
        self.sequences[slot.0 as usize].id
    }

    /// Output tokens that a live request has given so far.
    pub fn outputs(&self, slot: Slot) -> u32 {
        self.outputs_of(slot.0)
    }

    /// The identities in the cache, where events are kept: for comparing it with what the events said.
    pub fn cached_keys(&self) -> Vec<BlockKey> {
        self.radix.cached_keys()
    }
}
