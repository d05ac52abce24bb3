//! How a command fails, and what the shell gets to see of it.

use crate::say::say;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// A command that did not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// The input is fine, the run is not.
    Run(String),
    /// Files, settings or traces are wrong.
    Input(String),
    /// Ctrl-C, or another signal to end.
    Interrupted,
    /// Nobody reads our output any more; the work itself was not the problem.
    ClosedPipe,
    /// A check found differences, which have been printed.
    Differences,
    /// A check could not compare everything; the reasons have been printed.
    Errors,
}

impl Failure {
    /// The run failed.
    pub fn run(cause: impl Display) -> Failure {
        Failure::Run(cause.to_string())
    }

    /// The input is wrong.
    pub fn input(cause: impl Display) -> Failure {
        Failure::Input(cause.to_string())
    }

    /// Standard output failed.
    pub fn output(cause: io::Error) -> Failure {
        match cause.kind() {
            ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Run(format!("cannot write to standard output: {cause}")),
        }
    }

    /// Tells a person, and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Run(cause) => {
                say(format_args!("error: {cause}"));
                ExitCode::from(1)
            }
            Failure::Input(cause) => {
                say(format_args!("error: {cause}"));
                ExitCode::from(2)
            }
            Failure::Interrupted => {
                say(format_args!("interrupted"));
                ExitCode::from(130)
            }
            Failure::ClosedPipe => ExitCode::SUCCESS,
            Failure::Differences => ExitCode::from(1),
            Failure::Errors => ExitCode::from(2),
        }
    }
}
