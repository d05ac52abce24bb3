//! Random workloads on small ranks. After every call, every invariant of `support::checks` is checked, and
//! three ways of computing passes are compared: plain, fast, and fast with many steady passes at once.
//!
//! The cases are the same in every run. PROPTEST_CASES sets their number, PROPTEST_RNG_SEED draws others;
//! with --nocapture, what they met is printed.

mod support;

use proptest::prelude::*;
use std::cell::RefCell;
use support::plan::{Case, ContentPlan, Event, Plan, case};
use support::runner::runner;
use support::world::{Tally, World};
use windtunnel_engine::vllm::{Config, Policy, PreemptionMode, Rank};
use windtunnel_engine::{Content, HandOff, KvEventScope, Nanos, OutputPlan, Request, RequestId, Stepper};

#[test]
fn random_workloads_keep_every_invariant() {
    let total = RefCell::new(Tally::default());
    let done = runner(2000).run(&case(), |case| {
        let (tally, _) = World::run(&case);
        total.borrow_mut().add(&tally);
        Ok(())
    });
    let total = total.into_inner();
    println!("{total:?}");
    done.unwrap();
    // The cases meet what they are for. Per case, a third of what was counted when they were written.
    let (cases, met) =
        (total.cases, |what: u64, per_thousand: u64| what * 1000 >= per_thousand * total.cases);
    assert!(cases > 0);
    assert!(met(total.finished, 3000) && met(total.refused, 900) && met(total.cancelled, 600));
    assert!(met(total.preemptions, 300) && met(total.stale, 180) && met(total.evictions, 8000));
    assert!(met(total.hit_tokens, 2500) && met(total.leapt_passes, 4500));
}

#[test]
fn the_same_calls_give_the_same_results() {
    runner(100)
        .run(&case(), |case| {
            prop_assert_eq!(World::run(&case), World::run(&case));
            Ok(())
        })
        .unwrap();
}

/// Requests that share nothing, and the calls between them.
fn found(config: Config, events: &[Step]) -> Case {
    let plan = |prompt, max_tokens, stop_after, priority| {
        let content = ContentPlan::Private;
        let (known_outputs, same_arrival) = (false, false);
        Plan { prompt, max_tokens, stop_after, content, known_outputs, priority, same_arrival }
    };
    let event = |step: &Step| match *step {
        Step::Request(prompt, outputs) => Event::Submit(plan(prompt, outputs, None, 0)),
        Step::Urgent(prompt, outputs, stop_after) => Event::Submit(plan(prompt, outputs, stop_after, -1)),
        Step::Calls(calls) => Event::Work(calls),
    };
    let events = events.iter().map(event).collect();
    Case { config, id_tokens: 1, events, leaps: vec![1], leaper_is_silent: false }
}

enum Step {
    /// Prompt and output tokens.
    Request(u32, u32),
    /// The same, more urgent, perhaps ended by a stop token.
    Urgent(u32, u32, Option<u32>),
    /// Passes scheduled or completed.
    Calls(u16),
}

/// Cases in which the fast stepper once differed, as small as they could be made.
///
/// The first two: a request joined the decode set with its first token, was preempted before any decode
/// pass, got its second token by name, and joined again; in the second case after that pass, too. It was
/// then said to have had its second token twice. The third: a request was preempted while something was
/// due for it in a later decode pass, and had come back by then; the calendar took it for the request
/// admitted earlier that it no longer was, so that its block was stored before that of the request in
/// front of it.
#[test]
fn places_where_the_fast_stepper_once_differed() {
    use Step::{Calls, Request, Urgent};
    let priority = Config {
        policy: Policy::Priority,
        prefix_caching: false,
        max_num_batched_tokens: 45,
        max_num_seqs: 7,
        ..Config::new(5, 1, 11)
    };
    World::run(&found(priority, &[Urgent(3, 1, None), Request(1, 3), Urgent(1, 5, Some(4))]));

    let first_in_first_out = Config {
        preemption_mode: PreemptionMode::Fifo,
        prefix_caching: false,
        long_prefill_token_threshold: 14,
        reserve_full_isl: false,
        max_num_seqs: 4,
        ..Config::new(7, 5, 1000)
    };
    let one_by_one = [(1, 4), (26, 1), (21, 1), (1, 1), (1, 2), (1, 1), (1, 1), (1, 1), (1, 1)];
    let requests = one_by_one.map(|(prompt, outputs)| Request(prompt, outputs));
    World::run(&found(first_in_first_out, &requests));

    let calendar = Config {
        async_scheduling: false,
        long_prefill_token_threshold: 1,
        long_prefill_token_threshold_adaptive: true,
        max_num_batched_tokens: 4,
        max_num_seqs: 3,
        kv_events: KvEventScope::All,
        ..Config::new(6, 3, 13)
    };
    let mut steps: Vec<Step> = [(1, 3), (1, 1), (10, 1), (12, 1), (2, 4), (1, 6), (1, 3)]
        .map(|(prompt, outputs)| Request(prompt, outputs))
        .into();
    steps.push(Calls(1));
    steps.extend([Request(1, 1), Request(1, 1), Calls(1), Request(1, 1)]);
    World::run(&found(calendar, &steps));
}

/// (Invariant 13) Where it fails. Two prompts of 4 blocks, one block a pass each, in a pool of 4; the second comes one
/// pass later. With 3 + 1 blocks the pool is full. The first one asks, is the one admitted first, and loses
/// its own 3 blocks; the other one takes its second, the first is admitted again behind it, and with 3 + 1
/// blocks the other way round all begins anew. Every second pass preempts, and nobody ever gets a token.
///
/// The rules that pick the one admitted first are an option and a corner: FIFO of AISimulate, which there
/// comes with a check that the whole prompt fits and without chunk threshold; and vLLM's `max()` over
/// requests whose arrival stamps are equal, which a clock never gives it. A run in virtual time
/// refused.
#[test]
fn prompts_in_chunks_take_each_others_blocks_for_ever_when_the_one_admitted_first_loses() {
    let prompt_of_4 = |id| Request {
        id: RequestId(id),
        arrival: Nanos::ZERO,
        prompt_tokens: 4,
        content: Content::Private,
        output: OutputPlan::of_length(1),
        priority: None,
        tie: id,
        hand_off: HandOff::None,
    };
    for (policy, preemption_mode, tokens_given, preemptions) in [
        (Policy::Fcfs, PreemptionMode::Fifo, 0, 499),
        (Policy::Priority, PreemptionMode::Lifo, 0, 499),
        (Policy::Fcfs, PreemptionMode::Lifo, 2, 1),
    ] {
        let config = Config {
            policy,
            preemption_mode,
            max_num_seqs: 2,
            max_num_batched_tokens: 2,
            long_prefill_token_threshold: 1,
            reserve_full_isl: false,
            prefix_caching: false,
            async_scheduling: false,
            ..Config::new(5, 1, 100)
        };
        let mut rank = Rank::new(config, Stepper::Plain).unwrap();
        rank.submit(prompt_of_4(0)).unwrap();
        let mut tokens = 0;
        for pass in 0..1000 {
            if pass == 1 {
                rank.submit(prompt_of_4(1)).unwrap();
            }
            if rank.has_work() {
                rank.schedule();
                tokens += rank.complete().tokens.len();
            }
        }
        let seen = (tokens, rank.stats().preemptions);
        assert_eq!(seen, (tokens_given, preemptions), "{policy:?} {preemption_mode:?}");
    }
}
