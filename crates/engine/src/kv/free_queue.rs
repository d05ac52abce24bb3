//! A queue of free blocks from which any block can be taken: in order of release, with gaps where one was
//! taken out of turn. Entering and leaving write one number each, into memory that is read in order.

/// No block: who stood here was taken.
const GAP: u32 = u32::MAX;
/// Places are numbers below this and wrap around.
const PLACES: u32 = 1 << 29;
/// Entries that are not worth a clean-up.
const FEW: usize = 1024;

/// The queue. Who enters is told a place, and leaves by it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeQueue {
    entries: Vec<u32>,
    /// Entries that have left at the front.
    head: usize,
    /// Place of the first of `entries`, of which there are fewer than places.
    first: u32,
    gaps: usize,
}

impl FreeQueue {
    /// Puts at most `most` blocks at the back, in order, as `enter` gives them and notes their places.
    #[inline]
    pub(crate) fn push_with(&mut self, most: usize, enter: impl FnOnce(&mut Pushed<'_>)) {
        let before = self.entries.len();
        self.entries.resize(before + most, GAP);
        let mut pushed =
            Pushed { room: &mut self.entries[before..], count: 0, place: self.first + before as u32 };
        enter(&mut pushed);
        let count = pushed.count;
        self.entries.truncate(before + count);
    }

    /// Takes the block at the front.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        loop {
            let block = *self.entries.get(self.head)?;
            self.head += 1;
            if self.head >= FEW && self.head * 2 > self.entries.len() {
                self.drop_head();
            }
            if block != GAP {
                return Some(block);
            }
            self.gaps -= 1;
        }
    }

    #[cold]
    fn drop_head(&mut self) {
        self.entries.drain(..self.head);
        self.first = (self.first + self.head as u32) % PLACES;
        self.head = 0;
    }

    /// Takes the block at `place`.
    #[inline]
    pub(crate) fn remove(&mut self, place: u32) {
        self.entries[(place.wrapping_sub(self.first) % PLACES) as usize] = GAP;
        self.gaps += 1;
    }

    /// Closes the gaps if they are most of the queue; tells every block its new place.
    #[inline]
    pub(crate) fn tidy(&mut self, moved: impl FnMut(u32, u32)) {
        if self.gaps > FEW && self.gaps * 2 > self.entries.len() - self.head {
            self.close_gaps(moved);
        }
    }

    #[cold]
    fn close_gaps(&mut self, mut moved: impl FnMut(u32, u32)) {
        self.drop_head();
        self.entries.retain(|&block| block != GAP);
        self.gaps = 0;
        for (at, &block) in self.entries.iter().enumerate() {
            moved(block, (self.first + at as u32) % PLACES);
        }
    }

    /// The blocks from front to back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries[self.head..].iter().copied().filter(|&block| block != GAP)
    }
}

/// Room at the back of the queue.
pub(crate) struct Pushed<'a> {
    room: &'a mut [u32],
    count: usize,
    place: u32,
}

impl Pushed<'_> {
    /// Puts a block there; tells its place.
    #[inline]
    pub(crate) fn push(&mut self, block: u32) -> u32 {
        let place = (self.place + self.count as u32) % PLACES;
        self.room[self.count] = block;
        self.count += 1;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts blocks 0 to `count` − 1 in the queue; tells their places.
    fn push(queue: &mut FreeQueue, count: u32) -> Vec<u32> {
        let mut places = Vec::new();
        queue.push_with(count as usize + 7, |pushed| {
            places.extend((0..count).map(|block| pushed.push(block)));
        });
        places
    }

    #[test]
    fn blocks_leave_in_order_or_by_their_place() {
        let mut queue = FreeQueue::default();
        let mut places = push(&mut queue, 5000);
        for block in (0..5000).filter(|block| block % 5 != 0) {
            queue.remove(places[block as usize]);
            queue.tidy(|block, place| places[block as usize] = place);
        }
        queue.remove(places[10]);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(0), Some(5), Some(15)));
        assert_eq!(queue.iter().collect::<Vec<_>>(), (20..5000).step_by(5).collect::<Vec<_>>());
        assert!(queue.entries.len() < 2500, "gaps are closed");
    }

    #[test]
    fn memory_is_that_of_what_is_there() {
        let mut queue = FreeQueue::default();
        for round in 0..100 {
            push(&mut queue, 2000);
            let taken: Vec<u32> = std::iter::from_fn(|| queue.pop()).take(2000).collect();
            assert!(taken.into_iter().eq(0..2000), "round {round}");
        }
        assert!(queue.entries.len() <= 4000);
    }

    #[test]
    fn places_wrap_around() {
        let mut queue = FreeQueue { first: PLACES - 2, ..FreeQueue::default() };
        let places = push(&mut queue, 4);
        assert_eq!(queue.pop(), Some(0));
        queue.remove(places[2]);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(3), None));
    }
}
