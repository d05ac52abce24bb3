//! Workers that come and go while a run lasts, and workers that fail: scaling by hand, faults by hand, and random runs
//! in both steppers.

mod common;
#[path = "../../engine/tests/support/runner.rs"]
mod runner;

use common::random::{Case, case};
use common::{Asked, Output, Trial, same, unlike};
use proptest::prelude::*;
use runner::runner;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use windtunnel_sim::Stepper;

const STEPPERS: [Stepper; 2] = [Stepper::Plain, Stepper::Fast];

/// One after the other, synchronous: a request of 8 prompt and 6 output tokens takes 10 + 5 · 2 = 20 ms.
const ONE_SEAT: &str =
    "engine.workers.aggregated.scheduler={max_batched_tokens: 64, max_sequences: 1, async_scheduling: false}";

/// Looks every 10 ms for one waiting request a worker.
const HPA: &str = "planner={policy: hpa, metric: waiting, target_value: 1, interval_seconds: 0.01, window_seconds: 0.01, \
                   scale_down_stabilization_seconds: 0.03, max_workers: 3}";

fn run(overrides: &[&str], requests: &[Asked]) -> Output {
    let trial = Trial::small(overrides, requests);
    let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
    same(&plain.prediction, &fast.prediction);
    same(&plain.requests, &fast.requests);
    fast
}

fn events(output: &Output) -> Vec<(f64, u64, String)> {
    let prediction = output.prediction();
    let events = prediction["worker_events"].as_array().unwrap().iter();
    events
        .map(|event| {
            let word = event["event"].as_str().unwrap().to_owned();
            (event["time_ms"].as_f64().unwrap(), event["worker"].as_u64().unwrap(), word)
        })
        .collect()
}

fn event(time: f64, worker: u64, word: &str) -> (f64, u64, String) {
    (time, worker, word.to_owned())
}

/// Of six requests at 0 five wait at 10 ms: 3 workers, no more than the most. They are ready 25 ms later, and take what
/// comes then, in turn: the requests that wait on the first worker stay there. From 80 ms on one waits, and from 100 ms
/// on nobody: 2 workers are enough once the look at 50 ms is 30 ms old, 1 once that at 70 ms is. Those that go are idle.
#[test]
fn workers_are_added_for_those_that_wait_and_go_when_nobody_does() {
    let mut arrivals = vec![(0.0, 8, 6); 6];
    arrivals.extend([(40.0, 8, 6), (41.0, 8, 6), (200.0, 8, 6)]);
    let startup = "engine.workers.aggregated.startup_seconds=0.025";
    let output = run(&[ONE_SEAT, HPA, startup, "evaluation.price_per_gpu_hour=3.6"], &unlike(&arrivals));
    let workers: Vec<_> = (0..9).map(|i| output.of(i, "decode_worker_idx").unwrap()).collect();
    // The turn, which was at its end, goes on with the second of three.
    assert_eq!(workers, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0]);
    let scaled = &output.prediction()["scaling_events"];
    assert_eq!(
        scaled[0],
        json!({"time_ms": 10.0, "role": "aggregated", "from": 1, "to": 3, "reason": "waiting 5.00, target 1"})
    );
    let down = |i: usize| ["time_ms", "from", "to"].map(|field| scaled[i][field].as_f64().unwrap());
    assert_eq!([down(1), down(2)], [[90.0, 3.0, 2.0], [110.0, 2.0, 1.0]]);
    assert_eq!(
        events(&output),
        [
            event(10.0, 1, "added"),
            event(10.0, 2, "added"),
            event(35.0, 1, "ready"),
            event(35.0, 2, "ready"),
            event(90.0, 2, "draining"),
            event(90.0, 2, "removed"),
            event(110.0, 1, "draining"),
            event(110.0, 1, "removed"),
        ]
    );
    // For 220, 100 and 80 ms.
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.4));
    assert_eq!(
        (output.count("scale_ups"), output.count("scale_downs"), output.count("peak_workers")),
        (1, 2, 3)
    );
    // 0.4 s of one GPU at 3.6 an hour.
    assert!((output.metric("cost").unwrap() - 0.0004).abs() < 1e-12);
    let per_million = output.metric("cost_per_million_output_tokens").unwrap();
    assert!((per_million - 0.0004 / 54.0 * 1e6).abs() < 1e-9);
}

