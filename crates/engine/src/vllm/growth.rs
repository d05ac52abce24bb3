//! Which members of the decode set need a block in which pass.
//!
//! A member computes one token in each pass, so it starts a block in one of as many passes as a block has
//! tokens: lists by the pass number's remainder know that for all passes to come. It fills the block before
//! in the pass before; with asynchronous scheduling its last token is known a pass later, which is the same one.

use super::rank::Rank;

/// A member: its place in the running order, and its slot.
type Member = (u64, u32);

/// The members by the phase in which they start a block, each list in running order.
#[derive(Debug)]
pub(super) struct Growth {
    block_size: u64,
    /// `block_size` − 1 where that is a mask: a division takes as long as all the rest.
    mask: Option<u64>,
    /// Made when the first member comes.
    lists: Vec<Vec<Member>>,
    /// Members whose outputs other requests may ask for.
    shared: u32,
}

impl Growth {
    pub(super) fn new(block_size: u32) -> Growth {
        let block_size = u64::from(block_size);
        let mask = block_size.is_power_of_two().then_some(block_size - 1);
        Growth { block_size, mask, lists: Vec::new(), shared: 0 }
    }

    /// `n` modulo the block size.
    #[inline]
    fn phase(&self, n: u64) -> u64 {
        match self.mask {
            Some(mask) => n & mask,
            None => n % self.block_size,
        }
    }

    /// The list of the members that start a block when one with `computed` tokens after decode pass
    /// `scheduled` does.
    fn list(&mut self, scheduled: u64, computed: u32) -> &mut Vec<Member> {
        if self.lists.is_empty() {
            self.lists.resize_with(self.block_size as usize, Vec::new);
        }
        let ahead = self.block_size - self.phase(computed.into());
        let index = self.phase(scheduled + 1 + ahead) as usize;
        &mut self.lists[index]
    }

    pub(super) fn add(&mut self, scheduled: u64, computed: u32, member: Member, shared: bool) {
        self.shared += u32::from(shared);
        let list = self.list(scheduled, computed);
        // Mostly the youngest comes last.
        let at = match list.last() {
            Some(&last) if last > member => list.partition_point(|&other| other < member),
            _ => list.len(),
        };
        list.insert(at, member);
    }

    pub(super) fn remove(&mut self, scheduled: u64, computed: u32, member: Member, shared: bool) {
        self.shared -= u32::from(shared);
        let list = self.list(scheduled, computed);
        if let Ok(at) = list.binary_search(&member) {
            list.remove(at);
        }
    }

    /// Number of the list of those that start a block in decode pass `pass`.
    fn index(&self, pass: u64) -> usize {
        self.phase(pass) as usize
    }

    /// Takes a list out, to be given back.
    fn take(&mut self, index: usize) -> Vec<Member> {
        self.lists.get_mut(index).map(std::mem::take).unwrap_or_default()
    }

    fn give_back(&mut self, index: usize, list: Vec<Member>) {
        if let Some(place) = self.lists.get_mut(index) {
            *place = list;
        }
    }

    /// Members that start a block in decode pass `pass`.
    fn starting(&self, pass: u64) -> &[Member] {
        self.lists.get(self.index(pass)).map_or(&[], Vec::as_slice)
    }
}

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
        let size = self.growth.block_size;
        let next = self.decoders.next_pass();
        let starting = |pass| self.growth.starting(pass).len() as u64;
        // Events are told with their pass. And who waits for blocks might find a prefix that fills now.
        let quiet = self.pool.events_on()
            || (self.growth.shared > 0 && self.pool.caching() && self.waiting.len() > 0);
        if quiet {
            let fills_before = self.fills_before();
            let grows = |pass: &u64| starting(*pass) > 0 || (fills_before && starting(*pass + 1) > 0);
            return (next..next + most.min(size)).position(|pass| grows(&pass)).map_or(most, |n| n as u64);
        }
        // Over as many passes as a block has tokens, each member starts one block.
        let free = u64::from(self.pool.free());
        let rounds = free / self.decoders.members.count;
        if rounds > 0 {
            return most.min(rounds.saturating_mul(size));
        }
        let (mut left, mut passes) = (free, 0);
        while passes < most && starting(next + passes) <= left {
            left -= starting(next + passes);
            passes += 1;
        }
        passes
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
