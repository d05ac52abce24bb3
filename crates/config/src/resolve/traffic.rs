//! `traffic`: source, load and stop, which must fit each other.

use super::{Findings, existing_file};
use crate::document::{LoadType, SourceType, TraceFormat, Traffic};
use crate::experiment::{Pace, Workload};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use windtunnel_engine::Nanos;
use windtunnel_traffic::{Arrivals, Format, Synthetic, Times, TraceFile, WorkloadSource};

const SOURCE: &str = "traffic.source";
const LOAD: &str = "traffic.load";
const STOP: &str = "traffic.stop";

/// Makes the workload and fills in the defaults that depend on the types of source and load.
pub(super) fn workload(keys: &mut Traffic, folder: &Path, findings: &mut Findings) -> Option<Workload> {
    check_load(keys, findings);
    match keys.source.kind {
        SourceType::Synthetic => synthetic(keys, findings),
        SourceType::Trace => trace(keys, folder, findings),
    }
}

/// The keys of each load type, whatever the source.
fn check_load(keys: &mut Traffic, findings: &mut Findings) {
    let load = &mut keys.load;
    let here = format!("load.type {}", word(load.kind));
    let open = matches!(load.kind, LoadType::Poisson | LoadType::ConstantRate);
    let mut foreign = |key: &str, given: bool, belongs_to: &str| {
        findings.foreign(&format!("{LOAD}.{key}"), given, belongs_to, &here);
    };
    let closed = load.kind == LoadType::Concurrency;
    foreign("concurrency", load.concurrency.is_some() && !closed, "load.type concurrency");
    let rate = load.requests_per_second.is_some();
    foreign("requests_per_second", rate && !open, "load.type poisson and constant_rate");
    foreign("seed", load.seed.is_some() && load.kind != LoadType::Poisson, "load.type poisson");
    let timed = load.kind == LoadType::TraceTimestamps;
    foreign("speedup", load.speedup.is_some() && !timed, "load.type trace_timestamps");
    if open && load.requests_per_second.is_none() {
        let message = format!("missing; load.type {} needs a number above 0", word(load.kind));
        findings.problem(&format!("{LOAD}.requests_per_second"), message);
    }
    match load.kind {
        LoadType::Concurrency => load.concurrency = load.concurrency.or(Some(10)),
        LoadType::Poisson => load.seed = load.seed.or(Some(42)),
        LoadType::ConstantRate => {}
        LoadType::TraceTimestamps => load.speedup = load.speedup.or(Some(1.0)),
    }
}

fn synthetic(keys: &mut Traffic, findings: &mut Findings) -> Option<Workload> {
    let here = "source.type synthetic";
    let source = &mut keys.source;
    for (key, given) in [
        ("paths", source.paths.is_some()),
        ("format", source.format.is_some()),
        ("block_size", source.block_size.is_some()),
        ("limit", source.limit.is_some()),
    ] {
        findings.foreign(&format!("{SOURCE}.{key}"), given, "source.type trace", here);
    }
    let timed = keys.stop.max_virtual_time_seconds.is_some();
    findings.foreign(&format!("{STOP}.max_virtual_time_seconds"), timed, "source.type trace", here);
    if keys.load.kind == LoadType::TraceTimestamps {
        let message = "got \"trace_timestamps\"; with source.type synthetic allowed is concurrency, poisson or \
             constant_rate";
        findings.problem(&format!("{LOAD}.type"), message);
    }
    let input_tokens = *source.input_tokens.get_or_insert(1024);
    let output_tokens = *source.output_tokens.get_or_insert(128);
    let shortest_share = source.shortest_share.filter(|share| *share < 1.0);
    if shortest_share.is_none() && source.length_seed.is_some() {
        let got = findings.shown(&format!("{SOURCE}.length_seed"), "");
        let message = format!("got {got}; without a shortest_share below 1 no length is drawn");
        findings.problem(&format!("{SOURCE}.length_seed"), message);
    }
    let length_seed = source.length_seed.unwrap_or(42);
    if shortest_share.is_some() {
        source.length_seed = Some(length_seed);
    }
    let requests = requests(keys, findings)?;
    let rate = keys.load.requests_per_second;
    let (arrivals, pace) = match keys.load.kind {
        LoadType::Concurrency => (Arrivals::AtOnce, concurrency(keys)?),
        LoadType::Poisson => {
            let seed = keys.load.seed?;
            (Arrivals::Poisson { requests_per_second: rate?, seed }, Pace::Arrivals)
        }
        LoadType::ConstantRate => {
            check_last_arrival(requests, rate?, findings)?;
            (Arrivals::Constant { requests_per_second: rate? }, Pace::Arrivals)
        }
        LoadType::TraceTimestamps => return None,
    };
    let plan = Synthetic { input_tokens, output_tokens, shortest_share, length_seed, requests, arrivals };
    Some(Workload { source: WorkloadSource::Synthetic(plan), pace, max_virtual_time: None })
}

