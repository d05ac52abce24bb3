//! Public bug reports that show in a whole run, each as a small case with the right value
//! (sources abbreviated: dynamo#N is ai-dynamo/dynamo,
//! aisim#N ai-dynamo/aisimulate, vllm#N vllm-project/vllm, sgl#N sgl-project/sglang, blis#N
//! inference-sim/inference-sim, gllm#N vllm-project/guidellm, llmd#N llm-d/llm-d-inference-sim).
//!
//! Unless a case says otherwise: native semantics, synchronous, one worker of 8 seats, 999 blocks of 16 and
//! a budget of 64; a pass takes 10 ms with prefill work and 2 ms with decode work.
//!
//! | case | test |
//! |---|---|
//! | V8 | v8_a_full_pool_gives_no_more_than_the_requests_in_it |
//! | V9 | v9_a_stall_is_one_gap_and_part_of_the_latency |
//! | V17 | v17_a_waiting_request_does_not_wait_for_the_next_arrival |
//! | L13 | l13_no_more_than_the_cap_are_in_flight |
//! | L14 | l14_a_request_enters_while_another_one_lasts |
//! | L16 | l16_the_configuration_in_a_report_gives_the_report_again |
//! | L18 | l18_what_has_no_effect_is_refused_and_a_key_means_the_same_from_file_and_flag |
//! | L19 | l19_defaults_are_in_the_report |
//! | M1 | m1_a_gap_is_not_the_mean_of_a_request |
//! | M2 | m2_tpot_weighs_requests |
//! | M3 | m3_the_first_token_has_no_gap |
//! | M5 | m5_a_request_without_output_is_refused_and_one_token_has_no_gap |
//! | M7 | m7_nothing_but_work_moves_the_clock |
//! | M8 | m8_a_burst_is_served_by_one_pass_at_a_time |
//! | M9 | m9_without_hand_off_the_first_token_comes_from_prefill; with hand-off: disaggregated.rs |
//! | M11 | m11_the_last_pass_of_a_request_counts_it |
//! | M13 | m13_work_grows_with_the_requests |
//! | M14 | m14_every_request_is_woken |
//! | M15 | m15_hits_are_counted_in_tokens |
//! | M16 | m16_one_batch_is_the_static_model |
//! | M18 | m18_the_machine_does_not_show |
//! | M4 | not yet: it is about reading a server's stream |
//! | M6 | not yet: there is no speculative decoding |
//! | M10 | disaggregated.rs: one_output_token_is_one_token_and_all_blocks_come_back |
//! | M12 | not a test: memory is measured by the benchmarks; collectors keep sums unless asked to capture |
//! | M17 | host_offload.rs |

mod common;

use common::{Asked, Output, SMALL, Trial, asked, mooncake, unlike};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use windtunnel_sim::Stepper;

const SYNCHRONOUS: &str = "engine.workers.aggregated.scheduler.async_scheduling=false";

fn run(overrides: &[&str], requests: &[Asked]) -> Output {
    let overrides: Vec<&str> = std::iter::once(SYNCHRONOUS).chain(overrides.iter().copied()).collect();
    Trial::small(&overrides, requests).run(Stepper::Fast)
}

/// A workload without trace.
fn synthetic(overrides: &[&str]) -> Output {
    let overrides: Vec<&str> = std::iter::once(SYNCHRONOUS).chain(overrides.iter().copied()).collect();
    Trial::load(SMALL, &overrides, "").unwrap_or_else(|error| panic!("{error}")).run(Stepper::Fast)
}

/// blis#1121. 64 users on a pool that holds 8 whole requests (128 tokens, 8 blocks) were said to get 125,000
/// tokens/s where the engine saturates at 3,000. A running request holds at least the 4 blocks of its prompt,
/// so at most 16 can be in a pass, and a pass takes at least 10 ms: at most 1600 tokens/s. Preemptions occur
/// and do not help: with room for all, throughput is higher.
#[test]
fn v8_a_full_pool_gives_no_more_than_the_requests_in_it() {
    let with_blocks = |blocks: u32| {
        synthetic(&[
            "traffic={source: {input_tokens: 64, output_tokens: 64}, load: {concurrency: 64}, stop: {requests: 128}}",
            "engine.workers.aggregated.scheduler={max_sequences: 64, max_batched_tokens: 4096, async_scheduling: false}",
            "engine.workers.aggregated.timing={type: fixed, prefill_ms: 10, decode_ms: 10}",
            &format!("engine.workers.aggregated.kv_cache.capacity.blocks={blocks}"),
        ])
    };
    let (tight, ample) = (with_blocks(65), with_blocks(1000));
    assert!(tight.count("preemptions") > 0);
    assert_eq!(ample.count("preemptions"), 0);
    for output in [&tight, &ample] {
        assert_eq!(output.count("total_output_tokens"), 128 * 64);
    }
    let rate = |output: &Output| output.metric("output_throughput_tok_s").unwrap();
    assert!(rate(&tight) <= 16.0 / 0.010);
    assert!(rate(&tight) < rate(&ample));
    assert!(rate(&ample) <= 64.0 / 0.010);
}