/// A worker that drains ends what it has, gets nothing more, and is paid for until then: requests on both of two
/// workers until 20 + 20 · 2 ms of decode; the second one takes none of the later ones.
#[test]
fn a_worker_ends_what_it_has_before_it_goes() {
    let planner = "planner={policy: hpa, metric: requests, target_value: 10, interval_seconds: 0.015, \
                   scale_down_stabilization_seconds: 0, max_workers: 2}";
    let replicas = "engine.workers.aggregated.parallelism.replicas=2";
    let synchronous = "engine.workers.aggregated.scheduler.async_scheduling=false";
    let mut arrivals = vec![(0.0, 8, 21), (0.0, 8, 21)];
    arrivals.extend([(16.0, 8, 2), (17.0, 8, 2), (100.0, 8, 2)]);
    let output = run(&[planner, replicas, synchronous], &unlike(&arrivals));
    let workers: Vec<_> = (0..5).map(|i| output.of(i, "decode_worker_idx").unwrap()).collect();
    assert_eq!(workers, [0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(events(&output), [event(15.0, 1, "draining"), event(50.0, 1, "removed")]);
    assert_eq!(output.of(1, "last_token_ms"), Some(50.0));
    assert_eq!(output.count("completed_requests"), 5);
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.112 + 0.050));
}

/// A closed loop keeps its seats full whatever the number of workers.
#[test]
fn a_closed_loop_keeps_its_cap_beside_a_planner() {
    let traffic =
        "traffic={source: {input_tokens: 8, output_tokens: 6}, load: {concurrency: 4}, stop: {requests: 60}}";
    let crashes = "faults={crashes: [{worker: 0, at_seconds: 0.055, restart_seconds: 0.02}], max_retries: 2}";
    for faults in ["faults={}", crashes, "faults={crashes: [{worker: 0, at_seconds: 0.055}], on_crash: fail}"]
    {
        let output = run(&[ONE_SEAT, HPA, traffic, faults], &[]);
        assert_eq!(output.most_in_flight(), Some(4), "{faults}");
        let ended = output.count("completed_requests") + output.count("failed_requests");
        assert_eq!((output.requests().len(), ended), (60, 60), "{faults}");
        assert!(output.count("scale_ups") > 0, "{faults}");
    }
}

/// At 15 ms the first of two workers loses the request that it has given 3 tokens and the one that waits there. Both go
/// to the other one, behind the request that it has, from their beginnings; the first worker is back at 30 ms, empty.
#[test]
fn requests_of_a_crashed_worker_are_sent_anew() {
    let faults = "faults={crashes: [{worker: 0, at_seconds: 0.015, restart_seconds: 0.015}]}";
    let replicas = "engine.workers.aggregated.parallelism.replicas=2";
    let mut arrivals = vec![(0.0, 8, 6); 3];
    arrivals.extend([(31.0, 8, 6), (32.0, 8, 6)]);
    let output = run(&[ONE_SEAT, replicas, faults], &unlike(&arrivals));
    let of = |field: &str| (0..5).map(|i| output.of(i, field).unwrap()).collect::<Vec<_>>();
    // The turn had come to the second worker, which it finds first among one and then second among two.
    assert_eq!(of("decode_worker_idx"), [1.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(of("retry_count"), [1.0, 0.0, 1.0, 0.0, 0.0]);
    assert_eq!(of("first_token_ms"), [30.0, 10.0, 50.0, 70.0, 42.0]);
    assert_eq!(of("arrival_time_ms"), [0.0, 0.0, 0.0, 31.0, 32.0]);
    assert_eq!(of("ttft_ms")[0], 30.0);
    assert_eq!(of("output_length"), [6.0; 5]);
    assert_eq!(output.count("total_output_tokens"), 30);
    assert_eq!((output.count("retried_requests"), output.count("request_retries")), (2, 2));
    assert_eq!(events(&output), [event(15.0, 0, "crashed"), event(30.0, 0, "ready")]);
    // Both were provisioned all the time.
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.16));
}

