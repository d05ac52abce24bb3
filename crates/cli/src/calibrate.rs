//! `windtunnel calibrate`: the pass times of a measured engine, as the timing section of a configuration.

use crate::args::{Calibrate, FittedLaw};
use crate::compare::{Inputs, failed, read, table};
use crate::exit::Failure;
use crate::files::PartialFile;
use crate::models::write;
use crate::say::say;
use crate::signals::interrupt_flag;
use std::path::Path;
use windtunnel_config::{Experiment, TableFile};
use windtunnel_perf::calibrated::Constants;
use windtunnel_perf::{Law, Linear, Table};
use windtunnel_report::{columns, short};
use windtunnel_validate::calibrate::{
    Fit, FitError, LawKind, PassErrors, fit, fit_constants, fit_passes, read_passes,
};

/// Errors in percent, in requests that were not fitted, above which a fit is not to be relied on: the
/// runs of docs/accuracy.md stay below 4.
const FAR: f64 = 15.0;

const TIMING: &str = "engine.workers.aggregated.timing";

/// Runs the command.
pub fn run(arguments: &Calibrate) -> Result<(), Failure> {
    let out = match (arguments.law, &arguments.out) {
        (FittedLaw::Linear | FittedLaw::Default, Some(_)) => {
            return Err(Failure::Input("--out: is for --law table; what else is found is printed".into()));
        }
        (_, Some(path)) => Some(Out::new(path, arguments)?),
        (_, None) => None,
    };
    match (&arguments.passes, &arguments.input) {
        (Some(passes), _) => by_passes(passes, arguments.law, out),
        (None, Some(_)) => by_requests(arguments, out),
        (None, None) => Err(Failure::Input(
            "a configuration and --measured are required, or --passes; see windtunnel calibrate --help"
                .into(),
        )),
    }
}

/// The file of a table, begun before the work, so that a name that cannot be written is told at once.
struct Out<'a> {
    path: &'a Path,
    file: PartialFile,
}

