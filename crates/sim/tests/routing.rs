//! Which worker takes a request, by hand: what each policy sees at the instant of an arrival, and what it does
//! among equals. A pass with prefill takes 10 ms, one with decodes 2 ms; a block has 16 tokens.

mod common;

use common::{Asked, Output, SMALL, Trial, asked, lines, unlike};
use windtunnel_config::Placement;
use windtunnel_sim::{Stepper, worker_threads};

const SYNCHRONOUS: &str = "engine.workers.aggregated.scheduler.async_scheduling=false";
const TWO: &str = "engine.workers.aggregated.parallelism.replicas=2";
const EIGHT: &str = "engine.workers.aggregated.parallelism.replicas=8";

fn router(policy: &str, seed: u64) -> String {
    format!("router={{policy: {policy}, seed: {seed}}}")
}

/// Runs it with both steppers.
fn run(trial: &Trial) -> Output {
    let (plain, fast) = (trial.run(Stepper::Plain), trial.run(Stepper::Fast));
    assert!(plain.prediction == fast.prediction && plain.requests == fast.requests);
    assert!(plain.events == fast.events && plain.telemetry == fast.telemetry);
    fast
}

/// The worker of each request.
fn workers(output: &Output) -> Vec<u64> {
    output.requests().iter().map(|request| request["decode_worker_idx"].as_u64().unwrap()).collect()
}

fn placed(policy: &str, seed: u64, workers_key: &str, requests: &[Asked]) -> Vec<u64> {
    workers(&run(&Trial::small(&[SYNCHRONOUS, workers_key, &router(policy, seed)], requests)))
}

/// a ends at 10 ms with its first token, b on the other worker at 14. c comes at 10: the pass end of that
/// instant comes before it, so a's worker has nothing to do and takes it. d comes at 13, when a's worker has c
/// and b's has b; e at the same instant goes where d has not gone.
#[test]
fn the_fewest_requests_are_those_of_the_arrivals_instant() {
    let requests = unlike(&[(0.0, 8, 1), (0.0, 8, 3), (10.0, 8, 9), (13.0, 8, 9), (13.0, 8, 9)]);
    let mut d_with_c = 0;
    for policy in ["least_requests", "power_of_two"] {
        for seed in 0..20 {
            let [a, b, c, d, e] = placed(policy, seed, TWO, &requests)[..] else { panic!() };
            assert!(a != b && c == a && d != e, "{policy}, seed {seed}");
            d_with_c += u32::from(d == c);
        }
    }
    assert!((1..40).contains(&d_with_c), "a tie is drawn: {d_with_c} of 40");
}

/// a holds 4 blocks from 0 on, b comes at 1 to the other worker and holds 1. c and d come while b's pass runs:
/// they wait, and who waits holds no block. So that worker stays the one with less of its cache in use, though
/// it has three requests and the other one. By requests, c or d would have gone to a's worker.
#[test]
fn the_least_kv_is_that_of_running_requests() {
    let requests = unlike(&[(0.0, 64, 8), (1.0, 8, 8), (2.0, 8, 8), (3.0, 8, 8)]);
    for seed in 0..10 {
        let [a, b, c, d] = placed("least_kv", seed, TWO, &requests)[..] else { panic!() };
        assert!(a != b && b == c && c == d, "seed {seed}");
        let [a, b, c, d] = placed("least_requests", seed, TWO, &requests)[..] else { panic!() };
        assert!(a != b && c != d, "seed {seed}");
    }
}

/// Cached blocks without an owner are free: once a has ended, its worker is as empty as the other one, and over
/// twenty seeds both are drawn.
#[test]
fn cached_blocks_are_not_in_use() {
    let requests = unlike(&[(0.0, 64, 1), (20.0, 8, 1)]);
    let same = (0..20).filter(|&seed| {
        let placed = placed("least_kv", seed, TWO, &requests);
        placed[0] == placed[1]
    });
    assert!((1..20).contains(&same.count()));
}

/// The load of a worker is that of all its ranks, wherever its requests were placed in it. Four requests, all
/// for rank 0, are two for each worker; the next two, for rank 1, are one more each.
#[test]
fn the_load_of_a_worker_is_the_sum_over_its_ranks() {
    let sizes = [(0.0, 8, 9), (0.0, 8, 9), (0.0, 8, 9), (0.0, 8, 9), (1.0, 8, 9), (1.0, 8, 9)];
    let requests: Vec<Asked> =
        unlike(&sizes).into_iter().zip([0, 0, 0, 0, 1, 1]).map(|(asked, rank)| asked.on(rank)).collect();
    for barrier in [false, true] {
        for seed in 0..10 {
            let settings = [SYNCHRONOUS, TWO, &router("least_requests", seed)];
            let trial = Trial::small(&settings, &requests).with_ranks(2, barrier, Placement::RoundRobin);
            let placed = workers(&run(&trial));
            let on_0 = |part: &[u64]| part.iter().filter(|&&worker| worker == 0).count();
            assert_eq!((on_0(&placed[..4]), on_0(&placed[4..])), (2, 1), "barrier {barrier}, seed {seed}");
        }
    }
}

