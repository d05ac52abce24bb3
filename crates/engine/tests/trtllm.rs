//! TensorRT-LLM: public bug reports, AISimulate's probed answers and the engine's own rules as cases that can
//! be followed by hand. Where a case has a number of a public report, it stands in front of it.

mod support;

use std::collections::BTreeMap;
use support::bench::{prompt, request};
use windtunnel_engine::trtllm::{CapacityPolicy, Config, FullHit, Rank};
use windtunnel_engine::{
    Chunk, DecodeSet, FinishReason, KvEvent, KvEventScope, OutputPlan, RankConfig, Rejection, Request,
    RequestId, Slot, Stepper,
};

/// What one pass did, requests by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pass {
    /// Tokens of each request, in batch order.
    batch: Vec<(u64, u32)>,
    prefill: Vec<Chunk>,
    decode: DecodeSet,
    /// (request, hit tokens, known tokens, resumed).
    admitted: Vec<(u64, u32, u32, bool)>,
    paused: Vec<u64>,
}

struct Bench {
    rank: Rank,
    next_id: u64,
    slots: BTreeMap<u64, Slot>,
    finished: BTreeMap<u64, (FinishReason, u32)>,
}

/// Settings of a small rank without overlap, with limits that do not bind.
fn small(num_blocks: u32, block_size: u32) -> Config {
    Config { overlap: false, kv_events: KvEventScope::All, ..Config::new(num_blocks, block_size, 100_000) }
}

impl Bench {
    fn new(config: Config) -> Bench {
        let rank = Rank::new(config, Stepper::Plain).expect("the case has settings that are accepted");
        Bench { rank, next_id: 0, slots: BTreeMap::new(), finished: BTreeMap::new() }
    }

    fn submit(&mut self, request: Request) -> Result<u64, Rejection> {
        let id = self.next_id;
        let slot = self.rank.submit(Request { id: RequestId(id), ..request })?;
        self.next_id += 1;
        self.slots.insert(id, slot);
        Ok(id)
    }

    fn add(&mut self, requests: impl IntoIterator<Item = Request>) {
        requests.into_iter().for_each(|request| _ = self.submit(request).expect("it fits"));
    }

    fn schedule(&mut self) -> Pass {
        self.rank.schedule();
        let (rank, scheduled) = (&self.rank, self.rank.scheduled());
        let id = |slot: Slot| rank.id(slot).0;
        Pass {
            batch: rank.batch().into_iter().map(|(slot, tokens)| (id(slot), tokens)).collect(),
            prefill: scheduled.prefill.clone(),
            decode: scheduled.decode,
            admitted: scheduled
                .admitted
                .iter()
                .map(|a| (id(a.slot), a.hit_tokens, a.known_tokens, a.resumed))
                .collect(),
            paused: scheduled.preempted.iter().copied().map(id).collect(),
        }
    }

    fn complete(&mut self) -> Vec<u64> {
        let outcome = self.rank.complete().clone();
        for f in &outcome.finished {
            self.finished.insert(f.id.0, (f.reason, f.output_tokens));
        }
        outcome.finished.iter().map(|f| f.id.0).collect()
    }

    /// One pass without overlap.
    fn pass(&mut self) -> Pass {
        let pass = self.schedule();
        self.complete();
        pass
    }

    /// Passes until every request has ended.
    fn run(&mut self) -> Vec<Pass> {
        let mut passes = Vec::new();
        while self.rank.has_work() {
            passes.push(self.pass());
            assert!(passes.len() < 100_000, "the case comes to an end");
        }
        passes
    }

    fn running(&self) -> Vec<u64> {
        self.rank.running().map(|slot| self.rank.id(slot).0).collect()
    }

    fn waiting(&self) -> Vec<u64> {
        self.rank.waiting().map(|slot| self.rank.id(slot).0).collect()
    }
}

fn stopping(prompt_tokens: u32, max_tokens: u32, stop_after: u32) -> Request {
    let output = OutputPlan { stop_after: Some(stop_after), ..OutputPlan::of_length(max_tokens) };
    Request { output, ..request(prompt_tokens, max_tokens) }
}

