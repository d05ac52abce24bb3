//! `windtunnel predict`: one configuration, one run, one report.

use crate::args::{Format, Predict};
use crate::exit::Failure;
use crate::files::{PartialFile, is_same_file};
use crate::process::peak_memory_bytes;
use crate::progress::ProgressLine;
use crate::say::say;
use crate::signals::interrupt_flag;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use windtunnel_config::{Experiment, Semantics};
use windtunnel_engine::Nanos;
use windtunnel_live::LiveError;
use windtunnel_live::online::{self, OnlineOptions, Replayed};
use windtunnel_report::{FileName, OutputDir, Prediction, Report, ReportError, RunFile};
use windtunnel_sim::{Options, SimError, TelemetryOptions};
use windtunnel_traffic::WorkloadSource;

/// What a reader of figures of TensorRT-LLM should know.
const UNPROVEN: &str = "TensorRT-LLM's scheduler is modelled after its source and not proven by traces of it";

/// Shortest virtual time between two samples: below it a second of virtual time is millions of lines.
const SHORTEST_INTERVAL: Nanos = Nanos(1_000);

/// Runs the command.
pub fn run(arguments: &Predict) -> Result<(), Failure> {
    let config = config_path(arguments)?;
    let experiment = load(config, arguments)?;
    let interval = telemetry_interval(arguments)?;
    let output = match &arguments.output_dir {
        Some(path) => Some(OutputDir::prepare(path, arguments.overwrite).map_err(Failure::input)?),
        None => None,
    };
    let reserved = reserved(config, &experiment, arguments.output_dir.as_deref())?;
    let mut events = side_file("--events", arguments.events.as_deref(), &reserved)?;
    let mut telemetry = side_file("--telemetry", arguments.telemetry.as_deref(), &reserved)?;
    if let (Some(events), Some(telemetry)) = (&events, &telemetry)
        && events.is(telemetry)
    {
        return Err(Failure::Input("--telemetry: is the same file as that of --events".into()));
    }

    let started = Instant::now();
    let (mut report, threads) = match arguments.online {
        Some(rate) => (online(&experiment, rate, arguments.capture_per_request)?, 1),
        None => offline(&experiment, arguments, interval, &mut events, &mut telemetry)?,
    };
    let wall_time_ms = started.elapsed().as_secs_f64() * 1e3;

    for file in [events, telemetry].into_iter().flatten() {
        file.finish().map_err(|failure| match failure {
            Failure::ClosedPipe => unread(arguments, &"closed by its reader"),
            other => other,
        })?;
    }
    if experiment.deployment.engine.engine().0 == "trtllm" {
        report.notes.insert(0, UNPROVEN.to_owned());
    }
    report.capacity = crate::capacity::rows(&experiment.deployment)?;
    if let Some(budget) = &experiment.deployment.capacity {
        report.notes.extend(budget.notes.iter().cloned());
    }
    publish(arguments, &experiment, &report, output, (threads, wall_time_ms))
}

/// The run in virtual time, and the threads that it had.
fn offline(
    experiment: &Experiment,
    arguments: &Predict,
    interval: Nanos,
    events: &mut Option<PartialFile>,
    telemetry: &mut Option<PartialFile>,
) -> Result<(Report, u32), Failure> {
    let progress = ProgressLine::new();
    let mut show = |p| progress.show(p);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let allowed = arguments.threads.unwrap_or(cores);
    let threads =
        windtunnel_sim::worker_threads(experiment, events.is_some() || telemetry.is_some(), allowed);
    let options = Options {
        threads,
        stepper: arguments.stepper.into(),
        capture: arguments.capture_per_request,
        events: events.as_mut().map(|file| Box::new(file) as Box<dyn Write>),
        telemetry: telemetry.as_mut().map(|file| TelemetryOptions { interval, out: Box::new(file) }),
        progress: Some(&mut show),
        interrupt: interrupt_flag()?,
    };
    let done = windtunnel_sim::run(experiment, options);
    progress.clear();
    let report = done.map_err(|error| match error {
        SimError::Interrupted => Failure::Interrupted,
        SimError::Traffic(e) => Failure::input(e),
        SimError::Engine(e) => Failure::input(e),
        SimError::EventBlocks { .. } => Failure::input(error),
        SimError::Events(ref cause) | SimError::Telemetry(ref cause)
            if cause.kind() == ErrorKind::BrokenPipe =>
        {
            unread(arguments, &error)
        }
        other => Failure::run(other),
    })?;
    Ok((report, threads))
}

/// The reader of a log has left: no fault of the run, unless that also had files to write.
fn unread(arguments: &Predict, log: &impl Display) -> Failure {
    match &arguments.output_dir {
        Some(folder) => Failure::Run(format!("{log}; nothing was written into {}", folder.display())),
        None => Failure::ClosedPipe,
    }
}

/// The run against live workers.
fn online(experiment: &Experiment, rate: f64, capture: bool) -> Result<Report, Failure> {
    if !(rate > 0.0 && rate <= 1e9) {
        return Err(Failure::Input(format!("--online: got {rate}, allowed is a number above 0, up to 1e9")));
    }
    let options = OnlineOptions {
        collector: windtunnel_sim::collector_options(experiment, capture),
        rate,
        interrupt: interrupt_flag()?,
    };
    let replayed = online::replay(experiment, &options).map_err(|error| match error {
        LiveError::Interrupted => Failure::Interrupted,
        LiveError::Traffic(_) | LiveError::Engine(_) | LiveError::Settings(_) => Failure::input(error),
        other => Failure::run(other),
    })?;
    let Replayed { collectors, end, outside, prefill_outside } = replayed;
    if let Some(prefill) = &experiment.prefill {
        let outside = [prefill_outside, outside];
        return Ok(windtunnel_sim::report_apart(
            experiment,
            &prefill.deployment,
            collectors,
            windtunnel_sim::EndingApart { end, outside, ..Default::default() },
        ));
    }
    Ok(windtunnel_sim::report(
        experiment,
        collectors,
        windtunnel_sim::Ending { end, outside, ..Default::default() },
    ))
}

