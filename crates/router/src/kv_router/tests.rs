//! The cost of a request on a rank, by hand, and public bug reports about it (sources abbreviated: dynamo#N is
//! ai-dynamo/dynamo, blis#N inference-sim/inference-sim).
//!
//! | case | test |
//! |---|---|
//! | K10 | `holders`: the_index_is_a_count_of_copies (different blocks never share an entry) |
//! | R1 | r1_a_prompt_without_a_whole_block_is_no_reason_to_return |
//! | R2 | r2_equals_are_drawn_evenly_and_repeatably |
//! | R3 | r3_only_what_is_not_cached_has_to_be_computed |
//! | R4 | r4_a_prompt_counts_until_its_first_token_and_a_request_until_its_end |
//! | R5 | r5_a_hand_off_leaves_no_prompt_behind |
//! | R6 | r4_a_prompt_counts_until_its_first_token_and_a_request_until_its_end (nothing else ends it) |
//! | R7 | r7_a_long_request_stays_in_the_books |
//! | R8 | r8_a_burst_drains_and_leaves_nothing_behind |
//! | R9 | r9_independent_requests_are_spread |
//! | R10 | r10_an_amplified_credit_has_no_floor |
//! | R11 | r11_a_request_is_forgotten_once |

use super::*;
use crate::draw::Draw;
use crate::queue::QueuePolicy;
use crate::testing::{fleet, incoming, request, sent};
use windtunnel_engine::vllm::{Config, Rank};
use windtunnel_engine::{Content, KvEventScope, KvEvents, Stepper, Tier};

const BLOCK: u32 = 64;

fn router(settings: KvRouterSettings, workers: u32) -> KvRouter {
    KvRouter::new(settings, fleet(workers, 1), None)
}

fn seeded(seed: u64) -> KvRouterSettings {
    KvRouterSettings { seed, ..KvRouterSettings::default() }
}

/// A prompt of trace ids that stand for 64 tokens each, whose last one has `tokens` in all.
fn of_ids(id: u64, ids: &[u64], tokens: u32) -> Request {
    request(id, tokens, Content::Prefixes { ids: ids.into(), id_tokens: BLOCK })
}

fn unlike(id: u64, blocks: u32) -> Request {
    request(id, blocks * BLOCK, Content::Private)
}

/// Lets a real rank compute a prompt, and tells the router what it then holds.
fn cache(router: &mut KvRouter, rank: u32, ids: &[u64]) {
    let config = Config::new(1000, BLOCK, 100_000);
    let config = Config { kv_events: KvEventScope::Shared { timed: false }, ..config };
    let mut engine = Rank::new(Config { async_scheduling: false, ..config }, Stepper::Fast).unwrap();
    engine.submit(of_ids(u64::MAX, ids, ids.len() as u32 * BLOCK)).unwrap();
    while engine.has_work() {
        engine.schedule();
        engine.complete();
    }
    router.tell(rank, Nanos::ZERO, News::Cache(engine.events()));
}

fn route(router: &mut KvRouter, request: &Request) -> Choice {
    sent(router, &incoming(request, Nanos::ZERO), &mut crate::testing::fleet(1, 1).workers.clone())
}