/// The same, when a crash ends the requests: they have failed, with what they had given.
#[test]
fn requests_of_a_crashed_worker_can_fail() {
    let faults = "faults={on_crash: fail, crashes: [{worker: 0, at_seconds: 0.015}]}";
    let replicas = "engine.workers.aggregated.parallelism.replicas=2";
    let output = run(&[ONE_SEAT, replicas, faults], &unlike(&[(0.0, 8, 6); 3]));
    let requests = output.requests();
    let status = |i: usize| requests[i]["terminal_status"].as_str().unwrap();
    assert_eq!([0, 1, 2].map(status), ["failed", "completed", "failed"]);
    assert_eq!(requests[0]["detail"], "its worker crashed");
    assert_eq!([0, 2].map(|i| output.of(i, "output_length").unwrap()), [3.0, 0.0]);
    assert_eq!([0, 2].map(|i| output.of(i, "terminal_time_ms").unwrap()), [15.0, 15.0]);
    assert_eq!((output.count("failed_requests"), output.count("completed_requests")), (2, 1));
    // The other one until 20 ms; nobody pays for what does not come back.
    assert_eq!(output.metric("decode_worker_seconds"), Some(0.035));
    assert_eq!(events(&output), [event(15.0, 0, "crashed"), event(15.0, 0, "removed")]);
}

/// A request that loses its worker more often than it may be sent anew fails. One worker, which crashes at 15, 35 and
/// 55 ms and is back 5 ms later each time: at 20 and at 40 the request begins anew, at 55 it has had two retries.
#[test]
fn retries_have_an_end() {
    let crash = |at: f64| format!("{{worker: 0, at_seconds: {at}, restart_seconds: 0.005}}");
    let crashes = [0.015, 0.035, 0.055].map(crash).join(", ");
    for (most, status, terminal) in [(2, "failed", 55.0), (3, "completed", 80.0)] {
        let faults = format!("faults={{max_retries: {most}, crashes: [{crashes}]}}");
        let output = run(&[ONE_SEAT, &faults], &unlike(&[(0.0, 8, 6)]));
        assert_eq!(output.requests()[0]["terminal_status"], status);
        assert_eq!(output.of(0, "terminal_time_ms"), Some(terminal));
        assert_eq!(output.of(0, "retry_count"), Some(f64::from(most)));
        assert_eq!(output.count("worker_crashes"), 3);
    }
}

/// While no worker is there, requests wait for one; when none will ever come, they are refused.
#[test]
fn without_a_worker_requests_wait_or_are_refused() {
    let requests = unlike(&[(0.0, 8, 6), (18.0, 8, 6)]);
    let back = run(
        &[ONE_SEAT, "faults={crashes: [{worker: 0, at_seconds: 0.015, restart_seconds: 0.01}]}"],
        &requests,
    );
    assert_eq!([0, 1].map(|i| back.of(i, "first_token_ms").unwrap()), [35.0, 55.0], "{:?}", back.requests());
    let gone = run(&[ONE_SEAT, "faults={crashes: [{worker: 0, at_seconds: 0.015}]}"], &requests);
    let requests = gone.requests();
    assert!(requests.iter().all(|request| request["reject_reason"] == "no_worker"), "{requests:?}");
    assert_eq!((gone.count("rejected_requests"), gone.count("num_requests")), (2, 2));
}