fn config_path(arguments: &Predict) -> Result<&Path, Failure> {
    // invariant: clap requires exactly one of the two
    let path = arguments.config.as_deref().or(arguments.file.as_deref());
    path.ok_or_else(|| Failure::Input("a configuration file is required".into()))
}

fn load(path: &Path, arguments: &Predict) -> Result<Experiment, Failure> {
    let mut overrides = arguments.set.clone();
    let experiment = windtunnel_config::load(path, &overrides).map_err(Failure::input)?;
    let Some(limit) = arguments.limit else { return Ok(experiment) };
    if let WorkloadSource::Synthetic(_) = experiment.workload.source {
        return Err(Failure::Input(
            "--limit: is for traces; traffic.stop.requests bounds a synthetic workload".into(),
        ));
    }
    overrides.push(format!("traffic.source.limit={limit}"));
    windtunnel_config::load(path, &overrides).map_err(Failure::input)
}

/// A file that no option may write, and what it is.
type Reserved = (&'static str, PathBuf);

/// What the run reads and what it writes into its folder. The latter may not be among the former.
fn reserved(config: &Path, experiment: &Experiment, folder: Option<&Path>) -> Result<Vec<Reserved>, Failure> {
    let mut inputs = vec![("the configuration", config.to_owned())];
    if let WorkloadSource::Trace(trace) = &experiment.workload.source {
        inputs.push(("the trace", trace.path.clone()));
    }
    let ours: Vec<Reserved> = FileName::ALL
        .into_iter()
        .filter_map(|name| Some(("a file of the output folder", folder?.join(name.as_str()))))
        .collect();
    for (_, path) in &ours {
        if let Some((what, _)) = inputs.iter().find(|(_, input)| is_same_file(path, input)) {
            return Err(Failure::Input(format!("--output-dir: {} is {what}", path.display())));
        }
    }
    Ok(inputs.into_iter().chain(ours).collect())
}

/// Begins the file of an option.
fn side_file(
    option: &str,
    path: Option<&Path>,
    reserved: &[Reserved],
) -> Result<Option<PartialFile>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let file = PartialFile::create(path)?;
    match reserved.iter().find(|(_, other)| file.replaces(other)) {
        Some((what, _)) => Err(Failure::Input(format!("{option}: {} is {what}", path.display()))),
        None => Ok(Some(file)),
    }
}

fn telemetry_interval(arguments: &Predict) -> Result<Nanos, Failure> {
    let ms = arguments.telemetry_interval_ms;
    Nanos::from_ms(ms).filter(|&interval| interval >= SHORTEST_INTERVAL).ok_or_else(|| {
        let shown = if ms.abs() < 1e15 { ms.to_string() } else { format!("{ms:e}") };
        Failure::Input(format!(
            "--telemetry-interval-ms: {shown} must be from 0.001 (a microsecond) to below 292 years"
        ))
    })
}

fn publish(
    arguments: &Predict,
    experiment: &Experiment,
    report: &Report,
    output: Option<OutputDir>,
    (threads, wall_time_ms): (u32, f64),
) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let (engine, engine_version) = experiment.deployment.engine.engine();
    let versions = BTreeMap::from([
        ("windtunnel".to_owned(), version.clone()),
        (engine.to_owned(), engine_version.to_owned()),
    ]);
    let semantics = match experiment.deployment.semantics {
        Semantics::Native => "native",
        Semantics::Aisimulate013 => "aisimulate_0_13",
    };
    let prediction = Prediction::new(report, &versions, semantics, &experiment.effective);
    let count = |name| report.summary.get(name).as_f64().unwrap_or(0.0) as u64;
    let run = RunFile {
        version,
        threads,
        wall_time_ms,
        processed_tokens: count("total_input_tokens") + count("total_output_tokens"),
        processed_output_tokens: count("total_output_tokens"),
        peak_memory_bytes: peak_memory_bytes(),
    };
    let mut written = Vec::new();
    if let Some(mut folder) = output {
        let failed = |e: ReportError| Failure::run(e);
        folder.write_json(FileName::Prediction, &prediction).map_err(failed)?;
        folder.write_json(FileName::Run, &run).map_err(failed)?;
        if report.has_requests() {
            folder.write(FileName::Requests, |file| report.write_requests(file)).map_err(failed)?;
        }
        written = folder.commit().map_err(failed)?;
    }
    let text = match arguments.format {
        Format::Json => serde_json::to_string_pretty(&prediction).map_err(Failure::run)?,
        Format::Table => windtunnel_report::table(report, io::stdout().is_terminal()),
    };
    let text = format!("{}\n", text.trim_end());
    windtunnel_report::print(&mut io::stdout().lock(), &text).map_err(|error| match error {
        ReportError::ClosedPipe => Failure::ClosedPipe,
        other => Failure::run(other),
    })?;
    if arguments.format == Format::Table {
        for path in written {
            say(format_args!("wrote {}", path.display()));
        }
        say(format_args!("simulated in {:.2} s", wall_time_ms / 1e3));
    }
    Ok(())
}
