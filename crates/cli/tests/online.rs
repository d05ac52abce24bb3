//! `predict --online`: the same report as in virtual time, to the byte.

mod common;

use common::{err, out, windtunnel};

fn json(arguments: &[&str]) -> String {
    let done = windtunnel(["predict", "--format", "json"]).args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", err(&done));
    out(&done)
}

/// Open and closed loops, ranks in lock-step and on their own, all three engines.
#[test]
fn live_workers_give_the_report_of_virtual_time() {
    let cases: [&[&str]; 5] = [
        &["examples/quickstart.yaml", "--limit", "120"],
        &[
            "examples/quickstart.yaml",
            "--limit",
            "40",
            "--set",
            "engine.workers.aggregated.parallelism.attention_data=2",
        ],
        &["examples/sglang.yaml", "--set", "traffic.stop.requests=60"],
        &["examples/trtllm.yaml", "--set", "traffic.stop.requests=80"],
        &["examples/aisimulate.yaml"],
    ];
    for case in cases {
        let online: Vec<&str> = case.iter().copied().chain(["--online=20000"]).collect();
        assert_eq!(json(case), json(&online), "{case:?}");
    }
}

/// Whatever places the requests: policies that ask for loads, that are told of first tokens and ends, that index prefix
/// caches, at once or later, and that hold requests back.
#[test]
fn requests_are_placed_as_in_virtual_time() {
    let routers = [
        "{policy: random, seed: 5}",
        "{policy: least_requests}",
        "{policy: least_kv}",
        "{policy: power_of_two}",
        "{policy: prefix_hash}",
        "{policy: session}",
        "{policy: cache_aware}",
        "{policy: kv_router}",
        "{policy: kv_router, temperature: 0.5, kv_event_lag_ms: 700}",
        "{policy: scorers}",
        "{policy: kv_router, queue_threshold: 0.05}",
    ];
    let replicas = "engine.workers.aggregated.parallelism.replicas=3";
    for router in routers {
        let router = format!("router={router}");
        for more in [
            &["--limit", "100"][..],
            &["--limit", "60", "--set", "traffic.load={type: concurrency, concurrency: 20}"],
        ] {
            let case = [&["examples/quickstart.yaml", "--set", replicas, "--set", &router], more].concat();
            let online: Vec<&str> = case.iter().copied().chain(["--online=20000"]).collect();
            assert_eq!(json(&case), json(&online), "{case:?}");
        }
    }
}

/// The records of every request, in virtual time and online.
fn both_records(case: &[&str]) -> [String; 2] {
    let at = tempfile::tempdir().unwrap();
    [("offline", &[][..]), ("online", &["--online=20000"])].map(|(name, more)| {
        let folder = at.path().join(name);
        let folder = ["--capture-per-request", "--output-dir", folder.to_str().unwrap()];
        json(&[case, &folder[..], more].concat());
        std::fs::read_to_string(at.path().join(name).join("requests.jsonl")).unwrap()
    })
}

/// So are the records of every request, with preemptions among them.
#[test]
fn requests_are_recorded_as_in_virtual_time() {
    let capacity = "engine.workers.aggregated.kv_cache.capacity={type: fixed, blocks: 900}";
    let [offline, online] = both_records(&["examples/quickstart.yaml", "--limit", "120", "--set", capacity]);
    assert_eq!(offline, online);
}

/// Prefill and decode apart, of all three engines: hand-offs, their transfers and what both roles' routers hear, in open and
/// closed loops, with and without time for transfers, and with decode workers that run short of memory.
#[test]
fn prefill_and_decode_apart_give_the_report_of_virtual_time() {
    let transfer = "engine.kv_transfer={bytes_per_token: 131072, bandwidth_gb_per_second: 25}";
    let at_once = "engine.kv_transfer={bytes_per_token: 131072}";
    let closed = "traffic.load={type: concurrency, concurrency: 24}";
    let short = "engine.workers.decode.kv_cache.capacity={type: fixed, blocks: 1400}";
    let overlap = "engine.kv_transfer={bytes_per_token: 131072, bandwidth_gb_per_second: 5, overlap_layers: 32, timing_mode: full_prompt}";
    let ranks = "engine.workers.decode.parallelism={replicas: 1, attention_data: 2}";
    let round = "router={policy: round_robin}";
    let loads = "router={policy: least_requests, decode_policy: least_kv}";
    let cases: [&[&str]; 8] = [
        // Interfaces are shared.
        &[],
        &[transfer],
        &[transfer, round],
        &[at_once, closed],
        &[overlap, closed, loads],
        &[transfer, short],
        &[transfer, short, closed, round],
        &[transfer, ranks, round],
    ];
    for backend in ["vllm", "sglang", "trtllm"] {
        let backend = format!("engine.backend={backend}");
        for sets in cases {
            let mut case =
                vec!["examples/disaggregated.yaml", "--set", &backend, "--set", "traffic.stop.requests=60"];
            sets.iter().for_each(|set| case.extend(["--set", set]));
            let online: Vec<&str> = case.iter().copied().chain(["--online=20000"]).collect();
            assert_eq!(json(&case), json(&online), "{case:?}");
            let [offline, online] = both_records(&case);
            assert_eq!(offline, online, "{case:?}");
        }
    }
}

/// The wall clock is heeded: half a virtual second takes half a second.
#[test]
fn the_wall_clock_is_heeded() {
    let case = [
        "examples/aisimulate.yaml",
        "--set",
        "traffic={source: {input_tokens: 16, output_tokens: 51}, stop: {requests: 1}}",
        "--set",
        "engine.workers.aggregated.timing={type: fixed, prefill_ms: 10, decode_ms: 10}",
        "--online",
    ];
    let begun = std::time::Instant::now();
    json(&case);
    assert!(begun.elapsed().as_secs_f64() >= 0.5, "{:?}", begun.elapsed());
}

#[test]
fn what_cannot_be_online_is_refused() {
    let cases: [(&[&str], &str); 4] = [
        (&["--online=0"], "--online: got 0"),
        (&["--online", "--events", "x"], "cannot be used with"),
        (&["--online", "--stepper", "plain"], "cannot be used with"),
        (&["--online", "--set", "traffic.stop.max_virtual_time_seconds=1"], "max_virtual_time_seconds"),
    ];
    for (arguments, message) in cases {
        let done = windtunnel(["predict", "examples/quickstart.yaml"]).args(arguments).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {}", err(&done));
        assert!(err(&done).contains(message), "{arguments:?}: {}", err(&done));
    }
    let set = "engine.semantics=aisimulate_0_13";
    let apart = ["predict", "examples/disaggregated.yaml", "--online", "--set", set];
    let apart = windtunnel(apart).output().unwrap();
    assert_eq!(apart.status.code(), Some(2), "{}", err(&apart));
    assert!(err(&apart).contains("engine.semantics: with --online"), "{}", err(&apart));
}
