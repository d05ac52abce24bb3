//! Who is admitted to a prefill batch, and how much of each prompt it computes
//! (managers/schedule_policy.py `PrefillAdder`, mem_cache/prefill_budget.py `PrefillBudget`).
//!
//! Budgets are floating-point numbers where the engine's are: the reserved share of running requests'
//! outputs is a fraction.

use super::config::{Disaggregation, HandOffRules};
use super::kv::evict_for;
use super::rank::Rank;
use super::sequence::State;
use super::view::Mode;
use crate::pass::{Admission, Chunk, Slot};

/// Tokens that must stay free for each request where outputs are reserved in full without a cache
/// (`IGNORE_EOS_RESERVE_TOKENS`).
const RESERVED_TOKENS: f64 = 1.0;

/// Whether another request may be looked at (`AddReqResult`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Continue,
    NoToken,
    Other,
}

/// How much of a prompt is computed in a batch, and what is reserved for its outputs (`_PrefillAdmission`).
#[derive(Clone, Copy, Debug)]
struct Shape {
    extend: u32,
    outputs: u32,
    /// More of the prompt follows.
    is_chunk: bool,
}

/// The budgets of one prefill batch, and who is in it.
#[derive(Debug)]
pub(super) struct Adder {
    pub(super) admitted: Vec<u32>,
    pub(super) preempted: Vec<u32>,
    new_chunked: Option<u32>,
    pub(super) input_left: i64,
    /// None: prompts are not split.
    pub(super) chunk_left: Option<i64>,
    /// Tokens spoken for, with outputs; and without.
    pub(super) total_offset: f64,
    current_offset: f64,
    /// (outputs left, tokens held) of those that run and will run, by outputs left.
    states: Option<Vec<(f64, f64)>>,
}

impl Rank {
    /// `_get_new_batch_prefill_raw`: fills the pass with a prefill batch, if there is to be one.
    pub(super) fn prefill(&mut self) -> bool {
        if self.preempts() || self.running.is_empty() {
            self.full = false;
        }
        if (self.full || self.waiting.is_empty()) && self.chunked.is_none() {
            return false;
        }
        if self.seats_left(0) <= 0 && self.chunked.is_none() && !self.preempts() {
            self.full = true;
            return false;
        }
        self.sort_waiting();
        let mut adder = self.new_adder();
        if let Some(slot) = self.chunked {
            self.add_chunk(&mut adder, slot);
        }
        self.admit_waiting(&mut adder);
        let Adder { admitted, preempted, new_chunked, .. } = adder;
        if admitted.is_empty() {
            preempted.iter().for_each(|&slot| self.requeue(slot, false));
            return false;
        }
        // Those admitted from the queue are its first: it ends with the first one that is not.
        let queued = |slot: &&u32| self.sequences[**slot as usize].state == State::Waiting;
        let taken = admitted.iter().filter(queued).count();
        debug_assert!(self.waiting.iter().take(taken).all(|slot| admitted.contains(slot)));
        self.waiting.drain(..taken);
        preempted.iter().for_each(|&slot| self.requeue(slot, false));
        self.chunked = new_chunked.or(self.chunked);
        if let Some(slot) = self.chunked {
            self.sequences[slot as usize].middle_chunks += 1;
        }
        self.radix.submit_loads();
        self.extend(admitted);
        if self.config.mixed_chunk && !self.running.is_empty() {
            self.mix_decodes();
        }
        true
    }

    /// Seats of the running batch that nobody has (`get_num_allocatable_reqs`). `held`: rows that those have who are
    /// counted against them.
    fn seats_left(&self, held: u32) -> i64 {
        let seats = i64::from(self.config.max_running_requests);
        match (self.config.disaggregation, self.config.hand_off_rules) {
            // Its running batch is always empty, but whose KV is being read keeps the row.
            (Disaggregation::Prefill, HandOffRules::InTurns) => seats - i64::from(self.rows - held),
            _ => seats - self.running.len() as i64,
        }
    }

    fn new_adder(&self) -> Adder {
        let mixed = if self.config.mixed_chunk { self.running.len() as i64 } else { 0 };
        // Summed from left to right, as the engine does.
        let reserved: f64 = self.running.iter().fold(0.0, |sum, &slot| sum + self.reserved_outputs(slot));
        Adder {
            admitted: Vec::new(),
            preempted: Vec::new(),
            new_chunked: None,
            input_left: i64::from(self.config.max_prefill_tokens) - mixed,
            chunk_left: self.config.chunked_prefill_size.map(|size| i64::from(size) - mixed),
            total_offset: mixed as f64 + reserved,
            current_offset: mixed as f64,
            states: None,
        }
    }

