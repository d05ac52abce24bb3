//! The side that goes on with requests whose prompt was computed elsewhere: room for their KV, and their way into the
//! running batch (disaggregation/decode.py, version 0.5.23).

use super::config::Disaggregation;
use super::hand_off::HandOffs;
use super::kv::evict_for;
use super::rank::Rank;
use super::sequence::State;
use crate::kv::ROOT;
use crate::pass::{Admission, Finished, KvLoad, Slot, Token};
use crate::request::FinishReason;

/// The running requests as admission counts them.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    requests: i64,
    /// Tokens that retraction of all would give.
    retractable: i64,
    /// Most tokens that one of them may come to, less those of all.
    needed_by_one: i64,
}

impl Rank {
    /// A request waits for room for its KV.
    pub(super) fn await_kv(&mut self, slot: u32) {
        self.sequences[slot as usize].state = State::Preallocating;
        self.hand_offs.preallocating.push_back(slot);
    }

    /// The KV of a request has come. It can run from the next turn on.
    pub fn kv_loaded(&mut self, slot: Slot) {
        self.answer(slot.0, State::Receiving);
    }

    /// What a turn begins with: who is brought back, for whom room is made, whose KV has come, and who of them joins
    /// the running batch (`process_decode_queue`, `get_new_prebuilt_batch`).
    pub(super) fn receive(&mut self) {
        self.resume_retracted();
        if self.hand_offs.retracted.is_empty() {
            self.preallocate();
            self.take_received();
        }
        self.join_received();
        self.hand_offs.lingering.clear();
        (self.someone_ended, self.someone_left) = (false, false);
    }

    /// Rows that requests may have, beyond the seats too.
    fn most_rows(&self) -> u32 {
        match self.config.disaggregation {
            Disaggregation::Decode { extra_slots, .. } => {
                self.config.max_running_requests.saturating_add(extra_slots)
            }
            Disaggregation::Off | Disaggregation::Prefill => self.config.max_running_requests,
        }
    }

    fn reserved_tokens(&self) -> i64 {
        match self.config.disaggregation {
            Disaggregation::Decode { reserved_tokens, .. } => i64::from(reserved_tokens),
            Disaggregation::Off | Disaggregation::Prefill => 0,
        }
    }

    /// No room can be made for another request while all rows or buffers are taken.
    pub(super) fn rows_are_taken(&self) -> bool {
        self.rows >= self.most_rows() || self.hand_offs.receiving.len() >= self.buffers()
    }

    /// The running batch with those that ended since the last turn.
    fn batch_of_admission(&self) -> Batch {
        let running = self.running.iter().map(|&slot| {
            let s = &self.sequences[slot as usize];
            (s.prompt, self.outputs_of(slot), s.max_new)
        });
        let (mut batch, mut longest) = (Batch::default(), None::<i64>);
        for (prompt, outputs, max_new) in running.chain(self.hand_offs.lingering.iter().copied()) {
            batch.requests += 1;
            batch.retractable += i64::from(prompt) + i64::from(outputs);
            let most = i64::from(max_new.min(self.config.clip_max_new_tokens)) + i64::from(prompt);
            longest = Some(longest.map_or(most, |longest| longest.max(most)));
        }
        batch.needed_by_one = longest.map_or(0, |longest| longest - batch.retractable);
        batch
    }

    /// Tokens that another request may take when `active` others have rows (`_allocatable_token_budgets`).
    fn allocatable(&self, active: i64, needed_by_one: i64) -> i64 {
        let evictable = if self.radix.enabled() { self.radix.evictable() } else { 0 };
        (self.radix.free() + evictable) as i64 - (self.reserved_tokens() * active).max(needed_by_one)
    }

    /// Requests with rows, but for those that `also` counts.
    fn active(&self, batch: Batch, also: usize) -> i64 {
        batch.requests + (self.hand_offs.receiving.len() + self.waiting.len() + also) as i64
    }

    fn pages_for(&self, tokens: u32, prefix: u32) -> u64 {
        let page = self.config.page_size;
        u64::from(tokens.div_ceil(page) - prefix.div_ceil(page))
    }

    /// Takes pages for tokens behind a prefix, evicting for them.
    fn take_pages_for(&mut self, tokens: u32, prefix: u32) -> u64 {
        let pages = self.pages_for(tokens, prefix);
        let needed = pages * u64::from(self.config.page_size);
        evict_for(&mut self.radix, needed);
        if !self.radix.take(needed) {
            self.fault.get_or_insert("KV cache is full! Bug in memory estimation.");
        }
        self.rows += 1;
        pages
    }

