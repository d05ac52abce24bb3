//! Requests that a router holds back while every rank is busy with prompts, and whose turn it is then.
//!
//! After dynamo-kv-router 1.6.1 (scheduling/policy_queue.rs, one class of requests).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use windtunnel_engine::Nanos;

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePolicy {
    /// Who came first, a priority of p counting as p seconds earlier.
    #[default]
    Fcfs,
    /// Who came last, a priority of p counting as p seconds later.
    Lcfs,
    /// Whose (1 + priority) / uncached prompt tokens is largest.
    Wspt,
}

impl QueuePolicy {
    /// Its name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            QueuePolicy::Fcfs => "fcfs",
            QueuePolicy::Lcfs => "lcfs",
            QueuePolicy::Wspt => "wspt",
        }
    }

    /// The larger, the sooner. `uncached` are the prompt tokens that the rank with most of it has not cached.
    fn score(self, came: Nanos, priority: Option<i32>, uncached: u32) -> f64 {
        let jump = f64::from(priority.unwrap_or(0).max(0));
        let came = came.as_ms() / 1000.0;
        match self {
            QueuePolicy::Fcfs => jump - came,
            QueuePolicy::Lcfs => jump + came,
            QueuePolicy::Wspt => (1.0 + jump) / f64::from(uncached.max(1)),
        }
    }
}

/// When requests are held back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSettings {
    /// A rank is busy when its uncomputed prompt tokens are more than this part of
    /// [`max_batched_tokens`](Self::max_batched_tokens).
    pub threshold: f64,
    /// Token budget of a pass.
    pub max_batched_tokens: u64,
    /// Who goes first.
    pub policy: QueuePolicy,
}

impl QueueSettings {
    /// A rank with so many uncomputed prompt tokens gets nothing more to do.
    pub(crate) fn is_busy(&self, prefill_tokens: u64) -> bool {
        prefill_tokens as f64 > self.threshold * self.max_batched_tokens as f64
    }
}

struct Entry<T> {
    score: f64,
    ordinal: u64,
    what: T,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.ordinal.cmp(&self.ordinal))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

/// Those who wait. Among equals the one that was entered first goes first.
pub(crate) struct Queue<T> {
    policy: QueuePolicy,
    entries: BinaryHeap<Entry<T>>,
    next: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new(policy: QueuePolicy) -> Queue<T> {
        Queue { policy, entries: BinaryHeap::new(), next: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn push(&mut self, what: T, came: Nanos, priority: Option<i32>, uncached: u32) {
        let score = self.policy.score(came, priority, uncached);
        self.entries.push(Entry { score, ordinal: self.next, what });
        self.next += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.entries.pop().map(|entry| entry.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn order(policy: QueuePolicy, entries: &[(u64, i32, u32)]) -> Vec<usize> {
        let mut queue = Queue::new(policy);
        for (i, &(second, priority, uncached)) in entries.iter().enumerate() {
            queue.push(i, Nanos(second * S), Some(priority), uncached);
        }
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn the_first_the_last_or_the_shortest_goes_first() {
        let entries = [(1, 0, 500), (2, 0, 100), (3, 0, 900), (3, 0, 100)];
        assert_eq!(order(QueuePolicy::Fcfs, &entries), [0, 1, 2, 3]);
        assert_eq!(order(QueuePolicy::Lcfs, &entries), [2, 3, 1, 0]);
        assert_eq!(order(QueuePolicy::Wspt, &entries), [1, 3, 0, 2]);
    }

    /// A priority is a head start of as many seconds, or a weight; a negative one is none.
    #[test]
    fn priorities_jump() {
        let entries = [(5, 0, 500), (10, 4, 500), (10, 6, 500), (3, -9, 500)];
        assert_eq!(order(QueuePolicy::Fcfs, &entries), [3, 2, 0, 1]);
        assert_eq!(order(QueuePolicy::Lcfs, &entries), [2, 1, 0, 3]);
        // 1/100 against 3/250.
        assert_eq!(order(QueuePolicy::Wspt, &[(0, 0, 100), (0, 2, 250)]), [1, 0]);
        assert_eq!(order(QueuePolicy::Wspt, &[(0, 0, 0), (0, 0, 1)]), [0, 1]);
    }

    /// Exactly the threshold is not busy; nothing to do never is, so that a queue always drains.
    #[test]
    fn busy_is_more_than_the_threshold() {
        let settings = QueueSettings { threshold: 0.5, max_batched_tokens: 8192, policy: QueuePolicy::Fcfs };
        assert!(!settings.is_busy(4096) && settings.is_busy(4097));
        assert!(!QueueSettings { threshold: 0.0, ..settings }.is_busy(0));
    }
}
