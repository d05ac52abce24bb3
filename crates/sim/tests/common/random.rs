//! Random deployments and workloads, small enough to run thousands and crowded enough to queue, preempt,
//! evict, refuse and be cut off. A case is the text of a configuration and of a trace.

use super::{Asked, Trial, lines, mooncake};
use proptest::prelude::*;
use windtunnel_config::Placement;
use windtunnel_engine::Nanos;

/// A deployment and a workload, as text.
#[derive(Clone, Debug)]
pub struct Case {
    pub config: String,
    pub trace: String,
    pub telemetry_us: u64,
    pub ranks: u32,
    pub barrier: bool,
    pub placement: Placement,
    pub threads: u32,
}

impl Case {
    pub fn load(&self) -> Trial {
        let trial = Trial::load(&self.config, &[], &self.trace);
        let mut trial = trial.unwrap_or_else(|error| panic!("{error}\n{}", self.config));
        trial.telemetry_interval = Nanos(self.telemetry_us * 1000);
        trial.with_ranks(self.ranks, self.barrier, self.placement)
    }
}

/// Any case.
pub fn case() -> impl Strategy<Value = Case> {
    // Telemetry every 1 to 200 ms: with pass times of 0 nothing may depend on it.
    // vLLM's balancer places only vLLM's requests; ranks of the others take turns.
    let engine = prop_oneof![
        3 => vllm().prop_map(|text| (true, text)),
        2 => sglang().prop_map(|text| (false, text)),
        2 => trtllm().prop_map(|text| (false, text)),
    ];
    let group = (group(), 1u32..5, router());
    (engine, traffic(), 1_000u64..200_000, prop::option::of(1u32..60), group).prop_map(
        |(
            (balances, engine),
            (traffic, trace),
            telemetry_us,
            ttft_ms,
            ((ranks, barrier, placement), threads, router),
        )| {
            let placement = if balances { placement } else { Placement::RoundRobin };
            let sla = ttft_ms.map_or("{}".into(), |ms| format!("{{sla: {{ttft_ms: {ms}, itl_ms: 20}}}}"));
            // All is to be watched, and an event log tells the engine's own blocks.
            let page = engine.split("block_size: ").nth(1).and_then(|rest| rest.split([',', '}']).next());
            let router = router.replace("PAGE", page.unwrap_or("64"));
            let config =
                format!("traffic: {traffic}\nengine: {engine}\nrouter: {router}\nevaluation: {sla}\n");
            Case { config, trace, telemetry_us, ranks, barrier, placement, threads }
        },
    )
}

/// Ranks of a worker, whether they wait for each other, and who picks one.
fn group() -> impl Strategy<Value = (u32, bool, Placement)> {
    let placement = prop::sample::select(vec![Placement::RoundRobin, Placement::VllmBalancer]);
    (prop_oneof![2 => Just(1u32), 3 => 2u32..5], any::<bool>(), placement)
}

/// Who picks a worker.
fn router() -> impl Strategy<Value = String> {
    let policy = prop::sample::select(vec!["random", "least_requests", "least_kv", "power_of_two"]);
    let others = prop::sample::select(vec![
        "{policy: prefix_hash, block_size: PAGE, prefix_blocks: 1}",
        "{policy: prefix_hash, block_size: PAGE, prefix_blocks: 2, load_factor: 0}",
        "{policy: session, seed: 1}",
        "{policy: cache_aware, block_size: PAGE, balance_abs_threshold: 1, max_tree_tokens: 200}",
        "{policy: cache_aware, block_size: PAGE, cache_threshold: 0.1, seed: 3}",
        "{policy: scorers, block_size: PAGE}",
        "{policy: scorers, block_size: PAGE, kv_event_lag_ms: 4.5, scorers: [{type: prefix_cache, weight: 1}, \
         {type: active_requests, weight: 0.5}, {type: session, weight: 1}]}",
    ]);
    prop_oneof![
        2 => Just("{policy: round_robin}".to_owned()),
        2 => others.prop_map(str::to_owned),
        3 => kv_router(),
        3 => (policy, 0u64..3).prop_map(|(policy, seed)| format!("{{policy: {policy}, seed: {seed}}}")),
    ]
}

