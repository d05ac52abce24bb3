//! `faults`: what fails.

use super::Findings;
use super::planner::seconds;
use crate::document::{Faults as FaultKeys, OnCrash, RoleFaults};
use crate::experiment::Deployment;
use crate::fleet::{Crash, CrashRate, Faults, KvEventLoss, Slow};
use windtunnel_engine::Nanos;

const MAX_RETRIES: u32 = 3;

/// The faults of the workers that give the tokens, and of prefill workers, where these are others.
type FaultsOf = (Option<Faults>, Option<Faults>);

/// Makes the faults, and fills in their defaults. Of each role there can be so many workers.
pub(super) fn faults(
    keys: &mut FaultKeys,
    (deployment, workers): (&Deployment, u32),
    prefill: Option<(&Deployment, u32)>,
    findings: &mut Findings,
) -> FaultsOf {
    if keys.is_none() {
        return (None, None);
    }
    foreign_faults(keys, prefill.is_some(), findings);
    let mut roles = [keys.prefill.as_ref(), keys.decode.as_ref()].into_iter().flatten();
    let crash = keys.of_all().crash() || roles.any(RoleFaults::crash);
    for (key, given) in [("on_crash", keys.on_crash.is_some()), ("max_retries", keys.max_retries.is_some())] {
        let owner = "faults.crashes and faults.crash_rate";
        findings.foreign(&format!("faults.{key}"), given && !crash, owner, "neither");
    }
    let max_retries = match keys.on_crash {
        _ if !crash => 0,
        Some(OnCrash::Fail) => {
            findings.foreign("faults.max_retries", keys.max_retries.is_some(), "on_crash retry", "fail");
            0
        }
        _ => *keys.max_retries.get_or_insert(MAX_RETRIES),
    };
    if crash {
        keys.on_crash.get_or_insert(OnCrash::Retry);
    }
    let mut of = |keys: &RoleFaults, path, workers| Some(role(keys, path, workers, max_retries, findings));
    match prefill {
        None => (of(&keys.of_all(), "faults", (deployment, workers)), None),
        Some(prefill) => {
            let none = RoleFaults::default();
            let decode = keys.decode.as_ref().unwrap_or(&none);
            let of_prefill = of(keys.prefill.as_ref().unwrap_or(&none), "faults.prefill", prefill);
            (of(decode, "faults.decode", (deployment, workers)), of_prefill)
        }
    }
}

/// Each mode has its faults, and no others.
fn foreign_faults(keys: &FaultKeys, apart: bool, findings: &mut Findings) {
    let all = [
        ("crashes", !keys.crashes.is_empty(), false),
        ("crash_rate", keys.crash_rate.is_some(), false),
        ("slow_workers", !keys.slow_workers.is_empty(), false),
        ("kv_event_loss", keys.kv_event_loss.is_some(), false),
        ("prefill", keys.prefill.is_some(), true),
        ("decode", keys.decode.is_some(), true),
    ];
    for (key, given, of_roles) in all {
        if given && of_roles != apart {
            let message = match apart {
                true => format!(
                    "given, but prefill and decode have workers of their own here: give faults.prefill.{key}, \
                     faults.decode.{key}, or both"
                ),
                false => {
                    "given, but it belongs to engine.mode disaggregated, and here is aggregated".to_owned()
                }
            };
            findings.problem(&format!("faults.{key}"), message);
        }
    }
}

/// Makes the faults of the workers of a role, whose keys stand at `at`.
fn role(
    keys: &RoleFaults,
    at: &str,
    (deployment, workers): (&Deployment, u32),
    max_retries: u32,
    findings: &mut Findings,
) -> Faults {
    let mut exists = |path: String, worker: u32, findings: &mut Findings| {
        if worker >= workers {
            let message = format!("got {worker}; there are at most {workers} workers, counted from 0");
            findings.problem(&path, message);
        }
    };
    let mut crashes = Vec::new();
    for (i, keys) in keys.crashes.iter().enumerate() {
        let path = |key: &str| format!("{at}.crashes[{i}].{key}");
        exists(path("worker"), keys.worker, findings);
        let restart = keys.restart_seconds.map(|after| seconds(findings, &path("restart_seconds"), after));
        let at = seconds(findings, &path("at_seconds"), keys.at_seconds);
        crashes.push(Crash { worker: keys.worker, at, restart });
    }
    crashes.sort_by_key(|crash| (crash.at, crash.worker));
    let slow = slow(keys, at, &mut exists, findings);
    if keys.kv_event_loss.is_some() && deployment.router.needs().cache.is_none() {
        let message = "given, but the router is told of no KV events; that of policy kv_router is, and of policy \
                       scorers with prefix_cache";
        findings.problem(&format!("{at}.kv_event_loss"), message);
    }
    let crash_rate = keys.crash_rate.map(|rate| CrashRate {
        per_worker_hour: rate.per_worker_hour,
        restart: seconds(findings, &format!("{at}.crash_rate.restart_seconds"), rate.restart_seconds),
        seed: rate.seed,
    });
    let kv_event_loss = keys.kv_event_loss.map(|loss| KvEventLoss { rate: loss.rate, seed: loss.seed });
    Faults { max_retries, crashes, crash_rate, slow, kv_event_loss }
}

fn slow(
    keys: &RoleFaults,
    at: &str,
    exists: &mut impl FnMut(String, u32, &mut Findings),
    findings: &mut Findings,
) -> Vec<Slow> {
    let mut slow: Vec<Slow> = Vec::new();
    for (i, keys) in keys.slow_workers.iter().enumerate() {
        let path = |key: &str| format!("{at}.slow_workers[{i}].{key}");
        exists(path("worker"), keys.worker, findings);
        let from = seconds(findings, &path("from_seconds"), keys.from_seconds);
        let to = match keys.to_seconds {
            Some(to) => seconds(findings, &path("to_seconds"), to),
            None => Nanos::NEVER,
        };
        if to <= from {
            let got = keys.to_seconds.unwrap_or_default();
            let message = format!("got {got}; it must be later than from_seconds, {}", keys.from_seconds);
            findings.problem(&path("to_seconds"), message);
        }
        let overlaps = |other: &&Slow| other.worker == keys.worker && other.from < to && from < other.to;
        if slow.iter().find(overlaps).is_some() {
            let message = format!("got {}; that worker is slow then already", keys.from_seconds);
            findings.problem(&path("from_seconds"), message);
        }
        slow.push(Slow { worker: keys.worker, from, to, factor: keys.factor });
    }
    slow
}