/// blis#1091, #1095, #1097, #1122. Five blocks of 4, two requests 8→8. b is preempted after its first token
/// (10 ms), waits for a to end (24 ms), computes 5 of its 9 tokens again (10 ms of prefill), and gets its
/// second token at 34, the last at 46. 8 tokens each; TTFT is the first token ever given (vLLM 0.33.0 stamps
/// it once); the stall is one gap of 24 ms and part of the latency.
#[test]
fn v9_a_stall_is_one_gap_and_part_of_the_latency() {
    let five_blocks =
        "engine.workers.aggregated.kv_cache={block_size: 4, capacity: {type: fixed, blocks: 6}}";
    let output = run(&[five_blocks], &unlike(&[(0.0, 8, 8), (0.0, 8, 8)]));
    let of = |field: &str| [0, 1].map(|request| output.of(request, field).unwrap());
    assert_eq!(of("output_length"), [8.0, 8.0]);
    assert_eq!(of("ttft_ms"), [10.0, 10.0]);
    assert_eq!(of("e2e_latency_ms"), [24.0, 46.0]);
    assert_eq!(of("ttst_ms"), [2.0, 24.0]);
    assert_eq!(of("preemption_count"), [0.0, 1.0]);
    assert_eq!(output.count("num_itl_samples"), 14);
    assert_eq!((output.metric("max_itl_ms"), output.metric("median_itl_ms")), (Some(24.0), Some(2.0)));
    assert_eq!(output.count("total_output_tokens"), 16);
}

/// blis#319, #325. One seat, two requests at 0 and one 10 s later. The second starts when the first ends, at
/// 14 ms, not at 10 s.
#[test]
fn v17_a_waiting_request_does_not_wait_for_the_next_arrival() {
    for asynchronous in ["false", "true"] {
        let asynchronous = format!("engine.workers.aggregated.scheduler.async_scheduling={asynchronous}");
        let one_seat = "engine.workers.aggregated.scheduler.max_sequences=1";
        let requests = unlike(&[(0.0, 8, 3), (0.0, 8, 3), (10_000.0, 8, 3)]);
        let output = run(&[&asynchronous, one_seat], &requests);
        let admitted: Vec<_> = (0..3).map(|request| output.of(request, "first_admit_ms").unwrap()).collect();
        assert_eq!(admitted, [0.0, 14.0, 10_000.0]);
    }
}

/// dynamo#11633: a cap of 4 that was ignored when a planner was attached. At every instant at most 4
/// requests are between sending and end, and as long as there are more, exactly 4; synthetic and from a
/// file, on one worker and on three.
#[test]
fn l13_no_more_than_the_cap_are_in_flight() {
    let rows: Vec<_> = (0..40).map(|n| (0.0, 20, 1 + n as u32 * 7 % 23, vec![2 * n, 2 * n + 1])).collect();
    let trace = mooncake(&rows);
    let synthetic = "traffic={source: {input_tokens: 20, output_tokens: 9}, load: {concurrency: 4}, stop: {requests: 40}}";
    let file = "traffic={source: {type: trace, paths: [trace.jsonl], block_size: 16}, \
                load: {type: concurrency, concurrency: 4}}";
    for traffic in [synthetic, file] {
        for replicas in [1, 3] {
            let replicas = format!("engine.workers.aggregated.parallelism.replicas={replicas}");
            let output = Trial::load(SMALL, &[traffic, &replicas], &trace).unwrap().run(Stepper::Fast);
            assert_eq!(output.most_in_flight(), Some(4));
            let sent_later = output.requests().split_off(4);
            let ends: Vec<f64> =
                output.requests().iter().map(|r| r["terminal_time_ms"].as_f64().unwrap()).collect();
            assert!(sent_later.iter().all(|r| ends.contains(&r["arrival_time_ms"].as_f64().unwrap())));
        }
    }
}