/// Who picks a rank by what is cached there. `PAGE` stands for the engine's block.
fn kv_router() -> impl Strategy<Value = String> {
    let cost = (0.0f64..2.0, prop_oneof![Just(0.0), 0.1f64..3.0], 0.0f64..2.0, 0.0f64..2.0);
    let draw = (
        0u64..3,
        prop_oneof![2 => Just(0.0), 1 => 0.1f64..2.0],
        prop::sample::select(vec!["none", "timing"]),
    );
    let queue = prop::option::of((
        prop_oneof![1 => Just(0.0), 2 => 0.0f64..1.5],
        prop::sample::select(vec!["fcfs", "lcfs", "wspt"]),
    ));
    let lag = prop_oneof![2 => Just(0.0), 1 => 0.1f64..60.0];
    (cost, draw, queue, lag).prop_map(|((credit, decay, scale, weight), (seed, temperature, model), queue, lag)| {
        let queue = queue
            .map_or(String::new(), |(threshold, policy)| format!("queue_threshold: {threshold:?}, queue_policy: {policy}, "));
        format!(
            "{{policy: kv_router, block_size: PAGE, overlap_score_credit: {credit:?}, overlap_score_credit_decay: \
             {decay:?}, prefill_load_scale: {scale:?}, decode_active_request_weight: {weight:?}, temperature: \
             {temperature:?}, prefill_load_model: {{type: {model}}}, {queue}kv_event_lag_ms: {lag:?}, seed: {seed}}}"
        )
    })
}

fn word(yes: &'static str, no: &'static str) -> impl Strategy<Value = &'static str> {
    prop::bool::weighted(0.3).prop_map(move |b| if b { yes } else { no })
}

fn sglang() -> impl Strategy<Value = String> {
    let pool = (
        prop::sample::select(vec![1u32, 4, 16, 64]),
        prop_oneof![4 => 40u32..160, 1 => 160u32..400, 1 => Just(20_000u32)],
        prop::bool::weighted(0.8),
        prop_oneof![2 => Just("max".to_owned()), 1 => (8u32..120).prop_map(|n| n.to_string())],
    );
    let semantics =
        prop::sample::select(vec![("native", "null"), ("native", "false"), ("aisimulate_0_13", "null")]);
    let budgets = (prop::option::weighted(0.8, 1u32..60), 8u32..200, any::<bool>(), 1u32..12);
    let reserve = (
        prop_oneof![1 => Just(1.0), 1 => Just(0.0), 2 => 0.0f64..0.2, 1 => 0.0f64..1.5],
        prop_oneof![Just(4096u32), 1u32..12],
        word("true", "false"),
        prop_oneof![3 => Just(0u32), 1 => 1u32..4],
    );
    let order = prop_oneof![
        2 => prop::sample::select(vec!["fcfs", "lpm", "dfs-weight", "lof"])
            .prop_map(|policy| format!("schedule_policy: {policy}")),
        1 => (prop::sample::select(vec!["fcfs", "lof"]), any::<bool>(), prop::sample::select(vec!["0", "1", "off"]))
            .prop_map(|(policy, low_first, threshold)| format!(
                "schedule_policy: {policy}, policy: priority, schedule_low_priority_values_first: {low_first}, \
                 priority_preemption_threshold: {threshold}"
            )),
    ];
    (pool, semantics, budgets, reserve, order, (timing(), 1u32..6)).prop_map(
        |(pool, (semantics, overlap), budgets, reserve, order, (timing, replicas))| {
            let (page, tokens, caching, context) = pool;
            let (chunk, prefill, mixed, seats) = budgets;
            let (conservativeness, clip, ignore_eos, interval) = reserve;
            let chunk = if semantics == "native" { chunk } else { Some(chunk.unwrap_or(8192)) };
            // Decodes that ride along must leave something of the chunk.
            let at_least = if mixed { seats.next_multiple_of(page) + page } else { page };
            let chunk = chunk.map(|size| size.next_multiple_of(page).max(at_least));
            let mixed = mixed && chunk.is_some();
            let chunk = chunk.map_or("off".into(), |size| size.to_string());
            let blocks = tokens.div_ceil(page).max(4);
            format!(
                "{{model: m, hardware: h, backend: sglang, semantics: {semantics}, context_length: {context}, workers: \
                 {{aggregated: {{parallelism: {{replicas: {replicas}}}, scheduler: {{max_sequences: {seats}, overlap: \
                 {overlap}, chunked_prefill_size: {chunk}, max_prefill_tokens: {prefill}, mixed_chunk: {mixed}, \
                 schedule_conservativeness: {conservativeness:?}, clip_max_new_tokens: {clip}, ignore_eos: \
                 {ignore_eos}, prefill_decode_interval: {interval}, {order}}}, kv_cache: {{block_size: {page}, \
                 prefix_caching: {caching}, capacity: {{type: fixed, blocks: {blocks}}}}}, timing: {timing}}}}}}}"
            )
        },
    )
}

