//! Scheduling a pass (tensorrt_llm/_torch/pyexecutor/py_executor.py, `_prepare_and_schedule_batch` and what
//! `_executor_loop_overlap` does up to the forward step; resource_manager.py, `prepare_resources`).

use super::config::CapacityPolicy;
use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Admission, Chunk, Scheduled, Slot};
use crate::rank::Stepper;
use crate::token_pass::{Member, Pass};

impl Rank {
    /// Decides the next pass and takes the blocks for it.
    pub fn schedule(&mut self) -> &Scheduled {
        self.scheduled.clear();
        self.let_go_of_read();
        self.join_arrived();
        self.collect_due();
        self.activate();
        if self.quiet && self.stepper == Stepper::Fast && self.due.is_empty() && self.visited == 0 {
            self.fitting.clear();
            self.chunks.clear();
            self.scheduled.lookups = self.quiet_lookups;
        } else {
            self.decide_capacity();
            self.decide_micro_batch();
        }
        self.quiet = self.fitting.is_empty()
            && self.chunks.is_empty()
            && self.due.is_empty()
            && self.scheduled.loads.is_empty()
            && self.scheduled.preempted.is_empty();
        self.quiet_lookups = self.scheduled.lookups;
        let mut pass = self.flight.fresh();
        self.start_prompts();
        self.compute_prompts(&mut pass);
        self.generate(&mut pass);
        self.close(pass);
        &self.scheduled
    }

    fn collect_due(&mut self) {
        self.due.clear();
        let number = self.decoders.next_pass();
        self.decoders.take_due(number, &mut self.taken);
        for &(due, ticket, slot, serial) in &self.taken {
            // Entries of an earlier stay in the set are void; of equal ones, the first counts.
            let s = &self.sequences[slot as usize];
            let valid = s.state == State::Attached && (s.due, s.ticket, s.serial) == (due, ticket, serial);
            if valid && self.due.last() != Some(&(ticket, slot, serial)) {
                self.due.push((ticket, slot, serial));
            }
        }
        let ends = self.due.len();
        let serial = |slot: u32| self.sequences[slot as usize].serial;
        self.due
            .extend(self.growth.starting(number).iter().map(|&(ticket, slot)| (ticket, slot, serial(slot))));
        if ends > 0 && self.due.len() > ends {
            self.due.sort_unstable();
            self.due.dedup();
        }
    }

    /// Takes the blocks of prompts that start in this pass: first all of them claim what they reuse, then each
    /// gets the rest, for the whole prompt whatever its chunk (`add_sequence_batch`). Blocks for the tokens
    /// generated in this pass come after.
    ///
    /// With maximal utilization a prompt can have counted on a block whose last owner was paused since, so
    /// that blocks are short; the engine fails then. Here that prompt sits the pass out.
    fn start_prompts(&mut self) {
        let named = self.fitting.iter().copied();
        let due = self.due.iter().filter(|d| self.sequences[d.1 as usize].state == State::Attached);
        let grows = |&slot: &u32| self.missing_block(slot);
        let mut promised = named.chain(due.map(|d| d.1)).filter(grows).count() as u32;
        let mut kept = 0;
        for at in 0..self.chunks.len() {
            let (slot, tokens) = self.chunks[at];
            if self.sequences[slot as usize].started || self.claim(slot, &mut promised) {
                self.chunks[kept] = (slot, tokens);
                kept += 1;
            } else {
                debug_assert_eq!(self.config.capacity_policy, CapacityPolicy::MaxUtilization);
            }
        }
        self.chunks.truncate(kept);
    }

    /// Takes the blocks that a prompt reuses, if there are enough for the rest of it too.
    fn claim(&mut self, slot: u32, promised: &mut u32) -> bool {
        let s = &mut self.sequences[slot as usize];
        let found = s.found.map(|(_, found)| found).unwrap_or_default();
        self.keys.clear();
        s.keys.extend(0..found.hits, s.output.tokens.as_deref(), &mut self.keys);
        self.hits.clear();
        self.hits.extend(self.keys.iter().map_while(|&key| self.tree.find(key)));
        let free_hits = self.hits.iter().filter(|&&block| self.tree.owners(block) == 0).count() as u32;
        let rest = s.known.div_ceil(self.config.block_size) - found.hits;
        if self.hits.len() as u32 != found.hits || free_hits + rest + *promised > self.tree.free() {
            return false;
        }
        for &block in &self.hits {
            self.tree.touch(block);
        }
        s.blocks.extend_from_slice(&self.hits);
        *promised += rest;
        true
    }

