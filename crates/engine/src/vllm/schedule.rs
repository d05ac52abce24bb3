//! Scheduling a pass: the running requests, and what follows from it
//! (vllm/v1/core/sched/scheduler.py, `schedule`, version 0.33.0).

use super::config::{Policy, PreemptionMode, ResumedWork};
use super::rank::Rank;
use super::sequence::{Sequence, State};
use crate::pass::{Chunk, Scheduled, Slot};
use crate::rank::Stepper;
use crate::token_pass::{Member, Pass};

/// What a pass may still spend and what was seen so far.
pub(super) struct Round {
    pub(super) pass: Pass,
    pub(super) budget: u32,
    /// `long_prefill_token_threshold` in force, 0 for none.
    pub(super) threshold: u32,
    /// Prefill is held back in this pass.
    pub(super) defer_prefills: bool,
    /// A running request's prefill chunk was scheduled.
    pub(super) prefill_scheduled: bool,
    /// A waiting request with more than one token to compute was admitted.
    pub(super) prefill_admitted: bool,
}

enum Step {
    /// Go on with the request at this position.
    Continue(usize),
    /// No further running request is scheduled in this pass.
    Stop,
}

impl Rank {
    /// Decides the next pass and takes the blocks for it.
    pub fn schedule(&mut self) -> &Scheduled {
        self.schedule_throttled(false)
    }

    /// The same, and holds prefill back if `throttle` is set, as the engine core of a data-parallel rank
    /// asks for (vLLM `schedule(throttle_prefills)`): while something decodes, and unless the last pass that
    /// held nothing back left requests waiting.
    pub fn schedule_throttled(&mut self, throttle: bool) -> &Scheduled {
        self.scheduled.clear();
        self.read_disk();
        let mut round = self.open_round(throttle);
        self.schedule_running(&mut round);
        if self.scheduled.preempted.is_empty() {
            self.admit_waiting(&mut round);
        }
        self.close_round(round);
        &self.scheduled
    }

    fn open_round(&mut self, throttle: bool) -> Round {
        let budget = self.config.max_num_batched_tokens;
        let eligible = self.unfinished() as u32;
        let mut threshold = if eligible > 1 { self.config.long_prefill_token_threshold } else { 0 };
        if threshold > 0 && self.config.long_prefill_token_threshold_adaptive {
            threshold = threshold.max(budget / eligible);
        }
        // The local prefill cadence: hold prefill back until the interval has passed, while something
        // decodes, unless the last release could not drain the waiting queue.
        let interval = i64::from(self.config.prefill_schedule_interval);
        let local = interval > 1 && self.executed_passes as i64 + 1 - self.last_prefill_pass < interval;
        let defer_prefills = (throttle || local)
            && !self.prefill_capacity_bound
            && self.running.iter().any(|&s| !self.sequences[s as usize].prefill_chunk);
        Round {
            pass: self.flight.fresh(),
            budget,
            threshold,
            defer_prefills,
            prefill_scheduled: false,
            prefill_admitted: false,
        }
    }

    fn schedule_running(&mut self, round: &mut Round) {
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
        let mut at = self.schedule_decode_set(round);
        while at < self.running.len() && round.budget > 0 {
            match self.visit(at, round) {
                Step::Continue(next) => at = next,
                Step::Stop => break,
            }
        }
        if at < self.running.len() && self.decoders.members.count > 0 {
            self.detach_unscheduled(at);
        }
    }

    /// Schedules the leading part of the running list that consists of decode-set members, if it is
    /// plain that each of them gets its token. Returns the position from which requests must be visited
    /// one by one.
    fn schedule_decode_set(&mut self, round: &mut Round) -> usize {
        let members = self.decoders.members.count;
        if members == 0 || members > u64::from(round.budget) || !self.calendar_holds() {
            return 0;
        }
        // All requests to be visited must stand behind all members.
        let mut tail = self.running.len();
        let mut behind = 0;
        while tail > 0 {
            match self.sequences[self.running[tail - 1] as usize].state {
                State::Attached => break,
                State::Running => behind += 1,
                _ => {}
            }
            tail -= 1;
        }
        if behind < self.visited {
            return 0;
        }
        if let Err(ticket) = self.grow(self.decoders.next_pass()) {
            // The pool is exhausted: from here on in the engine's own steps.
            let at = self.running.position(ticket);
            let attached = |slot: &&u32| self.sequences[**slot as usize].state == State::Attached;
            round.budget -= self.running[..at].iter().filter(attached).count() as u32;
            return at;
        }
        round.budget -= members as u32;
        if self.visited == 0 { self.running.len() } else { tail }
    }

