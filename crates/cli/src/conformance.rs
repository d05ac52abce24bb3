//! `windtunnel conformance`: our scheduler's trace of a scenario, and the comparison with real ones.

use crate::args::ConformanceAction;
use crate::exit::Failure;
use crate::files::PartialFile;
use crate::say::say;
use flate2::{Compression, GzBuilder};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use windtunnel_sim::Stepper;
use windtunnel_validate::conformance::{
    ConformanceError, Scenario, ScenarioResult, check_golden, find_goldens, replay,
};

/// Runs one of the conformance commands.
pub fn run(action: &ConformanceAction) -> Result<(), Failure> {
    match action {
        ConformanceAction::Run { config, requests, engine, out, stepper } => {
            let scenario = Scenario::read(config, requests, engine.map(Into::into));
            write_trace(&scenario.map_err(Failure::input)?, out.as_deref(), (*stepper).into())
        }
        ConformanceAction::Check { goldens, json, stepper } => check(goldens, *json, (*stepper).into()),
    }
}

fn write_trace(scenario: &Scenario, out: Option<&Path>, stepper: Stepper) -> Result<(), Failure> {
    match out {
        None => {
            let mut out = io::BufWriter::new(io::stdout().lock());
            write_lines(scenario, stepper, &mut out)?;
            out.flush().map_err(Failure::output)
        }
        Some(path) => {
            let read: [(&str, Option<&Path>); 2] =
                [("--config", Some(&scenario.config_file)), ("--requests", Some(&scenario.requests_file))];
            let mut file = PartialFile::apart("--out", path, &read)?;
            if path.extension().is_some_and(|extension| extension == "gz") {
                // Without a time in it, the same trace is the same bytes.
                let mut packed = GzBuilder::new().mtime(0).write(&mut file, Compression::default());
                write_lines(scenario, stepper, &mut packed)?;
                packed.finish().map_err(|e| Failure::run(format!("{}: {e}", path.display())))?;
            } else {
                write_lines(scenario, stepper, &mut file)?;
            }
            file.finish()
        }
    }
}

fn write_lines(scenario: &Scenario, stepper: Stepper, out: &mut impl Write) -> Result<(), Failure> {
    // The replay speaks of its own errors; those of the destination are kept aside.
    let mut broken = None;
    let replayed = replay(scenario, stepper, |line| {
        let written = serde_json::to_writer(&mut *out, &line)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"));
        written.map_err(|cause| {
            let source = cause.kind().into();
            broken = Some(cause);
            ConformanceError::Io { path: PathBuf::new(), source }
        })
    });
    match (replayed, broken) {
        (_, Some(cause)) => Err(Failure::output(cause)),
        (Err(e), None) => Err(Failure::input(e)),
        (Ok(()), None) => Ok(()),
    }
}

/// A golden that could not be checked.
#[derive(Debug, Serialize)]
struct CheckError {
    golden: PathBuf,
    reason: String,
}

fn check(goldens: &[PathBuf], as_json: bool, stepper: Stepper) -> Result<(), Failure> {
    let goldens = find_goldens(goldens).map_err(Failure::input)?;
    let (mut results, mut errors) = (Vec::with_capacity(goldens.len()), Vec::new());
    for golden in goldens {
        match check_golden(&golden, stepper) {
            Ok(result) => results.push(result),
            Err(error) => errors.push(CheckError { reason: error.to_string(), golden }),
        }
    }
    let mut out = io::stdout().lock();
    let printed = if as_json {
        print_json(&mut out, &results, &errors)
    } else {
        results
            .iter()
            .try_for_each(|result| print_difference(&mut out, result))
            // The errors are the whole answer where nothing was compared.
            .and_then(
                |()| if results.is_empty() { Ok(()) } else { print_counts(&mut out, &results, &errors) },
            )
    };
    printed.map_err(Failure::output)?;
    for CheckError { golden, reason } in &errors {
        let golden = golden.display().to_string();
        if reason.starts_with(&golden) {
            say(format_args!("error: {reason}"));
        } else {
            say(format_args!("error: {golden}: {reason}"));
        }
    }
    match (errors.is_empty(), results.iter().all(ScenarioResult::is_equal)) {
        (false, _) => Err(Failure::Errors),
        (true, false) => Err(Failure::Differences),
        (true, true) => Ok(()),
    }
}

fn steps(results: &[ScenarioResult]) -> (u64, u64) {
    (results.iter().map(|r| r.steps).sum(), results.iter().map(|r| r.differing).sum())
}

fn print_json(out: &mut impl Write, results: &[ScenarioResult], errors: &[CheckError]) -> io::Result<()> {
    let (steps, differing) = steps(results);
    let answer = json!({
        "scenarios": results.len(),
        "steps": steps,
        "differing": differing,
        "results": results,
        "errors": errors,
    });
    serde_json::to_writer_pretty(&mut *out, &answer)?;
    writeln!(out)
}

fn print_counts(out: &mut impl Write, results: &[ScenarioResult], errors: &[CheckError]) -> io::Result<()> {
    let (steps, differing) = steps(results);
    write!(out, "{}, {steps} steps, {differing} differing", counted(results.len() as u64, "scenario"))?;
    let otherwise = results.iter().filter(|r| !r.is_equal() && r.differing == 0).count();
    if otherwise > 0 {
        write!(out, ", {} with another difference", counted(otherwise as u64, "scenario"))?;
    }
    if !errors.is_empty() {
        write!(out, ", {}", counted(errors.len() as u64, "error"))?;
    }
    writeln!(out)
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn print_difference(out: &mut impl Write, result: &ScenarioResult) -> io::Result<()> {
    let Some(first) = &result.first else { return Ok(()) };
    let mut facts = Vec::new();
    if result.differing > 0 {
        let mut fact = format!("{} of {} steps differ", result.differing, result.steps);
        if let Some(step) = first.step {
            fact.push_str(&format!(", first step {step}"));
        }
        facts.push(fact);
    }
    if result.missing_lines > 0 {
        facts.push(format!("lacks {} of ours", counted(result.missing_lines, "line")));
    }
    if result.extra_lines > 0 {
        facts.push(format!("has {} that ours lacks", counted(result.extra_lines, "line")));
    }
    if result.summary_differs {
        facts.push("the summary differs".into());
    }
    let line = first.line.map(|line| format!(":{line}")).unwrap_or_default();
    writeln!(out, "{}{line}: {}", result.golden.display(), facts.join("; "))?;
    writeln!(out, "  key    {}", first.key)?;
    writeln!(out, "  ours   {}", first.ours)?;
    writeln!(out, "  theirs {}", first.theirs)
}
