//! Separate prefill and decode workers that fail, come and go: each moment of a hand-off by hand, and random runs in both
//! steppers.

mod common;
#[path = "../../engine/tests/support/runner.rs"]
mod runner;

use common::roles::{self, Apart, MS_A_TOKEN, PAIR, SGLANG, STEPPERS, TRTLLM, assert_free_at_the_end};
use common::{Asked, Output, Trial, asked, lines, same, unlike};
use proptest::prelude::*;
use runner::runner;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use windtunnel_engine::Nanos;
use windtunnel_sim::Stepper;

fn load(overrides: &[&str], requests: &[Asked]) -> Trial {
    let mut trial = Trial::load(PAIR, overrides, &lines(requests)).unwrap_or_else(|error| panic!("{error}"));
    // Samples are taken before what fails at the same instant: at none of these anything does.
    trial.telemetry_interval = Nanos(7_000_003);
    trial
}

fn run(overrides: &[&str], requests: &[Asked]) -> Output {
    let trial = load(overrides, requests);
    let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
    assert_eq!(plain.requests, fast.requests);
    assert_eq!(plain.prediction, fast.prediction);
    assert_eq!(plain.telemetry, fast.telemetry);
    fast
}

/// Pass by pass, so that a worker hears of everything when it is idle.
const VLLM: [&str; 2] = [
    "engine.workers.prefill.scheduler.async_scheduling=false",
    "engine.workers.decode.scheduler.async_scheduling=false",
];
const OVERLAP: [&str; 2] =
    ["engine.workers.prefill.scheduler.overlap=false", "engine.workers.decode.scheduler.overlap=false"];
const AT_ONCE: [&str; 1] = ["engine.semantics=aisimulate_0_13"];

/// No prompt is found in a cache when it is computed again.
const UNCACHED: &str = "engine.workers.prefill.kv_cache.prefix_caching=false";

/// Each kind of hand-off, and what it takes from the end of the transfer to the first token.
fn kinds() -> Vec<(&'static str, Vec<&'static str>, f64)> {
    let reserved = ["engine.workers.decode.scheduler.num_reserved_decode_tokens=20"];
    vec![
        ("vllm", VLLM.to_vec(), 2.0),
        ("sglang", [&SGLANG[..], &OVERLAP, &reserved].concat(), 0.0),
        ("trtllm", [&TRTLLM[..], &OVERLAP].concat(), 0.0),
        ("vllm at once", AT_ONCE.to_vec(), 2.0),
        ("sglang at once", [&SGLANG[..], &AT_ONCE].concat(), 2.0),
        ("trtllm at once", [&TRTLLM[..], &AT_ONCE].concat(), 2.0),
    ]
}

fn text(request: &Value, field: &str) -> String {
    request[field].as_str().unwrap_or_default().to_owned()
}

/// A prompt of 8 tokens takes 10 ms, and as many ms as it has tokens on the way: it is there at 18, and its 6 tokens follow.
/// Two workers of the role that crashes. A crash of the prefill worker while it computes (5 ms) or while the KV is on the
/// way (14 ms) has the request begin anew then, on the other one; after that (21 ms) it is the decode worker's alone.
#[test]
fn a_crash_of_a_prefill_worker_in_each_moment_of_a_hand_off() {
    let two = "engine.workers.prefill.parallelism.replicas=2";
    for (name, kind, after) in kinds() {
        for (at, begun, retries) in [(0.005, 5.0, 1.0), (0.014, 14.0, 1.0), (0.021, 0.0, 0.0)] {
            let faults = format!("faults.prefill.crashes=[{{worker: 0, at_seconds: {at}}}]");
            let output =
                run(&[&kind[..], &[two, UNCACHED, MS_A_TOKEN, &faults]].concat(), &unlike(&[(0.0, 8, 6)]));
            let of = |field| output.of(0, field).unwrap();
            let first = begun + 18.0 + after;
            let seen =
                [of("first_token_ms"), of("last_token_ms"), of("retry_count"), of("prefill_worker_idx")];
            assert_eq!(seen, [first, first + 10.0, retries, retries], "{name} at {at}");
            assert_eq!((of("arrival_time_ms"), of("ttft_ms")), (0.0, first), "{name} at {at}");
            assert_eq!(output.count("total_output_tokens"), 6);
            assert_eq!(output.count("worker_crashes"), 1);
            assert_free_at_the_end(&output);
        }
    }
}

