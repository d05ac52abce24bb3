//! `planner`: how the number of workers changes.

use super::Findings;
use crate::document::{
    LoadPredictor as PredictorKey, Planner as PlannerKeys, PlannerPolicy as PolicyKey,
    PlannerTarget as TargetKey, RolePlanner, ScalingMetric as MetricKey,
};
use crate::experiment::{Deployment, Sla};
use crate::fleet::{DynamoPlanner, Hpa, LoadPredictor, PlannerPolicy, PlannerTarget, Scaling, ScalingMetric};
use crate::resolve::NO_CONTEXT_LIMIT;
use windtunnel_engine::Nanos;

/// AISimulate's.
const MAX_GPUS: u32 = 8;
/// Keys of separate prefill and decode workers.
const ROLE_KEYS: [&str; 4] = ["prefill_min_workers", "decode_min_workers", "prefill", "decode"];

/// How the number of workers that give the tokens changes, and that of prefill workers, where these are others.
type ScalingOf = (Option<Scaling>, Option<Scaling>);

/// Makes the settings of the planner, and fills in its defaults.
pub(super) fn scaling(
    keys: &mut PlannerKeys,
    deployment: &Deployment,
    prefill: Option<&Deployment>,
    sla: Option<Sla>,
    findings: &mut Findings,
) -> ScalingOf {
    foreign_keys(keys, prefill.is_some(), findings);
    match (keys.policy, prefill) {
        (PolicyKey::Disabled, _) => (None, None),
        (PolicyKey::Hpa, None) => {
            let mut all = keys.of_all();
            let scaling = hpa(&mut all, "planner", deployment, findings);
            keys.set_all(all);
            (scaling, None)
        }
        (PolicyKey::Hpa, Some(prefill)) => {
            if keys.prefill.is_none() && keys.decode.is_none() {
                let message =
                    "missing; planner.policy hpa needs it, or planner.decode, in engine.mode disaggregated";
                findings.problem("planner.prefill", message);
            }
            let of_prefill = keys.prefill.as_mut();
            let of_prefill = of_prefill.and_then(|keys| hpa(keys, "planner.prefill", prefill, findings));
            let of_decode = keys.decode.as_mut();
            let of_decode = of_decode.and_then(|keys| hpa(keys, "planner.decode", deployment, findings));
            if let Some(Scaling { planner: PlannerPolicy::Hpa(Hpa { metric, .. }), .. }) = &of_prefill
                && matches!(metric, ScalingMetric::Itl | ScalingMetric::OutputRate)
            {
                let path = "planner.prefill.metric";
                let got = findings.shown(path, "");
                findings.problem(path, format!("got {got}; prefill workers give no tokens to clients"));
            }
            (of_decode, of_prefill)
        }
        (PolicyKey::Enabled, None) => (of_all(keys, deployment, sla, findings), None),
        (PolicyKey::Enabled, Some(prefill)) => of_roles(keys, [prefill, deployment], sla, findings),
    }
}

/// Dynamo's planner for workers of both.
fn of_all(
    keys: &mut PlannerKeys,
    deployment: &Deployment,
    sla: Option<Sla>,
    findings: &mut Findings,
) -> Option<Scaling> {
    let least = *keys.min_workers.get_or_insert(1);
    let gpus = *keys.max_num_gpus.get_or_insert(MAX_GPUS);
    let most = gpus / deployment.gpus_per_worker;
    let planner = dynamo(keys, (sla, gpus), findings).map(PlannerPolicy::Dynamo);
    check_start(deployment, (least, most), ("planner.max_num_gpus", MAX_GPUS), findings).then_some(())?;
    Some(Scaling { planner: planner?, least, most })
}

/// The number of workers at the start lies within the bounds.
fn check_start(
    deployment: &Deployment,
    (least, most): (u32, u32),
    (path, default): (&str, u32),
    findings: &mut Findings,
) -> bool {
    let at_start = deployment.replicas.get();
    let within = (least..=most).contains(&at_start);
    if !within {
        let message = format!(
            "got {}; {at_start} workers are there at the start, and the planner may have {least} to {most}",
            findings.shown(path, default)
        );
        findings.problem(path, message);
    }
    within
}

