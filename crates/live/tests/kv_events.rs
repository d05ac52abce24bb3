//! KV-event batches against those of the real engines, byte for byte, from request to payload: the goldens of
//! `tools/wire/*_kv_events.py` were made by the engines' own schedulers, hashes and encoders.

mod goldens;

use goldens::drive::{Case, Driver, Settings};
use goldens::golden_lines;
use serde::Deserialize;
use std::collections::HashSet;
use windtunnel_engine::{Rank, Stepper, sglang, vllm};
use windtunnel_live::kv_events::hash::{BlockHasher, HashAlgorithm};
use windtunnel_live::kv_events::{Encoding, EventStream, Naming};

#[derive(Clone, Debug, Deserialize)]
struct Hashes {
    algorithm: String,
    seed: Option<String>,
    as_numbers: bool,
    dp_rank: u32,
}

#[derive(Deserialize)]
struct VllmCase {
    #[serde(flatten)]
    case: Case,
    hashes: Hashes,
    arrays: Option<Vec<String>>,
}

fn vllm_rank(settings: &Settings, stepper: Stepper) -> Rank {
    let mut config = vllm::Config::new(settings.num_blocks.unwrap(), settings.block_size.unwrap_or(16), 8192);
    config.max_num_seqs = settings.max_num_seqs.unwrap_or(128);
    config.max_num_batched_tokens = settings.max_num_batched_tokens.unwrap_or(2048);
    config.async_scheduling = settings.async_scheduling;
    config.prefix_caching = settings.enable_prefix_caching.unwrap_or(true);
    config.kv_events = true.into();
    Rank::Vllm(Box::new(vllm::Rank::new(config, stepper).unwrap()))
}

fn vllm_payloads(case: &VllmCase, stepper: Stepper, encoding: Encoding) -> Vec<String> {
    let Hashes { algorithm, seed, as_numbers, dp_rank } = case.hashes.clone();
    let algorithm = HashAlgorithm::ALL.into_iter().find(|a| a.name() == algorithm).unwrap();
    let hasher = BlockHasher::new(algorithm, seed.as_deref());
    let block_size = case.case.settings.block_size.unwrap_or(16);
    let stream = EventStream::new(Naming::Vllm { hasher, as_numbers }, encoding, block_size, dp_rank);
    let rank = vllm_rank(&case.case.settings, stepper);
    Driver::new(&case.case, rank, stream).run()
}

#[test]
fn vllm_batches_are_the_engines_byte_for_byte() {
    let cases: Vec<VllmCase> = golden_lines("vllm_kv_events.jsonl");
    assert_eq!(cases.len(), 14);
    let mut kinds = HashSet::new();
    for case in &cases {
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let ours = vllm_payloads(case, stepper, Encoding::Map);
            goldens::assert_payloads(&case.case.name, &ours, &case.case.batches);
        }
        kinds.extend(case.case.batches.iter().flat_map(|batch| goldens::event_kinds(batch)));
        // K11: without prefix caching the publisher is silent.
        assert_eq!(case.case.batches.is_empty(), case.case.name == "cache_off");
    }
    assert_eq!(kinds, HashSet::from(["BlockStored", "BlockRemoved"]));
}

/// K6 (llmd#570, vllm#42892): consumers of either encoding get the same events. The arrays are vLLM's own from before it
/// changed to maps.
#[test]
fn k6_both_encodings_are_the_engines() {
    let cases: Vec<VllmCase> = golden_lines("vllm_kv_events.jsonl");
    let with_arrays = cases.iter().filter_map(|case| Some((case, case.arrays.as_ref()?)));
    let compared = with_arrays.inspect(|(case, arrays)| {
        let ours = vllm_payloads(case, Stepper::Fast, Encoding::Array);
        goldens::assert_payloads(&case.case.name, &ours, arrays);
        assert_eq!(arrays.len(), case.case.batches.len());
    });
    assert!(compared.count() > 0);
}

#[derive(Deserialize)]
struct SglangCase {
    #[serde(flatten)]
    case: Case,
    dynamo: bool,
    decode_log_interval: u64,
}

fn sglang_rank(settings: &Settings, stepper: Stepper) -> Rank {
    let pool = settings.max_total_tokens.unwrap();
    let mut config = sglang::Config::new(pool, settings.page_size.unwrap_or(1), 8192);
    config.max_running_requests = 64;
    config.chunked_prefill_size = Some(settings.chunked_prefill_size.unwrap_or(8192));
    config.mixed_chunk = settings.enable_mixed_chunk;
    config.overlap = !settings.disable_overlap.unwrap_or(true);
    config.kv_events = true.into();
    config.refuse_unservable = false;
    Rank::Sglang(Box::new(sglang::Rank::new(config, stepper).unwrap()))
}

#[test]
fn sglang_batches_are_the_engines_byte_for_byte() {
    let cases: Vec<SglangCase> = golden_lines("sglang_kv_events.jsonl");
    assert_eq!(cases.len(), 10);
    let mut kinds = HashSet::new();
    for case in &cases {
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let settings = &case.case.settings;
            let naming =
                Naming::Sglang { dynamo: case.dynamo, decode_log_interval: case.decode_log_interval };
            let stream = EventStream::new(naming, Encoding::Map, settings.page_size.unwrap_or(1), 0);
            let ours = Driver::new(&case.case, sglang_rank(settings, stepper), stream).run();
            goldens::assert_payloads(&case.case.name, &ours, &case.case.batches);
        }
        kinds.extend(case.case.batches.iter().flat_map(|batch| goldens::event_kinds(batch)));
    }
    assert_eq!(kinds, HashSet::from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]));
}