    /// What is reserved for the outputs of a running request (`_get_running_request_total_token_offset`).
    pub(super) fn reserved_outputs(&self, slot: u32) -> f64 {
        let s = &self.sequences[slot as usize];
        let ratio = if s.ignore_eos { 1.0 } else { self.ratio.current };
        let left = i64::from(s.max_new) - i64::from(self.outputs_of(slot));
        left.min(i64::from(self.config.clip_max_new_tokens)) as f64 * ratio
    }

    fn free_and_evictable(&self) -> f64 {
        (self.radix.free() + self.radix.evictable()) as f64
    }

    /// `rem_total_tokens`.
    pub(super) fn total_left(&self, adder: &Adder) -> f64 {
        self.free_and_evictable() - adder.total_offset
    }

    /// `cur_rem_tokens`.
    fn current_left(&self, adder: &Adder) -> f64 {
        self.free_and_evictable() - adder.current_offset
    }

    fn paged(&self, tokens: u32) -> i64 {
        let page = self.config.page_size;
        i64::from(tokens.div_ceil(page)) * i64::from(page)
    }

    /// `budget_state`.
    fn verdict(&self, adder: &Adder) -> Verdict {
        if self.total_left(adder) <= 0.0 || self.current_left(adder) <= 0.0 {
            Verdict::NoToken
        } else if adder.input_left <= 0 || adder.chunk_left.is_some_and(|left| left <= 0) {
            Verdict::Other
        } else {
            Verdict::Continue
        }
    }

    /// `_update_prefill_budget`.
    fn charge(&self, adder: &mut Adder, extend: u32, outputs: u32) {
        let paged = self.paged(extend);
        let immediate = paged + i64::from(self.config.page_size);
        adder.total_offset += (immediate + i64::from(outputs)) as f64;
        adder.current_offset += immediate as f64;
        adder.input_left -= paged;
        if let Some(left) = &mut adder.chunk_left {
            *left -= paged;
        }
    }

    fn clipped(&self, outputs: u32) -> u32 {
        outputs.min(self.config.clip_max_new_tokens)
    }

    /// The next chunk of the prompt in progress (`add_chunked_req`). It always goes on.
    fn add_chunk(&mut self, adder: &mut Adder, slot: u32) {
        let Some(chunk_left) = adder.chunk_left else { return };
        // The engine converts to an integer, towards zero.
        let available = chunk_left.min(self.total_left(adder) as i64);
        let limit = if available > 0 { available } else { chunk_left };
        let s = &mut self.sequences[slot as usize];
        s.fill_len = s.known();
        let candidate = i64::from(s.fill_len - s.prefix_len);
        let truncated = candidate > limit;
        let extend = candidate.min(limit).max(0) as u32;
        s.extend_end = s.prefix_len + extend;
        let outputs = if truncated { 0 } else { s.max_new };
        adder.admitted.push(slot);
        self.charge(adder, extend, self.clipped(outputs));
        if !truncated {
            self.chunked = None;
        }
    }

    /// Whether the batch goes on with the prompt in chunks, which has its row already.
    fn chunk_is_in(&self, adder: &Adder) -> bool {
        let first = adder.admitted.first();
        first.is_some_and(|&slot| self.sequences[slot as usize].state == State::Prefilling)
    }

    /// The loop over the waiting queue.
    fn admit_waiting(&mut self, adder: &mut Adder) {
        for at in 0..self.waiting.len() {
            let slot = self.waiting[at];
            if self.verdict(adder) == Verdict::Other {
                return;
            }
            let held = u32::from(self.chunk_is_in(adder));
            if adder.admitted.len() as i64 >= self.seats_left(held) {
                self.full = true;
            }
            if self.full && !(self.preempts() && self.make_room(adder, slot)) {
                return;
            }
            let s = &mut self.sequences[slot as usize];
            s.fill_len = s.known();
            let limit = s.fill_len - 1;
            self.match_prefix(slot, limit);
            let s = &mut self.sequences[slot as usize];
            s.protected_len = s.prefix_len;
            let verdict = self.add(adder, slot);
            if verdict == Verdict::NoToken {
                self.full = !adder.admitted.is_empty() || !self.running.is_empty();
            }
            if verdict != Verdict::Continue {
                return;
            }
        }
    }

