//! Many passes at once: stretches in which every pass computes one token of each member of the decode
//! set and nothing else can happen.
//!
//! A stretch is what the scheduler would have done pass by pass; `steady` only says for how many passes
//! that is certain, and `advance_steady` counts them.

use super::rank::Rank;
use crate::rank::{Steady, Stepper};

impl Rank {
    /// The stretch of steady passes that begins with the next `schedule`, if there is one: none ends, none can
    /// start, and the pool has the blocks that the members need. With the overlap scheduler the pass in flight is such a
    /// pass too, so that scheduling one and completing one can go together.
    pub fn steady(&self) -> Option<Steady> {
        let set = &self.decoders;
        let nobody_joins = self.queue.is_empty() || self.active.len() >= self.config.max_batch_size as usize;
        let usable = self.stepper == Stepper::Fast
            && !self.hand_offs.are_due()
            && set.members.count > 0
            && self.visited == 0
            && self.draining.is_empty()
            && nobody_joins
            && (self.contexts.is_empty() || self.quiet)
            && set.seconds.is_empty()
            && self.flight.len() == self.config.depth() - 1;
        if !usable || set.first_due() <= set.next_pass() {
            return None;
        }
        if let Some(pass) = self.flight.front()
            && (pass.uniform != set.members.count || !pass.members.is_empty() || !pass.stops.is_empty())
        {
            return None;
        }
        let passes = self.passes_with_blocks(set.first_due() - set.next_pass());
        (passes > 0).then_some(Steady { passes, decode: set.members })
    }

    /// Of the passes of a stretch, the first ones that certainly make no event.
    pub fn quiet(&self, steady: &Steady) -> u64 {
        if !self.tree.scope().is_on() {
            return steady.passes;
        }
        // Blocks enter the tree when their request ends, and leave it when they are taken.
        self.growth.passes_without(self.decoders.next_pass(), steady.passes, false)
    }

    /// Of the next `most` passes of the decode set, how many certainly find the blocks that they need, and
    /// do nothing that somebody has to see.
    fn passes_with_blocks(&self, most: u64) -> u64 {
        let next = self.decoders.next_pass();
        // Events are told with their pass. And prompts that wait are looked at again when blocks are taken.
        if self.tree.scope().is_timed() || !self.contexts.is_empty() {
            return self.growth.passes_without(next, most, false);
        }
        self.growth.passes_with(self.tree.free(), self.decoders.members.count, next, most)
    }

    /// Passes `passes` of the stretch that [`steady`](Self::steady) promised: as many `schedule` calls
    /// and as many `complete` calls.
    pub fn advance_steady(&mut self, passes: u64) {
        for pass in self.decoders.next_pass()..self.decoders.next_pass() + passes {
            let index = self.growth.index(pass);
            let starting = self.growth.take(index);
            for &(_, slot) in &starting {
                self.tree.allocate(1, &mut self.sequences[slot as usize].blocks);
                self.reserved -= 1;
            }
            self.growth.give_back(index, starting);
        }
        self.decoders.advance(passes);
        self.decoders.completed += passes;
        if let Some(pass) = self.flight.iter_mut().next() {
            pass.decode_number += passes;
        }
    }
}