/// dynamo#13897. A lasts 10 s, B arrives at 1 s. B enters with the next pass, while A goes on.
#[test]
fn l14_a_request_enters_while_another_one_lasts() {
    let output = run(&[], &unlike(&[(0.0, 8, 5001), (1001.0, 8, 3)]));
    assert_eq!(output.of(0, "e2e_latency_ms"), Some(10.0 + 5000.0 * 2.0 + 10.0));
    assert_eq!(
        (output.of(1, "arrival_time_ms"), output.of(1, "first_admit_ms")),
        (Some(1001.0), Some(1002.0))
    );
    assert_eq!(output.of(1, "ttft_ms"), Some(1.0 + 12.0));
}

/// blis#1032, #1034, #1421, #1615: a run, exported and replayed, lost a flag on the way (11 times the
/// latency). The configuration that a report carries, loaded again, gives the same report to the byte.
#[test]
fn l16_the_configuration_in_a_report_gives_the_report_again() {
    let overrides = [
        "traffic={source: {input_tokens: 30, output_tokens: 9}, load: {type: poisson, requests_per_second: 90}, \
         stop: {requests: 60}}",
        "engine.workers.aggregated.kv_cache.capacity.blocks=12",
        "engine.workers.aggregated.scheduler={max_sequences: 5, max_batched_tokens: 33, watermark: 0.1, policy: priority}",
        "engine.workers.aggregated.timing={type: linear, linear: {base_ms: 3, per_new_token_ms: 0.1}}",
        "evaluation.sla={ttft_ms: 50}",
    ];
    let first = Trial::load(SMALL, &overrides, "").unwrap().run(Stepper::Fast);
    let prediction: Value = serde_json::from_slice(&first.prediction).unwrap();
    let again = Trial::load(&prediction["config"].to_string(), &[], "").unwrap().run(Stepper::Fast);
    assert_eq!(std::str::from_utf8(&again.prediction), std::str::from_utf8(&first.prediction));
    assert_eq!(std::str::from_utf8(&again.requests), std::str::from_utf8(&first.requests));
}

/// dynamo#13517: with five draft tokens the report did not change. What has no effect here is refused by
/// name; and what has one means the same from the file and from a flag.
#[test]
fn l18_what_has_no_effect_is_refused_and_a_key_means_the_same_from_file_and_flag() {
    for flag in ["engine.nextn=5", "engine.speculation={kind: ngram, num_speculative_tokens: 5}"] {
        let error = Trial::load(SMALL, &[flag], "").err().unwrap().to_string();
        let key = flag.split('=').next().unwrap();
        assert!(error.contains(key) && error.contains("not supported yet"), "{error}");
    }
    let traffic = "traffic={load: {concurrency: 3}, stop: {requests: 9}}";
    let flag = ["engine.workers.aggregated.scheduler.max_batched_tokens=32", traffic];
    let file = SMALL.replace("max_batched_tokens: 64", "max_batched_tokens: 32");
    let bytes = |config: &str, overrides: &[&str]| {
        Trial::load(config, overrides, "").unwrap().run(Stepper::Fast).prediction
    };
    assert!(bytes(SMALL, &flag) == bytes(&file, &[traffic]));
    assert!(bytes(SMALL, &flag) != bytes(SMALL, &[traffic]));
}

/// blis#339: a default budget of 2048 that nobody saw. The report carries every value in effect.
#[test]
fn l19_defaults_are_in_the_report() {
    let bare = SMALL.replace("      scheduler: {max_batched_tokens: 64, max_sequences: 8}\n", "");
    let output = Trial::load(&bare, &["traffic={stop: {requests: 1}}"], "").unwrap().run(Stepper::Fast);
    let prediction: Value = serde_json::from_slice(&output.prediction).unwrap();
    let engine = &prediction["config"]["engine"];
    let scheduler = &engine["workers"]["aggregated"]["scheduler"];
    assert_eq!((&scheduler["max_batched_tokens"], &scheduler["max_sequences"]), (&8192.into(), &256.into()));
    assert_eq!((&scheduler["async_scheduling"], &scheduler["watermark"]), (&true.into(), &0.0.into()));
    assert_eq!((&engine["enable_chunked_prefill"], &engine["semantics"]), (&true.into(), &"native".into()));
}

