//! The pieces that a run is made of, one by one: `cargo bench -p windtunnel-sim`. Whole runs are measured by
//! `benches/suite.py`.

use divan::{Bencher, black_box};
use std::num::NonZeroU32;
use windtunnel_config::Deployment;
use windtunnel_engine::{
    Chunk, Content, DecodeSet, HandOff, Nanos, OutputPlan, Rank, RankConfig, Request, RequestId, Shape,
    Stepper, sglang, trtllm, vllm,
};
use windtunnel_perf::{Law, Linear, Polynomial, Speedup, TimingModel};
use windtunnel_router::RoundRobin;

fn main() {
    divan::main();
}

/// Tokens of a trace's prefix id.
const ID_TOKENS: u32 = 512;
/// A prompt of 24 ids, as long as those of the Mooncake conversation trace are on average.
const PROMPT: u32 = 24 * ID_TOKENS;

fn request(id: u64, prompt_tokens: u32, outputs: u32, content: Content) -> Request {
    Request {
        id: RequestId(id),
        arrival: Nanos::ZERO,
        prompt_tokens,
        content,
        output: OutputPlan::of_length(outputs),
        priority: None,
        tie: id,
        hand_off: HandOff::None,
    }
}

/// Ids of a prompt of which the first `shared` are those of every other one.
fn prefixes(number: u64, shared: u64) -> Content {
    let ids = (0..u64::from(PROMPT / ID_TOKENS)).map(|i| if i < shared { i } else { 1000 + number * 24 + i });
    Content::Prefixes { ids: ids.collect(), id_tokens: ID_TOKENS }
}

const ENGINES: [&str; 3] = ["vllm", "sglang", "trtllm"];

fn config(engine: &str, blocks: u32) -> RankConfig {
    let length = 1 << 20;
    match engine {
        "vllm" => RankConfig::Vllm(vllm::Config {
            max_num_batched_tokens: 16_384,
            max_num_seqs: 256,
            async_scheduling: false,
            ..vllm::Config::new(blocks, 64, length)
        }),
        "sglang" => RankConfig::Sglang(sglang::Config {
            max_running_requests: 256,
            chunked_prefill_size: Some(16_384),
            overlap: false,
            ..sglang::Config::new(blocks * 64, 1, length)
        }),
        _ => RankConfig::Trtllm(trtllm::Config {
            max_num_tokens: 16_384,
            max_batch_size: 256,
            chunked_prefill: true,
            overlap: false,
            ..trtllm::Config::new(blocks, 64, length)
        }),
    }
}

/// A rank with `members` requests that decode.
fn decoding(engine: &str, stepper: Stepper, members: u64) -> Rank {
    let mut rank = Rank::new(config(engine, 1_000_000), stepper).expect("settings that the engine takes");
    for id in 0..members {
        rank.submit(request(id, 100, 100_000, Content::Private)).expect("a request that fits");
    }
    for _ in 0..200 {
        rank.schedule();
        rank.complete();
    }
    rank
}

/// One decode pass of 64 requests, scheduled and completed; as the engine does it, and as we do.
#[divan::bench(args = ENGINES)]
fn pass_plain(bencher: Bencher, engine: &str) {
    let mut rank = decoding(engine, Stepper::Plain, 64);
    bencher.bench_local(|| {
        rank.schedule();
        black_box(rank.complete().steady_tokens)
    });
}

#[divan::bench(args = ENGINES)]
fn pass_fast(bencher: Bencher, engine: &str) {
    let mut rank = decoding(engine, Stepper::Fast, 64);
    bencher.bench_local(|| {
        rank.schedule();
        black_box(rank.complete().steady_tokens)
    });
}

/// 64 steady passes of 64 requests at once, in which each begins a block.
#[divan::bench(args = ["vllm", "sglang"])]
fn stretch_of_64_passes(bencher: Bencher, engine: &str) {
    let mut rank = decoding(engine, Stepper::Fast, 64);
    bencher.bench_local(|| {
        if rank.steady().is_some_and(|steady| steady.passes >= 64) {
            rank.advance_steady(64);
        }
    });
}