/// Passes that are scheduled from 14 ms to 20 ms take three times as long: decodes begin at 10, 12, 14 and 20 ms.
/// The only worker crashes at 5 ms and never comes back. The planner looks at 10 ms, sees two requests that wait for a
/// worker, and has two started, which are ready at 30 ms; the third request comes before and waits with them. Nobody is
/// refused.
#[test]
fn a_planner_brings_back_the_workers_that_crashed() {
    let planner = "planner={policy: hpa, metric: waiting, target_value: 1, interval_seconds: 0.01, window_seconds: 0.01, \
                   max_workers: 2}";
    let faults = "faults={crashes: [{worker: 0, at_seconds: 0.005}]}";
    let startup = "engine.workers.aggregated.startup_seconds=0.02";
    let requests = unlike(&[(0.0, 8, 6), (0.0, 8, 6), (20.0, 8, 6)]);
    let output = run(&[ONE_SEAT, planner, faults, startup], &requests);
    assert_eq!((output.count("completed_requests"), output.count("rejected_requests")), (3, 0));
    let scaled = &output.prediction()["scaling_events"];
    assert_eq!(
        scaled[0],
        json!({"time_ms": 10.0, "role": "aggregated", "from": 0, "to": 2, "reason": "waiting 2.00, target 1"})
    );
    assert!((0..3).all(|i| output.of(i, "first_token_ms").unwrap() >= 40.0), "10 ms of prefill after 30 ms");

    // A measure that says nothing of workers that are not there: the least that there may be.
    let planner = planner.replace("waiting", "running");
    let output = run(&[ONE_SEAT, &planner, faults, startup], &requests);
    assert_eq!((output.count("completed_requests"), output.count("rejected_requests")), (3, 0));
    let scaled = &output.prediction()["scaling_events"];
    assert_eq!(
        scaled[0],
        json!({"time_ms": 10.0, "role": "aggregated", "from": 0, "to": 1, "reason": "workers 0, at least 1"})
    );
}

#[test]
fn a_slow_worker_takes_longer_for_a_while() {
    let faults = "faults={slow_workers: [{worker: 0, from_seconds: 0.0135, to_seconds: 0.0195, factor: 3}]}";
    let output = run(&[ONE_SEAT, faults], &unlike(&[(0.0, 8, 6)]));
    assert_eq!(output.of(0, "last_token_ms"), Some(24.0));
    assert_eq!(output.metric("max_itl_ms"), Some(6.0));
    assert_eq!(events(&output), [event(13.5, 0, "slowed"), event(19.5, 0, "recovered")]);
}

/// All events lost: the router knows of no cached block, though the workers have them, and its record says so.
#[test]
fn without_its_events_a_router_knows_of_no_cache() {
    let router = "router={policy: kv_router, block_size: 16}";
    let replicas = "engine.workers.aggregated.parallelism.replicas=2";
    let rows: Vec<_> = (0..12).map(|i| (f64::from(i) * 100.0, 64, 2, vec![1u64, 2, 3, 4])).collect();
    let trace = common::mooncake(&rows);
    let traffic = "traffic={source: {type: trace, paths: [trace.jsonl], block_size: 16}, load: {type: trace_timestamps}}";
    let of = |faults: &str| {
        let trial = Trial::load(common::SMALL, &[traffic, router, replicas, faults], &trace).unwrap();
        let [plain, fast] = STEPPERS.map(|stepper| trial.run(stepper));
        same(&plain.prediction, &fast.prediction);
        fast
    };
    let known = of("faults={kv_event_loss: {rate: 1e-9}}");
    assert!(known.metric("router_overlap_ratio").unwrap() > 0.7);
    assert_eq!(known.count("lost_kv_event_batches"), 0);
    let unknown = of("faults={kv_event_loss: {rate: 1}}");
    assert_eq!(unknown.metric("router_best_overlap_ratio"), Some(0.0));
    assert!(unknown.count("lost_kv_event_batches") >= 2);
    assert!(unknown.metric("prefix_cache_reused_ratio").unwrap() > 0.5);
}

/// A worker that comes back, or is new, has an empty cache, and the router knows: no request is thought to be cached
/// there, and none is.
#[test]
fn a_new_worker_has_an_empty_cache() {
    let trace = common::mooncake(&[(0.0, 64, 2, vec![1u64, 2, 3, 4]), (50.0, 64, 2, vec![1, 2, 3, 4])]);
    let traffic = "traffic={source: {type: trace, paths: [trace.jsonl], block_size: 16}, load: {type: trace_timestamps}}";
    for router in [
        "router={policy: kv_router, block_size: 16}",
        "router={policy: cache_aware, block_size: 16}",
        "router={policy: scorers, block_size: 16}",
    ] {
        let faults = "faults={crashes: [{worker: 0, at_seconds: 0.03, restart_seconds: 0.01}]}";
        for (faults, reused) in [("faults={}", 48.0), (faults, 0.0)] {
            let trial = Trial::load(common::SMALL, &[traffic, router, faults], &trace).unwrap();
            let output = trial.run(Stepper::Fast);
            assert_eq!(output.of(1, "reused_input_tokens"), Some(reused), "{router}");
            assert_eq!(output.of(1, "router_best_overlap_tokens").unwrap() > 0.0, reused > 0.0, "{router}");
        }
    }
}

