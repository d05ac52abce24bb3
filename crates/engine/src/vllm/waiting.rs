//! The waiting queue (vllm/v1/core/sched/request_queue.py): first come first served, or by priority.

use super::config::Policy;
use crate::nanos::Nanos;
use std::collections::{BTreeSet, VecDeque};

/// Order under the priority policy: priority, arrival, id.
pub(super) type Rank = (i32, Nanos, u64);

/// Slots of waiting requests.
#[derive(Clone, Debug)]
pub(super) enum Waiting {
    /// In order of arrival; preempted requests in front.
    Fcfs(VecDeque<u32>),
    /// Sorted.
    Priority(BTreeSet<(Rank, u32)>),
}

impl Waiting {
    pub(super) fn new(policy: Policy) -> Waiting {
        match policy {
            Policy::Fcfs => Waiting::Fcfs(VecDeque::new()),
            Policy::Priority => Waiting::Priority(BTreeSet::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Waiting::Fcfs(queue) => queue.len(),
            Waiting::Priority(set) => set.len(),
        }
    }

    pub(super) fn first(&self) -> Option<u32> {
        match self {
            Waiting::Fcfs(queue) => queue.front().copied(),
            Waiting::Priority(set) => set.first().map(|&(_, slot)| slot),
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<u32> {
        match self {
            Waiting::Fcfs(queue) => queue.pop_front(),
            Waiting::Priority(set) => set.pop_first().map(|(_, slot)| slot),
        }
    }

    pub(super) fn push_last(&mut self, slot: u32, rank: Rank) {
        match self {
            Waiting::Fcfs(queue) => queue.push_back(slot),
            Waiting::Priority(set) => {
                set.insert((rank, slot));
            }
        }
    }

    /// In front of all others; by priority there is no such place.
    pub(super) fn push_first(&mut self, slot: u32, rank: Rank) {
        match self {
            Waiting::Fcfs(queue) => queue.push_front(slot),
            Waiting::Priority(set) => {
                set.insert((rank, slot));
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32, rank: Rank) {
        match self {
            Waiting::Fcfs(queue) => {
                if let Some(at) = queue.iter().position(|&s| s == slot) {
                    queue.remove(at);
                }
            }
            Waiting::Priority(set) => {
                set.remove(&(rank, slot));
            }
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Waiting::Fcfs(queue) => Box::new(queue.iter().copied()),
            Waiting::Priority(set) => Box::new(set.iter().map(|&(_, slot)| slot)),
        }
    }
}
