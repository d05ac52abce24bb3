//! Public bug reports about SGLang-shaped engines, each as a small case with the right value (sources
//! abbreviated: sgl#N is sgl-project/sglang, aisim#N is ai-dynamo/aisimulate, dynamo#N is ai-dynamo/dynamo),
//! and the rules of SGLang that an implementation from its description gets wrong. The right value is what
//! SGLang 0.5.23 does; where a report says otherwise, the case says so. Passes are synchronous, a pool is
//! given in tokens, and file names are those below sglang/srt.
//!
//! | case | test |
//! |---|---|
//! | S1 | s1_a_prompt_seen_before_computes_a_page_at_most |
//! | S2 | s2_a_prompt_does_not_hit_its_own_chunks |
//! | S3 | s3_prefill_holds_decodes_up, s3_with_mixed_chunk_decodes_ride_along |
//! | S4 | s4_a_retracted_request_goes_to_the_back, s4_fewest_outputs_lose_first, s4_a_prefill_without_room_closes_the_batch |
//! | S5 | s5_what_is_found_after_a_retraction_is_no_hit |
//! | S6 | s6_a_prompt_that_does_not_fit_whole_waits, s6_the_last_chunk_reserves_outputs, s6_leaves_go_and_inner_nodes_stay, s6_a_pass_computes_something |
//! | S7 | s7_an_idle_pool_adds_up |
//! | S8 | s8_less_than_a_page_is_not_cached |
//! | S9 | s9_a_retraction_gives_whole_pages_back |
//! | S10 | s10_only_what_is_missing_is_evicted |
//! | S11 | s11_a_request_that_is_alone_and_does_not_fit_is_aborted |
//! | S12 | s12_without_a_cache_there_are_no_events |
//! | S13 | events for a router are not of this core |
//! | S16 | sglang_host.rs |
//! | S14 | s14_events_name_every_page |
//! | S15 | s15_counters_never_fall |
//!
//! | rule | test |
//! |---|---|
//! | R1 after one refusal nobody is tried until a request leaves | s4_a_prefill_without_room_closes_the_batch |
//! | R2 admission asks for all of a prompt, its output and a page | s6_a_prompt_that_does_not_fit_whole_waits, r2_its_own_prefix_is_no_room, r2_each_admission_reserves_a_page_more |
//! | R3 a sampled token gets its slot in the next decode | r3_a_token_gets_its_slot_in_the_next_pass |
//! | R4 outputs are shared when their request has ended | r4_outputs_are_shared_when_their_request_has_ended |
//! | R5 the ratio falls with decodes and is reset when idle | r5_an_idle_engine_forgets_the_ratio |
//! | R6 who is retracted, and what goes with it | s4_a_retracted_request_goes_to_the_back, r6_the_tree_is_emptied_for_those_that_remain |
//! | R7 the prompt in progress is first, also with lpm | r7_the_prompt_in_progress_goes_on_first |
//! | R8 a prompt over the budget runs alone | r8_a_prompt_over_the_budget_runs_alone |
//! | R9 outputs are cut to context and pool | r9_outputs_are_cut_to_context_and_pool |
//! | R10 nodes are evicted as they were entered | r10_nodes_go_as_they_were_entered |
//! | others | equal_prompts_of_one_pass_are_all_computed, an_abort_waits_for_the_next_forward, with_overlap_a_stop_costs_a_decode |

mod support;

use std::collections::BTreeSet;
use support::bench::{Pass, SglangBench as Bench, prompt, request};
use windtunnel_engine::sglang::{Config, Mode, Policy};
use windtunnel_engine::{FinishReason, KvEvent, KvEventScope, OutputPlan, Rejection, Request};

/// Settings of a small synchronous rank, whose limits do not bind.
fn small(pool: u32, page: u32) -> Config {
    Config { overlap: false, kv_events: KvEventScope::All, ..Config::new(pool, page, 100_000) }
}

/// The same, reserving one output token of each request and nothing for those that run: it admits more than
/// it can bring to an end.
fn rash(pool: u32, page: u32) -> Config {
    Config { schedule_conservativeness: 0.0, clip_max_new_tokens: 1, ..small(pool, page) }
}

/// A request whose output is known, so that a later prompt can begin with it.
fn saying(tokens: impl IntoIterator<Item = u32>, output: impl IntoIterator<Item = u32>) -> Request {
    let output: Box<[u32]> = output.into_iter().collect();
    let plan = OutputPlan::of_length(output.len() as u32);
    Request { output: OutputPlan { tokens: Some(output), ..plan }, ..prompt(tokens, 1) }
}

