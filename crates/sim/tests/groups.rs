//! Several ranks in a worker, by hand: who waits for whom, which rank takes a request, and when prefill is
//! held back. A pass with prefill takes 10 ms, one with decodes 2 ms, one with both 12 ms.

mod common;

use common::{Asked, Output, Trial, unlike};
use serde_json::Value;
use windtunnel_config::Placement::{self, RoundRobin, VllmBalancer};
use windtunnel_engine::RankConfig;
use windtunnel_sim::Stepper;

const SYNCHRONOUS: &str = "engine.workers.aggregated.scheduler.async_scheduling=false";

/// Requests of (arrival in ms, prompt tokens, output tokens, rank).
fn on_ranks(requests: &[(f64, u32, u32, u32)]) -> Vec<Asked> {
    let sizes: Vec<_> = requests.iter().map(|&(at, input, output, _)| (at, input, output)).collect();
    unlike(&sizes).into_iter().zip(requests).map(|(asked, r)| asked.on(r.3)).collect()
}

/// One worker, run with both steppers.
fn run(settings: &[&str], requests: &[Asked], ranks: u32, barrier: bool, placement: Placement) -> Output {
    let trial = Trial::small(settings, requests).with_ranks(ranks, barrier, placement);
    let (plain, fast) = (trial.run(Stepper::Plain), trial.run(Stepper::Fast));
    assert!(plain.prediction == fast.prediction && plain.requests == fast.requests);
    assert!(plain.events == fast.events && plain.telemetry == fast.telemetry);
    fast
}

/// Start of its first pass, end of its first pass with a token, and of its last.
fn stamps(output: &Output) -> Vec<[f64; 3]> {
    let stamps = ["first_admit_ms", "first_token_ms", "last_token_ms"];
    output.requests().iter().map(|request| stamps.map(|stamp| request[stamp].as_f64().unwrap())).collect()
}

fn ranks_of(output: &Output) -> Vec<u64> {
    output.requests().iter().map(|request| request["dp_rank"].as_u64().unwrap()).collect()
}

fn rows(output: &Output, fields: [&str; 3]) -> Vec<[f64; 3]> {
    let prediction: Value = serde_json::from_slice(&output.prediction).unwrap();
    let rows = prediction["workers"].as_array().unwrap();
    rows.iter().map(|row| fields.map(|field| row[field].as_f64().unwrap())).collect()
}

/// Rank 0 prefills from 0 to 10. Request b comes to rank 1 at 5. With a barrier it waits until 10, and then
/// rank 0, which only decodes, waits for rank 1 until 20. Without one neither waits.
#[test]
fn a_rank_waits_for_the_slowest_or_for_nobody() {
    let requests = on_ranks(&[(0.0, 8, 3, 0), (5.0, 8, 3, 1)]);
    let together = run(&[SYNCHRONOUS], &requests, 2, true, RoundRobin);
    assert_eq!(stamps(&together), [[0.0, 10.0, 22.0], [10.0, 20.0, 24.0]]);
    let apart = run(&[SYNCHRONOUS], &requests, 2, false, RoundRobin);
    assert_eq!(stamps(&apart), [[0.0, 10.0, 14.0], [5.0, 15.0, 19.0]]);
}

/// The same as vLLM schedules by default: a pass ahead. At 0 the decode of rank 0 from 10 to 12 is decided as
/// well. At 10 the pass from 12 on is: rank 0 decodes, rank 1 prefills, until 22. Rank 1 alone decodes until
/// 24 and until 26.
#[test]
fn ranks_that_schedule_ahead_wait_for_a_pass_more() {
    let requests = on_ranks(&[(0.0, 8, 3, 0), (5.0, 8, 3, 1)]);
    let together = run(&[], &requests, 2, true, RoundRobin);
    assert_eq!(stamps(&together), [[0.0, 10.0, 22.0], [12.0, 22.0, 26.0]]);
    let apart = run(&[], &requests, 2, false, RoundRobin);
    assert_eq!(stamps(&apart), [[0.0, 10.0, 14.0], [5.0, 15.0, 19.0]]);
}

