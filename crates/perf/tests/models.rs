//! Model descriptions: numbers of parameters as their makers publish them, bytes of a token by hand, and
//! what a config.json may not say.

use windtunnel_perf::models::{
    Attention, Dtype, Indexer, ModelDescription, Part, Sharding, WeightFormat, Window, aliases, names,
};

fn named(name: &str) -> ModelDescription {
    ModelDescription::named(name).unwrap_or_else(|| panic!("{name} is built in"))
}

fn read(config: &str) -> Result<ModelDescription, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let error = |error: windtunnel_perf::models::ModelError| error.message;
    ModelDescription::read(folder.path()).map_err(error)
}

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256"#;

#[test]
fn parameters_are_those_of_the_checkpoints() {
    // "Total parameters" of the model cards' safetensors on Hugging Face, language model only: of DeepSeek-V3
    // and Kimi K2 without the draft layer.
    for (name, parameters) in [
        ("meta-llama/Meta-Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Meta-Llama-3.1-70B", 70_553_706_496),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B", 3_212_749_824),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("mistralai/Mistral-7B-v0.3", 7_248_023_552),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("mistralai/Mixtral-8x22B-v0.1", 140_620_634_112),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("openai/gpt-oss-120b", 116_829_156_672),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
        ("moonshotai/Kimi-K2-Instruct", 1_026_408_232_448),
    ] {
        assert_eq!(named(name).parameters(), parameters, "{name}");
    }
    // What their makers call them.
    for (name, billions) in [
        ("MiniMaxAI/MiniMax-M2.5", 229.0),
        ("zai-org/GLM-5", 744.0),
        ("Qwen/Qwen3.5-397B-A17B", 396.0),
        ("Qwen/Qwen3.5-27B", 27.0),
        ("deepseek-ai/DeepSeek-V3.2", 672.0),
    ] {
        assert_eq!((named(name).parameters() as f64 / 1e9).round(), billions, "{name}");
    }
}

#[test]
fn every_name_and_every_alias_is_found_in_any_case_of_letters() {
    let names = names();
    assert!(names.len() > 70, "{}", names.len());
    for name in &names {
        assert_eq!(&named(name).name, name);
        assert_eq!(&named(&name.to_uppercase()).name, name);
    }
    for (alias, own) in aliases() {
        assert_eq!(named(alias).name, *own);
        assert!(!names.iter().any(|name| name == alias), "{alias} is both");
    }
    assert_eq!(ModelDescription::named("nobody/nothing"), None);
}

#[test]
fn bytes_of_a_token_are_layers_times_heads_or_latent_times_bytes() {
    let bytes = |name: &str, tensor: u32, dtype: Dtype| {
        named(name).kv_bytes_per_token(Sharding { tensor, ..Sharding::ONE }, dtype)
    };
    // 32 layers × 2 × 8 heads × 128 numbers × 2 bytes, by heads over accelerators, at least one of them.
    assert_eq!(bytes("meta-llama/Meta-Llama-3.1-8B", 1, Dtype::Bfloat16), 131_072);
    assert_eq!(bytes("meta-llama/Meta-Llama-3.1-8B", 2, Dtype::Bfloat16), 65_536);
    assert_eq!(bytes("meta-llama/Meta-Llama-3.1-8B", 8, Dtype::Fp8), 8_192);
    assert_eq!(bytes("meta-llama/Meta-Llama-3.1-8B", 16, Dtype::Fp8), 8_192);
    // The latent is on every accelerator: 61 × (512 + 64), in 8 bits 35136 bytes.
    assert_eq!(bytes("deepseek-ai/DeepSeek-V3", 1, Dtype::Fp8), 35_136);
    assert_eq!(bytes("deepseek-ai/DeepSeek-V3", 8, Dtype::Fp8), 35_136);
    assert_eq!(bytes("deepseek-ai/DeepSeek-V3", 8, Dtype::Bfloat16), 70_272);
    // The indexer's key beside it: 128 numbers of 8 bits and a scale of 32; fp8 as in vLLM's fp8_ds_mla, 656.
    assert_eq!(bytes("deepseek-ai/DeepSeek-V3.2", 8, Dtype::Bfloat16), 61 * (2 * 576 + 132));
    assert_eq!(bytes("deepseek-ai/DeepSeek-V3.2", 8, Dtype::Fp8), 61 * (656 + 132));
    // Every fourth layer of 60 attends: 15 × 2 × 2 heads × 256 × 2 bytes.
    assert_eq!(bytes("Qwen/Qwen3.5-397B-A17B", 1, Dtype::Bfloat16), 30_720);
    // Two stages of Llama's 32 layers have 16 each, of DeepSeek's 61 one has 31.
    let staged = |name: &str| {
        named(name).kv_bytes_per_token(Sharding { pipeline: 2, ..Sharding::ONE }, Dtype::Bfloat16)
    };
    assert_eq!(staged("meta-llama/Meta-Llama-3.1-8B"), 65_536);
    assert_eq!(staged("deepseek-ai/DeepSeek-V3"), 31 * 2 * 576);
}

