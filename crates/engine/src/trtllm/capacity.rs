//! Who has the blocks: the capacity scheduler (tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py,
//! `PyCapacityScheduler`, which mirrors cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp).
//!
//! It only decides; blocks are taken in `schedule`, except that paused requests give theirs back here.

use super::config::{CapacityPolicy, FullHit};
use super::rank::Rank;
use super::sequence::{Found, State};
use crate::pass::Slot;
use crate::rank::Stepper;
use std::collections::HashMap;

/// Keys made at once in a look-up, which may end at any of them.
const KEYS_AT_ONCE: u32 = 32;

impl Rank {
    /// Fills `fitting` with the requests that may take part in this pass, as far as blocks are concerned.
    /// Members of the decode set, which always may, are not named.
    pub(super) fn decide_capacity(&mut self) {
        self.fitting.clear();
        match self.config.capacity_policy {
            CapacityPolicy::GuaranteedNoEvict => self.guarantee_no_evict(),
            CapacityPolicy::MaxUtilization => {
                let paused = self.maximise_utilization();
                for slot in paused {
                    self.pause(slot);
                }
            }
        }
    }

    /// `GuaranteedNoEvictPolicy.schedule`: what generating requests may still need is set aside, then
    /// prompts get what they need to their end, in order, up to the first one that does not fit.
    fn guarantee_no_evict(&mut self) {
        let mut reserved = self.reserved;
        if self.stepper == Stepper::Plain {
            reserved = 0;
            for &slot in &self.active {
                let s = &self.sequences[slot as usize];
                if s.is_generation() {
                    reserved += u64::from(s.total_blocks(self.config.block_size)) - s.blocks.len() as u64;
                }
            }
            debug_assert_eq!(reserved, self.reserved);
        }
        if self.visited > 0 {
            let generating = |slot: &u32| self.sequences[*slot as usize].state == State::Generating;
            self.fitting.extend(self.active.iter().copied().filter(generating));
        }
        let mut available = u64::from(self.tree.free()).saturating_sub(reserved);
        if self.contexts.first().is_some_and(|&slot| self.is_pulled(slot)) {
            // A rank goes on with all of its requests, or with none.
            return self.make_room();
        }
        self.begin_contributions();
        for at in 0..self.contexts.len() {
            let slot = self.contexts[at];
            let total = self.sequences[slot as usize].total_blocks(self.config.block_size);
            let needed = if self.sequences[slot as usize].started {
                total - self.sequences[slot as usize].blocks.len() as u32
            } else {
                let found = self.look_up(slot);
                if self.is_beneficial_to_skip(found) {
                    continue;
                }
                // getRemainingBlocksToCompletion: only blocks with an owner are had for nothing.
                total - found.owned
            };
            if u64::from(needed) > available {
                break;
            }
            available -= u64::from(needed);
            self.fitting.push(slot);
        }
    }

    /// `MaxUtilizationPolicy.schedule`: each request gets what it needs for this pass. When one does not
    /// fit, the last one that has started is paused, and it is tried again. Returns those to pause.
    ///
    /// A request that has not started and is tried again finds, by the rule for duplicates, that somebody
    /// computes its first block already: itself. So it sits out the pass for which it had another one paused.
    /// That is what the engine's loop does.
    fn maximise_utilization(&mut self) -> Vec<u32> {
        let (mut candidates, whole) = self.candidates();
        let lookups = self.scheduled.lookups;
        let mut free = u64::from(self.tree.free());
        let mut taken = 0u64;
        let mut paused = Vec::new();
        let mut given_back: HashMap<u32, u32> = HashMap::new();
        self.begin_contributions();
        let (mut at, mut end) = (0, candidates.len());
        while at < end {
            let slot = candidates[at];
            let s = &self.sequences[slot as usize];
            let needed = if s.state == State::Context && !s.started {
                let found = self.look_up(slot);
                if self.is_beneficial_to_skip(found) {
                    at += 1;
                    continue;
                }
                let known = self.sequences[slot as usize].known;
                known.div_ceil(self.config.block_size) - found.owned
            } else {
                self.blocks_for_one_step(slot)
            };
            if taken + u64::from(needed) <= free {
                taken += u64::from(needed);
                let state = self.sequences[slot as usize].state;
                if matches!(state, State::Context | State::Generating) {
                    self.fitting.push(slot);
                }
                at += 1;
                continue;
            }
            if self.decoders.members.count > 0 || !whole {
                // From here on every request counts. Begin again with all of them by name.
                self.detach_all();
                self.scheduled.lookups = lookups;
                self.fitting.clear();
                return self.maximise_utilization();
            }
            let started = |slot: &u32| {
                let s = &self.sequences[*slot as usize];
                s.is_mid_context() || s.is_generation()
            };
            let Some(last) = candidates[at..end].iter().rposition(started) else { break };
            end = at + last;
            let victim = candidates[end];
            for &block in &self.sequences[victim as usize].blocks {
                let count = given_back.entry(block).or_default();
                *count += 1;
                free += u64::from(*count == self.tree.owners(block));
            }
            paused.push(victim);
        }
        candidates.clear();
        paused
    }