    /// The engine's loop body for the running request at position `at`.
    fn visit(&mut self, mut at: usize, round: &mut Round) -> Step {
        let slot = self.running[at];
        let (computed, placeholders) = (self.computed(slot), self.placeholders(slot));
        let known = self.known(slot);
        let s = &self.sequences[slot as usize];
        // Asynchronous: the passes in flight bring it to its last token for certain.
        let exhausted = self.config.async_scheduling
            && placeholders > 0
            && computed + 2 - placeholders >= s.prompt + s.max_tokens;
        if exhausted || (round.defer_prefills && s.prefill_chunk) {
            return Step::Continue(at + 1);
        }
        let mut tokens = known + placeholders - computed;
        if round.threshold > 0 {
            tokens = tokens.min(round.threshold);
        }
        tokens = tokens.min(round.budget).min(self.config.max_model_len - 1 - computed);
        if tokens == 0 {
            return Step::Continue(at + 1);
        }
        while !self.allocate_running(slot, tokens) {
            let victim_at = self.victim();
            let victim = self.running[victim_at];
            if !self.blocks_can_be_freed(victim) {
                // Its blocks would not help yet: who needs some sits this pass out, with all behind it.
                return Step::Stop;
            }
            self.refund(victim, victim_at < at, round);
            self.preempt(victim);
            at -= usize::from(victim_at < at);
            if victim == slot {
                // Last in, first out: nobody stands behind it. Otherwise those behind it may fit now.
                let lifo =
                    self.config.policy == Policy::Fcfs && self.config.preemption_mode == PreemptionMode::Lifo;
                return if lifo { Step::Stop } else { Step::Continue(at) };
            }
        }
        let s = &self.sequences[slot as usize];
        round.prefill_scheduled |= s.prefill_chunk;
        round.budget -= tokens;
        if s.state != State::Attached {
            round.pass.members.push(Member {
                slot,
                serial: s.serial,
                ticket: s.ticket,
                tokens,
                before: computed,
                prefill: s.prefill_chunk,
                samples: false,
            });
        }
        Step::Continue(at + 1)
    }

    /// Takes the blocks that a running request needs for `tokens` tokens more and enters what they fill
    /// in the prefix cache. False, with nothing changed, if the pool has too few.
    pub(super) fn allocate_running(&mut self, slot: u32, tokens: u32) -> bool {
        let computed = self.computed(slot);
        let end = computed + tokens;
        let needed = end.div_ceil(self.config.block_size);
        let sequence = &mut self.sequences[slot as usize];
        let missing = needed.saturating_sub(sequence.blocks.len() as u32);
        if missing > self.pool.free() {
            return false;
        }
        if missing > 0 {
            let held = sequence.blocks.len();
            self.pool.allocate(missing, &mut sequence.blocks);
            self.note_grown(slot, held);
        }
        let known = self.known(slot);
        self.promote(slot, end.min(known));
        true
    }

    /// Position of the running request that loses its blocks next.
    fn victim(&self) -> usize {
        match (self.config.policy, self.config.preemption_mode) {
            (Policy::Fcfs, PreemptionMode::Lifo) => self.running.len() - 1,
            (Policy::Fcfs, PreemptionMode::Fifo) => 0,
            (Policy::Priority, _) => {
                // The first of the largest, as Python's max() picks.
                let urgency = |at: usize| self.sequences[self.running[at] as usize].urgency();
                (1..self.running.len()).fold(
                    0,
                    |worst, at| {
                        if urgency(at) > urgency(worst) { at } else { worst }
                    },
                )
            }
        }
    }

    /// Gives back what a victim got in this pass.
    fn refund(&mut self, victim: u32, passed: bool, round: &mut Round) {
        let s = &self.sequences[victim as usize];
        if s.state == State::Attached {
            round.budget += u32::from(passed);
        } else if let Some(i) = round.pass.members.iter().rposition(|m| m.slot == victim) {
            round.budget += round.pass.members.remove(i).tokens;
        }
    }

