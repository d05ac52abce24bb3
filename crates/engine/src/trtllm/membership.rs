//! Joining and leaving the decode set, and a request's counters wherever they are kept.
//!
//! While a request is attached, its counters are implied by the set's; `detach` makes them explicit again,
//! so that everything else in this module may read and write them as the engine does.

use super::config::CapacityPolicy;
use super::rank::Rank;
use super::sequence::State;
use crate::pass::Slot;
use crate::rank::Stepper;
use crate::token_pass::Member;

impl Rank {
    pub(super) fn computed(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        match s.state {
            State::Attached => s.computed + (self.decoders.scheduled - s.joined) as u32,
            _ => s.computed,
        }
    }

    pub(super) fn known(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        match s.state {
            State::Attached => s.known + self.decoders.completed.saturating_sub(s.joined) as u32,
            _ => s.known,
        }
    }

    /// A member must get its token in every pass without being looked at: the budget must suffice for all
    /// active requests, and no prompt may come before it.
    pub(super) fn may_attach(&self) -> bool {
        let config = &self.config;
        self.stepper == Stepper::Fast
            && config.max_num_tokens >= config.max_batch_size
            && (config.capacity_policy == CapacityPolicy::GuaranteedNoEvict || config.chunked_prefill)
    }

    /// Takes a request out of the decode set, so that its own counters tell everything: passes in
    /// flight name it from now on.
    pub(super) fn detach(&mut self, slot: u32) {
        if self.sequences[slot as usize].state != State::Attached {
            return;
        }
        let (computed, known) = (self.computed(slot), self.known(slot));
        let s = &mut self.sequences[slot as usize];
        let (scheduled, completed) = (self.decoders.scheduled, self.decoders.completed.max(s.joined));
        for pass in self.flight.iter_mut().filter(|p| p.decode_number > completed) {
            pass.uniform -= 1;
            pass.members.push(Member {
                slot,
                serial: s.serial,
                ticket: s.ticket,
                tokens: 1,
                before: 0,
                prefill: false,
                samples: true,
            });
        }
        if self.decoders.completed > s.joined {
            self.scheduled.parked.push(Slot(slot));
        }
        s.computed = computed;
        s.known = known;
        s.placeholders += (scheduled - completed) as u32;
        s.state = State::Generating;
        self.visited += 1;
        let member = (s.ticket, slot);
        self.decoders.members.remove(computed + 1);
        self.growth.remove(scheduled, computed, member, false);
    }

    /// Takes all members out.
    pub(super) fn detach_all(&mut self) {
        for at in 0..self.active.len() {
            self.detach(self.active[at]);
        }
    }

    /// Puts a request in the decode set: from the next pass on, each computes one token of it.
    pub(super) fn attach(&mut self, slot: u32) {
        let joined = self.decoders.scheduled;
        let s = &mut self.sequences[slot as usize];
        debug_assert_eq!(s.state, State::Generating);
        s.state = State::Attached;
        s.joined = joined;
        if s.known + s.placeholders == s.prompt + 1 {
            self.decoders.seconds.push_back((joined + 1, slot, s.serial));
        }
        self.visited -= 1;
        debug_assert!(s.blocks.len() as u32 == s.computed.div_ceil(self.config.block_size));
        let (computed, member) = (s.computed, (s.ticket, slot));
        self.decoders.members.add(computed + 1);
        self.growth.add(joined, computed, member, false);
        self.remind(slot);
    }

    /// Tokens computed before the pass that schedules the last output token that the scheduler can
    /// foresee (length), or that it would learn of before scheduling more (a stop, without overlap).
    pub(super) fn last_position(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        let outputs = match s.output.stop_after {
            Some(stop) if !self.config.overlap => stop,
            _ => s.max_tokens,
        };
        (s.prompt + outputs).saturating_sub(2)
    }

    /// Tokens computed before the pass that schedules a stop token, when the scheduler cannot know it.
    pub(super) fn stop_position(&self, slot: u32) -> Option<u32> {
        let s = &self.sequences[slot as usize];
        let stop = s.output.stop_after.filter(|&n| self.config.overlap && n < s.max_tokens)?;
        (s.prompt + stop).checked_sub(2)
    }

    /// Enters in the calendar when a member of the decode set needs attention next: for its last token or a
    /// stop.
    pub(super) fn remind(&mut self, slot: u32) {
        let computed = self.computed(slot);
        let mut at = self.last_position(slot);
        if let Some(stop) = self.stop_position(slot)
            && stop >= computed
        {
            at = at.min(stop);
        }
        debug_assert!(at >= computed, "nothing that is due lies in the past");
        let due = self.decoders.next_pass() + u64::from(at.saturating_sub(computed));
        let s = &mut self.sequences[slot as usize];
        s.due = due;
        self.decoders.remind((due, s.ticket, slot, s.serial));
    }
}
