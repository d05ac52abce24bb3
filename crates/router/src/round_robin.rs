//! Taking turns.

use crate::{Choice, Incoming, Router, Verdict, Workers};
use std::num::NonZeroU32;

/// Takes workers, or the ranks of one, in turn, beginning with the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundRobin {
    next: u32,
}

impl RoundRobin {
    /// A turn that begins with worker 0.
    pub fn new() -> RoundRobin {
        RoundRobin::default()
    }

    /// The place, among `workers` that can take a request, of the one that takes the next. When the
    /// number shrinks below the place whose turn it is, the turn begins again at 0.
    pub fn next_of(&mut self, workers: NonZeroU32) -> u32 {
        let place = if self.next < workers.get() { self.next } else { 0 };
        self.next = place + 1;
        place
    }
}

impl Router for RoundRobin {
    fn route(&mut self, _: &Incoming<'_>, workers: &mut dyn Workers) -> Verdict {
        let place = self.next_of(workers.count());
        Verdict::To(Choice::worker(workers.number(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(router: &mut RoundRobin, workers: u32, times: usize) -> Vec<u32> {
        let workers = NonZeroU32::new(workers).unwrap();
        (0..times).map(|_| router.next_of(workers)).collect()
    }

    #[test]
    fn workers_take_turns_from_the_first() {
        assert_eq!(picks(&mut RoundRobin::new(), 3, 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(picks(&mut RoundRobin::new(), 1, 3), [0, 0, 0]);
    }

    #[test]
    fn the_turn_survives_a_change_of_the_number_of_workers() {
        let mut router = RoundRobin::new();
        assert_eq!(picks(&mut router, 4, 3), [0, 1, 2]);
        assert_eq!(picks(&mut router, 2, 3), [0, 1, 0]);
        assert_eq!(picks(&mut router, 4, 4), [1, 2, 3, 0]);
    }
}
