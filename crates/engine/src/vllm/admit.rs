//! Scheduling a pass: the waiting requests
//! (vllm/v1/core/sched/scheduler.py, `schedule`, and kv_cache_manager.py, `allocate_slots`, version 0.33.0).

use super::config::TransferRules;
use super::offload::HostHit;
use super::rank::{Blocked, Rank};
use super::schedule::Round;
use super::sequence::State;
use crate::pass::{Admission, KvLoad, Slot};
use crate::rank::Stepper;
use crate::request::HandOff;
use crate::token_pass::Member;

/// What the prefix cache holds of a waiting request.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Whole blocks.
    hits: u32,
    /// Of those, blocks without an owner: taking them costs free blocks.
    free_hits: u32,
}

/// What became of the first waiting request.
enum Verdict {
    Admitted,
    /// It cannot run yet; those behind it pass.
    PassedOver,
    /// Nobody else is looked at in this pass.
    Stop,
}

impl Rank {
    /// Admits waiting requests while budget, seats and blocks last; those that hold blocks come first.
    pub(super) fn admit_waiting(&mut self, round: &mut Round) {
        let seats = self.seats();
        let (mut without_blocks, mut with_blocks) = (Vec::new(), Vec::new());
        while round.budget > 0 && self.running.len() < seats {
            let Some(slot) = self.holding.first().or_else(|| self.waiting.first()) else { break };
            match self.consider(slot, round) {
                Verdict::Admitted => {}
                Verdict::Stop => break,
                Verdict::PassedOver => {
                    self.take_out(slot);
                    let s = &mut self.sequences[slot as usize];
                    self.deferred += usize::from(!std::mem::replace(&mut s.deferred, true));
                    match s.waits_with_blocks() {
                        true => with_blocks.push(slot),
                        false => without_blocks.push(slot),
                    }
                }
            }
        }
        for &slot in without_blocks.iter().rev() {
            let rank = Self::waiting_rank(&self.sequences[slot as usize]);
            self.waiting.push_first(slot, rank);
        }
        for &slot in with_blocks.iter().rev() {
            let s = &mut self.sequences[slot as usize];
            s.holding = true;
            self.loaded += usize::from(s.state != State::Loading);
            let rank = Self::waiting_rank(s);
            self.holding.push_first(slot, rank);
        }
        if !round.defer_prefills {
            self.prefill_capacity_bound = self.waiting.len() + self.holding.len() > self.deferred;
        }
    }

    /// Takes the first waiting request out of its queue.
    fn take_out(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        match std::mem::take(&mut s.holding) {
            true => {
                self.loaded -= usize::from(s.state != State::Loading);
                self.holding.pop_first();
            }
            false => {
                self.waiting.pop_first();
            }
        }
    }

    fn consider(&mut self, slot: u32, round: &mut Round) -> Verdict {
        match self.sequences[slot as usize].state {
            State::Loading => return Verdict::PassedOver,
            State::Loaded => self.take_load(slot),
            _ => {}
        }
        if self.sequences[slot as usize].stale > 0 && !self.drops_stale_output() {
            // Its output in flight may still be delivered.
            return Verdict::PassedOver;
        }
        let s = &self.sequences[slot as usize];
        if s.computed > 0 {
            // Loaded; nothing is looked up.
            return self.try_admit(slot, Found::default(), round);
        }
        if self.config.transfer_rules == TransferRules::Aisimulate013 && self.wants_load(slot) {
            return Verdict::Stop;
        }
        self.scheduled.lookups += 1;
        let found = self.look_up(slot);
        let hit_tokens = found.hits * self.config.block_size;
        let tokens = match self.look_up_host(slot, hit_tokens) {
            HostHit::Later => return Verdict::PassedOver,
            HostHit::Tokens(0) => self.tokens_to_load(slot, hit_tokens),
            HostHit::Tokens(tokens) => tokens,
        };
        match tokens {
            0 => self.try_admit(slot, found, round),
            tokens => match self.try_load(slot, tokens, found) {
                Some(load) => {
                    self.scheduled.loads.push(load);
                    Verdict::PassedOver
                }
                None => Verdict::Stop,
            },
        }
    }

