//! Scheduling a pass: the waiting requests
//! (vllm/v1/core/sched/scheduler.py, `schedule`, and kv_cache_manager.py, `allocate_slots`, version 0.33.0).

use super::rank::{Blocked, Rank};
use super::schedule::Round;
use super::sequence::State;
use crate::pass::{Admission, Slot};
use crate::rank::Stepper;
use crate::token_pass::Member;

/// What the prefix cache holds of a waiting request.
#[derive(Clone, Copy)]
struct Found {
    /// Whole blocks.
    hits: u32,
    /// Of those, blocks without an owner: taking them costs free blocks.
    free_hits: u32,
}

impl Rank {
    /// Admits waiting requests while budget, seats and blocks last.
    pub(super) fn admit_waiting(&mut self, round: &mut Round) {
        let seats = self.seats();
        let mut passed_over = Vec::new();
        while round.budget > 0 && self.running.len() < seats {
            let Some(slot) = self.waiting.first() else { break };
            let s = &mut self.sequences[slot as usize];
            if s.stale > 0 {
                // Its output in flight may still be delivered; those behind it pass.
                self.deferred += usize::from(!std::mem::replace(&mut s.deferred, true));
                self.waiting.pop_first();
                passed_over.push(slot);
                continue;
            }
            if !self.try_admit(slot, round) {
                break;
            }
        }
        for &slot in passed_over.iter().rev() {
            let rank = Self::waiting_rank(&self.sequences[slot as usize]);
            self.waiting.push_first(slot, rank);
        }
        if !round.defer_prefills {
            self.prefill_capacity_bound = self.waiting.len() > self.deferred;
        }
    }

    /// Admits the first waiting request if it gets a chunk of budget and the blocks it needs.
    fn try_admit(&mut self, slot: u32, round: &mut Round) -> bool {
        self.scheduled.lookups += 1;
        let found = self.look_up(slot);
        let size = self.config.block_size;
        let hit_tokens = found.hits * size;
        let s = &self.sequences[slot as usize];
        let known = s.known;
        if round.defer_prefills && hit_tokens + 1 < known {
            return false;
        }
        let mut tokens = known - hit_tokens;
        if round.threshold > 0 {
            tokens = tokens.min(round.threshold);
        }
        if !self.config.chunked_prefill && tokens > round.budget {
            return false;
        }
        tokens = tokens.min(round.budget);

        let end = hit_tokens + tokens;
        let must_fit = if self.config.reserve_full_isl { known } else { end };
        if self.lacks_blocks(must_fit, found.hits, found.free_hits) {
            let Found { hits, free_hits } = found;
            let blocked = Blocked { slot, serial: s.serial, known, hits, free_hits };
            if self.blocked.replace(blocked).is_none() {
                self.pool.watch(&self.hits, self.missed);
            }
            return false;
        }
        self.admit(slot, tokens, found, round);
        true
    }

    /// Whether the pool cannot give a waiting request blocks for its first `tokens` tokens, of which
    /// `hits` blocks are cached, `free_hits` of them without an owner.
    pub(super) fn lacks_blocks(&self, tokens: u32, hits: u32, free_hits: u32) -> bool {
        let watermark = if self.running.is_empty() { 0 } else { self.watermark_blocks };
        let needed = tokens.div_ceil(self.config.block_size) - hits + free_hits;
        u64::from(needed) + u64::from(watermark) > u64::from(self.pool.free())
    }

    /// Running requests up to which waiting ones are admitted.
    pub(super) fn seats(&self) -> usize {
        self.config.max_num_active_seqs.unwrap_or(self.config.max_num_seqs) as usize
    }

    /// The longest chain of cached blocks from the start of the prompt. At least one token is left to
    /// compute, so that there is something to sample from.
    fn look_up(&mut self, slot: u32) -> Found {
        if !self.pool.caching() {
            return Found { hits: 0, free_hits: 0 };
        }
        let s = &mut self.sequences[slot as usize];
        if let Some(b) = self.blocked
            && (b.slot, b.serial, b.known) == (slot, s.serial, s.known)
            && self.stepper == Stepper::Fast
            && self.pool.watch_holds()
        {
            return Found { hits: b.hits, free_hits: b.free_hits };
        }
        self.blocked = None;
        self.hits.clear();
        self.missed = None;
        let longest = (s.known - 1) / self.config.block_size;
        // Blocks that no other request can have stored, and this one has not, need no look-up.
        let findable = if s.preemptions == 0 { longest.min(s.keys.shared()) } else { longest };
        let tokens = s.output.tokens.as_deref();
        let (pool, hits, missed, kept) = (&self.pool, &mut self.hits, &mut self.missed, &s.kept);
        s.keys.runs(0..findable, tokens, |run| {
            let found = pool.find(run, kept.get(hits.len()..).unwrap_or_default(), hits);
            if found < run.count {
                *missed = Some(run.key(found));
            }
            found == run.count
        });
        let free_hits = self.hits.iter().filter(|&&block| self.pool.is_free(block)).count() as u32;
        Found { hits: self.hits.len() as u32, free_hits }
    }

    fn admit(&mut self, slot: u32, tokens: u32, found: Found, round: &mut Round) {
        // The scratch list holds the blocks of the last look-up, which is this request's.
        let s = &mut self.sequences[slot as usize];
        let known_tokens = s.known;
        for &block in &self.hits {
            self.pool.touch(block);
        }
        self.pool.tidy();
        s.blocks.extend_from_slice(&self.hits);
        s.promoted = found.hits;
        let hit_tokens = found.hits * self.config.block_size;
        let end = hit_tokens + tokens;
        let missing = end.div_ceil(self.config.block_size) - found.hits;
        self.pool.allocate(missing, &mut s.blocks);
        self.promote(slot, end.min(known_tokens));

        self.waiting.pop_first();
        // Should it be preempted before it gets a token, its next look-up finds other blocks.
        self.blocked = None;
        let s = &mut self.sequences[slot as usize];
        self.deferred -= usize::from(std::mem::take(&mut s.deferred));
        let resumed = s.state == State::Preempted;
        if s.preemptions == 0 && self.config.prefix_caching {
            self.stats.prefix_queries += u64::from(known_tokens);
            self.stats.prefix_hits += u64::from(hit_tokens);
        }
        s.state = State::Running;
        s.ticket = self.next_ticket;
        s.computed = hit_tokens;
        self.next_ticket += 1;
        self.running.push(slot, s.ticket);
        self.visited += 1;
        round.budget -= tokens;
        round.prefill_admitted |= hit_tokens + 1 < known_tokens;
        round.pass.members.push(Member {
            slot,
            serial: s.serial,
            ticket: s.ticket,
            tokens,
            before: hit_tokens,
            prefill: true,
            samples: false,
        });
        self.scheduled.admitted.push(Admission { slot: Slot(slot), hit_tokens, known_tokens, resumed });
    }
}
