//! The blocks that members of the decode set start and fill, in a pass or in many.
//!
//! A member fills a block in the pass before it starts the next one; with asynchronous scheduling its last token
//! is known a pass later, which is the same one.

use super::rank::Rank;
use crate::event::KvEventScope;

impl Rank {
    /// Members fill a block in the pass before they start the next one, and not in the same.
    fn fills_before(&self) -> bool {
        self.pool.caching() && !self.config.async_scheduling
    }

    /// Gives the members of the decode set the blocks that they start in decode pass `pass`, the next one,
    /// and enters those that they fill in the prefix cache. If the pool runs out, the place in the running
    /// order of the first member without a block.
    pub(super) fn grow(&mut self, pass: u64) -> Result<(), u64> {
        let (starts, fills) = (self.growth.index(pass), self.growth.index(pass + 1));
        // With one token a block, a member fills the block that it starts.
        let both = self.pool.caching() && (self.config.async_scheduling || starts == fills);
        let starting = self.growth.take(starts);
        let filling = if self.fills_before() { self.growth.take(fills) } else { Vec::new() };
        let mut result = Ok(());
        let mut filled = filling.iter();
        for &(ticket, slot) in &starting {
            while let Some(&(_, earlier)) = filled.as_slice().first().filter(|member| member.0 < ticket) {
                self.fill_block(earlier);
                filled.next();
            }
            if self.pool.free() == 0 {
                result = Err(ticket);
                break;
            }
            self.pool.allocate(1, &mut self.sequences[slot as usize].blocks);
            if both {
                self.fill_block(slot);
            }
        }
        if result.is_ok() {
            filled.for_each(|&(_, slot)| self.fill_block(slot));
        }
        self.growth.give_back(starts, starting);
        if self.fills_before() && starts != fills {
            self.growth.give_back(fills, filling);
        }
        result
    }

    /// Enters the block that a member has filled in the prefix cache, if that is not done.
    fn fill_block(&mut self, slot: u32) {
        let whole = self.known(slot).min(self.computed(slot) + 1);
        let promoted = self.sequences[slot as usize].promoted;
        debug_assert!(whole / self.config.block_size <= promoted + 1);
        if whole - promoted * self.config.block_size >= self.config.block_size {
            self.promote_to(slot, promoted + 1);
        }
    }

    /// Of the next `most` passes of the decode set, how many certainly find the blocks that they need, and
    /// do nothing that somebody has to see.
    pub(super) fn passes_with_blocks(&self, most: u64) -> u64 {
        let next = self.decoders.next_pass();
        // Events are told with their pass. And who waits for blocks might find a prefix that fills now.
        let quiet = self.pool.scope().is_timed()
            || (self.growth.shared > 0 && self.pool.caching() && self.waiting.len() > 0);
        if quiet {
            return self.growth.passes_without(next, most, self.fills_before());
        }
        self.growth.passes_with(self.pool.free(), self.decoders.members.count, next, most)
    }

    /// Of the next `passes` passes of a stretch, how many certainly make no event.
    pub(super) fn passes_without_events(&self, passes: u64) -> u64 {
        if !self.pool.scope().is_on() {
            return passes;
        }
        let next = self.decoders.next_pass();
        let untouched = self.growth.passes_without(next, passes, self.fills_before());
        if self.pool.scope() == KvEventScope::All || self.growth.shared > 0 {
            return untouched;
        }
        let members = self.decoders.members.count;
        self.growth.passes_with(self.pool.bare(), members, next, passes).max(untouched)
    }

    /// What [`grow`](Self::grow) does in each of the next `passes` passes, of which the pool has the blocks.
    pub(super) fn grow_through(&mut self, passes: u64) {
        let (scheduled, completed) = (self.decoders.scheduled, self.decoders.completed);
        let (size, fills_before) = (self.growth.lists.len(), self.fills_before());
        let mut starts = self.growth.index(scheduled + 1);
        for done in 0..passes {
            let fills = if starts + 1 == size { 0 } else { starts + 1 };
            let lists = &self.growth.lists;
            if !lists[starts].is_empty() || (fills_before && !lists[fills].is_empty()) {
                self.decoders.scheduled = scheduled + done;
                self.decoders.completed = completed + done;
                let grown = self.grow(scheduled + done + 1);
                debug_assert_eq!(grown, Ok(()), "the stretch was promised");
            }
            starts = fills;
        }
        (self.decoders.scheduled, self.decoders.completed) = (scheduled, completed);
    }
}
