//! The output folder and what stands in each file.

mod common;

use common::{finish, ms, request};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use windtunnel_engine::{Nanos, Rejection, RequestId};
use windtunnel_report::{
    Collector, CollectorOptions, FileName, OutputDir, Prediction, RankRow, Refusal, Report, ReportError,
    RequestRecord, Role, RunEnd, RunFile, print,
};

/// A folder of this test's own, not there yet.
fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_appear_together_at_the_end() {
    let path = fresh("together").join("made/on/the/way");
    let mut dir = OutputDir::prepare(&path, false).unwrap();
    let mut requests = dir.create(FileName::Requests).unwrap();
    requests.write_all(b"{}\n").unwrap();
    dir.write_json(FileName::Prediction, &1).unwrap();
    dir.keep(requests).unwrap();
    assert!(!path.join("prediction.json").exists() && !path.join("requests.jsonl").exists());
    let written = dir.commit().unwrap();
    assert_eq!(written, [path.join("requests.jsonl"), path.join("prediction.json")]);
    assert_eq!(names(&path), ["prediction.json", "requests.jsonl"], "no temporary file is left");
    assert_eq!(fs::read_to_string(path.join("prediction.json")).unwrap(), "1\n");
}

#[test]
fn an_abandoned_run_leaves_nothing() {
    let path = fresh("abandoned");
    let mut dir = OutputDir::prepare(&path, false).unwrap();
    dir.write_json(FileName::Run, &1).unwrap();
    let unfinished = dir.create(FileName::Requests).unwrap();
    drop(unfinished);
    drop(dir);
    assert_eq!(names(&path), [""; 0]);
}