fn trtllm() -> impl Strategy<Value = String> {
    let pool = (
        prop::sample::select(vec![2u32, 4, 16]),
        prop_oneof![4 => 6u32..40, 1 => Just(2000u32)],
        any::<bool>(),
        prop_oneof![2 => Just("max".to_owned()), 1 => (8u32..120).prop_map(|n| n.to_string())],
    );
    // AISimulate knows neither the overlap scheduler nor MAX_UTILIZATION.
    let semantics = prop::sample::select(vec![
        ("native", "null", "guaranteed_no_evict"),
        ("native", "false", "guaranteed_no_evict"),
        ("native", "null", "max_utilization"),
        ("native", "false", "max_utilization"),
        ("aisimulate_0_13", "null", "guaranteed_no_evict"),
    ]);
    let schedule = (semantics, 1u32..16, 8u32..80, prop::bool::weighted(0.7));
    (pool, schedule, timing(), 1u32..6).prop_map(|(pool, schedule, timing, replicas)| {
        let (block_size, blocks, caching, context) = pool;
        let ((semantics, overlap, policy), seats, tokens, chunked) = schedule;
        // A paused request may be longer than its prompt was, and must fit in a pass again.
        let chunked = chunked || policy == "max_utilization";
        format!(
            "{{model: m, hardware: h, backend: trtllm, semantics: {semantics}, context_length: {context}, \
             enable_chunked_prefill: {chunked}, workers: {{aggregated: {{parallelism: {{replicas: {replicas}}}, \
             scheduler: {{max_sequences: {seats}, max_batched_tokens: {}, overlap: {overlap}, capacity_policy: \
             {policy}}}, kv_cache: {{block_size: {block_size}, prefix_caching: {caching}, capacity: {{type: fixed, \
             blocks: {blocks}}}}}, timing: {timing}}}}}}}",
            tokens.max(seats).max(block_size),
        )
    })
}

