//! Virtual time: a deployment, a workload, one run, one report.
//!
//! `run` is the loop; `group` is a rank group, the ranks that step together, and its passes; `lane` is one
//! rank of it; `routing` keeps the router informed, with what the ranks tell as `news`; `placement` finds the rank
//! for a request; `observer` writes events and telemetry;
//! `threads` runs independent workers side by side.
//! Every instant is handled in this order: pass ends, arrivals in trace order, schedule calls, pass
//! starts, telemetry. Nothing here reads a clock.

mod error;
mod group;
mod lane;
mod news;
mod observer;
mod placement;
mod routing;
mod run;
mod threads;

pub use error::SimError;
pub use run::{Options, Progress, TelemetryOptions, run, worker_threads};
pub use windtunnel_engine::Stepper;
