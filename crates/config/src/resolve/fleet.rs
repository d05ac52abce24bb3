//! `planner` and `faults`: how the number of workers changes, and what fails.

use super::Findings;
use crate::document::{
    Faults as FaultKeys, LoadPredictor as PredictorKey, OnCrash, Planner as PlannerKeys,
    PlannerPolicy as PolicyKey, PlannerTarget as TargetKey, RoleFaults, ScalingMetric as MetricKey,
};
use crate::experiment::{Deployment, Sla};
use crate::fleet::{
    Crash, CrashRate, DynamoPlanner, Faults, Hpa, KvEventLoss, LoadPredictor, PlannerPolicy, PlannerTarget,
    Scaling, ScalingMetric, Slow,
};
use windtunnel_engine::Nanos;

/// AISimulate's, and those of the Horizontal Pod Autoscaler.
const MAX_GPUS: u32 = 8;
const MAX_RETRIES: u32 = 3;

/// Makes the settings of the planner, and fills in its defaults. `apart`: prefill and decode have workers of their own.
pub(super) fn scaling(
    keys: &mut PlannerKeys,
    deployment: &Deployment,
    sla: Option<Sla>,
    apart: bool,
    findings: &mut Findings,
) -> Option<Scaling> {
    foreign_keys(keys, findings);
    if keys.is_off() {
        return None;
    }
    if apart {
        let message = "given, but the number of separate prefill and decode workers cannot change yet; that of \
                       workers.aggregated can";
        findings.problem("planner", message);
        return None;
    }
    let least = *keys.min_workers.get_or_insert(1);
    let before = findings.problems.len();
    let (planner, most, bound) = match keys.policy {
        PolicyKey::Disabled => return None,
        PolicyKey::Hpa => (hpa(keys, findings).map(PlannerPolicy::Hpa), keys.max_workers, "max_workers"),
        PolicyKey::Enabled => {
            let gpus = *keys.max_num_gpus.get_or_insert(MAX_GPUS);
            let most = gpus / deployment.gpus_per_worker;
            (dynamo(keys, sla, findings).map(PlannerPolicy::Dynamo), Some(most), "max_num_gpus")
        }
    };
    let Some(most) = most else {
        findings.problem("planner.max_workers", "missing; planner.policy hpa needs it");
        return None;
    };
    let at_start = deployment.replicas.get();
    if !(least..=most).contains(&at_start) {
        let message = format!(
            "got {}; {at_start} workers are there at the start, and the planner may have {least} to {most}",
            findings.shown(&format!("planner.{bound}"), if bound == "max_workers" { most } else { MAX_GPUS })
        );
        findings.problem(&format!("planner.{bound}"), message);
    }
    (findings.problems.len() == before).then_some(())?;
    Some(Scaling { planner: planner?, least, most })
}

/// Keys that the policy does not read.
fn foreign_keys(keys: &PlannerKeys, findings: &mut Findings) {
    use PolicyKey::{Enabled, Hpa};
    let name = |policy| match policy {
        PolicyKey::Disabled => "disabled",
        Enabled => "enabled",
        Hpa => "hpa",
    };
    let here = format!("planner.policy {}", name(keys.policy));
    let given: [(&str, bool, &[PolicyKey]); 22] = [
        ("metric", keys.metric.is_some(), &[Hpa]),
        ("target_value", keys.target_value.is_some(), &[Hpa]),
        ("tolerance", keys.tolerance.is_some(), &[Hpa]),
        ("interval_seconds", keys.interval_seconds.is_some(), &[Hpa]),
        ("window_seconds", keys.window_seconds.is_some(), &[Hpa]),
        ("scale_up_stabilization_seconds", keys.scale_up_stabilization_seconds.is_some(), &[Hpa]),
        ("scale_down_stabilization_seconds", keys.scale_down_stabilization_seconds.is_some(), &[Hpa]),
        ("max_workers", keys.max_workers.is_some(), &[Hpa]),
        ("min_workers", keys.min_workers.is_some(), &[Hpa, Enabled]),
        ("target", keys.target.is_some(), &[Enabled]),
        ("enable_throughput_scaling", keys.enable_throughput_scaling.is_some(), &[Enabled]),
        ("enable_load_scaling", keys.enable_load_scaling.is_some(), &[Enabled]),
        (
            "throughput_adjustment_interval_seconds",
            keys.throughput_adjustment_interval_seconds.is_some(),
            &[Enabled],
        ),
        ("load_adjustment_interval_seconds", keys.load_adjustment_interval_seconds.is_some(), &[Enabled]),
        ("load_scaling_down_sensitivity", keys.load_scaling_down_sensitivity.is_some(), &[Enabled]),
        ("load_predictor", keys.load_predictor.is_some(), &[Enabled]),
        ("load_predictor_log1p", keys.load_predictor_log1p.is_some(), &[Enabled]),
        ("kalman_q_level", keys.kalman_q_level.is_some(), &[Enabled]),
        ("kalman_q_trend", keys.kalman_q_trend.is_some(), &[Enabled]),
        ("kalman_r", keys.kalman_r.is_some(), &[Enabled]),
        ("max_num_gpus", keys.max_num_gpus.is_some(), &[Enabled]),
        // What only AISimulate's regression reads is refused elsewhere.
        ("policy", false, &[]),
    ];
    for (key, given, owners) in given {
        let names: Vec<&str> = owners.iter().map(|&owner| name(owner)).collect();
        let owner = format!("planner.policy {}", names.join(", "));
        findings.foreign(&format!("planner.{key}"), given && !owners.contains(&keys.policy), &owner, &here);
    }
}

