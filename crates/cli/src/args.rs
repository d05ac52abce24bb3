//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Windtunnel runs LLM serving deployments without GPUs.
#[derive(Debug, Parser)]
#[command(name = "windtunnel", version, propagate_version = true, about, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a workload through a deployment in virtual time and report its metrics
    Predict(Predict),
    /// Show what was measured on a real engine beside what is predicted for the same requests
    Compare(Compare),
    /// Find the pass times under which a prediction gives what was measured
    Calibrate(Calibrate),
    /// Run mock workers on the wall clock that clients and routers take for engines
    Mocker(Box<crate::mocker::Mocker>),
    /// Run mock workers behind one address: a cluster that clients take for one server
    Serve(Box<crate::mocker::Mocker>),
    /// Prove the schedulers against traces of the real ones
    Conformance(Conformance),
    /// List the models that are known by name, or describe one
    Models(Models),
    /// List the measured times that calibrated timing goes by, or build them
    Perf(Perf),
    /// Show how the KV blocks of a deployment come about
    Capacity(Capacity),
    /// Compare predictions with public measurements of real deployments
    Accuracy(Accuracy),
    /// Print the JSON Schema of the configuration file
    Schema,
}

/// Arguments of `predict`.
#[derive(Debug, Args)]
pub struct Predict {
    /// Configuration file (YAML)
    #[arg(value_name = "FILE", required_unless_present = "config", conflicts_with = "config")]
    pub file: Option<PathBuf>,
    /// The same, as an option
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one value of the configuration, as a.b.c=VALUE (YAML); repeatable, the last one wins
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Run the first N requests of the trace only (traffic.stop.requests bounds a synthetic workload)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// What standard output shows
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write prediction.json and run.json into this folder
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Replace the files of an earlier run in the output folder
    #[arg(long, requires = "output_dir")]
    pub overwrite: bool,
    /// Also write requests.jsonl, one line for each request that ended
    #[arg(long, requires = "output_dir")]
    pub capture_per_request: bool,
    /// Write every KV event and preemption to this file (JSON lines)
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Write the state of every rank at regular virtual times to this file (JSON lines)
    #[arg(long, value_name = "FILE")]
    pub telemetry: Option<PathBuf>,
    /// Virtual time between two telemetry samples
    #[arg(long, value_name = "MS", default_value_t = 1000.0, requires = "telemetry")]
    pub telemetry_interval_ms: f64,
    /// Replay the workload against live workers in this process, on the wall clock or RATE times as fast; the
    /// passes and the report are the same
    #[arg(
        long,
        value_name = "RATE",
        num_args = 0..=1,
        default_missing_value = "1",
        require_equals = true,
        conflicts_with_all = ["events", "telemetry", "stepper", "threads"]
    )]
    pub online: Option<f64>,
    /// How passes are computed; the results are the same to the byte
    #[arg(long, value_enum, default_value_t = Stepper::Fast)]
    pub stepper: Stepper,
    /// Threads that run workers, where these are independent of each other (open loop, no --events, no
    /// --telemetry); all cores if not given. The results are the same to the byte
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