fn vllm() -> impl Strategy<Value = String> {
    let pool = (
        prop::sample::select(vec![1u32, 2, 4, 16]),
        prop_oneof![4 => 6u32..40, 1 => Just(2000u32)],
        any::<bool>(),
        prop_oneof![2 => Just("max".to_owned()), 1 => (8u32..120).prop_map(|n| n.to_string())],
    );
    let schedule = (
        prop_oneof![Just(("native", "null")), Just(("native", "false")), Just(("aisimulate_0_13", "null"))],
        (1u32..16, 0u32..64),
        word("priority", "fcfs"),
        word("fifo", "lifo"),
        prop_oneof![3 => Just(1u32), 1 => 2u32..5],
    );
    let rules = (
        prop_oneof![3 => Just(0u32), 1 => 1u32..30],
        prop_oneof![3 => Just(0.0), 1 => 0.05f64..0.4],
        prop::bool::weighted(0.8),
        prop::option::weighted(0.15, 1u32..8),
        prop::option::weighted(0.15, 1u64..300),
    );
    (pool, schedule, rules, timing(), 1u32..6).prop_map(|(pool, schedule, rules, timing, replicas)| {
        let (block_size, blocks, caching, context) = pool;
        let ((semantics, asynchronous), (seats, more), policy, mode, interval) = schedule;
        let (threshold, watermark, reserve, queued_requests, queued_tokens) = rules;
        let mode = if policy == "priority" { "lifo" } else { mode };
        let (interval, block_size) =
            if semantics == "native" { (interval, block_size) } else { (1, block_size.max(2)) };
        // Prompts in chunks can take each other's blocks for ever; see the invariants of the engine.
        let threshold = if reserve { threshold.min(context.parse().unwrap_or(u32::MAX)) } else { 0 };
        let option = |n: Option<u64>| n.map_or("null".into(), |n| n.to_string());
        let scheduler = format!(
            "{{max_batched_tokens: {}, max_sequences: {seats}, async_scheduling: {asynchronous}, policy: {policy}, \
             preemption_mode: {mode}, prefill_schedule_interval: {interval}, watermark: {watermark}, \
             long_prefill_token_threshold: {threshold}, reserve_full_isl: {reserve}, \
             max_num_queued_reqs: {}, max_num_queued_tokens: {}}}",
            seats + more,
            option(queued_requests.map(u64::from)),
            option(queued_tokens),
        );
        let cache = format!(
            "{{block_size: {block_size}, prefix_caching: {caching}, capacity: {{type: fixed, blocks: {blocks}}}}}"
        );
        format!(
            "{{model: m, hardware: h, semantics: {semantics}, context_length: {context}, workers: {{aggregated: \
             {{parallelism: {{replicas: {replicas}}}, scheduler: {scheduler}, kv_cache: {cache}, timing: {timing}}}}}}}"
        )
    })
}

fn timing() -> impl Strategy<Value = String> {
    let ms = || prop_oneof![1 => Just(0.0), 3 => (0u32..40).prop_map(f64::from), 1 => 0.0f64..15.0];
    prop_oneof![
        3 => (ms(), ms()).prop_map(|(prefill, decode)| {
            format!("{{type: fixed, prefill_ms: {prefill:?}, decode_ms: {decode:?}}}")
        }),
        2 => (ms(), 0.0f64..0.2, 0.0f64..0.01, prop::bool::ANY).prop_map(|(base, token, context, sum)| {
            let composition = if sum { "sum" } else { "null" };
            format!(
                "{{type: linear, composition: {composition}, linear: {{base_ms: {base:?}, per_new_token_ms: {token:?}, \
                 per_sequence_ms: {token:?}, per_context_token_ms: {context:?}}}}}"
            )
        }),
        1 => (0.2f64..5.0).prop_map(|ratio| format!("{{type: polynomial, speedup_ratio: {ratio:?}}}")),
        1 => prop::sample::select(vec!["profile", "table"]).prop_map(|kind| {
            let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
            format!("{{type: {kind}, path: \"{examples}/{kind}.json\"}}")
        }),
    ]
}

/// `traffic` and the trace that it names.
fn traffic() -> impl Strategy<Value = (String, String)> {
    prop_oneof![
        2 => synthetic().prop_map(|traffic| (traffic, String::new())),
        3 => (trace("mooncake, block_size: 8"), rows()),
        3 => (trace("requests"), asked()),
    ]
}

fn synthetic() -> impl Strategy<Value = String> {
    let rate = || prop_oneof![1.0f64..50.0, 50.0f64..2000.0];
    let load = prop_oneof![
        (rate(), any::<u32>()).prop_map(|(rate, seed)| format!(
            "{{type: poisson, requests_per_second: {rate:?}, seed: {seed}}}"
        )),
        rate().prop_map(|rate| format!("{{type: constant_rate, requests_per_second: {rate:?}}}")),
        (1u32..20).prop_map(|concurrency| format!("{{type: concurrency, concurrency: {concurrency}}}")),
    ];
    (1u32..60, 1u32..40, load, 1u32..50).prop_map(|(input, output, load, requests)| {
        format!(
            "{{source: {{type: synthetic, input_tokens: {input}, output_tokens: {output}}}, load: {load}, \
             stop: {{requests: {requests}}}}}"
        )
    })
}

