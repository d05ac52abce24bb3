//! KV capacity: the figures of AISimulate's own estimator, budgets that vLLM's logs show, public bug reports,
//! and the arithmetic of what is set aside.

use windtunnel_perf::capacity::{Backend, Budget, CapacityError, FractionSource, Request, Rules, budget};
use windtunnel_perf::hardware::Accelerator;
use windtunnel_perf::models::{Dtype, ModelDescription, Sharding};

const GIB: f64 = (1u64 << 30) as f64;

/// A deployment; `experts` follow from the accelerators.
#[derive(Clone)]
struct Case {
    model: ModelDescription,
    accelerator: Accelerator,
    backend: Backend,
    version: Option<&'static str>,
    rules: Rules,
    tensor: u32,
    attention_data: u32,
    fraction: Option<f64>,
    kv_dtype: Option<Dtype>,
    block_size: u32,
    tokens: u32,
    sequences: u32,
    graphs: u64,
}

fn case(model: &str, hardware: &str, backend: Backend) -> Case {
    Case {
        model: ModelDescription::named(model).unwrap(),
        accelerator: Accelerator::named(hardware).unwrap(),
        backend,
        version: None,
        rules: Rules::Native,
        tensor: 1,
        attention_data: 1,
        fraction: None,
        kv_dtype: None,
        block_size: 16,
        tokens: 8192,
        sequences: 256,
        graphs: 0,
    }
}

impl Case {
    fn try_run(&self) -> Result<Budget, CapacityError> {
        let all = self.tensor * self.attention_data;
        let experts = if self.model.experts.is_some() { all } else { 1 };
        budget(&Request {
            model: &self.model,
            accelerator: &self.accelerator,
            backend: self.backend,
            backend_version: self.version,
            rules: self.rules,
            sharding: Sharding { tensor: self.tensor, pipeline: 1, experts },
            attention_data: self.attention_data,
            memory_fraction: self.fraction,
            cuda_graph_bytes: self.graphs,
            kv_dtype: self.kv_dtype,
            block_size: self.block_size,
            max_batched_tokens: self.tokens,
            max_sequences: self.sequences,
        })
    }

    fn run(&self) -> Budget {
        self.try_run().unwrap()
    }
}

/// How far a number is from another one, in parts of that.
fn off(ours: f64, theirs: f64) -> f64 {
    (ours / theirs - 1.0).abs()
}

#[test]
fn the_reference_rules_give_aisimulates_figures() {
    // aiconfigurator-core 0.12.0, estimate_kv_cache: 882,732 tokens (55,170 blocks of 16). Ours count the
    // weights of the norms too, which takes two tokens.
    let mut vllm = case("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", Backend::Vllm);
    vllm.rules = Rules::Aisimulate013;
    let budget = vllm.run();
    assert_eq!((budget.blocks, budget.tokens), (55_170, 882_720));
    assert_eq!((budget.memory_fraction, budget.memory_fraction_source), (0.9, FractionSource::Default));
    // 2,474,752 tokens, with 84.607 GiB of weights: 5.3 GiB more than the checkpoint has, since it counts
    // experts in layers without any. With ours, 5.3 · 0.9 GiB more of 35136 bytes.
    let mut trtllm = case("deepseek-ai/DeepSeek-V3", "b200_sxm", Backend::Trtllm);
    trtllm.rules = Rules::Aisimulate013;
    trtllm.tensor = 8;
    trtllm.kv_dtype = Some(Dtype::Fp8);
    trtllm.block_size = 32;
    let ours = trtllm.run();
    let theirs = 2_474_752.0 + (84.607 - ours.weight_bytes as f64 / GIB) * 0.9 * GIB / 35_136.0;
    assert!(off(ours.tokens as f64, theirs) < 0.001, "{} {theirs}", ours.tokens);
    assert_eq!(ours.kv_bytes_per_token, 35_136);
}