/// A rank counts the passes in which it computes a token, and is busy from their start to the end that they
/// have for the whole group. Rank 0: 0–10, 10–20, 20–22. Rank 1: 10–20, 20–22, 22–24.
#[test]
fn a_rank_is_busy_while_a_pass_of_its_group_computes_for_it() {
    let requests = on_ranks(&[(0.0, 8, 3, 0), (5.0, 8, 3, 1)]);
    let output = run(&[SYNCHRONOUS], &requests, 2, true, RoundRobin);
    let fields = ["passes", "busy_ms", "decode_tokens"];
    assert_eq!(rows(&output, fields), [[3.0, 22.0, 2.0], [3.0, 14.0, 2.0]]);
    let samples = output.telemetry();
    let at_14: Vec<f64> = samples
        .iter()
        .filter(|sample| sample["time_ms"] == 14.0)
        .map(|sample| sample["total"]["busy_ms"].as_f64().unwrap())
        .collect();
    assert_eq!(at_14, [14.0, 4.0]);
}

/// Each rank has all the seats and blocks: with 2 seats, four requests run at once on two ranks.
#[test]
fn limits_are_those_of_a_rank() {
    let seats = "engine.workers.aggregated.scheduler.max_sequences=2";
    let requests = unlike(&[(0.0, 8, 3); 4]);
    for barrier in [true, false] {
        let two = run(&[SYNCHRONOUS, seats], &requests, 2, barrier, RoundRobin);
        assert_eq!(stamps(&two), [[0.0, 10.0, 14.0]; 4]);
    }
    let one = run(&[SYNCHRONOUS, seats], &requests, 1, false, RoundRobin);
    assert_eq!(stamps(&one)[2..], [[14.0, 24.0, 28.0]; 2]);
}

/// What one rank has cached, another does not find.
#[test]
fn a_cache_is_that_of_a_rank() {
    let prompt = || common::asked(0.0, 0..40, 2);
    let requests = [
        prompt().on(0),
        Asked { arrival_ms: 100.0, ..prompt().on(1) },
        Asked { arrival_ms: 200.0, ..prompt().on(0) },
    ];
    let output = run(&[], &requests, 2, true, RoundRobin);
    let reused = (0..3).map(|i| output.of(i, "reused_input_tokens").unwrap());
    assert_eq!(reused.collect::<Vec<_>>(), [0.0, 0.0, 32.0]);
}