/// Passes until `done`, which the case must reach; the last one is that in which it was.
fn until(bench: &mut Bench, done: impl Fn(&Bench, &Pass) -> bool) -> Pass {
    for _ in 0..10_000 {
        let pass = bench.pass();
        if done(bench, &pass) {
            return pass;
        }
    }
    panic!("the case does not get there");
}

/// Free, cached and held by nobody, cached and held.
fn pool(bench: &Bench) -> [u32; 3] {
    let rank = &bench.rank;
    [rank.available_tokens(), rank.evictable_tokens(), rank.protected_tokens()]
}

/// aisim#197; schedule_policy.py matches at most len − 1 tokens, in whole pages. The same 40 tokens twice, in
/// chunks of 16: the first computes 40, the second a page, and not 24 again.
#[test]
fn s1_a_prompt_seen_before_computes_a_page_at_most() {
    for (page, hit) in [(1, 39), (4, 36)] {
        let mut bench = Bench::new(Config { chunked_prefill_size: Some(16), ..small(400, page) });
        bench.add(prompt(0..40, 1));
        let cold: Vec<_> = bench.run().into_iter().map(|pass| pass.batch).collect();
        assert_eq!(cold, [[(0, 16)], [(0, 16)], [(0, 8)]]);
        bench.add(prompt(0..40, 1));
        let warm = bench.run();
        assert_eq!(warm.len(), 1);
        assert_eq!(
            (&warm[0].admitted[..], &warm[0].batch[..]),
            (&[(1, hit, 40, false)][..], &[(1, 40 - hit)][..])
        );
    }
}

/// sgl#2555; aisim#120 review; schedule_batch.py `prepare_for_extend` counts what was cached at the first
/// chunk only. A prompt in three chunks that nobody sent before has no hits.
#[test]
fn s2_a_prompt_does_not_hit_its_own_chunks() {
    let mut bench = Bench::new(Config { chunked_prefill_size: Some(16), ..small(400, 1) });
    bench.add(prompt(0..40, 2));
    let passes = bench.run();
    let prefill: Vec<_> = passes.iter().flat_map(|p| &p.prefill).map(|c| (c.before, c.new_tokens)).collect();
    assert_eq!(prefill, [(0, 16), (16, 16), (32, 8)]);
    let admitted: Vec<_> = passes.iter().flat_map(|pass| &pass.admitted).collect();
    assert_eq!(admitted, [&(0, 0, 40, false)]);
    let stats = bench.rank.stats();
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (40, 0));
}

/// A request that decodes, and a prompt of 40 tokens in chunks of 8 that comes after two of its tokens.
fn decode_meets_chunks(mixed_chunk: bool) -> (Bench, Vec<Pass>) {
    let config = Config { chunked_prefill_size: Some(8), mixed_chunk, ..small(400, 1) };
    let mut bench = Bench::new(config);
    bench.add(request(4, 20));
    bench.passes(2);
    bench.add(request(40, 3));
    let passes = bench.passes(8);
    (bench, passes)
}

/// dynamo#12884; aisim#120; scheduler.py `get_next_batch_to_run`: prefill first. A request that decodes gets
/// nothing in the five passes of a long prompt, which has its first token from the fifth, and then both
/// decode.
#[test]
fn s3_prefill_holds_decodes_up() {
    let (bench, passes) = decode_meets_chunks(false);
    for pass in &passes[..5] {
        assert_eq!((&pass.batch[..], pass.decodes), (&[(1, 8)][..], 0));
    }
    for pass in &passes[5..7] {
        assert_eq!(pass.batch, [(0, 1), (1, 1)]);
    }
    assert_eq!(passes[7].batch, [(0, 1)]);
    assert_eq!((bench.tokens[&0].len(), &bench.tokens[&1][..]), (2 + 3, &[1, 2, 3][..]));
}

/// The same with `enable_mixed_chunk`: the decode rides along behind the chunk, which it makes one token
/// shorter, so that the prompt takes six passes (trace of the engine with 511 + 1 of 512).
#[test]
fn s3_with_mixed_chunk_decodes_ride_along() {
    let (bench, passes) = decode_meets_chunks(true);
    for pass in &passes[..5] {
        assert_eq!((&pass.batch[..], pass.decodes), (&[(1, 7), (0, 1)][..], 1));
    }
    assert_eq!(passes[5].batch, [(1, 5), (0, 1)]);
    assert_eq!((bench.tokens[&0].len(), &bench.tokens[&1][..]), (2 + 8, &[1, 2, 3][..]));
}