    /// Admits a request, or says why not (`add_one_req`).
    fn add(&mut self, adder: &mut Adder, slot: u32) -> Verdict {
        if self.config.prefill_max_requests.is_some_and(|most| adder.admitted.len() >= most as usize) {
            return Verdict::Other;
        }
        let s = &self.sequences[slot as usize];
        if s.ignore_eos && !self.radix.enabled() {
            return self.add_with_outputs(adder, slot);
        }
        let page = self.config.page_size;
        let extend = s.fill_len - s.prefix_len;
        let outputs_left = self.clipped(s.max_new.saturating_sub(s.outputs));
        // What is loaded from the host takes memory as what is computed does.
        let total = i64::from(extend) + i64::from(outputs_left) + i64::from(page);
        // Its own prefix is held first, so that it does not count as evictable.
        let node = s.last_node;
        self.radix.lock(node);
        let verdict = self.select_and_load(adder, slot, total);
        self.radix.unlock(node);
        let Shape { extend, outputs, is_chunk } = match verdict {
            Ok(shape) => shape,
            Err(verdict) => return verdict,
        };
        let s = &mut self.sequences[slot as usize];
        let node = s.last_node;
        s.extend_end = s.prefix_len + extend;
        s.lock = Some(node);
        self.radix.lock(node);
        if is_chunk {
            adder.new_chunked = Some(slot);
        }
        adder.admitted.push(slot);
        self.charge(adder, extend, outputs);
        self.verdict(adder)
    }

    /// How much to compute of a prompt behind what is found on the device and the host; and loads what the host has, or
    /// does without it.
    fn select_and_load(&mut self, adder: &Adder, slot: u32, total: i64) -> Result<Shape, Verdict> {
        let s = &self.sequences[slot as usize];
        let (device, host, known) = (s.prefix_len, s.host_len, s.fill_len);
        let prefix = device + host;
        let shape = self.select(adder, slot, prefix, known - prefix, total)?;
        if host == 0 {
            return Ok(shape);
        }
        let (best, id) = (s.best_node, s.id);
        let loaded = self.radix.load_back(best, id);
        let s = &mut self.sequences[slot as usize];
        s.host_len = loaded;
        if loaded == 0 {
            return self.select(adder, slot, device, known - device, total);
        }
        (s.prefix_len, s.protected_len, s.last_node) = (prefix, prefix, best);
        Ok(shape)
    }

    /// How much of a prompt to compute, and what to reserve for its outputs (`_select_prefill_admission`).
    fn select(
        &self,
        adder: &Adder,
        slot: u32,
        prefix: u32,
        extend: u32,
        total: i64,
    ) -> Result<Shape, Verdict> {
        if total as f64 >= self.total_left(adder) {
            return Err(Verdict::NoToken);
        }
        let paged = self.paged(extend);
        if adder.chunk_left.is_none() && !adder.admitted.is_empty() && paged >= adder.input_left {
            return Err(Verdict::Other);
        }
        match adder.chunk_left {
            Some(left) if paged > left => {
                let page = i64::from(self.config.page_size);
                let prefix = i64::from(prefix);
                let end = (prefix + left.div_euclid(page) * page).div_euclid(page) * page;
                if end - prefix <= 0 {
                    return Err(Verdict::Other);
                }
                Ok(Shape { extend: (end - prefix) as u32, outputs: 0, is_chunk: true })
            }
            _ => {
                let outputs = self.clipped(self.sequences[slot as usize].max_new);
                Ok(Shape { extend, outputs, is_chunk: false })
            }
        }
    }

