//! Predictions under policy `priority` against traces of the real engine: requests of one priority and one
//! arrival are told apart by their ids, so their order decides when each of them ends.

mod common;

use common::{err, root, windtunnel};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use tempfile::tempdir;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unpacked(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    lines(&text)
}

/// A scenario of `tests/golden/vllm_random`: its name, its number of requests, and its settings.
const SCENARIOS: [(&str, usize, &str); 2] = [
    (
        "rand_00182_async_pressure_priority_nocache",
        10,
        "{context_length: 24, workers: {aggregated: {
            scheduler: {policy: priority, max_batched_tokens: 35, max_sequences: 32, watermark: 0.141,
                        long_prefill_token_threshold: 24, reserve_full_isl: false},
            kv_cache: {block_size: 1, prefix_caching: false, capacity: {type: fixed, blocks: 34}},
            timing: {type: linear, linear: {base_ms: 10, per_new_token_ms: 0.5}}}}, model: m, hardware: h}",
    ),
    (
        "nasty_00023_arrival_on_step_end",
        24,
        "{context_length: 8192, workers: {aggregated: {
            scheduler: {policy: priority, max_batched_tokens: 512, max_sequences: 6},
            kv_cache: {block_size: 4, capacity: {type: fixed, blocks: 85}},
            timing: {type: linear, linear: {base_ms: 10}}}}, model: m, hardware: h}",
    ),
];

#[test]
fn requests_of_one_priority_and_time_end_when_they_do_in_the_real_engine() {
    let set = root().join("tests/golden/vllm_random");
    for (name, requests, engine) in SCENARIOS {
        let mut theirs = BTreeMap::new();
        for step in unpacked(&set.join(format!("golden/{name}.jsonl.gz"))) {
            for finished in step["finished"].as_array().into_iter().flatten() {
                let id = finished.as_str().or_else(|| finished[0].as_str()).unwrap();
                theirs.insert(id.to_owned(), step["t_end_ms"].as_f64().unwrap());
            }
        }
        assert_eq!(theirs.len(), requests, "{name}");

        let folder = tempdir().unwrap();
        let trace = set.join(format!("scenarios/{name}.requests.jsonl.gz"));
        let first = unpacked(&trace).iter().map(|line| line["arrival_ms"].as_f64().unwrap()).reduce(f64::min);
        let source = json!({"type": "trace", "format": "requests", "paths": [trace]});
        let traffic = json!({"source": source, "load": {"type": "trace_timestamps"}});
        let file = folder.path().join("config.yaml");
        fs::write(&file, format!("traffic: {traffic}\nengine: {engine}\n")).unwrap();
        let mut command = windtunnel(["predict", "--capture-per-request"]);
        let done = command.arg(&file).arg("--output-dir").arg(folder.path().join("out")).output().unwrap();
        assert!(done.status.success(), "{name}: {}", err(&done));
        let ours = fs::read_to_string(folder.path().join("out/requests.jsonl")).unwrap();
        assert_eq!(ours.lines().count(), requests, "{name}");
        for request in lines(&ours) {
            let id = request["request_id"].as_str().unwrap();
            let end = request["terminal_time_ms"].as_f64().unwrap() + first.unwrap();
            assert!((end - theirs[id]).abs() < 1e-3, "{name}, {id}: {end} ms, theirs {} ms", theirs[id]);
        }
    }
}
