//! From the ids of a trace to numbers of prefixes.
//!
//! An id is meant to stand for one whole prefix, so it has one parent, the id before it. Here this is
//! checked for every id of every row, and kept exact where a trace breaks it: the same id under another
//! parent is another prefix. Numbers are dense, in order of first appearance; in a trace whose ids are
//! so already, each id is its own number. Memory is O(distinct prefixes), whatever the ids look like.

use std::collections::HashMap;

/// Gives out numbers, from 0.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// First prefix of each id, by id, as far as ids are dense.
    dense: Vec<First>,
    /// First prefix of each other id.
    sparse: HashMap<u64, First>,
    /// Every further prefix of an id, by (parent, id).
    further: HashMap<(u32, u64), u32>,
    /// Numbers given out.
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct First {
    parent: u32,
    number: u32,
}

/// Parent of the first id of a row, and number of an unused place.
const NONE: u32 = u32::MAX;
const UNUSED: First = First { parent: NONE, number: NONE };
/// Ids below this, and below four times the number of prefixes, are kept by index.
const ALWAYS_DENSE: u64 = 1 << 16;

impl Prefixes {
    /// The number of the prefix that ends with `id` after the prefix `parent`; none when there are no
    /// more numbers.
    #[inline]
    pub(super) fn number(&mut self, parent: Option<u32>, id: u64) -> Option<u32> {
        let parent = parent.unwrap_or(NONE);
        if let Some(first) = self.dense.get(id as usize)
            && first.number != NONE
            && first.parent == parent
        {
            return Some(first.number);
        }
        self.number_slow(parent, id)
    }

    fn number_slow(&mut self, parent: u32, id: u64) -> Option<u32> {
        let dense = self.dense.get(id as usize).filter(|first| first.number != NONE);
        let first = dense.or_else(|| self.sparse.get(&id));
        match first {
            None => {
                let number = self.next_number()?;
                let first = First { parent, number };
                if id < ALWAYS_DENSE.max(4 * u64::from(self.count)) {
                    let place = id as usize;
                    if place >= self.dense.len() {
                        self.dense.resize(place + 1, UNUSED);
                    }
                    self.dense[place] = first;
                } else {
                    self.sparse.insert(id, first);
                }
                Some(number)
            }
            Some(first) if first.parent == parent => Some(first.number),
            Some(_) => {
                if let Some(&number) = self.further.get(&(parent, id)) {
                    return Some(number);
                }
                let number = self.next_number()?;
                self.further.insert((parent, id), number);
                Some(number)
            }
        }
    }

    fn next_number(&mut self) -> Option<u32> {
        let number = self.count;
        if number == NONE {
            return None;
        }
        self.count += 1;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(prefixes: &mut Prefixes, rows: &[&[u64]]) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        for row in rows {
            let mut parent = None;
            let mut numbers = Vec::new();
            for &id in *row {
                parent = prefixes.number(parent, id);
                numbers.push(parent.unwrap());
            }
            all.push(numbers);
        }
        all
    }

    #[test]
    fn dense_ids_keep_their_numbers() {
        let mut prefixes = Prefixes::default();
        let got = rows(&mut prefixes, &[&[0, 1, 2], &[0, 3], &[0, 1, 2, 4], &[5]]);
        assert_eq!(got, [vec![0, 1, 2], vec![0, 3], vec![0, 1, 2, 4], vec![5]]);
    }

    #[test]
    fn an_id_under_another_parent_is_another_prefix() {
        let mut prefixes = Prefixes::default();
        // 7 after 0, 7 after 1, 7 at the start, and 8 after each of them: six prefixes of two ids.
        let first = rows(&mut prefixes, &[&[0, 7, 8], &[1, 7, 8], &[7, 8]]);
        assert_eq!(first, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        let again = rows(&mut prefixes, &[&[7, 8], &[1, 7, 8], &[0, 7, 8]]);
        assert_eq!(again, [vec![6, 7], vec![3, 4, 5], vec![0, 1, 2]]);
    }

    #[test]
    fn an_id_repeated_in_a_row_names_longer_and_longer_prefixes() {
        let mut prefixes = Prefixes::default();
        let got = rows(&mut prefixes, &[&[9, 9, 9], &[9, 9]]);
        assert_eq!(got, [vec![0, 1, 2], vec![0, 1]]);
    }

    #[test]
    fn sparse_ids_cost_no_more_than_dense_ones() {
        let mut prefixes = Prefixes::default();
        let got = rows(&mut prefixes, &[&[u64::MAX, 1 << 40], &[u64::MAX, 5], &[1 << 40]]);
        assert_eq!(got, [vec![0, 1], vec![0, 2], vec![3]]);
        for i in 0..100_000u64 {
            prefixes.number(None, i * 40_503 + (1 << 20)).unwrap();
        }
        assert!(prefixes.dense.len() <= 4 * prefixes.count as usize + ALWAYS_DENSE as usize);
    }

    #[test]
    fn an_id_first_kept_as_sparse_is_found_when_its_range_becomes_dense() {
        let mut prefixes = Prefixes::default();
        let early = prefixes.number(None, 70_000).unwrap();
        for id in 0..80_000 {
            if id != 70_000 {
                prefixes.number(None, id).unwrap();
            }
        }
        assert!(prefixes.dense.len() > 70_000);
        assert_eq!(prefixes.number(None, 70_000), Some(early));
        assert_eq!(prefixes.count, 80_000);
    }
}