    /// Brings retracted requests back in order, while their KV fits (`resume_retracted_reqs`).
    fn resume_retracted(&mut self) {
        if self.hand_offs.retracted.is_empty() {
            return;
        }
        let batch = self.batch_of_admission();
        let mut resumed = Vec::new();
        while let Some(&slot) = self.hand_offs.retracted.front() {
            let s = &self.sequences[slot as usize];
            let fill = s.prompt + s.outputs.saturating_sub(1);
            let page = i64::from(self.config.page_size);
            let required = (i64::from(fill) + page - 1) / page * page + self.reserved_tokens();
            let budget = self.allocatable(self.active(batch, resumed.len()), 0);
            if self.rows >= self.most_rows() || required > budget {
                break;
            }
            self.hand_offs.retracted.pop_front();
            self.take_pages_for(fill, 0);
            let s = &mut self.sequences[slot as usize];
            (s.committed, s.extend_end, s.prefix_len, s.last_node) = (fill, fill, 0, ROOT);
            resumed.push(slot);
        }
        resumed.into_iter().for_each(|slot| self.enqueue(slot));
    }

    /// Makes room for the KV of requests in order, while it fits beside what those need that are here
    /// (`pop_preallocated`).
    fn preallocate(&mut self) {
        if self.hand_offs.preallocating.is_empty() || self.rows_are_taken() {
            return;
        }
        if self.config.priority.is_some() {
            let sign = self.urgency_sign();
            let sequences = &self.sequences;
            let queue = self.hand_offs.preallocating.make_contiguous();
            queue.sort_by_key(|&slot| sequences[slot as usize].priority * sign);
        }
        let batch = self.batch_of_admission();
        let mut made = Vec::new();
        while let Some(&slot) = self.hand_offs.preallocating.front() {
            if self.rows >= self.most_rows()
                || self.hand_offs.receiving.len() + made.len() >= self.buffers()
                || !self.make_room_for(slot, batch, made.len())
            {
                break;
            }
            self.hand_offs.preallocating.pop_front();
            made.push(slot);
        }
        self.hand_offs.receiving.append(&mut made);
    }

    /// Takes the pages of a prompt, if they fit. `made`: requests for which that was done in this turn.
    fn make_room_for(&mut self, slot: u32, batch: Batch, made: usize) -> bool {
        let prompt = self.sequences[slot as usize].prompt;
        self.match_prefix(slot, prompt);
        let s = &self.sequences[slot as usize];
        let (prefix, node, max_new) = (s.prefix_len, s.last_node, s.max_new);
        // What it reuses is held first, so that it does not count as evictable.
        self.radix.lock(node);
        let page = u64::from(self.config.page_size);
        let taken = (self.pages_for(prompt, prefix) * page) as i64;
        let whole = i64::from(prompt - prefix) + i64::from(max_new.min(self.config.clip_max_new_tokens));
        let needed = (taken + self.reserved_tokens()).max(whole - batch.retractable);
        if needed > self.allocatable(self.active(batch, made), batch.needed_by_one) {
            self.radix.unlock(node);
            return false;
        }
        let load = self.receive_into(slot);
        self.scheduled.loads.push(load);
        true
    }

    /// A request whose prefix is matched and held takes the pages for the rest of its prompt.
    fn receive_into(&mut self, slot: u32) -> KvLoad {
        let s = &self.sequences[slot as usize];
        let (prompt, prefix, node) = (s.prompt, s.prefix_len, s.last_node);
        let blocks = self.take_pages_for(prompt, prefix) as u32;
        let s = &mut self.sequences[slot as usize];
        s.state = State::Receiving;
        (s.committed, s.extend_end, s.protected_len) = (prompt, prompt, prefix);
        s.lock = Some(node);
        let (hit_tokens, tokens) = (prefix, prompt - prefix);
        KvLoad { slot: Slot(slot), hit_tokens, known_tokens: prompt, tokens, blocks, after: 0 }
    }

    /// Tokens of the pages that requests have whose KV is on its way, but for what the tree holds
    /// (managers/scheduler_components/pool_stats_observer.py `kv_private_tokens`).
    pub(super) fn tokens_to_receive(&self) -> u64 {
        let page = self.config.page_size;
        let held = self.hand_offs.receiving.iter().map(|&slot| {
            let s = &self.sequences[slot as usize];
            u64::from(s.committed.next_multiple_of(page) - s.protected_len)
        });
        held.sum()
    }