/// A pass takes 9 ms and 1 ms for each token.
const PER_TOKEN: &str =
    "engine.workers.aggregated.timing={type: linear, linear: {base_ms: 9, per_new_token_ms: 1}}";
const WIDE: &str = "engine.workers.aggregated.scheduler.max_batched_tokens=256";

/// dynamo#12883. Tokens at 10, 20, 30, 230 and 240 ms, because a prompt of 190 tokens comes at 25. The mean
/// gap of the request is TPOT, 57.5 ms: one value. ITL are the gaps: 10, 10, 200, 10. (What AIPerf prints as
/// ITL is our TPOT; docs/glossary.md.)
#[test]
fn m1_a_gap_is_not_the_mean_of_a_request() {
    let output = run(&[PER_TOKEN, WIDE], &unlike(&[(0.0, 1, 5), (25.0, 190, 1)]));
    assert_eq!((output.of(0, "first_token_ms"), output.of(0, "last_token_ms")), (Some(10.0), Some(240.0)));
    assert_eq!((output.count("num_tpot_samples"), output.metric("mean_tpot_ms")), (1, Some(57.5)));
    assert_eq!((output.count("num_itl_samples"), output.metric("max_itl_ms")), (4, Some(200.0)));
    assert_eq!(output.metric("median_itl_ms"), Some(10.0));
    assert_eq!(
        output.of(0, "itl_ms"),
        Some(57.5),
        "the record's itl_ms is its mean, as the reference has it"
    );
}

/// gllm#1144; vllm#19776. Two tokens with a gap of 100 ms, and 101 with gaps of 10 ms: the mean TPOT of the
/// requests is 55 ms. Weighted by tokens it would be 1100/101 = 10.9 ms, which is the mean ITL.
#[test]
fn m2_tpot_weighs_requests() {
    let output = run(&[PER_TOKEN, WIDE], &unlike(&[(0.0, 1, 2), (5.0, 90, 101)]));
    assert_eq!(output.of(0, "itl_ms"), Some(100.0));
    assert_eq!(output.of(1, "itl_ms"), Some(10.0));
    assert_eq!(output.metric("mean_tpot_ms"), Some(55.0));
    assert_eq!(output.count("num_itl_samples"), 101);
    assert_eq!(output.metric("mean_itl_ms"), Some(1100.0 / 101.0));
}

/// vllm#7242: the TTFT was among the gaps. Four tokens have three gaps, all of 2 ms.
#[test]
fn m3_the_first_token_has_no_gap() {
    let output = run(&[], &unlike(&[(0.0, 8, 4)]));
    assert_eq!((output.count("num_itl_samples"), output.metric("max_itl_ms")), (3, Some(2.0)));
    assert_eq!(output.metric("mean_ttft_ms"), Some(10.0));
}

/// blis#458: a request without output had a gap. vLLM refuses `max_tokens` 0, and so does every way to ask for
/// it here. One token has TTFT and E2E, and no gap.
#[test]
fn m5_a_request_without_output_is_refused_and_one_token_has_no_gap() {
    let zero = "traffic={source: {input_tokens: 8, output_tokens: 0}, stop: {requests: 1}}";
    let error = Trial::load(SMALL, &[zero], "").err().unwrap().to_string();
    assert!(error.contains("traffic.source.output_tokens: got 0; "), "{error}");
    let error = Trial::small(&[], &unlike(&[(0.0, 8, 0)])).try_run(Stepper::Fast).err().unwrap();
    assert!(error.to_string().contains("line 1: max_tokens: got 0; "), "{error}");

    let output = run(&[], &unlike(&[(0.0, 8, 1)]));
    assert_eq!(
        (output.metric("mean_ttft_ms"), output.metric("mean_e2e_latency_ms")),
        (Some(10.0), Some(10.0))
    );
    assert_eq!((output.count("num_itl_samples"), output.metric("mean_itl_ms")), (0, None));
    assert_eq!((output.metric("mean_tpot_ms"), output.metric("mean_ttst_ms")), (None, None));
}

