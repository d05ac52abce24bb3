//! Prefill and decode on ranks of their own, as far as both sides share it, and the side that serves prompts
//! (disaggregation/prefill.py, version 0.5.23).
//!
//! A request comes to both sides. The one that goes on with it makes room for its KV and says so; then its prompt is
//! computed here, and its KV is held until it has been read. Who copies, and how long that takes, is the driver's
//! affair: it says what has happened, and the rank hears of it in its next turn.

use super::batch::Member;
use super::config::{Disaggregation, HandOffRules};
use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Finished, Slot};
use crate::rank::HandOffQueues;
use crate::request::FinishReason;
use std::collections::VecDeque;

/// Metadata buffers for each seat: a request has one from when it may be computed, or its KV is on its way, until that
/// has moved.
const BUFFERS_PER_SEAT: usize = 2;

/// The queues of hand-offs. Of a rank that serves prompts the first two are used, of one that goes on the others.
#[derive(Debug, Default)]
pub(super) struct HandOffs {
    /// Requests for whose KV the other side has no room yet, in order of their coming.
    bootstrapping: VecDeque<u32>,
    /// Requests whose prompt is computed and whose KV is being read, in order of their ends.
    sending: Vec<u32>,
    /// Requests for whose KV there is no room yet.
    pub(super) preallocating: VecDeque<u32>,
    /// Requests whose KV is on its way, in the order in which room was made.
    pub(super) receiving: Vec<u32>,
    /// Requests that were retracted, and whose KV is kept on the host.
    pub(super) retracted: VecDeque<u32>,
    /// Requests whose KV has come, and who have no seat yet (AISimulate).
    pub(super) activated: VecDeque<u32>,
    /// (prompt, outputs, most outputs) of running requests that ended since the last turn: the engine's batch holds
    /// them until then.
    pub(super) lingering: Vec<(u32, u32, u32)>,
    /// What the other side has said and this one has not heard.
    pub(super) unheard: usize,
}

impl HandOffs {
    /// Requests that are neither in the waiting queue nor running.
    pub(super) fn waiting(&self) -> usize {
        self.bootstrapping.len()
            + self.preallocating.len()
            + self.receiving.len()
            + self.retracted.len()
            + self.activated.len()
    }

    /// Requests that have ended, but for their KV.
    pub(super) fn sending(&self) -> usize {
        self.sending.len()
    }

    /// How many there are in each queue; pages of so many tokens are reserved for KV on its way.
    pub(super) fn counts(&self, reserved_tokens: u64) -> HandOffQueues {
        HandOffQueues {
            bootstrapping: self.bootstrapping.len(),
            sending: self.sending.len(),
            preallocating: self.preallocating.len(),
            receiving: self.receiving.len(),
            reserved_tokens,
            retracted: self.retracted.len(),
        }
    }
}

impl Rank {
    /// It goes on with requests whose prompt was computed elsewhere.
    pub(super) fn receives(&self) -> bool {
        matches!(self.config.disaggregation, Disaggregation::Decode { .. })
    }

    /// Hand-offs happen between turns (AISimulate).
    pub(super) fn hands_over_at_once(&self) -> bool {
        self.config.hand_off_rules == HandOffRules::AtOnce
    }

    /// It computes prompts, and hears of what becomes of them in its turns.
    pub(super) fn sends_in_turns(&self) -> bool {
        self.config.disaggregation == Disaggregation::Prefill && !self.hands_over_at_once()
    }

    /// Most requests with a metadata buffer.
    pub(super) fn buffers(&self) -> usize {
        self.config.max_running_requests as usize * BUFFERS_PER_SEAT
    }

    /// A request waits until the other side has room for its KV.
    pub(super) fn await_room(&mut self, slot: u32) {
        self.sequences[slot as usize].state = State::Bootstrapping;
        self.hand_offs.bootstrapping.push_back(slot);
    }

    /// The other side has made room for the KV of a request, which may be computed here from the next turn on.
    pub fn kv_wanted(&mut self, slot: Slot) {
        self.answer(slot.0, State::Bootstrapping);
    }