/// aisim#120; schedule_batch.py `retract_decode`, `_get_decode_retraction_order`. Prompts of 20, 30 and 15
/// leave 35 of 100 tokens: eleven decode passes of three. In the twelfth all have 12 outputs, so the longest
/// prompt loses; it waits behind d, and the others, in their new order, decode in that pass. The ratio is
/// (24 outputs + 20 · 2) / (2 · 60 + 1).
#[test]
fn s4_a_retracted_request_goes_to_the_back() {
    let config = Config { max_running_requests: 3, schedule_conservativeness: 0.1, ..rash(100, 1) };
    let mut bench = Bench::new(config);
    bench.add_all([request(20, 60), request(30, 60), request(15, 60), request(5, 5)]);
    let (start, _, decay) = bench.rank.new_token_ratio_range();
    assert_eq!(bench.pass().batch, [(0, 20), (1, 30), (2, 15)]);
    assert_eq!(bench.rank.new_token_ratio(), start, "prefill does not lower it");
    for passes in 1..=11 {
        assert_eq!(bench.pass().decodes, 3);
        let expected = start - f64::from(passes) * decay;
        assert!((bench.rank.new_token_ratio() - expected).abs() < 1e-15, "a decode pass does");
    }
    let pass = bench.pass();
    assert_eq!((&pass.preempted[..], &pass.batch[..]), (&[1][..], &[(2, 1), (0, 1)][..]));
    assert_eq!(bench.waiting(), [3, 1]);
    assert_eq!(bench.rank.new_token_ratio(), 64.0 / 121.0);
    assert_eq!(bench.pass().batch, [(3, 5)], "d has the seat");
    assert_eq!(bench.rank.new_token_ratio(), 64.0 / 121.0);
    bench.pass();
    assert_eq!(bench.rank.mode(), Some(Mode::Decode));
    assert_eq!(bench.rank.new_token_ratio(), 64.0 / 121.0 - decay);
}

/// aisim#120; schedule_batch.py `_get_decode_retraction_order`. The older request has the longer prompt, but
/// more outputs: the newer one loses. Of equals the last in the batch does.
#[test]
fn s4_fewest_outputs_lose_first() {
    let mut bench = Bench::new(rash(60, 1));
    bench.add(request(30, 28));
    bench.passes(4);
    bench.add(request(10, 28));
    let pass = until(&mut bench, |_, pass| !pass.preempted.is_empty());
    assert_eq!((&pass.preempted[..], &pass.batch[..]), (&[1][..], &[(0, 1)][..]));
    assert!(bench.tokens[&0].len() > bench.tokens[&1].len());

    let mut bench = Bench::new(rash(60, 1));
    bench.add_all((0..3).map(|_| request(10, 28)));
    let pass = until(&mut bench, |_, pass| !pass.preempted.is_empty());
    assert_eq!((&pass.preempted[..], &pass.batch[..]), (&[2][..], &[(0, 1), (1, 1)][..]));
}

/// aisim#120; scheduler.py `_get_new_batch_prefill_raw`. A, with 1000 outputs to come, and C, with 12, run;
/// B does not fit in the second pass. It would from the fifth on, since what is reserved for A shrinks faster
/// than A grows, but a batch that is full is not tried again until C has left it. The refusal leaves the
/// ratio alone.
#[test]
fn s4_a_prefill_without_room_closes_the_batch() {
    let mut bench = Bench::new(small(1200, 1));
    bench.add_all([request(100, 1000), request(10, 12)]);
    bench.pass();
    let (start, _, decay) = bench.rank.new_token_ratio_range();
    let b = bench.add(request(382, 1));
    let mut would_fit = 0;
    for number in 2..=12 {
        let rank = &bench.rank;
        let outputs_left = f64::from(1000 - (number - 1)) + f64::from(12 - (number - 1));
        let room = f64::from(rank.available_tokens()) - rank.new_token_ratio() * outputs_left;
        would_fit += u32::from(room > 384.0);
        assert_eq!(bench.pass().batch, [(0, 1), (1, 1)]);
        // C's end opens the batch with the next call.
        assert!(bench.rank.batch_is_full());
        let expected = start - f64::from(number - 1) * decay;
        assert!((bench.rank.new_token_ratio() - expected).abs() < 1e-12);
    }
    assert_eq!(would_fit, 12 - 4);
    assert_eq!(bench.finished[&1], (FinishReason::Length, 12));
    assert_eq!(bench.pass().batch, [(b, 382)]);
}

/// sgl#11898, #11900; schedule_batch.py `prepare_for_extend`, `retracted_stain`. Prompts of 20 and 30 tokens
/// that share 20 come together, and each computes its own. The second is retracted with 36 outputs and comes
/// back to its 30 cached tokens: those are in no count of hits, which was 122,884 of a prompt of 59,946.
#[test]
fn s5_what_is_found_after_a_retraction_is_no_hit() {
    let mut bench = Bench::new(rash(100, 1));
    bench.add(prompt(0..20, 60));
    bench.add(prompt((0..20).chain(100..110), 60));
    let passes = bench.run();
    let admitted: Vec<_> = passes.iter().flat_map(|pass| &pass.admitted).collect();
    assert_eq!(admitted, [&(0, 0, 20, false), &(1, 0, 30, false), &(1, 30, 66, true)]);
    let stats = bench.rank.stats();
    assert_eq!((stats.preemptions, stats.prefix_queries, stats.prefix_hits), (1, 50, 0));
}

