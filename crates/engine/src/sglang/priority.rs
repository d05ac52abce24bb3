//! Priority preemption: running requests that make room for a more urgent one
//! (managers/schedule_policy.py `preempt_to_schedule`).

use super::prefill::Adder;
use super::rank::Rank;
use crate::pass::Slot;

impl Rank {
    /// Preempts running requests that are less urgent than `slot` by more than the threshold, the least
    /// urgent and newest first, until the one that waits would fit. False if that is not enough.
    pub(super) fn make_room(&mut self, adder: &mut Adder, slot: u32) -> bool {
        let threshold = self.config.priority.and_then(|p| p.preemption_threshold);
        let Some(threshold) = threshold else { return false };
        let sign = self.urgency_sign();
        let mut order = self.running.clone();
        order.sort_by_key(|&running| {
            let s = &self.sequences[running as usize];
            (-s.priority * sign, std::cmp::Reverse(s.entered))
        });
        let s = &self.sequences[slot as usize];
        // Both lengths are those of the last time it was looked at.
        let extend = i64::from(s.fill_len) - i64::from(s.prefix_len);
        let outputs = i64::from(s.max_new.min(self.config.clip_max_new_tokens));
        let priority = s.priority;
        let mut missing = (extend + outputs) as f64 - self.total_left(adder);
        let mut victims = Vec::new();
        for running in order {
            let difference = (self.sequences[running as usize].priority - priority) * sign;
            if difference <= i64::from(threshold) {
                break;
            }
            victims.push(running);
            missing -= self.reserved_outputs(running);
            if missing <= 0.0 {
                break;
            }
        }
        if victims.is_empty() || missing > 0.0 {
            return false;
        }
        let mut remaining = self.running.len();
        for running in self.running.clone() {
            if victims.contains(&running) {
                adder.total_offset -= self.reserved_outputs(running);
                remaining -= 1;
                self.leave_running(running);
                self.retract(running, remaining);
                self.scheduled.preempted.push(Slot(running));
                self.stats.preemptions += 1;
                // The engine keeps the victims of one request in a set without order; here it is that of
                // the batch.
                adder.preempted.push(running);
            }
        }
        true
    }
}
