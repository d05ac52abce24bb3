//! Prefill and decode on workers of their own: hand-offs by hand, the reference's printed numbers, and random runs in
//! both steppers.
//!
//! | case | test |
//! |---|---|
//! | probe rows 04 05 25 26 34 of AISimulate 0.13.0 | rows_of_the_reference_are_equal |
//! | M9: the first token of the decode side is the first that a client sees | by_the_real_engine_a_report_waits_for_a_pass |
//! | M10: one output token | one_output_token_is_one_token_and_all_blocks_come_back |
//! | M14: nothing is left in flight | random_runs_are_the_same_in_both_steppers |

mod common;

use common::roles::{self, MS_A_TOKEN, PAIR, SGLANG, STEPPERS, TRTLLM, assert_free_at_the_end};
use common::{Asked, Trial, asked, lines, unlike};
use proptest::prelude::*;
use windtunnel_sim::Stepper;

fn trial(overrides: &[&str], requests: &[Asked]) -> Trial {
    Trial::load(PAIR, overrides, &lines(requests)).unwrap_or_else(|error| panic!("{error}"))
}

/// First admission, first and last token of each request, in ms; equal in both steppers.
fn times(trial: &Trial) -> Vec<[f64; 3]> {
    let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
    assert_eq!(plain.requests, fast.requests);
    assert_eq!(plain.prediction, fast.prediction);
    let fields = ["first_admit_ms", "first_token_ms", "last_token_ms"];
    (0..fast.requests().len()).map(|i| fields.map(|field| fast.of(i, field).unwrap())).collect()
}