/// blis#1085, #1089: a run "ended" at 300 s because of a timer nobody needed any more. Here a telemetry
/// sample is due every 300 s and the event log is flushed every second; the request ends at 16 ms, and so
/// does the run.
#[test]
fn m7_nothing_but_work_moves_the_clock() {
    let mut trial = Trial::small(&[SYNCHRONOUS], &unlike(&[(0.0, 8, 4)]));
    trial.telemetry_interval = windtunnel_engine::Nanos(300_000_000_000);
    let output = trial.run(Stepper::Fast);
    assert_eq!(output.metric("duration_ms"), Some(16.0));
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.016));
    assert_eq!(output.metric("output_throughput_tok_s"), Some(250.0));
    let times: Vec<f64> = output.telemetry().iter().map(|s| s["time_ms"].as_f64().unwrap()).collect();
    assert_eq!(times, [16.0], "one sample, at the end");
}

/// blis#1096, #1100: 512 requests with one deadline made 512 steps at one tick, and 33 times the throughput.
/// 512 requests 8→2 at one instant on 8 seats are 64 batches of 10 + 2 ms, one after the other.
#[test]
fn m8_a_burst_is_served_by_one_pass_at_a_time() {
    let output = run(&[], &unlike(&vec![(0.0, 8, 2); 512]));
    assert_eq!((output.count("passes"), output.metric("duration_ms")), (128, Some(768.0)));
    assert_eq!(output.metric("request_throughput_rps"), Some(512.0 / 0.768));
    let prediction: Value = serde_json::from_slice(&output.prediction).unwrap();
    assert_eq!(prediction["workers"][0]["busy_ms"], 768.0, "never busy twice at one instant");
}

/// blis#962, #930, #1510, #1512: the formula for prefill and decode apart was applied to runs without it, and
/// the TTFT became 28 to 71 times as long. Here the first token comes with the end of the prompt's last pass.
#[test]
fn m9_without_hand_off_the_first_token_comes_from_prefill() {
    let output = run(&[], &unlike(&[(0.0, 8, 2), (100.0, 150, 2)]));
    assert_eq!((output.of(0, "ttft_ms"), output.of(1, "ttft_ms")), (Some(10.0), Some(30.0)));
    assert_eq!(output.of(1, "prefill_worker_idx"), None);
}

/// dynamo#8032: the metrics of a pass were read after its finished requests were gone. A request 8→3 has two
/// decode passes, and the second, with which it ends, counts its token.
#[test]
fn m11_the_last_pass_of_a_request_counts_it() {
    let mut trial = Trial::small(&[SYNCHRONOUS], &unlike(&[(0.0, 8, 3), (20.0, 8, 1)]));
    trial.telemetry_interval = windtunnel_engine::Nanos(14_000_000);
    let output = trial.run(Stepper::Fast);
    let at_its_end = &output.telemetry()[0];
    assert_eq!((&at_its_end["time_ms"], &at_its_end["running"]), (&14.0.into(), &0.into()));
    assert_eq!(at_its_end["total"]["decode_tokens"], 2);
    assert_eq!(output.count("decode_passes"), 2);
}

/// blis#1381: quadratic work, 40,500 requests. Twice the requests at one rate are twice the passes, to one in
/// a hundred, and all of them end. (How long that takes is a benchmark's question.)
#[test]
fn m13_work_grows_with_the_requests() {
    let passes = |requests: u32| {
        let traffic = format!(
            "traffic={{source: {{input_tokens: 30, output_tokens: 20}}, load: {{type: constant_rate, \
             requests_per_second: 100}}, stop: {{requests: {requests}}}}}"
        );
        let output = synthetic(&[&traffic]);
        assert_eq!(output.count("completed_requests"), u64::from(requests));
        output.count("passes")
    };
    let (once, twice) = (passes(2500), passes(5000));
    assert!(twice.abs_diff(2 * once) * 100 <= twice, "{once} and {twice}");
}

