//! docs/output.md against the program: the fields of every file it writes are those that the page lists,
//! no more and no fewer.

mod common;

use common::{copy, out, root, windtunnel};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tempfile::tempdir;

/// Objects whose keys are defined elsewhere, and values that may be anything.
const OPAQUE: [&str; 7] = [
    "capacity.uncovered",
    "config",
    "rejections",
    "results[].first.ours",
    "results[].first.theirs",
    "summary",
    "versions",
];

/// The paths of all values below one.
fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) if !OPAQUE.contains(&at) => {
            for (key, value) in entries {
                paths(value, &if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().for_each(|item| paths(item, &format!("{at}[]"), found));
        }
        _ => _ = found.insert(at.to_owned()),
    }
}

/// The fields in the lines of a text.
fn written(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        paths(&value.unwrap(), "", &mut found);
    }
    found
}

/// The fields that a chapter of the page lists.
fn documented(chapter: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/output.md")).unwrap();
    let (_, from) = page.split_once(&format!("\n## {chapter}\n")).unwrap();
    let table = from.split("\n#").next().unwrap();
    table.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn every_field_of_a_run_is_documented() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    // Few blocks and a short context, so that requests are preempted and rejected and blocks evicted.
    let done = windtunnel(["predict"])
        .arg(root().join("examples/quickstart.yaml"))
        .args(["--output-dir", "out", "--capture-per-request", "--format", "json"])
        .args(["--events", "events.jsonl", "--telemetry", "telemetry.jsonl"])
        .args(["--set", "engine.workers.aggregated.kv_cache.capacity={type: default, memory_fraction: 0.26}"])
        .args(["--set", "engine.context_length=8000"])
        .args(["--set", "engine.workers.aggregated.kv_cache.host_offload={num_host_blocks: 1000}"])
        .args(["--set", "engine.workers.aggregated.kv_cache.g3_offload={scope: worker_local}"])
        .args(["--set", "router={policy: kv_router}"])
        // One of two workers goes after 5 s.
        .args([
            "--set",
            "planner={policy: hpa, metric: running, target_value: 1000, interval_seconds: 5, \
             scale_down_stabilization_seconds: 0, max_workers: 2}",
        ])
        .current_dir(at)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(0));
    let events = read(at.join("events.jsonl"));
    for kind in ["stored", "removed", "preempted"] {
        assert!(events.contains(&format!("\"event\":\"{kind}\"")), "{kind}");
    }
    let order = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        (
            event["time_ms"].as_f64().unwrap(),
            event["worker"].as_u64().unwrap(),
            event["pass"].as_u64().unwrap(),
        )
    };
    assert!(events.lines().is_sorted_by_key(order), "in order of time, worker and pass");
    for (chapter, text) in [
        ("prediction.json", read(at.join("out/prediction.json"))),
        ("run.json", read(at.join("out/run.json"))),
        ("requests.jsonl", read(at.join("out/requests.jsonl"))),
        ("Event log", events),
        ("Telemetry", read(at.join("telemetry.jsonl"))),
    ] {
        assert_eq!(written(&text), documented(chapter), "{chapter}");
    }

    // The reasons for a rejection, with their sum.
    let prediction: Value = serde_json::from_str(&out(&done)).unwrap();
    let rejections = prediction["rejections"].as_object().unwrap();
    let sum: u64 = rejections.values().map(|count| count.as_u64().unwrap()).sum();
    assert!(sum > 0);
    assert_eq!(prediction["summary"]["rejected_requests"], sum);
    let page = read(root().join("docs/output.md"));
    for reason in rejections.keys() {
        assert!(page.contains(&format!("\n| `{reason}` |")), "{reason}");
    }
}

#[test]
fn every_field_of_a_check_is_documented() {
    let folder = tempdir().unwrap();
    copy(&root().join("tests/golden/vllm/scenarios"), folder.path());
    // One without its end, and one that is none.
    let steps = format!("{}\n", r#"{"kind":"config","engine":"vllm"}"#);
    fs::write(folder.path().join("plain.jsonl"), steps).unwrap();
    fs::write(folder.path().join("aborts.jsonl"), "{}").unwrap();
    let done = windtunnel(["conformance", "check", "--json", "plain.jsonl", "aborts.jsonl"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert_eq!(written(&out(&done)), documented("conformance check --json"));
}

#[test]
fn every_field_of_a_model_is_documented() {
    let done = windtunnel(["models", "--json"]).output().unwrap();
    let mut found = BTreeSet::new();
    for model in serde_json::from_str::<Vec<Value>>(&out(&done)).unwrap() {
        paths(&model, "", &mut found);
    }
    // Null where a model has no such thing; another one has it.
    let parts = |path: &String| found.iter().any(|other| other.starts_with(&format!("{path}.")));
    let found: BTreeSet<String> = found.iter().filter(|path| !parts(path)).cloned().collect();
    assert_eq!(found, documented("models --json"));
}

#[test]
fn every_field_of_a_comparison_is_documented() {
    let folder = tempdir().unwrap();
    let table = "system,model,tp,isl,osl,free_gpu_memory_fraction,max_concurrent_sequences\n\
                 h100_sxm,Qwen/Qwen3-32B-FP8,1,2048,2048,0.8,27\n";
    fs::write(folder.path().join("measured.csv"), table).unwrap();
    let done = windtunnel(["accuracy", "--json", "--capacity", "measured.csv"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(written(&out(&done)), documented("accuracy --json"));
}
