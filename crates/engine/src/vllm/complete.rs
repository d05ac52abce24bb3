//! Completing a pass: tokens, finishes and cache entries
//! (vllm/v1/core/sched/scheduler.py, `update_from_output`, version 0.33.0).

use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Finished, Outcome, Slot, Token};
use crate::request::FinishReason;
use crate::token_pass::{Member, Pass};

impl Rank {
    /// Processes the oldest pass in flight. KV events that the engine would publish now are in
    /// [`Rank::events`] afterwards. Without a pass in flight nothing happens.
    pub fn complete(&mut self) -> &Outcome {
        self.outcome.clear();
        self.scheduled.parked.clear();
        self.name_stopping();
        let Some(mut pass) = self.flight.pop() else { return &self.outcome };
        if pass.tokens > 0 {
            self.processed_passes += 1;
            self.drain_parked();
        }
        self.read_failures(&pass.reports);
        if pass.decode_number > 0 {
            self.decoders.completed = pass.decode_number;
            self.collect_seconds();
        }
        self.outcome.parked.append(&mut self.scheduled.parked);
        self.outcome.beat = pass.tokens > 0;
        self.outcome.steady_tokens = pass.uniform;
        self.deliver(&mut pass);
        self.read_jobs(&pass.jobs_done);
        self.read_reports(&pass.reports);
        self.tell_host_events();
        self.flight.recycle(pass);
        &self.outcome
    }

    /// Members of the decode set that get a stop token from the oldest pass leave the set now, so that
    /// they are processed by name.
    fn name_stopping(&mut self) {
        let count = self.flight.front().map_or(0, |pass| pass.stops.len());
        for i in 0..count {
            let Some(&(slot, serial)) = self.flight.front().and_then(|pass| pass.stops.get(i)) else {
                return;
            };
            if self.sequences[slot as usize].serial == serial {
                self.detach(slot);
            }
        }
    }

    /// Members of the decode set whose second token just came.
    fn collect_seconds(&mut self) {
        while let Some((number, slot, serial)) = self.decoders.next_second() {
            // It may have left the set since, got its second token by name, and joined again.
            let s = &self.sequences[slot as usize];
            let member = s.state == State::Attached && s.serial == serial && s.joined + 1 == number;
            if member && self.known(slot) == s.prompt + 2 {
                self.outcome.second.push(Slot(slot));
            }
        }
    }

    /// Processes the requests that the pass names, in batch order.
    fn deliver(&mut self, pass: &mut Pass) {
        // Those named later, when they left the decode set, stand at the end.
        pass.members.sort_unstable_by_key(|m| m.ticket);
        for &member in &pass.members {
            if self.sequences[member.slot as usize].serial == member.serial {
                self.deliver_to(member);
            }
        }
    }

    fn deliver_to(&mut self, member: Member) {
        let slot = member.slot;
        let drops_stale = self.drops_stale_output();
        let s = &mut self.sequences[slot as usize];
        s.in_flight -= member.tokens;
        let stale = s.stale > 0;
        if stale {
            s.stale -= member.tokens;
        }
        if !member.samples || (stale && drops_stale) {
            return;
        }
        if s.outputs() == 0 {
            self.queued_tokens -= u64::from(s.prompt);
        }
        s.known += 1;
        let ordinal = s.outputs();
        let reason = if s.output.stop_after == Some(ordinal) {
            Some(FinishReason::Stop)
        } else if ordinal >= s.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        };
        if !stale {
            s.placeholders -= 1;
            let computed = self.computed(slot) - self.in_flight_tokens(slot);
            self.promote(slot, computed);
        }
        self.outcome.tokens.push(Token { slot: Slot(slot), ordinal });
        if let Some(reason) = reason {
            self.finish(slot, reason);
        }
    }

    fn finish(&mut self, slot: u32, reason: FinishReason) {
        if self.sequences[slot as usize].is_waiting() {
            self.leave_waiting(slot);
        } else {
            self.leave_running(slot);
        }
        let s = &self.sequences[slot as usize];
        let (id, output_tokens) = (s.id, s.outputs());
        let held = self.hands_over(slot, reason);
        self.outcome.finished.push(Finished { slot: Slot(slot), id, reason, output_tokens, held });
        self.part_with_blocks(slot, reason);
    }
}
