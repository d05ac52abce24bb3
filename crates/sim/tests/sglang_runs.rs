//! Whole runs with SGLang whose right outcome is the engine's (SGLang 0.5.23; files are those below
//! sglang/srt): what a request that says nothing gets, what is cut, what is given up.

mod common;

use common::{Asked, Output, Trial, asked, unlike};
use windtunnel_sim::Stepper;

const USUAL: [&str; 3] = [
    "engine.backend=sglang",
    "engine.workers.aggregated.scheduler={max_sequences: 8}",
    "engine.workers.aggregated.kv_cache={block_size: 1, capacity: {type: fixed, blocks: 4000}}",
];

/// The request file as it is, with both steppers.
fn run(settings: &[&str], lines: &str) -> Output {
    let traffic = "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: trace_timestamps}}";
    let settings: Vec<&str> = USUAL.iter().chain(settings).copied().chain([traffic]).collect();
    let trial = Trial::load(common::SMALL, &settings, lines).unwrap();
    let (plain, fast) = (trial.run(Stepper::Plain), trial.run(Stepper::Fast));
    assert!(plain.prediction == fast.prediction && plain.requests == fast.requests);
    fast
}

fn run_asked(settings: &[&str], requests: &[Asked]) -> Output {
    run(settings, &common::lines(requests))
}

/// managers/scheduler.py, `_set_or_validate_priority`: a request without a priority is the least urgent of all,
/// whichever way priorities count; also after one of -5, or, counted the other way, of 5.
#[test]
fn a_request_without_priority_comes_last() {
    let line = |id: &str, at: u32, priority: &str| {
        format!(
            "{{\"id\":\"{id}\",\"prompt_token_ids\":[{at},{at}],\"max_tokens\":4,\"arrival_ms\":{at}{priority}}}\n"
        )
    };
    for (low_first, priority) in [(false, ",\"priority\":-5"), (true, ",\"priority\":5")] {
        let scheduler = format!(
            "engine.workers.aggregated.scheduler={{policy: priority, max_sequences: 1, overlap: false, \
             schedule_low_priority_values_first: {low_first}}}"
        );
        let requests =
            [line("first", 0, ",\"priority\":0"), line("without", 1, ""), line("with", 2, priority)].concat();
        let output = run(&[&scheduler], &requests);
        let admitted = |request| output.of(request, "first_admit_ms").unwrap();
        assert!(admitted(2) < admitted(1), "{} {}", admitted(1), admitted(2));
    }
}

/// What a request says of ignore_eos holds for it, whatever holds for the others (`--ignore-eos` of a benchmark is a
/// default for requests).
#[test]
fn a_request_says_itself_whether_it_ends_early() {
    let line = |id: &str, says: &str| {
        format!(
            "{{\"id\":\"{id}\",\"prompt_token_ids\":[1,2,3],\"max_tokens\":9,\"arrival_ms\":0,\
             \"output_token_ids\":[7,7,5],\"stop_token_ids\":[5]{says}}}\n"
        )
    };
    let all = [line("a", ""), line("b", ",\"ignore_eos\":false"), line("c", ",\"ignore_eos\":true")].concat();
    for (ignore_eos, expected) in [("false", [3.0, 3.0, 9.0]), ("true", [9.0, 3.0, 9.0])] {
        let output = run(&[&format!("engine.workers.aggregated.scheduler.ignore_eos={ignore_eos}")], &all);
        assert_eq!([0, 1, 2].map(|request| output.of(request, "output_length").unwrap()), expected);
    }
}

/// managers/scheduler.py, `init_req_max_new_tokens`, and mem_cache: prompt and outputs stay two tokens below the context
/// length, and where a prompt leaves no room in the pool, one token is given. Who reads the report is told.
#[test]
fn outputs_are_cut_to_context_and_pool() {
    let output = run_asked(&["engine.context_length=64"], &unlike(&[(0.0, 50, 14), (0.0, 50, 12)]));
    assert_eq!((output.of(0, "output_length"), output.of(1, "output_length")), (Some(12.0), Some(12.0)));
    let notes = |output: &Output| output.prediction()["notes"].as_array().map_or(0, Vec::len);
    assert_eq!(notes(&output), 1);
    let pool = "engine.workers.aggregated.kv_cache={block_size: 16, capacity: {type: fixed, blocks: 64}}";
    let output = run_asked(&[pool], &unlike(&[(0.0, 1000, 100_000)]));
    assert_eq!((output.of(0, "output_length"), notes(&output)), (Some(1.0), 1));
    assert_eq!(notes(&run_asked(&[], &unlike(&[(0.0, 50, 14)]))), 0);
}

/// managers/schedule_batch.py, `retract_decode`: the last one that runs, which does not fit even alone, is
/// aborted. Nobody has cancelled it.
#[test]
fn a_request_that_the_engine_gives_up_has_failed() {
    let settings = [
        "engine.workers.aggregated.scheduler={max_sequences: 8, chunked_prefill_size: 4, clip_max_new_tokens: 1, \
         prefill_decode_interval: 5, overlap: false}",
        "engine.workers.aggregated.kv_cache={block_size: 1, capacity: {type: fixed, blocks: 41}}",
    ];
    let output = run_asked(&settings, &unlike(&[(0.0, 7, 34), (20.0, 21, 10)]));
    assert_eq!((output.count("failed_requests"), output.count("cancelled_requests")), (1, 0));
    let failed: Vec<_> =
        output.requests().into_iter().filter(|request| request["terminal_status"] == "failed").collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["detail"], "the engine gave it up: the KV cache has no room for it, even alone");
}

/// Turns without a batch take no time, however many of them prefill has to wait for.
#[test]
fn a_prefill_put_off_on_an_idle_engine_begins_at_once() {
    let runs: Vec<Vec<u8>> = [2u32, u32::MAX]
        .map(|interval| {
            let setting = format!("engine.workers.aggregated.scheduler.prefill_decode_interval={interval}");
            let requests = [asked(0.0, 0..8, 3), asked(100.0, 10..18, 3), asked(200.0, 20..28, 3)];
            run_asked(&[&setting], &requests).requests
        })
        .into();
    assert!(runs[0] == runs[1]);
}

/// Without a prefix cache nothing is looked up.
#[test]
fn without_a_cache_there_are_no_queries() {
    let cache = "engine.workers.aggregated.kv_cache.prefix_caching=false";
    let output = run_asked(&[cache], &unlike(&[(0.0, 8, 3)]));
    let prediction = output.prediction();
    let rank = &prediction["workers"][0];
    assert_eq!(
        (rank["prefix_cache_queries"].as_u64(), &rank["prefix_cache_hit_rate"]),
        (Some(0), &serde_json::Value::Null)
    );
}
