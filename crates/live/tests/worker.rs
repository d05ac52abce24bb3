//! A worker without its sockets: logical times, ends and cancels.

mod common;

use common::{FIXED, again, block_on, deployment, request, stopping, worker};
use windtunnel_engine::{FinishReason, Nanos, Rejection};
use windtunnel_live::Stops;
use windtunnel_live::observer::EndReason;
use windtunnel_live::stream::Verdict;

fn times(verdict: Verdict) -> (EndReason, windtunnel_live::observer::RequestTimes) {
    match verdict {
        Verdict::Ended(reason, times) => (reason, times),
        Verdict::Rejected(reason) => panic!("refused: {reason}"),
    }
}

/// H1 (llm-d-inference-sim#43): a first token after 100 ms and four more at 10 ms are 140 ms.
#[test]
fn h1_ttft_and_itl_add_up() {
    let (worker, log) = worker(&deployment(FIXED, &[]), false);
    let handle = worker.submit(request(&worker, 20, 5), None).expect("taken");
    let (reason, times) = times(block_on(handle.stream().ended()));
    assert_eq!(reason, EndReason::Finished(FinishReason::Length));
    assert_eq!(times.output_tokens, 5);
    let ms = |time: Option<Nanos>| time.map(|time| time.since(times.arrival).as_ms());
    assert_eq!((ms(times.first_token), ms(times.last_token)), (Some(100.0), Some(140.0)));
    let lines = log.lines();
    assert_eq!(lines[0], "submitted r0 waiting 1");
    assert_eq!(lines[1], "pass 0 of 100 ms: 1 tokens, 1 first, gaps [], ended []");
    assert_eq!(lines[2], "pass 1 of 10 ms: 1 tokens, 0 first, gaps [\"10x1\"], ended []");
    assert_eq!(lines[5], "pass 4 of 10 ms: 1 tokens, 0 first, gaps [\"10x1\"], ended [\"r0 length\"]");
}

/// Without delay, the same passes take no time.
#[test]
fn no_delay_gives_every_token() {
    let (worker, _) = worker(&deployment(FIXED, &[]), true);
    let handles: Vec<_> =
        (0..50).map(|_| worker.submit(request(&worker, 100, 64), None).expect("taken")).collect();
    for handle in handles {
        let (reason, times) = times(block_on(handle.stream().ended()));
        assert_eq!((reason, times.output_tokens), (EndReason::Finished(FinishReason::Length), 64));
    }
}

/// H21 (dynamo#11917): a request whose client is gone frees its seat and its blocks at once.
#[test]
fn h21_a_dropped_handle_frees_everything() {
    let (worker, log) =
        worker(&deployment(FIXED, &["engine.workers.aggregated.scheduler.max_sequences=1"]), false);
    let first = worker.submit(request(&worker, 160, 1000), None).expect("taken");
    block_on(first.stream().more_than(0));
    drop(first);
    let second = worker.submit(request(&worker, 160, 2), None).expect("taken");
    let (_, times) = times(block_on(second.stream().ended()));
    // It waits for the pass in flight, of 10 ms, at most: not for the 1000 tokens of the first one.
    assert!(times.first_token.is_some_and(|first| first.since(times.arrival) <= Nanos(120_000_000)));
    assert!(log.lines().iter().any(|line| line == "r0 abort running 0"), "{:?}", log.lines());
    assert_eq!(worker.stats()[0].used_blocks, 0);
    assert_eq!(worker.stats()[0].running, 0);
}

/// A stop string is seen by whoever reads the text: the request ends with the pass that completes it, and the
/// engine has scheduled one pass more by then (asynchronous scheduling).
#[test]
fn a_stop_string_ends_its_request_one_pass_late() {
    let (worker, log) = worker(&deployment(FIXED, &[]), false);
    let stops = Stops { abort_after: Some(3), ..Stops::default() };
    let submission = stopping(&worker, 20, 100, stops);
    let handle = worker.submit(submission, None).expect("taken");
    let (reason, times) = times(block_on(handle.stream().ended()));
    assert_eq!((reason, times.output_tokens), (EndReason::Finished(FinishReason::Stop), 3));
    // A request behind it, so that the pass in flight ends too.
    let next = worker.submit(request(&worker, 20, 1), None).expect("taken");
    block_on(next.stream().ended());
    let lines = log.lines();
    assert_eq!(lines[3], "pass 2 of 10 ms: 1 tokens, 0 first, gaps [\"10x1\"], ended [\"r0 stop\"]");
    assert!(lines[4..].iter().any(|line| line.starts_with("pass 3 of 10 ms: 0 tokens")), "{lines:?}");
}

#[test]
fn what_the_engine_refuses_is_said() {
    let (worker, log) = worker(&deployment(FIXED, &[]), false);
    let handle = worker.submit(request(&worker, 4096, 1), None).expect("taken");
    let verdict = block_on(handle.stream().ended());
    assert!(matches!(verdict, Verdict::Rejected(Rejection::PromptTooLong { .. })), "{verdict:?}");
    assert_eq!(log.lines(), ["rejected r0 prompt_too_long"]);
    let refused = worker.submit(request(&worker, 10, 1), Some(1)).err();
    assert_eq!(refused, Some(Rejection::NoSuchRank { dp_rank: 1, ranks: 1 }));
}

/// H15 (llm-d-inference-sim#532): every data-parallel rank serves, in lock-step or not.
#[test]
fn h15_every_rank_serves() {
    for barrier in ["true", "false"] {
        let overrides = [
            "engine.workers.aggregated.parallelism.attention_data=2",
            &format!("engine.workers.aggregated.barrier={barrier}"),
        ];
        let (worker, _) = worker(&deployment(FIXED, &overrides), false);
        let handles: Vec<_> =
            (0..4).map(|_| worker.submit(request(&worker, 20, 3), None).expect("taken")).collect();
        let mut ranks: Vec<u32> = handles.iter().filter_map(|handle| handle.rank()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 0, 1, 1]);
        for handle in handles {
            assert_eq!(times(block_on(handle.stream().ended())).1.output_tokens, 3);
        }
    }
}

/// Several workers behind one door take turns; each has a cache of its own.
#[test]
fn workers_behind_one_door_take_turns() {
    let (worker, _) = worker(&deployment(FIXED, &["engine.workers.aggregated.parallelism.replicas=3"]), true);
    let mut hits = Vec::new();
    for turn in 0..7 {
        let mut submission = request(&worker, 64, 2);
        if turn > 0 {
            submission = again(&worker, 64);
        }
        let handle = worker.submit(submission, None).expect("taken");
        assert_eq!(handle.rank(), Some(turn % 3));
        hits.push(times(block_on(handle.stream().ended())).1.cached_tokens);
    }
    // The prompt is found again where it has been: from the fourth request on. Its last token is computed anew.
    assert_eq!(hits, [0, 0, 0, 48, 48, 48, 48]);
}
