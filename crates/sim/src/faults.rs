//! When workers crash, and when their passes take longer: the instants at which something fails, in order.
//!
//! What a fault does to the workers is not known here. Random times come from the seed, the role, the worker and
//! the number of its start alone, so that nothing else in the run moves them.

use std::collections::BTreeMap;
use windtunnel_config::{CrashRate, Faults, Slow};
use windtunnel_engine::Nanos;
use windtunnel_report::Role;
use windtunnel_router::unit;

/// Something fails, or is well again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// A worker crashes, and is ready again after this time, if ever.
    Crash { worker: u32, restart: Option<Nanos> },
    /// A worker's passes take so many times as long from now on.
    Slow { worker: u32, factor: f64 },
}

/// The seed of a role's draws: workers of the same number in two roles fail independently of each other.
pub(crate) fn seed_of(role: Role, seed: u64) -> u64 {
    let number = match role {
        Role::Aggregated => 0,
        Role::Prefill => 1,
        Role::Decode => 2,
    };
    seed ^ (number << 62)
}

/// What of the workers of a role is to fail yet.
pub(crate) struct FaultPlan {
    rate: Option<CrashRate>,
    /// By instant and order of entry. Faults of one instant keep that order.
    due: BTreeMap<(Nanos, u64), Entry>,
    entered: u64,
    /// How often each worker has started, and so far is to crash by chance.
    starts: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    fault: Fault,
    /// Of a crash by chance: the start of the worker that it belongs to.
    start: Option<u64>,
}

impl FaultPlan {
    pub(crate) fn new(role: Role, faults: &Faults) -> FaultPlan {
        let rate = faults.crash_rate.map(|rate| CrashRate { seed: seed_of(role, rate.seed), ..rate });
        let mut plan = FaultPlan { rate, due: BTreeMap::new(), entered: 0, starts: Vec::new() };
        for crash in &faults.crashes {
            plan.enter(crash.at, Fault::Crash { worker: crash.worker, restart: crash.restart }, None);
        }
        for &Slow { worker, from, to, factor } in &faults.slow {
            plan.enter(from, Fault::Slow { worker, factor }, None);
            if to < Nanos::NEVER {
                plan.enter(to, Fault::Slow { worker, factor: 1.0 }, None);
            }
        }
        plan
    }

    fn enter(&mut self, at: Nanos, fault: Fault, start: Option<u64>) {
        self.due.insert((at, self.entered), Entry { fault, start });
        self.entered += 1;
    }

    /// A worker begins to serve: its next crash by chance is drawn.
    pub(crate) fn started(&mut self, worker: u32, now: Nanos) {
        let Some(rate) = self.rate else { return };
        let at = worker as usize;
        self.starts.resize(self.starts.len().max(at + 1), 0);
        self.starts[at] += 1;
        let start = self.starts[at];
        let drawn = unit(rate.seed, u64::from(worker), start);
        let hours = -libm::log(1.0 - drawn) / rate.per_worker_hour;
        // A saturating conversion: later than all time is never.
        let after = (hours * 3.6e12).round() as u64;
        let instant = Nanos(now.0.saturating_add(after));
        if instant.0 < windtunnel_engine::MAX_NANOS {
            self.enter(instant, Fault::Crash { worker, restart: Some(rate.restart) }, Some(start));
        }
    }

    /// A worker serves no more, for whatever reason: the crash that was drawn for it does not come.
    pub(crate) fn stopped(&mut self, worker: u32) {
        if let Some(start) = self.starts.get_mut(worker as usize) {
            // The entry belongs to another start than the one that comes next.
            *start += 1;
        }
    }

    /// When something fails next.
    pub(crate) fn next(&self) -> Nanos {
        self.due.first_key_value().map_or(Nanos::NEVER, |((instant, _), _)| *instant)
    }

    /// What fails by `now`, one after the other.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Fault> {
        while self.next() <= now {
            let (_, Entry { fault, start }) = self.due.pop_first()?;
            match (fault, start) {
                (Fault::Crash { worker, .. }, Some(start)) if self.starts[worker as usize] != start => {}
                _ => return Some(fault),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windtunnel_config::Crash;

    const NONE: Faults = Faults {
        max_retries: 0,
        crashes: Vec::new(),
        crash_rate: None,
        slow: Vec::new(),
        kv_event_loss: None,
    };

    /// At one instant in the order in which they were given: crashes, then what becomes slow.
    #[test]
    fn faults_come_in_order_of_time() {
        let crash = |worker, at| Crash { worker, at: Nanos(at), restart: None };
        let slow = Slow { worker: 0, from: Nanos(5), to: Nanos(9), factor: 2.0 };
        let faults = Faults { crashes: vec![crash(1, 5), crash(0, 7)], slow: vec![slow], ..NONE };
        let mut plan = FaultPlan::new(Role::Aggregated, &faults);
        assert_eq!((plan.next(), plan.take(Nanos(4))), (Nanos(5), None));
        let taken: Vec<Fault> = std::iter::from_fn(|| plan.take(Nanos(9))).collect();
        assert_eq!(
            taken,
            [
                Fault::Crash { worker: 1, restart: None },
                Fault::Slow { worker: 0, factor: 2.0 },
                Fault::Crash { worker: 0, restart: None },
                Fault::Slow { worker: 0, factor: 1.0 },
            ]
        );
        assert_eq!(plan.next(), Nanos::NEVER);
    }

    /// 20,000 draws at 2 an hour: half an hour on average, give or take five standard deviations, 0.5 · 5 / √20000. The
    /// part that comes within half an hour is 1 − 1/e.
    #[test]
    fn random_crashes_are_exponential() {
        let rate = CrashRate { per_worker_hour: 2.0, restart: Nanos(7), seed: 1 };
        let mut plan = FaultPlan::new(Role::Aggregated, &Faults { crash_rate: Some(rate), ..NONE });
        (0..20_000).for_each(|worker| plan.started(worker, Nanos::ZERO));
        let hours: Vec<f64> = plan.due.keys().map(|(at, _)| at.as_seconds() / 3600.0).collect();
        let mean = hours.iter().sum::<f64>() / 20_000.0;
        assert!((mean - 0.5).abs() < 0.0177, "{mean}");
        let soon = hours.iter().filter(|&&hours| hours < 0.5).count() as f64 / 20_000.0;
        assert!((soon - 0.632).abs() < 0.018, "{soon}");
    }

    /// Worker 3 of one role crashes at another time than worker 3 of the other.
    #[test]
    fn roles_have_draws_of_their_own() {
        let rate = CrashRate { per_worker_hour: 2.0, restart: Nanos(7), seed: 1 };
        let first = [Role::Aggregated, Role::Prefill, Role::Decode].map(|role| {
            let mut plan = FaultPlan::new(role, &Faults { crash_rate: Some(rate), ..NONE });
            plan.started(3, Nanos::ZERO);
            plan.next()
        });
        assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2], "{first:?}");
    }

    /// A worker that is gone does not crash; the one that comes after it has a draw of its own.
    #[test]
    fn who_is_gone_does_not_crash() {
        let rate = CrashRate { per_worker_hour: 1.0, restart: Nanos(7), seed: 1 };
        let mut plan = FaultPlan::new(Role::Aggregated, &Faults { crash_rate: Some(rate), ..NONE });
        plan.started(0, Nanos::ZERO);
        let first = plan.next();
        plan.stopped(0);
        assert_eq!(plan.take(first), None);
        plan.started(0, Nanos(1));
        assert_ne!(plan.next(), Nanos(first.0 + 1));
        assert!(plan.take(Nanos::NEVER).is_some());
    }
}