/// The workers that take a request over many seeds, where `load` is what was before.
fn workers_over_seeds(workers: u32, load: impl Fn(&mut KvRouter), asked: &Request) -> Vec<u32> {
    let mut all: Vec<u32> = (0..40)
        .map(|seed| {
            let mut router = router(seeded(seed), workers);
            load(&mut router);
            route(&mut router, asked).worker
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// dynamo#3581. 36 tokens are no whole block, so nothing of them can be found again: 36/64 = 0.5625 blocks to
/// compute on either worker, and one of them is drawn.
#[test]
fn r1_a_prompt_without_a_whole_block_is_no_reason_to_return() {
    let short = of_ids(1, &[7], 36);
    let before = |router: &mut KvRouter| cache(router, 0, &[7]);
    assert_eq!(workers_over_seeds(2, before, &short), [0, 1]);
    let mut router = router(seeded(1), 2);
    before(&mut router);
    read_prompt(&short, BLOCK, &mut router.prompt);
    router.index.overlaps(&router.prompt.keys, &mut router.overlaps);
    router.tracker.look_up(&router.prompt);
    assert_eq!([0, 1].map(|rank| router.cost(rank, 0, Nanos::ZERO, |_, credit| credit)), [0.5625; 2]);
    // A whole block is one.
    assert_eq!(workers_over_seeds(2, before, &of_ids(1, &[7], 64)), [0]);
}

/// dynamo#6253, blis#565. 8000 requests to eight idle workers: a thousand each, give or take five standard
/// deviations, 5 · √(8000 · 1/8 · 7/8) = 148; and the same seed draws the same.
#[test]
fn r2_equals_are_drawn_evenly_and_repeatably() {
    let picks = |seed| {
        let mut router = router(seeded(seed), 8);
        let pick = |id| {
            let worker = route(&mut router, &unlike(id, 3)).worker;
            router.tell(worker, Nanos::ZERO, News::Ended(RequestId(id)));
            worker
        };
        (0..8000).map(pick).collect::<Vec<u32>>()
    };
    let drawn = picks(42);
    for worker in 0..8 {
        let count = drawn.iter().filter(|&&pick| pick == worker).count();
        assert!(count.abs_diff(1000) < 148, "worker {worker} {count} times");
    }
    assert!(drawn == picks(42) && drawn != picks(43));
}

/// dynamo#3694. Of 12 blocks 10 are cached: 2 have to be computed, 12 are in use, 14 in all. Another worker with
/// 7 blocks of its own has 7 + 7. With 6 it is the cheaper one, with 8 the dearer.
#[test]
fn r3_only_what_is_not_cached_has_to_be_computed() {
    let ids: Vec<u64> = (0..12).collect();
    for (blocks, expected) in [(6, vec![1]), (7, vec![0, 1]), (8, vec![0])] {
        let before = |router: &mut KvRouter| {
            cache(router, 0, &ids[..10]);
            let choice = route(router, &of_ids(1, &ids, 12 * BLOCK));
            let record = RoutingRecord { overlap_tokens: 640, best_overlap_tokens: 640, below: None };
            assert_eq!((choice.worker, choice.record), (0, Some(record)));
            assert_eq!(router.tracker.prefill_tokens(0, Nanos::ZERO), 128);
            assert_eq!(route(router, &unlike(2, blocks)).worker, 1);
        };
        assert_eq!(workers_over_seeds(2, before, &unlike(3, 1)), expected, "{blocks} blocks");
    }
}

/// dynamo#1895, dynamo#13042. 1000 tokens are 1000 to compute, 15 whole blocks in use and a request. The first
/// token ends the first, the end of the request the rest; nothing else does.
#[test]
fn r4_a_prompt_counts_until_its_first_token_and_a_request_until_its_end() {
    let mut router = router(seeded(1), 1);
    let books = |router: &KvRouter, now: u64| {
        let tracker = &router.tracker;
        (tracker.prefill_tokens(0, Nanos(now)), tracker.blocks(0), tracker.requests(0))
    };
    route(&mut router, &request(5, 1000, Content::Private));
    assert_eq!(books(&router, 0), (1000, 15, 1));
    router.tell(0, Nanos(10), News::FirstToken(RequestId(5)));
    assert_eq!(books(&router, 10), (0, 15, 1));
    router.tell(0, Nanos(20), News::Ended(RequestId(5)));
    assert_eq!(books(&router, 20), (0, 0, 0));
}

/// dynamo#7643, dynamo#14970. After a hand-off the decode worker was still charged the prompt that another one had
/// computed: it has 0 tokens to compute, the blocks of the prompt in use, and a request. The prefill worker has the
/// prompt to compute, which ends with the first token, and no blocks in use for outputs that it does not give.
#[test]
fn r5_a_hand_off_leaves_no_prompt_behind() {
    let of = |serves| {
        let mut router = router(KvRouterSettings { serves, ..seeded(1) }, 1);
        route(&mut router, &unlike(5, 15));
        let books = |router: &KvRouter| {
            let tracker = &router.tracker;
            (tracker.prefill_tokens(0, Nanos(10)), tracker.blocks(0), tracker.requests(0))
        };
        let before = books(&router);
        router.tell(0, Nanos(10), News::FirstToken(RequestId(5)));
        [before, books(&router)]
    };
    assert_eq!(of(Serves::Outputs), [(0, 15, 1), (0, 15, 1)]);
    assert_eq!(of(Serves::Prompts), [(960, 0, 1), (0, 0, 1)]);
}

/// dynamo#13310: after five minutes a request's blocks were dropped.
#[test]
fn r7_a_long_request_stays_in_the_books() {
    let hour = Nanos(3_600_000_000_000);
    let mut router = router(seeded(1), 2);
    let first = route(&mut router, &unlike(1, 100)).worker;
    let later = unlike(2, 1);
    assert_eq!(
        sent(&mut router, &incoming(&later, hour), &mut fleet(1, 1).workers.clone()).worker,
        1 - first
    );
    assert_eq!(router.tracker.prefill_tokens(first, hour), 6400);
}

fn with_queue(threshold: f64, policy: QueuePolicy) -> KvRouterSettings {
    let queue = QueueSettings { threshold, max_batched_tokens: 640, policy };
    KvRouterSettings { queue: Some(queue), ..seeded(3) }
}

/// dynamo#14210: after a burst a router refused everything for good. Here 128 requests of 10 blocks come at once to
/// two workers that are busy with more than one of them. Each that computes its prompt lets the next one go, and
/// afterwards nobody is held back.
#[test]
fn r8_a_burst_drains_and_leaves_nothing_behind() {
    let mut router = router(with_queue(0.5, QueuePolicy::Fcfs), 2);
    let mut running = std::collections::VecDeque::new();
    for id in 0..128 {
        match router.route(&incoming(&unlike(id, 10), Nanos(id)), &mut fleet(2, 1).workers.clone()) {
            Verdict::To(choice) => running.push_back((choice.worker, RequestId(id))),
            Verdict::Held => assert!(id >= 2, "the first two find idle workers"),
        }
    }
    assert_eq!(running.len(), 2);
    let mut order = vec![];
    let mut now = 1000;
    while let Some((worker, id)) = running.pop_front() {
        order.push(id.0);
        now += 1;
        router.tell(worker, Nanos(now), News::FirstToken(id));
        router.tell(worker, Nanos(now), News::Ended(id));
        while let Some((id, choice)) = router.release(Nanos(now)) {
            running.push_back((choice.worker, id));
        }
        assert!(running.len() <= 2);
    }
    assert_eq!(order, (0..128).collect::<Vec<_>>());
    assert!(!router.is_holding() && router.tracker.requests(0) + router.tracker.requests(1) == 0);
    assert!(matches!(
        router.route(&incoming(&unlike(999, 10), Nanos(now)), &mut fleet(2, 1).workers.clone()),
        Verdict::To(_)
    ));
}

/// A request is held back while another one waits, though a worker has become idle in between: nobody is passed.
/// And the shortest goes first where that is the rule; 4 of the 10 blocks of the third are cached.
#[test]
fn who_is_held_back_goes_by_the_queues_rule() {
    for (policy, expected) in [
        (QueuePolicy::Fcfs, [1, 2, 3, 4]),
        (QueuePolicy::Lcfs, [4, 3, 2, 1]),
        (QueuePolicy::Wspt, [4, 3, 1, 2]),
    ] {
        let mut router = router(with_queue(0.0, policy), 1);
        cache(&mut router, 0, &[0, 1, 2, 3]);
        assert_eq!(route(&mut router, &unlike(0, 1)).worker, 0);
        let ids: Vec<u64> = (0..10).collect();
        let asked = [unlike(1, 7), unlike(2, 8), of_ids(3, &ids, 640), unlike(4, 5)];
        for (at, asked) in asked.iter().enumerate() {
            let now = Nanos(1_000_000_000 * (1 + at as u64));
            let verdict = router.route(&incoming(asked, now), &mut fleet(1, 1).workers.clone());
            assert_eq!(verdict, Verdict::Held);
        }
        let now = Nanos(9_000_000_000);
        let mut order = vec![];
        let mut ended = RequestId(0);
        for _ in 0..4 {
            assert_eq!(router.release(now), None, "the worker is busy");
            router.tell(0, now, News::FirstToken(ended));
            let (id, choice) = router.release(now).unwrap();
            if id.0 == 3 {
                assert_eq!(choice.record.unwrap().overlap_tokens, 256, "what was cached when it came");
            }
            order.push(id.0);
            ended = id;
        }
        assert_eq!(order, expected, "{policy:?}");
    }
}

/// dynamo#7836: of five workers two got nothing. 400 unlike requests, none of which ends: 80 each, to a few.
#[test]
fn r9_independent_requests_are_spread() {
    let mut router = router(seeded(9), 5);
    let mut lengths = Draw::new(1);
    let mut counts = [0u32; 5];
    for id in 0..400 {
        let asked = request(id, 256 + lengths.below(256), Content::Private);
        counts[route(&mut router, &asked).worker as usize] += 1;
    }
    assert!(counts.iter().all(|&count| count.abs_diff(80) <= 4), "{counts:?}");
}

/// dynamo#11714. 10 blocks of prompt, all cached, a credit of 1.5, and 3 blocks in use (10 less the 7 that an
/// active request shares, of the 0 that it has alone): 10 − 15 + 3 = −2. With a floor at zero, as
/// dynamo-kv-router 1.6.1 has it, 3.
#[test]
fn r10_an_amplified_credit_has_no_floor() {
    for (floor, expected) in [(Floor::None, -5.0), (Floor::Zero, 0.0)] {
        let settings = KvRouterSettings { overlap_score_credit: 1.5, floor, ..seeded(1) };
        let mut router = router(settings, 1);
        let ids: Vec<u64> = (0..10).collect();
        cache(&mut router, 0, &ids);
        read_prompt(&of_ids(1, &ids, 640), BLOCK, &mut router.prompt);
        router.index.overlaps(&router.prompt.keys, &mut router.overlaps);
        router.tracker.look_up(&router.prompt);
        // The ten blocks in use come to the ones to compute.
        assert_eq!(router.cost(0, 0, Nanos::ZERO, |_, credit| credit), expected + 10.0);
    }
}

/// With a credit of at most 1 no floor is ever reached: what is cached is part of the prompt.
#[test]
fn a_credit_of_one_needs_no_floor() {
    let mut draw = Draw::new(5);
    for _ in 0..200 {
        let ids: Vec<u64> = (0..u64::from(1 + draw.below(12))).collect();
        let cached = draw.below(ids.len() as u32) as usize + 1;
        let of = |floor| {
            let mut router = router(KvRouterSettings { floor, ..seeded(1) }, 1);
            cache(&mut router, 0, &ids[..cached]);
            read_prompt(&of_ids(1, &ids, ids.len() as u32 * BLOCK - 3), BLOCK, &mut router.prompt);
            router.index.overlaps(&router.prompt.keys, &mut router.overlaps);
            router.tracker.look_up(&router.prompt);
            router.cost(0, 0, Nanos::ZERO, |_, credit| credit)
        };
        assert_eq!(of(Floor::None), of(Floor::Zero));
    }
}

/// dynamo#5095. An end that comes twice, or of a request that was never sent, changes nothing.
#[test]
fn r11_a_request_is_forgotten_once() {
    let mut router = router(seeded(1), 1);
    route(&mut router, &unlike(1, 2));
    route(&mut router, &unlike(2, 3));
    for _ in 0..2 {
        router.tell(0, Nanos(1), News::Ended(RequestId(1)));
        router.tell(0, Nanos(1), News::FirstToken(RequestId(1)));
        router.tell(0, Nanos(1), News::Ended(RequestId(77)));
    }
    assert_eq!((router.tracker.blocks(0), router.tracker.requests(0)), (3, 1));
    assert_eq!(router.tracker.prefill_tokens(0, Nanos(1)), 192);
}

/// Blocks that requests share count once: two prompts of 4 blocks with 3 in common have 5 in use, and the third one
/// would add 1.
#[test]
fn shared_blocks_are_in_use_once() {
    let mut router = router(seeded(1), 1);
    route(&mut router, &of_ids(1, &[0, 1, 2, 3], 256));
    route(&mut router, &of_ids(2, &[0, 1, 2, 9], 256));
    assert_eq!(router.tracker.blocks(0), 5);
    read_prompt(&of_ids(3, &[0, 1, 2, 9, 10], 320), BLOCK, &mut router.prompt);
    router.tracker.look_up(&router.prompt);
    assert_eq!(router.tracker.blocks_with(0, 5), 6);
    router.tell(0, Nanos(1), News::Ended(RequestId(1)));
    assert_eq!(router.tracker.blocks(0), 4);
    router.tell(0, Nanos(1), News::Ended(RequestId(2)));
    assert_eq!(router.tracker.blocks(0), 0);
}

/// Worker 0 has the 4 blocks of the prompt, and computes 8 for somebody else, whose 8 are in use, too: 8 + 8 + 4
/// there against 4 + 4 elsewhere. A credit without decay makes it 16 + 4 − 4 + 4 against 8, with a credit of 5
/// it is 16 + 4 − 20 + 4 = 4. A decay of 1 halves that by (8 blocks beyond the least) / (4 of the request) = 2 to a
/// third: 16 + 4 − 20/3 + 4 = 17.3.
#[test]
fn the_credit_decays_with_the_load() {
    for (decay, expected) in [(0.0, 0), (1.0, 1)] {
        let settings =
            KvRouterSettings { overlap_score_credit: 5.0, overlap_score_credit_decay: decay, ..seeded(1) };
        let mut router = router(settings, 2);
        cache(&mut router, 0, &[0, 1, 2, 3]);
        let ids: Vec<u64> = (0..12).collect();
        // Its own prefix leads it to worker 0.
        assert_eq!(route(&mut router, &of_ids(1, &ids, 768)).worker, 0);
        assert_eq!(route(&mut router, &of_ids(2, &[0, 1, 2, 3], 256)).worker, expected, "decay {decay}");
    }
}

/// A request that runs weighs as much as the setting says, beside its blocks.
#[test]
fn each_request_weighs() {
    for (weight, expected) in [(0.0, 1), (10.0, 0)] {
        let settings = KvRouterSettings { decode_active_request_weight: weight, ..seeded(1) };
        let mut router = router(settings, 2);
        let first = route(&mut router, &unlike(1, 20)).worker;
        let other = (1 - first, [2, 3, 4].map(|id| route(&mut router, &unlike(id, 5)).worker));
        assert_eq!(other.1, [other.0; 3]);
        // 20 + 20 in one request against 15 + 15 in three.
        let next = route(&mut router, &unlike(5, 1)).worker;
        assert_eq!(next == first, expected == 0, "weight {weight}");
    }
}

/// Costs of 1, 2 and 3: at a temperature of 1 the weights are e^0, e^-0.5 and e^-1.
#[test]
fn a_temperature_draws_by_costs() {
    let costs = [(4, 1.0), (5, 2.0), (6, 3.0)];
    let weights = [1.0, 0.606_530_66, 0.367_879_44];
    let sum: f64 = weights.iter().sum();
    let ends = [weights[0] / sum, (weights[0] + weights[1]) / sum];
    for (drawn, expected) in [
        (0.0, 0),
        (ends[0] - 1e-6, 0),
        (ends[0] + 1e-6, 1),
        (ends[1] - 1e-6, 1),
        (ends[1] + 1e-6, 2),
        (0.999_999, 2),
    ] {
        assert_eq!(sample(&costs, 1.0, drawn), expected, "{drawn}");
    }
    // Equals are as likely, and a high temperature forgets the costs.
    assert_eq!([0.1, 0.4, 0.8].map(|drawn| sample(&[(0, 7.0), (1, 7.0), (2, 7.0)], 0.5, drawn)), [0, 1, 2]);
    assert_eq!([0.3, 0.34, 0.67].map(|drawn| sample(&costs, 1e9, drawn)), [0, 1, 2]);
}

/// 640 tokens that are expected to take 10 ms: half of them are left after 5, none after 10. When another one ends
/// first, the time since then was its own.
#[test]
fn prefills_count_less_as_time_passes() {
    let settings = KvRouterSettings { expects_prefill_times: true, ..seeded(1) };
    let time: PrefillTime = Arc::new(|new, before| Nanos(u64::from(new) * 15_625 + u64::from(before)));
    let mut router = KvRouter::new(settings, fleet(1, 1), Some(time));
    let left = |router: &KvRouter, ms: u64| router.tracker.prefill_tokens(0, Nanos(ms * 1_000_000));
    route(&mut router, &unlike(1, 10));
    assert_eq!([0, 5, 9, 10, 20].map(|ms| left(&router, ms)), [640, 320, 64, 0, 0]);
    route(&mut router, &unlike(2, 10));
    assert_eq!([0, 5, 10, 15, 25].map(|ms| left(&router, ms)), [1280, 960, 640, 320, 0]);
    // The second one is done at 12: its ten milliseconds do not count for the first, which has had two.
    router.tell(0, Nanos(12_000_000), News::FirstToken(RequestId(2)));
    assert_eq!([12, 15, 20].map(|ms| left(&router, ms)), [512, 320, 0]);
    // The oldest one ends: from then on the next one is computed.
    route(&mut router, &unlike(3, 10));
    router.tell(0, Nanos(14_000_000), News::FirstToken(RequestId(1)));
    assert_eq!([14, 19].map(|ms| left(&router, ms)), [640, 320]);
}

/// A request that names its rank is compared on that rank of each worker only.
#[test]
fn a_named_rank_is_kept() {
    let mut router = KvRouter::new(seeded(1), fleet(3, 2), None);
    cache(&mut router, 2, &[0, 1, 2]);
    let asked = of_ids(1, &[0, 1, 2], 192);
    let named = |rank| Incoming { dp_rank: Some(rank), ..incoming(&asked, Nanos::ZERO) };
    let mut workers = fleet(3, 2).workers;
    let choice = sent(&mut router, &named(1), &mut workers);
    assert_eq!((choice.rank, choice.record.unwrap().overlap_tokens), (Some(1), 0));
    let choice = sent(&mut router, &named(0), &mut workers);
    assert_eq!((choice.worker, choice.rank, choice.record.unwrap().overlap_tokens), (1, Some(0), 192));
}

/// What a rank with lower tiers tells: blocks of trace ids from `ids` on enter a tier, or leave it.
fn tell_tier(router: &mut KvRouter, rank: u32, tier: Tier, ids: std::ops::Range<usize>, stored: bool) {
    let prompt = of_ids(9, &(0..12).collect::<Vec<u64>>(), 768);
    let mut keys = vec![];
    shared_prompt_keys(&prompt, BLOCK, |run| {
        keys.extend((0..run.count).map(|at| run.key(at)));
        true
    });
    let events = KvEvents::of_tier(tier, RequestId(9), &keys[ids], stored);
    router.tell(rank, Nanos::ZERO, News::Cache(&events));
}

/// dynamo-kv-router 1.6.1 (selector/reference.rs, overlap.rs). A prompt of 12 blocks, of which worker 0 has 4 on the
/// accelerator, those and the next 4 on its host, and 2 more on its disk: 4 + 0.75 · 4 + 0.25 · 2 = 7.5 blocks, which is
/// 480 tokens; 288 are to be computed. What its host has of the first 4 counts once, and what its disk has behind a gap
/// not at all. Worker 1 with 8 blocks on the accelerator costs 12 − 8 against 12 − 7.5; with 7 it is dearer.
#[test]
fn blocks_in_lower_tiers_are_credited_behind_those_before() {
    let tiers = Some(TierCredits::default());
    let ids: Vec<u64> = (0..12).collect();
    for (blocks, expected) in [(7, 0), (8, 1)] {
        let mut router = router(KvRouterSettings { tiers, ..seeded(1) }, 2);
        cache(&mut router, 0, &ids[..4]);
        cache(&mut router, 1, &ids[..blocks]);
        tell_tier(&mut router, 0, Tier::Host, 0..8, true);
        tell_tier(&mut router, 0, Tier::Disk, 6..10, true);
        tell_tier(&mut router, 0, Tier::Disk, 11..12, true);
        let choice = route(&mut router, &of_ids(1, &ids, 768));
        assert_eq!(choice.worker, expected);
        let record = choice.record.unwrap();
        assert_eq!(record.best_overlap_tokens, (blocks as u32 * BLOCK).max(480));
        let (overlap, below) = match expected {
            0 => (480, BelowTokens { host: 256, disk: 128 }),
            _ => (512, BelowTokens::default()),
        };
        assert_eq!((record.overlap_tokens, record.below), (overlap, Some(below)));
        assert_eq!(router.tracker.prefill_tokens(expected, Nanos::ZERO), u64::from(768 - overlap));
        // What has left a tier is no part of it.
        tell_tier(&mut router, 0, Tier::Host, 4..5, false);
        read_prompt(&of_ids(2, &ids, 768), BLOCK, &mut router.prompt);
        router.look_up();
        assert_eq!(router.cached(0), 256);
    }
}

/// Without credits for them, copies in other tiers are nothing to a router; and those of a worker that left are gone.
#[test]
fn lower_tiers_count_where_they_are_credited() {
    let ids: Vec<u64> = (0..12).collect();
    for (tiers, cached) in [(None, 0), (Some(TierCredits { host: 1.0, disk: 1.0 }), 768)] {
        let mut router = router(KvRouterSettings { tiers, ..seeded(1) }, 2);
        tell_tier(&mut router, 1, Tier::Host, 0..6, true);
        tell_tier(&mut router, 1, Tier::Disk, 0..12, true);
        read_prompt(&of_ids(2, &ids, 768), BLOCK, &mut router.prompt);
        router.look_up();
        assert_eq!((router.cached(1), router.best_cached()), (cached, cached));
        router.left(1);
        router.joined(1);
        router.joined(2);
        router.look_up();
        assert_eq!((router.cached(1), router.cached(2), router.best_cached()), (0, 0, 0));
    }
}

/// Who is held back keeps what the tiers had when it came: 6 blocks on the host are 6 · 0.75 · 64 = 288 tokens.
#[test]
fn who_is_held_back_keeps_what_lower_tiers_had() {
    let tiers = Some(TierCredits::default());
    let mut router = router(KvRouterSettings { tiers, ..with_queue(0.0, QueuePolicy::Fcfs) }, 1);
    tell_tier(&mut router, 0, Tier::Host, 0..6, true);
    route(&mut router, &unlike(0, 1));
    let ids: Vec<u64> = (0..12).collect();
    let asked = of_ids(1, &ids, 768);
    assert_eq!(router.route(&incoming(&asked, Nanos(5)), &mut fleet(1, 1).workers.clone()), Verdict::Held);
    tell_tier(&mut router, 0, Tier::Host, 0..6, false);
    router.tell(0, Nanos(9), News::FirstToken(RequestId(0)));
    let (_, choice) = router.release(Nanos(9)).unwrap();
    let record = choice.record.unwrap();
    assert_eq!((record.overlap_tokens, record.below), (288, Some(BelowTokens { host: 384, disk: 0 })));
}