/// The same of the decode worker. While the prompt is computed (5 ms) vLLM and TensorRT-LLM have not asked for one yet: nothing
/// is lost. SGLang has: the request begins anew, and waits for the pass in which its own prompt is computed for nobody, to 10 ms. While
/// the KV is on the way (14 ms), and when tokens have been given (25 ms), it begins anew in each; the prefill worker lets go of what it held.
#[test]
fn a_crash_of_a_decode_worker_in_each_moment_of_a_hand_off() {
    let two = "engine.workers.decode.parallelism.replicas=2";
    for (name, kind, after) in kinds() {
        let room_first = name.starts_with("sglang");
        let computing = if room_first { (10.0, 1.0) } else { (0.0, 0.0) };
        for (at, (begun, retries)) in [(0.005, computing), (0.014, (14.0, 1.0)), (0.025, (25.0, 1.0))] {
            let faults = format!("faults.decode.crashes=[{{worker: 0, at_seconds: {at}}}]");
            let output =
                run(&[&kind[..], &[two, UNCACHED, MS_A_TOKEN, &faults]].concat(), &unlike(&[(0.0, 8, 6)]));
            let of = |field| output.of(0, field).unwrap();
            let first = begun + 18.0 + after;
            let seen =
                [of("first_token_ms"), of("last_token_ms"), of("retry_count"), of("decode_worker_idx")];
            assert_eq!(seen, [first, first + 10.0, retries, 1.0], "{name} at {at}");
            assert_eq!(output.count("total_output_tokens"), 6, "{name} at {at}");
            assert_free_at_the_end(&output);
        }
    }
}

/// Where a crash ends requests: one that no decode worker had yet says so, and none was given a token that it keeps.
#[test]
fn requests_fail_with_the_worker_of_either_side() {
    let fail = "faults.on_crash=fail";
    for (name, kind, _) in kinds() {
        let room_first = name.starts_with("sglang");
        for (role, at, tokens) in
            [("prefill", 0.005, 0.0), ("prefill", 0.0145, 0.0), ("decode", 0.0215, 2.0f64)]
        {
            let faults = format!("faults.{role}.crashes=[{{worker: 0, at_seconds: {at}}}]");
            let output = run(&[&kind[..], &[MS_A_TOKEN, &faults, fail]].concat(), &unlike(&[(0.0, 8, 6)]));
            let request = &output.requests()[0];
            assert_eq!(text(request, "terminal_status"), "failed", "{name} {role} at {at}");
            assert_eq!(text(request, "detail"), "its worker crashed");
            assert_eq!(request["terminal_time_ms"].as_f64(), Some(at * 1e3));
            assert_eq!(request["prefill_worker_idx"], 0, "{name} {role} at {at}");
            let placed = at > 0.01 || room_first;
            assert_eq!(request["decode_worker_idx"].is_null(), !placed, "{name} {role} at {at}");
            let given = if kind_gives_later(name) { tokens - 1.0 } else { tokens };
            assert_eq!(request["output_length"].as_f64(), Some(given.max(0.0)), "{name} {role} at {at}");
            assert_eq!((output.count("failed_requests"), output.count("completed_requests")), (1, 0));
            assert_free_at_the_end(&output);
        }
    }
}

/// The first token comes with a pass of the decode side.
fn kind_gives_later(name: &str) -> bool {
    name.starts_with("vllm") || name.ends_with("at once")
}

