//! The decode set: running requests of which every pass computes exactly one token. A pass moves all of
//! them by counting itself, so that it costs O(1); a calendar names those for which more is due.
//!
//! What a member's counters are is implied: member since decode pass j, n passes scheduled, m completed
//! → n − j tokens more computed, max(m − j, 0) more known, the difference in flight. Which engine the members
//! belong to is not known here.

use crate::calendar::{Calendar, Due};
use crate::pass::DecodeSet;
use std::collections::VecDeque;

/// Counters and calendar of the set. Who belongs to it, the sequences say (`State::Attached`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Decoders {
    /// Decode passes scheduled.
    pub(crate) scheduled: u64,
    /// Decode passes completed.
    pub(crate) completed: u64,
    /// The members, with the contexts that the next pass computes: tokens computed + 1.
    pub(crate) members: DecodeSet,
    calendar: Calendar,
    /// Members whose second output token comes with decode pass `.0`.
    pub(crate) seconds: VecDeque<(u64, u32, u32)>,
}

impl Decoders {
    /// The number of the pass being scheduled, if the set takes part in it.
    pub(crate) fn next_pass(&self) -> u64 {
        self.scheduled + 1
    }

    /// Enters something due.
    pub(crate) fn remind(&mut self, due: Due) {
        self.calendar.push(due);
    }

    /// The first pass in which something is due.
    pub(crate) fn first_due(&self) -> u64 {
        self.calendar.first_due()
    }

    /// Takes what is due up to `pass`, in running order.
    pub(crate) fn take_due(&mut self, pass: u64, into: &mut Vec<Due>) {
        self.calendar.take(pass, into);
    }

    /// Takes the next member whose second token came with the passes completed: the pass, its slot and serial.
    pub(crate) fn next_second(&mut self) -> Option<(u64, u32, u32)> {
        self.seconds.pop_front_if(|&mut (pass, ..)| pass <= self.completed)
    }

    /// All members are scheduled for `passes` passes more.
    pub(crate) fn advance(&mut self, passes: u64) {
        self.members.grow_by(passes);
        self.scheduled += passes;
    }
}