/// (T1: NVIDIA/TensorRT-LLM 2866, 9412, 2865) KV for 12,288 tokens; answers are short, but 11,776 output tokens
/// are asked for. The second request starts when the first one ends. Asking for 100, both run at once.
#[test]
fn t1_room_for_the_longest_output_is_set_aside() {
    let mut bench = Bench::new(small(384, 32));
    bench.add([stopping(500, 11_776, 10), stopping(500, 11_776, 10)]);
    let passes = bench.run();
    let starts: Vec<usize> = (0..passes.len()).filter(|&at| !passes[at].admitted.is_empty()).collect();
    assert_eq!((starts, passes.len()), (vec![0, 10], 20));
    assert_eq!(bench.rank.stats().preemptions, 0);

    let mut bench = Bench::new(small(384, 32));
    bench.add([stopping(500, 100, 10), stopping(500, 100, 10)]);
    assert_eq!(bench.pass().admitted.len(), 2);
    assert_eq!(bench.run().len(), 9);
}

/// (T2: 11731) Blocks that can be reused and belong to nobody are among the free ones: reusing them takes them
/// from there. Only a block with an owner is had for nothing.
#[test]
fn t2_reusing_a_block_without_an_owner_takes_a_free_one() {
    let mut bench = Bench::new(small(8, 4));
    bench.add([prompt(0..17, 1)]);
    bench.run();
    assert_eq!((bench.rank.free_blocks(), bench.rank.stats().cached_blocks), (8, 4));
    // 4 blocks to the end; then a prompt that reuses 4 blocks and needs 6: only 4 are to be had.
    bench.add([request(8, 8), prompt(0..20, 4)]);
    assert_eq!(bench.pass().admitted, [(1, 0, 8, false)]);
    assert_eq!(bench.waiting(), [2]);
    while bench.running() == [1] {
        bench.pass();
    }
    assert_eq!(bench.pass().admitted, [(2, 16, 20, false)]);
    // While somebody has them, 2 more are enough.
    bench.add([prompt((0..16).chain(100..104), 4)]);
    assert_eq!(bench.pass().admitted, [(3, 16, 20, false)]);
    bench.run();
    assert_eq!(bench.rank.stats().preemptions, 0);
}

/// (T3: 15065, 15066) The token budget is charged what has to be computed: five prompts of 60 tokens, 56 of
/// them reusable, go in one pass of 64 tokens.
#[test]
fn t3_reused_tokens_are_not_charged() {
    for capacity_policy in [CapacityPolicy::GuaranteedNoEvict, CapacityPolicy::MaxUtilization] {
        let chunked_prefill = capacity_policy == CapacityPolicy::MaxUtilization;
        let mut bench =
            Bench::new(Config { max_num_tokens: 64, capacity_policy, chunked_prefill, ..small(200, 4) });
        bench.add([prompt(0..57, 1)]);
        bench.run();
        bench.add((1..6).map(|n| prompt((0..56).chain(n * 100..n * 100 + 4), 2)));
        let pass = bench.pass();
        assert_eq!(pass.prefill, [Chunk { new_tokens: 4, before: 56 }; 5], "{capacity_policy:?}");
    }
}

/// (T4: 12665, 13318) However much is reused, a pass never computes more than its budget. A prompt that is
/// cached to its end costs one token, or without partial reuse its last block.
#[test]
fn t4_a_pass_never_exceeds_its_budget() {
    for (partial_reuse, chunked_prefill, budget, cost) in
        [(true, false, 8, 1), (true, true, 8, 1), (false, false, 9, 4), (false, true, 9, 4)]
    {
        let config = Config { max_num_tokens: budget, partial_reuse, chunked_prefill, ..small(200, 4) };
        let mut bench = Bench::new(config);
        bench.add([prompt(0..8, 1)]);
        bench.run();
        bench.add((0..10).map(|_| prompt(0..8, 1)));
        let passes = bench.run();
        let tokens: Vec<u32> = passes.iter().map(|p| p.batch.iter().map(|b| b.1).sum()).collect();
        assert!(tokens.iter().all(|&tokens| tokens <= budget), "{tokens:?}");
        assert_eq!(passes[0].prefill[0], Chunk { new_tokens: cost, before: 8 - cost });
        assert_eq!(passes[0].admitted.len() as u32, budget / cost);
        assert_eq!(tokens.iter().sum::<u32>(), 10 * cost);
    }
}

/// (T5: 16802) A request that needs more blocks than there are is refused, with both numbers; those behind it
/// are served.
#[test]
fn t5_a_request_larger_than_the_pool_is_refused() {
    let mut bench = Bench::new(small(10, 4));
    let refused = bench.submit(request(30, 11)).unwrap_err();
    assert_eq!(refused, Rejection::LargerThanPool { needed_blocks: 11, usable_blocks: 10 });
    assert_eq!(refused.to_string(), "needs 11 KV blocks to finish, the pool has 10");
    bench.add([request(30, 10)]);
    bench.run();
    assert_eq!(bench.finished[&0], (FinishReason::Length, 10));
}