#[test]
fn budgets_are_those_that_vllm_logs() {
    // github.com/llm-d/llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md: H100, fraction 0.9,
    // 1024 sequences. "Available KV cache memory" in GiB; weights within 0.1 GiB.
    let measured = [
        ("meta-llama/Meta-Llama-3.1-8B", 14.99, 51.38),
        ("Qwen/Qwen3-0.6B", 1.12, 64.45),
        ("Qwen/Qwen3-32B", 61.03, 4.45),
    ];
    for (model, weights, kv) in measured {
        let mut case = case(model, "h100_sxm", Backend::Vllm);
        case.fraction = Some(0.9);
        case.sequences = 1024;
        let budget = case.run();
        let [our_weights, our_kv] = [budget.weight_bytes, budget.kv_bytes].map(|bytes| bytes as f64 / GIB);
        assert!((our_weights - weights).abs() < 0.1, "{model}: {our_weights}");
        // 0.2 GiB: of the smallest pool 4 %.
        assert!((our_kv - kv).abs() < 0.2, "{model}: {our_kv}");
    }
    // The log of a vLLM 0.31 server, Llama-3.1-8B on an A100 of 80 GB with what that takes by itself (fraction
    // 0.92, 2048 tokens, 256 sequences): 56.21 GiB, 460,496 tokens.
    let mut server = case("meta-llama/Llama-3.1-8B-Instruct", "a100_sxm", Backend::Vllm);
    server.version = Some("0.31.0");
    server.tokens = 2048;
    let budget = server.run();
    assert_eq!(budget.memory_fraction, 0.92);
    assert!(off(budget.tokens as f64, 460_496.0) < 0.015, "{}", budget.tokens);
}

#[test]
fn the_cache_of_a_small_accelerator_is_off_by_a_twentieth() {
    // casys-kaist/LLMServingSim, RTX 4090 (24564 MiB), vLLM 0.19.0: 2588 blocks of 16 tokens.
    let mut case = case("meta-llama/Llama-3.1-8B", "l4", Backend::Vllm);
    case.accelerator = Accelerator::of_memory(24_564.0 / 1024.0).unwrap();
    (case.version, case.tokens) = (Some("0.19.0"), 2048);
    let budget = case.run();
    assert_eq!(budget.memory_fraction, 0.9);
    assert!(off(budget.tokens as f64, 41_408.0) < 0.06, "{}", budget.tokens);
}

#[test]
fn an_fp8_cache_holds_twice_the_tokens() {
    let sixteen = case("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", Backend::Vllm);
    let mut eight = sixteen.clone();
    eight.kv_dtype = Some(Dtype::Fp8);
    assert_eq!(eight.run().kv_bytes, sixteen.run().kv_bytes);
    assert_eq!(eight.run().blocks / 2, sixteen.run().blocks);
}

#[test]
fn the_budget_adds_up() {
    for backend in [Backend::Vllm, Backend::Sglang, Backend::Trtllm] {
        for rules in [Rules::Native, Rules::Aisimulate013] {
            let mut case = case("Qwen/Qwen3-235B-A22B-FP8", "h200_sxm", backend);
            (case.rules, case.tensor, case.graphs) = (rules, 4, 1 << 30);
            let b = case.run();
            let sum = b.weight_bytes
                + b.activation_bytes
                + b.communication_bytes
                + b.runtime_bytes
                + b.cuda_graph_bytes
                + b.reserved_bytes
                + b.unused_bytes
                + b.kv_bytes;
            assert!(b.memory_bytes.abs_diff(sum) < 16, "{backend:?} {rules:?}: {sum} of {}", b.memory_bytes);
            assert_eq!(b.blocks, b.kv_bytes / b.kv_bytes_per_token / 16, "{backend:?} {rules:?}");
            let without = Case { graphs: 0, ..case.clone() }.run();
            assert!(without.kv_bytes > b.kv_bytes, "{backend:?}: CUDA graphs take memory");
        }
    }
}

#[test]
fn windows_are_set_aside_where_that_leaves_more() {
    // gpt-oss-120b keeps 2 · 8 · 64 · 2 = 2048 bytes of a token and layer; 18 of 36 layers keep 128 tokens.
    let mut case = case("openai/gpt-oss-120b", "h200_sxm", Backend::Vllm);
    let budget = case.run();
    assert_eq!(budget.kv_bytes_per_token, 18 * 2048);
    assert_eq!(budget.window_bytes, 256 * 128 * 18 * 2048);
    assert_eq!(budget.tokens / 16, (budget.kv_bytes - budget.window_bytes) / (18 * 2048) / 16);
    assert!(budget.notes[0].contains("18 of the 36 layers"), "{:?}", budget.notes);
    // So many short sequences that every one of them may be shorter than the window: all layers count.
    case.sequences = 4_000_000;
    (case.accelerator, case.tokens) = (Accelerator::of_memory(400.0).unwrap(), 16);
    let budget = case.run();
    assert_eq!((budget.kv_bytes_per_token, budget.window_bytes), (36 * 2048, 0));
}