#[test]
fn a_linear_layer_keeps_a_state_for_each_sequence() {
    // Per layer: 64 heads of values × 128 × 128 of 4 bytes, and 3 inputs of the convolution
    // (2 × 16 × 128 + 64 × 128) of 2 bytes; 45 layers.
    let model = named("Qwen/Qwen3.5-397B-A17B");
    let state = 45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2);
    assert_eq!(model.state_bytes_per_sequence(Sharding::ONE), state);
    assert_eq!(model.state_bytes_per_sequence(Sharding { tensor: 8, ..Sharding::ONE }), state / 8);
    assert_eq!(named("Qwen/Qwen3-32B").state_bytes_per_sequence(Sharding::ONE), 0);
}

#[test]
fn weights_of_a_rank_go_by_how_each_part_is_spread() {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let weights = |name: &str, tensor, experts| {
        gib(named(name).weight_bytes_per_rank(Sharding { tensor, experts, pipeline: 1 }))
    };
    // aiconfigurator-core 0.12.0 says 14.957, 30.511 and 84.607 GiB for these; of the last, it counts
    // experts in all 61 layers, 1.31 GiB each, where the first three have none.
    assert!((weights("meta-llama/Meta-Llama-3.1-8B", 1, 1) - 14.957).abs() < 0.001);
    assert!((weights("Qwen/Qwen3-32B", 2, 1) - 30.511).abs() < 0.002);
    assert!((weights("deepseek-ai/DeepSeek-V3", 8, 8) - 79.293).abs() < 0.001);
    // KV heads that are fewer than the accelerators are repeated: 4 heads on 8 are as on 4.
    let projections = |tensor| {
        let model = named("Qwen/Qwen3-30B-A3B");
        let part = model.weights.iter().find(|part| part.part == Part::KvProjection).unwrap();
        let without = ModelDescription {
            weights: model.weights.iter().copied().filter(|p| p.part != Part::KvProjection).collect(),
            ..model.clone()
        };
        let sharding = Sharding { tensor, ..Sharding::ONE };
        let share = model.weight_bytes_per_rank(sharding) - without.weight_bytes_per_rank(sharding);
        (share, part.bytes)
    };
    let (on_eight, all) = projections(8);
    assert_eq!(on_eight, all / 4);
    assert_eq!(projections(2).0, all / 2);
    // Two stages: half of the layers, and the table of embeddings or the head, which are equal here.
    let model = named("meta-llama/Meta-Llama-3.1-8B");
    let table = 128_256 * 4096 * 2;
    let staged = model.weight_bytes_per_rank(Sharding { pipeline: 2, ..Sharding::ONE });
    assert_eq!(staged, (model.weight_bytes() - 2 * table) / 2 + table);
}

#[test]
fn what_is_quantised_and_what_is_not() {
    let format = |name: &str, part: Part| {
        let model = named(name);
        model.weights.iter().find(|weights| weights.part == part).unwrap().format
    };
    use WeightFormat::{Bfloat16, Fp8Block, Int4, Mxfp4, Nvfp4};
    assert_eq!(format("deepseek-ai/DeepSeek-V3", Part::Attention), Fp8Block);
    assert_eq!(format("deepseek-ai/DeepSeek-V3", Part::Embedding), Bfloat16);
    assert_eq!(format("openai/gpt-oss-120b", Part::Experts), Mxfp4);
    assert_eq!(format("openai/gpt-oss-120b", Part::Attention), Bfloat16);
    assert_eq!(format("nvidia/Kimi-K2.5-NVFP4", Part::Experts), Nvfp4);
    assert_eq!(format("nvidia/Kimi-K2.5-NVFP4", Part::Attention), Bfloat16);
    assert_eq!(format("moonshotai/Kimi-K2.5", Part::Experts), Int4);
    // One scale of 4 bytes for 128 × 128 numbers.
    let model = named("Qwen/Qwen3-32B-FP8");
    let part = model.weights.iter().find(|weights| weights.part == Part::FeedForward).unwrap();
    assert_eq!(part.bytes, part.parameters + part.parameters / 128 / 128 * 4);
}

#[test]
fn weights_can_be_stored_in_another_format() {
    let same = |ours: u64, theirs: u64| ours.abs_diff(theirs) < 100;
    let fp8 = named("Qwen/Qwen3-32B").stored_as(Some(WeightFormat::Fp8Block), None);
    assert!(same(fp8.weight_bytes(), named("Qwen/Qwen3-32B-FP8").weight_bytes()));
    let base = named("Qwen/Qwen3-30B-A3B");
    let experts = base.clone().stored_as(None, Some(WeightFormat::Nvfp4));
    let parameters =
        |part: Part| base.weights.iter().find(|weights| weights.part == part).unwrap().parameters;
    let saved = base.weight_bytes() - experts.weight_bytes();
    assert_eq!(saved, (parameters(Part::Experts) as f64 * (2.0 - 0.5625)) as u64);
    assert_eq!(base.clone().stored_as(Some(WeightFormat::Bfloat16), None), base);
}

