//! A trial: a configuration with its files in a folder of its own, run through the whole simulator, and
//! everything that the run would write, as bytes and as lines. Used by the tests of this crate.
#![allow(dead_code)] // Each test binary uses its own part.

pub mod random;
pub mod roles;

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use windtunnel_config::{ConfigError, Experiment, Placement, Semantics};
use windtunnel_engine::Nanos;
use windtunnel_report::{Prediction, Report};
use windtunnel_sim::{Options, SimError, Stepper, TelemetryOptions, run};

/// One worker: block 16, 1000 blocks, 8 seats, budget 64, pass times 10 and 2 ms.
pub const SMALL: &str = "\
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      scheduler: {max_batched_tokens: 64, max_sequences: 8}
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 1000}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

/// Longest wall-clock time of a run, so that one without end fails and does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A configuration that was accepted.
pub struct Trial {
    /// Holds the trace.
    _folder: tempfile::TempDir,
    pub experiment: Experiment,
    pub telemetry_interval: Nanos,
}

impl Trial {
    /// Loads `config` with `overrides`; `trace` becomes the file trace.jsonl beside it.
    pub fn load(config: &str, overrides: &[&str], trace: &str) -> Result<Trial, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("trace.jsonl"), trace).unwrap();
        let name = folder.path().join("case.yaml");
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        let experiment = windtunnel_config::from_str(name.to_str().unwrap(), config, &overrides)?;
        Ok(Trial { _folder: folder, experiment, telemetry_interval: Nanos(7_000_000) })
    }

    /// `SMALL` with overrides and a trace of format requests.
    pub fn small(overrides: &[&str], requests: &[Asked]) -> Trial {
        let trace = "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, \
                     load: {type: trace_timestamps}}";
        let overrides: Vec<&str> = std::iter::once(trace).chain(overrides.iter().copied()).collect();
        Trial::load(SMALL, &overrides, &lines(requests)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same deployment with several ranks in each worker.
    pub fn with_ranks(mut self, ranks: u32, barrier: bool, placement: Placement) -> Trial {
        let deployment = &mut self.experiment.deployment;
        deployment.ranks = NonZeroU32::new(ranks).unwrap();
        (deployment.barrier, deployment.placement) = (barrier, placement);
        self
    }

    /// Runs it and keeps everything.
    pub fn run(&self, stepper: Stepper) -> Output {
        self.try_run(stepper).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, for runs that may fail.
    pub fn try_run(&self, stepper: Stepper) -> Result<Output, SimError> {
        self.execute(stepper, true, 1)
    }

    /// Runs it without event log and telemetry.
    pub fn run_unwatched(&self, stepper: Stepper) -> Output {
        self.execute(stepper, false, 1).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same on several threads.
    pub fn try_run_on(&self, threads: u32) -> Result<Output, SimError> {
        self.execute(Stepper::Fast, false, threads)
    }

    fn execute(&self, stepper: Stepper, watched: bool, threads: u32) -> Result<Output, SimError> {
        let interrupt = Arc::new(AtomicBool::new(false));
        let raised = interrupt.clone();
        let (ended, wait) = channel::<()>();
        let watchdog = std::thread::spawn(move || {
            if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                raised.store(true, Ordering::Relaxed);
            }
        });
        let (mut events, mut telemetry) = (Vec::new(), Vec::new());
        let options = Options {
            stepper,
            threads,
            capture: true,
            events: watched.then(|| Box::new(&mut events) as Box<dyn Write>),
            telemetry: watched.then(|| TelemetryOptions {
                interval: self.telemetry_interval,
                out: Box::new(&mut telemetry),
            }),
            progress: None,
            interrupt,
        };
        let report = run(&self.experiment, options);
        drop(ended);
        watchdog.join().unwrap();
        let report = report?;
        let mut requests = Vec::new();
        report.write_requests(&mut requests).unwrap();
        let prediction = prediction(&self.experiment, &report);
        Ok(Output { prediction, requests, events, telemetry, report })
    }
}

fn prediction(experiment: &Experiment, report: &Report) -> Vec<u8> {
    let semantics = match experiment.deployment.semantics {
        Semantics::Native => "native",
        Semantics::Aisimulate013 => "aisimulate_0_13",
    };
    let versions = BTreeMap::new();
    let prediction = Prediction::new(report, &versions, semantics, &experiment.effective);
    serde_json::to_vec_pretty(&prediction).unwrap()
}

/// What a run writes.
pub struct Output {
    pub prediction: Vec<u8>,
    pub requests: Vec<u8>,
    pub events: Vec<u8>,
    pub telemetry: Vec<u8>,
    pub report: Report,
}

impl Output {
    /// prediction.json.
    pub fn prediction(&self) -> Value {
        serde_json::from_slice(&self.prediction).unwrap()
    }

    /// A metric, none where it is null.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.report.summary.get(name).as_f64()
    }

    /// Most requests that were in flight at one time, from arrival to end.
    pub fn most_in_flight(&self) -> Option<i32> {
        let mut changes = Vec::new();
        for request in self.requests() {
            changes.push((request["arrival_time_ms"].as_f64().unwrap(), 1));
            changes.push((request["terminal_time_ms"].as_f64().unwrap(), -1));
        }
        // At one instant the end comes first: it makes the room.
        changes.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let in_flight = changes.iter().scan(0, |count, (_, change)| {
            *count += change;
            Some(*count)
        });
        in_flight.max()
    }

    /// A metric that is a count.
    pub fn count(&self, name: &str) -> u64 {
        self.metric(name).unwrap_or_else(|| panic!("{name} has no value")) as u64
    }

    pub fn requests(&self) -> Vec<Value> {
        parse(&self.requests)
    }

    pub fn events(&self) -> Vec<Value> {
        parse(&self.events)
    }

    pub fn telemetry(&self) -> Vec<Value> {
        parse(&self.telemetry)
    }

    /// A number of a request, none where it is null.
    pub fn of(&self, request: usize, field: &str) -> Option<f64> {
        self.requests()[request][field].as_f64()
    }
}

fn parse(lines: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(lines).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A request of a trace.
#[derive(Clone, Debug)]
pub struct Asked {
    pub arrival_ms: f64,
    pub prompt: Vec<u32>,
    pub outputs: u32,
    /// Output tokens, where a later prompt may repeat them.
    pub output: Vec<u32>,
    pub priority: i32,
    /// Ends the output where it comes.
    pub stop: Option<u32>,
    /// The rank that has to take it.
    pub dp_rank: Option<u32>,
}

impl Asked {
    /// The same request for a rank that has to take it.
    pub fn on(self, dp_rank: u32) -> Asked {
        Asked { dp_rank: Some(dp_rank), ..self }
    }
}

/// A request with this prompt.
pub fn asked(arrival_ms: f64, prompt: impl IntoIterator<Item = u32>, outputs: u32) -> Asked {
    Asked {
        arrival_ms,
        prompt: prompt.into_iter().collect(),
        outputs,
        output: vec![],
        priority: 0,
        stop: None,
        dp_rank: None,
    }
}

/// Requests of (arrival in ms, prompt tokens, output tokens) that share nothing.
pub fn unlike(requests: &[(f64, u32, u32)]) -> Vec<Asked> {
    (1..)
        .zip(requests)
        .map(|(n, &(at, prompt, outputs))| asked(at, n * 1_000_000..n * 1_000_000 + prompt, outputs))
        .collect()
}

/// A trace of format requests.
pub fn lines(requests: &[Asked]) -> String {
    let line = |(number, r): (usize, &Asked)| {
        let stop: Vec<u32> = r.stop.into_iter().collect();
        let dp_rank = r.dp_rank.map_or("null".into(), |rank| rank.to_string());
        format!(
            "{{\"id\":\"r{number}\",\"prompt_token_ids\":{:?},\"max_tokens\":{},\"output_token_ids\":{:?},\
             \"arrival_ms\":{:?},\"priority\":{},\"stop_token_ids\":{stop:?},\"dp_rank\":{dp_rank}}}\n",
            r.prompt, r.outputs, r.output, r.arrival_ms, r.priority
        )
    };
    requests.iter().enumerate().map(line).collect()
}

/// A trace of format mooncake, from (arrival in ms, prompt tokens, output tokens, ids).
pub fn mooncake(rows: &[(f64, u32, u32, Vec<u64>)]) -> String {
    let line = |(at, input, output, ids): &(f64, u32, u32, Vec<u64>)| {
        format!(
            "{{\"timestamp\":{at:?},\"input_length\":{input},\"output_length\":{output},\"hash_ids\":{ids:?}}}\n"
        )
    };
    rows.iter().map(line).collect()
}

/// The small worker with `overrides` and these requests: what both steppers write alike.
pub fn in_both_steppers(overrides: &[&str], requests: &[Asked]) -> Output {
    let trial = Trial::load(SMALL, overrides, &lines(requests)).unwrap_or_else(|error| panic!("{error}"));
    let [plain, fast] = [Stepper::Plain, Stepper::Fast].map(|stepper| trial.run(stepper));
    assert_eq!(plain.prediction, fast.prediction);
    assert_eq!(plain.requests, fast.requests);
    assert_eq!(plain.telemetry, fast.telemetry);
    fast
}

/// Of each request, when its first token came and how many of its input tokens were reused.
pub fn times(output: &Output) -> Vec<[f64; 2]> {
    let fields = ["first_token_ms", "reused_input_tokens"];
    (0..output.requests().len()).map(|i| fields.map(|field| output.of(i, field).unwrap())).collect()
}

/// Two files are equal, or the first lines that differ are told.
pub fn same(one: &[u8], other: &[u8]) {
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect::<Vec<_>>();
    let (one, other) = (lines(one), lines(other));
    for (i, (one, other)) in one.iter().zip(&other).enumerate() {
        assert_eq!(one, other, "line {i}");
    }
    assert_eq!(one.len(), other.len());
}
