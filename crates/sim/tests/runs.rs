//! Random deployments and workloads, run through the whole simulator. The plain and the fast stepper must
//! write the same bytes, a second run must write them again, and every report must keep the invariants
//! that show in a report (numbered as in the tests of engine).
//!
//! The cases are the same in every run. PROPTEST_CASES sets their number, PROPTEST_RNG_SEED draws others.

mod common;
#[path = "../../engine/tests/support/runner.rs"]
mod runner;

use common::random::{Case, case};
use common::{Output, SMALL, Trial};
use runner::runner;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use windtunnel_config::{Pace, Placement};
use windtunnel_engine::trtllm::FullHit;
use windtunnel_engine::{Nanos, OutputPlan, RankConfig, sglang};
use windtunnel_router::Policy;
use windtunnel_sim::{SimError, Stepper};

#[test]
fn both_steppers_write_the_same_bytes_and_every_report_is_consistent() {
    let met = RefCell::new(BTreeMap::<&str, u64>::new());
    let done = runner(500).run(&case(), |case| {
        let trial = case.load();
        let plain = trial.try_run(Stepper::Plain);
        let fast = trial.try_run(Stepper::Fast);
        let (plain, fast) = match (plain, fast) {
            (Ok(plain), Ok(fast)) => (plain, fast),
            (plain, fast) => {
                let side_by_side = trial.try_run_on(case.threads).err();
                assert_eq!(fast.as_ref().err().map(SimError::to_string), side_by_side.map(|e| e.to_string()));
                the_engine_would_end(&trial, plain.err(), fast.err());
                *met.borrow_mut().entry("ended by the engine").or_default() += 1;
                return Ok(());
            }
        };
        same_bytes(&plain, &fast);
        same_bytes(&fast, &trial.run(Stepper::Fast));
        let unwatched = trial.run_unwatched(Stepper::Fast);
        assert!(unwatched.prediction == fast.prediction, "looking changes nothing");
        assert!(unwatched.requests == fast.requests, "looking changes nothing");
        let side_by_side = trial.try_run_on(case.threads).unwrap();
        assert!(side_by_side.prediction == fast.prediction, "{} threads change nothing", case.threads);
        assert!(side_by_side.requests == fast.requests, "{} threads change nothing", case.threads);
        consistent(&trial, &fast);
        note(&mut met.borrow_mut(), &case, &fast);
        Ok(())
    });
    println!("{:?}", met.borrow());
    done.unwrap();
    let met = met.into_inner();
    for (what, least) in [
        ("completed", 1000),
        ("rejected", 200),
        ("unfinished", 30),
        ("threads", 30),
        ("least_requests", 9),
        ("least_kv", 9),
        ("power_of_two", 9),
        ("kv_router", 60),
        ("cache_aware", 5),
        ("policy: scorers", 5),
        ("prefix_hash", 5),
        ("held back", 30),
        ("routed to a prefix", 100),
        ("preempted", 150),
        ("evicted", 1000),
        ("SGLang", 50),
        ("SGLang retracted", 8),
        ("SGLang evicted", 800),
        ("SGLang found", 100),
        ("SGLang mixed", 20),
        ("TensorRT-LLM", 50),
        ("TensorRT-LLM paused", 6),
        ("TensorRT-LLM evicted", 300),
    ] {
        assert!(met[what] * 300 >= least * met["cases"], "{what}: {}", met[what]);
    }
}

/// SGLang may admit more than fits, where settings make it reserve too little, and dies of it; or a retracted
/// request is too large to be admitted again, which it waits for without end. TensorRT-LLM may starve prompts
/// that it has skipped. Both steppers then say so in the same words.
fn the_engine_would_end(trial: &Trial, plain: Option<SimError>, fast: Option<SimError>) {
    let allowed = |error: &Option<SimError>| match trial.experiment.deployment.engine {
        RankConfig::Sglang(_) => {
            matches!(error, Some(SimError::EngineFault { .. } | SimError::Stuck { .. }))
        }
        RankConfig::Trtllm(_) => matches!(error, Some(SimError::Stuck { .. })),
        RankConfig::Vllm(_) => false,
    };
    assert!(allowed(&plain) && allowed(&fast), "{plain:?} {fast:?}");
    assert_eq!(plain.map(|error| error.to_string()), fast.map(|error| error.to_string()));
}