    /// Without a cache, a request that does not end early is admitted if all outputs of all requests fit at
    /// every moment (`add_one_req_ignore_eos`).
    fn add_with_outputs(&mut self, adder: &mut Adder, slot: u32) -> Verdict {
        let s = &self.sequences[slot as usize];
        let extend = s.fill_len - s.prefix_len;
        let paged = self.paged(extend) + i64::from(self.config.page_size);
        if paged as f64 > self.current_left(adder).min(self.total_left(adder)) {
            return Verdict::NoToken;
        }
        match &mut adder.states {
            None => {
                let all = [slot]
                    .into_iter()
                    .chain(self.running.iter().copied())
                    .chain(adder.admitted.iter().copied());
                let mut states: Vec<(f64, f64)> = all.filter_map(|slot| self.outputs_to_come(slot)).collect();
                states.sort_by(|a, b| a.0.total_cmp(&b.0));
                adder.states = Some(states);
            }
            Some(states) => {
                if let Some(state) = self.outputs_to_come(slot) {
                    // Where none has more left, the engine inserts before the last.
                    let last = states.len().saturating_sub(1);
                    let at = states.iter().position(|other| state.0 <= other.0).unwrap_or(last);
                    states.insert(at, state);
                }
            }
        }
        let left = self.current_left(adder) - paged as f64;
        let mut freed = 0.0;
        let states = adder.states.as_deref().unwrap_or_default();
        for (i, &(to_come, held)) in states.iter().enumerate() {
            let requests = (states.len() - i) as f64;
            if left + freed - to_come * requests <= RESERVED_TOKENS * requests {
                return Verdict::NoToken;
            }
            freed += held;
        }
        let whole = adder.chunk_left.is_none_or(|left| i64::from(extend) <= left);
        let chunk_left = adder.chunk_left.unwrap_or(0);
        if !whole && chunk_left <= 0 {
            return Verdict::Other;
        }
        let (extend, outputs) = match whole {
            true => (extend, self.clipped(self.sequences[slot as usize].max_new)),
            false => (chunk_left as u32, 0),
        };
        let s = &mut self.sequences[slot as usize];
        s.extend_end = s.prefix_len + extend;
        adder.admitted.push(slot);
        if !whole {
            adder.new_chunked = Some(slot);
        }
        self.charge(adder, extend, outputs);
        self.verdict(adder)
    }

    /// (Outputs that a request may still give, tokens it has); none if it gives no more.
    fn outputs_to_come(&self, slot: u32) -> Option<(f64, f64)> {
        let s = &self.sequences[slot as usize];
        let ratio = if s.ignore_eos { 1.0 } else { self.ratio.current };
        let outputs = self.outputs_of(slot);
        let left = f64::from(s.max_new) * ratio - f64::from(outputs);
        (left > 0.0).then(|| (left, f64::from(s.prompt + outputs)))
    }

    /// Gives the admitted requests their slots (`prepare_for_extend`, `alloc_for_extend`).
    fn extend(&mut self, admitted: Vec<u32>) {
        let page = self.config.page_size;
        let (mut tokens, mut new_pages) = (0, 0);
        for &slot in &admitted {
            let s = &mut self.sequences[slot as usize];
            let extend = s.extend_end - s.prefix_len;
            if s.state == State::Waiting {
                let (hit_tokens, known_tokens, resumed) = (s.prefix_len, s.fill_len, s.stained);
                let host_tokens = std::mem::take(&mut s.host_len);
                self.stats.host_hits += u64::from(host_tokens);
                if !resumed {
                    let looked_up = if self.radix.enabled() { known_tokens } else { 0 };
                    self.stats.prefix_queries += u64::from(looked_up);
                    self.stats.prefix_hits += u64::from(hit_tokens);
                }
                let slot = Slot(slot);
                self.scheduled.admitted.push(Admission {
                    slot,
                    hit_tokens,
                    host_tokens,
                    known_tokens,
                    resumed,
                    loaded: false,
                });
            }
            self.rows += u32::from(s.state == State::Waiting);
            s.state = State::Prefilling;
            s.retracted = false;
            tokens += u64::from(extend);
            new_pages += u64::from(s.extend_end.div_ceil(page) - s.prefix_len.div_ceil(page));
            s.committed = s.extend_end;
            self.scheduled.prefill.push(Chunk { new_tokens: extend, before: s.prefix_len });
        }
        // Evicts for a page more a request than it may need.
        let spare = if page == 1 { 0 } else { admitted.len() as u64 * u64::from(page) };
        evict_for(&mut self.radix, tokens + spare);
        if !self.radix.take(new_pages * u64::from(page)) {
            self.fault.get_or_insert("Prefill out of memory");
        }
        self.scheduled.tokens = tokens;
        self.scheduled.prefill_tokens = tokens;
        self.last.prefill_only = admitted.iter().all(|&slot| self.sequences[slot as usize].max_new == 0);
        self.last.mode = Some(Mode::Extend);
        self.last.chunked = self.chunked;
        self.last.chunked_id = self.chunked.map(|slot| self.sequences[slot as usize].id);
        self.last.extended = admitted;
    }
}