    /// Starts the load of the first waiting request, if it waits for one, a seat is free and there are blocks: the
    /// rule of AISimulate 0.13 ([`TransferRules::Aisimulate013`]), whose scheduler itself starts none.
    pub fn start_load(&mut self) -> Option<KvLoad> {
        let slot = self.waiting.first().filter(|&slot| self.wants_load(slot))?;
        if self.running.len() >= self.seats() {
            return None;
        }
        let found = self.look_up(slot);
        let tokens = self.sequences[slot as usize].prompt - found.hits * self.config.block_size;
        let load = self.try_load(slot, tokens, found)?;
        self.waiting.pop_first();
        let s = &mut self.sequences[slot as usize];
        s.holding = true;
        let rank = Self::waiting_rank(s);
        self.holding.push_last(slot, rank);
        Some(load)
    }

    /// Tokens of a waiting request behind `hit_tokens` that are to be loaded.
    fn tokens_to_load(&self, slot: u32, hit_tokens: u32) -> u32 {
        match self.wants_load(slot) {
            true => self.sequences[slot as usize].prompt - hit_tokens,
            false => 0,
        }
    }

    /// Admits the first waiting request if it gets a chunk of budget and the blocks it needs.
    fn try_admit(&mut self, slot: u32, found: Found, round: &mut Round) -> Verdict {
        let s = &self.sequences[slot as usize];
        let known = s.known;
        let before = s.computed + found.hits * self.config.block_size;
        if round.defer_prefills && before + 1 < known {
            return Verdict::Stop;
        }
        let mut tokens = known - before;
        if round.threshold > 0 {
            tokens = tokens.min(round.threshold);
        }
        if !self.config.chunked_prefill && tokens > round.budget {
            return Verdict::Stop;
        }
        tokens = tokens.min(round.budget);

        let must_fit = if self.config.reserve_full_isl { known } else { before + tokens };
        if self.lacks_blocks(must_fit, found.hits + s.blocks.len() as u32, found.free_hits, 0) {
            self.note_blocked(slot, found, None);
            return Verdict::Stop;
        }
        self.admit(slot, tokens, found, round);
        Verdict::Admitted
    }

    /// Starts the load of `tokens` tokens for the first waiting request if there are blocks for them, beside those
    /// that unfinished prefills still need. It costs no budget and takes no seat.
    fn try_load(&mut self, slot: u32, tokens: u32, found: Found) -> Option<KvLoad> {
        let known_tokens = self.sequences[slot as usize].known;
        let hit_tokens = found.hits * self.config.block_size;
        let end = hit_tokens + tokens;
        if self.lacks_blocks_for_load(known_tokens, end, found.hits, found.free_hits) {
            self.note_blocked(slot, found, Some(end));
            return None;
        }
        self.take_blocks(slot, end, found);
        self.count_look_up(slot, hit_tokens);
        self.load_from_host(slot, hit_tokens, end);
        self.sequences[slot as usize].computed = end;
        let blocks = self.sequences[slot as usize].blocks.len() as u32 - found.hits;
        let after = self.scheduled.admitted.len() as u32;
        self.await_load(slot);
        Some(KvLoad { slot: Slot(slot), hit_tokens, known_tokens, tokens, blocks, after })
    }

    /// Remembers whom the blocks did not suffice for, and what was found for it.
    fn note_blocked(&mut self, slot: u32, found: Found, load_end: Option<u32>) {
        let s = &self.sequences[slot as usize];
        let Found { hits, free_hits } = found;
        let blocked = Blocked { slot, serial: s.serial, known: s.known, hits, free_hits, load_end };
        if self.blocked.replace(blocked).is_none() {
            self.pool.watch(&self.hits, self.missed);
        }
    }