/// While no worker of a role is there, requests wait for one where they are; when none will ever come, they are rejected.
/// The decode worker is gone from 5 to 30 ms: vLLM and TensorRT-LLM hold the computed KV until then; SGLang computes nothing without
/// room. The prefill worker is gone from 5 to 30 ms: the request begins anew then.
#[test]
fn without_a_worker_of_a_role_requests_wait_or_are_refused() {
    for (name, kind, after) in kinds() {
        let room_first = name.starts_with("sglang");
        let asked = unlike(&[(0.0, 8, 6)]);
        for (role, there) in [("prefill", 48.0), ("decode", if room_first { 48.0 } else { 38.0 })] {
            let back =
                format!("faults.{role}.crashes=[{{worker: 0, at_seconds: 0.005, restart_seconds: 0.025}}]");
            let output = run(&[&kind[..], &[MS_A_TOKEN, &back]].concat(), &asked);
            assert_eq!(output.of(0, "first_token_ms"), Some(there + after), "{name} {role}");
            let gone = format!("faults.{role}.crashes=[{{worker: 0, at_seconds: 0.005}}]");
            let later = unlike(&[(0.0, 8, 6), (50.0, 8, 6)]);
            let output = run(&[&kind[..], &[MS_A_TOKEN, &gone]].concat(), &later);
            for request in output.requests() {
                assert_eq!(text(&request, "reject_reason"), "no_worker", "{name} {role}");
            }
            assert_eq!(output.count("rejected_requests"), 2);
            assert_free_at_the_end(&output);
        }
    }
}

/// The second request comes at 105, and its prompt takes 20 ms instead of 10; 8 more on the way: the first token comes at
/// 135. Of the passes after that the one that is scheduled at 137 takes 6 ms instead of 2, and the next, at 143, lies behind
/// the end of the slow time: 137, 143, 145, 147, 149. What would fail after the last token does not, and a worker of the
/// other role, of the same number, is as fast as ever.
#[test]
fn a_slow_worker_of_a_role_takes_longer_for_a_while() {
    let slow = [
        "faults.prefill.slow_workers=[{worker: 0, from_seconds: 0.101, factor: 2}]",
        "faults.decode.slow_workers=[{worker: 0, from_seconds: 0.136, to_seconds: 0.142, factor: 3}, \
         {worker: 0, from_seconds: 1, factor: 5}]",
    ];
    let output = run(&[&VLLM[..], &[MS_A_TOKEN], &slow].concat(), &unlike(&[(0.0, 8, 1), (105.0, 8, 6)]));
    let tokens =
        [0, 1].map(|i| ["first_token_ms", "last_token_ms"].map(|field| output.of(i, field).unwrap()));
    assert_eq!(tokens, [[20.0, 20.0], [135.0, 149.0]]);
    let prediction = output.prediction();
    let events: Vec<(f64, String, String)> = prediction["worker_events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["time_ms"].as_f64().unwrap(), text(event, "role"), text(event, "event")))
        .collect();
    let event = |time, role: &str, word: &str| (time, role.to_owned(), word.to_owned());
    assert_eq!(
        events,
        [
            event(101.0, "prefill", "slowed"),
            event(136.0, "decode", "slowed"),
            event(142.0, "decode", "recovered")
        ]
    );
}

/// A worker that never comes back is paid for until its crash: 5 of the 44 ms that the run lasts, of two GPUs.
#[test]
fn a_crashed_worker_of_a_role_is_paid_for_until_then() {
    let overrides = [
        "engine.workers.prefill.parallelism={replicas: 2, tensor: 2}",
        "faults.prefill.crashes=[{worker: 0, at_seconds: 0.005}]",
        MS_A_TOKEN,
    ];
    let output = run(&[&VLLM[..], &overrides].concat(), &unlike(&[(0.0, 8, 6)]));
    assert_eq!(output.metric("prefill_worker_seconds"), Some(0.005 + 0.035));
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.035));
    let hours = output.metric("gpu_hours").unwrap() * 3600.0;
    assert!((hours - (2.0 * 0.040 + 0.035)).abs() < 1e-12, "{hours}");
    assert_eq!(output.count("peak_workers"), 3);
}

