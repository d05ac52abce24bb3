//! Memory that passes take from the allocator: none once a rank is warm, while the same requests decode. Counted,
//! not timed.

use allocation_counter::measure;
use windtunnel_engine::{
    Content, HandOff, Nanos, OutputPlan, Rank, RankConfig, Request, RequestId, Stepper, sglang, trtllm, vllm,
};

const MEMBERS: u64 = 64;

/// Blocks so long that none begins while passes are counted.
const LONG: u32 = 1 << 14;

fn engines() -> [(&'static str, RankConfig); 5] {
    let vllm = |async_scheduling| {
        RankConfig::Vllm(vllm::Config { async_scheduling, ..vllm::Config::new(1000, LONG, 1 << 20) })
    };
    let sglang = |page| {
        let config = sglang::Config::new(16_000_000 / page * page, page, 1 << 20);
        RankConfig::Sglang(sglang::Config { chunked_prefill_size: None, ..config })
    };
    let trtllm = trtllm::Config { chunked_prefill: false, ..trtllm::Config::new(1000, LONG, 1 << 20) };
    [
        ("vLLM, asynchronous", vllm(true)),
        ("vLLM, synchronous", vllm(false)),
        ("SGLang, page 1", sglang(1)),
        ("SGLang, long pages", sglang(LONG)),
        ("TensorRT-LLM", RankConfig::Trtllm(trtllm)),
    ]
}

/// A rank in which all requests decode, after some hundred passes.
fn warm(config: &RankConfig, stepper: Stepper) -> Rank {
    let mut rank = Rank::new(config.clone(), stepper).unwrap();
    for id in 0..MEMBERS {
        let request = Request {
            id: RequestId(id),
            arrival: Nanos::ZERO,
            prompt_tokens: 30,
            content: Content::Private,
            output: OutputPlan::of_length(10_000),
            priority: None,
            tie: id,
            hand_off: HandOff::None,
        };
        rank.submit(request).unwrap();
    }
    let depth = config.depth();
    (0..depth - 1).for_each(|_| {
        rank.schedule();
    });
    let tokens = (0..300).map(|_| pass(&mut rank)).last();
    assert_eq!(tokens, Some(MEMBERS));
    rank
}

/// Schedules a pass and completes the oldest; tells the tokens of the former.
fn pass(rank: &mut Rank) -> u64 {
    let tokens = rank.schedule().tokens;
    rank.complete();
    rank.clear_events();
    tokens
}

#[test]
fn a_steady_pass_allocates_and_looks_up_nothing() {
    for (name, config) in engines() {
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let mut rank = warm(&config, stepper);
            let (mut tokens, mut lookups) = (0, 0);
            let counted = measure(|| {
                for _ in 0..1000 {
                    let scheduled = rank.schedule();
                    tokens += scheduled.tokens;
                    lookups += scheduled.lookups;
                    rank.complete();
                    rank.clear_events();
                }
            });
            assert_eq!((tokens, lookups), (1000 * MEMBERS, 0), "{name}, {stepper:?}");
            assert_eq!(counted.count_total, 0, "{name}, {stepper:?}");
        }
    }
}

#[test]
fn a_stretch_allocates_nothing() {
    for (name, config) in engines() {
        let mut rank = warm(&config, Stepper::Fast);
        let steady = rank.steady().unwrap_or_else(|| panic!("{name}: all decode steadily"));
        assert!(steady.passes > 1000, "{name}: {steady:?}");
        let counted = measure(|| {
            for _ in 0..100 {
                assert!(rank.steady().is_some());
                rank.advance_steady(10);
            }
        });
        assert_eq!(counted.count_total, 0, "{name}");
    }
}

/// Blocks that begin make a request's list longer, which is rare: 64 requests begin 1,000 blocks of 16 tokens in
/// 250 passes.
#[test]
fn growth_allocates_rarely() {
    for caching in [false, true] {
        let config = vllm::Config {
            prefix_caching: caching,
            async_scheduling: false,
            ..vllm::Config::new(100_000, 16, 1 << 20)
        };
        let mut rank = warm(&RankConfig::Vllm(config), Stepper::Fast);
        let before = rank.stats().used_blocks;
        let counted = measure(|| {
            let mut left = 250;
            while left > 0 {
                let Some(steady) = rank.steady() else { panic!("all decode steadily") };
                let passes = steady.passes.min(left);
                rank.advance_steady(passes);
                left -= passes;
            }
        });
        let begun = u64::from(rank.stats().used_blocks - before);
        assert!(begun >= 900, "{begun} blocks");
        assert!(counted.count_total <= 2 * MEMBERS, "{} allocations for {begun} blocks", counted.count_total);
    }
}