fn note(met: &mut BTreeMap<&str, u64>, case: &Case, output: &Output) {
    let mut add = |what, count| *met.entry(what).or_default() += count;
    add("cases", 1);
    add("completed", output.count("completed_requests"));
    add("rejected", output.count("rejected_requests"));
    add("unfinished", output.count("unfinished_requests"));
    add("preempted", output.count("preemptions"));
    add("evicted", output.count("evicted_blocks"));
    add("passes", output.count("passes"));
    add("several ranks", u64::from(case.ranks > 1));
    let open = !case.config.contains("load: {type: concurrency");
    let several = !case.config.contains("replicas: 1}");
    let compared = [
        "least_requests",
        "least_kv",
        "power_of_two",
        "kv_router",
        "session",
        "cache_aware",
        "policy: scorers",
        "prefix_hash",
    ];
    let compared = compared.into_iter().find(|policy| case.config.contains(policy));
    add("threads", u64::from(open && compared.is_none() && case.threads > 1 && several));
    add(compared.unwrap_or("not compared"), u64::from(several));
    if compared == Some("kv_router") {
        let requests = output.requests();
        let held =
            |request: &Value| request["dispatched_at_ms"].as_f64() > request["arrival_time_ms"].as_f64();
        add("held back", requests.iter().filter(|request| held(request)).count() as u64);
        let known = |request: &Value| request["router_overlap_tokens"].as_u64() > Some(0);
        add("routed to a prefix", requests.iter().filter(|request| known(request)).count() as u64);
    }
    add("barrier", u64::from(case.ranks > 1 && case.barrier));
    add("no such rank", text(&output.requests).matches("no_such_rank").count() as u64);
    if case.config.contains("backend: sglang") {
        add("SGLang", 1);
        add("SGLang retracted", output.count("preemptions"));
        add("SGLang evicted", output.count("evicted_blocks"));
        let reused = |request: &Value| request["reused_input_tokens"].as_u64() > Some(0);
        add("SGLang found", output.requests().iter().filter(|request| reused(request)).count() as u64);
        add("SGLang mixed", u64::from(case.config.contains("mixed_chunk: true")));
    }
    if case.config.contains("backend: trtllm") {
        add("TensorRT-LLM", 1);
        add("TensorRT-LLM paused", output.count("preemptions"));
        add("TensorRT-LLM evicted", output.count("evicted_blocks"));
    }
    add("native", u64::from(case.config.contains("semantics: native")));
    add("synchronous", u64::from(case.config.contains("async_scheduling: false")));
    add("closed loop", u64::from(case.config.contains("load: {type: concurrency")));
    add("cut off", u64::from(case.config.contains("max_virtual_time")));
    add("synthetic", u64::from(case.config.contains("type: synthetic")));
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// 9, and the promise that the stepper does not show. Line by line, so that a failure can be read.
fn same_bytes(one: &Output, other: &Output) {
    for (what, one, other) in [
        ("events", &one.events, &other.events),
        ("requests", &one.requests, &other.requests),
        ("telemetry", &one.telemetry, &other.telemetry),
        ("prediction", &one.prediction, &other.prediction),
    ] {
        for (number, (a, b)) in text(one).lines().zip(text(other).lines()).enumerate() {
            assert_eq!(a, b, "line {} of {what}", number + 1);
        }
        assert!(one == other, "{what}: {} and {} bytes", one.len(), other.len());
    }
}

fn consistent(trial: &Trial, output: &Output) {
    let requests = output.requests();
    nobody_is_lost(trial, output, &requests);
    workers_take_turns(trial, output, &requests);
    the_fewest_requests_win(trial, output, &requests);
    stamps_are_in_order(&requests);
    outputs_are_those_asked_for(trial, output, &requests);
    percentiles_ascend(output);
    shares_are_shares(trial, output, &requests);
    events_tell_the_caches(trial, output);
    telemetry_is_true(trial, output, &requests);
    computed_tokens_add_up(trial, output, &requests);
}

/// 1. Sent = completed + rejected + unfinished, and all of a workload is sent unless it is cut off.
fn nobody_is_lost(trial: &Trial, output: &Output, requests: &[Value]) {
    let all = trial.experiment.workload.open().unwrap().count() as u64;
    let count = |name: &str| output.count(name);
    let (sent, unfinished) = (count("num_requests"), count("unfinished_requests"));
    assert_eq!(requests.len() as u64, count("completed_requests") + count("rejected_requests"));
    assert_eq!(sent, requests.len() as u64 + unfinished);
    match trial.experiment.workload.max_virtual_time {
        None => assert_eq!((sent, unfinished), (all, 0)),
        Some(_) => assert!(sent <= all),
    }
    let numbers: Vec<u64> = requests.iter().map(|r| r["request_index"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.iter().all(|&n| n < all));
}

/// Refused because it names a rank that there is not, before any rank was asked.
fn without_rank(request: &Value) -> bool {
    request["reject_reason"] == "no_such_rank"
}

/// Every request, refused or not, goes to a worker, under round robin to the one whose turn it is, and there to the rank that it names,
/// or under round robin to the one whose turn it is.
fn workers_take_turns(trial: &Trial, output: &Output, requests: &[Value]) {
    let deployment = &trial.experiment.deployment;
    let (workers, ranks) = (u64::from(deployment.replicas.get()), u64::from(deployment.ranks.get()));
    let named: Vec<Option<u32>> =
        trial.experiment.workload.open().unwrap().map(|arrival| arrival.unwrap().dp_rank).collect();
    let mut turns = vec![0; workers as usize];
    for request in requests {
        let index = request["request_index"].as_u64().unwrap();
        let named = named[index as usize].map(u64::from);
        if without_rank(request) {
            assert!(named >= Some(ranks) && request["decode_worker_idx"].is_null(), "{request}");
            continue;
        }
        let worker = request["decode_worker_idx"].as_u64().unwrap();
        if deployment.router == Policy::RoundRobin {
            assert_eq!(worker, index % workers, "{request}");
        }
        if let Some(rank) = named {
            assert_eq!(request["dp_rank"], rank, "{request}");
        } else if deployment.placement == Placement::RoundRobin
            && !matches!(deployment.router, Policy::KvRouter(_))
            && output.count("unfinished_requests") == 0
        {
            let turn = &mut turns[worker as usize];
            assert_eq!(request["dp_rank"], *turn % ranks, "{request}");
            *turn += 1;
        }
        assert!(request["dp_rank"].as_u64() < Some(ranks));
    }
}

/// 3. E2E ≥ TTFT ≥ queue time, and no stamp before the one that leads to it.
fn stamps_are_in_order(requests: &[Value]) {
    for request in requests {
        let stamps = [
            "arrival_time_ms",
            "dispatched_at_ms",
            "first_admit_ms",
            "first_token_ms",
            "last_token_ms",
            "terminal_time_ms",
        ];
        let stamps: Vec<f64> = stamps.iter().filter_map(|stamp| request[stamp].as_f64()).collect();
        assert!(stamps.is_sorted(), "{request}");
        // A rejected one was placed, and refused there.
        let placed = !without_rank(request);
        let refused = 2 + usize::from(placed);
        assert_eq!(stamps.len(), if request["terminal_status"] == "completed" { 6 } else { refused });
        assert!(request["decode_worker_idx"].is_u64() == placed && request["dp_rank"].is_u64() == placed);
        if request["terminal_status"] == "completed" {
            let of = |field: &str| request[field].as_f64().unwrap();
            assert!(of("e2e_latency_ms") >= of("ttft_ms") && of("ttft_ms") >= 0.0);
        }
    }
}

/// What the invariants have to know of the settings of a rank.
struct Limits {
    seats: u32,
    prefix_caching: bool,
}

fn limits(trial: &Trial) -> Limits {
    match &trial.experiment.deployment.engine {
        RankConfig::Vllm(config) => {
            Limits { seats: config.max_num_seqs, prefix_caching: config.prefix_caching }
        }
        // With overlap, requests whose last token is in flight have left their seats.
        RankConfig::Sglang(config) => Limits {
            seats: config.max_running_requests * if config.overlap { 2 } else { 1 },
            prefix_caching: config.radix_cache,
        },
        RankConfig::Trtllm(config) => {
            Limits { seats: config.max_batch_size, prefix_caching: config.block_reuse }
        }
    }
}

/// Output tokens, and whether the last is a stop token, of a request that is not aborted.
fn planned_outputs(trial: &Trial, prompt: u32, plan: &OutputPlan) -> (u32, bool) {
    let ignore_eos = plan.ignore_eos.unwrap_or(trial.experiment.deployment.ignore_eos);
    let (most, stop_after) = match &trial.experiment.deployment.engine {
        RankConfig::Vllm(config) => (plan.max_tokens.min(config.max_model_len - prompt), plan.stop_after),
        RankConfig::Sglang(config) => {
            (sglang_outputs(config, prompt, plan.max_tokens), plan.stop_after.filter(|_| !ignore_eos))
        }
        RankConfig::Trtllm(config) => {
            let pool = config.num_blocks * config.block_size;
            let room =
                config.max_seq_len.min(if config.clamp_output_to_pool { pool } else { u32::MAX }) - prompt;
            (plan.max_tokens.min(room.max(1)), plan.stop_after)
        }
    };
    let outputs = stop_after.map_or(most, |stop| stop.min(most));
    (outputs, stop_after == Some(outputs))
}

/// SGLang cuts outputs to context and pool, and gives one token where there is room for none.
fn sglang_outputs(config: &sglang::Config, prompt: u32, wanted: u32) -> u32 {
    let pool = config.max_total_tokens / config.page_size * config.page_size;
    let by_length = config.context_length.min(pool).saturating_sub(prompt + 2);
    let by_pool = pool.saturating_sub(prompt.next_multiple_of(config.page_size) + config.page_size + 1);
    wanted.min(by_length).min(by_pool).max(1)
}

/// 4 and 5. Every completed request gives the tokens that its plan says, preempted or not; the sum is that of
/// the report, and n tokens have n − 1 gaps.
fn outputs_are_those_asked_for(trial: &Trial, output: &Output, requests: &[Value]) {
    let plans: Vec<(u32, OutputPlan)> = trial
        .experiment
        .workload
        .open()
        .unwrap()
        .map(|arrival| arrival.unwrap().request)
        .map(|request| (request.prompt_tokens, request.output))
        .collect();
    let (mut tokens, mut gaps) = (0, 0);
    for request in requests.iter().filter(|r| r["terminal_status"] == "completed") {
        let (prompt, plan) = &plans[request["request_index"].as_u64().unwrap() as usize];
        let (expected, stopped) = planned_outputs(trial, *prompt, plan);
        assert_eq!(request["output_length"], expected, "{request}");
        assert_eq!(request["finish_reason"], if stopped { "stop" } else { "length" });
        tokens += u64::from(expected);
        gaps += u64::from(expected) - 1;
    }
    assert_eq!(output.count("total_output_tokens"), tokens);
    let counted = output.count("num_itl_samples");
    match output.count("unfinished_requests") {
        0 => assert_eq!(counted, gaps),
        _ => assert!(counted >= gaps, "requests cut off have gaps too"),
    }
}

/// 6.
fn percentiles_ascend(output: &Output) {
    for metric in ["ttft_ms", "ttst_ms", "tpot_ms", "itl_ms", "e2e_latency_ms"] {
        let statistics = ["min", "median", "p75", "p90", "p95", "p99", "max"];
        let values: Vec<f64> =
            statistics.iter().filter_map(|s| output.metric(&format!("{s}_{metric}"))).collect();
        assert!(values.is_sorted() && (values.is_empty() || values.len() == 7), "{metric}: {values:?}");
    }
}

/// 7 and 11.
fn shares_are_shares(trial: &Trial, output: &Output, requests: &[Value]) {
    for ratio in [
        "prefix_cache_reused_ratio",
        "first_admission_prefix_cache_reused_ratio",
        "prefix_cache_hit_rate",
        "peak_kv_usage",
    ] {
        assert!(output.metric(ratio).is_none_or(|share| (0.0..=1.0).contains(&share)), "{ratio}");
    }
    // An engine computes at least the last token of a prompt; AISimulate's TensorRT-LLM takes it as found.
    let engine = &trial.experiment.deployment.engine;
    let whole =
        u64::from(matches!(engine, RankConfig::Trtllm(config) if config.full_hit == FullHit::Reference));
    for request in requests {
        let of = |field: &str| request[field].as_u64().unwrap();
        assert!(of("first_admission_reused_input_tokens") < of("input_length").max(1) + whole);
        assert!(of("reused_input_tokens") <= of("input_length"));
    }
    if !limits(trial).prefix_caching {
        assert_eq!(output.metric("prefix_cache_reused_ratio").unwrap_or(0.0), 0.0);
        assert!(output.events().iter().all(|event| event["event"] == "preempted"));
    }
}

/// Under least_requests no worker has fewer unfinished requests than the one that takes a request: those sent before
/// that end later. With passes that take no time, whether one that ends at that very instant has ended already
/// cannot be seen; it counts where it helps.
fn the_fewest_requests_win(trial: &Trial, output: &Output, requests: &[Value]) {
    let least = matches!(trial.experiment.deployment.router, Policy::LeastRequests { .. });
    if !least || output.count("unfinished_requests") > 0 {
        return;
    }
    let workers = trial.experiment.deployment.replicas.get() as usize;
    let of = |request: &Value, field: &str| request[field].as_f64();
    for (index, request) in requests.iter().enumerate() {
        let (Some(now), Some(taken)) = (of(request, "dispatched_at_ms"), of(request, "decode_worker_idx"))
        else {
            continue;
        };
        // At least, and at most.
        let mut unfinished = vec![(0, 0); workers];
        for before in &requests[..index] {
            if let (Some(worker), Some(end)) =
                (of(before, "decode_worker_idx"), of(before, "terminal_time_ms"))
            {
                let (least, most) = &mut unfinished[worker as usize];
                *least += u32::from(end > now);
                *most += u32::from(end >= now);
            }
        }
        let fewest = unfinished.iter().map(|(_, most)| most).min().unwrap();
        assert!(unfinished[taken as usize].0 <= *fewest, "{request}: {unfinished:?}");
    }
}

/// (10) Per rank: nothing is removed that is not there, nothing is stored before its parent, and evictions
/// and preemptions are those of the report.
fn events_tell_the_caches(trial: &Trial, output: &Output) {
    let mut caches: HashMap<(u64, u64), HashMap<u64, u64>> = HashMap::new();
    let key = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let (mut removed, mut preempted) = (0, 0);
    let mut last = (0.0, (0, 0));
    for event in output.events() {
        let rank = (event["worker"].as_u64().unwrap(), event["rank"].as_u64().unwrap());
        let at = (event["time_ms"].as_f64().unwrap(), rank);
        assert!(at >= last, "in order of time, worker and rank");
        last = at;
        let cache = caches.entry(rank).or_default();
        match event["event"].as_str().unwrap() {
            "stored" => {
                let parent = event["parent"].as_str().map(key);
                assert_eq!(parent.is_none(), event["first_block"] == 0);
                assert!(parent.is_none_or(|parent| cache.contains_key(&parent)), "{event}");
                for block in event["blocks"].as_array().unwrap() {
                    *cache.entry(key(block.as_str().unwrap())).or_default() += 1;
                }
            }
            "removed" => {
                for block in event["blocks"].as_array().unwrap() {
                    let block = key(block.as_str().unwrap());
                    let copies = cache.get_mut(&block).unwrap_or_else(|| panic!("{event}"));
                    *copies -= 1;
                    if *copies == 0 {
                        cache.remove(&block);
                    }
                    removed += 1;
                }
            }
            "cleared" => assert!(cache.is_empty(), "SGLang says so when it starts"),
            _ => preempted += 1,
        }
    }
    for cache in caches.values() {
        let blocks: u64 = cache.values().sum();
        assert!(blocks <= u64::from(trial.experiment.deployment.engine.usable_blocks()));
    }
    // What a cut-off run has scheduled but not completed is counted and not published.
    let (evictions, preemptions) = (output.count("evicted_blocks"), output.count("preemptions"));
    match output.count("unfinished_requests") {
        0 => assert_eq!((removed, preempted), (evictions, preemptions)),
        _ => assert!(removed <= evictions && preempted <= preemptions),
    }
}

/// (Invariants 2 and 8) As far as samples show: seats and blocks within their limits, counters that only grow
/// and do not run ahead of the clock, and as many requests there as the stamps of all requests say.
fn telemetry_is_true(trial: &Trial, output: &Output, requests: &[Value]) {
    let seats = limits(trial).seats;
    let usable_blocks = trial.experiment.deployment.engine.usable_blocks();
    let all_ended = output.count("unfinished_requests") == 0;
    let mut totals: HashMap<(u64, u64), [u64; 4]> = HashMap::new();
    // Regular samples, and a last one at the end.
    let end =
        output.telemetry().last().map_or(0.0, |sample| sample["time_ms"].as_f64().unwrap() * 1e6).round()
            as u64;
    for sample in output.telemetry() {
        let of = |field: &str| sample[field].as_u64().unwrap();
        assert!(of("running") <= u64::from(seats));
        assert!(of("kv_blocks_used") <= u64::from(usable_blocks));
        assert!(of("running") > 0 || of("kv_blocks_used") == 0);
        let time = sample["time_ms"].as_f64().unwrap();
        let nanos = (time * 1e6).round() as u64;
        assert!(nanos.is_multiple_of(trial.telemetry_interval.0) || nanos == end, "{sample}");
        let counters = ["passes", "prefill_tokens", "decode_tokens", "preemptions"];
        let now = counters.map(|counter| sample["total"][counter].as_u64().unwrap());
        let before = totals.insert((of("worker"), of("rank")), now).unwrap_or_default();
        assert!(before.iter().zip(now).all(|(&before, now)| before <= now), "{sample}");
        let busy = sample["total"]["busy_ms"].as_f64().unwrap();
        assert!(busy <= time, "busy for longer than the run lasts: {sample}");
        if all_ended {
            let here = |request: &&Value| {
                request["decode_worker_idx"] == sample["worker"]
                    && request["dp_rank"] == sample["rank"]
                    && request["terminal_status"] == "completed"
                    && request["dispatched_at_ms"].as_f64().unwrap() <= time
                    && request["terminal_time_ms"].as_f64().unwrap() > time
            };
            let expected = requests.iter().filter(here).count() as u64;
            assert_eq!(of("running") + of("waiting"), expected, "{sample}");
        }
    }
}

/// What was computed is what had to be: without preemptions, stop tokens and a cut, every prompt token that
/// was not found and every output token but the last, once.
fn computed_tokens_add_up(trial: &Trial, output: &Output, requests: &[Value]) {
    let prediction: Value = serde_json::from_slice(&output.prediction).unwrap();
    let ranks = prediction["workers"].as_array().unwrap();
    let deployment = &trial.experiment.deployment;
    assert_eq!(ranks.len() as u32, deployment.replicas.get() * deployment.ranks.get());
    let sum = |field: &str| ranks.iter().map(|rank| rank[field].as_u64().unwrap()).sum::<u64>();
    let completed = || requests.iter().filter(|r| r["terminal_status"] == "completed");
    let of = |request: &Value, field: &str| request[field].as_u64().unwrap();
    let found = |request| of(request, "first_admission_reused_input_tokens");
    let prompts: u64 = completed().map(|r| of(r, "input_length") - found(r)).sum();
    let outputs: u64 = completed().map(|r| of(r, "output_length") - 1).sum();
    let computed = (sum("prefill_tokens"), sum("decode_tokens"));
    if output.count("preemptions") == 0 && output.count("unfinished_requests") == 0 {
        let stopped = completed().filter(|r| r["finish_reason"] == "stop").count() as u64;
        assert_eq!(computed.0, prompts);
        // Where a prompt is found whole, a decode gives its first token.
        let outputs = outputs + completed().filter(|r| found(r) == of(r, "input_length")).count() as u64;
        // Asynchronous: a stop is learnt of when one token more is scheduled already.
        assert!(computed.1 >= outputs && computed.1 <= outputs + stopped);
    } else {
        assert!(computed.0 + computed.1 >= prompts + outputs);
    }
    let end = output.metric("decode_worker_seconds").unwrap() * 1e3 / f64::from(deployment.replicas.get());
    for rank in ranks {
        let busy = rank["busy_ms"].as_f64().unwrap();
        assert!(busy >= 0.0 && busy <= end * (1.0 + 1e-12), "busy for {busy} of {end} ms");
        assert!(rank["prefix_cache_hits"].as_u64() <= rank["prefix_cache_queries"].as_u64());
    }
}

/// (13) Passes that take no time: open and closed loop, asynchronous or not, all requests end, at the instant
/// at which they could start.
#[test]
fn passes_that_take_no_time_come_to_an_end() {
    let instant = "engine.workers.aggregated.timing={type: fixed, prefill_ms: 0, decode_ms: 0}";
    let loads = [
        "traffic={load: {type: constant_rate, requests_per_second: 10}, stop: {requests: 40}}",
        "traffic={load: {type: poisson, requests_per_second: 1000}, stop: {requests: 40}}",
        "traffic={load: {concurrency: 7}, stop: {requests: 40}}",
    ];
    for load in loads {
        for asynchronous in ["true", "false"] {
            for blocks in ["90", "1000"] {
                let asynchronous =
                    format!("engine.workers.aggregated.scheduler.async_scheduling={asynchronous}");
                let blocks = format!("engine.workers.aggregated.kv_cache.capacity.blocks={blocks}");
                let overrides = [instant, load, &asynchronous, &blocks];
                let trial = Trial::load(SMALL, &overrides, "").unwrap();
                let plain = trial.run(Stepper::Plain);
                let fast = trial.run(Stepper::Fast);
                same_bytes(&plain, &fast);
                assert_eq!(fast.count("completed_requests"), 40);
                assert_eq!(
                    (fast.metric("max_e2e_latency_ms"), fast.metric("max_itl_ms")),
                    (Some(0.0), Some(0.0))
                );
                assert_eq!(fast.metric("max_output_token_throughput_per_user"), None);
                if trial.experiment.workload.pace != Pace::Arrivals {
                    assert_eq!(fast.metric("duration_ms"), Some(0.0));
                }
            }
        }
    }
}

/// Without a cache, SGLang may preempt a request that an empty pool will not admit again: 30 → 14 in four
/// pages of 16 asks for 32 + 16 + 14, and with three outputs for 48 + 16 + 11. The engine then turns without
/// end; the run says who is left, whether passes overlap or not.
#[test]
fn a_run_with_a_request_that_starves_ends() {
    let scheduler = "engine.workers.aggregated.scheduler={max_sequences: 1, ignore_eos: true, policy: priority, \
                     priority_preemption_threshold: 0}";
    let cache = "engine.workers.aggregated.kv_cache={block_size: 16, prefix_caching: false, capacity: {type: \
                 fixed, blocks: 4}}";
    let mut requests = common::unlike(&[(0.0, 30, 14), (15.0, 5, 2)]);
    requests[1].priority = 1;
    for overlap in ["true", "false"] {
        let overlap = format!("engine.workers.aggregated.scheduler.overlap={overlap}");
        let trial = Trial::small(&["engine.backend=sglang", scheduler, cache, &overlap], &requests);
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let error = trial.try_run(stepper).err();
            assert!(
                matches!(&error, Some(SimError::Stuck { worker: 0, requests, .. }) if requests == &[0]),
                "{error:?}"
            );
        }
    }
}

/// TensorRT-LLM, GUARANTEED_NO_EVICT: b is skipped in the pass in which a computes the block that both begin with,
/// and c begins in chunks. Then b stands in front of c and finds no room, where the pass over the prompts ends,
/// so that c, which holds what b needs, is never reached (docs/fidelity.md). The run ends and names both.
#[test]
fn a_deadlock_between_prompts_ends_the_run() {
    let settings = [
        "engine.backend=trtllm",
        "engine.workers.aggregated.scheduler.max_batched_tokens=8",
        "engine.workers.aggregated.kv_cache={block_size: 4, capacity: {type: fixed, blocks: 8}}",
    ];
    let requests =
        [common::asked(0.0, 0..4, 1), common::asked(0.0, 0..20, 4), common::asked(0.0, 100..120, 4)];
    for overlap in ["true", "false"] {
        let overlap = format!("engine.workers.aggregated.scheduler.overlap={overlap}");
        let trial = Trial::small(&[settings[0], settings[1], settings[2], &overlap], &requests);
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let error = trial.try_run(stepper).err();
            assert!(
                matches!(&error, Some(SimError::Stuck { worker: 0, requests, .. }) if requests == &[1, 2]),
                "{error:?}"
            );
        }
    }
}

