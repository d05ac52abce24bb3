//! Public bug reports about vLLM-shaped engines, each as a small case with the right value
//! (sources abbreviated: dynamo#N is ai-dynamo/dynamo, blis#N is
//! inference-sim/inference-sim, vllm#N is vllm-project/vllm, aisim#N is ai-dynamo/aisimulate, aic#N is
//! ai-dynamo/aiconfigurator). Passes are synchronous unless a case says otherwise.
//!
//! | case | test |
//! |---|---|
//! | V1 | v1_a_prompt_that_does_not_fit_whole_waits |
//! | V2 | v2_the_newest_is_preempted_until_the_blocks_are_there, v2_there_is_no_watermark_by_default |
//! | V3 | v3_hit_is_limited_to_prompt_minus_one |
//! | V4 | v4_prefill_after_a_preemption_is_no_look_up |
//! | V5 | v5_a_request_that_waits_for_blocks_is_looked_up_once |
//! | V6 | v6_a_request_larger_than_the_pool_is_refused |
//! | V7 | v7_a_preempted_request_finds_what_was_not_reused |
//! | V8 | v8 in crates/sim/tests/bug_cases.rs: a rate needs a clock |
//! | V9 | v9_a_preempted_request_gives_each_token_once; its latencies in crates/sim/tests/bug_cases.rs |
//! | V10 | v10_requests_that_fit_are_not_preempted |
//! | V11 | v11_free_slots_of_the_last_block_count |
//! | V12 | v12_identity_does_not_depend_on_chunks |
//! | V13 | v13_an_allocation_that_fails_changes_nothing |
//! | V14 | v14_the_shape_counts_scheduled_requests_only |
//! | V15 | v15_outputs_end_at_the_context_length |
//! | V16 | v16_a_refusal_uses_the_capped_output_and_keeps_nothing |
//! | V17 | v17_the_next_request_starts_when_the_seat_is_free; with a clock in crates/sim/tests/bug_cases.rs |
//! | V18 | v18_what_is_computed_again_is_counted_after_the_look_up |
//! | V19 | v19_a_victim_scheduled_earlier_in_the_pass_leaves_it |
//! | V20 | v20_nobody_is_skipped_when_the_victim_stands_before_the_asker |
//! | V21 | v21_a_preempted_request_waits_by_arrival_or_in_front |
//! | V22 | v22_the_first_pass_with_budget_left_admits |
//! | V23 | v23_only_full_blocks_are_shared |
//! | V25 | v25_one_block_is_the_null_block; its latencies need the calibrated timing of a later version |

mod support;

use support::bench::{Pass, VllmBench as Bench, prompt, request, small};
use windtunnel_engine::vllm::{Config, Policy, PreemptionMode};
use windtunnel_engine::{FinishReason, Rejection, Request};

/// dynamo#9718, PR 9721; vLLM 0.33.0 `scheduler_reserve_full_isl`. Ten blocks of 16. A holds 6 and decodes.
/// B has 80 tokens (5 blocks) and a first chunk of at most 31 (2 blocks), which would fit in the 4 that are
/// free. It waits, and so does C behind it, which would fit.
#[test]
fn v1_a_prompt_that_does_not_fit_whole_waits() {
    let run = |reserve_full_isl| {
        let config =
            Config { max_num_batched_tokens: 32, max_num_seqs: 8, reserve_full_isl, ..small(10, 16) };
        let mut bench = Bench::new(config);
        let a = bench.add(request(90, 7));
        bench.passes(3);
        let (b, c) = (bench.add(request(80, 2)), bench.add(request(10, 2)));
        let pass = bench.pass();
        assert_eq!(pass.batch[0], (a, 1));
        (pass, bench.waiting() == [b, c], bench.run(), bench.rank.stats().preemptions)
    };
    let (pass, both_wait, _, preemptions) = run(true);
    assert_eq!(pass.batch, [(0, 1)]);
    assert!(both_wait);
    assert_eq!(preemptions, 0);

    let (pass, _, rest, preemptions) = run(false);
    assert_eq!(pass.batch, [(0, 1), (1, 31)], "admitted by its first chunk");
    assert_eq!(preemptions, 1);
    assert!(rest.iter().any(|pass| pass.preempted == [1]), "and loses it when it needs more");
}

