//! The rule of the Kubernetes Horizontal Pod Autoscaler: as many workers as bring a measure to its target.
//!
//! After kubernetes pkg/controller/podautoscaler (replica_calculator.go, horizontal.go): what is measured per worker
//! is summed and divided by the target; a latency scales the number of ready workers; a measure near its target
//! changes nothing; and of the recommendations of a stabilization window the most cautious one holds.

use super::{Plan, Planner, Snapshot, Totals};
use std::collections::VecDeque;
use windtunnel_config::{Hpa, ScalingMetric};
use windtunnel_engine::Nanos;

pub(super) struct HpaRule {
    settings: Hpa,
    least: u32,
    most: u32,
    next: Nanos,
    /// Totals at the last looks, the oldest first, as many as the window has.
    looks: VecDeque<(Nanos, Totals)>,
    /// Recommendations of the window for more workers of which no later one is lower, and of that for fewer of which no
    /// later one is higher: the first is what all agree on.
    for_more: VecDeque<(Nanos, u32)>,
    for_fewer: VecDeque<(Nanos, u32)>,
}

/// What a measure says: its value for a worker, and how many workers would bring it to its target.
struct Measured {
    value: f64,
    wanted: f64,
    /// Workers that it counts, at least those that are ready.
    current: u32,
}

impl HpaRule {
    pub(super) fn new(settings: Hpa, least: u32, most: u32) -> HpaRule {
        let looks = VecDeque::from([(Nanos::ZERO, Totals::default())]);
        HpaRule {
            next: settings.interval,
            settings,
            least,
            most,
            looks,
            for_more: VecDeque::new(),
            for_fewer: VecDeque::new(),
        }
    }

    fn measure(&mut self, snapshot: &Snapshot) -> Option<Measured> {
        let (since, window) = match self.looks.front() {
            Some(&(since, ref totals)) => (since, snapshot.totals.since(totals)),
            None => (Nanos::ZERO, snapshot.totals),
        };
        self.looks.push_back((snapshot.now, snapshot.totals));
        if self.looks.len() as u64 > self.settings.window {
            self.looks.pop_front();
        }
        let ready = snapshot.workers.ready;
        // Of workers that are not there nothing is known but who waits for them.
        let known = matches!(
            self.settings.metric,
            ScalingMetric::Waiting | ScalingMetric::Requests | ScalingMetric::RequestRate
        );
        if ready == 0 && !known {
            return None;
        }
        let held = snapshot.held as f64;
        let sum = |of: fn(&super::RankLoad) -> u64| snapshot.ranks.iter().map(of).sum::<u64>() as f64;
        let seconds = snapshot.now.since(since).as_seconds();
        let target = self.settings.target;
        // What is measured per worker: those that are not ready count, with nothing.
        let per_worker = |sum: f64| {
            let current = snapshot.workers.wanted().max(1);
            Measured { value: sum / f64::from(current), wanted: sum / target, current }
        };
        // What is one for all: it is what the ready workers make of it.
        let of_all =
            |value: f64| Measured { value, wanted: value / target * f64::from(ready), current: ready };
        Some(match self.settings.metric {
            ScalingMetric::Waiting => per_worker(sum(|rank| rank.waiting) + held),
            ScalingMetric::Running => per_worker(sum(|rank| rank.running)),
            ScalingMetric::Requests => per_worker(sum(|rank| rank.running + rank.waiting) + held),
            ScalingMetric::RequestRate => per_worker(window.arrivals as f64 / seconds),
            ScalingMetric::OutputRate => per_worker((window.first_tokens + window.gaps) as f64 / seconds),
            ScalingMetric::KvUsage => {
                let usable = sum(|rank| rank.usable_blocks);
                // Of one worker, so that the sum over workers is what there is to spread.
                per_worker(sum(|rank| rank.used_blocks) / usable * f64::from(ready))
            }
            ScalingMetric::Ttft => of_all(window.mean_ttft_ms()?),
            ScalingMetric::Itl => of_all(window.mean_itl_ms()?),
        })
    }

    /// The recommendation that all looks of the stabilization windows agree on.
    fn stabilized(&mut self, now: Nanos, wanted: u32, current: u32) -> u32 {
        let Hpa { up_stabilization, down_stabilization, .. } = self.settings;
        while self.for_more.pop_back_if(|(_, other)| *other >= wanted).is_some() {}
        while self.for_fewer.pop_back_if(|(_, other)| *other <= wanted).is_some() {}
        let agreed = |all: &mut VecDeque<(Nanos, u32)>, window: Nanos| {
            all.push_back((now, wanted));
            while all.pop_front_if(|(at, _)| now.since(*at) > window).is_some() {}
            all.front().map_or(wanted, |&(_, agreed)| agreed)
        };
        let up = agreed(&mut self.for_more, up_stabilization);
        let down = agreed(&mut self.for_fewer, down_stabilization);
        current.max(up).min(down)
    }
}

impl Planner for HpaRule {
    fn next_tick(&self) -> Nanos {
        self.next
    }

