//! `windtunnel conformance`: our scheduler's trace of a scenario, and the comparison with real ones.

use crate::args::ConformanceAction;
use crate::exit::Failure;
use crate::files::PartialFile;
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
        ConformanceAction::Run { config, requests, out, stepper } => {
            write_trace(config, requests, out.as_deref(), (*stepper).into())
        }
        ConformanceAction::Check { goldens, json, stepper } => check(goldens, *json, (*stepper).into()),
    }
}

fn write_trace(config: &Path, requests: &Path, out: Option<&Path>, stepper: Stepper) -> Result<(), Failure> {
    let scenario = Scenario::read(config, requests).map_err(Failure::input)?;
    match out {
        None => {
            let mut out = io::BufWriter::new(io::stdout().lock());
            write_lines(&scenario, stepper, &mut out)?;
            out.flush().map_err(Failure::output)
        }
        Some(path) => {
            let mut file = PartialFile::create(path)?;
            write_lines(&scenario, stepper, &mut file)?;
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
            broken = Some(cause);
            ConformanceError::Unsupported { scenario: scenario.name(), reason: "output failed".into() }
        })
    });
    match (replayed, broken) {
        (_, Some(cause)) => Err(Failure::output(cause)),
        (Err(e), None) => Err(Failure::input(e)),
        (Ok(()), None) => Ok(()),
    }
}

fn check(goldens: &[PathBuf], as_json: bool, stepper: Stepper) -> Result<(), Failure> {
    let goldens = find_goldens(goldens).map_err(Failure::input)?;
    let mut results = Vec::with_capacity(goldens.len());
    for golden in &goldens {
        results.push(check_golden(golden, stepper).map_err(Failure::input)?);
    }
    let steps: u64 = results.iter().map(|r| r.steps).sum();
    let differing: u64 = results.iter().map(|r| r.differing).sum();
    let mut out = io::stdout().lock();
    let printed = if as_json {
        let summary = json!({
            "scenarios": results.len(), "steps": steps, "differing": differing, "results": results,
        });
        serde_json::to_writer_pretty(&mut out, &summary).map_err(io::Error::from)
    } else {
        results.iter().try_for_each(|result| print_difference(&mut out, result)).and_then(|()| {
            let plural = if results.len() == 1 { "" } else { "s" };
            write!(out, "{} scenario{plural}, {steps} steps, {differing} differing", results.len())
        })
    };
    printed.and_then(|()| writeln!(out)).map_err(Failure::output)?;
    if differing == 0 { Ok(()) } else { Err(Failure::Differences) }
}

fn print_difference(out: &mut impl Write, result: &ScenarioResult) -> io::Result<()> {
    let Some(first) = &result.first else { return Ok(()) };
    writeln!(
        out,
        "{}: {} of {} steps differ, first step {}",
        result.name, result.differing, result.steps, first.step
    )?;
    writeln!(out, "  key    {}", first.key)?;
    writeln!(out, "  ours   {}", first.ours)?;
    writeln!(out, "  theirs {}", first.theirs)
}
