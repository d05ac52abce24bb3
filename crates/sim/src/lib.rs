//! Virtual time: a deployment, a workload, one run, one report.
//!
//! `run` is the loop; `worker` is one worker and its passes; `observer` writes events and telemetry.
//! Every instant is handled in this order: pass ends, arrivals in trace order, schedule calls, pass
//! starts, telemetry. Nothing here reads a clock.

mod error;
mod observer;
mod run;
mod worker;

pub use error::SimError;
pub use run::{Options, Progress, TelemetryOptions, run};
pub use windtunnel_engine::Stepper;
