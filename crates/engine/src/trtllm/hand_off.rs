//! Prefill and decode on ranks of their own: an extension, for which no source of the engine's behaviour was at hand but
//! what is publicly said of it. Under GUARANTEED_NO_EVICT on both sides.
//!
//! A rank that serves prompts keeps a request's blocks after its first token until they have been read. A rank that goes
//! on takes the blocks of the prompt when prompt and longest output fit, as for any request, loads into them, and
//! gives the token that the prompt's side sampled in the first pass that is decided after that.

use super::config::FirstToken;
use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Admission, Finished, KvLoad, Slot, Token};
use crate::request::{FinishReason, HandOff};

/// What of a rank's requests has to do with other ranks.
#[derive(Debug, Default)]
pub(super) struct HandOffs {
    /// Active requests whose KV is on its way.
    pub(super) loading: usize,
    /// Of those, the ones whose KV has come, in order.
    arrived: Vec<u32>,
    /// Requests that ended and hold blocks.
    pub(super) held: usize,
    /// Of those, the ones whose blocks have been read.
    read: Vec<u32>,
}

impl HandOffs {
    /// A request whose KV is on its way is given up.
    pub(super) fn forget(&mut self, slot: u32) {
        self.loading -= 1;
        self.arrived.retain(|&other| other != slot);
    }

    /// The next pass hears of something.
    pub(super) fn are_due(&self) -> bool {
        !self.arrived.is_empty() || !self.read.is_empty()
    }
}

impl Rank {
    /// Its prompt is computed elsewhere.
    pub(super) fn is_pulled(&self, slot: u32) -> bool {
        self.sequences[slot as usize].hand_off == HandOff::Pull
    }

    /// The first request that waits is let in by its driver, when it makes room for it (AISimulate).
    pub(super) fn waits_for_driver(&self, slot: u32) -> bool {
        self.is_pulled(slot) && self.config.first_token == FirstToken::Decode
    }

    /// The KV of a request has come. It runs from the next pass on.
    pub fn kv_loaded(&mut self, slot: Slot) {
        if self.sequences[slot.0 as usize].state == State::Loading {
            self.hand_offs.arrived.push(slot.0);
        }
    }

    /// The blocks of a request that ended here have been read. They are free when the next pass is decided.
    pub fn kv_sent(&mut self, slot: Slot) {
        if self.sequences[slot.0 as usize].state == State::Held {
            self.hand_offs.read.push(slot.0);
        }
    }

    /// The same, known at once (AISimulate 0.13).
    pub fn kv_sent_at_once(&mut self, slot: Slot) {
        self.kv_sent(slot);
        self.let_go_of_read();
    }

    /// Gives back the blocks that have been read.
    pub(super) fn let_go_of_read(&mut self) {
        for slot in std::mem::take(&mut self.hand_offs.read) {
            self.hand_offs.held -= 1;
            self.release(slot);
            self.vacate(slot);
            self.quiet = false;
        }
    }

    /// A request that has given its token keeps its blocks.
    pub(super) fn hold(&mut self, slot: u32) {
        self.leave_lists(slot);
        self.sequences[slot as usize].state = State::Held;
        self.hand_offs.held += 1;
    }

    /// The first request that waits takes the blocks of its prompt, if prompt and longest output fit
    /// (AISimulate 0.13).
    pub fn start_load(&mut self) -> Option<KvLoad> {
        let &slot = self.queue.front()?;
        let full = self.active.len() >= self.config.max_batch_size as usize;
        if full || !self.waits_for_driver(slot) {
            return None;
        }
        let available = u64::from(self.tree.free()).saturating_sub(self.reserved);
        if u64::from(self.sequences[slot as usize].total_blocks(self.config.block_size)) > available {
            return None;
        }
        self.queue.pop_front();
        self.enlist(slot);
        Some(self.load(slot))
    }

    /// Active requests whose prompt is computed elsewhere take its blocks, in order, up to the first that does not fit.
    /// Nothing is reused.
    pub(super) fn make_room(&mut self) {
        let pulled = |&slot: &u32| self.is_pulled(slot);
        let waiting: Vec<u32> = self.contexts.iter().copied().filter(pulled).collect();
        for slot in waiting {
            let available = u64::from(self.tree.free()).saturating_sub(self.reserved);
            if u64::from(self.sequences[slot as usize].total_blocks(self.config.block_size)) > available {
                return;
            }
            let load = self.load(slot);
            self.scheduled.loads.push(load);
        }
    }

    /// An active request takes the blocks of its prompt.
    fn load(&mut self, slot: u32) -> KvLoad {
        Self::remove(&mut self.contexts, &self.sequences, slot);
        let size = self.config.block_size;
        let s = &mut self.sequences[slot as usize];
        let blocks = s.prompt.div_ceil(size);
        self.tree.allocate(blocks, &mut s.blocks);
        (s.started, s.state) = (true, State::Loading);
        self.reserved += u64::from(s.total_blocks(size)) - s.blocks.len() as u64;
        self.running += 1;
        self.hand_offs.loading += 1;
        self.quiet = false;
        let tokens = s.prompt;
        KvLoad { slot: Slot(slot), hit_tokens: 0, known_tokens: tokens, tokens, blocks, after: 0 }
    }

    /// Those whose KV has come go on.
    pub(super) fn join_arrived(&mut self) {
        for slot in std::mem::take(&mut self.hand_offs.arrived) {
            self.hand_offs.loading -= 1;
            self.visited += 1;
            self.quiet = false;
            let s = &mut self.sequences[slot as usize];
            s.state = State::Generating;
            let (known_tokens, place) = (s.known, Slot(slot));
            let admission = Admission {
                slot: place,
                hit_tokens: 0,
                host_tokens: 0,
                known_tokens,
                resumed: false,
                loaded: true,
            };
            self.scheduled.admitted.push(admission);
            if self.config.first_token == FirstToken::Decode {
                // Its last prompt token is computed again, to sample from.
                s.computed = s.prompt - 1;
                continue;
            }
            s.computed = s.prompt;
            s.known += 1;
            self.scheduled.given.push(Token { slot: place, ordinal: 1 });
            let reason = match s.output.stop_after {
                Some(1) => FinishReason::Stop,
                _ if s.max_tokens == 1 => FinishReason::Length,
                _ => continue,
            };
            let id = s.id;
            self.leave(slot);
            let finished = Finished { slot: place, id, reason, output_tokens: 1, held: false };
            self.scheduled.finished.push(finished);
            self.vacate(slot);
        }
    }
}