/// dynamo#7020; vLLM 0.33.0 `schedule`. Three requests of 2 full blocks each fill a pool of 6. The next
/// token of each needs a third block: a asks, the newest (c) loses its 2, a and b get theirs. With FIFO, an
/// option of AISimulate, the oldest loses instead: a asks and is itself the victim.
#[test]
fn v2_the_newest_is_preempted_until_the_blocks_are_there() {
    let second_pass = |preemption_mode, usable_blocks| {
        let mut bench = Bench::new(Config { preemption_mode, ..small(usable_blocks, 4) });
        bench.add_all((0..usable_blocks / 2).map(|_| request(8, 4)));
        bench.passes(2).remove(1)
    };
    let lifo = second_pass(PreemptionMode::Lifo, 6);
    assert_eq!((lifo.preempted, lifo.batch), (vec![2], vec![(0, 1), (1, 1)]));
    let fifo = second_pass(PreemptionMode::Fifo, 6);
    assert_eq!((fifo.preempted, fifo.batch), (vec![0], vec![(1, 1), (2, 1)]));
    // A pool of 5: a takes the free block, b asks, and b is the newest.
    let itself = second_pass(PreemptionMode::Lifo, 5);
    assert_eq!((itself.preempted, itself.batch), (vec![1], vec![(0, 1)]));

    // Several victims for one asker. First in, first out: two short requests hold a block each, one block is
    // free, and the next chunk of a prompt behind them needs three.
    let config =
        Config { max_num_batched_tokens: 14, max_num_seqs: 3, reserve_full_isl: false, ..small(6, 4) };
    let mut bench = Bench::new(Config { preemption_mode: PreemptionMode::Fifo, ..config });
    bench.add(request(1, 9));
    bench.add(request(1, 9));
    bench.add(request(24, 1));
    assert_eq!(bench.pass().batch, [(0, 1), (1, 1), (2, 12)]);
    let pass = bench.pass();
    assert_eq!((pass.preempted, pass.batch), (vec![0, 1], vec![(2, 12)]));
}

/// dynamo#7020; vLLM 0.33.0 config/cache.py, `watermark: float = 0.0`. Three requests may fill the pool to
/// the last block. A watermark, when set, keeps blocks free at admission, but not when nothing runs.
#[test]
fn v2_there_is_no_watermark_by_default() {
    let admitted = |watermark| {
        let mut bench = Bench::new(Config { watermark, ..small(6, 4) });
        bench.add_all((0..3).map(|_| request(8, 1)));
        bench.pass().admitted.len()
    };
    assert_eq!(Config::new(7, 4, 100).watermark, 0.0);
    assert_eq!(admitted(0.0), 3);
    // ⌊0.3 · 7⌋ = 2 blocks: the first is admitted to an idle rank, the second leaves 2, the third would not.
    assert_eq!(admitted(0.3), 2);
    // ⌊0.9 · 7⌋ = 6 blocks would never be free, and yet the first one is admitted.
    assert_eq!(admitted(0.9), 1);
}

/// vllm#11186, #17999; vLLM 0.33.0 `get_computed_blocks`: at most prompt − 1 tokens, whole blocks. The same
/// 64 tokens twice in blocks of 16: 48 are found and 16 computed, not 63 or 64. Of 65 tokens 64 are found.
#[test]
fn v3_hit_is_limited_to_prompt_minus_one() {
    let second = |tokens: u32| {
        let mut bench = Bench::new(small(100, 16));
        bench.add(prompt(0..tokens, 1));
        bench.pass();
        bench.add(prompt(0..tokens, 1));
        let pass = bench.pass();
        (pass.admitted[0].1, pass.batch[0].1)
    };
    assert_eq!(second(64), (48, 16));
    assert_eq!(second(65), (64, 1));
    assert_eq!(second(16), (0, 16), "a prompt of one block never hits");
    assert_eq!(second(17), (16, 1));
}