/// The last request must arrive within the longest run. (When the last of a Poisson process does is known
/// in the run only.)
fn check_last_arrival(requests: u64, rate: f64, findings: &mut Findings) -> Option<()> {
    if Nanos::from_ms(requests.saturating_sub(1) as f64 * 1000.0 / rate).is_some() {
        return Some(());
    }
    let path = format!("{LOAD}.requests_per_second");
    let got = findings.shown(&path, rate);
    let message = format!(
        "got {got}; the last of {requests} requests would arrive too late: a time must be below 292 years"
    );
    findings.problem(&path, message);
    None
}

/// The number of synthetic requests.
fn requests(keys: &mut Traffic, findings: &mut Findings) -> Option<u64> {
    let stop = &mut keys.stop;
    match (stop.requests, stop.requests_per_load_unit) {
        (Some(requests), None) => Some(requests),
        (None, Some(per_unit)) => {
            let unit = match keys.load.kind {
                LoadType::Concurrency => f64::from(keys.load.concurrency?),
                _ => keys.load.requests_per_second?,
            };
            let requests = (per_unit * unit).round_ties_even().max(1.0);
            // Beyond 2^53 the product is not exact, and no run gets there.
            if requests > (1u64 << 53) as f64 {
                let path = format!("{STOP}.requests_per_load_unit");
                let got = findings.shown(&path, per_unit);
                findings.problem(&path, format!("got {got}; times the load of {unit} it is above 2^53"));
                return None;
            }
            Some(requests as u64)
        }
        (Some(_), Some(_)) => {
            let path = format!("{STOP}.requests_per_load_unit");
            let got = findings.shown(&path, "");
            findings.problem(&path, format!("got {got}; allowed is it or stop.requests, not both"));
            None
        }
        (None, None) => {
            let message = "missing; source.type synthetic needs requests or requests_per_load_unit \
                 (traffic that is given does not take over the default's 100 requests)";
            findings.problem(&format!("{STOP}.requests"), message);
            None
        }
    }
}

fn trace(keys: &mut Traffic, folder: &Path, findings: &mut Findings) -> Option<Workload> {
    let here = "source.type trace";
    let source = &mut keys.source;
    for (path, given) in [
        (format!("{SOURCE}.input_tokens"), source.input_tokens.is_some()),
        (format!("{SOURCE}.output_tokens"), source.output_tokens.is_some()),
        (format!("{SOURCE}.shortest_share"), source.shortest_share.is_some()),
        (format!("{SOURCE}.length_seed"), source.length_seed.is_some()),
    ] {
        findings.foreign(&path, given, "source.type synthetic", here);
    }
    for (path, given) in [
        (format!("{STOP}.requests"), keys.stop.requests.is_some()),
        (format!("{STOP}.requests_per_load_unit"), keys.stop.requests_per_load_unit.is_some()),
    ] {
        let belongs_to = "source.type synthetic (source.limit cuts a trace short)";
        findings.foreign(&path, given, belongs_to, here);
    }
    if matches!(keys.load.kind, LoadType::Poisson | LoadType::ConstantRate) {
        let message = format!(
            "got \"{}\"; with source.type trace allowed is trace_timestamps or concurrency",
            word(keys.load.kind)
        );
        findings.problem(&format!("{LOAD}.type"), message);
    }
    let format = match *source.format.get_or_insert_default() {
        TraceFormat::Mooncake => Format::Mooncake { block_size: *source.block_size.get_or_insert(512) },
        TraceFormat::Requests => {
            let given = source.block_size.is_some();
            let here = "source.format requests";
            findings.foreign(&format!("{SOURCE}.block_size"), given, "source.format mooncake", here);
            Format::Requests
        }
    };
    let limit = source.limit;
    let path = trace_file(source.paths.as_deref(), folder, findings);
    let max_virtual_time = match keys.stop.max_virtual_time_seconds {
        None => None,
        Some(seconds) => {
            let path = format!("{STOP}.max_virtual_time_seconds");
            Some(findings.time(&path, seconds * 1e3)?)
        }
    };
    let (times, pace) = match keys.load.kind {
        LoadType::Concurrency => (Times::Ignored, concurrency(keys)?),
        _ => (Times::Recorded { speedup: keys.load.speedup? }, Pace::Arrivals),
    };
    let source = WorkloadSource::Trace(TraceFile { path: path?, format, times, limit });
    Some(Workload { source, pace, max_virtual_time })
}

/// The one file of `source.paths`, where it exists.
fn trace_file(paths: Option<&[String]>, folder: &Path, findings: &mut Findings) -> Option<PathBuf> {
    let at = format!("{SOURCE}.paths");
    let name = match paths {
        Some([name]) => name,
        Some(several) => {
            let message = format!("got {} paths; formats mooncake and requests have one", several.len());
            findings.problem(&at, message);
            return None;
        }
        None => {
            findings.problem(&at, "missing; source.type trace needs a list of one path");
            return None;
        }
    };
    existing_file(&at, name, folder, findings)
}

fn concurrency(keys: &Traffic) -> Option<Pace> {
    keys.load.concurrency.and_then(NonZeroU32::new).map(Pace::Concurrency)
}

/// A load type as the file spells it.
fn word(kind: LoadType) -> &'static str {
    match kind {
        LoadType::Concurrency => "concurrency",
        LoadType::Poisson => "poisson",
        LoadType::ConstantRate => "constant_rate",
        LoadType::TraceTimestamps => "trace_timestamps",
    }
}
