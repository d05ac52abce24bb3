//! From what a run has collected to its report.

use crate::group::{Group, Lanes};
use windtunnel_config::{Deployment, Experiment, Semantics};
use windtunnel_engine::{Nanos, RankConfig};
use windtunnel_perf::Law;
use windtunnel_report::{
    Collector, CollectorOptions, FleetLog, PercentileMethod, Pool, Report, Role, RunEnd, Sla,
};

/// What the report of an experiment wants collected.
pub fn collector_options(experiment: &Experiment, capture: bool) -> CollectorOptions {
    let sla = experiment.sla.map(|sla| match sla.e2e {
        Some(bound) => Sla::E2e(bound),
        None => Sla::Tokens { ttft: sla.ttft, itl: sla.itl },
    });
    CollectorOptions { sla, capture }
}

/// What only the driver of a run knows, at its end.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// Requests that had not ended.
    pub unfinished: u64,
    /// When the run ended.
    pub end: Nanos,
    /// Prefills, and decodes, lay outside of what their timing was measured for.
    pub outside: [bool; 2],
    /// Where workers come and go: Σ of the times for which each was provisioned, in nanoseconds, and what happened.
    pub fleet: Option<(u128, FleetLog)>,
}

/// The report of a run, from what its rank groups collected.
pub fn report(
    experiment: &Experiment,
    collectors: impl IntoIterator<Item = Collector>,
    ending: Ending,
) -> Report {
    let Ending { unfinished, end, outside, fleet } = ending;
    let deployment = &experiment.deployment;
    let all = u128::from(deployment.replicas.get()) * u128::from(end.0);
    let (worker_time, fleet) = fleet.map_or((all, None), |(time, log)| (time, Some(log)));
    let run_end = RunEnd {
        end,
        unfinished,
        prefill: Pool::default(),
        decode: Pool { worker_time, gpus_per_worker: deployment.gpus_per_worker },
        percentiles: percentiles(deployment.semantics),
        price_per_gpu_hour: experiment.price_per_gpu_hour,
        fleet,
    };
    let mut report = Report::new(collectors, &run_end);
    tell_timing(&mut report, Role::Aggregated, deployment, outside);
    report
}

/// The same of a run on prefill and decode workers apart.
#[derive(Clone, Debug, Default)]
pub struct EndingApart {
    /// Requests that had not ended.
    pub unfinished: u64,
    /// When the run ended.
    pub end: Nanos,
    /// As in [`Ending`], of either role, prefill first.
    pub outside: [[bool; 2]; 2],
    /// As in [`Ending`].
    pub fleets: Option<[(u128, FleetLog); 2]>,
}

/// The report of a run on prefill and decode workers apart, from what the groups of the first ones collected, and then
/// those of the others.
pub fn report_apart(
    experiment: &Experiment,
    prefill: &Deployment,
    collectors: impl IntoIterator<Item = Collector>,
    ending: EndingApart,
) -> Report {
    let EndingApart { unfinished, end, outside, fleets } = ending;
    let decode = &experiment.deployment;
    let at_start = prefill.replicas.get() + decode.replicas.get();
    let all = |deployment: &Deployment| u128::from(deployment.replicas.get()) * u128::from(end.0);
    let (times, fleet) = match fleets {
        None => ([all(prefill), all(decode)], None),
        Some([(first, of_first), (second, of_second)]) => {
            ([first, second], Some(FleetLog::of_roles([of_first, of_second], at_start)))
        }
    };
    let pool = |deployment: &Deployment, worker_time| Pool {
        worker_time,
        gpus_per_worker: deployment.gpus_per_worker,
    };
    let run_end = RunEnd {
        end,
        unfinished,
        prefill: pool(prefill, times[0]),
        decode: pool(decode, times[1]),
        percentiles: percentiles(prefill.semantics),
        price_per_gpu_hour: experiment.price_per_gpu_hour,
        fleet,
    };
    let mut report = Report::new(collectors, &run_end);
    let roles = [(Role::Prefill, prefill), (Role::Decode, decode)];
    for ((role, deployment), outside) in roles.into_iter().zip(outside) {
        tell_timing(&mut report, role, deployment, outside);
    }
    if matches!(prefill.engine, RankConfig::Trtllm(_)) {
        report.notes.push(UNPROVEN.to_owned());
    }
    report
}

/// What the report says of hand-offs that no trace and no source stands behind.
const UNPROVEN: &str = "separate prefill and decode workers of TensorRT-LLM are an extension, and not proven against \
                        the engine";

/// Says where the pass times of a role come from, and whether its prefills, and decodes, lay outside of what they were
/// measured for.
pub(crate) fn tell_timing(report: &mut Report, role: Role, deployment: &Deployment, outside: [bool; 2]) {
    let [prefill, decode] = outside;
    let whose = match role {
        Role::Aggregated => String::new(),
        _ => format!("{}: ", role.as_str()),
    };
    for (passes, left) in [("prefills", prefill), ("decodes", decode)] {
        if left {
            report.notes.push(format!(
                "{whose}some {passes} lie outside of what timing was measured for, where its lines were extended"
            ));
        }
    }
    if let Law::Table(table) = deployment.timing.law()
        && let Some(about) = table.about()
    {
        report.notes.push(format!("{whose}pass times: {about}"));
    }
    if let Law::Calibrated(model) = deployment.timing.law() {
        report.notes.extend(model.notes().into_iter().map(|note| whose.clone() + &note));
        report.timing.push(model.provenance(role.as_str()));
    }
}

/// Whether prefills, and decodes, of any of these groups lay outside of what their timing was measured for.
pub(crate) fn outside_of_profile<L: Lanes>(groups: &[Group<L>]) -> [bool; 2] {
    groups.iter().map(Group::outside_of_profile).fold([false; 2], |[p, d], [q, e]| [p | q, d | e])
}

/// How percentiles are read.
pub(crate) fn percentiles(semantics: Semantics) -> PercentileMethod {
    match semantics {
        Semantics::Native => PercentileMethod::Linear,
        Semantics::Aisimulate013 => PercentileMethod::NearestRankRound,
    }
}
