//! The order of the waiting requests (managers/schedule_policy.py, `SchedulePolicy`).

use super::config::{Policy, Priority};
use super::rank::Rank;
use std::collections::HashSet;

/// With more waiting requests than this, prefixes are not matched (`WAITING_QUEUE_PREFIX_MATCH_MAX`).
const MOST_MATCHED: usize = 128;
/// Turns from one that touches the prefixes of waiting requests to the next
/// (`WAITING_PREFIX_REFRESH_INTERVAL`).
const REFRESH_INTERVAL: u64 = 32;
/// A request with no longer a cached prefix than this is looked at for others that begin alike
/// (`IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`), and
const CHECKED_BELOW: u32 = 32;
/// goes to the back if it shares that many tokens with one in front
/// (`IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD`).
const ALIKE: u32 = 32;

impl Rank {
    /// Sorts the waiting queue (`calc_priority`).
    pub(super) fn sort_waiting(&mut self) {
        let cache_aware = self.radix.enabled()
            && match self.config.schedule_policy {
                Policy::Lpm => self.waiting.len() <= MOST_MATCHED,
                Policy::DfsWeight => true,
                Policy::Fcfs | Policy::Lof | Policy::Random { .. } => false,
            };
        match self.config.schedule_policy {
            Policy::Lpm if cache_aware => {
                let behind = self.match_waiting();
                let mut waiting = std::mem::take(&mut self.waiting);
                waiting.make_contiguous().sort_by_key(|slot| {
                    let matched = i64::from(self.sequences[*slot as usize].matched);
                    if behind.contains(slot) { i64::MAX } else { -matched }
                });
                self.waiting = waiting;
            }
            Policy::DfsWeight if cache_aware => {
                self.match_waiting();
                let ends: Vec<_> =
                    self.waiting.iter().map(|&slot| self.sequences[slot as usize].last_node).collect();
                let order = self.radix.depth_first_by_weight(&ends);
                self.waiting = order.into_iter().map(|at| self.waiting[at]).collect();
            }
            Policy::Lof => self.sort_by_longest_output(),
            Policy::Random { .. } => self.shuffle.shuffle(self.waiting.make_contiguous()),
            Policy::Fcfs => self.sort_by_priority(),
            Policy::Lpm | Policy::DfsWeight => {}
        }
        if !cache_aware {
            self.touch_waiting();
        }
    }

    /// The sign that makes the more urgent priority the smaller number.
    pub(super) fn urgency_sign(&self) -> i64 {
        match self.config.priority {
            Some(Priority { low_values_first: true, .. }) => 1,
            _ => -1,
        }
    }

    fn sort_by_priority(&mut self) {
        if self.config.priority.is_some() {
            let sign = self.urgency_sign();
            let sequences = &self.sequences;
            self.waiting.make_contiguous().sort_by_key(|&slot| {
                let s = &sequences[slot as usize];
                (s.priority * sign, s.entered)
            });
        }
    }

    fn sort_by_longest_output(&mut self) {
        let sign = if self.config.priority.is_some() { self.urgency_sign() } else { 0 };
        let sequences = &self.sequences;
        self.waiting.make_contiguous().sort_by_key(|&slot| {
            let s = &sequences[slot as usize];
            (s.priority * sign, -i64::from(s.max_new))
        });
    }

    /// Matches every waiting request, and tells those that should wait for another one that begins alike
    /// (`_compute_prefix_matches`).
    fn match_waiting(&mut self) -> HashSet<u32> {
        let (mut beginnings, mut behind) = (HashSet::new(), HashSet::new());
        for at in 0..self.waiting.len() {
            let slot = self.waiting[at];
            self.match_prefix(slot, u32::MAX);
            let s = &self.sequences[slot as usize];
            let alike = s.known() >= ALIKE
                && s.prefix_len <= CHECKED_BELOW
                && !beginnings.insert(s.text.symbol(0, ALIKE));
            if alike {
                behind.insert(slot);
            }
        }
        behind
    }

    /// Now and then, makes the prefixes of the first waiting requests the ones used last, that of the head
    /// last of all (`_touch_waiting_prefixes`).
    fn touch_waiting(&mut self) {
        if self.waiting.is_empty() || !self.radix.enabled() {
            return;
        }
        let due = self.prefix_refreshes.is_multiple_of(REFRESH_INTERVAL);
        self.prefix_refreshes += 1;
        if due {
            for &slot in self.waiting.iter().take(MOST_MATCHED).rev() {
                let s = &self.sequences[slot as usize];
                self.radix.lookup(&s.text, s.known());
            }
        }
    }
}