/// dynamo#10919 wants a prompt admitted by its next chunk. SGLang 0.5.23 does not: schedule_policy.py
/// `add_one_req` asks for the whole prompt, the output and a page, and only then cuts the chunk. A prompt of
/// 48 in chunks of 8 waits while a request holds 10 of 60 tokens: 48 + 1 + 1 is not below 50.
#[test]
fn s6_a_prompt_that_does_not_fit_whole_waits() {
    let mut bench = Bench::new(Config { chunked_prefill_size: Some(8), ..rash(60, 1) });
    bench.add(request(8, 5));
    bench.pass();
    assert_eq!(bench.rank.available_tokens(), 52);
    bench.add(request(50, 1));
    for pass in bench.passes(4) {
        assert_eq!(pass.batch, [(0, 1)]);
    }
    assert_eq!(bench.pass().batch, [(1, 8)], "as soon as it is alone");
}

/// dynamo#10919; schedule_policy.py `add_chunked_req`. The last 4 of a prompt's 12 tokens come with a
/// reservation for its 10 outputs and a page: 15. A request of 4 → 1 needs more than 6 of what is left of the
/// pool without the first 8.
#[test]
fn s6_the_last_chunk_reserves_outputs() {
    let last_chunk = |tokens| {
        let mut bench = Bench::new(Config { chunked_prefill_size: Some(8), ..small(tokens, 1) });
        bench.add(request(12, 10));
        assert_eq!(bench.pass().batch, [(0, 8)]);
        bench.add(request(4, 1));
        bench.pass().batch
    };
    assert_eq!(last_chunk(8 + 15 + 6), [(0, 4)]);
    assert_eq!(last_chunk(8 + 15 + 7), [(0, 4), (1, 4)]);
}

/// dynamo#10919; unified_cache/unified_tree_core.py. Two prompts of 15 share 10: three nodes, all of which
/// count as evictable, or a prompt of 24 would not be admitted to a pool of 40. Only leaves go, the one used
/// least recently first, and one is enough.
#[test]
fn s6_leaves_go_and_inner_nodes_stay() {
    let mut bench = Bench::new(small(40, 1));
    let second = || prompt((0..10).chain(100..105), 1);
    bench.add(prompt(0..15, 1));
    bench.run();
    bench.add(second());
    bench.run();
    assert_eq!(pool(&bench), [20, 20, 0]);
    bench.add(request(24, 1));
    bench.run();
    assert_eq!((pool(&bench), bench.rank.stats().evictions), ([1, 39, 0], 5));
    bench.add(second());
    assert_eq!(bench.run()[0].admitted, [(3, 14, 15, false)], "the second has lost nothing");
    bench.add(prompt(0..15, 1));
    assert_eq!(bench.run()[0].admitted, [(4, 10, 15, false)], "the first has lost its end");
}

/// dynamo#10919 has prompts that are cached whole, with nothing to compute, and passes without progress. In
/// SGLang a prompt computes at least its last token; a turn of the loop that finds nothing is no pass, and
/// one is enough.
#[test]
fn s6_a_pass_computes_something() {
    let mut bench = Bench::new(small(100, 1));
    bench.add(prompt(0..8, 2));
    bench.run();
    bench.add(prompt(0..8, 2));
    assert_eq!(bench.run().iter().map(|pass| pass.batch[0].1).collect::<Vec<_>>(), [1, 1]);
    assert!(bench.rank.has_work());
    assert_eq!(bench.pass(), Pass::default());
    assert!(!bench.rank.has_work());
}

/// sgl#35270 (open). Pages of 4, prompts that share parts which end inside a page, outputs that later prompts
/// repeat, and too little room: free and cached are the whole pool whenever nothing runs, and more than it
/// never.
#[test]
fn s7_an_idle_pool_adds_up() {
    let mut bench = Bench::new(small(120, 4));
    for i in 0..40u32 {
        let own = 1000 * (i + 1);
        let shared = 7 * (i % 5);
        let output = shared..shared + 1 + i % 6;
        bench.add(saying((0..shared).chain(own..own + 1 + i % 9), output));
        if i % 3 == 0 {
            while bench.rank.unfinished() > 0 {
                bench.pass();
                assert!(pool(&bench).iter().sum::<u32>() <= 120);
            }
            let [free, evictable, protected] = pool(&bench);
            assert_eq!((free + evictable, protected), (120, 0));
        }
    }
    let stats = bench.rank.stats();
    assert!(stats.evictions > 0 && stats.prefix_hits > 0);
}