#[test]
fn windows_and_indexers_are_read() {
    let window = |name: &str| named(name).window;
    assert_eq!(window("openai/gpt-oss-120b"), Some(Window { layers: 18, tokens: 128 }));
    // Qwen2.5 carries a window that its file turns off.
    assert_eq!(window("Qwen/Qwen2.5-7B-Instruct"), None);
    let llama4 = window("meta-llama/Llama-4-Scout-17B-16E-Instruct");
    assert_eq!(llama4, Some(Window { layers: 36, tokens: 8192 }));
    // Of GLM-5.2 one layer of four picks, and the first three.
    let indexer = named("zai-org/GLM-5.2").indexer;
    assert_eq!(indexer, Some(Indexer { layers: 21, heads: 32, head_dim: 128, top_k: 2048 }));
}

#[test]
fn a_config_is_read_with_its_defaults_and_a_nested_one_from_inside() {
    let model = read(&format!("{LLAMA}}}")).unwrap();
    assert_eq!(model.weights, named("meta-llama/Meta-Llama-3.1-8B").weights);
    // head_dim is hidden_size over heads where it is not given, and what is given where it is.
    let dim = |model: &ModelDescription| match model.attention {
        Attention::Gqa { head_dim, .. } => head_dim,
        Attention::Mla { .. } => 0,
    };
    assert_eq!(dim(&model), 128);
    assert_eq!(dim(&read(&format!("{LLAMA}, \"head_dim\": 64}}")).unwrap()), 64);
    let nested =
        format!("{{\"model_type\": \"wrapper\", \"text_config\": {LLAMA}}}, \"vision_config\": {{}}}}");
    let nested = read(&nested).unwrap();
    assert!(nested.has_encoder);
    assert_eq!(nested.weights, model.weights);
}

#[test]
fn what_cannot_be_described_is_refused_with_its_key() {
    let refused = |config: &str| read(config).unwrap_err();
    for (config, words) in [
        ("[]", "is not a JSON object"),
        ("{", "not JSON"),
        ("{}", "model_type: missing"),
        (r#"{"model_type": "mamba"}"#, "model_type: got \"mamba\"; allowed is one of llama"),
        (&format!("{LLAMA}, \"num_hidden_layers\": 0}}"), "num_hidden_layers: got 0; allowed is an integer"),
        (
            &format!("{LLAMA}, \"num_key_value_heads\": 5}}"),
            "num_key_value_heads: got 5; allowed is a divisor",
        ),
        (&format!("{LLAMA}, \"num_attention_heads\": 3, \"num_key_value_heads\": 3}}"), "head_dim: missing"),
        (&format!("{LLAMA}, \"torch_dtype\": \"int3\"}}"), "torch_dtype: got \"int3\""),
        (&format!("{LLAMA}, \"index_topk\": 4}}"), "index_topk: got 4"),
        (&format!("{LLAMA}, \"sliding_window\": 4}}"), "sliding_window: got 4"),
        (&format!("{LLAMA}, \"layer_types\": [\"full_attention\"]}}"), "layer_types: got 1 words"),
        (
            &format!("{LLAMA}, \"num_hidden_layers\": 1, \"layer_types\": [\"linear\"]}}"),
            "layer_types: got \"linear\"",
        ),
        (&format!("{LLAMA}, \"quantization_config\": {{\"quant_method\": \"magic\"}}}}"), "got \"magic\""),
        (
            &format!("{LLAMA}, \"quantization_config\": {{\"quant_method\": \"gptq\", \"bits\": 3}}}}"),
            "quantization_config.bits: got 3; allowed is 4 or 8",
        ),
        (
            &format!(
                "{LLAMA}, \"quantization_config\": {{\"quant_method\": \"fp8\", \"weight_block_size\": [0]}}}}"
            ),
            "weight_block_size: got [0]",
        ),
    ] {
        let message = refused(config);
        assert!(message.contains(words), "{config}\n  gives {message}\n  without {words}");
    }
}

#[test]
fn numbers_that_no_model_has_do_not_overflow() {
    let most = 0x7fff_ffff_u32;
    let config = format!(
        "{{\"model_type\": \"llama\", \"hidden_size\": {most}, \"intermediate_size\": {most}, \
         \"num_attention_heads\": 1, \"head_dim\": {most}, \"num_hidden_layers\": 10000, \"vocab_size\": {most}}}"
    );
    assert_eq!(read(&config).unwrap_err(), "has more than 2^60 parameters");
    let layers = config.replace("10000", "10001");
    assert!(read(&layers).unwrap_err().contains("num_hidden_layers: got 10001; allowed is at most 10000"));
}
