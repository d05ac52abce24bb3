//! The decode set: running requests of which every pass computes exactly one token. A pass moves all of
//! them by counting itself, so that it costs O(1); a calendar names those for which more is due.
//!
//! What a member's counters are is implied: member since decode pass j, n passes scheduled, m completed
//! → n − j tokens more computed, max(m − j, 0) more known, the difference in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A calendar entry: (decode pass, running order, slot, serial).
pub(super) type Due = (u64, u64, u32, u32);

/// Counters and calendar of the set. Who belongs to it, the sequences say (`State::Attached`).
#[derive(Clone, Debug, Default)]
pub(super) struct DecodeSet {
    /// Decode passes scheduled.
    pub(super) scheduled: u64,
    /// Decode passes completed.
    pub(super) completed: u64,
    /// Members.
    pub(super) count: u64,
    /// Σ over members of the context that the next pass computes: tokens computed + 1.
    pub(super) sum_context: u64,
    /// Σ of its square.
    pub(super) sum_context_squared: u128,
    calendar: BinaryHeap<Reverse<Due>>,
    /// Members whose second output token comes with decode pass `.0`.
    pub(super) seconds: std::collections::VecDeque<(u64, u32, u32)>,
}

impl DecodeSet {
    /// The number of the pass being scheduled, if the set takes part in it.
    pub(super) fn next_pass(&self) -> u64 {
        self.scheduled + 1
    }

    /// Enters something due.
    pub(super) fn remind(&mut self, due: Due) {
        self.calendar.push(Reverse(due));
    }

    /// The first pass in which something is due.
    pub(super) fn first_due(&self) -> u64 {
        self.calendar.peek().map_or(u64::MAX, |Reverse(due)| due.0)
    }

    /// Takes the next entry due at or before `pass`.
    pub(super) fn pop_due(&mut self, pass: u64) -> Option<Due> {
        if self.first_due() > pass {
            return None;
        }
        self.calendar.pop().map(|Reverse(due)| due)
    }

    /// A member with `context` = computed + 1 joins.
    pub(super) fn add(&mut self, context: u64) {
        self.count += 1;
        self.sum_context += context;
        self.sum_context_squared += u128::from(context) * u128::from(context);
    }

    /// A member leaves.
    pub(super) fn subtract(&mut self, context: u64) {
        self.count -= 1;
        self.sum_context -= context;
        self.sum_context_squared -= u128::from(context) * u128::from(context);
    }

    /// All members are scheduled for `passes` passes more.
    pub(super) fn advance(&mut self, passes: u64) {
        // Σ(c+k)² = Σc² + 2kΣc + nk²
        let (n, k) = (u128::from(self.count), u128::from(passes));
        self.sum_context_squared += 2 * k * u128::from(self.sum_context) + n * k * k;
        self.sum_context += self.count * passes;
        self.scheduled += passes;
    }
}