#[test]
fn a_folder_in_use_needs_overwrite_and_keeps_what_is_not_ours() {
    let path = fresh("overwrite");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("prediction.json"), "old").unwrap();
    fs::write(path.join("requests.jsonl"), "old").unwrap();
    fs::write(path.join("notes.txt"), "mine").unwrap();

    let error = OutputDir::prepare(&path, false).unwrap_err();
    assert!(matches!(error, ReportError::NotEmpty { .. }));
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");

    let mut dir = OutputDir::prepare(&path, true).unwrap();
    assert_eq!(fs::read_to_string(path.join("prediction.json")).unwrap(), "old", "not before the end");
    dir.write_json(FileName::Prediction, &"new").unwrap();
    dir.commit().unwrap();
    assert_eq!(names(&path), ["notes.txt", "prediction.json"], "no requests of another run stay");
    assert_eq!(fs::read_to_string(path.join("prediction.json")).unwrap(), "\"new\"\n");
    assert_eq!(fs::read_to_string(path.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn what_a_killed_run_left_is_no_hindrance() {
    let path = fresh("killed");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join(".windtunnel-requests.jsonl-1.partial"), "half a li").unwrap();
    assert!(OutputDir::prepare(&path, false).is_ok());
    OutputDir::prepare(&path, true).unwrap();
    assert_eq!(names(&path), [""; 0]);
}

/// What would stop the run at its end stops it before it begins.
#[test]
fn a_folder_that_cannot_take_the_files_is_refused_at_once() {
    let path = fresh("in-the-way");
    fs::create_dir_all(path.join("prediction.json")).unwrap();
    let error = OutputDir::prepare(&path, true).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is a folder", path.join("prediction.json").display()));
    assert_eq!(names(&path), ["prediction.json"]);
}

#[test]
fn files_that_are_not_of_the_run_are_kept() {
    let path = fresh("not-ours");
    let mut dir = OutputDir::prepare(&path, false).unwrap();
    for name in ["events.jsonl", "telemetry.jsonl"] {
        fs::write(path.join(name), "of an option").unwrap();
    }
    dir.write_json(FileName::Prediction, &1).unwrap();
    dir.commit().unwrap();
    assert_eq!(names(&path), ["events.jsonl", "prediction.json", "telemetry.jsonl"]);
}

#[test]
fn a_request_refused_before_it_was_placed_has_no_place() {
    let mut collector = Collector::new(CollectorOptions { sla: None, capture: true });
    collector.rejected(&Refusal {
        id: RequestId(0),
        name: None,
        placed: None,
        arrival: ms(1.0),
        refused: ms(1.0),
        input_tokens: 0,
        requested_output_tokens: 4,
        reason: Rejection::EmptyPrompt,
    });
    let mut text = Vec::new();
    Report::new([collector], &RunEnd::default()).write_requests(&mut text).unwrap();
    let line: serde_json::Value = serde_json::from_slice(&text).unwrap();
    for field in ["decode_worker_idx", "dp_rank", "dispatched_at_ms"] {
        assert_eq!(line[field], serde_json::Value::Null, "{field}");
    }
}

#[test]
fn errors_name_the_path_and_the_cause() {
    let path = fresh("file");
    fs::write(&path, "").unwrap();
    let error = OutputDir::prepare(&path, true).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is not a folder", path.display()));

    let below = path.join("below");
    let error = OutputDir::prepare(&below, false).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot create {}: ", below.display())), "{error}");
}

/// Standard output whose reader has gone, and one that fails otherwise.
struct Failing(io::ErrorKind);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_a_value() {
    let closed = print(&mut Failing(io::ErrorKind::BrokenPipe), "table");
    assert!(matches!(closed, Err(ReportError::ClosedPipe)));
    let full = print(&mut Failing(io::ErrorKind::StorageFull), "table");
    assert!(matches!(full, Err(ReportError::Stdout(_))));
}

/// One completed, one rejected, one cancelled request, entered out of order.
fn three_requests() -> Report {
    let mut collector = Collector::new(CollectorOptions { sla: None, capture: true });
    collector.cancelled(&RequestRecord {
        name: Some("c".into()),
        first_admit: None,
        admissions: 0,
        terminal: ms(7.5),
        finish_reason: windtunnel_engine::FinishReason::Abort,
        ..request(2, &[])
    });
    finish(&mut collector, &[10.0, 12.000001, 16.0], 0);
    collector.rejected(&Refusal {
        id: RequestId(1),
        name: None,
        placed: Some((0, 0)),
        arrival: ms(1.0),
        refused: ms(1.0),
        input_tokens: 20,
        requested_output_tokens: 4,
        reason: Rejection::LargerThanPool { needed_blocks: 6, usable_blocks: 2 },
    });
    let row = RankRow::new(Role::Aggregated, 0, 0, 4);
    collector.rank(RankRow { passes: 3, peak_kv_blocks: 3, busy: Nanos(14_000_001), ..row });
    Report::new([collector], &RunEnd::default())
}

#[test]
fn requests_come_in_order_and_with_the_same_fields() {
    let mut text = Vec::new();
    three_requests().write_requests(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        concat!(
            r#"{"request_index":0,"request_id":null,"arrival_time_ms":0.0,"dispatched_at_ms":0.0,"#,
            r#""first_admit_ms":0.0,"terminal_time_ms":16.0,"first_token_ms":10.0,"last_token_ms":16.0,"#,
            r#""ttft_ms":10.0,"ttst_ms":2.000001,"e2e_latency_ms":16.0,"itl_ms":3.0,"input_length":8,"#,
            r#""requested_output_length":3,"output_length":3,"reused_input_tokens":0,"#,
            r#""first_admission_reused_input_tokens":0,"prefill_worker_idx":null,"decode_worker_idx":0,"#,
            r#""dp_rank":0,"router_overlap_tokens":null,"router_best_overlap_tokens":null,"#,
            r#""router_regret_tokens":null,"admission_count":1,"readmission_count":0,"preemption_count":0,"retry_count":0,"#,
            r#""finish_reason":"length","terminal_status":"completed","reject_reason":null,"detail":null}"#
        )
    );
    let values: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(values[1]["terminal_status"], "rejected");
    assert_eq!(values[1]["reject_reason"], "larger_than_pool");
    assert_eq!(values[1]["detail"], "needs 6 KV blocks to finish, the pool has 2");
    // Placed at 1 ms, and refused there at once.
    assert_eq!(values[1]["decode_worker_idx"], 0);
    assert_eq!(values[1]["dp_rank"], 0);
    assert_eq!(values[1]["dispatched_at_ms"], 1.0);
    assert_eq!(values[1]["first_admit_ms"], serde_json::Value::Null);
    assert_eq!(values[2]["terminal_status"], "canceled");
    assert_eq!(values[2]["request_id"], "c");
    assert_eq!(values[2]["finish_reason"], "abort");
    assert_eq!(values[2]["terminal_time_ms"], 7.5);
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(values.iter().all(|value| keys(value) == keys(&values[0])));
}

#[test]
fn without_capture_there_are_no_requests() {
    let report = common::report(&[&[1.0]], Default::default());
    assert!(!report.has_requests());
    let mut text = Vec::new();
    report.write_requests(&mut text).unwrap();
    assert!(text.is_empty());
}

#[test]
fn a_prediction_holds_what_is_needed_to_read_it() {
    let mut report = three_requests();
    report.notes.push("KV capacity was given, not estimated".to_owned());
    let versions = BTreeMap::from([("windtunnel".to_owned(), "0.1.0".to_owned())]);
    let config = serde_json::json!({"engine": {"backend": "vllm"}});
    let prediction = Prediction::new(&report, &versions, "native", &config);
    let value = serde_json::to_value(&prediction).unwrap();
    assert_eq!(value["schema_version"], 1);
    assert_eq!(value["kind"], "prediction");
    assert_eq!(value["versions"]["windtunnel"], "0.1.0");
    assert_eq!(value["semantics"], "native");
    assert_eq!(value["percentile_method"], "linear");
    assert_eq!(value["summary"]["mean_ttft_ms"], 10.0);
    assert_eq!(value["summary"]["peak_kv_usage"], 0.75);
    assert_eq!(value["rejections"], serde_json::json!({"larger_than_pool": 1}));
    assert_eq!(value["workers"][0]["role"], "aggregated");
    assert_eq!(value["workers"][0]["busy_ms"], 14.000001);
    assert_eq!(value["workers"][0]["prefix_cache_hit_rate"], serde_json::Value::Null);
    assert_eq!(value["config"], config);
    assert_eq!(value["notes"][0], "KV capacity was given, not estimated");
    assert!(serde_json::to_string(&value).unwrap().find("wall_time").is_none());
}

#[test]
fn speed_is_told_apart_from_the_prediction() {
    let run = RunFile {
        version: "0.1.0".into(),
        threads: 2,
        wall_time_ms: 250.0,
        processed_tokens: 1000,
        processed_output_tokens: 100,
        peak_memory_bytes: Some(1 << 20),
    };
    let value = serde_json::to_value(&run).unwrap();
    assert_eq!(value["kind"], "run");
    assert_eq!(value["processed_tokens_per_s"], 4000.0);
    assert_eq!(value["processed_output_tokens_per_s"], 400.0);
    let unmeasured = serde_json::to_value(RunFile::default()).unwrap();
    assert_eq!(unmeasured["processed_tokens_per_s"], serde_json::Value::Null);
}