/// Workers run ahead of each other, and yet each lives as if it were alone: three workers give each request
/// the stamps that it gets when its worker's share of the trace is run on one.
#[test]
fn a_worker_among_others_is_a_worker_alone() {
    let size = |n: u32| (f64::from(n / 3 * (n % 7)), 10 + n * 11 % 50, 1 + n * 5 % 40);
    let all: Vec<_> = (0..90)
        .map(size)
        .scan(0.0, |now, (gap, prompt, outputs)| {
            *now += if prompt > 30 { gap / 20.0 } else { 0.0 };
            Some((*now, prompt, outputs))
        })
        .collect();
    assert!(all[2].0 == 0.0, "each share begins at 0");
    let small_pool = "engine.workers.aggregated.kv_cache.capacity.blocks=14";
    let stamps = |requests: &[(f64, u32, u32)], replicas: u32| -> Vec<Vec<Value>> {
        let replicas = format!("engine.workers.aggregated.parallelism.replicas={replicas}");
        let trial = Trial::small(&[small_pool, &replicas], &common::unlike(requests));
        let fields =
            ["arrival_time_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "preemption_count"];
        let of = |request: Value| fields.map(|field| request[field].clone()).to_vec();
        trial.run(Stepper::Fast).requests().into_iter().map(of).collect()
    };
    let together = stamps(&all, 3);
    assert!(together.iter().any(|stamps| stamps[4].as_u64() > Some(0)), "somebody is preempted");
    for worker in 0..3 {
        let share: Vec<_> = all.iter().skip(worker).step_by(3).copied().collect();
        let expected: Vec<_> = together.iter().skip(worker).step_by(3).cloned().collect();
        assert_eq!(stamps(&share, 1), expected, "worker {worker}");
    }
}

/// Without a barrier a rank lives as if it were a worker: three ranks that take turns give each request the
/// stamps that three workers give it.
#[test]
fn ranks_without_a_barrier_are_workers() {
    let size = |n: u32| (f64::from(n / 3 * (n % 7)), 10 + n * 11 % 50, 1 + n * 5 % 40);
    let requests: Vec<_> = (0..90).map(size).collect();
    let small_pool = "engine.workers.aggregated.kv_cache.capacity.blocks=14";
    let stamps = |replicas: u32, ranks: u32| -> Vec<Vec<Value>> {
        let replicas = format!("engine.workers.aggregated.parallelism.replicas={replicas}");
        let mut asked = common::unlike(&requests);
        asked.sort_by(|a, b| a.arrival_ms.total_cmp(&b.arrival_ms));
        let trial = Trial::small(&[small_pool, &replicas], &asked);
        let trial = trial.with_ranks(ranks, false, Placement::RoundRobin);
        let fields = ["first_admit_ms", "first_token_ms", "last_token_ms", "preemption_count"];
        let of = |request: Value| fields.map(|field| request[field].clone()).to_vec();
        trial.run(Stepper::Fast).requests().into_iter().map(of).collect()
    };
    assert_eq!(stamps(1, 3), stamps(3, 1));
}

/// A rank that has only itself to wait for does not wait.
#[test]
fn a_barrier_around_one_rank_changes_nothing() {
    let requests = common::unlike(&[(0.0, 40, 9), (3.0, 80, 20), (11.0, 8, 3), (11.0, 100, 7)]);
    let run = |barrier, placement| {
        let trial =
            Trial::small(&["engine.workers.aggregated.scheduler.prefill_schedule_interval=3"], &requests);
        trial.with_ranks(1, barrier, placement).run(Stepper::Fast)
    };
    let alone = run(false, Placement::RoundRobin);
    for placement in [Placement::RoundRobin, Placement::VllmBalancer] {
        same_bytes(&alone, &run(true, placement));
    }
}

/// A prefill pass from 0 to 10 ms, decode passes of 2 ms after it; scheduled asynchronously, the next pass is
/// always decided already. A sample at 7 ms has seen no pass end and 7 ms of work; at 14 ms three have ended.
#[test]
fn a_sample_counts_what_has_ended() {
    let trial = Trial::small(&[], &common::unlike(&[(0.0, 8, 6)]));
    for stepper in [Stepper::Plain, Stepper::Fast] {
        let samples = trial.run(stepper).telemetry();
        let seen = |sample: &Value| {
            let total = |field: &str| sample["total"][field].as_f64().unwrap();
            ["passes", "prefill_tokens", "decode_tokens", "busy_ms"].map(total)
        };
        assert_eq!(seen(&samples[0]), [0.0, 0.0, 0.0, 7.0]);
        assert_eq!(seen(&samples[1]), [3.0, 8.0, 2.0, 14.0]);
    }
}

/// Instants after the cut are not run, in open and closed loop; what is in flight stays unfinished.
#[test]
fn a_cut_ends_the_run_at_its_instant() {
    let rows: Vec<_> =
        (0..20u64).map(|n| (f64::from(n as u32) * 5.0, 20, 50, vec![3 * n, 3 * n + 1, 3 * n + 2])).collect();
    let trace = common::mooncake(&rows);
    for load in ["{type: trace_timestamps}", "{type: concurrency, concurrency: 3}"] {
        let traffic = format!(
            "traffic={{source: {{type: trace, paths: [trace.jsonl], block_size: 8}}, load: {load}, \
             stop: {{max_virtual_time_seconds: 0.13}}}}"
        );
        let trial = Trial::load(SMALL, &[&traffic], &trace).unwrap();
        let output = trial.run(Stepper::Fast);
        same_bytes(&trial.run(Stepper::Plain), &output);
        assert!(output.count("unfinished_requests") > 0);
        for request in output.requests() {
            assert!(request["terminal_time_ms"].as_f64().unwrap() <= 130.0);
        }
        let end = Nanos(130_000_000);
        assert_eq!(output.metric("decode_worker_seconds"), Some(end.as_seconds()));
    }
}