    /// A request is in the bootstrap, prealloc or transfer queue.
    pub fn awaits_hand_off(&self, slot: Slot) -> bool {
        let state = self.sequences.get(slot.0 as usize).map(|s| s.state);
        matches!(state, Some(State::Bootstrapping | State::Preallocating | State::Receiving))
    }

    /// The KV of a request that ended here has been read. It is given back in the next turn, or when the pass in flight
    /// is processed.
    pub fn kv_sent(&mut self, slot: Slot) {
        self.answer(slot.0, State::Sending);
    }

    /// The same, known at once (AISimulate 0.13).
    pub fn kv_sent_at_once(&mut self, slot: Slot) {
        self.kv_sent(slot);
        self.let_go_of_sent();
    }

    /// Notes what the other side has done for a request, if that was waited for.
    pub(super) fn answer(&mut self, slot: u32, waiting: State) {
        let s = &mut self.sequences[slot as usize];
        if s.state == waiting && !s.answered {
            s.answered = true;
            self.hand_offs.unheard += 1;
        }
    }

    /// Hears what the other side has said of a request. False if it said nothing.
    pub(super) fn hear(&mut self, slot: u32) -> bool {
        let said = std::mem::take(&mut self.sequences[slot as usize].answered);
        self.hand_offs.unheard -= usize::from(said);
        said
    }

    /// Lets those wait for their prefill for whose KV there is room now, in order of their coming
    /// (`pop_bootstrapped`).
    pub(super) fn pop_bootstrapped(&mut self) {
        if self.hand_offs.bootstrapping.is_empty() || self.hand_offs.unheard == 0 {
            return;
        }
        let mut queue = std::mem::take(&mut self.hand_offs.bootstrapping);
        let mut in_use = self.live - queue.len() + self.hand_offs.sending();
        queue.retain(|&slot| {
            let ready = self.sequences[slot as usize].answered && in_use < self.buffers();
            if ready {
                in_use += 1;
                self.hear(slot);
                self.enqueue(slot);
            }
            !ready
        });
        self.hand_offs.bootstrapping = queue;
    }

    /// The last batch's prompts are computed or will be: none of them decodes here. The one that is not through goes on.
    pub(super) fn leave_last(&mut self) {
        let last = std::mem::take(&mut self.last);
        for slot in last.extended {
            if last.chunked != Some(slot) {
                self.sequences[slot as usize].state = State::Draining;
            }
        }
        (self.someone_ended, self.someone_left) = (false, false);
    }

    /// A prompt is computed: its request ends here, and its KV is held (`process_batch_result_disagg_prefill`).
    pub(super) fn hold(&mut self, member: Member) {
        let slot = member.slot;
        if let Some(end) = member.extend_end
            && !self.hands_over_at_once()
        {
            self.checkpoint(slot, end);
        }
        let finished = self.finished(slot, FinishReason::Length);
        self.outcome.finished.push(Finished { held: true, ..finished });
        self.sequences[slot as usize].state = State::Sending;
        self.hand_offs.sending.push(slot);
        self.live -= 1;
    }

    /// Gives back what has been read (`process_disagg_prefill_inflight_queue`).
    pub(super) fn let_go_of_sent(&mut self) {
        if self.hand_offs.sending.is_empty() || self.hand_offs.unheard == 0 {
            return;
        }
        let mut sending = std::mem::take(&mut self.hand_offs.sending);
        sending.retain(|&slot| {
            let sent = self.hear(slot);
            if sent {
                let s = &self.sequences[slot as usize];
                self.release(slot, Some(s.committed.min(s.known())));
                self.vacate_ended(slot);
            }
            !sent
        });
        self.hand_offs.sending = sending;
    }

    /// A request is withdrawn before it runs: leaves its queue, and gives back what it holds.
    pub(super) fn withdraw(&mut self, slot: u32) {
        self.hear(slot);
        let queues = &mut self.hand_offs;
        queues.bootstrapping.retain(|&other| other != slot);
        queues.preallocating.retain(|&other| other != slot);
        queues.retracted.retain(|&other| other != slot);
        queues.activated.retain(|&other| other != slot);
        queues.receiving.retain(|&other| other != slot);
        if self.sequences[slot as usize].committed > 0 {
            self.release(slot, None);
        }
    }
}
