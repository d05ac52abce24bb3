//! What a worker's clock promises: passes and busy time count when they have happened, events stand in the
//! order of passes, a closed loop over many workers costs what its requests cost, and time has an end.

mod common;

use common::{SMALL, Trial, asked};
use serde_json::Value;
use windtunnel_sim::{SimError, Stepper};

const BOTH: [Stepper; 2] = [Stepper::Plain, Stepper::Fast];

fn worker(prediction: &[u8]) -> Value {
    serde_json::from_slice::<Value>(prediction).unwrap()["workers"][0].clone()
}

/// Asynchronous: prefill 0–10 ms, decodes 10–12 and 12–14 ms. Cut off at 12 ms, two passes have ended and
/// the third is in flight: 2 passes, 12 ms busy.
#[test]
fn a_pass_in_flight_at_the_cut_is_no_pass_and_busy_until_the_cut() {
    for stepper in BOTH {
        let trial = Trial::small(&["traffic.stop.max_virtual_time_seconds=0.012"], &[asked(0.0, 0..8, 8)]);
        let row = worker(&trial.run(stepper).prediction);
        assert_eq!((row["passes"].as_u64(), row["busy_ms"].as_f64()), (Some(2), Some(12.0)));
        let trial = Trial::small(&["traffic.stop.max_virtual_time_seconds=0.011"], &[asked(0.0, 0..8, 8)]);
        let row = worker(&trial.run(stepper).prediction);
        assert_eq!((row["passes"].as_u64(), row["busy_ms"].as_f64()), (Some(1), Some(11.0)));
    }
}

/// A request that is preempted when it needs a block, while its last token is in flight, leaves the other one
/// decoding steadily: that pass, too, tells of the preemption when it ends.
#[test]
fn a_preemption_is_told_with_its_pass_also_where_steady_passes_follow() {
    let shared = 1000..1024;
    let (first, second) = (shared.clone().chain([1]), shared.chain(2..12));
    let requests = [asked(0.0, first, 15), asked(0.0, second, 10)];
    let settings = [
        "engine.workers.aggregated.scheduler={max_batched_tokens: 7, max_sequences: 3, reserve_full_isl: false}",
        "engine.workers.aggregated.kv_cache={block_size: 2, capacity: {type: fixed, blocks: 29}}",
        "engine.workers.aggregated.timing={type: fixed, prefill_ms: 0, decode_ms: 7}",
    ];
    let trial = Trial::small(&settings, &requests);
    let told = BOTH.map(|stepper| trial.run(stepper).events);
    assert!(String::from_utf8_lossy(&told[0]).contains("preempted"));
    assert!(told[0] == told[1]);
}

/// At no sample has a rank been busy longer than the clock has run, and its counters end where the report's
/// do: the last sample is taken when the run ends.
#[test]
fn telemetry_ends_with_the_run() {
    for stepper in BOTH {
        let trial = Trial::small(&[], &[asked(0.0, 0..8, 8), asked(5.0, 0..80, 3)]);
        let output = trial.run(stepper);
        let samples = output.telemetry();
        for sample in &samples {
            assert!(sample["total"]["busy_ms"].as_f64() <= sample["time_ms"].as_f64(), "{sample}");
        }
        let (last, row) = (&samples[samples.len() - 1]["total"], worker(&output.prediction));
        for counter in ["passes", "prefill_tokens", "decode_tokens", "preemptions", "busy_ms"] {
            assert_eq!(last[counter], row[counter], "{counter}");
        }
    }
}

/// A preemption is decided while the pass before it runs, and told with its own pass: pass numbers of a
/// rank never go back. Five blocks of 16 hold two growing requests until one must go.
#[test]
fn events_stand_in_the_order_of_passes() {
    for stepper in BOTH {
        let overrides = ["engine.workers.aggregated.kv_cache.capacity.blocks=6"];
        let requests: Vec<_> = (0..3).map(|i| asked(0.0, i * 100..i * 100 + 17, 40)).collect();
        let events = Trial::small(&overrides, &requests).run(stepper).events();
        assert!(events.iter().any(|event| event["event"] == "preempted"));
        let passes: Vec<u64> = events.iter().map(|event| event["pass"].as_u64().unwrap()).collect();
        assert!(passes.is_sorted(), "{passes:?}");
    }
}

/// The pool is full inside the pass that preempts, though not after it: that is its peak.
#[test]
fn the_peak_is_also_taken_inside_a_pass() {
    for stepper in BOTH {
        let overrides = ["engine.workers.aggregated.kv_cache.capacity.blocks=6"];
        let requests: Vec<_> = (0..3).map(|i| asked(0.0, i * 100..i * 100 + 17, 40)).collect();
        let row = worker(&Trial::small(&overrides, &requests).run(stepper).prediction);
        assert_eq!((row["peak_kv_blocks"].as_u64(), row["usable_kv_blocks"].as_u64()), (Some(5), Some(5)));
    }
}

/// A pass that would end after the longest possible run is an error that says so, not a shorter pass.
#[test]
fn time_has_an_end() {
    let linear = "engine.workers.aggregated.timing={type: linear, linear: {base_ms: 9.0e+13}}";
    for stepper in BOTH {
        let error = Trial::small(&[linear], &[asked(0.0, 0..8, 2)]).try_run(stepper).err().unwrap();
        assert!(matches!(error, SimError::Endless { worker: 0, .. }), "{error}");
        assert!(error.to_string().contains("292 years"), "{error}");
    }
}

/// 20,000 workers with one request each, twice. Quadratic in the workers, such a run takes many seconds.
#[test]
fn a_closed_loop_over_many_workers_costs_what_its_requests_cost() {
    let overrides = [
        "traffic={source: {type: synthetic, input_tokens: 8, output_tokens: 2}, \
         load: {type: concurrency, concurrency: 20000}, stop: {requests: 40000}}",
        "engine.workers.aggregated.parallelism.replicas=20000",
    ];
    let output = Trial::load(SMALL, &overrides, "").unwrap().run_unwatched(Stepper::Fast);
    assert_eq!((output.count("completed_requests"), output.metric("duration_ms")), (40_000, Some(24.0)));
}

/// Two prompts of four blocks in chunks of one block, a pool of four blocks, each admitted by its first chunk
/// alone, and the one admitted first loses its blocks: neither ever gets a token. (The engine's own test of
/// this has the steps.) The run says so instead of going on.
#[test]
fn a_livelock_is_an_error_that_names_the_requests() {
    let overrides = [
        "engine.workers.aggregated.scheduler={max_batched_tokens: 32, max_sequences: 2, async_scheduling: false, \
         reserve_full_isl: false, long_prefill_token_threshold: 16, preemption_mode: fifo}",
        "engine.workers.aggregated.kv_cache={block_size: 16, prefix_caching: false, capacity: {type: fixed, blocks: 5}}",
    ];
    for stepper in BOTH {
        let trial = Trial::small(&overrides, &[asked(0.0, 0..64, 1), asked(5.0, 100..164, 1)]);
        let error = trial.try_run(stepper).err().unwrap();
        assert!(
            matches!(&error, SimError::Livelock { worker: 0, rank: 0, requests } if requests == &[0, 1]),
            "{error}"
        );
    }
}
