//! The decode set: running requests of which every decode pass computes exactly one token. A pass moves all
//! of them by counting itself, so that it costs O(1); a calendar names those for which more is due.
//!
//! What a member's counters are is implied: member since decode pass j, n decode passes scheduled, m
//! completed → n − j slots and outputs in flight or processed more, max(m − j, 0) outputs processed more.

use crate::pass::DecodeSet;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A calendar entry: (decode pass, slot, serial).
type Due = (u64, u32, u32);

/// Counters and calendar of the set. Who belongs to it, the sequences say (`State::Attached`).
#[derive(Debug)]
pub(super) struct Decoders {
    /// Decode passes scheduled.
    pub(super) scheduled: u64,
    /// Decode passes completed.
    pub(super) completed: u64,
    /// The members, with the contexts that the next decode pass computes.
    pub(super) members: DecodeSet,
    /// How many members start a page in a decode pass, by its number modulo the page size.
    starts: Vec<u32>,
    calendar: BinaryHeap<Reverse<Due>>,
}

impl Decoders {
    pub(super) fn new(page_size: u32) -> Decoders {
        Decoders {
            scheduled: 0,
            completed: 0,
            members: DecodeSet::default(),
            starts: vec![0; page_size as usize],
            calendar: BinaryHeap::new(),
        }
    }

    /// The number of the decode pass that is scheduled next.
    pub(super) fn next_pass(&self) -> u64 {
        self.scheduled + 1
    }

    /// Members that start a page in decode pass `pass`.
    pub(super) fn starting(&self, pass: u64) -> u32 {
        self.starts[(pass % self.starts.len() as u64) as usize]
    }

    /// The counter of those that start a page when a member with `committed` slots, after decode pass
    /// `joined`, does.
    fn phase(&mut self, joined: u64, committed: u32) -> &mut u32 {
        let size = self.starts.len() as u64;
        // The first pass after `joined` starts a page if the slots so far fill theirs.
        let at = (joined + 1 + size - u64::from(committed) % size) % size;
        &mut self.starts[at as usize]
    }

    pub(super) fn add(&mut self, joined: u64, committed: u32) {
        self.members.add(committed + 1);
        *self.phase(joined, committed) += 1;
    }

    /// A member that has `committed` slots now.
    pub(super) fn remove(&mut self, committed: u32) {
        self.members.remove(committed + 1);
        let now = self.scheduled;
        *self.phase(now, committed) -= 1;
    }

    /// Enters when a member needs attention.
    pub(super) fn remind(&mut self, due: Due) {
        self.calendar.push(Reverse(due));
    }

    /// The first decode pass in which something is due.
    pub(super) fn first_due(&self) -> u64 {
        self.calendar.peek().map_or(u64::MAX, |Reverse(due)| due.0)
    }

    /// Takes the next entry due at or before decode pass `pass`.
    pub(super) fn pop_due(&mut self, pass: u64) -> Option<Due> {
        if self.first_due() > pass {
            return None;
        }
        self.calendar.pop().map(|Reverse(due)| due)
    }

    /// All members are scheduled for `passes` decode passes more.
    pub(super) fn advance(&mut self, passes: u64) {
        self.members.grow_by(passes);
        self.scheduled += passes;
    }
}