/// vllm#25780, PR 25787: 1000 random prompts of 1024 tokens, preempted and computed again, were reported
/// with a hit rate of 32 % although nothing is shared. Here two random prompts in a pool of 5 blocks of 4:
/// b is preempted after its first token, and finds 4 of its own when it comes back. Queries are the two
/// prompts, hits are none.
#[test]
fn v4_prefill_after_a_preemption_is_no_look_up() {
    let mut bench = Bench::new(small(5, 4));
    bench.add(request(8, 8));
    bench.add(request(8, 8));
    let passes = bench.run();
    let resumed: Vec<_> = passes.iter().flat_map(|pass| &pass.admitted).filter(|a| a.3).copied().collect();
    assert_eq!(resumed, [(1, 4, 9, true)], "it finds one block of its own");
    let stats = bench.rank.stats();
    assert_eq!((stats.preemptions, stats.prefix_queries, stats.prefix_hits), (1, 16, 0));
}

/// vllm#43736, PR 45202; vLLM 0.33.0 calls `record_prefix_cache_stats` after the allocation. Three blocks of
/// 16 are cached and free, a running request holds the other 5. A prompt of 4 blocks that begins with the
/// cached ones needs 4 free blocks (touching a free block costs it), and 3 are free: it waits 5 passes.
/// Then 64 tokens were queried and 48 hit, not six times as much.
#[test]
fn v5_a_request_that_waits_for_blocks_is_looked_up_once() {
    let mut bench = Bench::new(small(8, 16));
    bench.add(prompt(0..49, 1));
    bench.pass();
    let before = bench.rank.stats();
    bench.add(request(75, 6));
    bench.pass();
    let late = bench.add(prompt(0..64, 1));
    for _ in 0..5 {
        let pass = bench.pass();
        assert_eq!((pass.batch.len(), bench.rank.scheduled().lookups), (1, 1));
    }
    assert_eq!(bench.pass().admitted, [(late, 48, 64, false)]);
    let after = bench.rank.stats();
    assert_eq!(after.prefix_queries - before.prefix_queries, 75 + 64);
    assert_eq!(after.prefix_hits - before.prefix_hits, 48);
}

/// vllm#39734; blis#373. A pool of 50 blocks of 16 and a request that would need 57: refused at once, with
/// both numbers. The one behind it runs. (A real engine refuses to start with a pool below one request of
/// the full context length.)
#[test]
fn v6_a_request_larger_than_the_pool_is_refused() {
    let mut bench = Bench::new(small(50, 16));
    let refusal = bench.submit(request(57 * 16, 1)).unwrap_err();
    assert_eq!(refusal, Rejection::LargerThanPool { needed_blocks: 57, usable_blocks: 50 });
    assert_eq!(refusal.to_string(), "needs 57 KV blocks to finish, the pool has 50");
    // What counts is the finished request: the last output token needs no slot.
    assert!(bench.submit(request(400, 401)).is_ok(), "800 slots are 50 blocks");
    assert!(bench.submit(request(400, 402)).is_err());
    let behind = bench.add(request(100, 3));
    bench.run();
    assert_eq!(bench.finished[&behind], (FinishReason::Length, 3));
    assert_eq!(bench.finished.len(), 2);
}