    /// Enters the prompts in the pass.
    fn compute_prompts(&mut self, pass: &mut Pass) {
        for at in 0..self.chunks.len() {
            let (slot, share) = self.chunks[at];
            let s = &mut self.sequences[slot as usize];
            if !s.started {
                let rest = s.known.div_ceil(self.config.block_size) - s.blocks.len() as u32;
                self.tree.allocate(rest, &mut s.blocks);
                let hit_tokens = s.found.map_or(0, |(_, found)| found.hit_tokens);
                (s.started, s.computed) = (true, hit_tokens);
                self.running += 1;
                let resumed = s.pauses > 0;
                if !resumed && self.config.block_reuse {
                    self.stats.prefix_queries += u64::from(s.known);
                    self.stats.prefix_hits += u64::from(hit_tokens);
                }
                let (place, known_tokens) = (Slot(slot), s.known);
                let admission = Admission {
                    slot: place,
                    hit_tokens,
                    host_tokens: 0,
                    known_tokens,
                    resumed,
                    loaded: false,
                };
                self.scheduled.admitted.push(admission);
            }
            // A prompt that is cached to its end, by the reference's rule, is no prompt any more.
            let prefill = s.computed < s.known;
            let before = s.computed.min(s.known - 1);
            let tokens = share.min(s.known - before);
            s.computed = before + tokens;
            let (serial, ticket) = (s.serial, s.ticket);
            pass.members.push(Member { slot, serial, ticket, tokens, before, prefill, samples: false });
        }
    }

    /// Takes the blocks that the generating requests' next tokens begin, in order, and enters those that are
    /// named in the pass.
    fn generate(&mut self, pass: &mut Pass) {
        let mut due = std::mem::take(&mut self.due);
        due.retain(|&(_, slot, _)| self.sequences[slot as usize].state == State::Attached);
        let mut next = 0;
        for at in 0..self.fitting.len() {
            let slot = self.fitting[at];
            let ticket = self.sequences[slot as usize].ticket;
            while next < due.len() && due[next].0 < ticket {
                self.grow_member(due[next].1);
                next += 1;
            }
            if !self.grow(slot) {
                continue;
            }
            let s = &mut self.sequences[slot as usize];
            let (before, serial) = (s.computed, s.serial);
            s.computed += 1;
            pass.members.push(Member {
                slot,
                serial,
                ticket,
                tokens: 1,
                before,
                prefill: false,
                samples: false,
            });
        }
        for &(_, slot, _) in &due[next..] {
            self.grow_member(slot);
        }
        self.due = due;
    }

    fn grow_member(&mut self, slot: u32) {
        if !self.grow(slot) {
            self.detach(slot);
        }
    }

    /// The next token of a generating request begins a block that it does not hold.
    fn missing_block(&self, slot: u32) -> bool {
        self.computed(slot) / self.config.block_size >= self.sequences[slot as usize].blocks.len() as u32
    }

    /// Takes a block if the next token begins one. It is there: both policies have counted it.
    fn grow(&mut self, slot: u32) -> bool {
        if !self.missing_block(slot) {
            return true;
        }
        debug_assert!(self.tree.free() > 0, "counted by the capacity policy");
        if self.tree.free() == 0 {
            return false;
        }
        self.tree.allocate(1, &mut self.sequences[slot as usize].blocks);
        self.reserved -= 1;
        true
    }

    /// Fixes the pass: its shape, the progress of its requests, and who decodes steadily from now on.
    fn close(&mut self, mut pass: Pass) {
        let out = &mut self.scheduled;
        out.decode = self.decoders.members;
        out.tokens = self.decoders.members.count;
        for member in &pass.members {
            out.tokens += u64::from(member.tokens);
            if member.prefill {
                out.prefill_tokens += u64::from(member.tokens);
                out.prefill.push(Chunk { new_tokens: member.tokens, before: member.before });
            } else {
                out.decode.add(member.before + 1);
            }
        }
        debug_assert!(out.tokens <= u64::from(self.config.max_num_tokens));
        pass.tokens = out.tokens;
        if self.decoders.members.count > 0 {
            pass.uniform = self.decoders.members.count;
            self.decoders.advance(1);
            pass.decode_number = self.decoders.scheduled;
        }
        for i in 0..pass.members.len() {
            let slot = pass.members[i].slot;
            let s = &mut self.sequences[slot as usize];
            if s.computed < s.known + s.placeholders {
                continue;
            }
            s.placeholders += 1;
            pass.members[i].samples = true;
            if s.state == State::Context {
                self.end_context(slot);
            }
            self.settle(slot);
        }
        self.flight.push(pass);
        self.renew_calendar();
    }

    /// A request that was named in this pass has its newest token scheduled: does it decode steadily from now
    /// on, or was that its last one (py_executor.py, `_update_request_states_tp`)?
    fn settle(&mut self, slot: u32) {
        if self.sequences[slot as usize].computed > self.last_position(slot) {
            self.drain(slot);
        } else if self.may_attach() {
            self.attach(slot);
        }
    }

    fn drain(&mut self, slot: u32) {
        self.sequences[slot as usize].state = State::Draining;
        self.visited -= 1;
        Self::insert(&mut self.draining, &self.sequences, slot);
    }

    /// Members for which something was due in this pass: enter what is due next, take out those whose
    /// last token is scheduled, and note stop tokens.
    fn renew_calendar(&mut self) {
        for i in 0..self.due.len() {
            let (_, slot, serial) = self.due[i];
            let s = &self.sequences[slot as usize];
            if s.state != State::Attached || s.serial != serial {
                continue;
            }
            let before = self.computed(slot) - 1;
            if self.stop_position(slot) == Some(before)
                && let Some(pass) = self.flight.iter_mut().next_back()
            {
                pass.stops.push((slot, serial));
            }
            if before == self.last_position(slot) {
                self.detach(slot);
                self.drain(slot);
            } else {
                self.remind(slot);
            }
        }
    }
}