fn seconds(findings: &mut Findings, path: &str, seconds: f64) -> Nanos {
    findings.time(path, seconds * 1e3).unwrap_or(Nanos::ZERO)
}

fn hpa(keys: &mut PlannerKeys, findings: &mut Findings) -> Option<Hpa> {
    let interval = *keys.interval_seconds.get_or_insert(15.0);
    let window = *keys.window_seconds.get_or_insert(60.0);
    let up = *keys.scale_up_stabilization_seconds.get_or_insert(0.0);
    let down = *keys.scale_down_stabilization_seconds.get_or_insert(300.0);
    let interval = seconds(findings, "planner.interval_seconds", interval);
    let window = seconds(findings, "planner.window_seconds", window);
    let up_stabilization = seconds(findings, "planner.scale_up_stabilization_seconds", up);
    let down_stabilization = seconds(findings, "planner.scale_down_stabilization_seconds", down);
    let tolerance = *keys.tolerance.get_or_insert(0.1);
    for (key, missing) in [("metric", keys.metric.is_none()), ("target_value", keys.target_value.is_none())] {
        if missing {
            findings.problem(&format!("planner.{key}"), "missing; planner.policy hpa needs it");
        }
    }
    let metric = match keys.metric? {
        MetricKey::Waiting => ScalingMetric::Waiting,
        MetricKey::Running => ScalingMetric::Running,
        MetricKey::Requests => ScalingMetric::Requests,
        MetricKey::KvUsage => ScalingMetric::KvUsage,
        MetricKey::TtftMs => ScalingMetric::Ttft,
        MetricKey::ItlMs => ScalingMetric::Itl,
        MetricKey::RequestRate => ScalingMetric::RequestRate,
        MetricKey::OutputRate => ScalingMetric::OutputRate,
    };
    let window = window.0.div_ceil(interval.0.max(1)).max(1);
    let target = keys.target_value?;
    Some(Hpa { metric, target, tolerance, interval, window, up_stabilization, down_stabilization })
}

fn dynamo(keys: &mut PlannerKeys, sla: Option<Sla>, findings: &mut Findings) -> Option<DynamoPlanner> {
    let throughput = *keys.enable_throughput_scaling.get_or_insert(true);
    let load = *keys.enable_load_scaling.get_or_insert(false);
    let sensitivity = *keys.load_scaling_down_sensitivity.get_or_insert(80.0) / 100.0;
    let plan = *keys.throughput_adjustment_interval_seconds.get_or_insert(180.0);
    let look = *keys.load_adjustment_interval_seconds.get_or_insert(5.0);
    let throughput_interval =
        throughput.then(|| seconds(findings, "planner.throughput_adjustment_interval_seconds", plan));
    let load_interval = load.then(|| seconds(findings, "planner.load_adjustment_interval_seconds", look));
    if !throughput && !load {
        let message =
            "got false, and planner.enable_load_scaling is false, too; at least one of them must be true";
        findings.problem("planner.enable_throughput_scaling", message);
    }
    if throughput && load && look >= plan {
        let message = format!(
            "got {look}; it must be shorter than planner.throughput_adjustment_interval_seconds, {plan}, where both \
             kinds of scaling are on"
        );
        findings.problem("planner.load_adjustment_interval_seconds", message);
    }
    if throughput && keys.load_predictor.is_none() {
        let message = "missing; AISimulate's default, arima, is not supported yet; constant and kalman are";
        findings.problem("planner.load_predictor", message);
    }
    let Some(target) = keys.target else {
        findings.problem("planner.target", "missing; planner.policy enabled needs it");
        return None;
    };
    if throughput && target != TargetKey::Sla {
        let got = findings.shown("planner.enable_throughput_scaling", "true");
        let message = format!("got {got}; throughput scaling needs planner.target sla");
        findings.problem("planner.enable_throughput_scaling", message);
    }
    let target = match target {
        TargetKey::Throughput => PlannerTarget::Throughput,
        TargetKey::Latency => PlannerTarget::Latency,
        TargetKey::Sla => {
            let Some(Sla { ttft: Some(ttft), itl: Some(itl), .. }) = sla else {
                let message = "got \"sla\"; it needs evaluation.sla.ttft_ms and evaluation.sla.itl_ms";
                findings.problem("planner.target", message);
                return None;
            };
            PlannerTarget::Sla { ttft, itl }
        }
    };
    let predictor = predictor(keys, findings);
    Some(DynamoPlanner { target, throughput_interval, load_interval, sensitivity, predictor })
}

/// How demand is foretold, with the predictor's own settings filled in.
fn predictor(keys: &mut PlannerKeys, findings: &mut Findings) -> LoadPredictor {
    if keys.load_predictor == Some(PredictorKey::Kalman) {
        return LoadPredictor::Kalman {
            level: *keys.kalman_q_level.get_or_insert(1.0),
            trend: *keys.kalman_q_trend.get_or_insert(0.1),
            measured: *keys.kalman_r.get_or_insert(10.0),
            log1p: *keys.load_predictor_log1p.get_or_insert(false),
        };
    }
    let here = if keys.load_predictor.is_some() { "constant" } else { "not given" };
    let given = [
        ("load_predictor_log1p", keys.load_predictor_log1p == Some(true)),
        ("kalman_q_level", keys.kalman_q_level.is_some_and(|q| q != 1.0)),
        ("kalman_q_trend", keys.kalman_q_trend.is_some_and(|q| q != 0.1)),
        ("kalman_r", keys.kalman_r.is_some_and(|r| r != 10.0)),
    ];
    for (key, given) in given {
        findings.foreign(&format!("planner.{key}"), given, "planner.load_predictor kalman", here);
    }
    LoadPredictor::Constant
}

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
