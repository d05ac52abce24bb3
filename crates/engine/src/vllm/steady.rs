//! Many passes at once: stretches in which every pass computes one token of each member of the decode
//! set and nothing else can happen.
//!
//! A stretch is what the scheduler would have done pass by pass; `steady` only says for how many passes
//! that is certain, and `advance_steady` counts them.

use super::rank::Rank;
use crate::rank::{Steady, Stepper};

impl Rank {
    /// The stretch of steady passes that begins with the next `schedule`, if there is one: no request ends,
    /// none can be admitted, and the pool has the blocks that the members need. With asynchronous scheduling
    /// the pass in flight is such a pass too, so that scheduling one and completing one can go together.
    pub fn steady(&self) -> Option<Steady> {
        let set = &self.decoders;
        let usable = self.stepper == Stepper::Fast
            && set.members.count > 0
            && self.visited == 0
            && set.members.count <= u64::from(self.config.max_num_batched_tokens)
            && set.seconds.is_empty()
            // The cadence counts passes; where it is on, each of them is scheduled on its own.
            && self.config.prefill_schedule_interval == 1
            && !self.transfers.is_due()
            && self.flight.len() == self.config.depth() - 1;
        if !usable || set.first_due() <= set.next_pass() {
            return None;
        }
        if let Some(pass) = self.flight.front()
            && (pass.uniform != set.members.count
                || !pass.members.is_empty()
                || !pass.stops.is_empty()
                || !pass.reports.is_empty())
        {
            return None;
        }
        if !self.nobody_can_be_admitted() {
            return None;
        }
        let passes = self.passes_with_blocks(set.first_due() - set.next_pass());
        (passes > 0).then_some(Steady { passes, decode: set.members })
    }

    /// Of the passes of a stretch, the first ones that certainly make no event.
    pub fn quiet(&self, steady: &Steady) -> u64 {
        self.passes_without_events(steady.passes)
    }

    /// While no blocks are given back, no load is reported, and nothing is cached that others could find, the waiting queue stays
    /// as it is.
    fn nobody_can_be_admitted(&self) -> bool {
        if self.running.len() >= self.seats() {
            return true;
        }
        if self.loaded > 0 {
            return false;
        }
        let Some(first) = self.waiting.first() else { return true };
        let s = &self.sequences[first as usize];
        let Some(blocked) = self.blocked else { return false };
        let same = (blocked.slot, blocked.serial, blocked.known) == (first, s.serial, s.known);
        // Otherwise what must fit depends on the token budget of the pass.
        let constant = self.config.reserve_full_isl || blocked.load_end.is_some();
        same && s.stale == 0
            && constant
            && (self.pool.watch_gains_nothing() || !self.pool.caching())
            && self.still_lacks_blocks(&blocked)
    }

    /// Passes `passes` of the stretch that [`steady`](Self::steady) promised: as many `schedule` calls
    /// and as many `complete` calls.
    pub fn advance_steady(&mut self, passes: u64) {
        self.grow_through(passes);
        self.decoders.advance(passes);
        self.decoders.completed += passes;
        self.executed_passes += passes;
        self.processed_passes += passes;
        if let Some(pass) = self.flight.iter_mut().next() {
            pass.decode_number += passes;
        }
    }
}