    fn tick(&mut self, snapshot: &Snapshot) -> Option<Plan> {
        self.next = snapshot.now + self.settings.interval;
        let current = snapshot.workers.wanted();
        let Some(measured) = self.measure(snapshot) else {
            // Nothing is known: that is no reason for another number, and none against one.
            return None;
        };
        let ratio = measured.wanted / f64::from(measured.current);
        let wanted = if (ratio - 1.0).abs() <= self.settings.tolerance {
            current
        } else {
            // A saturating conversion: what is larger than all workers is bounded next.
            measured.wanted.ceil() as u32
        };
        let wanted = wanted.clamp(self.least, self.most);
        let workers = self.stabilized(snapshot.now, wanted, current);
        let name = match self.settings.metric {
            ScalingMetric::Waiting => "waiting",
            ScalingMetric::Running => "running",
            ScalingMetric::Requests => "requests",
            ScalingMetric::KvUsage => "kv_usage",
            ScalingMetric::Ttft => "ttft_ms",
            ScalingMetric::Itl => "itl_ms",
            ScalingMetric::RequestRate => "request_rate",
            ScalingMetric::OutputRate => "output_rate",
        };
        let (value, target) = (windtunnel_report::short(measured.value), self.settings.target);
        Some(Plan { workers, reason: format!("{name} {value}, target {target}") })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Counts, RankLoad};
    use super::*;

    const S: u64 = 1_000_000_000;

    fn rule(metric: ScalingMetric, target: f64) -> HpaRule {
        let settings = Hpa {
            metric,
            target,
            tolerance: 0.1,
            interval: Nanos(15 * S),
            window: 2,
            up_stabilization: Nanos::ZERO,
            down_stabilization: Nanos(60 * S),
        };
        HpaRule::new(settings, 1, 10)
    }

    /// Ready workers with so many waiting requests, at a second.
    fn at(second: u64, waiting: &[u64], starting: u32) -> Snapshot {
        let ranks = waiting.iter().map(|&waiting| RankLoad { waiting, ..RankLoad::default() }).collect();
        let workers = Counts { ready: waiting.len() as u32, starting, draining: 0 };
        Snapshot { now: Nanos(second * S), workers, ranks, ..Snapshot::default() }
    }

    fn workers(rule: &mut HpaRule, snapshot: &Snapshot) -> u32 {
        rule.tick(snapshot).unwrap().workers
    }

    /// desired = ⌈Σ / target⌉: 9 + 4 waiting requests at 4 a worker make 4 workers.
    #[test]
    fn as_many_workers_as_bring_the_measure_to_its_target() {
        let mut rule = rule(ScalingMetric::Waiting, 4.0);
        assert_eq!(workers(&mut rule, &at(15, &[9, 4], 0)), 4);
        // The two that are starting count with nothing: 13 / 4 again.
        assert_eq!(workers(&mut rule, &at(30, &[9, 4], 2)), 4);
        assert_eq!(workers(&mut rule, &at(45, &[9, 9, 1], 1)), 5);
        assert_eq!(workers(&mut rule, &at(60, &[100, 100], 0)), 10, "no more than the most");
    }

    #[test]
    fn near_its_target_a_measure_changes_nothing() {
        let mut rule = rule(ScalingMetric::Waiting, 10.0);
        assert_eq!(workers(&mut rule, &at(15, &[11, 10], 0)), 2);
        assert_eq!(workers(&mut rule, &at(30, &[12, 11], 0)), 3, "1.15 times the target");
    }

    /// The most cautious recommendation of the last 60 s holds for fewer workers; for more there is no wait.
    #[test]
    fn fewer_workers_only_after_the_stabilization_window() {
        let mut rule = rule(ScalingMetric::Waiting, 4.0);
        assert_eq!(workers(&mut rule, &at(0, &[8, 8, 0, 0], 0)), 4);
        for second in [15, 30, 45, 60] {
            assert_eq!(workers(&mut rule, &at(second, &[1, 1, 1, 1], 0)), 4, "{second}");
        }
        assert_eq!(workers(&mut rule, &at(75, &[1, 1, 1, 1], 0)), 1);
    }

    /// A mean TTFT of twice the target doubles the ready workers; the window holds the last two looks. Without a first
    /// token nothing is known.
    #[test]
    fn a_latency_scales_the_ready_workers() {
        let mut rule = rule(ScalingMetric::Ttft, 100.0);
        let with = |second, first_tokens, ttft_ms: u128| Snapshot {
            totals: Totals { first_tokens, ttft: ttft_ms * 1_000_000, ..Totals::default() },
            ..at(second, &[0, 0], 0)
        };
        assert!(rule.tick(&with(15, 0, 0)).is_none());
        // 10 first tokens of 200 ms.
        assert_eq!(workers(&mut rule, &with(30, 10, 2000)), 4);
        // 30 more of 100 ms: a mean of 125.
        assert_eq!(workers(&mut rule, &with(45, 40, 5000)), 3);
        // 10 more: the first ten are out of the window, 100 ms.
        assert_eq!(workers(&mut rule, &with(60, 50, 6000)), 2);
    }
}