/// All events of the prefill workers lost: the router knows of no cached block there, though they have them.
#[test]
fn without_the_events_of_prefill_workers_their_router_knows_of_no_cache() {
    let workers =
        ["engine.workers.prefill.parallelism.replicas=2", "router={policy: kv_router, block_size: 4}"];
    let prompt: Vec<u32> = (0..40).collect();
    let requests: Vec<Asked> = (0..8).map(|i| asked(f64::from(i) * 100.0, prompt.clone(), 2)).collect();
    let of = |rate: &str| {
        let faults = format!("faults.prefill.kv_event_loss={{rate: {rate}}}");
        run(&[&workers[..], &[&faults]].concat(), &requests)
    };
    let known = of("1e-9");
    assert!(known.metric("router_overlap_ratio").unwrap() > 0.7);
    assert_eq!(known.count("lost_kv_event_batches"), 0);
    let unknown = of("1");
    assert_eq!(unknown.metric("router_best_overlap_ratio"), Some(0.0));
    assert!(unknown.count("lost_kv_event_batches") >= 2);
}

fn changes(output: &Output) -> Vec<(f64, String, u64, String)> {
    let prediction = output.prediction();
    let events = prediction["worker_events"].as_array().unwrap().iter();
    events
        .map(|event| {
            let (time, worker) = (event["time_ms"].as_f64().unwrap(), event["worker"].as_u64().unwrap());
            (time, text(event, "role"), worker, text(event, "event"))
        })
        .collect()
}

fn change(time: f64, role: &str, worker: u64, event: &str) -> (f64, String, u64, String) {
    (time, role.to_owned(), worker, event.to_owned())
}

/// At 12 ms no prompt is left to compute, and one of two prefill workers is enough. The second one has still to hand over the
/// blocks of the prompt that it computed until 10 ms: they are read at 18 ms, and it goes then. It is paid for until then, and
/// the other one until the last token at 30 ms.
#[test]
fn a_prefill_worker_that_goes_keeps_its_blocks_until_they_are_read() {
    let planner = "planner={policy: hpa, prefill: {metric: requests, target_value: 10, interval_seconds: 0.012, \
                   scale_down_stabilization_seconds: 0, max_workers: 2}}";
    let two = "engine.workers.prefill.parallelism.replicas=2";
    let requests = unlike(&[(0.0, 8, 1), (0.0, 8, 6)]);
    let output = run(&[&VLLM[..], &[two, planner, MS_A_TOKEN]].concat(), &requests);
    assert_eq!(
        changes(&output),
        [change(12.0, "prefill", 1, "draining"), change(18.0, "prefill", 1, "removed")]
    );
    assert_eq!(output.of(1, "prefill_worker_idx"), Some(1.0));
    let tokens = ["first_token_ms", "last_token_ms", "retry_count"].map(|field| output.of(1, field).unwrap());
    assert_eq!(tokens, [20.0, 30.0, 0.0]);
    assert_eq!(output.metric("prefill_worker_seconds"), Some(0.030 + 0.018));
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.030));
    assert_free_at_the_end(&output);
}

