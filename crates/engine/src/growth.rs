//! Which members of the decode set need a block in which pass.
//!
//! A member computes one token in each pass, so it starts a block in one of as many passes as a block has
//! tokens: lists by the pass number's remainder know that for all passes to come.

/// A member: its place in the running order, and its slot.
type Member = (u64, u32);

/// The members by the phase in which they start a block, each list in running order.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) block_size: u64,
    /// `block_size` − 1 where that is a mask: a division takes as long as all the rest.
    mask: Option<u64>,
    /// Made when the first member comes.
    pub(crate) lists: Vec<Vec<Member>>,
    /// Members whose outputs other requests may ask for.
    pub(crate) shared: u32,
}

impl Growth {
    pub(crate) fn new(block_size: u32) -> Growth {
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

    pub(crate) fn add(&mut self, scheduled: u64, computed: u32, member: Member, shared: bool) {
        self.shared += u32::from(shared);
        let list = self.list(scheduled, computed);
        // Mostly the youngest comes last.
        let at = match list.last() {
            Some(&last) if last > member => list.partition_point(|&other| other < member),
            _ => list.len(),
        };
        list.insert(at, member);
    }

    pub(crate) fn remove(&mut self, scheduled: u64, computed: u32, member: Member, shared: bool) {
        self.shared -= u32::from(shared);
        let list = self.list(scheduled, computed);
        if let Ok(at) = list.binary_search(&member) {
            list.remove(at);
        }
    }

    /// Number of the list of those that start a block in decode pass `pass`.
    pub(crate) fn index(&self, pass: u64) -> usize {
        self.phase(pass) as usize
    }

    /// Takes a list out, to be given back.
    pub(crate) fn take(&mut self, index: usize) -> Vec<Member> {
        self.lists.get_mut(index).map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, index: usize, list: Vec<Member>) {
        if let Some(place) = self.lists.get_mut(index) {
            *place = list;
        }
    }

    /// Members that start a block in decode pass `pass`.
    pub(crate) fn starting(&self, pass: u64) -> &[Member] {
        self.lists.get(self.index(pass)).map_or(&[], Vec::as_slice)
    }

    /// Of the `most` passes from `next` on, how many begin before anybody starts a block, or fills one in the pass
    /// before that, if `fills_before` says so.
    pub(crate) fn passes_without(&self, next: u64, most: u64, fills_before: bool) -> u64 {
        let starts = |pass| !self.starting(pass).is_empty();
        let grows = |pass: &u64| starts(*pass) || (fills_before && starts(*pass + 1));
        (next..next + most.min(self.block_size)).position(|pass| grows(&pass)).map_or(most, |n| n as u64)
    }

    /// Of the `most` passes from `next` on, in how many `free` blocks certainly suffice for `members` members.
    pub(crate) fn passes_with(&self, free: u32, members: u64, next: u64, most: u64) -> u64 {
        // Over as many passes as a block has tokens, each member starts one block.
        let mut left = u64::from(free);
        let rounds = left / members;
        if rounds > 0 {
            return most.min(rounds.saturating_mul(self.block_size));
        }
        let mut passes = 0;
        while passes < most {
            let starting = self.starting(next + passes).len() as u64;
            if starting > left {
                break;
            }
            left -= starting;
            passes += 1;
        }
        passes
    }
}
