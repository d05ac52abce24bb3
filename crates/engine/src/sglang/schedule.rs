//! Which batch comes next (managers/scheduler.py, `get_next_batch_to_run`, version 0.5.23).

use super::batch::Member;
use super::rank::{LastBatch, Rank};
use super::sequence::State;
use super::view::Mode;
use crate::pass::{Scheduled, Slot};
use crate::request::FinishReason;

impl Rank {
    /// Decides on the next pass: prefill if anything can be admitted, else decode. A pass without tokens
    /// says that there is nothing to do now.
    pub fn schedule(&mut self) -> &Scheduled {
        self.scheduled.clear();
        self.requeued.clear();
        self.retractions.clear();
        if self.sends_in_turns() {
            self.let_go_of_sent();
            self.pop_bootstrapped();
        }
        if self.receives() && !self.hands_over_at_once() {
            self.receive();
            self.last = LastBatch::default();
            if !self.running.is_empty() {
                self.decode();
            }
        } else {
            self.prefill_or_decode();
        }
        self.launch();
        let (mut jobs, mut flush) = Default::default();
        self.take_host_jobs(&mut jobs, &mut flush);
        (self.scheduled.host_jobs, self.scheduled.flush) = (jobs, flush);
        self.scheduled.parked.append(&mut self.parked);
        &self.scheduled
    }

    /// Makes the pass a prefill pass if anything can be admitted, else a decode pass.
    fn prefill_or_decode(&mut self) {
        self.abort_chunk();
        self.radix.check_host();
        if let Some(slot) = self.chunked {
            // What of its prompt is scheduled so far is in the tree from now on.
            let s = &self.sequences[slot as usize];
            let end = s.extend_end;
            if end > s.prefix_len {
                self.checkpoint(slot, end);
                self.sequences[slot as usize].prefix_len = end;
            }
        }
        if self.sends_in_turns() {
            self.leave_last();
            self.prefill();
            return;
        }
        self.merge_last();
        if std::mem::take(&mut self.someone_left) {
            self.full = false;
        }
        // Who comes with KV goes before prompts.
        let others_first = self.receives() && self.join_activated();
        if !self.defers_prefill() && !others_first {
            self.prefill();
        }
        if self.last.mode.is_none() && !self.running.is_empty() && !self.prefill_only {
            self.decode();
        }
        if matches!(self.last.mode, Some(Mode::Extend | Mode::Mixed)) {
            self.arm_prefill_decode_interval();
        }
    }

    /// Ends the request whose chunks are to be aborted (`process_pending_chunked_abort`).
    fn abort_chunk(&mut self) {
        if std::mem::take(&mut self.abort_chunked)
            && let Some(slot) = self.chunked.take()
        {
            self.release(slot, None);
            let before = self.last.extended.len();
            self.last.extended.retain(|&other| other != slot);
            self.someone_left |= self.last.extended.len() < before;
            self.end_early(slot, FinishReason::Abort);
        }
    }

    /// Moves the requests of the last prefill batch to the running batch, except the one that is not
    /// through.
    fn merge_last(&mut self) {
        let LastBatch { extended, decodes, chunked, chunked_id, prefill_only, .. } =
            std::mem::take(&mut self.last);
        let someone_ended = std::mem::take(&mut self.someone_ended);
        let was_empty = self.running.is_empty() && !someone_ended;
        let mut joining = extended;
        if let Some(chunked) = chunked {
            let before = joining.len();
            joining.retain(|&slot| slot != chunked);
            self.someone_left |= joining.len() < before;
        }
        if joining.is_empty() && decodes.is_empty() {
            return;
        }
        if was_empty {
            // The engine takes the other batch, with its own flag.
            self.full = false;
            self.someone_left = false;
            self.prefill_only = prefill_only;
            self.running_chunked = chunked_id;
        } else {
            self.prefill_only &= prefill_only;
        }
        for &slot in &joining {
            self.sequences[slot as usize].state = State::Running;
            self.visited += 1;
        }
        joining.extend(decodes);
        for slot in joining {
            self.sequences[slot as usize].ticket = self.next_ticket;
            self.next_ticket += 1;
            self.running.push(slot);
        }
        // Decodes of a mixed batch have new places, by which those are put in order that its pass in flight
        // will name yet.
        let sequences = &self.sequences;
        for member in self.flight.iter_mut().flat_map(|pass| &mut pass.members) {
            let s = &sequences[member.slot as usize];
            if member.extend_end.is_none() && s.serial == member.serial {
                member.ticket = s.ticket;
            }
        }
    }

    /// `_should_defer_prefill`.
    fn defers_prefill(&mut self) -> bool {
        if (self.running.len() as u64) < u64::from(self.config.prefill_decode_interval_min_bs) {
            // A small batch may grow in every turn.
            self.interval_left = 0;
        }
        let defers = self.interval_left > 0;
        self.interval_left -= u32::from(defers);
        defers
    }

    /// A pass with prefill starts the count of passes without (`_arm_prefill_decode_interval`). Ranks that
    /// step together do so after one of any of them.
    pub fn arm_prefill_decode_interval(&mut self) {
        self.interval_left = self.config.prefill_decode_interval;
    }

    /// The turns without prefill are over.
    pub fn end_prefill_deferral(&mut self) {
        self.interval_left = 0;
    }

    /// Notes the batch as a pass in flight.
    fn launch(&mut self) {
        let mut pass = self.flight.fresh();
        pass.mode = self.last.mode;
        for (i, &slot) in self.last.extended.iter().enumerate() {
            let s = &mut self.sequences[slot as usize];
            s.planned += u32::from(self.last.chunked != Some(slot));
            let (serial, ticket) = (s.serial, i as u64);
            pass.members.push(Member { slot, serial, ticket, extend_end: Some(s.extend_end) });
        }
        if matches!(self.last.mode, Some(Mode::Decode | Mode::Mixed)) {
            self.launch_decodes(&mut pass);
        }
        self.restless |= pass.mode.is_some();
        self.flight.push(pass);
    }

    /// Puts a request back in the waiting queue, at its end. A queue that is full does not take it.
    pub(super) fn requeue(&mut self, slot: u32, retracted: bool) {
        self.requeued.push((Slot(slot), retracted));
        if self.receives() && !self.hands_over_at_once() {
            // Its KV is kept on the host, and comes back from there.
            self.sequences[slot as usize].state = State::Preallocating;
            self.hand_offs.retracted.push_back(slot);
            return;
        }
        if self.queue_takes(self.sequences[slot as usize].priority) {
            self.enqueue(slot);
        } else {
            self.end_early(slot, FinishReason::Abort);
        }
    }

    /// Takes a request out of the running batch.
    pub(super) fn leave_running(&mut self, slot: u32) {
        self.detach(slot);
        let ticket = self.sequences[slot as usize].ticket;
        let at = self.running.partition_point(|&s| self.sequences[s as usize].ticket < ticket);
        debug_assert_eq!(self.running.get(at), Some(&slot));
        self.running.remove(at);
        self.visited -= 1;
    }
}
