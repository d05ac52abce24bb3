//! The constants of calibrated timing, found from measured runs.

mod common;

use common::{real_run, shared, simulated};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::{Experiment, from_str};
use windtunnel_engine::{Chunk, DecodeSet, Shape};
use windtunnel_perf::{Speedup, TimingModel};
use windtunnel_validate::calibrate::{ConstantsFit, FitError, fit_constants};
use windtunnel_validate::measured::{MeasuredRun, Prompts};

fn deployment(hardware: &str, tensor: u32, timing: &str) -> Experiment {
    let text = format!(
        "engine:
  model: meta-llama/Llama-3.1-8B-Instruct
  hardware: {hardware}
  workers:
    aggregated:
      parallelism: {{tensor: {tensor}}}
      scheduler: {{max_batched_tokens: 2048, max_sequences: 256}}
      kv_cache: {{block_size: 16, capacity: {{type: fixed, blocks: 2588}}}}
      timing: {timing}
"
    );
    from_str("case.yaml", &text, &[]).unwrap()
}

/// The fit to the first `first` requests, when `with_scale` is the deployment at another scale of communication.
fn found(
    with_scale: &dyn Fn(f64) -> Experiment,
    run: &MeasuredRun,
    prompts: Option<&Prompts>,
    first: usize,
) -> Result<ConstantsFit, FitError> {
    let requests = run.workload(prompts).unwrap();
    let interrupt = Arc::new(AtomicBool::new(false));
    fit_constants(&with_scale(1.0), run, &requests, &|scale| Ok(with_scale(scale)), first, &interrupt)
}

#[test]
fn constants_are_found_again() {
    let timing = "{type: default, pass_us: 2000, sequence_us: 40, gpu_scale: 1.3, communication_scale: 5}";
    let law = deployment("h100_sxm", 2, timing).deployment.timing.law().clone();
    let with_scale =
        |scale: f64| deployment("h100_sxm", 2, &format!("{{type: default, communication_scale: {scale}}}"));
    let run = simulated(&with_scale(1.0), law.clone());
    let ConstantsFit { constants, fit } = found(&with_scale, &run, None, 30).unwrap();
    let held_out = fit.held_out.unwrap();
    for name in ["mean_ttft_ms", "mean_tpot_ms", "duration_ms"] {
        let metric = held_out.get(name).unwrap();
        assert!(metric.error_pct.unwrap().abs() < 1.0, "{metric:?}");
    }
    // Constants stand in for each other; the times that they make together of passes as in the run do not.
    let timing = format!(
        "{{type: default, pass_us: {}, sequence_us: {}, gpu_scale: {}, communication_scale: {}}}",
        constants.pass_us, constants.sequence_us, constants.gpu_scale, constants.communication_scale
    );
    let [made, found] = [law, deployment("h100_sxm", 2, &timing).deployment.timing.law().clone()]
        .map(|law| TimingModel::new(law, None, Speedup::NONE).unwrap());
    for (decodes, new_tokens) in [(1, 0), (8, 0), (16, 0), (4, 500), (0, 300)] {
        let chunks = [Chunk { new_tokens, before: 0 }];
        let mut decode = DecodeSet::default();
        (0..decodes).for_each(|_| decode.add(600));
        let prefill: &[Chunk] = if new_tokens > 0 { &chunks } else { &[] };
        let ms = |timing: &TimingModel| timing.pass_duration(&Shape { prefill, decode }).as_ms();
        let (made, found) = (ms(&made), ms(&found));
        assert!((found / made - 1.0).abs() < 0.05, "{decodes} {new_tokens}: {found} for {made} ms");
    }
}

#[test]
fn only_calibrated_timing_has_constants() {
    let fixed = |_| deployment("h100_sxm", 1, "{type: fixed, prefill_ms: 1, decode_ms: 1}");
    let run = simulated(&fixed(1.0), fixed(1.0).deployment.timing.law().clone());
    let error = found(&fixed, &run, None, 30).unwrap_err();
    assert_eq!(
        error.to_string(),
        "engine.workers.aggregated.timing.type: got \"fixed\"; allowed for constants is \"default\""
    );
}

/// vLLM 0.19 on an RTX 4090, of which there are no measurements of operations: its data sheet and a hundred requests give
/// the other two hundred. Settings and blocks are those of the run's meta line; the bounds are 5 % and 3 %.
#[test]
fn a_described_accelerator_and_a_hundred_requests() {
    let Some(datasets) = shared() else { return };
    let (run, prompts) = real_run(&datasets, "RTX4090/Llama-3.1-8B");
    let described = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rtx_4090.gpu");
    let one = |_| deployment(&described.display().to_string(), 1, "{type: default, allow_roofline: true}");
    let ConstantsFit { constants, fit } = found(&one, &run, Some(&prompts), 100).unwrap();
    let held_out = fit.held_out.unwrap();
    println!("{constants:?}");
    assert_eq!(held_out.requests, 200);
    for (metric, bound) in [("mean_ttft_ms", 5.0), ("mean_tpot_ms", 3.0), ("duration_ms", 2.0)] {
        let metric = held_out.get(metric).unwrap();
        println!("{metric:?}");
        assert!(metric.error_pct.unwrap().abs() < bound, "{metric:?}");
    }
    // One accelerator: nothing to fit, and nothing changed.
    assert_eq!(constants.communication_scale, 1.0);
}