/// dynamo#11015: of 1000 requests, 35 to 60 stayed in flight with nothing left to happen. Here 1000 requests
/// on three crowded workers all end, and a run that could not go on would say which requests are left.
#[test]
fn m14_every_request_is_woken() {
    let output = synthetic(&[
        "traffic={source: {input_tokens: 30, output_tokens: 40}, load: {type: poisson, requests_per_second: 400}, \
         stop: {requests: 1000}}",
        "engine.workers.aggregated.kv_cache.capacity.blocks=12",
        "engine.workers.aggregated.parallelism.replicas=3",
    ]);
    assert_eq!((output.count("completed_requests"), output.count("unfinished_requests")), (1000, 0));
    assert!(output.count("preemptions") > 100);
    let stuck =
        windtunnel_sim::SimError::Stuck { engine: "vllm", worker: 0, rank: 0, requests: (3..15).collect() };
    let expected = "worker 0, rank 0: the run stopped with 12 unfinished requests there and nothing left to happen: \
                    3, 4, 5, 6, 7, 8, 9, 10, 11, 12, and 2 more; the engine would wait for ever, too";
    assert_eq!(stuck.to_string(), expected);
}

/// llmd#430, #358: 16 of 40 tokens found were reported as 1/3, by blocks. In tokens they are 0.4; over both
/// requests of this run 16 of 57.
#[test]
fn m15_hits_are_counted_in_tokens() {
    let output = run(&[], &[asked(0.0, 0..17, 1), asked(100.0, (0..16).chain(1000..1024), 1)]);
    let found = output.of(1, "first_admission_reused_input_tokens").unwrap();
    assert_eq!(found / output.of(1, "input_length").unwrap(), 0.4);
    assert_eq!(output.metric("prefix_cache_hit_rate"), Some(16.0 / 57.0));
    assert_eq!(output.metric("prefix_cache_reused_ratio"), Some(16.0 / 57.0));
}

/// dynamo#7729: batch 8, 128 outputs, no shared prefix, prompts of 256 to 4096. There, TTFT, TPOT and
/// throughput had to be within 5 % of the static model. One batch that nothing disturbs is the static model:
/// a prefill of 8·ISL tokens, then 127 decodes of 8 tokens with contexts that grow by one.
#[test]
fn m16_one_batch_is_the_static_model() {
    let timing = "engine.workers.aggregated.timing={type: linear, linear: {base_ms: 4, per_new_token_ms: 0.02, \
                  per_sequence_ms: 0.05, per_context_token_ms: 0.0001}}";
    for isl in [256u32, 1024, 4096] {
        for asynchronous in ["false", "true"] {
            let traffic = format!(
                "traffic={{source: {{input_tokens: {isl}, output_tokens: 128}}, load: {{concurrency: 8}}, \
                 stop: {{requests: 8}}}}"
            );
            let asynchronous = format!("engine.workers.aggregated.scheduler.async_scheduling={asynchronous}");
            let output = synthetic(&[
                timing,
                &traffic,
                "engine.workers.aggregated.scheduler.max_batched_tokens=32768",
                "engine.workers.aggregated.kv_cache.capacity.blocks=4000",
                &asynchronous,
            ]);
            let ttft = 4.0 + 0.02 * f64::from(8 * isl) + 0.05 * 8.0;
            let decode = |k: u32| 4.0 + (0.02 + 0.05) * 8.0 + 0.0001 * 8.0 * f64::from(isl + k);
            let decodes: f64 = (1..128).map(decode).sum();
            let close = |metric: &str, expected: f64| {
                let got = output.metric(metric).unwrap();
                assert!((got / expected - 1.0).abs() < 1e-6, "{isl}, {metric}: {got}, not {expected}");
            };
            close("mean_ttft_ms", ttft);
            close("mean_tpot_ms", decodes / 127.0);
            close("output_throughput_tok_s", 8.0 * 128.0 / (ttft + decodes) * 1000.0);
        }
    }
}

/// sgl#38423 (three places where the wall clock leaked into simulated time). The same bytes twice, also
/// while every core is busy with something else.
#[test]
fn m18_the_machine_does_not_show() {
    let overrides = [
        "traffic={source: {input_tokens: 30, output_tokens: 40}, load: {type: poisson, requests_per_second: 400}, \
         stop: {requests: 300}}",
        "engine.workers.aggregated.kv_cache.capacity.blocks=20",
        "engine.workers.aggregated.parallelism.replicas=2",
    ];
    let bytes = || {
        let output = Trial::load(SMALL, &overrides, "").unwrap().run(Stepper::Fast);
        [output.prediction, output.requests, output.events, output.telemetry]
    };
    let alone = bytes();
    let stop = AtomicBool::new(false);
    let crowded = std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let crowded = bytes();
        stop.store(true, Ordering::Relaxed);
        crowded
    });
    assert!(alone == crowded);
}