/// A prompt of 12,288 tokens comes, is admitted, gives its token and ends. `shared` of its 24 ids are cached.
fn serve(bencher: Bencher, engine: &str, shared: u64, blocks: u32) {
    let mut rank = Rank::new(config(engine, blocks), Stepper::Fast).expect("settings that the engine takes");
    let mut number = 0;
    let mut one = |rank: &mut Rank| {
        rank.submit(request(number, PROMPT, 1, prefixes(number, shared))).expect("a request that fits");
        number += 1;
        while rank.unfinished() > 0 {
            rank.schedule();
            rank.complete();
        }
        rank.stats().evictions
    };
    // The pool is full of what came before.
    for _ in 0..2 * blocks / 192 {
        one(&mut rank);
    }
    bencher.bench_local(|| one(&mut rank));
}

/// Look-up and touch: all but the last two ids are found.
#[divan::bench(args = ENGINES)]
fn admission_of_a_cached_prompt(bencher: Bencher, engine: &str) {
    serve(bencher, engine, 22, 20_000);
}

/// Every block takes that of another one.
#[divan::bench(args = ENGINES)]
fn admission_with_eviction(bencher: Bencher, engine: &str) {
    serve(bencher, engine, 0, 2_000);
}

#[divan::bench]
fn router_pick(bencher: Bencher) {
    let mut router = RoundRobin::new();
    let workers = NonZeroU32::new(1000).expect("not zero");
    bencher.bench_local(|| black_box(router.next_of(workers)));
}

/// How long a decode pass takes.
#[divan::bench(args = ["polynomial", "linear"])]
fn timing(bencher: Bencher, law: &str) {
    let law = match law {
        "polynomial" => Law::Polynomial(Polynomial { capacity_tokens: 1_000_000 }),
        _ => Law::Linear(Linear { base_ms: 6.0, per_context_token_ms: 0.000_04, ..Linear::default() }),
    };
    let model = TimingModel::new(law, None, Speedup::NONE).expect("a law that is allowed");
    let mut decode = DecodeSet::default();
    (0..64).for_each(|i| decode.add(1000 + i));
    bencher.bench_local(|| {
        decode.grow();
        black_box(model.pass_duration(&Shape { prefill: &[], decode }))
    });
}

/// A deployment with calibrated timing.
fn calibrated(model: &str) -> Deployment {
    let text = format!(
        "engine: {{model: {model}, hardware: h200_sxm, backend: vllm, defaults: native, workers: {{aggregated: {{parallelism: \
         {{tensor: 8, moe_tensor: 8}}, kv_cache: {{capacity: {{type: fixed, blocks: 10000}}}}, timing: {{type: default}}}}}}}}\n\
         traffic: {{source: {{type: synthetic, input_tokens: 1, output_tokens: 1}}, load: {{type: concurrency}}, stop: \
         {{requests: 1}}}}\n"
    );
    windtunnel_config::from_str("bench", &text, &[]).expect("a deployment that is covered").deployment
}

/// How long it takes to find out how long a pass takes by measured operations: of decodes within what was measured, of
/// longer ones, and with a chunk of a prompt.
#[divan::bench(args = ["within", "beyond", "mixed"])]
fn calibrated_timing(bencher: Bencher, kind: &str) {
    let model = calibrated("meta-llama/Llama-3.1-70B").timing;
    let mut decode = DecodeSet::default();
    let context = if kind == "beyond" { 300_000 } else { 1000 };
    (0..64).for_each(|i| decode.add(context + i));
    let chunks = [Chunk { new_tokens: 1024, before: 512 }];
    let prefill = if kind == "mixed" { &chunks[..] } else { &[] };
    bencher.bench_local(|| {
        decode.grow();
        black_box(model.pass_duration(&Shape { prefill, decode }))
    });
}

/// From configuration to a deployment whose look-ups are folded, the packs unpacked on the way.
#[divan::bench(args = ["meta-llama/Llama-3.1-70B", "deepseek-ai/DeepSeek-V3"])]
fn calibrated_compile(bencher: Bencher, model: &str) {
    bencher.bench_local(|| black_box(calibrated(model)));
}
