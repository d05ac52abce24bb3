//! What is known of each physical block, in eight bytes: its identity, and its owners or its place in the free
//! queue. A large pool is a large table, and every page of it that is touched costs more than the work on it.

use crate::identity::{BlockKey, KeySpace};

/// A table of more blocks is refused.
pub(crate) const MOST_BLOCKS: u32 = 1 << 28;

/// No block.
pub(crate) const NIL: u32 = u32::MAX;

const FREE: u32 = 1 << 31;
const WATCHED: u32 = 1 << 30;
const COPIED: u32 = 1 << 29;
/// Owners, or for a free block its place.
const REST: u32 = COPIED - 1;

/// The two top bits of a narrow key say how to read the others.
const NARROW: u32 = 30;
const NARROW_MASK: u32 = (1 << NARROW) - 1;
const PREFIX: u32 = 0;
const PRIVATE: u32 = 1;
const WIDE: u32 = 2;
const NONE: u32 = 3 << NARROW;

#[derive(Clone, Copy)]
struct Cell {
    key: u32,
    state: u32,
}

/// The blocks used so far.
pub(crate) struct BlockTable {
    cells: Vec<Cell>,
    /// Keys that do not fit in a cell (hashes, large numbers), by block; as long as it has to be.
    wide: Vec<BlockKey>,
}

impl BlockTable {
    /// A table of `count` blocks with one owner each.
    pub(crate) fn new(count: u32) -> BlockTable {
        let mut table = BlockTable { cells: Vec::new(), wide: Vec::new() };
        table.add(count);
        table
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Adds `count` blocks with one owner each and no identity.
    pub(crate) fn add(&mut self, count: u32) {
        self.cells.extend(std::iter::repeat_n(Cell { key: NONE, state: 1 }, count as usize));
    }

    /// The block's identity.
    #[inline]
    pub(crate) fn key(&self, block: u32) -> Option<BlockKey> {
        let key = self.cells[block as usize].key;
        let value = u64::from(key & NARROW_MASK);
        match key >> NARROW {
            PREFIX => Some(BlockKey::in_space(KeySpace::Prefix, value)),
            PRIVATE => Some(BlockKey::in_space(KeySpace::Private, value)),
            WIDE => Some(self.wide[block as usize]),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn set_key(&mut self, block: u32, key: BlockKey) {
        let value = key.value();
        let narrow = match key.space() {
            KeySpace::Prefix if value <= u64::from(NARROW_MASK) => (PREFIX << NARROW) | value as u32,
            KeySpace::Private if value <= u64::from(NARROW_MASK) => (PRIVATE << NARROW) | value as u32,
            _ => {
                self.set_wide(block, key);
                WIDE << NARROW
            }
        };
        self.cells[block as usize].key = narrow;
    }

    fn set_wide(&mut self, block: u32, key: BlockKey) {
        if self.wide.len() <= block as usize {
            self.wide.resize(self.cells.len(), key);
        }
        self.wide[block as usize] = key;
    }

    /// Gives a block that has none an owner, and takes its identity away.
    #[inline]
    pub(crate) fn renew(&mut self, block: u32) {
        self.cells[block as usize] = Cell { key: NONE, state: 1 };
    }

    #[inline]
    pub(crate) fn is_free(&self, block: u32) -> bool {
        self.cells[block as usize].state & FREE != 0
    }

    /// Adds an owner. If the block was free, tells the place that it leaves.
    #[inline]
    pub(crate) fn own(&mut self, block: u32) -> Option<u32> {
        let state = &mut self.cells[block as usize].state;
        if *state & FREE == 0 {
            *state += 1;
            return None;
        }
        let place = *state & REST;
        *state = (*state & (WATCHED | COPIED)) + 1;
        Some(place)
    }

    /// Takes an owner away. If it was the last one, the block is free, at the place that `place` gives it.
    #[inline]
    pub(crate) fn disown(&mut self, block: u32, place: impl FnOnce() -> u32) -> bool {
        let state = &mut self.cells[block as usize].state;
        *state -= 1;
        let last = *state & REST == 0;
        if last {
            *state |= FREE | place();
        }
        last
    }

    /// A block without identity loses its owner. Where it stands among the free ones, the pool knows.
    #[inline]
    pub(crate) fn put_aside(&mut self, block: u32) {
        self.cells[block as usize].state = FREE;
    }

    /// A free block stands at another place now.
    #[inline]
    pub(crate) fn moved(&mut self, block: u32, place: u32) {
        let state = &mut self.cells[block as usize].state;
        *state = (*state & !REST) | place;
    }

    #[inline]
    pub(crate) fn is_watched(&self, block: u32) -> bool {
        self.cells[block as usize].state & WATCHED != 0
    }

    pub(crate) fn watch(&mut self, block: u32, on: bool) {
        let state = &mut self.cells[block as usize].state;
        *state = if on { *state | WATCHED } else { *state & !WATCHED };
    }

    /// Whether another copy was entered under the block's identity after it.
    #[inline]
    pub(crate) fn is_copied(&self, block: u32) -> bool {
        self.cells[block as usize].state & COPIED != 0
    }

    pub(crate) fn set_copied(&mut self, block: u32, on: bool) {
        let state = &mut self.cells[block as usize].state;
        *state = if on { *state | COPIED } else { *state & !COPIED };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_key_in_whatever_state() {
        let mut table = BlockTable::new(4);
        let keys = [
            BlockKey::in_space(KeySpace::Prefix, 7),
            BlockKey::in_space(KeySpace::Prefix, 1 << 40),
            BlockKey::in_space(KeySpace::Private, (1 << 30) - 1),
            BlockKey::in_space(KeySpace::Hashed, u64::MAX >> 2),
        ];
        for (block, key) in (0..).zip(keys) {
            assert_eq!(table.key(block), None);
            table.set_key(block, key);
        }
        for (block, key) in (0..).zip(keys) {
            table.set_copied(block, true);
            table.watch(block, true);
            assert!(table.disown(block, || 5));
            table.moved(block, block);
            assert_eq!((table.key(block), table.is_free(block)), (Some(key), true));
            assert_eq!((table.own(block), table.own(block)), (Some(block), None));
            assert!(!table.disown(block, || unreachable!()) && !table.is_free(block));
            assert!(table.is_watched(block) && table.is_copied(block));
            table.renew(block);
            assert_eq!(
                (table.key(block), table.is_watched(block), table.is_copied(block)),
                (None, false, false)
            );
        }
    }
}
