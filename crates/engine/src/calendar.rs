//! What is due in which pass. Most of it is near: a ring of passes takes it, and finds it again without
//! comparing. The rest waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An entry: (decode pass, running order, slot, serial).
pub(crate) type Due = (u64, u64, u32, u32);

/// Passes that the ring covers.
const NEAR: u64 = 512;
const WORDS: usize = (NEAR / 64) as usize;

/// Entries by pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calendar {
    /// The first pass whose entries may still be here.
    first: u64,
    /// By pass modulo their number; made with the first entry. All are for passes from `first` on.
    near: Vec<Vec<Due>>,
    /// Which of them hold something.
    occupied: [u64; WORDS],
    far: BinaryHeap<Reverse<Due>>,
}

impl Calendar {
    /// Enters something due.
    #[inline]
    pub(crate) fn push(&mut self, due: Due) {
        if due.0.wrapping_sub(self.first) >= NEAR {
            self.far.push(Reverse(due));
            return;
        }
        if self.near.is_empty() {
            self.near.resize_with(NEAR as usize, Vec::new);
        }
        let at = (due.0 % NEAR) as usize;
        self.near[at].push(due);
        self.occupied[at / 64] |= 1 << (at % 64);
    }

    /// The first pass in which something is due.
    pub(crate) fn first_due(&self) -> u64 {
        let far = self.far.peek().map_or(u64::MAX, |Reverse(due)| due.0);
        self.first_near().map_or(far, |near| near.min(far))
    }

    /// The first pass of the ring with entries: a search through the bits, from that of `first` around.
    fn first_near(&self) -> Option<u64> {
        let start = (self.first % NEAR) as usize;
        let (word, bit) = (start / 64, start % 64);
        let rest = self.occupied[word] >> bit;
        if rest != 0 {
            return Some(self.first + u64::from(rest.trailing_zeros()));
        }
        for step in 1..=WORDS {
            let bits = self.occupied[(word + step) % WORDS];
            // All of the first word that is left stands behind its bit.
            if bits != 0 {
                let ahead = (step * 64 - bit) as u64 + u64::from(bits.trailing_zeros());
                return Some(self.first + ahead);
            }
        }
        None
    }

    /// Takes what is due up to `pass`, in the order of passes and then of running. Nothing is entered for these passes
    /// any more.
    pub(crate) fn take(&mut self, pass: u64, into: &mut Vec<Due>) {
        into.clear();
        while let Some(near) = self.first_near().filter(|&near| near <= pass) {
            let at = (near % NEAR) as usize;
            into.append(&mut self.near[at]);
            self.occupied[at / 64] &= !(1 << (at % 64));
            self.first = near;
        }
        while let Some(&Reverse(due)) = self.far.peek()
            && due.0 <= pass
        {
            self.far.pop();
            into.push(due);
        }
        self.first = self.first.max(pass + 1);
        into.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_back_when_they_are_due(
            steps in prop::collection::vec((prop::collection::vec(0u64..1500, 0..4), 1u64..700), 1..60)
        ) {
            let (mut calendar, mut all, mut taken) = (Calendar::default(), Vec::new(), Vec::new());
            let mut pass = 0;
            for (serial, (ahead, step)) in (0u32..).zip(steps) {
                for ahead in ahead {
                    let due = (pass + 1 + ahead, u64::from(serial) % 7, serial, 0);
                    calendar.push(due);
                    all.push(due);
                }
                all.sort_unstable();
                prop_assert_eq!(calendar.first_due(), all.first().map_or(u64::MAX, |due| due.0));
                pass += step;
                let count = all.iter().take_while(|due| due.0 <= pass).count();
                calendar.take(pass, &mut taken);
                prop_assert_eq!(&taken[..], &all[..count]);
                all.drain(..count);
            }
        }
    }
}