/// Workers take turns, and so do the ranks of each; a request that names its rank takes no rank's turn.
#[test]
fn ranks_take_turns_within_their_worker() {
    let mut requests = unlike(&[(0.0, 8, 3); 8]);
    requests[2] = requests[2].clone().on(2);
    let two_workers = "engine.workers.aggregated.parallelism.replicas=2";
    let output = run(&[two_workers], &requests, 3, true, RoundRobin);
    let placed = |field: &str| -> Vec<u64> {
        output.requests().iter().map(|request| request[field].as_u64().unwrap()).collect()
    };
    assert_eq!(placed("decode_worker_idx"), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(placed("dp_rank"), [0, 0, 2, 1, 1, 2, 2, 0]);
}

/// A rank that does not exist is a reason to refuse the request, not to stop; in a closed loop the next one
/// takes its seat.
#[test]
fn a_request_for_a_rank_that_is_not_there_is_refused() {
    let requests = on_ranks(&[(0.0, 8, 3, 0), (1.0, 8, 3, 2), (2.0, 8, 3, 1)]);
    for load in ["{type: trace_timestamps}", "{type: concurrency, concurrency: 1}"] {
        let load = format!("traffic.load={load}");
        let output = run(&[&load], &requests, 2, true, RoundRobin);
        assert_eq!((output.count("completed_requests"), output.count("rejected_requests")), (2, 1));
        let refused = &output.requests()[1];
        assert_eq!(refused["reject_reason"], "no_such_rank");
        assert_eq!(refused["detail"], "dp_rank 2 is none of the 2 ranks of a worker, from 0");
        assert!(refused["decode_worker_idx"].is_null() && refused["dp_rank"].is_null());
    }
    let last = on_ranks(&[(0.0, 8, 3, 0), (100.0, 8, 3, 7)]);
    assert_eq!(run(&[], &last, 1, false, RoundRobin).count("rejected_requests"), 1);
}

/// A long and a short request go to ranks 0 and 1. When the third comes, the short one has ended: round robin
/// takes rank 0, the balancer rank 1, where nothing is. The fourth finds one on either, and the search begins
/// at rank 1.
#[test]
fn the_balancer_sees_who_has_less_to_do() {
    let requests = unlike(&[(0.0, 8, 500), (0.0, 8, 2), (300.0, 8, 2), (301.0, 8, 2)]);
    for barrier in [true, false] {
        assert_eq!(ranks_of(&run(&[], &requests, 2, barrier, RoundRobin)), [0, 1, 0, 1]);
        assert_eq!(ranks_of(&run(&[], &requests, 2, barrier, VllmBalancer)), [0, 1, 1, 1]);
    }
}

/// How old its knowledge is. One seat a rank: requests 0 and 2 go to rank 0, and 1 to rank 1. At 0 rank 0
/// publishes 2 waiting and rank 1 publishes 1; what they do from then on is published at 100 ms. Request 1
/// ends at 12, so at 50 rank 1 has nothing left, and yet it is thought to have 1 waiting. That at 50 goes to
/// rank 1 all the same (1 against 2), which is then thought to have 2. The one at 60 finds both at 2 and takes
/// the one whose place comes first: rank 0, although rank 1 has no more than the request of 50. After 100 rank
/// 1 is known to be empty.
#[test]
fn the_balancer_knows_what_was_published() {
    let seats = "engine.workers.aggregated.scheduler.max_sequences=1";
    let sizes =
        [(0.0, 8, 400), (0.0, 8, 2), (0.0, 8, 2), (50.0, 8, 2), (60.0, 8, 2), (180.0, 8, 2), (190.0, 8, 2)];
    let output = run(&[seats, SYNCHRONOUS], &unlike(&sizes), 2, false, VllmBalancer);
    assert_eq!(ranks_of(&output), [0, 1, 0, 1, 0, 1, 1]);
}

fn held(interval: u32, requests: &[Asked], barrier: bool) -> Vec<[f64; 3]> {
    let mut trial = Trial::small(&[SYNCHRONOUS], requests).with_ranks(2, barrier, RoundRobin);
    let RankConfig::Vllm(config) = &mut trial.experiment.deployment.engine else { panic!("vLLM") };
    config.prefill_schedule_interval = interval;
    let outputs = [Stepper::Plain, Stepper::Fast].map(|stepper| stamps(&trial.run(stepper)));
    assert_eq!(outputs[0], outputs[1]);
    outputs[1].clone()
}

/// Interval 4. a prefills in step 0 and decodes from step 1 on, at 10. b comes to the same rank at 11 and
/// waits for step 4, at 16; c comes to the other rank, where nobody decodes, and does not wait: step 2, at 12,
/// which makes step 3 begin at 22 and step 4 at 24.
#[test]
fn prefill_waits_for_a_step_of_the_group_where_something_decodes() {
    let a_and_b = on_ranks(&[(0.0, 8, 20, 0), (11.0, 8, 2, 0)]);
    assert_eq!(held(4, &a_and_b, true)[1], [16.0, 28.0, 30.0]);
    let and_c = on_ranks(&[(0.0, 8, 20, 0), (11.0, 8, 2, 0), (11.0, 8, 2, 1)]);
    assert_eq!(held(4, &and_c, true)[1..], [[24.0, 36.0, 38.0], [12.0, 22.0, 24.0]]);
}

/// When all ranks are done, the steps are counted anew: the second a, at 100, is step 0 again, and so b, which
/// comes at 111, waits for step 4, at 116.
#[test]
fn the_steps_are_counted_anew_when_all_ranks_are_done() {
    let requests = on_ranks(&[(0.0, 8, 3, 0), (100.0, 8, 20, 0), (111.0, 8, 2, 0)]);
    assert_eq!(held(4, &requests, true)[2], [116.0, 128.0, 130.0]);
}