fn trace(format: &'static str) -> impl Strategy<Value = String> {
    let load = prop_oneof![
        2 => prop::sample::select(vec![0.5, 1.0, 3.0])
            .prop_map(|speedup| format!("{{type: trace_timestamps, speedup: {speedup:?}}}")),
        1 => (1u32..12).prop_map(|concurrency| format!("{{type: concurrency, concurrency: {concurrency}}}")),
    ];
    let cut = prop_oneof![
        3 => Just("{}".to_owned()),
        1 => (0.0f64..0.8).prop_map(|seconds| format!("{{max_virtual_time_seconds: {seconds:?}}}")),
    ];
    (load, cut).prop_map(move |(load, cut)| {
        format!(
            "{{source: {{type: trace, paths: [trace.jsonl], format: {format}}}, load: {load}, stop: {cut}}}"
        )
    })
}

/// Ascending arrivals in ms: often several at one instant, often on the grid of fixed pass times.
fn arrivals(count: usize) -> impl Strategy<Value = Vec<f64>> {
    let gap = prop_oneof![3 => Just(0.0), 3 => (0u32..30).prop_map(f64::from), 1 => 0.0f64..20.0];
    prop::collection::vec(gap, count).prop_map(|gaps| {
        gaps.into_iter()
            .scan(0.0, |now, gap| {
                *now += gap;
                Some(*now)
            })
            .collect()
    })
}

/// Lengths, and how much of the prompt is that of its family.
#[derive(Clone, Copy, Debug)]
struct Size {
    input: u32,
    output: u32,
    family: u32,
    shared: u32,
}

fn sizes(count: usize) -> impl Strategy<Value = Vec<Size>> {
    let length = || prop_oneof![1u32..20, 1u32..60];
    let size = (length(), length(), 0u32..2, 0u32..80).prop_map(|(input, output, family, shared)| Size {
        input,
        output,
        family,
        shared,
    });
    prop::collection::vec(size, count)
}

fn rows() -> impl Strategy<Value = String> {
    (1usize..45).prop_flat_map(|n| (arrivals(n), sizes(n))).prop_map(|(arrivals, sizes)| {
        let row = |(number, (at, size)): (u64, (f64, Size))| {
            let id = |i: u32| match i * 8 < size.shared {
                true => u64::from(size.family * 100 + i),
                false => 1000 + number * 100 + u64::from(i),
            };
            (at, size.input, size.output, (0..size.input.div_ceil(8)).map(id).collect())
        };
        let rows: Vec<_> = (0..).zip(arrivals.into_iter().zip(sizes)).map(row).collect();
        mooncake(&rows)
    })
}

fn asked() -> impl Strategy<Value = String> {
    let pin = || prop::option::weighted(0.15, 0u32..4);
    let ends = move |n| prop::collection::vec((-1i32..2, prop::option::weighted(0.3, 0usize..40), pin()), n);
    (1usize..45).prop_flat_map(move |n| (arrivals(n), sizes(n), ends(n))).prop_map(
        |(arrivals, sizes, ends)| {
            let all: Vec<Asked> =
                (0..arrivals.len()).map(|n| one_asked(n, arrivals[n], sizes[n], ends[n])).collect();
            lines(&all)
        },
    )
}

fn one_asked(number: usize, arrival_ms: f64, size: Size, end: (i32, Option<usize>, Option<u32>)) -> Asked {
    let own = 100_000 * (number as u32 + 1);
    let token = |at: u32| if at < size.shared { size.family * 1000 + at } else { own + at };
    let output: Vec<u32> = (size.input..size.input + size.output).map(token).collect();
    Asked {
        arrival_ms,
        prompt: (0..size.input).map(token).collect(),
        outputs: size.output,
        stop: end.1.and_then(|at| output.get(at).copied()),
        output,
        priority: end.0,
        dp_rank: end.2,
    }
}