/// Closed loop with two in flight: the first request stays for a long time, so every other one goes to the
/// other worker, the next when the one before has ended. Taking turns would have sent every second one behind
/// the long one.
#[test]
fn in_a_closed_loop_the_next_request_goes_where_one_has_ended() {
    let mut requests = vec![asked(0.0, 0..8, 100)];
    requests.extend((1..9).map(|n| asked(0.0, 100 * n..100 * n + 8, 3)));
    let traffic = "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: \
                   concurrency, concurrency: 2}}";
    for seed in 0..5 {
        let settings = [traffic, SYNCHRONOUS, TWO, &router("least_requests", seed)];
        let placed = workers(&run(&Trial::load(SMALL, &settings, &lines(&requests)).unwrap()));
        assert!(placed[1..].iter().all(|&worker| worker == 1 - placed[0]), "seed {seed}: {placed:?}");
    }
}

/// Requests that never meet: each finds every worker idle, so all policies draw. The seed says which.
#[test]
fn a_seed_gives_the_same_run_and_another_one_another() {
    let sizes: Vec<_> = (0..40).map(|n| (f64::from(n) * 100.0, 8, 2)).collect();
    let requests = unlike(&sizes);
    for policy in ["random", "least_requests", "least_kv", "power_of_two"] {
        let of = |seed| placed(policy, seed, EIGHT, &requests);
        assert_eq!(of(42), of(42), "{policy}");
        assert_ne!(of(42), of(43), "{policy}");
        let left_out = format!("router.policy={policy}");
        let trial = Trial::small(&[SYNCHRONOUS, EIGHT, &left_out], &requests);
        assert_eq!(workers(&run(&trial)), of(42), "{policy}: 42 is the default");
    }
}

/// Workers that a policy compares are run on one thread; those that it only draws depend on nobody.
#[test]
fn policies_that_compare_workers_take_one_thread() {
    for (policy, threads) in [("random", 8), ("least_requests", 1), ("least_kv", 1), ("power_of_two", 1)] {
        let trial = Trial::small(&[EIGHT, &router(policy, 42)], &unlike(&[(0.0, 8, 2)]));
        assert_eq!(worker_threads(&trial.experiment, false, 8), threads, "{policy}");
    }
    let trial = Trial::small(&[EIGHT], &unlike(&[(0.0, 8, 2)]));
    assert_eq!(worker_threads(&trial.experiment, false, 8), 8, "round_robin");
}

const KV: &str = "router={policy: kv_router}";
const FOUR: &str = "engine.workers.aggregated.parallelism.replicas=4";

/// dynamo#12643. A prompt of 64 tokens is computed in one pass, from 0 to 10 ms. A second one with the same
/// beginning that comes while it runs finds nothing in the router's index, though the engine has entered the blocks
/// when it scheduled the pass; one that comes at its end finds all of it.
#[test]
fn k1_blocks_are_known_when_their_pass_ends() {
    let repeat = |at: f64| asked(at, 0..65, 1);
    for (at, known) in [(5.0, 0.0), (9.999_999, 0.0), (10.0, 64.0), (11.0, 64.0)] {
        let output = run(&Trial::small(&[SYNCHRONOUS, FOUR, KV], &[asked(0.0, 0..64, 1), repeat(at)]));
        assert_eq!(output.of(1, "router_overlap_tokens"), Some(known), "at {at} ms");
        let same = output.of(0, "decode_worker_idx") == output.of(1, "decode_worker_idx");
        assert_eq!(same, known > 0.0, "at {at} ms");
    }
}

/// The router may learn of a cache later than it changes (blis#507): 7.5 ms after the pass ended at 10.
#[test]
fn r12_events_may_be_on_their_way_for_a_while() {
    let lag = "router={policy: kv_router, kv_event_lag_ms: 7.5}";
    for (at, known) in [(10.0, 0.0), (17.499_999, 0.0), (17.5, 64.0)] {
        let requests = [asked(0.0, 0..64, 1), asked(at, 0..65, 1)];
        let output = run(&Trial::small(&[SYNCHRONOUS, FOUR, lag], &requests));
        assert_eq!(output.of(1, "router_overlap_tokens"), Some(known), "at {at} ms");
    }
}

