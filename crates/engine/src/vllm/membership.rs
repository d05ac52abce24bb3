//! Joining and leaving the decode set, and a request's counters wherever they are kept.
//!
//! While a request is attached, its counters are implied by the set's; `detach` makes them explicit again,
//! so that everything else in this module may read and write them as the engine does.

use super::rank::Rank;
use super::sequence::State;
use crate::pass::Slot;
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

    /// Passes in flight that it takes part in as a member of the decode set.
    fn implied_in_flight(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        match s.state {
            State::Attached => (self.decoders.scheduled - self.decoders.completed.max(s.joined)) as u32,
            _ => 0,
        }
    }

    /// Tokens scheduled and not processed.
    pub(super) fn in_flight_tokens(&self, slot: u32) -> u32 {
        self.sequences[slot as usize].in_flight + self.implied_in_flight(slot)
    }

    pub(super) fn placeholders(&self, slot: u32) -> u32 {
        self.sequences[slot as usize].placeholders + self.implied_in_flight(slot)
    }

    /// Takes a request out of the decode set, so that its own counters tell everything: passes in
    /// flight name it from now on.
    pub(super) fn detach(&mut self, slot: u32) {
        if self.sequences[slot as usize].state != State::Attached {
            return;
        }
        let (computed, known) = (self.computed(slot), self.known(slot));
        let implied = self.implied_in_flight(slot);
        let sequence = &mut self.sequences[slot as usize];
        let first_in_flight = self.decoders.completed.max(sequence.joined) + 1;
        for pass in self.flight.iter_mut().filter(|p| p.decode_number >= first_in_flight) {
            pass.uniform -= 1;
            pass.members.push(Member {
                slot,
                serial: sequence.serial,
                ticket: sequence.ticket,
                tokens: 1,
                before: 0,
                prefill: false,
                samples: true,
            });
        }
        if self.decoders.completed > sequence.joined {
            self.scheduled.parked.push(Slot(slot));
        }
        sequence.computed = computed;
        sequence.known = known;
        sequence.placeholders += implied;
        sequence.in_flight += implied;
        sequence.state = State::Running;
        self.visited += 1;
        let (member, shared) = ((sequence.ticket, slot), sequence.output.tokens.is_some());
        self.decoders.members.remove(computed + 1);
        self.growth.remove(self.decoders.scheduled, computed, member, shared);
    }

    /// Puts a request in the decode set: from the next pass on, each computes one token of it.
    pub(super) fn attach(&mut self, slot: u32) {
        let joined = self.decoders.scheduled;
        let sequence = &mut self.sequences[slot as usize];
        debug_assert_eq!(sequence.state, State::Running);
        sequence.state = State::Attached;
        sequence.joined = joined;
        if sequence.known + sequence.placeholders == sequence.prompt + 1 {
            self.decoders.seconds.push_back((joined + 1, slot, sequence.serial));
        }
        debug_assert_eq!(sequence.blocks.len(), sequence.computed.div_ceil(self.config.block_size) as usize);
        let (computed, member, shared) =
            (sequence.computed, (sequence.ticket, slot), sequence.output.tokens.is_some());
        self.visited -= 1;
        self.decoders.members.add(computed + 1);
        self.growth.add(joined, computed, member, shared);
        self.remind(slot);
    }

    /// Passes between scheduling a token and knowing it, when passes follow each other.
    fn lag(&self) -> u32 {
        self.config.depth() as u32 - 1
    }

    /// Whether the passes in flight are those that the calendar counts on.
    pub(super) fn calendar_holds(&self) -> bool {
        self.decoders.members.count == 0
            || self.flight.iter().filter(|pass| pass.tokens > 0).count() == self.lag() as usize
    }

    /// Tokens computed before the pass that schedules the last output token that the scheduler can
    /// foresee (length), or that it would learn of before scheduling more (a stop, synchronously).
    pub(super) fn last_position(&self, slot: u32) -> u32 {
        let s = &self.sequences[slot as usize];
        let outputs = match s.output.stop_after {
            Some(stop) if !self.config.async_scheduling => stop,
            _ => s.max_tokens,
        };
        (s.prompt + outputs).saturating_sub(2)
    }

    /// Tokens computed before the pass that schedules a stop token, when the scheduler cannot know it.
    pub(super) fn stop_position(&self, slot: u32) -> Option<u32> {
        let s = &self.sequences[slot as usize];
        let stop = s.output.stop_after.filter(|&n| self.config.async_scheduling && n < s.max_tokens)?;
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
        let due = self.decoders.next_pass() + u64::from(at - computed);
        let sequence = &mut self.sequences[slot as usize];
        sequence.due = due;
        self.decoders.remind((due, sequence.ticket, slot, sequence.serial));
    }
}
