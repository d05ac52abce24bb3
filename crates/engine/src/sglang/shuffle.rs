//! The shuffled waiting queue of policy random: Python's `random.shuffle`, which draws from a Mersenne
//! Twister.

use rand_mt::Mt;
use std::fmt;

pub(super) struct Shuffle(Mt);

impl fmt::Debug for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shuffle")
    }
}

impl Shuffle {
    /// `random.seed(seed)`.
    pub(super) fn new(seed: u32) -> Shuffle {
        Shuffle(Mt::new_with_key([seed]))
    }

    /// `random.shuffle(items)`.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u32 + 1);
            items.swap(i, j as usize);
        }
    }

    /// `random._randbelow(n)`: as many bits as `n` has, until they are below it.
    fn below(&mut self, n: u32) -> u32 {
        let bits = u32::BITS - n.leading_zeros();
        loop {
            let drawn = self.0.next_u32() >> (u32::BITS - bits);
            if drawn < n {
                return drawn;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shuffle;

    /// CPython 3.11: `random.seed(0); x = list(range(10)); random.shuffle(x)`, twice, and with seed 7.
    #[test]
    fn as_python_shuffles() {
        let mut items: Vec<u32> = (0..10).collect();
        let mut shuffle = Shuffle::new(0);
        shuffle.shuffle(&mut items);
        assert_eq!(items, FIRST);
        shuffle.shuffle(&mut items);
        assert_eq!(items, SECOND);
        let mut items: Vec<u32> = (0..10).collect();
        Shuffle::new(7).shuffle(&mut items);
        assert_eq!(items, SEVEN);
    }

    const FIRST: [u32; 10] = [7, 8, 1, 5, 3, 4, 2, 0, 9, 6];
    const SECOND: [u32; 10] = [6, 3, 9, 2, 7, 8, 0, 1, 5, 4];
    const SEVEN: [u32; 10] = [8, 3, 1, 4, 7, 0, 9, 6, 2, 5];
}
