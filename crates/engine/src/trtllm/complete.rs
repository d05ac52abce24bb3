//! Completing a pass: tokens, blocks that become reusable, finishes (tensorrt_llm/_torch/pyexecutor/
//! py_executor.py, `_update_requests` and `_process_previous_batch`).

use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Finished, Outcome, Slot, Token};
use crate::request::{FinishReason, HandOff};
use crate::token_pass::Member;

impl Rank {
    /// Processes the oldest pass in flight. KV events that the engine would publish now are in
    /// [`Rank::events`] afterwards. Without a pass in flight nothing happens.
    pub fn complete(&mut self) -> &Outcome {
        self.outcome.clear();
        self.scheduled.parked.clear();
        self.name_stopping();
        let Some(mut pass) = self.flight.pop() else { return &self.outcome };
        if pass.decode_number > 0 {
            self.decoders.completed = pass.decode_number;
            self.collect_seconds();
        }
        self.outcome.parked.append(&mut self.scheduled.parked);
        self.outcome.beat = pass.tokens > 0;
        self.outcome.steady_tokens = pass.uniform;
        // `_handle_responses` goes through the active requests in order. Those named later, when they left
        // the decode set, stand at the end.
        pass.members.sort_unstable_by_key(|m| m.ticket);
        let mut ended = Vec::new();
        for &member in &pass.members {
            if self.sequences[member.slot as usize].serial == member.serial {
                ended.extend(self.deliver(member).map(|reason| (member.slot, reason)));
            }
        }
        for (slot, reason) in ended {
            self.finish(slot, reason);
        }
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

    /// Gives a request its token, if the pass computed it to its end. Tells whether it ends with it.
    fn deliver(&mut self, member: Member) -> Option<FinishReason> {
        if !member.samples {
            return None;
        }
        let slot = member.slot;
        let s = &mut self.sequences[slot as usize];
        s.placeholders -= 1;
        s.known += 1;
        let ordinal = s.outputs();
        let reason = if s.output.stop_after == Some(ordinal) {
            Some(FinishReason::Stop)
        } else if ordinal >= s.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        };
        // resource_manager.py, update_resources, and kvCacheManager.cpp, storeContextBlocks: the full blocks of a
        // prompt become reusable when the pass that ended it is processed, before finished requests go.
        if member.prefill && s.is_generation() {
            self.store(slot, member.before + member.tokens);
        }
        self.outcome.tokens.push(Token { slot: Slot(slot), ordinal });
        reason
    }

    fn finish(&mut self, slot: u32, reason: FinishReason) {
        let held = self.sequences[slot as usize].hand_off == HandOff::Hold;
        if held {
            self.hold(slot);
        } else {
            self.leave(slot);
        }
        let s = &self.sequences[slot as usize];
        let output_tokens = s.outputs();
        self.outcome.finished.push(Finished { slot: Slot(slot), id: s.id, reason, output_tokens, held });
        if !held {
            self.vacate(slot);
        }
    }
}
