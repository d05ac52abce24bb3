//! Calibrated timing from the packs of the checkout: what a file gets, and what is said of cells that nothing
//! covers.

use std::fmt::Write as _;
use windtunnel_config::{Experiment, from_str};
use windtunnel_engine::{Chunk, DecodeSet, Shape};
use windtunnel_perf::Composition;

const FILE: &str = "
engine:
  model: meta-llama/Llama-3.1-8B-Instruct
  hardware: h200_sxm
  backend_version: \"0.24.0\"
  workers:
    aggregated:
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 40000}}
      timing: {pass_us: 0, sequence_us: 0, gpu_scale: 1}
";

fn load(overrides: &[&str]) -> Result<Experiment, String> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    from_str("file.yaml", FILE, &overrides).map_err(|error| {
        let mut text = String::new();
        for problem in &error.problems {
            writeln!(text, "{}: {}", problem.path, problem.message).unwrap();
        }
        text
    })
}

#[test]
fn passes_of_llama_on_h200() {
    let experiment = load(&[]).unwrap();
    let timing = &experiment.deployment.timing;
    assert_eq!(timing.composition(), Composition::Mixed);
    let chunks = [Chunk { new_tokens: 2048, before: 0 }];
    let mut decode = DecodeSet::default();
    (0..32).for_each(|_| decode.add(2048));
    let ms = |prefill: &[Chunk], decode: DecodeSet| timing.pass_duration(&Shape { prefill, decode }).as_ms();
    // Upstream, of the same measurements: 43.402 and 7.285 ms, and 45.57 ms of both in one pass.
    assert!((ms(&chunks, DecodeSet::default()) / 43.402 - 1.0).abs() < 0.03);
    assert!((ms(&[], decode) / 7.285 - 1.0).abs() < 0.03);
    assert!((ms(&chunks, decode) / 45.57 - 1.0).abs() < 0.03);
}

#[test]
fn the_host_adds_its_time_to_every_pass() {
    let shape = Shape { prefill: &[Chunk { new_tokens: 100, before: 0 }], decode: DecodeSet::default() };
    let pass = |overrides: &[&str]| load(overrides).unwrap().deployment.timing.pass_duration(&shape).0;
    let with_host = pass(&["engine.workers.aggregated.timing.pass_us=1500"]);
    assert_eq!(with_host - pass(&[]), 1_500_000);
    // One sequence: the chunk.
    let for_each = pass(&["engine.workers.aggregated.timing.sequence_us=20"]);
    assert_eq!(for_each - pass(&[]), 20_000);
}

#[test]
fn timing_may_be_left_out() {
    let whole = FILE.replace("      timing: {pass_us: 0, sequence_us: 0, gpu_scale: 1}\n", "");
    let experiment = from_str("file.yaml", &whole, &[]).unwrap();
    assert_eq!(experiment.effective["engine"]["workers"]["aggregated"]["timing"]["type"], "default");
}

#[test]
fn what_is_not_covered_is_named_with_what_is() {
    let timing = "engine.workers.aggregated.timing";
    let cases: &[(&[&str], &str)] = &[
        (
            &["engine.hardware=h300"],
            "engine.hardware: got \"h300\"; timing.type default: there are no measurements of it, but of a100_sxm",
        ),
        (
            &["engine.backend_version='0.9'"],
            "engine.backend_version: got \"0.9\"; timing.type default: of h200_sxm there are no measurements of it, but of sglang 0.5.14",
        ),
        (
            &["engine.model=llama"],
            "engine.model: got \"llama\"; timing and capacity of type default need a model",
        ),
        (&["engine.model=zai-org/GLM-5"], "sparse attention is not measured for zai-org/GLM-5"),
        (
            &["engine.gemm_quant_mode=nvfp4"],
            "matrix product is not measured for nvfp4,6144,4096; nearest: bfloat16",
        ),
        (
            &["engine.model=Qwen/Qwen3-30B-A3B", "engine.workers.aggregated.parallelism.tensor=2"],
            "product must be",
        ),
        (&["engine.workers.aggregated.parallelism.tensor=3"], "allowed is a divisor of the model's 32 heads"),
        (&["engine.workers.aggregated.timing.prefill_ms=1"], "belongs to timing.type fixed"),
    ];
    for (overrides, said) in cases {
        let text = load(overrides).unwrap_err();
        assert!(text.contains(said), "{overrides:?}: {text}");
    }
    let roofline = format!("{timing}.allow_roofline=true");
    load(&["engine.gemm_quant_mode=nvfp4", &roofline]).unwrap();
    let foreign = load(&["engine.workers.aggregated.timing.type=polynomial"]).unwrap_err();
    assert!(foreign.contains("timing.pass_us: got 0; it belongs to timing.type default"), "{foreign}");
}