#[test]
fn states_of_linear_layers_are_set_aside_for_every_sequence() {
    let mut case = case("Qwen/Qwen3.5-397B-A17B", "b200_sxm", Backend::Vllm);
    case.tensor = 8;
    let budget = case.run();
    let one = case.model.state_bytes_per_sequence(Sharding { tensor: 8, ..Sharding::ONE });
    assert_eq!(budget.state_bytes, 256 * one);
    // One KV head of 256 numbers in each of 15 layers.
    assert_eq!(budget.kv_bytes_per_token, 15 * 2 * 256 * 2);
    assert!(budget.notes[0].contains("45 of the 60 layers"), "{:?}", budget.notes);
}

#[test]
fn the_default_fraction_is_the_versions() {
    let fraction = |backend, version| {
        let mut case = case("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", backend);
        case.version = version;
        case.try_run().map(|budget| budget.memory_fraction)
    };
    assert_eq!(fraction(Backend::Vllm, None).unwrap(), 0.92);
    assert_eq!(fraction(Backend::Vllm, Some("0.19.0")).unwrap(), 0.9);
    assert_eq!(fraction(Backend::Vllm, Some("v0.22.1")).unwrap(), 0.92);
    assert_eq!(fraction(Backend::Vllm, Some("0.24.0")).unwrap(), 0.92);
    for unknown in ["0.20.1", "nightly", ""] {
        let error = fraction(Backend::Vllm, Some(unknown)).unwrap_err();
        assert_eq!(error.field, "backend_version");
    }
    assert_eq!(fraction(Backend::Trtllm, Some("1.3.0rc20")).unwrap(), 0.9);
    // 81559 MiB less 512 + 1.5 · 8192 + 128 + 512 MiB, which is above 10 GiB: 68119 / 81559.
    assert_eq!(fraction(Backend::Sglang, Some("0.5.16")).unwrap(), 0.835);
}

// ---- public bug reports (aiconfigurator #1396, #652; inference-sim #1035, #624) ----

#[test]
fn c1_a_fraction_left_out_is_the_versions_own_and_not_the_whole_memory() {
    let mut case = case("nvidia/Kimi-K2.5-NVFP4", "b200_sxm", Backend::Vllm);
    (case.version, case.tensor, case.tokens) = (Some("0.22.0"), 8, 8192);
    let budget = case.run();
    assert_eq!(budget.memory_fraction, 0.92);
    assert_eq!(budget.memory_fraction_source, FractionSource::Default);
    let used = (budget.memory_bytes - budget.unused_bytes) as f64 / GIB;
    // 0.92 of what CUDA sees, and what the driver keeps; the report has 161.7 GiB, and 179.7 with the fault.
    assert!((163.0..167.0).contains(&used), "{used}");
    case.fraction = Some(1.0);
    assert!(case.run().blocks > budget.blocks);
}

#[test]
fn c3_capacity_in_tokens_does_not_depend_on_the_block_size_and_the_fraction_counts() {
    let mut case = case("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", Backend::Vllm);
    let sixteen = case.run();
    case.block_size = 64;
    let sixty_four = case.run();
    assert_eq!(sixty_four.blocks, sixteen.blocks / 4);
    case.fraction = Some(0.5);
    assert!(case.run().blocks < sixty_four.blocks / 2);
}

#[test]
fn c4_a_model_that_does_not_fit_is_an_error_that_names_the_lack() {
    // 671 GB of weights on two accelerators of 80 GB.
    let mut case = case("deepseek-ai/DeepSeek-V3", "h100_sxm", Backend::Vllm);
    case.tensor = 2;
    let error = case.try_run().unwrap_err();
    assert_eq!(error.field, "accelerator");
    for words in ["79.6 GiB of memory have no room for KV blocks", "GiB are missing", "weights take 31"] {
        assert!(error.message.contains(words), "{}", error.message);
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refused = |change: &dyn Fn(&mut Case)| {
        let mut case = case("Qwen/Qwen3-30B-A3B", "h100_sxm", Backend::Vllm);
        change(&mut case);
        case.try_run().unwrap_err().field
    };
    assert_eq!(refused(&|case| case.tensor = 3), "tensor");
    assert_eq!(refused(&|case| case.tensor = 0), "tensor");
    assert_eq!(refused(&|case| case.fraction = Some(1.5)), "memory_fraction");
    assert_eq!(refused(&|case| case.fraction = Some(f64::NAN)), "memory_fraction");
    assert_eq!(refused(&|case| case.block_size = 0), "block_size");
    assert_eq!(refused(&|case| case.block_size = u32::MAX), "accelerator");
}