/// sgl#10637. Pages of 16: 10 tokens leave nothing and find nothing. 40 leave 32, and when those go, exactly
/// 32 are no longer evictable.
#[test]
fn s8_less_than_a_page_is_not_cached() {
    let mut bench = Bench::new(small(160, 16));
    for id in 0..2 {
        bench.add(prompt(0..10, 1));
        assert_eq!(bench.run()[0].admitted, [(id, 0, 10, false)]);
        assert_eq!(pool(&bench), [160, 0, 0]);
    }
    bench.add(prompt(0..40, 1));
    bench.run();
    assert_eq!(pool(&bench), [128, 32, 0]);
    // It takes 9 pages and asks for a page more.
    bench.add(request(130, 1));
    bench.pass();
    assert_eq!((pool(&bench), bench.rank.stats().evictions), ([32, 128, 0], 2));
}

/// sgl#4977, #4914. Pages of 4, prompts of 18 and 21 that share 6 tokens: 5 and 6 pages, of which one is the
/// same. What the retracted one gives back are whole pages, and nothing is lost at the end.
#[test]
fn s9_a_retraction_gives_whole_pages_back() {
    let mut bench = Bench::new(rash(100, 4));
    bench.add(prompt(0..18, 60));
    bench.add(prompt((0..6).chain(100..115), 60));
    bench.pass();
    // In the tree: 4 pages of the first, 4 of the second without the first one.
    assert_eq!(pool(&bench), [100 - 40, 0, 32]);
    until(&mut bench, |_, pass| pass.preempted == [1]);
    let [ref retraction] = bench.rank.retractions()[..] else { panic!("one retraction") };
    let slots = 21 + bench.tokens[&1].len() as u32 - 1;
    let given_back = slots.next_multiple_of(4) - 20;
    assert_eq!(retraction.available_before, 0);
    assert_eq!(retraction.available_after, given_back);
    bench.run();
    let [free, evictable, protected] = pool(&bench);
    assert_eq!((free + evictable, protected), (100, 0));
}

/// sgl#32016; mem_cache/common.py `evict_from_tree_cache`. Ten cached prompts of 10 tokens in a pool of 160
/// leave 60. A prompt of 100, or of 95, lacks 40, or 35: four prompts go, and not ten.
#[test]
fn s10_only_what_is_missing_is_evicted() {
    for tokens in [100, 95] {
        let mut bench = Bench::new(small(160, 1));
        for _ in 0..10 {
            bench.add(request(10, 1));
            bench.run();
        }
        assert_eq!(pool(&bench), [60, 100, 0]);
        bench.add(request(tokens, 1));
        bench.run();
        assert_eq!(bench.rank.stats().evictions, 40);
    }
}

/// sgl#19881; schedule_batch.py `retract_decode`: "Out of memory even after retracting all other requests".
/// A request cannot outgrow the pool alone, but what is computed of a prompt in chunks is not given back: 8
/// and 67 of 100 tokens are taken, and while the interval keeps the next chunk waiting, 25 decodes fit. The
/// request is aborted, and the prompt goes on with what it held.
#[test]
fn s11_a_request_that_is_alone_and_does_not_fit_is_aborted() {
    let config = Config { chunked_prefill_size: Some(75), prefill_decode_interval: 30, ..rash(100, 1) };
    let mut bench = Bench::new(config);
    bench.add_all([request(8, 60), request(80, 3)]);
    assert_eq!(bench.pass().batch, [(0, 8), (1, 67)]);
    for pass in bench.passes(25) {
        assert_eq!(pass.batch, [(0, 1)]);
    }
    let pass = bench.pass();
    assert_eq!((&pass.batch[..], &pass.preempted[..]), (&[][..], &[][..]));
    assert_eq!(bench.rank.retractions()[0].aborted.len(), 1);
    assert_eq!(bench.finished[&0], (FinishReason::Abort, 26));
    let rest: Vec<_> = bench.run().into_iter().map(|pass| pass.batch).filter(|b| !b.is_empty()).collect();
    assert_eq!(rest[0], [(1, 13)]);
    assert_eq!(bench.finished[&1], (FinishReason::Length, 3));
    let [free, evictable, protected] = pool(&bench);
    assert_eq!((free + evictable, protected), (100, 0));
}