/// Four prompts at 0, one at a time: at 10 ms one runs and two wait, so two prefill workers are wanted. The new one is ready
/// at 15 ms and computes the prompt that comes at 16 ms, from then to 26 ms; it is there at 34 ms. Decode workers stay one.
#[test]
fn a_prefill_worker_is_added_while_others_hand_over() {
    let overrides = [
        "planner={policy: hpa, prefill: {metric: waiting, target_value: 1, interval_seconds: 0.01, \
         window_seconds: 0.01, max_workers: 3}}",
        "engine.workers.prefill.startup_seconds=0.005",
        "engine.workers.prefill.scheduler.max_sequences=1",
        MS_A_TOKEN,
    ];
    let mut arrivals = vec![(0.0, 8, 30); 4];
    arrivals.push((16.0, 8, 1));
    let output = run(&[&VLLM[..], &overrides].concat(), &unlike(&arrivals));
    let scaled = &output.prediction()["scaling_events"];
    assert_eq!(
        scaled[0],
        json!({"time_ms": 10.0, "role": "prefill", "from": 1, "to": 2, "reason": "waiting 2.00, target 1"})
    );
    assert_eq!(
        changes(&output)[..2],
        [change(10.0, "prefill", 1, "added"), change(15.0, "prefill", 1, "ready")]
    );
    assert_eq!(output.of(4, "prefill_worker_idx"), Some(1.0));
    assert_eq!(output.of(4, "first_admit_ms"), Some(16.0));
    // The pass that runs at 34 ms ends with it, and its own is the next one.
    assert_eq!(output.of(4, "first_token_ms"), Some(38.0));
    assert_eq!((output.count("scale_ups"), output.count("scale_downs")), (1, 0));
    assert_eq!((output.count("peak_workers"), output.count("completed_requests")), (3, 5));
    assert_free_at_the_end(&output);
}

/// A hand-off to a decode worker that is taken away: it ends what it has, and gets nothing more.
#[test]
fn a_decode_worker_that_goes_ends_what_it_has() {
    let planner = "planner={policy: hpa, decode: {metric: requests, target_value: 10, interval_seconds: 0.015, \
                   scale_down_stabilization_seconds: 0, max_workers: 2}}";
    let two = "engine.workers.decode.parallelism.replicas=2";
    let requests = unlike(&[(0.0, 8, 6), (0.0, 8, 6), (16.0, 8, 1)]);
    let output = run(&[&VLLM[..], &[two, planner, MS_A_TOKEN]].concat(), &requests);
    // It waits for the KV until 18 ms, and its last token comes at 30 ms.
    assert_eq!(
        changes(&output),
        [change(15.0, "decode", 1, "draining"), change(30.0, "decode", 1, "removed")]
    );
    let workers: Vec<f64> = (0..3).map(|i| output.of(i, "decode_worker_idx").unwrap()).collect();
    assert_eq!(workers, [0.0, 1.0, 0.0]);
    assert_eq!(output.of(1, "last_token_ms"), Some(30.0));
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.036 + 0.030));
}

/// The only workers of both roles crash and never come back: Dynamo's planner has the least that it may have brought back.
#[test]
fn a_planner_of_roles_brings_back_the_workers_that_crashed() {
    let overrides = [
        "planner={policy: enabled, target: throughput, enable_throughput_scaling: false, enable_load_scaling: true, \
         load_adjustment_interval_seconds: 0.02}",
        "engine.context_length=1000",
        "faults={prefill: {crashes: [{worker: 0, at_seconds: 0.005}]}, decode: {crashes: [{worker: 0, at_seconds: 0.006}]}}",
        UNCACHED,
        MS_A_TOKEN,
    ];
    let output = run(&[&VLLM[..], &overrides].concat(), &unlike(&[(0.0, 8, 6)]));
    let scaled = &output.prediction()["scaling_events"];
    for (i, role) in ["prefill", "decode"].into_iter().enumerate() {
        assert_eq!(
            scaled[i],
            json!({"time_ms": 20.0, "role": role, "from": 0, "to": 1, "reason": "workers 0, at least 1"})
        );
    }
    assert_eq!(["first_token_ms", "retry_count"].map(|field| output.of(0, field).unwrap()), [40.0, 1.0]);
}