    /// Takes a running request's blocks and puts it back to wait.
    fn preempt(&mut self, slot: u32) {
        self.leave_running(slot);
        self.note_preempted(slot);
        let Sequence { blocks, kept, promoted, .. } = &mut self.sequences[slot as usize];
        kept.clone_from(blocks);
        kept.truncate(*promoted as usize);
        self.release_blocks(slot);
        let sequence = &mut self.sequences[slot as usize];
        sequence.state = State::Preempted;
        sequence.computed = 0;
        // Output in flight is still delivered, but no longer counts towards progress.
        sequence.stale = sequence.in_flight;
        sequence.placeholders = 0;
        sequence.preemptions += 1;
        let rank = Self::waiting_rank(sequence);
        self.waiting.push_first(slot, rank);
        self.stats.preemptions += 1;
        self.scheduled.preempted.push(Slot(slot));
    }

    /// Members of the decode set from position `at` on got no token in this pass.
    fn detach_unscheduled(&mut self, at: usize) {
        for i in at..self.running.len() {
            let slot = self.running[i];
            self.detach(slot);
        }
    }

    /// Fixes the pass: its shape, the progress of its requests, and who decodes steadily from now on.
    fn close_round(&mut self, mut round: Round) {
        let out = &mut self.scheduled;
        out.decode = self.decoders.members;
        out.tokens = self.decoders.members.count;
        for member in &round.pass.members {
            out.tokens += u64::from(member.tokens);
            out.prefill_tokens += if member.prefill { u64::from(member.tokens) } else { 0 };
            let chunk = Chunk { new_tokens: member.tokens, before: member.before };
            if !member.prefill {
                out.decode.add(chunk.before + 1);
            } else if self.config.resumed_work == ResumedWork::Prefill {
                out.prefill.push(chunk);
            } else {
                let s = &self.sequences[member.slot as usize];
                count_as_reference(chunk, s.prompt, s.known, out);
            }
        }
        round.pass.tokens = out.tokens;
        self.executed_passes += u64::from(out.tokens > 0);
        if self.config.prefill_schedule_interval > 1 && (round.prefill_scheduled || round.prefill_admitted) {
            self.last_prefill_pass = self.executed_passes as i64;
        }
        if self.decoders.members.count > 0 {
            self.decoders.advance(1);
            round.pass.decode_number = self.decoders.scheduled;
            round.pass.uniform = self.decoders.members.count;
        }
        let mut pass = round.pass;
        if self.offload.is_some() {
            let computed = |m: &Member| (m.slot, self.sequences[m.slot as usize].computed + m.tokens);
            let members: Vec<(u32, u32)> = pass.members.iter().map(computed).collect();
            self.plan_host_jobs(&members);
        }
        for i in 0..pass.members.len() {
            let member = pass.members[i];
            let s = &mut self.sequences[member.slot as usize];
            s.computed += member.tokens;
            s.in_flight += member.tokens;
            s.prefill_chunk = s.computed < s.known + s.placeholders;
            if s.prefill_chunk {
                continue;
            }
            s.placeholders += 1;
            pass.members[i].samples = true;
            self.forget_unfinished_prefill(member.slot);
            if self.stepper == Stepper::Fast {
                self.settle(member.slot);
            }
        }
        self.flight.push(pass);
        self.renew_calendar();
        self.name_transfers();
        self.announce();
    }

    /// A request visited in this pass has its newest token scheduled: does it decode steadily from now
    /// on, or was that its last one?
    fn settle(&mut self, slot: u32) {
        if self.sequences[slot as usize].computed > self.last_position(slot) {
            self.sequences[slot as usize].state = State::Draining;
            self.visited -= 1;
        } else {
            self.attach(slot);
        }
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
                self.sequences[slot as usize].state = State::Draining;
                self.visited -= 1;
            } else {
                self.remind(slot);
            }
        }
    }
}

/// [`ResumedWork::PromptAndDecode`]: the chunk's part of the prompt as prefill, and a decode if it reaches
/// the last known token and is not the end of a first prefill.
fn count_as_reference(chunk: Chunk, prompt: u32, known: u32, out: &mut Scheduled) {
    let end = chunk.before + chunk.new_tokens;
    let before = chunk.before.min(prompt);
    let new_tokens = end.min(prompt) - before;
    if new_tokens > 0 {
        out.prefill.push(Chunk { new_tokens, before });
    }
    if end == known && (known > prompt || new_tokens == 0) {
        out.decode.add(known);
    }
}
