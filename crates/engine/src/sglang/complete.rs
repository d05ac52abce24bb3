//! Completing a pass: tokens, finishes and what the tree learns
//! (managers/scheduler_components/batch_result_processor.py, version 0.5.23).

use super::batch::Member;
use super::config::Disaggregation;
use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Outcome, Slot, Token};
use crate::request::FinishReason;

impl Rank {
    /// Processes the oldest pass in flight. KV events that the engine would publish now are in
    /// [`Rank::events`] afterwards. Without a pass in flight nothing happens.
    pub fn complete(&mut self) -> &Outcome {
        self.outcome.clear();
        self.outcome.parked.append(&mut self.parked);
        self.report_ended();
        let Some(mut pass) = self.flight.pop() else { return &self.outcome };
        match pass.mode {
            None => self.turn_without_batch(),
            Some(_) => {
                self.outcome.beat = pass.decode_number > 0;
                if pass.decode_number > 0 {
                    self.decoders.completed = pass.decode_number;
                }
                self.outcome.steady_tokens = pass.uniform;
                // Those named later, when they left the decode set, stand at the end.
                pass.members.sort_by_key(|member| (member.extend_end.is_none(), member.ticket));
                for &member in &pass.members {
                    if self.sequences[member.slot as usize].serial == member.serial {
                        self.deliver(member);
                    }
                }
                self.radix.submit_writes();
                let mut jobs = std::mem::take(&mut self.outcome.host_jobs);
                self.take_host_jobs(&mut jobs, &mut Vec::new());
                self.outcome.host_jobs = jobs;
            }
        }
        self.flight.recycle(pass);
        if self.sends_in_turns() {
            self.let_go_of_sent();
        }
        &self.outcome
    }

    /// With nothing to do and nothing in flight, the engine forgets what it learned about outputs
    /// (`on_idle`).
    fn turn_without_batch(&mut self) {
        let nothing_follows = self.flight.back().is_none_or(|pass| pass.mode.is_none());
        if nothing_follows && self.unfinished() == 0 && !self.radix.host_is_busy() {
            self.ratio.reset();
            self.restless = false;
        }
    }

    fn deliver(&mut self, member: Member) {
        let slot = member.slot;
        let s = &mut self.sequences[slot as usize];
        if s.retracted {
            return;
        }
        if member.extend_end.is_some() && s.middle_chunks > 0 {
            s.middle_chunks -= 1;
            return;
        }
        s.outputs += 1;
        let hands_over = self.config.disaggregation == Disaggregation::Prefill && !s.to_finish;
        let ordinal = self.outputs_of(slot);
        let s = &self.sequences[slot as usize];
        let reason = if s.to_finish {
            Some(FinishReason::Abort)
        } else if s.stop_after == Some(ordinal) {
            Some(FinishReason::Stop)
        } else if s.ends_after(ordinal) {
            Some(FinishReason::Length)
        } else {
            None
        };
        self.outcome.tokens.push(Token { slot: Slot(slot), ordinal });
        match reason {
            // Here ends every request with the first token.
            _ if hands_over => {
                self.leave_batch(slot);
                self.hold(member);
            }
            Some(reason) => self.finish(slot, reason),
            None => {
                if let Some(end) = member.extend_end {
                    self.checkpoint(slot, end);
                }
            }
        }
    }

    fn finish(&mut self, slot: u32, reason: FinishReason) {
        self.leave_batch(slot);
        let s = &self.sequences[slot as usize];
        // A slot may be scheduled for a token behind the last one.
        self.release(slot, Some(s.committed.min(s.known())));
        self.end(slot, reason);
    }

    /// A request ends, and is in no batch any more.
    fn leave_batch(&mut self, slot: u32) {
        match self.sequences[slot as usize].state {
            State::Prefilling => {
                self.last.extended.retain(|&other| other != slot);
                self.someone_left = true;
            }
            State::Running | State::Attached if self.last.decodes.contains(&slot) => {
                self.detach(slot);
                self.visited -= 1;
                self.last.decodes.retain(|&other| other != slot);
                self.someone_left = true;
            }
            State::Running | State::Attached => {
                self.leave_running(slot);
                self.someone_ended = true;
                self.someone_left = true;
                if self.receives() {
                    let s = &self.sequences[slot as usize];
                    self.hand_offs.lingering.push((s.prompt, s.outputs, s.max_new));
                }
            }
            State::Draining | State::Waiting | State::Vacant => {}
            State::Bootstrapping | State::Sending | State::Preallocating | State::Receiving => {}
        }
    }
}