/// shared/peer/probe_results.txt: 8 prompt tokens, 4 outputs, on 64 blocks.
#[test]
fn rows_of_the_reference_are_equal() {
    let theirs = [
        "engine.semantics=aisimulate_0_13",
        "engine.workers.prefill.kv_cache.capacity.blocks=64",
        "engine.workers.decode.kv_cache.capacity.blocks=64",
    ];
    let with = |more: &[&'static str]| [&theirs[..], more].concat();
    let missing = "engine.kv_transfer={bytes_per_token: 1000000, bandwidth_gb_per_second: 1}";
    let eight: Vec<u32> = (0..8).collect();
    let twice = vec![asked(0.0, eight.clone(), 2), asked(100.0, eight, 2)];
    let rows = [
        ("04", with(&[]), unlike(&[(0.0, 8, 4)]), vec![[0.0, 12.0, 18.0]], 8, 0.0),
        ("05", with(&[MS_A_TOKEN]), unlike(&[(0.0, 8, 4)]), vec![[0.0, 20.0, 26.0]], 8, 0.0),
        ("34", with(&[missing]), twice, vec![[0.0, 20.0, 22.0], [100.0, 112.0, 114.0]], 12, 0.25),
        ("25", [&SGLANG[..], &theirs[..1]].concat(), unlike(&[(0.0, 8, 4)]), vec![[0.0, 12.0, 18.0]], 8, 0.0),
        ("26", [&theirs[..], &TRTLLM].concat(), unlike(&[(0.0, 8, 4)]), vec![[0.0, 12.0, 18.0]], 8, 0.0),
    ];
    for (name, overrides, requests, printed, prefilled, reuse) in rows {
        let trial = trial(&overrides, &requests);
        assert_eq!(times(&trial), printed, "P{name}");
        let output = trial.run(Stepper::Fast);
        assert!(output.requests().iter().all(|request| request["admission_count"] == 2), "P{name}");
        assert_eq!(output.count("committed_prefill_tokens"), prefilled, "P{name}");
        assert_eq!(output.metric("prefix_cache_reused_ratio"), Some(reuse), "P{name}");
    }
}

/// Prompts of 8 tokens, 8 ms on the way. The decode worker is idle when the load ends at 18 and hears of it at once,
/// so the first token comes at 20. The second request is prefilled from 10 to 20 (after the first, whose prompt was in
/// the pass before), is on its way until 28, and that is told with the pass that starts then, from 28 to 30, and read
/// when that ends: its first token comes at 32. Each gives all its tokens on the decode side.
#[test]
fn by_the_real_engine_a_report_waits_for_a_pass() {
    let sync = [
        "engine.workers.prefill.scheduler.async_scheduling=false",
        "engine.workers.decode.scheduler.async_scheduling=false",
    ];
    let overrides = [&sync[..], &[MS_A_TOKEN]].concat();
    let requests = unlike(&[(0.0, 8, 20), (5.0, 8, 3)]);
    assert_eq!(times(&trial(&overrides, &requests)), [[0.0, 20.0, 58.0], [10.0, 32.0, 36.0]]);
}

/// The prefill side samples the first token, and the decode side gives it when the KV is there, without a pass: 10 ms of
/// prefill and 8 on the way. Its first decode begins then. The second request comes at 5; the decode side, which is
/// idle, has room at once; its prompt is computed from 10 to 20, is on its way until 28, and is heard of with the turn
/// after the decode from 26 to 28, which begins when that ends: at 28 its first token, and at 30 its second.
#[test]
fn sglang_gives_the_first_token_of_the_prefill_side() {
    let sync = [
        "engine.workers.prefill.scheduler.overlap=false",
        "engine.workers.decode.scheduler.overlap=false",
        // Otherwise 512 tokens stay free for each request.
        "engine.workers.decode.scheduler.num_reserved_decode_tokens=20",
    ];
    let overrides = [&SGLANG[..], &sync, &[MS_A_TOKEN]].concat();
    let requests = unlike(&[(0.0, 8, 20), (5.0, 8, 3)]);
    assert_eq!(times(&trial(&overrides, &requests)), [[0.0, 18.0, 56.0], [10.0, 28.0, 32.0]]);
}

/// TensorRT-LLM: the prefill side samples the first token too, and the decode side, which loads when prompt and longest
/// output fit, gives it in the pass after. The second request is prefilled from 10 to 20, and on its way until 28: its
/// token comes with the pass that is decided then, and its second at the end of that.
#[test]
fn trtllm_gives_the_first_token_of_the_prefill_side_and_says_that_this_is_not_proven() {
    let sync =
        ["engine.workers.prefill.scheduler.overlap=false", "engine.workers.decode.scheduler.overlap=false"];
    let overrides = [&TRTLLM[..], &sync, &[MS_A_TOKEN]].concat();
    let requests = unlike(&[(0.0, 8, 20), (5.0, 8, 3)]);
    let trial = trial(&overrides, &requests);
    assert_eq!(times(&trial), [[0.0, 18.0, 56.0], [10.0, 28.0, 32.0]]);
    let notes = &trial.run(Stepper::Fast).report.notes;
    assert!(notes.iter().any(|note| note.contains("not proven")), "{notes:?}");
}

/// A prompt is not computed before the decode side has room for it: the pool of 64 holds 20 tokens, 20 that stay free
/// and none of another. The second prompt waits until the first request has ended: its KV arrives at 30, which gives
/// one token, and its only decode ends at 32.
#[test]
fn sglang_computes_no_prompt_without_room_for_it() {
    let overrides = [
        &SGLANG[..],
        &[
            MS_A_TOKEN,
            "engine.workers.decode.scheduler.num_reserved_decode_tokens=20",
            "engine.workers.decode.kv_cache.capacity.blocks=64",
            "engine.workers.prefill.scheduler.overlap=false",
            "engine.workers.decode.scheduler.overlap=false",
        ],
    ]
    .concat();
    let requests = unlike(&[(0.0, 20, 2), (0.0, 20, 2)]);
    assert_eq!(times(&trial(&overrides, &requests)), [[0.0, 30.0, 32.0], [32.0, 62.0, 64.0]]);
}

/// The prefill worker that has the prompt in its cache takes it again; in turn the other one would. Prompts of 40, 8 and
/// 8 tokens: with 10 blocks of 4 in use on one decode worker the next two go to the other, which then has 4.
#[test]
fn the_kv_router_asks_caches_for_prefill_and_blocks_for_decode() {
    let workers = [
        "engine.workers.prefill.parallelism.replicas=2",
        "engine.workers.decode.parallelism.replicas=2",
        "router={policy: kv_router, seed: 1, block_size: 4}",
    ];
    let long: Vec<u32> = (0..40).collect();
    let requests = vec![
        asked(0.0, long.clone(), 30),
        asked(20.0, 1000..1008, 20),
        asked(30.0, 2000..2008, 20),
        asked(100.0, long, 1),
    ];
    let trtllm = [TRTLLM[0], "engine.workers.prefill.kv_cache.block_size=4"];
    for engine in [&[][..], &SGLANG[..], &trtllm[..]] {
        let reserved = ["engine.workers.decode.scheduler.num_reserved_decode_tokens=0"];
        let reserved = if engine.len() > 2 { &reserved[..] } else { &[] };
        let trial = trial(&[engine, reserved, &workers].concat(), &requests);
        let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
        assert_eq!(plain.requests, fast.requests);
        let lines = fast.requests();
        let of = |i: usize, key: &str| lines[i][key].as_u64().unwrap();
        assert_eq!(of(0, "prefill_worker_idx"), of(3, "prefill_worker_idx"), "{engine:?}");
        assert!(of(3, "router_overlap_tokens") >= 36, "{engine:?}");
        assert_ne!(of(0, "decode_worker_idx"), of(1, "decode_worker_idx"), "{engine:?}");
        assert_eq!(of(1, "decode_worker_idx"), of(2, "decode_worker_idx"), "{engine:?}");
    }
}

/// The last token is not given twice, and every block of both sides is free at the end.
#[test]
fn one_output_token_is_one_token_and_all_blocks_come_back() {
    let reserved = ["engine.workers.decode.scheduler.num_reserved_decode_tokens=20"];
    let kinds: [(&str, &[&[&str]]); 6] = [
        ("native", &[]),
        ("aisimulate_0_13", &[]),
        ("native", &[&SGLANG, &reserved]),
        ("aisimulate_0_13", &[&SGLANG]),
        ("native", &[&TRTLLM]),
        ("aisimulate_0_13", &[&TRTLLM]),
    ];
    for (semantics, engine) in kinds {
        let semantics = format!("engine.semantics={semantics}");
        let overrides = [&engine.concat()[..], &[semantics.as_str(), MS_A_TOKEN]].concat();
        let trial = trial(&overrides, &unlike(&[(0.0, 8, 1), (3.0, 9, 1), (40.0, 60, 1)]));
        for stepper in STEPPERS {
            let output = trial.run(stepper);
            assert_eq!(output.count("completed_requests"), 3);
            assert_eq!(output.count("total_output_tokens"), 3);
            assert_free_at_the_end(&output);
        }
    }
}

/// Two decode workers read from one prefill worker at once: with a link of its own each takes 8 ms, and sharing the
/// interface of the prefill worker 16.
#[test]
fn transfers_that_share_an_interface_slow_each_other() {
    let base =
        ["engine.semantics=aisimulate_0_13", "engine.workers.decode.parallelism.replicas=2", MS_A_TOKEN];
    let shared = "engine.kv_transfer={bytes_per_token: 1000000, links: fair_share, nic_gb_per_second: 1, \
                  timing_mode: full_prompt}";
    let requests = unlike(&[(0.0, 8, 1), (0.0, 8, 1)]);
    assert_eq!(times(&trial(&base, &requests)), [[0.0, 20.0, 20.0]; 2]);
    let overrides = [base[0], base[1], shared];
    assert_eq!(times(&trial(&overrides, &requests)), [[0.0, 28.0, 28.0]; 2]);
}

/// 8 ms of transfer of which 5 ms are covered by the 10 ms of prefill with two layers: the last of two layers, 4 ms,
/// remains.
#[test]
fn layers_on_their_way_during_prefill_shorten_the_transfer() {
    let layered = "engine.kv_transfer={bytes_per_token: 1000000, bandwidth_gb_per_second: 1, \
                   timing_mode: full_prompt, overlap_layers: 2}";
    let overrides = ["engine.semantics=aisimulate_0_13", layered];
    assert_eq!(times(&trial(&overrides, &unlike(&[(0.0, 8, 1)]))), [[0.0, 16.0, 16.0]]);
}

/// A seat is free when the decode side has given the last token.
#[test]
fn a_closed_loop_waits_for_the_decode_side() {
    let overrides =
        ["engine.semantics=aisimulate_0_13", MS_A_TOKEN, "traffic.load={type: concurrency, concurrency: 1}"];
    let requests = unlike(&[(0.0, 8, 2), (0.0, 8, 2)]);
    assert_eq!(times(&trial(&overrides, &requests)), [[0.0, 20.0, 22.0], [22.0, 42.0, 44.0]]);
}

/// A request that no decode worker can hold is refused there, and its source lets go of it.
#[test]
fn what_the_decode_side_refuses_is_rejected() {
    let overrides = ["engine.workers.decode.kv_cache.capacity.blocks=4", MS_A_TOKEN];
    let trial = trial(&overrides, &unlike(&[(0.0, 20, 2), (0.0, 4, 2)]));
    for stepper in STEPPERS {
        let output = trial.run(stepper);
        assert_eq!((output.count("rejected_requests"), output.count("completed_requests")), (1, 1));
        assert_eq!(output.requests()[0]["reject_reason"], "larger_than_pool");
        assert_free_at_the_end(&output);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Small pools, few seats, several workers, and every kind of transfer.
    #[test]
    fn random_runs_are_the_same_in_both_steppers(
        case in roles::case(),
    ) {
        let (requests, overrides) = (&case.requests, &case.overrides);
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let trial = trial(&overrides, requests);
        let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
        prop_assert_eq!(&plain.prediction, &fast.prediction);
        prop_assert_eq!(&plain.requests, &fast.requests);
        prop_assert_eq!(&plain.events, &fast.events);
        prop_assert_eq!(&plain.telemetry, &fast.telemetry);
        let unwatched = trial.run_unwatched(Stepper::Fast);
        prop_assert_eq!(&unwatched.prediction, &fast.prediction);
        // SGLang gives up a request that alone outgrows the pool.
        let ends = ["completed_requests", "rejected_requests", "failed_requests"].map(|key| fast.count(key));
        prop_assert_eq!(ends.iter().sum::<u64>(), requests.len() as u64, "nothing is left in flight");
        prop_assert!(case.sglang || ends[2] == 0);
        for line in fast.requests().iter().filter(|line| line["terminal_status"] == "completed") {
            let given = line["output_length"].as_u64().unwrap();
            prop_assert!(given >= 1 && given <= line["requested_output_length"].as_u64().unwrap());
        }
        assert_free_at_the_end(&fast);
    }
}