/// What else is refused, and what is cut instead.
#[test]
fn refusals_and_cuts() {
    let config = Config { max_num_tokens: 50, max_seq_len: 60, ..small(100, 4) };
    let mut bench = Bench::new(config.clone());
    let mut refused = |request| bench.submit(request).unwrap_err();
    assert_eq!(refused(request(0, 1)), Rejection::EmptyPrompt);
    assert_eq!(refused(request(1, 0)), Rejection::NoOutput);
    assert_eq!(
        refused(request(60, 1)),
        Rejection::PromptTooLong { prompt_tokens: 60, max_model_len: 60, longest: 59 }
    );
    let over = Rejection::PromptExceedsBudget { prompt_tokens: 51, max_num_tokens: 50 };
    assert_eq!((refused(request(51, 1)), over.kind()), (over, "prompt_exceeds_budget"));

    // Split, the same prompt is served; of 30 output tokens 9 are left below the context length.
    let mut bench = Bench::new(Config { chunked_prefill: true, ..config });
    bench.add([request(51, 30)]);
    bench.run();
    assert_eq!(bench.finished[&0], (FinishReason::Length, 9));

    // AISimulate cuts the output to what the pool can hold, where the engine refuses.
    let config = Config { clamp_output_to_pool: true, ..small(10, 4) };
    let mut bench = Bench::new(config);
    assert_eq!(bench.submit(request(40, 1)).unwrap_err().kind(), "larger_than_pool");
    bench.add([request(30, 1000)]);
    bench.run();
    assert_eq!(bench.finished[&0], (FinishReason::Length, 10));
}

/// Settings of AISimulate's probe: block 4, 8 seats, a budget of 64, its own rules.
fn probe(num_blocks: u32) -> Config {
    Config {
        max_batch_size: 8,
        max_num_tokens: 64,
        chunked_prefill: true,
        beneficial_to_skip: false,
        full_hit: FullHit::Reference,
        clamp_output_to_pool: true,
        ..small(num_blocks, 4)
    }
}

/// (P08) The same prompt of 8 tokens again: AISimulate reuses 8 and gives the first token with one decode. The
/// engine must compute something: it reuses 7.
#[test]
fn p08_a_prompt_cached_to_its_end() {
    let mut decode = DecodeSet::default();
    decode.add(8);
    for (full_hit, hit, prefill, decode) in [
        (FullHit::Reference, 8, vec![], decode),
        (FullHit::Recompute, 7, vec![Chunk { new_tokens: 1, before: 7 }], DecodeSet::default()),
    ] {
        let mut bench = Bench::new(Config { full_hit, ..probe(64) });
        bench.add([prompt(0..8, 4)]);
        bench.run();
        bench.add([prompt(0..8, 4)]);
        let pass = bench.schedule();
        assert_eq!(pass.admitted, [(1, hit, 8, false)]);
        assert_eq!((pass.prefill, pass.decode), (prefill, decode));
        let outcome = bench.rank.complete();
        assert_eq!(outcome.tokens.len(), 1, "the first token comes with that pass");
        assert_eq!(bench.run().len(), 3);
        assert_eq!(bench.rank.stats().used_blocks, 0);
    }
}

/// (P12) 5 blocks, two requests 8→8 of 4 blocks each: the second starts when the first has ended (after one
/// prefill pass and 7 decode passes: 10 + 7 × 2 = 24 ms), and ends 8 passes later (48 ms). Nobody is preempted.
#[test]
fn p12_one_after_the_other_where_vllm_would_preempt() {
    let mut bench = Bench::new(probe(5));
    bench.add([request(8, 8), request(8, 8)]);
    let passes = bench.run();
    let ms: Vec<u64> = passes.iter().map(|p| if p.prefill.is_empty() { 2 } else { 10 }).collect();
    assert_eq!(passes[8].admitted, [(1, 0, 8, false)]);
    assert_eq!((ms[..8].iter().sum::<u64>(), ms.iter().sum::<u64>()), (24, 48));
    assert_eq!(bench.rank.stats().preemptions, 0);
}

