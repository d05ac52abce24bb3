//! When rank groups next do something, in order of time.
//!
//! A group moves on by itself, so an entry may no longer hold when its turn comes: it is dropped then, and another
//! entry says to when the group moved. Of one instant the first group comes first.

use crate::group::{Group, Lanes};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use windtunnel_engine::Nanos;

/// The groups that are to be looked at, by the instants at which they do something.
#[derive(Default)]
pub(crate) struct Agenda {
    entries: BinaryHeap<Reverse<(Nanos, usize)>>,
}

impl Agenda {
    /// Enters when `group` next does something, if it ever does.
    pub(crate) fn note<L: Lanes>(&mut self, groups: &[Group<L>], group: usize) {
        let instant = groups[group].next_instant();
        if instant < Nanos::NEVER {
            self.entries.push(Reverse((instant, group)));
        }
    }

    /// The groups from `first` on have other numbers: `by` more.
    pub(crate) fn renumber(&mut self, first: usize, by: usize) {
        let entries = std::mem::take(&mut self.entries).into_iter();
        self.entries = entries
            .map(|Reverse((instant, group))| {
                Reverse((instant, if group < first { group } else { group + by }))
            })
            .collect();
    }

    /// The group that does something next, the first of several, and when.
    pub(crate) fn next<L: Lanes>(&mut self, groups: &[Group<L>]) -> Option<(Nanos, usize)> {
        while let Some(&Reverse((instant, group))) = self.entries.peek() {
            if groups[group].next_instant() == instant {
                return Some((instant, group));
            }
            self.entries.pop();
        }
        None
    }

    /// When one of the groups other than `but` next does something, [`Nanos::NEVER`] if none does. The entries of
    /// `but` before it are taken out.
    pub(crate) fn next_but<L: Lanes>(&mut self, groups: &[Group<L>], but: usize) -> Nanos {
        loop {
            match self.next(groups) {
                None => return Nanos::NEVER,
                Some((_, group)) if group == but => {
                    self.entries.pop();
                }
                Some((instant, _)) => return instant,
            }
        }
    }

    /// Takes out the groups that do something up to `instant`, into `due`, where each then stands once, in order.
    pub(crate) fn take_due<L: Lanes>(&mut self, groups: &[Group<L>], instant: Nanos, due: &mut Vec<usize>) {
        while let Some((next, group)) = self.next(groups)
            && next <= instant
        {
            self.entries.pop();
            due.push(group);
        }
        // A group may have several entries for one instant.
        due.sort_unstable();
        due.dedup();
    }
}