/// dynamo#671: three blocks behind a common beginning were all entered behind their common parent, and were not
/// found again. A chain is found as a chain, in each engine.
#[test]
fn k2_a_chain_of_blocks_is_found_as_a_chain() {
    for backend in ["vllm", "sglang", "trtllm"] {
        let backend = format!("engine.backend={backend}");
        let requests = [
            asked(0.0, 0..32, 1),
            asked(100.0, (0..32).chain(500..549), 1),
            asked(200.0, (0..32).chain(500..549), 1),
        ];
        // A credit that outweighs everything else.
        let settings =
            [&*backend, FOUR, "router={policy: kv_router, block_size: 16, overlap_score_credit: 9}"];
        let mut settings = settings.to_vec();
        if backend.ends_with("sglang") {
            settings.push("engine.workers.aggregated.scheduler.max_batched_tokens=null");
        }
        let output = run(&Trial::small(&settings, &requests));
        let overlaps: Vec<_> = (0..3).map(|n| output.of(n, "router_overlap_tokens").unwrap()).collect();
        assert_eq!(overlaps, [0.0, 32.0, 80.0], "{backend}");
        assert!(workers(&output).iter().all(|&worker| worker == workers(&output)[0]), "{backend}");
    }
}

/// Without a prefix cache nothing is published, and the router knows of nothing (dynamo#12095).
#[test]
fn k11_without_a_prefix_cache_nothing_is_told() {
    let off = "engine.workers.aggregated.kv_cache.prefix_caching=false";
    let requests = [asked(0.0, 0..64, 1), asked(100.0, 0..65, 1)];
    let output = run(&Trial::small(&[off, FOUR, KV], &requests));
    assert_eq!(output.of(1, "router_best_overlap_tokens"), Some(0.0));
    assert!(output.events.is_empty());
}

/// SGLang's pages are of one token, the router's blocks of 64: it knows only whole ones. 100 common tokens are one
/// block, 200 are three (S13: a router that saw one hash for each token found nothing).
#[test]
fn pages_make_up_the_blocks_of_the_router() {
    let requests =
        [asked(0.0, 0..200, 1), asked(100.0, (0..100).chain(900..950), 1), asked(200.0, 0..210, 1)];
    let settings = [
        "engine.backend=sglang",
        "engine.workers.aggregated.scheduler.max_batched_tokens=null",
        "engine.workers.aggregated.kv_cache.block_size=1",
        FOUR,
        KV,
    ];
    let trial = Trial::small(&settings, &requests);
    let output = trial.run_unwatched(Stepper::Fast);
    let overlaps: Vec<_> = (0..3).map(|n| output.of(n, "router_overlap_tokens").unwrap()).collect();
    assert_eq!(overlaps, [0.0, 64.0, 192.0]);
    assert!(output.requests == trial.run_unwatched(Stepper::Plain).requests);
    // An event log tells of pages, which are no blocks of this router.
    let Err(refused) = trial.try_run(Stepper::Fast) else { panic!("a log of other blocks") };
    assert!(refused.to_string().contains("router.block_size: 1"), "{refused}");
}

/// Five requests of 64 tokens at once, a budget of 64 tokens, and a threshold of half of it: the first two go to the
/// two workers, the others wait until one of these has its first token, at 10 ms, and the last one until 20.
#[test]
fn requests_wait_while_all_workers_are_busy_with_prompts() {
    let requests = unlike(&[(0.0, 64, 1); 5]);
    let queue = "router={policy: kv_router, queue_threshold: 0.5}";
    let output = run(&Trial::small(&[SYNCHRONOUS, TWO, queue], &requests));
    let sent: Vec<_> = (0..5).map(|n| output.of(n, "dispatched_at_ms").unwrap()).collect();
    assert_eq!(sent, [0.0, 0.0, 10.0, 10.0, 20.0]);
    // Waiting for the router is part of the latency.
    assert_eq!(output.of(4, "ttft_ms"), Some(30.0));
    assert_eq!((output.count("router_held_requests"), output.metric("mean_router_wait_ms")), (3, Some(8.0)));
}

/// In a closed loop a request that is held back keeps its seat.
#[test]
fn held_requests_keep_their_seats() {
    let requests: Vec<Asked> = (0..6).map(|n| asked(0.0, 1000 * n..1000 * n + 64, 2)).collect();
    let traffic = "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: \
                   concurrency, concurrency: 3}}";
    let queue = "router={policy: kv_router, queue_threshold: 0.5}";
    let trial = Trial::load(SMALL, &[traffic, SYNCHRONOUS, TWO, queue], &lines(&requests)).unwrap();
    let output = run(&trial);
    assert_eq!(output.count("completed_requests"), 6);
    let stamp = |n: usize, field: &str| output.of(n, field).unwrap();
    // At no time more than three have come and not ended.
    for n in 0..6 {
        let now = stamp(n, "arrival_time_ms");
        let present = (0..6)
            .filter(|&m| stamp(m, "arrival_time_ms") <= now && stamp(m, "terminal_time_ms") > now)
            .count();
        assert!(present <= 3, "{present} at {now}");
    }
    assert!(stamp(2, "dispatched_at_ms") > stamp(2, "arrival_time_ms"));
}