/// Dynamo's planner for prefill and decode workers, which share its budget.
fn of_roles(
    keys: &mut PlannerKeys,
    roles: [&Deployment; 2],
    sla: Option<Sla>,
    findings: &mut Findings,
) -> ScalingOf {
    let fewest = *keys.min_workers.get_or_insert(1);
    let gpus = *keys.max_num_gpus.get_or_insert(MAX_GPUS);
    let least = [keys.prefill_min_workers, keys.decode_min_workers].map(|own| own.unwrap_or(fewest));
    let before = findings.problems.len();
    let planner = dynamo(keys, (sla, gpus), findings).map(PlannerPolicy::Dynamo);
    let [of_prefill, of_decode] = roles.map(|role| u64::from(role.gpus_per_worker));
    let [prefill, decode] = roles.map(|role| u64::from(role.replicas.get()));
    let there = prefill * of_prefill + decode * of_decode;
    if there > u64::from(gpus) {
        let got = findings.shown("planner.max_num_gpus", MAX_GPUS);
        let message = format!(
            "got {got}; the {prefill} prefill and {decode} decode workers that are there at the start have {there}"
        );
        findings.problem("planner.max_num_gpus", message);
    }
    for ((role, own), (least, deployment)) in
        [("prefill", keys.prefill_min_workers), ("decode", keys.decode_min_workers)]
            .into_iter()
            .zip(least.into_iter().zip(roles))
    {
        let at_start = deployment.replicas.get();
        if at_start < least {
            let key = if own.is_some() { format!("{role}_min_workers") } else { "min_workers".to_owned() };
            let message = format!("got {least}; {at_start} {role} workers are there at the start");
            findings.problem(&format!("planner.{key}"), message);
        }
    }
    if let Some(PlannerPolicy::Dynamo(DynamoPlanner { target, .. })) = &planner
        && !matches!(target, PlannerTarget::Sla { .. })
        && roles[0].context_length() >= NO_CONTEXT_LIMIT
    {
        let got = findings.shown("planner.target", "");
        let message = format!(
            "got {got}; with prefill and decode apart it measures the prompts that wait by engine.context_length: give \
             one (max: no limit is known)"
        );
        findings.problem("planner.target", message);
    }
    if findings.problems.len() > before {
        return (None, None);
    }
    let of = |own: usize, other: usize, planner| {
        let others = u64::from(least[other]) * u64::from(roles[other].gpus_per_worker);
        let most = u64::from(gpus).saturating_sub(others) / u64::from(roles[own].gpus_per_worker);
        // No more than the accelerators of the budget.
        Scaling { planner, least: least[own], most: most as u32 }
    };
    (planner.clone().map(|planner| of(1, 0, planner)), planner.map(|planner| of(0, 1, planner)))
}

/// Keys that the policy does not read.
fn foreign_keys(keys: &PlannerKeys, apart: bool, findings: &mut Findings) {
    use PolicyKey::{Enabled, Hpa};
    let name = |policy| match policy {
        PolicyKey::Disabled => "disabled",
        Enabled => "enabled",
        Hpa => "hpa",
    };
    let here = format!("planner.policy {}", name(keys.policy));
    let given: [(&str, bool, &[PolicyKey]); 25] = [
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
        ("prefill_min_workers", keys.prefill_min_workers.is_some(), &[Enabled]),
        ("decode_min_workers", keys.decode_min_workers.is_some(), &[Enabled]),
        ("prefill", keys.prefill.is_some(), &[Hpa]),
        ("decode", keys.decode.is_some(), &[Hpa]),
    ];
    for (key, given, owners) in given {
        let names: Vec<&str> = owners.iter().map(|&owner| name(owner)).collect();
        let owner = format!("planner.policy {}", names.join(", "));
        let path = format!("planner.{key}");
        if !given || !owners.contains(&keys.policy) {
            findings.foreign(&path, given, &owner, &here);
        } else if ROLE_KEYS.contains(&key) && !apart {
            findings
                .problem(&path, "given, but it belongs to engine.mode disaggregated, and here is aggregated");
        } else if keys.policy == Hpa && !ROLE_KEYS.contains(&key) && apart {
            let message = format!(
                "given, but prefill and decode have workers of their own here: give planner.prefill.{key}, \
                 planner.decode.{key}, or both"
            );
            findings.problem(&path, message);
        }
    }
}

pub(super) fn seconds(findings: &mut Findings, path: &str, seconds: f64) -> Nanos {
    findings.time(path, seconds * 1e3).unwrap_or(Nanos::ZERO)
}

fn hpa(
    keys: &mut RolePlanner,
    at: &str,
    deployment: &Deployment,
    findings: &mut Findings,
) -> Option<Scaling> {
    let path = |key: &str| format!("{at}.{key}");
    let least = *keys.min_workers.get_or_insert(1);
    let before = findings.problems.len();
    let settings = hpa_settings(keys, at, findings);
    let Some(most) = keys.max_workers else {
        findings.problem(&path("max_workers"), "missing; planner.policy hpa needs it");
        return None;
    };
    check_start(deployment, (least, most), (&path("max_workers"), most), findings);
    (findings.problems.len() == before).then_some(())?;
    Some(Scaling { planner: PlannerPolicy::Hpa(settings?), least, most })
}

fn hpa_settings(keys: &mut RolePlanner, at: &str, findings: &mut Findings) -> Option<Hpa> {
    let path = |key: &str| format!("{at}.{key}");
    let interval = *keys.interval_seconds.get_or_insert(15.0);
    let window = *keys.window_seconds.get_or_insert(60.0);
    let up = *keys.scale_up_stabilization_seconds.get_or_insert(0.0);
    let down = *keys.scale_down_stabilization_seconds.get_or_insert(300.0);
    let interval = seconds(findings, &path("interval_seconds"), interval);
    let window = seconds(findings, &path("window_seconds"), window);
    let up_stabilization = seconds(findings, &path("scale_up_stabilization_seconds"), up);
    let down_stabilization = seconds(findings, &path("scale_down_stabilization_seconds"), down);
    let tolerance = *keys.tolerance.get_or_insert(0.1);
    for (key, missing) in [("metric", keys.metric.is_none()), ("target_value", keys.target_value.is_none())] {
        if missing {
            findings.problem(&path(key), "missing; planner.policy hpa needs it");
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

fn dynamo(
    keys: &mut PlannerKeys,
    (sla, max_gpus): (Option<Sla>, u32),
    findings: &mut Findings,
) -> Option<DynamoPlanner> {
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
    Some(DynamoPlanner { target, throughput_interval, load_interval, sensitivity, predictor, max_gpus })
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
