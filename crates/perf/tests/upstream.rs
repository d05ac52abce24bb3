//! Pass times beside those of aiconfigurator-core 0.12.0, whose measurements are the same: dense models
//! within 3 %, experts and latent attention within 5 %. `tools/perf/upstream.py` asks it.

use serde_json::Value;
use std::path::Path;
use windtunnel_engine::{Chunk, DecodeSet};
use windtunnel_perf::calibrated::{Architecture, Cell, Constants, Engine, PassModel, Sources, Types};
use windtunnel_perf::models::ModelDescription;
use windtunnel_perf::packs::Store;

fn store() -> Store {
    Store::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/perf"))
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|number| number.try_into().ok()).unwrap()
}

fn compile(case: &Value) -> PassModel {
    let text = |key: &str| case[key].as_str().unwrap();
    let engine = match text("backend") {
        "vllm" => Engine::Vllm,
        "sglang" => Engine::Sglang,
        _ => Engine::Trtllm,
    };
    let model = ModelDescription::named(text("model")).unwrap();
    let opened = Sources::open(&store(), text("system"), engine, Some(text("version")), false).unwrap();
    // Upstream takes its times as they are. What we replace has a test of its own below.
    let sources = opened.as_measured();
    let types = Types {
        gemm: text("gemm").into(),
        experts: text("experts").into(),
        attention_gemm: text("gemm").into(),
        kv: text("kv").into(),
    };
    let cell = Cell {
        model: Architecture::of(&model).unwrap(),
        engine,
        tensor: number(&case["tensor"]),
        pipeline: 1,
        attention_data: number(&case["attention_data"]),
        moe_tensor: number(&case["moe_tensor"]),
        moe_expert: number(&case["moe_expert"]),
        types,
    };
    PassModel::compile(&sources, &cell, Constants::NONE).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// Passes that differ by more on purpose, and why. None by a tenth.
const ON_PURPOSE: &[(&str, &str, &str)] = &[
    // SGLang's products of one row that take over one and a half times as long as larger ones are screened.
    ("Qwen/Qwen3-235B-A22B", "b200_sxm", "decode 1 x 512"),
    // Upstream shrinks the projections of a chunk with what is cached before it; they do not depend on it.
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", "prefill 1 x 2048 after 6144"),
    ("deepseek-ai/DeepSeek-V3", "b200_sxm", "prefill 1 x 2048 after 6144"),
    // Three of the 61 layers have no experts; upstream counts them as if they had.
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", "prefill 1 x 2048 after 0"),
];
const AT_MOST_PCT: f64 = 10.0;

/// Ours and theirs of every pass of a case, in milliseconds.
fn passes(case: &Value, model: &PassModel) -> Vec<(String, f64, f64)> {
    let mut passes = Vec::new();
    for pass in case["prefill"].as_array().unwrap() {
        let (batch, new, before) = (number(&pass[0]), number(&pass[1]), number(&pass[2]));
        let chunks = vec![Chunk { new_tokens: new, before }; batch as usize];
        let (ms, _) = model.pass_ms(&chunks, &DecodeSet::default());
        passes.push((format!("prefill {batch} x {new} after {before}"), ms, pass[3].as_f64().unwrap()));
    }
    for pass in case["decode"].as_array().unwrap() {
        let (batch, context) = (number(&pass[0]), number(&pass[1]));
        let mut decode = DecodeSet::default();
        (0..batch).for_each(|_| decode.add(context));
        let (ms, _) = model.pass_ms(&[], &decode);
        passes.push((format!("decode {batch} x {context}"), ms, pass[2].as_f64().unwrap()));
    }
    passes
}

#[test]
fn passes_are_as_long_as_upstream_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upstream.jsonl");
    let text = std::fs::read_to_string(file).unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let model = compile(&case);
        let name = format!("{} {} {} tp{}", case["model"], case["system"], case["backend"], case["tensor"]);
        println!("{name}");
        let (known, system) = (case["model"].as_str().unwrap(), case["system"].as_str().unwrap());
        let dense = ModelDescription::named(known).unwrap().experts.is_none();
        for (pass, ours, theirs) in passes(&case, &model) {
            let percent = (ours / theirs - 1.0) * 100.0;
            println!("    {pass}: {ours:.3} ms, upstream {theirs:.3} ms, {percent:+.1} %");
            count += 1;
            let on_purpose = ON_PURPOSE.contains(&(known, system, pass.as_str()));
            let allowed = if on_purpose {
                AT_MOST_PCT
            } else if dense {
                3.0
            } else {
                5.0
            };
            if percent.abs() > allowed {
                wrong.push(format!("{name}, {pass}: {percent:+.1} %"));
            }
        }
    }
    println!("{count} passes");
    assert!(count >= 60);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sparse attention: decodes of eight and more, and whole prompts of 8,192 tokens in a pass. Of fewer tokens measured
/// modules are bound by their launches, where upstream takes less than was measured under SGLang; and a chunk behind other
/// tokens is measured under SGLang only, where upstream shares a whole prompt out as if every token looked at all before it.
#[test]
fn sparse_attention_is_near_what_upstream_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upstream_sparse.jsonl");
    let mut count = 0;
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let model = compile(&case);
        for (pass, ours, theirs) in passes(&case, &model) {
            let percent = (ours / theirs - 1.0) * 100.0;
            println!(
                "{} {}, {pass}: {ours:.3} ms, upstream {theirs:.3} ms, {percent:+.1} %",
                case["model"], case["system"]
            );
            let few = ["1 x 512", "1 x 2048"].iter().any(|size| pass.contains(size));
            if !few {
                count += 1;
                assert!(percent.abs() < 12.0, "{pass}: {percent:+.1} %");
            }
        }
    }
    assert_eq!(count, 24);
}

/// TensorRT-LLM on B200, 70B in 4 bits on one accelerator: 12.06 ms a token were measured with four requests in flight
/// (silicon_sample.csv), 16.6 ms follow from the times of its own pack, of which both other engines say that products
/// of few rows take 13 µs where it says 22.
#[test]
fn times_that_both_other_engines_contradict_are_replaced() {
    let description = ModelDescription::named("nvidia/Llama-3.1-70B-Instruct-FP8").unwrap();
    let cell = Cell {
        model: Architecture::of(&description).unwrap(),
        engine: Engine::Trtllm,
        tensor: 1,
        pipeline: 1,
        attention_data: 1,
        moe_tensor: 1,
        moe_expert: 1,
        types: Types {
            gemm: "nvfp4".into(),
            experts: "nvfp4".into(),
            attention_gemm: "nvfp4".into(),
            kv: "fp8".into(),
        },
    };
    let open = || Sources::open(&store(), "b200_sxm", Engine::Trtllm, None, false).unwrap();
    let mut decode = DecodeSet::default();
    (0..4).for_each(|_| decode.add(1500));
    let ms = |sources: Sources| {
        let model = PassModel::compile(&sources, &cell, Constants::NONE).unwrap();
        (model.pass_ms(&[], &decode).0, model.uses().iter().map(|one| one.outvoted).sum::<u32>())
    };
    let ((own, none), (screened, some)) = (ms(open().as_measured()), ms(open()));
    assert_eq!(none, 0);
    assert!(some > 50, "{some}");
    assert!(own > 15.5 && (10.5..13.5).contains(&screened), "{own} {screened}");
}
