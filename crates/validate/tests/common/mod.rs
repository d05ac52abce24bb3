//! Measured runs for tests: files, simulated measurements, and the real ones beside the checkout.

#![allow(dead_code, reason = "each test file takes what it needs")]

use std::path::{Path, PathBuf};
use windtunnel_config::Experiment;
use windtunnel_perf::Law;
use windtunnel_validate::compare::with_requests;
use windtunnel_validate::measured::{MeasuredRun, Prompts};

/// A file in a folder of its own.
pub struct Kept {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn file(name: &str, text: &str) -> Kept {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    Kept { _folder: folder, path }
}

pub fn read(name: &str, text: &str, run: Option<&str>) -> Result<MeasuredRun, String> {
    let kept = file(name, text);
    let folder = format!("{}/", kept.path.parent().unwrap().display());
    MeasuredRun::read(&kept.path, run).map_err(|error| error.to_string().replace(&folder, ""))
}

/// What a deployment with pass times of `law` measures for 60 requests that come faster than it answers them.
pub fn simulated(experiment: &Experiment, law: Law) -> MeasuredRun {
    let mut text = String::new();
    for i in 0..60_u32 {
        let (input, output, at) = (50 + (i * 277) % 900, 5 + (i * 31) % 60, f64::from(i) * 0.05);
        text.push_str(&format!(
            "{{\"arrival_time\": {at}, \"first_token_ts\": {at}, \"last_token_ts\": {at}, \"input_toks\": {input}, \
             \"output_toks\": {output}}}\n"
        ));
    }
    let mut run = read("simulated.jsonl", &text, None).unwrap();
    let requests = run.workload(None).unwrap();
    let mut experiment = with_requests(experiment, &run, &requests);
    experiment.deployment.timing =
        windtunnel_perf::TimingModel::new(law, None, windtunnel_perf::Speedup::NONE).unwrap();
    let options = windtunnel_sim::Options { capture: true, ..Default::default() };
    let report = windtunnel_sim::run(&experiment, options).unwrap();
    for (measured, record) in run.requests.iter_mut().zip(report.completed()) {
        measured.first_token = record.first_token.unwrap();
        measured.last_token = record.last_token.unwrap();
    }
    run
}

/// The datasets, or nothing and a word about it.
pub fn shared() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets");
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no ../shared/datasets beside the checkout");
    None
}

pub fn real_run(datasets: &Path, name: &str) -> (MeasuredRun, Prompts) {
    let run = MeasuredRun::read(&datasets.join("vllm_019_measured_runs_dev.jsonl.gz"), Some(name)).unwrap();
    let prompts = Prompts::read(&datasets.join("sharegpt300_llama-3.1-8b_blocks16.jsonl.gz")).unwrap();
    (run, prompts)
}
