//! Calibrated timing from the packs of the checkout: what a file gets, and what is said of cells that nothing
//! covers.

use std::fmt::Write as _;
use windtunnel_config::{Experiment, from_str, load as load_file};
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

/// Sparse attention: what lies before a chunk costs what the indexer takes to choose from it, and no more.
#[test]
fn passes_of_a_model_with_sparse_attention() {
    let parallelism = "engine.workers.aggregated.parallelism={tensor: 8, moe_tensor: 8}";
    let experiment = load(&[
        "engine.model=zai-org/GLM-5-FP8",
        "engine.backend=sglang",
        "engine.backend_version=null",
        parallelism,
    ])
    .unwrap();
    let ms = |new_tokens: u32, before: u32| {
        let chunks = [Chunk { new_tokens, before }];
        let shape = Shape { prefill: &chunks, decode: DecodeSet::default() };
        experiment.deployment.timing.pass_duration(&shape).as_ms()
    };
    let [alone, behind, far] = [0, 16_384, 65_536].map(|before| ms(8192, before));
    // Measured of a layer, 8 heads: 5.163 ms alone; 6.657 and 11.21 ms behind 16,384 and 65,536 tokens; 78 layers.
    assert!(((behind - alone) / (78.0 * 1.494) - 1.0).abs() < 0.01, "{alone} {behind}");
    assert!(((far - behind) / (78.0 * 4.553) - 1.0).abs() < 0.01, "{behind} {far}");
    // Up to 2,048 tokens all are looked at: a chunk of a short prompt is as one without anything before it.
    assert_eq!(ms(512, 512), ms(512, 0));
    assert!(ms(512, 4096) > ms(512, 0));
}

/// TensorRT-LLM's whole prompts of GLM-5 do not bend on an H200: what lies before a chunk costs what it does in the engine
/// of which that was measured.
#[test]
fn what_lies_before_a_chunk_costs_something_in_every_engine() {
    let parallelism = "engine.workers.aggregated.parallelism={tensor: 8, moe_tensor: 8}";
    for backend in ["vllm", "trtllm"] {
        let backend = format!("engine.backend={backend}");
        let model = "engine.model=zai-org/GLM-5-FP8";
        let experiment = load(&[model, &backend, "engine.backend_version=null", parallelism]).unwrap();
        let ms = |before: u32| {
            let chunks = [Chunk { new_tokens: 8192, before }];
            let shape = Shape { prefill: &chunks, decode: DecodeSet::default() };
            experiment.deployment.timing.pass_duration(&shape).as_ms()
        };
        // Under SGLang 4.553 ms of a layer for 49,152 tokens more, 78 layers.
        let more = ms(65_536) - ms(16_384);
        assert!(more > 0.99 * 78.0 * 4.553, "{backend}: {more}");
    }
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

/// The figures of an H200, as its pack has them.
const GPU: &str = "memory_gib 141\nmemory_bandwidth 4.8e12\nmemory_efficiency 0.8\nkernel_us 3\nflops_16 989e12\n\
                   flops_8 1978e12\ngpus_per_node 8\nintra_node_bandwidth 450e9\ninter_node_bandwidth 50e9\np2p_us 10\nsm 90\n";

/// The file with the accelerator `gpu`, described by `figures`.
fn described(figures: &str, overrides: &[&str]) -> Result<Experiment, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine.gpu"), figures).unwrap();
    let file = folder.path().join("file.yaml");
    std::fs::write(&file, FILE.replace("h200_sxm", "mine.gpu")).unwrap();
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    load_file(&file, &overrides).map_err(|error| {
        error.problems.iter().map(|problem| format!("{}: {}\n", problem.path, problem.message)).collect()
    })
}

const ROOFLINE: &str = "engine.workers.aggregated.timing.allow_roofline=true";