/// A planner, faults, or both, beside any deployment and workload.
fn elastic() -> impl Strategy<Value = (Case, String)> {
    let metric = prop::sample::select(vec![
        ("waiting", 1.0),
        ("running", 2.0),
        ("requests", 3.0),
        ("kv_usage", 0.3),
        ("ttft_ms", 20.0),
        ("itl_ms", 5.0),
        ("request_rate", 40.0),
        ("output_rate", 200.0),
    ]);
    let hpa = (metric, 5u32..80, 0u32..60, 0u32..5).prop_map(|((metric, target), interval, down, most)| {
        format!(
            "planner: {{policy: hpa, metric: {metric}, target_value: {target:?}, interval_seconds: {:?}, \
             scale_down_stabilization_seconds: {:?}, max_workers: REPLICAS+{most}}}\n",
            f64::from(interval) / 1e3,
            f64::from(down) / 1e3
        )
    });
    let dynamo = (prop::sample::select(vec!["throughput", "latency", "sla"]), 5u32..60, any::<bool>()).prop_map(
        |(target, interval, both)| {
            let sla = target == "sla";
            let load = f64::from(interval) / 1e3;
            format!(
                "planner: {{policy: enabled, target: {target}, enable_throughput_scaling: {sla}, enable_load_scaling: {}, \
                 load_adjustment_interval_seconds: {load:?}, throughput_adjustment_interval_seconds: {:?}, max_num_gpus: \
                 32{}}}\nevaluation: {{sla: {{ttft_ms: 40, itl_ms: 10}}}}\n",
                !sla || both,
                load * 3.0,
                if sla { ", load_predictor: constant" } else { "" }
            )
        },
    );
    let planner = prop_oneof![1 => Just(String::new()), 3 => hpa, 2 => dynamo];
    let crash = (0u32..200, prop::option::of(0u32..60)).prop_map(|(at, restart)| {
        let restart =
            restart.map_or(String::new(), |after| format!(", restart_seconds: {:?}", f64::from(after) / 1e3));
        format!("{{worker: 0, at_seconds: {:?}{restart}}}", f64::from(at) / 1e3)
    });
    let crashes =
        prop::collection::vec(crash, 0..4).prop_map(|crashes| format!("crashes: [{}]", crashes.join(", ")));
    let rate = (1u32..30, 1u32..50).prop_map(|(seconds, restart)| {
        let per_hour = 3600.0 / (f64::from(seconds) / 100.0);
        format!(
            ", crash_rate: {{per_worker_hour: {per_hour:?}, restart_seconds: {:?}}}",
            f64::from(restart) / 1e3
        )
    });
    let slow = (0u32..100, 1u32..200, 0.3f64..4.0).prop_map(|(from, length, factor)| {
        let seconds = |ms: u32| f64::from(ms) / 1e3;
        let (from, to) = (seconds(from), seconds(from + length));
        format!(
            ", slow_workers: [{{worker: 0, from_seconds: {from:?}, to_seconds: {to:?}, factor: {factor:?}}}]"
        )
    });
    let option = |part: BoxedStrategy<String>| prop::option::of(part).prop_map(Option::unwrap_or_default);
    let faults = (crashes, option(rate.boxed()), option(slow.boxed()), 0u32..4, any::<bool>());
    let faults = prop::option::weighted(0.7, faults);
    let extra = (planner, faults, 0.05f64..0.6, 0u32..40);
    (case(), extra).prop_map(|(mut case, (planner, faults, loss, startup))| {
        let told = case.config.contains("policy: kv_router")
            || case.config.contains("policy: scorers, block_size: PAGE}");
        let faults = faults.map_or(String::new(), |(crashes, rate, slow, retries, fail)| {
            let loss = if told { format!(", kv_event_loss: {{rate: {loss:?}}}") } else { String::new() };
            let crash = crashes != "crashes: []" || !rate.is_empty();
            let policy = match (crash, fail) {
                (false, _) => String::new(),
                (true, true) => ", on_crash: fail".to_owned(),
                (true, false) => format!(", max_retries: {retries}"),
            };
            format!("faults: {{{crashes}{rate}{slow}{loss}{policy}}}\n")
        });
        // Bounds of goodput are the planner's, if it has some.
        if planner.contains("evaluation:") {
            case.config = case
                .config
                .lines()
                .filter(|line| !line.starts_with("evaluation:"))
                .map(|line| format!("{line}\n"))
                .collect();
        }
        let replicas = case.config.split("replicas: ").nth(1).and_then(|rest| rest.split('}').next());
        let replicas: u32 = replicas.unwrap().parse().unwrap();
        let planner = (0..5).fold(planner, |text, more| {
            text.replace(&format!("REPLICAS+{more}"), &(replicas + more).to_string())
        });
        case.config.push_str(&planner);
        case.config.push_str(&faults);
        (case, format!("engine.workers.aggregated.startup_seconds={:?}", f64::from(startup) / 1e3))
    })
}