/// Arguments of `models`.
#[derive(Debug, Args)]
pub struct Models {
    /// Name of a built-in model, or path of a config.json or of its folder; all built-in models if not given
    pub model: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `perf`.
#[derive(Debug, Args)]
pub struct Perf {
    /// What to do.
    #[command(subcommand)]
    pub action: PerfAction,
}

/// The commands on data packs.
#[derive(Debug, Subcommand)]
pub enum PerfAction {
    /// List what is covered: accelerators, engine versions, types
    List {
        /// Folder of packs in place of those that are part of the program
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Build packs from the public measurements of aiconfigurator-core (needs a program built with the
    /// feature pack-builder)
    Build {
        /// Folder `systems` of an unpacked wheel of aiconfigurator-core 0.12.0
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// An accelerator; repeatable, all if not given
        #[arg(long, value_name = "NAME")]
        system: Vec<String>,
        /// Folder that the packs go into; what is in it is replaced
        #[arg(long, value_name = "DIR", default_value = "data/perf")]
        out: PathBuf,
    },
}

/// Arguments of `capacity`.
#[derive(Debug, Args)]
pub struct Capacity {
    /// Configuration file (YAML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Set one value of the configuration, as a.b.c=VALUE (YAML); repeatable, the last one wins
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The deployment that was measured, and what was measured.
#[derive(Debug, Args)]
pub struct MeasuredInput {
    /// Configuration file of the deployment; the requests are those that were measured, not those of its traffic
    #[arg(value_name = "FILE")]
    pub config: PathBuf,
    /// Set one value of the configuration, as a.b.c=VALUE (YAML); repeatable, the last one wins
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// The measured run: lines of time stamps, or a result of vllm bench serve (--save-detailed) or of SGLang's
    /// bench_serving (--output-details); may be gzipped
    #[arg(long, value_name = "FILE")]
    pub measured: PathBuf,
    /// Which run, if the file holds several
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// The prompts of the requests as a Mooncake trace; without it no two prompts begin alike
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// What was measured.
    #[command(flatten)]
    pub input: MeasuredInput,
    /// Print the metrics as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// What was measured.
    #[command(flatten)]
    pub input: Option<MeasuredInput>,
    /// Fit the first N requests by arrival, and check on the others; half of them if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "passes")]
    pub fit: Option<u64>,
    /// Measured passes instead of requests: forward-pass metrics as JSON lines. Every other one is fitted
    #[arg(long, value_name = "FILE", conflicts_with_all = ["measured", "config", "set", "run", "workload"])]
    pub passes: Option<PathBuf>,
    /// What is fitted
    #[arg(long, value_enum, default_value_t = FittedLaw::Linear)]
    pub law: FittedLaw,
    /// Write the table to this file (JSON). Needed with --law table
    #[arg(long, value_name = "FILE", required_if_eq("law", "table"))]
    pub out: Option<PathBuf>,
}

/// A timing law that can be fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FittedLaw {
    /// Five coefficients (timing.type linear).
    Linear,
    /// A table by the tokens of a pass (timing.type table).
    Table,
    /// The constants of measured operations (timing.type default). Needs a configuration with that timing
    Default,
}

/// Arguments of `accuracy`.
#[derive(Debug, Args)]
#[group(id = "measurements", required = true, multiple = true, args = ["points", "runs", "capacity"])]
pub struct Accuracy {
    /// Measured KV capacities of TensorRT-LLM (CSV: system, model, tp, isl, osl, free_gpu_memory_fraction,
    /// max_concurrent_sequences)
    #[arg(long, value_name = "FILE")]
    pub capacity: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Replace the tables of this document by the new ones
    #[arg(long, value_name = "FILE")]
    pub update: Option<PathBuf>,
    /// Measured deployments (CSV with the columns of aiconfigurator-core's silicon_sample.csv, may be gzipped)
    #[arg(long, value_name = "FILE")]
    pub points: Option<PathBuf>,
    /// Measured runs with their deployments (JSON lines of requests' time stamps; a line of kind meta describes a run)
    #[arg(long, value_name = "FILE")]
    pub runs: Option<PathBuf>,
    /// Prompts of the requests of --runs (Mooncake JSON lines); may be given several times, each run finds its own
    #[arg(long, value_name = "FILE", requires = "runs")]
    pub workload: Vec<PathBuf>,
    /// Also write one line for each deployment, with both predictions, to this CSV file
    #[arg(long, value_name = "FILE", requires = "points")]
    pub rows: Option<PathBuf>,
    /// Every Nth deployment only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "points")]
    pub every: Option<u32>,
    /// timing.pass_us in place of the engine's
    #[arg(long, value_name = "US", requires = "points", value_parser = not_negative)]
    pub pass_us: Option<f64>,
    /// timing.sequence_us in place of the engine's
    #[arg(long, value_name = "US", requires = "points", value_parser = not_negative)]
    pub sequence_us: Option<f64>,
    /// timing.gpu_scale in place of the engine's
    #[arg(long, value_name = "FACTOR", requires = "points", value_parser = above_zero)]
    pub gpu_scale: Option<f64>,
    /// timing.communication_scale in place of the engine's
    #[arg(long, value_name = "FACTOR", requires = "points", value_parser = not_negative)]
    pub communication_scale: Option<f64>,
    /// Estimate operations that nobody measured (timing.allow_roofline); a system may then be the path of a gpu.txt
    #[arg(long, requires = "points")]
    pub allow_roofline: bool,
    /// Threads; all cores if not given. The results are the same to the byte
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), requires = "points")]
    pub threads: Option<u32>,
}

/// A finite number of at least 0.
fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "allowed is a number of at least 0".to_owned())?;
    if number.is_finite() && (0.0..=1e9).contains(&number) {
        Ok(number)
    } else {
        Err("allowed is a number from 0 to 1e9".into())
    }
}

/// A finite number above 0.
fn above_zero(text: &str) -> Result<f64, String> {
    match not_negative(text)? {
        0.0 => Err("allowed is a number above 0".into()),
        number => Ok(number),
    }
}

/// What standard output shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    Table,
    /// The content of prediction.json.
    Json,
}

/// How passes are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stepper {
    /// Every pass visits every running request.
    Plain,
    /// A pass visits the requests for which something changes.
    Fast,
}

impl From<Stepper> for windtunnel_sim::Stepper {
    fn from(stepper: Stepper) -> Self {
        match stepper {
            Stepper::Plain => windtunnel_sim::Stepper::Plain,
            Stepper::Fast => windtunnel_sim::Stepper::Fast,
        }
    }
}

/// An engine with conformance traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl From<Engine> for windtunnel_validate::conformance::Engine {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Vllm => windtunnel_validate::conformance::Engine::Vllm,
            Engine::Sglang => windtunnel_validate::conformance::Engine::Sglang,
        }
    }
}

/// Arguments of `conformance`.
#[derive(Debug, Args)]
pub struct Conformance {
    /// What to do.
    #[command(subcommand)]
    pub action: ConformanceAction,
}

/// The conformance commands.
#[derive(Debug, Subcommand)]
pub enum ConformanceAction {
    /// Write the trace of our scheduler for a scenario, in the oracle's line format
    Run {
        /// The scenario's config (JSON)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The scenario's requests (JSON lines, may be gzipped)
        #[arg(long, value_name = "FILE")]
        requests: PathBuf,
        /// Whose scheduler; by default the one that the config's key `engine` names, or vllm
        #[arg(long, value_enum)]
        engine: Option<Engine>,
        /// Where the trace goes, gzipped if the name ends in .gz; standard output if not given
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// How passes are computed
        #[arg(long, value_enum, default_value_t = Stepper::Fast)]
        stepper: Stepper,
    },
    /// Replay the inputs of golden traces and compare every key of every step
    Check {
        /// Traces (NAME.jsonl or NAME.jsonl.gz), or folders of them
        #[arg(value_name = "GOLDEN", required = true)]
        goldens: Vec<PathBuf>,
        /// Print the results as JSON
        #[arg(long)]
        json: bool,
        /// How passes are computed
        #[arg(long, value_enum, default_value_t = Stepper::Fast)]
        stepper: Stepper,
    },
}