#[test]
fn an_accelerator_that_a_file_describes() {
    let ms = |experiment: &Experiment, decodes: u64, new: u32| {
        let chunks = [Chunk { new_tokens: new, before: 0 }];
        let mut decode = DecodeSet::default();
        (0..decodes).for_each(|_| decode.add(2048));
        let prefill: &[Chunk] = if new > 0 { &chunks } else { &[] };
        experiment.deployment.timing.pass_duration(&Shape { prefill, decode }).as_ms()
    };
    let estimated = described(GPU, &[ROOFLINE]).unwrap();
    // A decode of one reads all weights but the embedding (15.01 GB) and 2,048 tokens of 131,072 bytes: 3.86 ms at the 81
    // and 85 % of 4.8 TB/s that such operations reach, of products; the rest is beside them: of 32 layers 4 products of 3 µs,
    // attention of 11 µs, and some element-wise kernels of 3 µs.
    let reading = 15.01e9 / (4.8e12 * 0.81) * 1e3 + 2048.0 * 131_072.0 / (4.8e12 * 0.85) * 1e3;
    let beside = ms(&estimated, 1, 0) - reading;
    assert!((32.0 * 23e-3..32.0 * 50e-3).contains(&beside), "{beside} ms");
    // Measured on an H200: within the errors of docs/accuracy.md.
    let measured = load(&[]).unwrap();
    for (decodes, new) in [(1, 0), (32, 0), (256, 0), (0, 512), (0, 8192), (64, 2048)] {
        let (estimated, measured) = (ms(&estimated, decodes, new), ms(&measured, decodes, new));
        assert!((estimated / measured - 1.0).abs() < 0.2, "{decodes} {new}: {estimated} for {measured} ms");
    }
}

#[test]
fn models_of_all_kinds_have_peak_figures() {
    let models = [
        "Qwen/Qwen3-30B-A3B",
        "deepseek-ai/DeepSeek-V3",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3.5-397B-A17B",
        "nvidia/DeepSeek-V3.1-NVFP4",
    ];
    let parallelism = "engine.workers.aggregated.parallelism={tensor: 8, moe_tensor: 1, moe_expert: 8}";
    for backend in ["vllm", "sglang", "trtllm"] {
        for model in models {
            let overrides = [
                format!("engine.model={model}"),
                format!("engine.backend={backend}"),
                "engine.backend_version=null".to_owned(),
            ];
            let overrides: Vec<&str> =
                overrides.iter().map(String::as_str).chain([parallelism, ROOFLINE]).collect();
            let experiment = described(GPU, &overrides).unwrap();
            let shape =
                Shape { prefill: &[Chunk { new_tokens: 100, before: 0 }], decode: DecodeSet::default() };
            let ms = experiment.deployment.timing.pass_duration(&shape).as_ms();
            assert!((1.0..100.0).contains(&ms), "{backend} {model}: {ms} ms");
        }
    }
}

#[test]
fn a_description_that_is_none() {
    for (figures, overrides, said) in [
        (GPU, &[][..], "allow_roofline: true estimates its times from that"),
        (
            &GPU.replace("sm 90", "sm ninety"),
            &[ROOFLINE][..],
            "line 11: got \"sm ninety\"; the value must be",
        ),
        (&GPU.replace("kernel_us", "kernel"), &[ROOFLINE], "allowed are memory_bandwidth"),
        (&GPU.replace("p2p_us 10\n", ""), &[ROOFLINE], "p2p_us is missing"),
        (&GPU.replace("4.8e12", "1e-300"), &[ROOFLINE], "memory_bandwidth"),
        (
            &GPU.replace("memory_gib 141\n", ""),
            &[ROOFLINE, "engine.workers.aggregated.kv_cache={capacity: {type: default}}"],
            "of unknown memory",
        ),
    ] {
        let text = described(figures, overrides).unwrap_err();
        assert!(text.contains(said), "{said}: {text}");
        assert_eq!(text.lines().count(), 1, "told once: {text}");
    }
}