/// How the numbers of workers change.
fn planner() -> impl Strategy<Value = (String, [f64; 2])> {
    let metrics =
        ["waiting", "running", "requests", "kv_usage", "ttft_ms", "request_rate", "itl_ms", "output_rate"];
    let hpa = (0usize..6, 0usize..8, 1u32..30, 1u32..5, 1u32..30).prop_map(move |(prefill, decode, every, target, hold)| {
        let of = |metric: usize| {
            let target = match metrics[metric] {
                "kv_usage" => 0.2 * f64::from(target),
                "ttft_ms" | "itl_ms" | "output_rate" => 10.0 * f64::from(target),
                _ => f64::from(target),
            };
            let (every, hold) = (f64::from(every) / 1e3, f64::from(hold) / 1e3);
            format!(
                "{{metric: {}, target_value: {target:?}, interval_seconds: {every:?}, window_seconds: {every:?}, \
                 scale_down_stabilization_seconds: {hold:?}, max_workers: 5}}",
                metrics[metric]
            )
        };
        match (prefill + decode) % 3 {
            0 => format!("policy: hpa, prefill: {}", of(prefill)),
            1 => format!("policy: hpa, decode: {}", of(decode)),
            _ => format!("policy: hpa, prefill: {}, decode: {}", of(prefill), of(decode)),
        }
    });
    let dynamo = (0usize..5, 2u32..30, 0u32..6).prop_map(|(kind, every, more)| {
        let (look, plan) = (f64::from(every) / 1e3, f64::from(every) / 500.0);
        let times = format!(
            "load_adjustment_interval_seconds: {look:?}, throughput_adjustment_interval_seconds: {plan:?}, \
             load_predictor: constant, max_num_gpus: {}",
            6 + more
        );
        let kind = [
            "target: throughput, enable_throughput_scaling: false, enable_load_scaling: true",
            "target: latency, enable_throughput_scaling: false, enable_load_scaling: true",
            "target: sla",
            "target: sla, enable_load_scaling: true",
            "target: sla, enable_throughput_scaling: false, enable_load_scaling: true",
        ][kind];
        format!("policy: enabled, {kind}, {times}")
    });
    let startup = (prop_oneof![Just(0.0), 0.001f64..0.03], prop_oneof![Just(0.0), 0.001f64..0.03]);
    (prop_oneof![hpa, dynamo], startup).prop_map(|(planner, startup)| (planner, [startup.0, startup.1]))
}

/// A deployment, and what happens to its workers.
fn elastic() -> impl Strategy<Value = Apart> {
    let crash = (0u32..3, 0u32..250, prop::option::weighted(0.8, 0u32..60));
    let slow = prop::option::of((0u32..3, 0u32..150, 1u32..150, 0.3f64..4.0));
    let loss = prop::option::of(0.05f64..1.0);
    // Some of them several times in a run of a tenth of a second.
    let rate = prop::option::weighted(0.25, (10_000.0f64..100_000.0, 0u32..40, 0u64..4));
    let of_role = (prop::collection::vec(crash, 0..4), slow, loss, rate);
    let of_role = (of_role.clone(), of_role);
    let all = (roles::case(), of_role, prop::option::of(0u32..4), prop::option::of(planner()));
    all.prop_map(|(case, (prefill, decode), retries, planner)| {
        let mut overrides = case.overrides.clone();
        if let Some((planner, startup)) = planner {
            overrides.push(format!("planner={{{planner}}}"));
            overrides.push("evaluation.sla={ttft_ms: 30, itl_ms: 3}".into());
            overrides.push("engine.context_length=100".into());
            for (role, startup) in ["prefill", "decode"].into_iter().zip(startup) {
                overrides.push(format!("engine.workers.{role}.startup_seconds={startup:?}"));
            }
        }
        let mut crash = false;
        for (role, workers, (crashes, slow, loss, rate)) in
            [("prefill", case.replicas[0], prefill), ("decode", case.replicas[1], decode)]
        {
            let mut faults = Vec::new();
            if !crashes.is_empty() {
                let crashes: Vec<String> = crashes
                    .iter()
                    .map(|(worker, at, restart)| {
                        let restart = restart.map_or(String::new(), |after| {
                            format!(", restart_seconds: {:?}", f64::from(after) / 1e3)
                        });
                        let (worker, at) = (worker % workers, f64::from(*at) / 1e3);
                        format!("{{worker: {worker}, at_seconds: {at:?}{restart}}}")
                    })
                    .collect();
                faults.push(format!("crashes: [{}]", crashes.join(", ")));
            }
            if let Some((worker, from, length, factor)) = slow {
                let (from, to) = (f64::from(from) / 1e3, f64::from(from + length) / 1e3);
                let worker = worker % workers;
                faults.push(format!(
                    "slow_workers: [{{worker: {worker}, from_seconds: {from:?}, to_seconds: {to:?}, factor: {factor:?}}}]"
                ));
            }
            if let Some(rate) = loss.filter(|_| case.hears && role == "prefill") {
                faults.push(format!("kv_event_loss: {{rate: {rate:?}}}"));
            }
            if let Some((rate, restart, seed)) = rate {
                let restart = f64::from(restart) / 1e3;
                faults.push(format!(
                    "crash_rate: {{per_worker_hour: {rate:?}, restart_seconds: {restart:?}, seed: {seed}}}"
                ));
            }
            crash |= faults.iter().any(|fault| fault.starts_with("crash"));
            if !faults.is_empty() {
                overrides.push(format!("faults.{role}={{{}}}", faults.join(", ")));
            }
        }
        if crash {
            overrides.push(match retries {
                Some(most) => format!("faults.max_retries={most}"),
                None => "faults.on_crash=fail".into(),
            });
        }
        Apart { overrides, ..case }
    })
}

