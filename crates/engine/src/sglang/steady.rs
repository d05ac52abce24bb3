//! Many passes at once: stretches in which every pass is a decode pass of the same requests and nothing
//! else can happen.
//!
//! A stretch is what the scheduler would have done pass by pass; `steady` only says for how many passes
//! that is certain, and `advance_steady` counts them.

use super::kv::evict_for;
use super::rank::Rank;
use super::view::Mode;
use crate::rank::{Steady, Stepper};

impl Rank {
    /// The stretch of steady passes that begins with the next `schedule`, if there is one: nobody can be
    /// admitted, no request ends, and the pool has room. With overlap, the pass in flight
    /// is such a pass too, so that scheduling one and completing one can go together.
    pub fn steady(&self) -> Option<Steady> {
        let set = &self.decoders;
        let usable = self.stepper == Stepper::Fast
            && set.members.count > 0
            && self.visited == 0
            && self.last.extended.is_empty()
            && self.last.decodes.is_empty()
            && self.chunked.is_none()
            && !self.someone_left
            && !self.prefill_only
            && self.hand_offs_are_still()
            && self.ended.is_empty()
            && !self.radix.host_is_busy()
            && self.flight.len() == self.config.depth() - 1;
        if !usable || set.first_due() <= set.next_pass() {
            return None;
        }
        if let Some(pass) = self.flight.front()
            && (pass.mode != Some(Mode::Decode) || pass.uniform != set.members.count)
        {
            return None;
        }
        let mut passes = set.first_due() - set.next_pass();
        let closed = self.waiting.is_empty() || self.receives() || (self.full && !self.preempts());
        if !closed {
            passes = passes.min(u64::from(self.interval_left));
        }
        // Evictions are told with their pass, and may copy to the host. Where nobody listens, what can be evicted is as
        // good as free.
        let told = self.radix.scope().is_timed() || self.radix.has_host();
        let passes = passes.min(self.passes_with_room(passes, told));
        (passes > 0).then_some(Steady { passes, decode: set.members })
    }

    /// No request comes into the running batch by a hand-off unless another leaves it, or the other side says
    /// something.
    fn hand_offs_are_still(&self) -> bool {
        if !self.receives() {
            return true;
        }
        let full = self.running.len() >= self.config.max_running_requests as usize;
        let queues = &self.hand_offs;
        if self.hands_over_at_once() {
            // Between two passes the driver may make room for another one.
            let still = queues.activated.is_empty() && self.waiting.is_empty();
            return queues.preallocating.is_empty() && (full || still);
        }
        queues.unheard == 0
            && queues.retracted.is_empty()
            && (queues.preallocating.is_empty() || self.rows_are_taken())
            && (self.waiting.is_empty() || full)
    }

    /// Of the passes of a stretch, the first ones that certainly make no event: pages enter the tree when their
    /// request ends, and leave it when room is made.
    pub fn quiet(&self, steady: &Steady) -> u64 {
        if !self.radix.scope().is_on() {
            return steady.passes;
        }
        self.passes_with_room(steady.passes, true).min(steady.passes)
    }

    /// Of the next `most` decode passes, how many certainly find room, without evicting if `told` says so.
    fn passes_with_room(&self, most: u64, told: bool) -> u64 {
        let page = u64::from(self.config.page_size);
        let members = self.decoders.members.count;
        let free = (self.radix.free() + if told { 0 } else { self.radix.evictable() }) / page;
        if page == 1 {
            return free / members;
        }
        // The engine makes room for a page of each request, if it can by evicting.
        let spare = if told && self.radix.evictable() > 0 { members } else { 0 };
        // Over as many passes as a page has tokens, each member starts one page.
        let rounds = free.saturating_sub(spare) / members;
        if rounds > 0 {
            return rounds * page;
        }
        let (mut left, mut passes) = (free, 0);
        while passes < most.min(page) {
            let starting = u64::from(self.starts.in_pass(self.decoders.next_pass() + passes));
            if left < spare.max(starting) {
                break;
            }
            left -= starting;
            passes += 1;
        }
        passes
    }

    /// Takes the pages that the members start in the next `passes` passes, and evicts for them what each pass
    /// would.
    fn take_pages(&mut self, passes: u64) {
        let page = u64::from(self.config.page_size);
        let members = self.decoders.members.count;
        let next = self.decoders.next_pass();
        let whole = passes / page * members;
        let partial: u64 = (0..passes % page).map(|i| u64::from(self.starts.in_pass(next + i))).sum();
        let all = (whole + partial) * page;
        // Before each pass there has to be room for a page of each, or for those that start.
        let wanted = if page == 1 { 0 } else { members * page };
        if !self.radix.enabled() || self.radix.evictable() == 0 || self.radix.free() >= all + wanted {
            self.radix.take(all);
            return;
        }
        let mut left = passes;
        while left > 0 {
            let starting = u64::from(self.starts.in_pass(next + passes - left)) * page;
            evict_for(&mut self.radix, starting.max(wanted));
            // With pages of one token, as many passes as find room without evicting again.
            let now = if page == 1 { left.min(self.radix.free() / members) } else { 1 };
            self.radix.take(starting * now);
            left -= now;
        }
    }

    /// Passes `passes` of the stretch that [`steady`](Self::steady) promised: as many `schedule` calls
    /// and as many `complete` calls.
    pub fn advance_steady(&mut self, passes: u64) {
        self.take_pages(passes);
        self.ratio.decay_steps(passes);
        if self.preempts() && passes > u64::from(self.interval_left) {
            // Each turn that looks for prefill clears it.
            self.full = false;
        }
        self.interval_left = self.interval_left.saturating_sub(passes.min(u64::from(u32::MAX)) as u32);
        self.decoders.advance(passes);
        self.decoders.completed += passes;
        if let Some(pass) = self.flight.iter_mut().next() {
            pass.decode_number += passes;
        }
    }
}