/// The first prompt that does not fit stops the pass over the prompts, though others behind it would.
#[test]
fn the_head_of_the_line_blocks() {
    let mut bench = Bench::new(small(10, 4));
    bench.add([request(20, 4), request(20, 4), request(4, 1)]);
    assert_eq!(bench.pass().batch, [(0, 20)]);
    assert_eq!((bench.running(), bench.waiting()), (vec![0], vec![1, 2]));
}

/// `_beneficial_to_skip`: of equal prompts only one is computed; the others wait for it and reuse it. A prompt that
/// shares nothing goes along.
#[test]
fn duplicates_wait_and_then_hit() {
    let mut bench = Bench::new(small(100, 4));
    bench.add([prompt(0..10, 2), prompt(0..10, 2), prompt(50..60, 2), prompt(0..10, 2)]);
    let pass = bench.pass();
    assert_eq!(pass.batch, [(0, 10), (2, 10)]);
    let pass = bench.pass();
    assert_eq!(pass.admitted, [(1, 8, 10, false), (3, 8, 10, false)]);
    assert_eq!(bench.rank.stats().prefix_hits, 16);

    let mut bench = Bench::new(Config { beneficial_to_skip: false, ..small(100, 4) });
    bench.add([prompt(0..10, 2), prompt(0..10, 2)]);
    assert_eq!(bench.pass().batch, [(0, 10), (1, 10)]);
    // One block stands for one identity; the other copy is nobody's to find.
    assert_eq!((bench.rank.stats().cached_blocks, bench.rank.stats().used_blocks), (2, 6));
}

/// A prompt in chunks holds back those that begin like it until it is computed to its end; its blocks can be
/// reused only then.
#[test]
fn a_prompt_in_chunks_is_waited_for() {
    let config = Config { chunked_prefill: true, max_num_tokens: 8, ..small(100, 4) };
    let mut bench = Bench::new(config);
    bench.add([prompt(0..20, 2), prompt(0..20, 2)]);
    let batches: Vec<_> = (0..4).map(|_| bench.pass().batch).collect();
    assert_eq!(batches[..3], [vec![(0, 8)], vec![(0, 8)], vec![(0, 4)]]);
    // The second one finds all of it, and computes its last token.
    assert_eq!(batches[3], [(1, 1), (0, 1)]);
}

/// With the overlap scheduler the prompt is still being computed when the next pass is decided, but no
/// longer waiting to be: the second one is not held back, finds nothing, and computes the same again.
#[test]
fn with_overlap_a_duplicate_is_skipped_for_one_pass_only() {
    let mut bench = Bench::new(Config { overlap: true, ..small(100, 4) });
    bench.add([prompt(0..10, 5), prompt(0..10, 5), prompt(0..10, 5)]);
    assert_eq!(bench.schedule().batch, [(0, 10)]);
    assert_eq!(bench.schedule().batch, [(1, 10), (0, 1)]);
    bench.complete();
    assert_eq!(bench.schedule().admitted, [(2, 8, 10, false)]);
    bench.complete();
    assert_eq!(bench.rank.stats().cached_blocks, 2, "the second copy is not entered");
}

/// Chunks are what is left of the budget, cut down to whole units; those that do not end their prompt go first.
#[test]
fn chunks_are_whole_units() {
    let config =
        Config { chunked_prefill: true, max_num_tokens: 22, chunk_unit_size: Some(8), ..small(100, 4) };
    let mut bench = Bench::new(config);
    bench.add([request(1, 9), request(40, 1), request(5, 1)]);
    // 22 − 1: 16 of 40 for the second, and the third as a whole.
    assert_eq!(bench.pass().batch, [(1, 16), (0, 1), (2, 5)]);
    // 22 − 1 decode: 16 again, then the 8 that are left.
    assert_eq!(bench.pass().batch, [(1, 16), (0, 1)]);
    assert_eq!(bench.pass().batch, [(1, 8), (0, 1)]);
    assert_eq!(bench.finished[&1], (FinishReason::Length, 1));
}

/// Without chunked prefill a prompt waits until the rest of the budget takes it as a whole, and nobody passes it.
#[test]
fn without_chunks_a_prompt_waits_for_the_budget() {
    let mut bench = Bench::new(Config { max_num_tokens: 10, ..small(100, 4) });
    bench.add([request(8, 1), request(8, 1), request(2, 1)]);
    let batches: Vec<_> = bench.run().into_iter().map(|pass| pass.batch).collect();
    assert_eq!(batches, [vec![(0, 8)], vec![(1, 8), (2, 2)]]);
}