/// aisim#289. Without a radix cache there are no events and no hits, whatever is evicted, retracted and sent
/// again.
#[test]
fn s12_without_a_cache_there_are_no_events() {
    let run = |radix_cache| {
        let mut bench = Bench::new(Config { radix_cache, ..rash(100, 4) });
        for _ in 0..3 {
            bench.add(prompt(0..30, 30));
            bench.add(prompt(0..40, 30));
        }
        bench.run();
        (bench.rank.events().len(), bench.rank.stats().prefix_hits, bench.rank.stats().preemptions)
    };
    let (events, hits, retractions) = run(false);
    assert_eq!((events, hits), (0, 0));
    assert!(retractions > 0);
    let (events, hits, _) = run(true);
    assert!(events > 0 && hits > 0);
}

/// sgl#6824. Pages of 4: a node of 40 tokens is told as ten pages, and what is entered behind it as two more,
/// with the last of the ten as their parent.
#[test]
fn s14_events_name_every_page() {
    let mut bench = Bench::new(small(400, 4));
    let mut stored = |tokens: u32| {
        bench.add(prompt(0..tokens, 1));
        bench.rank.clear_events();
        bench.run();
        let events: Vec<_> = bench.rank.events().iter().collect();
        let [KvEvent::Stored { first_block, parent, blocks, .. }] = events[..] else { panic!("{events:?}") };
        (first_block, parent, blocks.to_vec())
    };
    let (first, second) = (stored(40), stored(48));
    assert_eq!((first.0, first.1, first.2.len()), (0, None, 10));
    assert_eq!((second.0, second.1, second.2.len()), (10, first.2.last().copied(), 2));
    let pages: BTreeSet<_> = first.2.iter().chain(&second.2).collect();
    assert_eq!(pages.len(), 12, "each has a name of its own");
}

/// sgl#4660. Retractions take tokens back, and no counter: each token is given once, in order, and what was
/// counted stays counted.
#[test]
fn s15_counters_never_fall() {
    let mut bench = Bench::new(rash(100, 1));
    bench.add_all((0..6).map(|i| prompt((0..10).chain(100 * i..100 * i + 8), 40)));
    let counters = |bench: &Bench| {
        let s = bench.rank.stats();
        [s.prefix_queries, s.prefix_hits, s.evictions, s.preemptions]
    };
    let mut before = counters(&bench);
    while bench.rank.unfinished() > 0 {
        bench.pass();
        let now = counters(&bench);
        assert!(before.iter().zip(now).all(|(&before, now)| before <= now), "{before:?} {now:?}");
        before = now;
    }
    assert!(bench.rank.stats().preemptions > 1);
    for tokens in bench.tokens.values() {
        assert!(tokens.iter().copied().eq(1..=40));
    }
}

/// scheduler.py, schedule_policy.py `add_one_req`. What a candidate itself finds in the cache is held for it
/// and does not count as room. 20 of 60 tokens are cached, 8 are a running request's: 32 are left for what a
/// prompt adds to the 20, its output and a page.
#[test]
fn r2_its_own_prefix_is_no_room() {
    let second_pass = |own: u32| {
        let mut bench = Bench::new(rash(60, 1));
        bench.add(prompt(0..20, 1));
        bench.run();
        bench.add(request(8, 50));
        bench.pass();
        bench.add(prompt((0..20).chain(100..100 + own), 1));
        bench.pass().batch
    };
    assert_eq!(second_pass(29), [(2, 29)]);
    assert_eq!(second_pass(30), [(1, 1)]);
}

/// schedule_policy.py `_update_prefill_budget`. Pages of 4: a request of 8 → 2 takes 8 + 4 + 2 of the budget,
/// and two of them 28. A third of 1 → 1 asks for 6 and waits in a pool of 32, where without the page it would
/// not.
#[test]
fn r2_each_admission_reserves_a_page_more() {
    let admitted = |tokens| {
        let mut bench = Bench::new(small(tokens, 4));
        bench.add_all([request(8, 2), request(8, 2), request(1, 1)]);
        bench.pass().admitted.len()
    };
    assert_eq!(admitted(32), 2);
    assert_eq!(admitted(36), 3);
}

/// schedule_batch.py `prepare_for_decode`. The token that a pass samples gets its slot in the next decode: a
/// prompt of 8 has 8 slots after its prefill and 9 after the first decode, and the last output never has one.
#[test]
fn r3_a_token_gets_its_slot_in_the_next_pass() {
    let mut bench = Bench::new(small(100, 1));
    bench.add(request(8, 3));
    let mut free = Vec::new();
    for _ in 0..3 {
        bench.schedule();
        free.push(bench.rank.available_tokens());
        bench.complete();
    }
    assert_eq!(free, [92, 91, 90]);
    assert_eq!(pool(&bench), [90, 10, 0]);
}