    /// Whether the pool cannot give a waiting request blocks for its first `tokens` tokens and leave `reserved`. It
    /// has `hits` of them; `free_hits` of those are without an owner.
    fn lacks_blocks(&self, tokens: u32, hits: u32, free_hits: u32, reserved: u32) -> bool {
        let watermark = if self.running.is_empty() { 0 } else { self.watermark_blocks };
        let needed = tokens.div_ceil(self.config.block_size).saturating_sub(hits) + free_hits;
        u64::from(needed) + u64::from(watermark) + u64::from(reserved) > u64::from(self.pool.free())
    }

    fn lacks_blocks_for_load(&self, known: u32, end: u32, hits: u32, free_hits: u32) -> bool {
        let reserved = match self.config.transfer_rules {
            TransferRules::Nixl => self.reserved_blocks(),
            TransferRules::Aisimulate013 => 0,
        };
        (self.config.reserve_full_isl && self.lacks_blocks(known, hits, free_hits, 0))
            || self.lacks_blocks(end, hits, free_hits, reserved)
    }

    /// The same as when it was noted, with the blocks that are free now.
    pub(super) fn still_lacks_blocks(&self, blocked: &Blocked) -> bool {
        let &Blocked { known, hits, free_hits, load_end, .. } = blocked;
        match load_end {
            Some(end) => self.lacks_blocks_for_load(known, end, hits, free_hits),
            None => self.lacks_blocks(known, hits, free_hits, 0),
        }
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
        let whole = self.config.transfer_rules == TransferRules::Aisimulate013 && s.hand_off == HandOff::Pull;
        let longest = (s.known - u32::from(!whole)) / self.config.block_size;
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

    /// Takes the blocks found for a waiting request, and new ones for its tokens up to `end`.
    fn take_blocks(&mut self, slot: u32, end: u32, found: Found) {
        // The scratch list holds the blocks of the last look-up, which is this request's, if there was one.
        let s = &mut self.sequences[slot as usize];
        if found.hits > 0 {
            for &block in &self.hits {
                self.pool.touch(block);
            }
            self.pool.tidy();
            s.blocks.extend_from_slice(&self.hits);
            s.promoted = found.hits;
        }
        let missing = end.div_ceil(self.config.block_size).saturating_sub(s.blocks.len() as u32);
        self.pool.allocate(missing, &mut s.blocks);
        self.note_handed_out(slot);
        // Should it be preempted before it gets a token, its next look-up finds other blocks.
        self.blocked = None;
    }

    fn count_look_up(&mut self, slot: u32, hit_tokens: u32) {
        let s = &self.sequences[slot as usize];
        if s.preemptions == 0 && self.config.prefix_caching {
            self.stats.prefix_queries += u64::from(s.known);
            self.stats.prefix_hits += u64::from(hit_tokens);
        }
    }

    fn admit(&mut self, slot: u32, tokens: u32, found: Found, round: &mut Round) {
        let s = &self.sequences[slot as usize];
        let (known_tokens, loaded) = (s.known, s.computed > 0);
        let hit_tokens = found.hits * self.config.block_size;
        let before = s.computed + hit_tokens;
        let end = before + tokens;
        self.take_blocks(slot, end, found);
        self.promote(slot, end.min(known_tokens));

        self.take_out(slot);
        if !loaded {
            self.count_look_up(slot, hit_tokens);
        }
        if end < known_tokens {
            self.note_unfinished_prefill(slot);
        }
        let s = &mut self.sequences[slot as usize];
        self.deferred -= usize::from(std::mem::take(&mut s.deferred));
        let resumed = s.state == State::Preempted;
        s.state = State::Running;
        s.ticket = self.next_ticket;
        s.computed = before;
        self.next_ticket += 1;
        self.running.push(slot, s.ticket);
        self.visited += 1;
        round.budget -= tokens;
        round.prefill_admitted |= before + 1 < known_tokens;
        round.pass.members.push(Member {
            slot,
            serial: s.serial,
            ticket: s.ticket,
            tokens,
            before,
            // One token behind loaded KV is computed as a decode is.
            prefill: !loaded || tokens > 1,
            samples: false,
        });
        let slot = Slot(slot);
        self.scheduled.admitted.push(Admission {
            slot,
            hit_tokens,
            host_tokens: 0,
            known_tokens,
            resumed,
            loaded,
        });
    }
}
