//! Goldens run as predictions: the requests of a scenario as a trace of format `requests`, its settings as the
//! deployment, and linear timing equal to the oracle's clock. Both steppers write the same bytes, and every
//! request ends when it ended in the real engine, after as many passes.

mod common;

use common::folder;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use windtunnel_config::{Experiment, Placement, load};
use windtunnel_engine::RankConfig;
use windtunnel_live::online::{self, OnlineOptions, Replayed};
use windtunnel_report::Report;
use windtunnel_sim::{Options, Stepper};
use windtunnel_validate::conformance::{Scenario, Settings, find_goldens};

/// The sets, and how many of their scenarios can be a prediction: those whose requests come by time and are not
/// aborted, on a rank that steps alone.
const SETS: [(&str, usize); 5] =
    [("vllm", 26), ("vllm_options", 3), ("vllm_random", 19), ("sglang", 17), ("sglang_random", 16)];

const DEPLOYMENT: &str = "\
traffic:
  source: {type: trace, format: requests, paths: [requests.jsonl]}
  load: {type: trace_timestamps}
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      kv_cache: {capacity: {type: fixed, blocks: 1000}}
";

/// What the real engine did.
struct Truth {
    /// When each request ended, in ms, by name.
    ends: HashMap<String, f64>,
    /// Passes that computed something.
    passes: u64,
    /// It found nothing to do and was not done.
    stuck: bool,
}

#[test]
fn goldens_are_predicted_to_the_nanosecond() {
    for (set, expected) in SETS {
        let mut done = 0;
        for golden in find_goldens(&[folder(set)]).unwrap() {
            let name = golden.file_name().unwrap().to_str().unwrap().trim_end_matches(".jsonl.gz").to_owned();
            done += usize::from(predict(&folder(set), &name, &golden));
        }
        assert_eq!(done, expected, "{set}");
    }
}

/// False if the scenario cannot be a prediction.
fn predict(set: &Path, name: &str, golden: &Path) -> bool {
    let file = |end: &str| set.join("scenarios").join(format!("{name}{end}"));
    let (config, requests) = (file(".config.json"), file(".requests.jsonl.gz"));
    let engine = set
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .starts_with("sglang")
        .then_some(windtunnel_validate::conformance::Engine::Sglang);
    let scenario = Scenario::read(&config, &requests, engine).unwrap();
    let lines = scenario.requests.iter();
    let by_step = lines.clone().any(|line| line.arrival_step.is_some() || line.abort_step.is_some());
    let times: Vec<f64> = lines.map(|line| line.arrival_ms.unwrap_or(0.0)).collect();
    if by_step || !times.is_sorted() {
        return false;
    }
    let (rank, ignore_eos, base_ms, per_new_token_ms) = match &scenario.settings {
        Settings::Vllm(s) => (RankConfig::Vllm(s.config()), false, s.step_ms_base, s.step_ms_per_token),
        Settings::Sglang(s) => {
            (RankConfig::Sglang(s.config()), s.ignore_eos, s.step_ms_base, s.step_ms_per_token)
        }
    };
    let at = tempfile::tempdir().unwrap();
    let timing = format!(
        "      timing: {{type: linear, linear: {{base_ms: {base_ms:?}, per_new_token_ms: {per_new_token_ms:?}}}}}\n"
    );
    fs::write(at.path().join("deployment.yaml"), format!("{DEPLOYMENT}{timing}")).unwrap();
    write_requests(&requests, &at.path().join("requests.jsonl"));
    let mut experiment = load(&at.path().join("deployment.yaml"), &[]).unwrap();
    let deployment = &mut experiment.deployment;
    (deployment.engine, deployment.ignore_eos) = (rank, ignore_eos);
    deployment.placement = Placement::RoundRobin;

    let [plain, fast] = [Stepper::Plain, Stepper::Fast].map(|stepper| run(&experiment, stepper));
    assert!(plain == fast, "{name}: the steppers write the same");
    // Live workers: the clock only delays what is decided in logical time.
    match (replay(&experiment), &fast) {
        (Ok(online), Ok(virtual_time)) => {
            assert!(online == *virtual_time, "{name}: live workers do the same")
        }
        (Err(error), Err(_)) => assert!(error.contains("nothing is left to happen"), "{name}: {error}"),
        (online, _) => panic!("{name}: {online:?} online"),
    }
    let truth = read(golden);
    let (ended, passes) = match fast {
        Ok(outcome) => outcome,
        // The engine waits for ever, too.
        Err(error) => {
            assert!(truth.stuck && error.contains("nothing left to happen"), "{name}: {error}");
            return true;
        }
    };
    assert_eq!(passes, truth.passes, "{name}: passes");
    for (id, end) in &truth.ends {
        let ours = ended[id] + times[0];
        assert!((ours - end).abs() < 0.0051, "{name}: {id} ends at {ours} ms, in the engine at {end}");
    }
    true
}

/// When requests ended, by name, and the number of passes; or how the run failed.
type Outcome = Result<(HashMap<String, f64>, u64), String>;

fn run(experiment: &Experiment, stepper: Stepper) -> Outcome {
    let options = Options { stepper, capture: true, ..Options::default() };
    outcome(&windtunnel_sim::run(experiment, options).map_err(|error| error.to_string())?)
}

/// The same against live workers, a hundred thousand times as fast as the wall clock.
fn replay(experiment: &Experiment) -> Outcome {
    let options = OnlineOptions {
        collector: windtunnel_sim::collector_options(experiment, true),
        rate: 1e5,
        interrupt: Arc::default(),
    };
    let Replayed { collectors, end, outside, .. } =
        online::replay(experiment, &options).map_err(|error| error.to_string())?;
    outcome(&windtunnel_sim::report(
        experiment,
        collectors,
        windtunnel_sim::Ending { end, outside, ..Default::default() },
    ))
}

fn outcome(report: &Report) -> Outcome {
    let mut lines = Vec::new();
    report.write_requests(&mut lines).unwrap();
    let ends = lines.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()).map(|line| {
        (line["request_id"].as_str().unwrap().to_owned(), line["terminal_time_ms"].as_f64().unwrap())
    });
    Ok((ends.collect(), report.summary.get("passes").as_f64().unwrap() as u64))
}

/// The scenario's requests, each with a time.
fn write_requests(from: &Path, to: &Path) {
    let mut out = File::create(to).unwrap();
    for line in BufReader::new(GzDecoder::new(File::open(from).unwrap())).lines() {
        let mut line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let fields = line.as_object_mut().unwrap();
        fields.entry("arrival_ms").or_insert(json!(0.0));
        writeln!(out, "{line}").unwrap();
    }
}

fn read(golden: &Path) -> Truth {
    let mut text = String::new();
    GzDecoder::new(File::open(golden).unwrap()).read_to_string(&mut text).unwrap();
    let mut truth = Truth { ends: HashMap::new(), passes: 0, stuck: false };
    for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        truth.stuck |= line["stuck"] == true;
        truth.passes += u64::from(line["total"].as_u64() > Some(0));
        for finished in line["finished"].as_array().into_iter().flatten() {
            let id = finished[0].as_str().unwrap().to_owned();
            truth.ends.insert(id, line["t_end_ms"].as_f64().unwrap());
        }
    }
    truth
}