    /// Lets those wait for a seat whose KV has come (`pop_transferred`).
    fn take_received(&mut self) {
        if self.hand_offs.unheard == 0 {
            return;
        }
        let mut receiving = std::mem::take(&mut self.hand_offs.receiving);
        receiving.retain(|&slot| {
            let came = self.hear(slot);
            if came {
                self.enqueue(slot);
            }
            !came
        });
        self.hand_offs.receiving = receiving;
    }

    /// Gives seats to those who wait for one. Who comes for the first time gives the token that the prompt's side
    /// sampled, and may end with it (`process_prebuilt`, `process_batch_result_prebuilt`).
    fn join_received(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        if self.config.priority.is_some() {
            self.sort_waiting();
        }
        let HandOffs { lingering, .. } = &self.hand_offs;
        let taken = self.running.len() + lingering.len();
        let seats = (self.config.max_running_requests as usize).saturating_sub(taken);
        let joining: Vec<u32> = self.waiting.drain(..seats.min(self.waiting.len())).collect();
        for &slot in &joining {
            let s = &mut self.sequences[slot as usize];
            let resumed = std::mem::take(&mut s.retracted);
            if !resumed {
                s.outputs += 1;
            }
            s.planned = s.outputs;
            let (hit_tokens, known_tokens) = (s.prefix_len, s.known());
            let slot = Slot(slot);
            self.scheduled.admitted.push(Admission {
                slot,
                hit_tokens,
                host_tokens: 0,
                known_tokens,
                resumed,
                loaded: true,
            });
            if !resumed {
                self.scheduled.given.push(Token { slot, ordinal: 1 });
            }
            self.checkpoint(slot.0, self.sequences[slot.0 as usize].extend_end);
        }
        for slot in joining {
            let s = &self.sequences[slot as usize];
            let reason = if s.to_finish {
                FinishReason::Abort
            } else if s.stop_after == Some(s.outputs) {
                FinishReason::Stop
            } else if s.ends_after(s.outputs) {
                FinishReason::Length
            } else {
                self.run_received(slot);
                continue;
            };
            let finished = self.finished(slot, reason);
            self.release(slot, Some(s.committed.min(s.known())));
            self.scheduled.finished.push(Finished { held: false, ..finished });
            self.vacate(slot);
        }
    }

    /// A request takes a seat in the running batch.
    fn run_received(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        s.state = State::Running;
        s.ticket = self.next_ticket;
        self.next_ticket += 1;
        self.running.push(slot);
        self.visited += 1;
    }

    // ---- by the rules of AISimulate 0.13 ----

    /// Makes room for the KV of the first request that waits for it, if its prompt fits.
    pub fn start_load(&mut self) -> Option<KvLoad> {
        let &slot = self.hand_offs.preallocating.front()?;
        self.match_prefix(slot, self.sequences[slot as usize].prompt);
        let s = &self.sequences[slot as usize];
        let (prompt, prefix, node) = (s.prompt, s.prefix_len, s.last_node);
        self.radix.lock(node);
        let needed = self.pages_for(prompt, prefix) * u64::from(self.config.page_size);
        if needed > self.radix.free() + self.radix.evictable() {
            self.radix.unlock(node);
            return None;
        }
        self.hand_offs.preallocating.pop_front();
        self.hand_offs.receiving.push(slot);
        Some(self.receive_into(slot))
    }

    /// The KV of a request has come, and it may run as soon as there is a seat.
    pub fn kv_loaded_at_once(&mut self, slot: Slot) {
        let slot = slot.0;
        let receiving = &mut self.hand_offs.receiving;
        let Some(at) = receiving.iter().position(|&other| other == slot) else { return };
        receiving.remove(at);
        self.checkpoint(slot, self.sequences[slot as usize].prompt);
        self.hand_offs.activated.push_back(slot);
    }

    /// Gives seats to those whose KV has come. True if prompts have to wait for others, who come first.
    pub(super) fn join_activated(&mut self) -> bool {
        while self.running.len() < self.config.max_running_requests as usize
            && let Some(slot) = self.hand_offs.activated.pop_front()
        {
            let (hit_tokens, known_tokens) = (0, self.sequences[slot as usize].known());
            let admission = Admission {
                slot: Slot(slot),
                hit_tokens,
                host_tokens: 0,
                known_tokens,
                resumed: false,
                loaded: true,
            };
            self.scheduled.admitted.push(admission);
            self.run_received(slot);
        }
        !self.hand_offs.activated.is_empty() || !self.hand_offs.preallocating.is_empty()
    }
}