/// Both steppers write the same bytes, looking on changes nothing, each request ends once, and no block is held at the end:
/// a source that lets go of a request twice, or never, would have another number of free blocks.
#[test]
fn random_elastic_runs_are_the_same_in_both_steppers() {
    let met = RefCell::new(BTreeMap::<&str, u64>::new());
    runner(300)
        .run(&elastic(), |case| {
            let overrides: Vec<&str> = case.overrides.iter().map(String::as_str).collect();
            let trial = load(&overrides, &case.requests);
            let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
            same(&plain.requests, &fast.requests);
            same(&plain.prediction, &fast.prediction);
            same(&plain.events, &fast.events);
            same(&plain.telemetry, &fast.telemetry);
            let unwatched = trial.run_unwatched(Stepper::Fast);
            same(&unwatched.requests, &fast.requests);
            same(&unwatched.prediction, &fast.prediction);
            let threads = trial.try_run_on(3).unwrap_or_else(|error| panic!("{error}"));
            same(&threads.prediction, &fast.prediction);
            every_request_ends_once(&fast, case.requests.len());
            assert_free_at_the_end(&fast);
            let mut met = met.borrow_mut();
            let mut add = |what, count| *met.entry(what).or_default() += count;
            add("cases", 1);
            if trial.experiment.is_elastic() {
                for what in
                    ["scale_ups", "scale_downs", "worker_crashes", "request_retries", "lost_kv_event_batches"]
                {
                    add(what, fast.count(what));
                }
            }
            add("failed", fast.count("failed_requests"));
            add("rejected", fast.count("rejected_requests"));
            add("completed", fast.count("completed_requests"));
            Ok(())
        })
        .unwrap();
    println!("{:?}", met.borrow());
    let met = met.into_inner();
    for (what, least) in [
        ("scale_ups", 200),
        ("scale_downs", 200),
        ("worker_crashes", 600),
        ("request_retries", 600),
        ("lost_kv_event_batches", 30),
        ("failed", 200),
        ("rejected", 100),
        ("completed", 2000),
    ] {
        assert!(met[what] * 300 >= least * met["cases"], "{what}: {}", met[what]);
    }
}

fn every_request_ends_once(output: &Output, asked: usize) {
    let requests = output.requests();
    let mut ids: Vec<u64> =
        requests.iter().map(|request| request["request_index"].as_u64().unwrap()).collect();
    ids.dedup();
    assert_eq!((ids.len(), requests.len()), (asked, asked), "in order, each once");
    let by = |status: &str| requests.iter().filter(|r| r["terminal_status"] == status).count() as u64;
    for status in ["completed", "rejected", "failed"] {
        assert_eq!(by(status), output.count(&format!("{status}_requests")), "{status}");
    }
    assert_eq!(output.count("unfinished_requests"), 0);
}