/// Both steppers write the same bytes, a second run does so again, watching changes nothing, and every request ends
/// once, or is unfinished.
#[test]
fn random_elastic_runs_are_the_same_in_both_steppers() {
    let met = RefCell::new(BTreeMap::<&str, u64>::new());
    runner(300)
        .run(&elastic(), |(case, startup)| {
            let trial = Trial::load(&case.config, &[&startup], &case.trace);
            let trial = trial.unwrap_or_else(|error| panic!("{error}\n{}", case.config));
            let trial = trial.with_ranks(case.ranks, case.barrier, case.placement);
            let (plain, fast) = match (trial.try_run(Stepper::Plain), trial.try_run(Stepper::Fast)) {
                (Ok(plain), Ok(fast)) => (plain, fast),
                (plain, fast) => {
                    assert_eq!(plain.err().map(|e| e.to_string()), fast.err().map(|e| e.to_string()));
                    *met.borrow_mut().entry("ended by the engine").or_default() += 1;
                    return Ok(());
                }
            };
            same(&plain.requests, &fast.requests);
            same(&plain.prediction, &fast.prediction);
            same(&plain.events, &fast.events);
            same(&plain.telemetry, &fast.telemetry);
            same(&trial.run(Stepper::Fast).prediction, &fast.prediction);
            // Looking changes nothing.
            let unwatched = trial.run_unwatched(Stepper::Fast);
            same(&unwatched.requests, &fast.requests);
            same(&unwatched.prediction, &fast.prediction);
            every_request_ends_once(&fast);
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
            add("completed", fast.count("completed_requests"));
            Ok(())
        })
        .unwrap();
    println!("{:?}", met.borrow());
    let met = met.into_inner();
    for (what, least) in [
        ("scale_ups", 100),
        ("scale_downs", 100),
        ("worker_crashes", 200),
        ("request_retries", 200),
        ("lost_kv_event_batches", 100),
        ("failed", 100),
        ("completed", 1000),
    ] {
        assert!(met[what] * 300 >= least * met["cases"], "{what}: {}", met[what]);
    }
}

fn every_request_ends_once(output: &Output) {
    let requests = output.requests();
    let mut ids: Vec<u64> =
        requests.iter().map(|request| request["request_index"].as_u64().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids.len(), requests.len(), "in order, each once");
    let by = |status: &str| requests.iter().filter(|r| r["terminal_status"] == status).count() as u64;
    let counts = ["completed", "rejected", "failed"];
    for status in counts {
        assert_eq!(by(status), output.count(&format!("{status}_requests")), "{status}");
    }
    assert_eq!(requests.len() as u64 + output.count("unfinished_requests"), output.count("num_requests"));
    let tokens = |request: &Value| request["output_length"].as_u64().unwrap();
    let completed: u64 = requests.iter().filter(|r| r["terminal_status"] == "completed").map(tokens).sum();
    assert_eq!(completed, output.count("total_output_tokens"));
}