impl<'a> Out<'a> {
    fn new(path: &'a Path, arguments: &Calibrate) -> Result<Out<'a>, Failure> {
        let input = arguments.input.as_ref();
        let read = [
            ("--passes", arguments.passes.as_deref()),
            ("the configuration", input.map(|input| input.config.as_path())),
            ("--measured", input.map(|input| input.measured.as_path())),
            ("--workload", input.and_then(|input| input.workload.as_deref())),
        ];
        Ok(Out { path, file: PartialFile::apart("--out", path, &read)? })
    }
}

fn by_requests(arguments: &Calibrate, out: Option<Out<'_>>) -> Result<(), Failure> {
    // invariant: the caller has looked
    let Some(input) = &arguments.input else { return Ok(()) };
    let Inputs { experiment, run, requests } = read(input)?;
    let all = run.requests.len();
    let first = match arguments.fit {
        Some(first) if first > all as u64 => {
            return Err(Failure::Input(format!("--fit: got {first}; the measured run has {all} requests")));
        }
        Some(first) => usize::try_from(first).unwrap_or(all),
        None => all.div_ceil(2),
    };
    let about = format!("fitted to the first {first} of {all} requests of {}", run.name);
    let told = |error: FitError| match error {
        FitError::Sim(error) => failed(error),
        other => Failure::input(other),
    };
    let interrupt = interrupt_flag()?;
    let (Fit { fitted, held_out, runs, .. }, timing) = match kind(arguments.law) {
        Some(kind) => {
            let fit = fit(&experiment, &run, &requests, kind, first, &interrupt).map_err(told)?;
            let timing = timing(&fit.law, &about, out)?;
            (fit, timing)
        }
        None => {
            let anew = |scale: f64| {
                let scale = format!("{TIMING}.communication_scale={scale}");
                let set: Vec<String> = input.set.iter().cloned().chain([scale]).collect();
                windtunnel_config::load(&input.config, &set)
            };
            let found =
                fit_constants(&experiment, &run, &requests, &anew, first, &interrupt).map_err(told)?;
            let section = constants_timing(&experiment, &found.constants)?;
            (found.fit, section)
        }
    };
    let mut shown = format!("{about}, in {runs} runs\n{}", table(&fitted));
    for metric in held_out.iter().flat_map(|held_out| &held_out.metrics) {
        if let Some(error) = metric.error_pct.filter(|error| error.abs() > FAR) {
            say(format_args!(
                "warning: {} of the requests that were not looked at is off by {error:+.0} %: the law, or the \
                 deployment, is not that of the measured engine",
                metric.name
            ));
        }
    }
    if let Some(held_out) = &held_out {
        shown.push_str(&format!(
            "\nthe other {}, which were not looked at\n{}",
            held_out.requests,
            table(held_out)
        ));
    }
    write(&format!("{}\n{timing}", commented(&shown)))
}

fn by_passes(path: &Path, law: FittedLaw, out: Option<Out<'_>>) -> Result<(), Failure> {
    let Some(kind) = kind(law) else {
        let message =
            "--law default: needs a configuration and --measured; passes alone have linear and table";
        return Err(Failure::Input(message.into()));
    };
    let passes = read_passes(path).map_err(Failure::input)?;
    let fit = fit_passes(&passes, kind);
    if fit.held_out.median_abs_pct > FAR {
        say(format_args!(
            "warning: half of the passes that were not fitted are off by more than {:.0} %: the law is not that of \
             the measured engine",
            fit.held_out.median_abs_pct
        ));
    }
    let about = format!("fitted to every other one of {} passes of {}", passes.len(), path.display());
    let timing = timing(&fit.law, &about, out)?;
    let row = |name: &str, errors: &PassErrors| {
        vec![
            name.to_owned(),
            errors.passes.to_string(),
            short(errors.median_abs_pct),
            short(errors.p90_abs_pct),
            format!("{:+.2}", errors.total_pct),
        ]
    };
    let header = ["Passes", "count", "median |error| %", "p90 |error| %", "sum of times, error %"];
    let shown = columns(&header, &[row("fitted", &fit.fitted), row("others", &fit.held_out)]);
    write(&format!("{}\n{timing}", commented(&format!("{about}\n{shown}"))))
}

/// The law that is fitted; none for the constants of the configuration's own.
fn kind(law: FittedLaw) -> Option<LawKind> {
    match law {
        FittedLaw::Linear => Some(LawKind::Linear),
        FittedLaw::Table => Some(LawKind::Table),
        FittedLaw::Default => None,
    }
}

/// The section of the configuration with the constants that were found. They are those of the measured engine at its own
/// speed, so what makes it faster is left out.
fn constants_timing(experiment: &Experiment, found: &Constants) -> Result<String, Failure> {
    let mut section = experiment.effective.pointer("/engine/workers/aggregated/timing").cloned();
    let Some(keys) = section.as_mut().and_then(|section| section.as_object_mut()) else {
        return Err(Failure::Run("the configuration in effect has no timing section".into()));
    };
    let Constants { pass_us, sequence_us, gpu_scale, communication_scale } = *found;
    let values = [
        ("pass_us", pass_us),
        ("sequence_us", sequence_us),
        ("gpu_scale", gpu_scale),
        ("communication_scale", communication_scale),
    ];
    for (key, value) in values {
        keys.insert(key.into(), value.into());
    }
    let lines: Vec<String> = keys
        .iter()
        .filter(|(key, value)| !key.contains("speedup") && !value.is_null())
        .map(|(key, value)| format!("  {key}: {value}\n"))
        .collect();
    Ok(format!("timing:\n{}", lines.concat()))
}

/// What is printed is YAML, whatever stands around it.
fn commented(text: &str) -> String {
    text.lines().map(|line| format!("# {line}").trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The timing section of a law. A table goes into its file.
fn timing(law: &Law, about: &str, out: Option<Out<'_>>) -> Result<String, Failure> {
    match (law, out) {
        (Law::Linear(linear), _) => Ok(linear_timing(linear)),
        (Law::Table(table), Some(out)) => {
            let section = format!("timing: {{type: table, path: {}}}\n", out.path.display());
            write_table(table, about, out)?;
            Ok(section)
        }
        // invariant: clap wants --out with a table, and nothing else is fitted
        _ => Err(Failure::Input("--out: is needed for a table".into())),
    }
}

fn linear_timing(linear: &Linear) -> String {
    let mut text = "timing:\n  type: linear\n  linear:\n".to_owned();
    for (key, value) in [
        ("base_ms", linear.base_ms),
        ("per_new_token_ms", linear.per_new_token_ms),
        ("per_new_times_context_ms", linear.per_new_times_context_ms),
        ("per_sequence_ms", linear.per_sequence_ms),
        ("per_context_token_ms", linear.per_context_token_ms),
    ] {
        text.push_str(&format!("    {key}: {:?}\n", rounded(value)));
    }
    text
}

fn write_table(table: &Table, about: &str, out: Out<'_>) -> Result<(), Failure> {
    let (tokens, pass_ms) = table.points();
    let [per_new_times_context_ms, per_sequence_ms, per_context_token_ms] = table.slopes().map(rounded);
    let content = TableFile {
        about: Some(about.into()),
        tokens: tokens.to_vec(),
        pass_ms: pass_ms.iter().copied().map(rounded).collect(),
        per_new_times_context_ms,
        per_sequence_ms,
        per_context_token_ms,
    };
    let text = serde_json::to_string_pretty(&content).map_err(Failure::run)?;
    out.file.fill(&(text + "\n"))?;
    say(format_args!("wrote {}", out.path.display()));
    Ok(())
}

/// Six digits, more than any fit knows. What is as good as nothing is nothing.
fn rounded(value: f64) -> f64 {
    let rounded = format!("{value:.5e}").parse().unwrap_or(value);
    if rounded < 1e-10 { 0.0 } else { rounded }
}
