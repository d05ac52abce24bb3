//! What happened in a run, as metrics and files: collectors that are filled while it goes on, the
//! summary made of them, the output folder and the table on the terminal.
//!
//! Everything that reaches prediction.json, requests.jsonl, the telemetry or the event log depends on
//! the simulated run alone: sums are integers, so neither the number of threads nor the order of a
//! merge can change a byte. Nothing here reads a clock; wall-clock figures are handed in and go to
//! run.json and the terminal only.

mod collector;
mod error;
mod events;
mod files;
mod fleet;
mod gaps;
mod histogram;
mod json_line;
mod moments;
mod numbers;
mod output;
mod percentile;
mod rank;
mod ratio;
mod record;
mod report;
mod requests;
mod samples;
mod sla;
mod summary;
mod table;
mod telemetry;
mod workers;

pub use collector::{Collector, CollectorOptions, SoFar};
pub use error::ReportError;
pub use events::{EventLog, PassStamp};
pub use files::{Prediction, RunFile, SCHEMA_VERSION};
pub use fleet::{FleetLog, ScalingEvent, WorkerChange, WorkerEvent};
pub use numbers::short;
pub use output::{FileName, OutputDir, OutputFile};
pub use percentile::PercentileMethod;
pub use rank::{DiskRow, HostRow, RankRow, Role};
pub use record::{Refusal, RequestRecord, Routing};
pub use report::{CapacityRow, Pool, Report, RunEnd};
pub use sla::Sla;
pub use summary::{Number, Summary};
pub use table::{columns, print, table};
pub use telemetry::{TelemetrySample, TelemetryWriter};