/// blis#1057, PR 1079. R owns 64 full blocks (1024 tokens of 16) and is preempted for A, which then decodes
/// through 8 blocks until it ends. Blocks keep their identity until they are used again, the tail of the
/// prompt goes first: 56 blocks, 896 of 1024 tokens, are found.
#[test]
fn v7_a_preempted_request_finds_what_was_not_reused() {
    let mut bench = Bench::new(small(72, 16));
    // 128 + 128 slots: 8 blocks at first, 16 at the end.
    let a = bench.add(request(128, 129));
    let r = bench.add(request(1024, 2));
    assert_eq!(bench.pass().batch, [(a, 128), (r, 1024)]);
    assert_eq!(bench.pass().preempted, [r]);
    let passes = bench.run();
    let resumed = passes.iter().flat_map(|pass| &pass.admitted).find(|a| a.3);
    assert_eq!(resumed, Some(&(r, 896, 1025, true)));
    assert_eq!(bench.rank.stats().evictions, 8 + 9, "8 of its own for A, then 9 of A's for itself");
}

/// blis#1091, #1095, #1097, #1122. b gives 5 tokens, is preempted, and asked for 8: it gives 8 in all, each
/// once, and is not asked for its first one again. The token that is in flight when it is preempted
/// (asynchronous scheduling) counts among them.
#[test]
fn v9_a_preempted_request_gives_each_token_once() {
    let mut bench = Bench::new(small(6, 4));
    bench.add(request(8, 8));
    let b = bench.add(request(8, 8));
    bench.passes(5);
    assert_eq!(bench.tokens[&b], [1, 2, 3, 4, 5]);
    assert_eq!(bench.pass().preempted, [b]);
    bench.run();
    assert_eq!(bench.tokens[&b], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bench.finished[&b], (FinishReason::Length, 8));

    let mut bench = Bench::new(Config { async_scheduling: true, ..small(6, 4) });
    bench.add(request(8, 8));
    let b = bench.add(request(8, 8));
    bench.schedule();
    while bench.schedule().preempted.is_empty() {
        bench.complete();
    }
    let before = bench.tokens[&b].len() as u32;
    bench.complete();
    assert_eq!(bench.tokens[&b].last(), Some(&(before + 1)), "the token in flight is delivered");
    while bench.rank.has_work() {
        bench.schedule();
        bench.complete();
    }
    assert_eq!(bench.tokens[&b], [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// blis#349, #519: evicting from the tail of the list being walked gave 102 000 preemptions and no
/// completion for 30 requests with outputs of 3200 to 3596 tokens in 7463 blocks. They fit: 30 of 30
/// complete without a preemption. (Prompts of 100 tokens and blocks of 16 are ours.)
#[test]
fn v10_requests_that_fit_are_not_preempted() {
    let mut bench = Bench::new(small(7463, 16));
    for i in 0..30 {
        bench.add(request(100, 3200 + i * 396 / 29));
    }
    let passes = bench.run();
    assert_eq!(passes.len(), 3596, "one prefill pass, and a token of the longest in each");
    assert_eq!((bench.finished.len(), bench.rank.stats().preemptions), (30, 0));
}

/// blis#492, #502. The last block of a running request has 6 free slots of 16, its next chunk has 20 tokens,
/// and one block is free: ⌈(20 − 6)/16⌉ = 1 is enough, not ⌈20/16⌉ = 2.
#[test]
fn v11_free_slots_of_the_last_block_count() {
    let config =
        Config { max_num_batched_tokens: 20, max_num_seqs: 2, reserve_full_isl: false, ..small(2, 16) };
    let mut bench = Bench::new(config);
    let short = bench.add(request(10, 1));
    let long = bench.add(request(30, 1));
    assert_eq!(bench.pass().batch, [(short, 10), (long, 10)]);
    assert_eq!(bench.rank.free_blocks(), 1, "the short one has ended");
    let pass = bench.pass();
    assert_eq!((pass.batch, pass.preempted), (vec![(long, 20)], vec![]));
    assert_eq!(bench.finished[&long], (FinishReason::Length, 1));
}

/// blis#196, #217. The identity of block i covers tokens 0 to 16·(i+1), whatever chunks they were computed
/// in. A prompt of 64 in chunks of 32 (and others); the same prompt then hits 48.
#[test]
fn v12_identity_does_not_depend_on_chunks() {
    for chunk in [1, 7, 16, 31, 32, 33, 64] {
        let config = Config { max_num_batched_tokens: chunk, max_num_seqs: 1, ..small(100, 16) };
        let mut bench = Bench::new(config);
        bench.add(prompt(0..64, 1));
        let passes = bench.run();
        assert_eq!(passes.len() as u32, 64u32.div_ceil(chunk));
        bench.add(prompt(0..64, 1));
        assert_eq!(bench.pass().admitted, [(1, 48, 64, false)], "chunks of {chunk}");
    }
}

/// blis#1061, #1068; dynamo#11016, #11019. A request needs 3 blocks and 2 are free: nothing is taken, and
/// free queue, blocks, counters and events are as if it had not been tried.
#[test]
fn v13_an_allocation_that_fails_changes_nothing() {
    let seen_after_the_second_pass = |with_the_big_one: bool| {
        let mut bench = Bench::new(small(5, 4));
        bench.add(prompt(0..10, 3));
        bench.pass();
        bench.rank.clear_events();
        if with_the_big_one {
            // It shares one block, so that its look-up finds something.
            bench.add(prompt((0..4).chain(100..110), 1));
        }
        bench.pass();
        assert!(bench.rank.events().is_empty());
        let stats = bench.rank.stats();
        assert_eq!(stats.waiting, usize::from(with_the_big_one));
        let counters = (stats.used_blocks, stats.evictions, stats.prefix_queries, stats.prefix_hits);
        (bench.rank.free_queue(), counters, bench.rank.cached_copies())
    };
    let untouched = seen_after_the_second_pass(false);
    assert_eq!(untouched.0.len(), 2);
    assert_eq!(seen_after_the_second_pass(true), untouched);
}

/// blis#963, #1063. Ten run, six of them are given a token in this pass (the prefills of the other four are
/// held back by the prefill cadence): the pass is one of six decodes, not of ten.
#[test]
fn v14_the_shape_counts_scheduled_requests_only() {
    let config = Config {
        max_num_seqs: 10,
        max_num_batched_tokens: 14,
        long_prefill_token_threshold: 2,
        prefill_schedule_interval: 4,
        ..small(100, 16)
    };
    let mut bench = Bench::new(config);
    bench.add_all((0..6).map(|_| request(1, 20)));
    bench.add_all((0..4).map(|_| request(4, 20)));
    let first = bench.pass();
    assert_eq!((first.admitted.len(), first.prefill.len(), first.decodes), (10, 10, 0));
    let second = bench.pass();
    assert_eq!((bench.running().len(), second.batch.len()), (10, 6));
    assert_eq!((second.prefill, second.decodes), (vec![], 6));
    assert_eq!(bench.rank.scheduled().shape().tokens(), 6);
}

/// blis#603, #625; vLLM 0.33.0 `check_stop`. A prompt of 50, a context length of 100, 200 outputs wanted: 50
/// are given, ended by length. In general min(max_tokens, context length − prompt).
#[test]
fn v15_outputs_end_at_the_context_length() {
    let outputs = |prompt: u32, wanted: u32, async_scheduling| {
        let config = Config { max_model_len: 100, max_num_seqs: 4, async_scheduling, ..small(100, 16) };
        let mut bench = Bench::new(config);
        bench.add(request(prompt, wanted));
        bench.run();
        assert_eq!(bench.tokens[&0].len() as u32, bench.finished[&0].1);
        bench.finished[&0]
    };
    for async_scheduling in [false, true] {
        assert_eq!(outputs(50, 200, async_scheduling), (FinishReason::Length, 50));
        assert_eq!(outputs(50, 49, async_scheduling), (FinishReason::Length, 49));
        assert_eq!(outputs(99, 200, async_scheduling), (FinishReason::Length, 1));
    }
}

/// aisim#261, the vLLM part. A prompt of the context length is refused; a request is judged by its capped
/// output; what was refused keeps no id, no slot and no block.
#[test]
fn v16_a_refusal_uses_the_capped_output_and_keeps_nothing() {
    let mut bench = Bench::new(Config { max_model_len: 100, max_num_seqs: 4, ..small(7, 16) });
    let refusal = bench.submit(request(100, 1)).unwrap_err();
    assert_eq!(refusal, Rejection::PromptTooLong { prompt_tokens: 100, max_model_len: 100, longest: 99 });
    assert_eq!(bench.submit(request(0, 1)), Err(Rejection::EmptyPrompt));
    assert_eq!(bench.submit(request(1, 0)), Err(Rejection::NoOutput));
    assert_eq!((bench.rank.unfinished(), bench.rank.has_work()), (0, false));
    // 50 + 1000 tokens would need 66 blocks, 50 + 50 need 7.
    let id = bench.add(request(50, 1000));
    assert_eq!((id, bench.slot(id).0), (0, 0), "the id and the slot are still unused");
    bench.run();
    assert_eq!(bench.finished[&id], (FinishReason::Length, 50));
    assert_eq!(bench.rank.free_blocks(), 7);
}

/// blis#319, #325. One seat, two requests: the second is admitted in the pass after the one that ended the
/// first, not when something else arrives.
#[test]
fn v17_the_next_request_starts_when_the_seat_is_free() {
    let mut bench = Bench::new(Config { max_num_seqs: 1, ..small(100, 16) });
    bench.add(request(8, 3));
    bench.add(request(8, 3));
    let batches: Vec<_> = bench.run().into_iter().map(|pass| pass.batch).collect();
    let expected = [(0, 8), (0, 1), (0, 1), (1, 8), (1, 1), (1, 1)].map(|member| vec![member]);
    assert_eq!(batches, expected);
}

/// nano-vllm#211: the tokens to compute were taken from a stale count of cached tokens. A preempted request
/// looks up first; what it computes is what it knows minus what it found, at least one token.
#[test]
fn v18_what_is_computed_again_is_counted_after_the_look_up() {
    let mut bench = Bench::new(small(40, 4));
    for i in 0..16 {
        bench.add(request(5 + i % 3, 12));
    }
    let mut resumed = 0;
    for pass in bench.run() {
        for &(id, hits, known, _) in pass.admitted.iter().filter(|a| a.3) {
            let chunk = pass.batch.iter().find(|member| member.0 == id).map(|member| member.1);
            assert_eq!(chunk, Some(known - hits));
            assert!(known > hits);
            resumed += 1;
        }
    }
    assert!(resumed > 0 && bench.finished.len() == 16);
}

/// By priority. Four blocks of 4: the first request, least urgent, holds one, the second a full one, the third
/// two. Then the third pass, in which the second needs another block.
fn priority_victim_in_front() -> (Bench, Pass) {
    let mut bench = Bench::new(Config { policy: Policy::Priority, ..small(4, 4) });
    // Urgent requests are admitted first, so the least urgent one has to be there before them.
    bench.add(Request { priority: Some(5), ..request(2, 9) });
    bench.pass();
    bench.add(request(4, 5));
    bench.add(request(7, 5));
    bench.pass();
    assert_eq!((bench.running(), bench.rank.free_blocks()), (vec![0, 1, 2], 0));
    let pass = bench.pass();
    (bench, pass)
}

/// vllm#23347. By priority, the request at the front of the list has been given its token in this pass when
/// the second needs a block. It is the least urgent, so it loses its block and leaves the pass, which then
/// has two tokens. (That its token goes back to the budget is seen by the random workloads.)
#[test]
fn v19_a_victim_scheduled_earlier_in_the_pass_leaves_it() {
    let (bench, pass) = priority_victim_in_front();
    assert_eq!((pass.preempted, pass.batch), (vec![0], vec![(1, 1), (2, 1)]));
    assert_eq!((bench.running(), bench.waiting()), (vec![1, 2], vec![0]));
    assert_eq!(bench.rank.scheduled().tokens, 2);
}

/// vllm#49097; aic#1380 (the oldest as victim). The victim stands before the asker in the list: the one
/// behind the asker is scheduled in the same pass, and the pass has two decodes, not three.
#[test]
fn v20_nobody_is_skipped_when_the_victim_stands_before_the_asker() {
    let (_, pass) = priority_victim_in_front();
    assert_eq!((pass.batch, pass.decodes, pass.prefill), (vec![(1, 1), (2, 1)], 2, vec![]));

    // First in, first out: b needs a block, a in front of it loses its own, c behind it has its turn.
    let config = Config { preemption_mode: PreemptionMode::Fifo, ..small(4, 4) };
    let mut bench = Bench::new(config);
    bench.add(request(2, 9));
    bench.add(request(4, 5));
    bench.add(request(7, 5));
    assert_eq!(bench.pass().batch.len(), 3);
    let pass = bench.pass();
    assert_eq!((pass.preempted, pass.batch), (vec![0], vec![(1, 1), (2, 1)]));
    assert_eq!(pass.decodes, 2);
}

/// vllm#41951; vLLM 0.33.0 orders the waiting heap by (priority, arrival, id). A, which arrived at 2, is
/// preempted while B, which arrived at 1 and has the same priority, waits. By priority B is next. First come,
/// first served puts the preempted one in front of everybody.
#[test]
fn v21_a_preempted_request_waits_by_arrival_or_in_front() {
    let waiting = |policy| {
        let mut bench = Bench::new(Config { policy, max_num_seqs: 2, ..small(5, 4) });
        bench.add_at(0, request(8, 8));
        let a = bench.add_at(2, request(8, 8));
        bench.pass();
        let b = bench.add_at(1, request(8, 8));
        // The first one takes the fifth block, and A needs one too.
        assert_eq!(bench.pass().preempted, [a]);
        (bench.waiting() == [b, a], bench.waiting() == [a, b])
    };
    assert_eq!(waiting(Policy::Priority), (true, false));
    assert_eq!(waiting(Policy::Fcfs), (false, true));
}

/// vllm#53130. A prompt takes the whole budget of 16 for 19 passes and 6 tokens of the 20th: a short request
/// that came with it is not looked at while the budget is 0 (as in vLLM), and admitted in the 20th.
#[test]
fn v22_the_first_pass_with_budget_left_admits() {
    let config = Config { max_num_batched_tokens: 16, max_num_seqs: 4, ..small(100, 16) };
    let mut bench = Bench::new(config);
    let long = bench.add(request(19 * 16 + 6, 3));
    let short = bench.add(request(4, 1));
    for pass in bench.passes(19) {
        assert_eq!(pass.batch, [(long, 16)]);
    }
    assert_eq!(bench.pass().batch, [(long, 6), (short, 4)]);
}

/// vllm#54608 (asked whether it is a bug): two prompts of 300 tokens share 240. In blocks of 784 nothing is
/// found, in blocks of 16 all 240: full blocks only.
#[test]
fn v23_only_full_blocks_are_shared() {
    let found = |block_size| {
        let mut bench = Bench::new(small(1600 / block_size + 100, block_size));
        bench.add(prompt(0..300, 1));
        bench.pass();
        bench.add(prompt((0..240).chain(1000..1060), 1));
        bench.pass().admitted[0].1
    };
    assert_eq!(found(784), 0);
    assert_eq!(found(16), 240);
}

/// dynamo#12033. vLLM reports 54,454 blocks; one of them is the null block, so requests can hold 54,453.
#[test]
fn v25_one_block_is_the_null_block() {
    let config = Config { async_scheduling: false, ..Config::new(54_454, 16, 1 << 20) };
    assert_eq!(config.usable_blocks(), 54_453);
    let bench = Bench::new(config);
    assert_eq!(bench.rank.free_blocks(), 54_453);
    assert!(!bench.rank.free_queue().contains(&0));
}
