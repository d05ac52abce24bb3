//! Virtual time: a deployment, a workload, one run, one report.
//!
//! `run` is the loop, and `agenda` knows which group is next; `options` is what it is asked to do, `reporting` what comes
//! of it; `group` is a rank group, the ranks that step together, and its passes, many at once as a `stretch`; `lane` is
//! one rank of it; `routing` keeps the router informed; `placement` finds the rank
//! for a request; `observer` writes events and telemetry; `threads` runs independent workers side by side.
//! `steering` knows what changes the workers: the `planner`, with its view of the `fleet`, and the `faults`.
//! `disaggregated` is the loop of a run whose prefill and decode have workers of their own; `host` copies blocks from and
//! to the memory of the host.
//! Every instant is handled in this order: pass ends, transfers, arrivals in trace order, schedule calls, pass
//! starts, telemetry, faults, ends of drains, scaling; workers become ready before arrivals. Nothing here reads a clock.

mod agenda;
mod copy_lanes;
mod disaggregated;
mod disk;
mod error;
mod faults;
mod fleet;
mod group;
mod host;
mod lane;
mod observer;
mod options;
mod placement;
pub mod planner;
mod reporting;
mod routing;
mod run;
mod steering;
mod stretch;
mod threads;

pub use error::SimError;
pub use options::{Options, Progress, TelemetryOptions};
pub use reporting::{Ending, EndingApart, collector_options, report, report_apart};
pub use run::{run, worker_threads};
pub use windtunnel_engine::Stepper;