/// MAX_UTILIZATION: prompts start as soon as they fit. When a next block does not, the request started last
/// gives its blocks back. It keeps its place, and begins again with its prompt and what it has given; what
/// it left in the reuse tree it finds there.
#[test]
fn maximal_utilization_pauses_the_request_started_last() {
    let config =
        Config { capacity_policy: CapacityPolicy::MaxUtilization, chunked_prefill: true, ..small(6, 4) };
    let mut bench = Bench::new(config);
    bench.add([request(8, 12), request(8, 12)]);
    // Both start: 2 blocks each. With their first decode both need a third, with their fifth a fourth.
    assert_eq!(bench.pass().admitted.len(), 2);
    for _ in 0..4 {
        assert_eq!(bench.pass().paused, []);
    }
    assert_eq!(bench.rank.free_blocks(), 0);
    let pass = bench.pass();
    assert_eq!((pass.paused, pass.batch), (vec![1], vec![(0, 1)]));
    // 8 + 5 tokens are known, of which 12 were computed: 3 full blocks were left. One of them went to the
    // first request. The rest fits again only when that one has ended.
    assert_eq!((bench.rank.stats().preemptions, bench.waiting()), (1, vec![1]));
    let passes = bench.run();
    let resumed = passes.iter().position(|pass| !pass.admitted.is_empty());
    assert_eq!(resumed, Some(6), "when the first request has ended");
    assert_eq!(passes[6].admitted, [(1, 4, 13, true)]);
    assert_eq!(bench.finished[&1], (FinishReason::Length, 12));
}

/// MAX_UTILIZATION: who has another one paused, and has not started itself, is skipped when it is tried again: it
/// takes itself for a duplicate. It starts with the next pass.
#[test]
fn who_has_another_one_paused_sits_out_the_pass() {
    let config =
        Config { capacity_policy: CapacityPolicy::MaxUtilization, chunked_prefill: true, ..small(6, 4) };
    let mut bench = Bench::new(config);
    // The second waits for the first, as it begins like it; the third starts meanwhile.
    bench.add([prompt(0..5, 1), prompt((0..4).chain(50..66), 1), request(8, 9)]);
    assert_eq!(bench.pass().batch, [(0, 5), (2, 8)]);
    let pass = bench.pass();
    assert_eq!((pass.paused, pass.batch), (vec![2], vec![]));
    assert_eq!(bench.pass().admitted, [(1, 4, 20, false)]);
}

/// A length that is reached is foreseen: no pass too many. A stop token is not: with the overlap scheduler the
/// request takes part in one more pass, whose token is dropped.
#[test]
fn a_stop_token_costs_one_more_pass_with_overlap() {
    for (overlap, request, tokens) in [
        (false, request(4, 3), 6),
        (true, request(4, 3), 6),
        (false, stopping(4, 10, 3), 6),
        (true, stopping(4, 10, 3), 7),
    ] {
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let mut rank = Rank::new(Config { overlap, ..small(100, 4) }, stepper).unwrap();
            rank.submit(request.clone()).unwrap();
            let (mut scheduled, mut given) = (0, 0);
            while rank.has_work() {
                while rank.has_work() && rank.in_flight() < rank.config().depth() {
                    scheduled += rank.schedule().tokens;
                }
                let outcome = rank.complete();
                given += outcome.tokens.len() as u64 + outcome.steady_tokens;
            }
            assert_eq!((scheduled, given), (tokens, 3), "{overlap} {stepper:?}");
        }
    }
}