    /// Requests whose needs have to be looked at, in order, and whether that is all of them. Members of the
    /// decode set need nothing unless they are due.
    fn candidates(&self) -> (Vec<u32>, bool) {
        if self.decoders.members.count == 0 || self.visited > 0 {
            return (self.active.clone(), true);
        }
        let mut candidates: Vec<u32> = self.contexts.iter().chain(&self.draining).copied().collect();
        candidates.extend(self.due.iter().map(|&(_, slot, _)| slot));
        candidates.sort_unstable_by_key(|&slot| self.sequences[slot as usize].ticket);
        (candidates, false)
    }

    /// `getNeededBlocksOneStep` for a request that has started: the rest of a prompt needs nothing, its blocks
    /// are there; a generating one needs a block when its next token begins one. One whose last token is
    /// scheduled counts, although it takes part in no pass any more.
    fn blocks_for_one_step(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        if !s.is_generation() {
            return 0;
        }
        let size = self.config.block_size;
        let current = self.computed(slot);
        let may_add = (s.prompt + s.max_tokens).saturating_sub(current).min(1);
        (current + may_add).div_ceil(size) - current.div_ceil(size)
    }

    /// Takes a request's blocks. It stays where it is among the active requests, and begins again with its
    /// prompt and what it has given since (py_executor.py, `_terminate_requests`, `_pause_requests`;
    /// llmRequest.h, `pause`). A token in flight is still delivered, and joins them.
    fn pause(&mut self, slot: u32) {
        self.stop(slot);
        let s = &mut self.sequences[slot as usize];
        s.state = State::Context;
        s.computed = 0;
        s.pauses += 1;
        s.found = None;
        Self::insert(&mut self.contexts, &self.sequences, slot);
        self.stats.preemptions += 1;
        self.scheduled.preempted.push(Slot(slot));
    }

    /// `_prefill_contributed_blocks`: a prompt that is being computed in chunks will leave its first new
    /// block to others.
    fn begin_contributions(&mut self) {
        self.contributed.clear();
        if self.stepper == Stepper::Fast && self.tree.watch_broken() {
            self.tree.watch_anew();
            self.look_up_period += 1;
        }
        if !self.config.beneficial_to_skip || !self.tree.reuse() {
            return;
        }
        for at in 0..self.contexts.len() {
            let slot = self.contexts[at];
            if self.sequences[slot as usize].started {
                let found = self.find(slot);
                self.contributed.extend(found.first_new);
            }
        }
    }

    /// `_beneficial_to_skip`: another prompt of this pass, or one that is being computed in chunks, computes
    /// the block that this one would begin with. If not, it is the one.
    fn is_beneficial_to_skip(&mut self, found: Found) -> bool {
        if !self.config.beneficial_to_skip {
            return false;
        }
        found.first_new.is_some_and(|key| !self.contributed.insert(key))
    }

    /// What the reuse tree holds of a request that has not started.
    fn look_up(&mut self, slot: u32) -> Found {
        self.scheduled.lookups += 1;
        self.find(slot)
    }

    /// `analyzePrefixReuse` and `loadOrAllocateBlocks`: the chain of reusable blocks from the start of the
    /// prompt. At least one token is left to compute, so that there is something to sample from.
    fn find(&mut self, slot: u32) -> Found {
        if !self.tree.reuse() {
            return Found::default();
        }
        let s = &mut self.sequences[slot as usize];
        if self.stepper == Stepper::Fast
            && !self.tree.watch_broken()
            && let Some((period, found)) = s.found
            && period == self.look_up_period
        {
            return found;
        }
        let size = self.config.block_size;
        let full = s.known / size;
        // Blocks that no other request can have stored, and this one has not, need no look-up.
        let findable = if s.pauses == 0 { full.min(s.keys.shared()) } else { full };
        let tokens = s.output.tokens.as_deref();
        self.hits.clear();
        let mut first_new = None;
        let mut from = 0;
        while from < findable && first_new.is_none() {
            let to = findable.min(from + KEYS_AT_ONCE);
            self.keys.clear();
            s.keys.extend(from..to, tokens, &mut self.keys);
            for &key in &self.keys {
                match self.tree.find(key) {
                    Some(block) => self.hits.push(block),
                    None => {
                        first_new = Some(key);
                        break;
                    }
                }
            }
            from = to;
        }
        if first_new.is_none() && findable < full {
            self.keys.clear();
            s.keys.extend(findable..findable + 1, tokens, &mut self.keys);
            first_new = self.keys.first().copied();
        }
        let mut found = Found { first_new, hits: self.hits.len() as u32, ..Found::default() };
        found.hit_tokens = found.hits * size;
        if found.hit_tokens == s.known && self.config.full_hit == FullHit::Recompute {
            // The last token is computed again. Its block is copied but for that token, or computed again.
            found.hits -= 1;
            found.hit_tokens = if self.config.partial_reuse { s.known - 1 } else { found.hits * size };
        }
        let shared = &self.hits[..found.hits as usize];
        found.owned = shared.iter().filter(|&&block| self.tree.owners(block) > 0).count() as u32;
        s.found = Some((self.look_up_period, found));
        if self.stepper == Stepper::Fast {
            self.tree.watch(&self.hits, first_new);
        }
        found
    }
}