/// batch_result_processor.py. The tree learns a prompt after its prefill, and the output when the request
/// ends, without its last token.
#[test]
fn r4_outputs_are_shared_when_their_request_has_ended() {
    let mut bench = Bench::new(small(200, 1));
    bench.add(saying(0..8, 8..20));
    bench.passes(8);
    let follow_up = || prompt((0..20).chain(100..104), 1);
    bench.add(follow_up());
    assert_eq!(bench.pass().admitted, [(1, 8, 24, false)], "8 outputs are there, and not to be found");
    // In another rank nobody has entered them meanwhile.
    let mut bench = Bench::new(small(200, 1));
    bench.add(saying(0..8, 8..20));
    bench.run();
    bench.add(follow_up());
    assert_eq!(bench.pass().admitted, [(1, 8 + 12 - 1, 24, false)]);
}

/// scheduler_components/new_token_ratio_tracker.py. The ratio falls with a decode pass, not with a turn that
/// finds nothing to run, and is what it was at the start when the engine is idle.
#[test]
fn r5_an_idle_engine_forgets_the_ratio() {
    let mut bench = Bench::new(Config { prefill_decode_interval: 5, ..small(100, 1) });
    let (start, _, decay) = bench.rank.new_token_ratio_range();
    bench.add(request(4, 2));
    bench.passes(2);
    bench.add(request(4, 1));
    for pass in bench.passes(4) {
        assert_eq!((pass.batch, bench.rank.new_token_ratio()), (vec![], start - decay));
    }
    assert_eq!(bench.pass().batch, [(1, 4)]);
    assert_eq!(bench.rank.new_token_ratio(), start - decay);
    assert_eq!(bench.pass().batch, []);
    assert_eq!(bench.rank.new_token_ratio(), start);
}

/// schedule_batch.py `release_req`. A retraction leaves 20 tokens for each request that remains. Of prompts
/// of 20, 30 and 15 in a pool of 100 the second loses: 2 were free, its 11 decodes are given back, and its
/// prompt, which nobody holds any more, goes at once to make it 40. It finds nothing when it comes back. One
/// of two that loses 35 decodes leaves enough without (the case of S5), and finds its prompt.
#[test]
fn r6_the_tree_is_emptied_for_those_that_remain() {
    let mut bench = Bench::new(rash(100, 1));
    bench.add_all([request(20, 60), request(30, 60), request(15, 60)]);
    until(&mut bench, |_, pass| pass.preempted == [1]);
    let [ref retraction] = bench.rank.retractions()[..] else { panic!("one retraction") };
    assert_eq!((retraction.available_before, retraction.available_after), (2, 2 + 11 + 30));
    let pass = until(&mut bench, |_, pass| pass.admitted.iter().any(|admitted| admitted.0 == 1));
    assert_eq!(pass.admitted, [(1, 0, 30 + 12, true)]);
}

/// schedule_policy.py `add_chunked_req`. With policy lpm the prompt in progress comes before one with a longer
/// cached prefix.
#[test]
fn r7_the_prompt_in_progress_goes_on_first() {
    let config = Config { schedule_policy: Policy::Lpm, chunked_prefill_size: Some(8), ..small(400, 1) };
    let mut bench = Bench::new(config);
    bench.add(prompt(0..40, 1));
    bench.run();
    bench.add(request(12, 1));
    assert_eq!(bench.pass().batch, [(1, 8)]);
    bench.add(prompt(100..102, 1));
    bench.add(prompt(0..42, 1));
    assert_eq!(bench.pass().batch, [(1, 4), (3, 2), (2, 2)], "and then the longest prefix");
}

/// schedule_policy.py `budget_state`, `add_one_req`. Prompts are not split, and one is longer than
/// `max_prefill_tokens`: it runs, with nobody behind it, and not behind another.
#[test]
fn r8_a_prompt_over_the_budget_runs_alone() {
    let batches = |first, second| {
        let config = Config { chunked_prefill_size: None, max_prefill_tokens: 16, ..small(400, 1) };
        let mut bench = Bench::new(config);
        bench.add_all([request(first, 1), request(second, 1)]);
        bench.passes(2).into_iter().map(|pass| pass.batch).collect::<Vec<_>>()
    };
    assert_eq!(batches(40, 4), [[(0, 40)], [(1, 4)]]);
    assert_eq!(batches(4, 40), [[(0, 4)], [(1, 40)]]);
    assert_eq!(batches(8, 7), [vec![(0, 8), (1, 7)], vec![]]);
}

