//! Predictions beside measured deployments: what is read, what is predicted, and that errors do not grow.

use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_validate::accuracy::points;
use windtunnel_validate::accuracy::report::{Both, PointsReport};
use windtunnel_validate::accuracy::run::{Outcome, Tried, predict};
use windtunnel_validate::accuracy::{RunOutcome, RunReport, runs};

const HEADER: &str = "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,\
    tp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms";

/// Rows made up for this test.
fn made_up() -> tempfile::NamedTempFile {
    let row = |id: &str, model: &str, mode: &str| {
        format!(
            "{id},a; silicon_concurrency=4; measured=2026-01-01,vllm,0.9,{model},h200_sxm,,{mode},512,64,9,1,1,1,1,50,8"
        )
    };
    let rows = [
        row("one", "meta-llama/Llama-3.1-8B-Instruct", "agg"),
        row("again", "meta-llama/Llama-3.1-8B-Instruct", "agg"),
        row("apart", "meta-llama/Llama-3.1-8B-Instruct", "disagg"),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{HEADER}\n{}\n", rows.join("\n"))).unwrap();
    file
}

fn outcomes(points: &[points::Point]) -> Vec<Outcome> {
    let interrupt = Arc::new(AtomicBool::new(false));
    points.iter().map(|point| predict(point, Tried::default(), interrupt.clone())).collect()
}

#[test]
fn a_measurement_counts_once_and_separate_workers_stand_apart() {
    let file = made_up();
    let points = points::read(file.path()).unwrap();
    assert_eq!(points.iter().map(|point| point.id.as_str()).collect::<Vec<_>>(), ["one", "apart"]);
    assert_eq!(points[0].concurrency, 4);
    let report = PointsReport::new(&outcomes(&points));
    assert_eq!((report.measured, report.predicted, report.disaggregated), (1, 1, 1));
    assert_eq!(report.overall.tpot.as_ref().unwrap().n, 1);
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["partitions"].as_array().unwrap().iter().any(|part| part["key"] == "vllm"));
    assert!(json["overall"]["ttft"]["median_signed_pct"].is_number());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cases = [
        ("id,isl\n".to_owned(), "line 1: the column silicon_data_source is missing"),
        (
            format!("{HEADER}\na,b,vllm,1,m,s,,agg,x,1,1,1,,,,1,1\n"),
            "line 2: isl: got \"x\"; allowed is a whole number",
        ),
        (format!("{HEADER}\na,b,vllm,1,m,s,,agg,1,1,1,1,,,,0,1\n"), "line 2: silicon_ttft_ms: got \"0\""),
    ];
    for (text, said) in cases {
        std::fs::write(file.path(), text).unwrap();
        let error = points::read(file.path()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// Every 20th of the public measurements, beside the errors of this version (accuracy_gate.json): none may be over a
/// twentieth larger overall, or a tenth for an engine or accelerator.
#[test]
fn errors_do_not_grow() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets/silicon_points_dev.csv.gz");
    if !file.exists() {
        println!("skipped: there is no {}", file.display());
        return;
    }
    let gate: Value = serde_json::from_str(include_str!("accuracy_gate.json")).unwrap();
    let points: Vec<points::Point> = points::read(&file).unwrap().into_iter().step_by(20).collect();
    let report = PointsReport::new(&outcomes(&points));
    println!("{}", report.table());
    assert!(report.predicted * 100 >= report.measured * 85, "{} of {}", report.predicted, report.measured);
    check("overall", &report.overall, &gate["overall"], 1.05);
    for (name, was) in gate["partitions"].as_object().unwrap() {
        let found = report.partitions.iter().find(|part| format!("{} {}", part.by, part.key) == *name);
        check(name, &found.unwrap_or_else(|| panic!("{name} is gone")).errors, was, 1.10);
    }
}

fn check(name: &str, is: &Both, was: &Value, may_grow: f64) {
    for (quantity, errors) in [("tpot", &is.tpot), ("ttft", &is.ttft)] {
        let errors = errors.as_ref().unwrap_or_else(|| panic!("{name}: no prediction"));
        assert!(errors.n as u64 >= was[quantity]["n"].as_u64().unwrap(), "{name}: {} predictions", errors.n);
        for (statistic, is) in
            [("median_abs_pct", errors.median_abs_pct), ("mean_abs_pct", errors.mean_abs_pct)]
        {
            let was = was[quantity][statistic].as_f64().unwrap();
            assert!(is <= was * may_grow, "{name}: {quantity} {statistic} is {is}, was {was}");
        }
    }
}

/// Runs made up for this test: one on an accelerator with measurements, one on another, one that nothing describes.
#[test]
fn runs_are_predicted_as_their_file_describes_them() {
    let meta = |run: &str, device: &str| {
        format!(
            "{{\"kind\": \"meta\", \"run\": \"{run}\", \"model\": \"meta-llama/Llama-3.1-8B\", \"engine_kwargs\": \
             {{\"max_num_seqs\": 64, \"max_num_batched_tokens\": 2048}}, \"kv_cache\": {{\"num_gpu_blocks\": 4000, \
             \"block_size\": 16}}, \"hardware\": {{\"device_name\": \"{device}\"}}}}\n"
        )
    };
    let requests = |run: &str, count: u32| -> String {
        (0..count)
            .map(|i| {
                let (at, first, last) = (f64::from(i), f64::from(i) + 0.03, f64::from(i) + 0.24);
                format!(
                    "{{\"kind\": \"request\", \"run\": \"{run}\", \"input_toks\": 256, \"output_toks\": 31, \
                     \"arrival_time\": {at}, \"first_token_ts\": {first}, \"last_token_ts\": {last}}}\n"
                )
            })
            .collect()
    };
    let text = meta("known", "NVIDIA H100 80GB HBM3")
        + &meta("other", "NVIDIA GeForce RTX 4090")
        + &requests("known", 20)
        + &requests("other", 110)
        + &requests("untold", 3);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let reports = runs(file.path(), &[], &Arc::default()).unwrap();
    let [known, other, untold] = &reports[..] else { panic!("{reports:?}") };
    let error = |report: &RunReport, name: &str| match &report.outcome {
        RunOutcome::Compared(comparison) => comparison.get(name).unwrap().error_pct.unwrap(),
        RunOutcome::Uncovered { uncovered } => panic!("{uncovered}"),
    };
    assert_eq!((known.run.as_str(), known.system.as_str()), ("known", "h100_sxm"));
    // 7 ms a token were written above; an H100 reads 16 GB of weights in 5 to 8.
    assert!(error(known, "mean_tpot_ms").abs() < 25.0, "{known:?}");
    // Fitted to the first hundred, so that the last ten, which are like them, come out.
    let RunOutcome::Compared(comparison) = &other.outcome else { panic!("{other:?}") };
    assert_eq!(comparison.requests, 10);
    assert!(
        error(other, "mean_tpot_ms").abs() < 1.0 && error(other, "mean_ttft_ms").abs() < 1.0,
        "{other:?}"
    );
    assert!(matches!(&untold.outcome, RunOutcome::Uncovered { uncovered } if uncovered.contains("meta")));
    let json = serde_json::to_value(&reports).unwrap();
    assert_eq!(json[0]["metrics"][0]["name"], "mean_ttft_ms");
    assert!(json[2]["uncovered"].is_string());
}
