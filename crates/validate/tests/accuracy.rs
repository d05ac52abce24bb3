//! Predictions beside measured deployments: what is read, what is predicted, and that errors do not grow.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_validate::accuracy::points;
use windtunnel_validate::accuracy::report::PointsReport;
use windtunnel_validate::accuracy::run::{Outcome, Tried, predict};

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

/// Every 40th of the public measurements. The bounds are the errors of this version and a twentieth more.
#[test]
fn errors_do_not_grow() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets/silicon_points_dev.csv.gz");
    if !file.exists() {
        println!("skipped: there is no {}", file.display());
        return;
    }
    let points: Vec<points::Point> = points::read(&file).unwrap().into_iter().step_by(40).collect();
    let report = PointsReport::new(&outcomes(&points));
    println!("{}", report.table());
    assert!(report.predicted * 100 >= report.measured * 85, "{} of {}", report.predicted, report.measured);
    let [tpot, ttft] = [report.overall.tpot.unwrap(), report.overall.ttft.unwrap()];
    let bound = |is: f64, was: f64| assert!(is <= was * 1.05, "{is} % was {was} %");
    bound(tpot.median_abs_pct, TPOT_MEDIAN_PCT);
    bound(tpot.mean_abs_pct, TPOT_MEAN_PCT);
    bound(ttft.median_abs_pct, TTFT_MEDIAN_PCT);
}

const TPOT_MEDIAN_PCT: f64 = 14.7;
const TPOT_MEAN_PCT: f64 = 21.6;
const TTFT_MEDIAN_PCT: f64 = 34.7;