/// scheduler.py `init_req_max_new_tokens`; allocator/base.py `max_new_tokens_for_memory`. Outputs are cut, and
/// nobody is told: to min(context, pool) − prompt − 2, and in pages of 16 to what is left of the pool beside
/// the prompt's pages, a page and a token.
#[test]
fn r9_outputs_are_cut_to_context_and_pool() {
    let outputs = |tokens, page, context_length| {
        let mut bench = Bench::new(Config { context_length, ..small(tokens, page) });
        bench.add(request(10, 1000));
        bench.run();
        bench.finished[&0]
    };
    assert_eq!(outputs(64, 1, 1000), (FinishReason::Length, 64 - 10 - 2));
    assert_eq!(outputs(1000, 1, 40), (FinishReason::Length, 40 - 10 - 2));
    assert_eq!(outputs(64, 16, 1000), (FinishReason::Length, 64 - 16 - 16 - 1));
}

/// schedule_policy.py `add_one_req_ignore_eos`. Without a cache, a request that asks for all its outputs needs
/// its prompt's pages and a page more, also where no output is left of them: a prompt of 50 in a pool of 64
/// would wait for 80 tokens without end. One of 48 has them, and gives its one token.
#[test]
fn a_prompt_without_a_page_to_spare_is_refused() {
    let submit = |tokens| {
        let mut bench = Bench::new(Config { radix_cache: false, ..small(64, 16) });
        let mut asked = request(tokens, 12);
        asked.output.ignore_eos = Some(true);
        bench.submit(asked)?;
        bench.run();
        Ok(bench.finished[&0])
    };
    assert_eq!(submit(50), Err(Rejection::LargerThanPool { needed_blocks: 5, usable_blocks: 4 }));
    assert_eq!(submit(48), Ok((FinishReason::Length, 1)));
}

/// unified_cache/unified_tree_core.py. What goes is a node as it was entered. A prompt of 24 that came in one
/// piece is lost whole for 4 tokens; one that came in chunks of 8 loses the last. A prompt keeps apart from
/// its output.
#[test]
fn r10_nodes_go_as_they_were_entered() {
    let kept = |first: Request, chunk| {
        let mut bench = Bench::new(Config { chunked_prefill_size: chunk, ..small(40, 1) });
        let again = first.clone();
        bench.add(first);
        bench.run();
        let missing = bench.rank.evictable_tokens() - 20;
        assert_eq!(missing, 4);
        bench.add(request(20, 1));
        bench.run();
        bench.add(Request { output: OutputPlan::of_length(1), ..again });
        bench.pass().admitted[0].1
    };
    assert_eq!(kept(prompt(0..24, 1), None), 0);
    assert_eq!(kept(prompt(0..24, 1), Some(8)), 16);
    assert_eq!(kept(saying(0..14, 100..111), None), 13, "all of the prompt, but for its last token");
}

/// schedule_policy.py: the in-batch check of lpm only moves requests to the back of the queue. Equal prompts
/// that are admitted together compute all their tokens, and the copies are given back after the pass.
#[test]
fn equal_prompts_of_one_pass_are_all_computed() {
    for schedule_policy in [Policy::Fcfs, Policy::Lpm] {
        let mut bench = Bench::new(Config { schedule_policy, ..small(400, 1) });
        bench.add_all((0..3).map(|_| prompt(0..40, 2)));
        bench.schedule();
        assert_eq!(bench.rank.scheduled().prefill_tokens, 120);
        assert_eq!(bench.rank.available_tokens(), 280);
        bench.complete();
        assert_eq!(bench.rank.available_tokens(), 360);
    }
}

/// scheduler.py `abort_request`: a running request is marked, takes part in the next forward and gives its
/// token.
#[test]
fn an_abort_waits_for_the_next_forward() {
    let mut bench = Bench::new(small(100, 1));
    bench.add(request(8, 9));
    bench.passes(2);
    assert!(!bench.rank.cancel(bench.slot(0)));
    assert_eq!(bench.pass().batch, [(0, 1)]);
    assert_eq!(bench.finished[&0], (FinishReason::Abort, 3));
}

/// scheduler.py `event_loop_overlap`. The batch after the one in flight is decided before its tokens are
/// known: a request that stops takes part in one decode more, one that ends by length does not.
#[test]
fn with_overlap_a_stop_costs_a_decode() {
    let decodes = |stop_after| {
        let mut bench = Bench::new(Config { overlap: true, ..small(100, 1) });
        let output = OutputPlan { stop_after, ..OutputPlan::of_length(5) };
        bench.add(Request { output, ..request(8, 5) });
        let mut decodes = bench.schedule().decodes;
        while bench.rank.unfinished() > 0 {
            decodes += bench.schedule().decodes;
            bench.complete();
        }
        (bench.finished[&0], decodes)
    };
    assert_eq!(decodes(None), ((FinishReason::Length, 5), 4));
    assert_eq!(decodes(Some(3)), ((FinishReason::Stop, 3), 2 + 1));
}
