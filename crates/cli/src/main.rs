//! The `windtunnel` binary: arguments in, text out. Everything else lives in the library crates.
//!
//! Exit codes: 0 done, 1 the run failed (or a conformance check found a difference), 2 the input is
//! wrong, 130 interrupted.

mod accuracy;
mod args;
mod calibrate;
mod capacity;
mod compare;
mod conformance;
mod data;
mod exit;
mod files;
mod mocker;
mod models;
mod perf;
mod predict;
mod process;
mod progress;
mod say;
mod signals;

use args::{Arguments, Command};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use exit::Failure;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(answer) => return told(&answer),
    };
    let arguments = match spelled_out(arguments) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    windtunnel_perf::packs::provide(data::PACKS);
    let done = match arguments.command {
        Command::Predict(predict) => predict::run(&predict),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::Mocker(mocker) => mocker::run(&mocker, false),
        Command::Serve(mocker) => mocker::run(&mocker, true),
        Command::Conformance(conformance) => conformance::run(&conformance.action),
        Command::Models(arguments) => models::run(&arguments),
        Command::Perf(perf) => perf::run(&perf.action),
        Command::Capacity(arguments) => capacity::run(&arguments),
        Command::Accuracy(arguments) => accuracy::run(&arguments),
        Command::Schema => schema(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The arguments with the flags that others stand for.
fn spelled_out(arguments: Arguments) -> Result<Arguments, ExitCode> {
    let (Command::Mocker(mocker) | Command::Serve(mocker)) = &arguments.command else { return Ok(arguments) };
    let flags = mocker::stands_for(mocker).map_err(Failure::report)?;
    if flags.is_empty() {
        return Ok(arguments);
    }
    Arguments::try_parse_from(std::env::args_os().chain(flags.into_iter().map(Into::into)))
        .map_err(|answer| told(&answer))
}

/// Prints what clap has to say: help and version, or what is wrong with the arguments.
fn told(answer: &clap::Error) -> ExitCode {
    if let Some((flag, why)) = refused_flag(answer) {
        return Failure::Input(format!("{flag}: {why}")).report();
    }
    let printed = answer.print();
    if answer.use_stderr() {
        return ExitCode::from(2);
    }
    match printed.and_then(|()| std::io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => Failure::output(cause).report(),
    }
}

/// A flag that does not exist on purpose, and why.
fn refused_flag(answer: &clap::Error) -> Option<(&str, &'static str)> {
    let unknown = answer.kind() == ErrorKind::UnknownArgument;
    match answer.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if unknown => mocker::why(flag).map(|why| (flag.as_str(), why)),
        _ => None,
    }
}

fn schema() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &windtunnel_config::schema())
        .map_err(std::io::Error::from)
        .and_then(|()| out.write_all(b"\n"))
        .map_err(Failure::output)
}