/// A block that is handed out again takes those that follow it out of the tree, the last of them first, also one
/// that a running request holds. Two prompts with the same first block at once: the second one's copy stays
/// outside the tree, and its second block hangs on the first one's.
#[test]
fn a_block_that_goes_takes_its_followers_along() {
    let mut bench = Bench::new(Config { beneficial_to_skip: false, ..small(9, 4) });
    bench.add([prompt(0..9, 1), prompt((0..4).chain(50..55), 3)]);
    bench.pass();
    let stored: Vec<_> = bench
        .rank
        .events()
        .iter()
        .map(|event| match event {
            KvEvent::Stored { request, first_block, parent, blocks, .. } => {
                (request.0, first_block, parent, blocks.to_vec())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let (first, second, hanging) = (stored[0].3[0], stored[0].3[1], stored[1].3[0]);
    let expected = [(0, 0, None, vec![first, second]), (1, 1, Some(first), vec![hanging])];
    assert_eq!(stored, expected);
    bench.rank.clear_events();
    // Three blocks never used, the first request's last, which is not full, its second, and its first.
    bench.add([request(23, 1)]);
    bench.pass();
    let gone: Vec<_> = match bench.rank.events().iter().next() {
        Some(KvEvent::Removed { blocks, .. }) => blocks.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!((gone, bench.rank.stats().evictions), (vec![second, hanging, first], 3));
}

/// Where the rules of the engine's source let nobody go on. A has 11 of 16 blocks set aside, B 6, D 6; C begins like
/// B and is skipped while B is computed. D begins in the same pass as B, in chunks. When C comes back it
/// stands in front of D and does not fit beside D's 5 blocks, which ends the pass over the prompts: D is never reached
/// again. Two requests that exceed the pool together are needed, and a prompt that was skipped.
#[test]
fn a_skipped_prompt_can_shut_in_one_that_has_begun() {
    let config = Config { chunked_prefill: true, max_num_tokens: 7, partial_reuse: false, ..small(16, 1) };
    let mut bench = Bench::new(config);
    bench.add([request(1, 10), prompt([0, 1, 2, 3, 4], 1), prompt([0], 11), request(5, 1)]);
    for _ in 0..100 {
        bench.pass();
    }
    assert_eq!((bench.running(), bench.waiting()), (vec![3], vec![2]));
    assert_eq!(bench.rank.scheduled().tokens, 0);
    // Taken out, it lets the others go on.
    bench.rank.cancel(bench.slots[&2]);
    bench.run();
    assert_eq!(bench.finished[&3], (FinishReason::Length, 1));
}

/// A steady pass is not looked at request by request. Where events are told, a stretch ends with a block of 32 tokens,
/// and elsewhere when the first request does.
#[test]
fn stretches_reach_to_the_next_block_or_end() {
    let (mut rank, mut silent) = (decoding(KvEventScope::All), decoding(KvEventScope::Off));
    let steady = rank.steady().expect("nothing is told until the next block");
    assert_eq!((steady.passes, steady.decode.count), (29, 8));
    rank.advance_steady(29);
    assert_eq!(rank.steady(), None, "every request needs a block");
    // Of 500 tokens the first came with the prompt, two are scheduled, and the last pass is not steady.
    let steady = silent.steady().expect("the pool has blocks");
    assert_eq!(steady.passes, 495);
    silent.advance_steady(495);
    assert_eq!(silent.stats().used_blocks, 8 * (32u32 + 498).div_ceil(32));
}

fn decoding(kv_events: KvEventScope) -> Rank {
    let config = Config { overlap: true, kv_events, ..small(1000, 32) };
    let mut rank = Rank::new(config, Stepper::Fast).unwrap();
    for _ in 0..8 {
        rank.submit(request(32, 500)).unwrap();
    }
    // One prefill pass, and the first decode, which begins a block.
    for _ in 0..4 {
        rank.schedule();
        if rank.in_flight() == 2 {
            rank.complete();
        }
    }
    rank
}

/// Calls in any order, slots that nobody has, settings that cannot be: values, not panics.
#[test]
fn nothing_that_is_asked_for_panics() {
    let mut rank = Rank::new(small(4, 4), Stepper::Fast).unwrap();
    assert!(rank.cancel(Slot(7)));
    rank.complete();
    rank.schedule();
    rank.complete();
    let slot = rank.submit(request(4, 4)).unwrap();
    assert!(rank.cancel(slot) && rank.cancel(slot) && !rank.has_work());

    let good = small(4, 4);
    let refused = |config: Config| RankConfig::Trtllm(config).validate().unwrap_err().field;
    assert_eq!(refused(Config { num_blocks: 0, ..good.clone() }), "num_blocks");
    assert_eq!(refused(Config { block_size: 0, ..good.clone() }), "block_size");
    assert_eq!(refused(Config { max_batch_size: 0, ..good.clone() }), "max_batch_size");
    assert_eq!(refused(Config { max_num_tokens: 0, ..good.clone() }), "max_num_tokens");
    assert_eq!(refused(Config { max_seq_len: 1, ..good.clone() }), "max_seq_len");
    assert_eq!(refused(Config { chunk_unit_size: Some(6), ..good.clone() }), "chunk_unit_size");
    let tight = Config { chunked_prefill: true, max_num_tokens: 3, ..good.clone() };
    assert_eq!(refused(tight), "max_num_tokens");
    let whole = Config { capacity_policy: CapacityPolicy::MaxUtilization, ..good };
    assert_eq!(refused(whole), "max_num_tokens");
}
