//! The rows of a probe of AISimulate 0.13.0 (aisimulate-core 0.13.0, built and run) under
//! `semantics: aisimulate_0_13`, with both steppers. Each row gives the settings that differ from the usual
//! ones (one worker, blocks of 4, 64 blocks, 8 seats, budget 64, 10 and 2 ms; SGLang: 256 pages of 1) and
//! what was printed: per request first admission, first token, last token (ms), output tokens, reused
//! tokens and admissions, and metrics of the report.
//!
//! | rows | why |
//! |---|---|
//! | 01 02 06 09 10 11 15 16 18 20 21 23 24 27 28 29 36 40 41 42 43 | equal to the printed numbers |
//! | 03 07 13 33 37 38 | SGLang, equal to the printed numbers |
//! | 08 12 | TensorRT-LLM, equal to the printed numbers |
//! | 35 | times equal; two counts differ, each with its rule |
//! | 31 44 | SGLang; differ, each with the rule of the real engine |
//! | 14 19 30 | refused here, with the rule: `what_aisimulate_takes_and_a_real_engine_would_not` |
//! | 04 05 25 26 34 | prefill and decode apart, equal to the printed numbers: see `disaggregated.rs` |
//! | 17 39 | equal: `ranks_of_one_worker_wait_for_each_other` |
//! | 22 32 | speculative decoding, not yet |

mod common;

use common::{Asked, Output, SMALL, Trial, asked, lines, unlike};
use windtunnel_config::Placement;
use windtunnel_engine::RankConfig;
use windtunnel_sim::Stepper;

const USUAL: [&str; 3] = [
    "engine.semantics=aisimulate_0_13",
    "engine.workers.aggregated.kv_cache={block_size: 4, capacity: {type: fixed, blocks: 64}}",
    "traffic={source: {type: trace, format: requests, paths: [trace.jsonl]}, load: {type: trace_timestamps}}",
];

/// First admission, first token, last token (ms); outputs, reused tokens, admissions.
type Line = (f64, f64, f64, u64, u64, u64);

struct Probe {
    name: &'static str,
    settings: &'static [&'static str],
    requests: Vec<Asked>,
    printed: &'static [Line],
    metrics: &'static [(&'static str, f64)],
    differences: &'static [Difference],
}

/// What was printed with another value, and the rule by which ours is what it is.
enum Difference {
    Metric { metric: &'static str, printed: f64, ours: f64, rule: &'static str },
    Request { request: usize, ours: Line, rule: &'static str },
}

fn load(settings: &[&str], requests: &[Asked]) -> Result<Trial, windtunnel_config::ConfigError> {
    let settings: Vec<&str> = USUAL.iter().chain(settings).copied().collect();
    Trial::load(SMALL, &settings, &lines(requests))
}

/// Equal to the printed digits: the reference sums milliseconds, we sum nanoseconds.
fn assert_close(got: Option<f64>, printed: f64, what: &str) {
    let got = got.unwrap_or_else(|| panic!("{what} has no value"));
    assert!((got - printed).abs() <= printed.abs() * 1e-9, "{what}: {got}, printed was {printed}");
}

fn check(probe: &Probe, output: &Output) {
    for (i, &printed) in probe.printed.iter().enumerate() {
        let ours = probe.differences.iter().find_map(|difference| match difference {
            Difference::Request { request, ours, rule } if *request == i => Some((*ours, *rule)),
            _ => None,
        });
        assert_ne!(ours.map(|ours| ours.0), Some(printed), "P{}: no difference", probe.name);
        let (line, rule) = ours.unwrap_or((printed, "as printed"));
        let (admitted, first, last, outputs, reused, admissions) = line;
        let what = |field: &str| format!("P{}, request {i}, {field} ({rule})", probe.name);
        for (field, expected) in
            [("first_admit_ms", admitted), ("first_token_ms", first), ("last_token_ms", last)]
        {
            assert_close(output.of(i, field), expected, &what(field));
        }
        for (field, expected) in
            [("output_length", outputs), ("reused_input_tokens", reused), ("admission_count", admissions)]
        {
            assert_eq!(output.of(i, field), Some(expected as f64), "{}", what(field));
        }
    }
    for &(name, printed) in probe.metrics {
        assert_close(output.metric(name), printed, &format!("P{}, {name}", probe.name));
    }
    for difference in probe.differences {
        if let Difference::Metric { metric, printed, ours, rule } = difference {
            assert_close(output.metric(metric), *ours, &format!("P{}, {metric} ({rule})", probe.name));
            assert_ne!(printed, ours);
        }
    }
}

#[test]
fn what_was_printed_is_what_comes_out() {
    // What an engine's rows set in common, and its rows.
    let engines: [(&[&str], Vec<Probe>); 3] =
        [(&[], vllm_probes()), (&SGLANG, sglang_probes()), (&["engine.backend=trtllm"], trtllm_probes())];
    let rows = engines.into_iter().flat_map(|(common, rows)| rows.into_iter().map(move |row| (common, row)));
    for (common, probe) in rows {
        let settings: Vec<&str> = common.iter().chain(probe.settings).copied().collect();
        let trial = load(&settings, &probe.requests).unwrap_or_else(|e| panic!("P{}: {e}", probe.name));
        for stepper in [Stepper::Plain, Stepper::Fast] {
            let output = trial.run(stepper);
            assert_eq!(output.requests().len(), probe.requests.len());
            check(&probe, &output);
        }
    }
}

/// Two ranks that step together, with requests that name theirs.
#[test]
fn ranks_of_one_worker_wait_for_each_other() {
    let requests = |[first, second]: [(f64, u32, u32, u32); 2]| -> Vec<Asked> {
        let sizes = [first, second].map(|(at, input, output, _)| (at, input, output));
        unlike(&sizes).into_iter().zip([first.3, second.3]).map(|(asked, rank)| asked.on(rank)).collect()
    };
    let probes = [
        (
            1,
            Probe {
                name: "17 rank 0 prefills, b comes to rank 1 at 5",
                settings: &[],
                requests: requests([(0.0, 8, 3, 0), (5.0, 8, 3, 1)]),
                printed: &[(0.0, 10.0, 22.0, 3, 0, 1), (10.0, 20.0, 24.0, 3, 0, 1)],
                metrics: &[
                    ("duration_ms", 24.0),
                    ("mean_ttft_ms", 12.5),
                    ("mean_tpot_ms", 4.0),
                    ("mean_itl_ms", 4.0),
                    ("committed_prefill_tokens", 16.0),
                ],
                differences: &[],
            },
        ),
        (
            4,
            Probe {
                name: "39 prefill_schedule_interval 4, a and b on rank 0, b comes at 11",
                settings: &[],
                requests: requests([(0.0, 8, 10, 0), (11.0, 8, 2, 0)]),
                printed: &[(0.0, 10.0, 38.0, 10, 0, 1), (16.0, 28.0, 30.0, 2, 0, 1)],
                metrics: &[
                    ("duration_ms", 38.0),
                    ("mean_ttft_ms", 13.5),
                    ("mean_tpot_ms", 2.5555555555555554),
                    ("mean_itl_ms", 3.0),
                    ("committed_prefill_tokens", 16.0),
                ],
                differences: &[],
            },
        ),
    ];
    for (interval, probe) in probes {
        let trial = load(probe.settings, &probe.requests).unwrap();
        let mut trial = trial.with_ranks(2, true, Placement::RoundRobin);
        if let RankConfig::Vllm(config) = &mut trial.experiment.deployment.engine {
            config.prefill_schedule_interval = interval;
        }
        for stepper in [Stepper::Plain, Stepper::Fast] {
            check(&probe, &trial.run(stepper));
        }
    }
}

/// Prompts of which only the given tokens matter.
fn same(arrivals: [f64; 2], prompts: [Vec<u32>; 2], outputs: [u32; 2]) -> Vec<Asked> {
    let [first, second] = prompts;
    vec![asked(arrivals[0], first, outputs[0]), asked(arrivals[1], second, outputs[1])]
}

/// A request, and later its prompt, its output and two tokens more.
fn second_turn() -> Vec<Asked> {
    vec![
        Asked { output: vec![1, 2, 3, 4], ..asked(0.0, 0..8, 4) },
        asked(50.0, (0..8).chain([1, 2, 3, 4, 9, 9]), 1),
    ]
}

fn vllm_probes() -> Vec<Probe> {
    let eight: Vec<u32> = (0..8).collect();
    let twice = |at| same([0.0, at], [eight.clone(), eight.clone()], [2, 2]);
    vec![
        Probe {
            name: "01 8→4",
            settings: &[],
            requests: unlike(&[(0.0, 8, 4)]),
            printed: &[(0.0, 10.0, 16.0, 4, 0, 1)],
            metrics: &[
                ("duration_ms", 16.0),
                ("mean_tpot_ms", 2.0),
                ("mean_itl_ms", 2.0),
                ("committed_prefill_tokens", 8.0),
            ],
            differences: &[],
        },
        Probe {
            name: "02 a mixed pass: a 8→6 at 0, b 8→3 at 11",
            settings: &[],
            requests: unlike(&[(0.0, 8, 6), (11.0, 8, 3)]),
            printed: &[(0.0, 10.0, 30.0, 6, 0, 1), (12.0, 24.0, 28.0, 3, 0, 1)],
            metrics: &[
                ("duration_ms", 30.0),
                ("mean_ttft_ms", 11.5),
                ("mean_tpot_ms", 3.0),
                ("mean_itl_ms", 3.4285714285714284),
            ],
            differences: &[],
        },
        Probe {
            name: "06 the same 8 tokens at 0 and 100",
            settings: &[],
            requests: twice(100.0),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (100.0, 110.0, 112.0, 2, 4, 1)],
            metrics: &[
                ("prefix_cache_reused_ratio", 0.25),
                ("first_admission_prefix_cache_reused_ratio", 0.25),
                ("committed_prefill_tokens", 12.0),
            ],
            differences: &[],
        },
        Probe {
            name: "09 the same 8 tokens in one pass",
            settings: &[],
            requests: twice(0.0),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (0.0, 10.0, 12.0, 2, 4, 1)],
            metrics: &[("prefix_cache_reused_ratio", 0.25), ("committed_prefill_tokens", 12.0)],
            differences: &[],
        },
        Probe {
            name: "10 five blocks, two 8→8, LIFO",
            settings: &["engine.workers.aggregated.kv_cache.capacity.blocks=5"],
            requests: unlike(&[(0.0, 8, 8), (0.0, 8, 8)]),
            printed: &[(0.0, 10.0, 24.0, 8, 0, 1), (0.0, 10.0, 48.0, 8, 4, 2)],
            metrics: &[
                ("duration_ms", 48.0),
                ("mean_tpot_ms", 3.7142857142857144),
                ("mean_itl_ms", 3.7142857142857153),
                ("prefix_cache_reused_ratio", 0.25),
                ("first_admission_prefix_cache_reused_ratio", 0.0),
                ("committed_prefill_tokens", 21.0),
                ("preemptions", 1.0),
            ],
            differences: &[],
        },
        Probe {
            name: "11 the same, FIFO",
            settings: &[
                "engine.workers.aggregated.kv_cache.capacity.blocks=5",
                "engine.workers.aggregated.scheduler.preemption_mode=fifo",
            ],
            requests: unlike(&[(0.0, 8, 8), (0.0, 8, 8)]),
            printed: &[(0.0, 10.0, 48.0, 8, 4, 2), (0.0, 10.0, 24.0, 8, 0, 1)],
            metrics: &[("mean_tpot_ms", 3.7142857142857144), ("committed_prefill_tokens", 21.0)],
            differences: &[],
        },
        Probe {
            name: "15 speedup 2, decode another 4",
            settings: &[
                "engine.workers.aggregated.timing.speedup_ratio=2",
                "engine.workers.aggregated.timing.decode_speedup_ratio=4",
            ],
            requests: unlike(&[(0.0, 8, 4)]),
            printed: &[(0.0, 5.0, 5.75, 4, 0, 1)],
            metrics: &[("mean_itl_ms", 0.25), ("duration_ms", 5.75)],
            differences: &[],
        },
        Probe {
            name: "16 polynomial 1024→3, 64 blocks of 64",
            settings: &[
                "engine.workers.aggregated.kv_cache={block_size: 64, capacity: {type: fixed, blocks: 64}}",
                "engine.workers.aggregated.scheduler.max_batched_tokens=8192",
                "engine.workers.aggregated.timing={type: polynomial}",
            ],
            requests: unlike(&[(0.0, 1024, 3)]),
            printed: &[(0.0, 32.490712, 67.788336, 3, 0, 1)],
            metrics: &[("mean_ttft_ms", 32.490712), ("mean_itl_ms", 17.648812)],
            differences: &[],
        },
        Probe {
            name: "18 closed loop of one, three 8→2",
            settings: &["traffic.load={type: concurrency, concurrency: 1}"],
            requests: unlike(&[(0.0, 8, 2), (0.0, 8, 2), (0.0, 8, 2)]),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (12.0, 22.0, 24.0, 2, 0, 1), (24.0, 34.0, 36.0, 2, 0, 1)],
            metrics: &[("mean_ttft_ms", 10.0), ("max_ttft_ms", 10.0), ("duration_ms", 36.0)],
            differences: &[],
        },
        Probe {
            name: "20 12→2 on two blocks",
            settings: &["engine.workers.aggregated.kv_cache.capacity.blocks=2"],
            requests: unlike(&[(0.0, 12, 2)]),
            printed: &[],
            metrics: &[
                ("completed_requests", 0.0),
                ("rejected_requests", 1.0),
                ("duration_ms", 0.0),
                ("committed_prefill_tokens", 0.0),
            ],
            differences: &[],
        },
        Probe {
            name: "21 20→2 with a budget of 8",
            settings: &["engine.workers.aggregated.scheduler.max_batched_tokens=8"],
            requests: unlike(&[(0.0, 20, 2)]),
            printed: &[(0.0, 30.0, 32.0, 2, 0, 1)],
            metrics: &[("prefill_passes", 3.0), ("committed_prefill_tokens", 20.0)],
            differences: &[],
        },
        Probe {
            name: "23 8→1",
            settings: &[],
            requests: unlike(&[(0.0, 8, 1)]),
            printed: &[(0.0, 10.0, 10.0, 1, 0, 1)],
            // Its mean TPOT and ITL were printed as 0; here they have no value.
            metrics: &[("num_tpot_samples", 0.0), ("num_itl_samples", 0.0), ("duration_ms", 10.0)],
            differences: &[],
        },
        Probe {
            name: "24 8→5 with a context length of 10",
            settings: &["engine.context_length=10"],
            requests: unlike(&[(0.0, 8, 5)]),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1)],
            metrics: &[("total_output_tokens", 2.0)],
            differences: &[],
        },
        Probe {
            name: "27 two workers, three 8→2",
            settings: &["engine.workers.aggregated.parallelism.replicas=2"],
            requests: unlike(&[(0.0, 8, 2), (0.0, 8, 2), (0.0, 8, 2)]),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (0.0, 10.0, 12.0, 2, 0, 1), (0.0, 10.0, 12.0, 2, 0, 1)],
            metrics: &[("duration_ms", 12.0), ("committed_prefill_tokens", 24.0)],
            differences: &[],
        },
        Probe {
            name: "28 the same 8 tokens without prefix caching",
            settings: &["engine.workers.aggregated.kv_cache.prefix_caching=false"],
            requests: twice(100.0),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (100.0, 110.0, 112.0, 2, 0, 1)],
            metrics: &[("prefix_cache_reused_ratio", 0.0), ("committed_prefill_tokens", 16.0)],
            differences: &[],
        },
        Probe {
            name: "29 end-to-end latencies 12, 14, 16, 18",
            settings: &[],
            requests: unlike(&[(0.0, 8, 2), (1000.0, 8, 3), (2000.0, 8, 4), (3000.0, 8, 5)]),
            printed: &[
                (0.0, 10.0, 12.0, 2, 0, 1),
                (1000.0, 1010.0, 1014.0, 3, 0, 1),
                (2000.0, 2010.0, 2016.0, 4, 0, 1),
                (3000.0, 3010.0, 3018.0, 5, 0, 1),
            ],
            metrics: &[
                ("mean_e2e_latency_ms", 15.0),
                ("median_e2e_latency_ms", 16.0),
                ("p75_e2e_latency_ms", 16.0),
                ("p90_e2e_latency_ms", 18.0),
                ("std_e2e_latency_ms", 2.23606797749979),
                ("duration_ms", 3018.0),
                ("request_throughput_rps", 1.3253810470510272),
            ],
            differences: &[],
        },
        Probe {
            name: "35 seven blocks, three 8→8",
            settings: &["engine.workers.aggregated.kv_cache.capacity.blocks=7"],
            requests: unlike(&[(0.0, 8, 8), (0.0, 8, 8), (0.0, 8, 8)]),
            printed: &[(0.0, 10.0, 24.0, 8, 0, 1), (0.0, 10.0, 40.0, 8, 12, 2), (0.0, 10.0, 48.0, 8, 0, 2)],
            metrics: &[
                ("duration_ms", 48.0),
                ("mean_tpot_ms", 3.904761904761905),
                ("mean_itl_ms", 3.904761904761904),
                ("first_admission_prefix_cache_reused_ratio", 0.0),
            ],
            differences: &[
                Difference::Metric {
                    metric: "committed_prefill_tokens",
                    printed: 33.0,
                    ours: 34.0,
                    rule: "b comes back with 12 of 13 tokens found and computes the last: one chunk of prefill",
                },
                Difference::Metric {
                    metric: "prefix_cache_reused_ratio",
                    printed: 12.0 / 24.0,
                    ours: 8.0 / 24.0,
                    rule: "of the 12, 4 are b's own output: reuse is a part of the prompts",
                },
                Difference::Request {
                    request: 1,
                    ours: (0.0, 10.0, 40.0, 8, 8, 2),
                    rule: "of the 12, 4 are b's own output: reuse is a part of the prompts",
                },
            ],
        },
        Probe {
            name: "36 six blocks, no cache: a 12→4, b 16→1 waits, c 4→1 behind it",
            settings: &[
                "engine.workers.aggregated.kv_cache.capacity.blocks=6",
                "engine.workers.aggregated.kv_cache.prefix_caching=false",
            ],
            requests: unlike(&[(0.0, 12, 4), (0.0, 16, 1), (0.0, 4, 1)]),
            printed: &[(0.0, 10.0, 16.0, 4, 0, 1), (16.0, 26.0, 26.0, 1, 0, 1), (16.0, 26.0, 26.0, 1, 0, 1)],
            metrics: &[("duration_ms", 26.0), ("committed_prefill_tokens", 32.0)],
            differences: &[],
        },
        Probe {
            name: "40 a budget of 10, a 8→4 and b 8→2",
            settings: &["engine.workers.aggregated.scheduler.max_batched_tokens=10"],
            requests: unlike(&[(0.0, 8, 4), (0.0, 8, 2)]),
            printed: &[(0.0, 10.0, 26.0, 4, 0, 1), (0.0, 22.0, 24.0, 2, 0, 1)],
            metrics: &[("mean_tpot_ms", 3.6666666666666665), ("mean_itl_ms", 4.5)],
            differences: &[],
        },
        Probe {
            name: "41 polynomial 64→2 and 128→2 together, 8 blocks of 64",
            settings: &[
                "engine.workers.aggregated.kv_cache={block_size: 64, capacity: {type: fixed, blocks: 8}}",
                "engine.workers.aggregated.scheduler.max_batched_tokens=8192",
                "engine.workers.aggregated.timing={type: polynomial}",
            ],
            requests: unlike(&[(0.0, 64, 2), (0.0, 128, 2)]),
            printed: &[(0.0, 19.43216, 41.941396, 2, 0, 1), (0.0, 19.43216, 41.941396, 2, 0, 1)],
            metrics: &[("mean_itl_ms", 22.509236), ("committed_prefill_tokens", 192.0)],
            differences: &[],
        },
        Probe {
            name: "42 12 tokens, the first 10 the same",
            settings: &[],
            requests: same([0.0, 50.0], [(0..12).collect(), (0..10).chain([99, 98]).collect()], [1, 1]),
            printed: &[(0.0, 10.0, 10.0, 1, 0, 1), (50.0, 60.0, 60.0, 1, 8, 1)],
            metrics: &[("prefix_cache_reused_ratio", 1.0 / 3.0), ("committed_prefill_tokens", 16.0)],
            differences: &[],
        },
        Probe {
            name: "43 a second turn: prompt and output of the first, and two tokens more",
            settings: &[],
            requests: second_turn(),
            // The last output token never gets a slot, so the block that it would fill is not cached.
            printed: &[(0.0, 10.0, 16.0, 4, 0, 1), (50.0, 60.0, 60.0, 1, 8, 1)],
            metrics: &[("prefix_cache_reused_ratio", 8.0 / 22.0), ("committed_prefill_tokens", 14.0)],
            differences: &[],
        },
    ]
}

/// What every SGLang row sets: pages of one token, 256 of them.
const SGLANG: [&str; 2] = [
    "engine.backend=sglang",
    "engine.workers.aggregated.kv_cache={block_size: 1, capacity: {type: fixed, blocks: 256}}",
];

// Rules of SGLang 0.5.23 (sglang/srt) by which rows differ. The cases of the engine crate hold each one
// (sglang_cases.rs: s4, r3, r4), and so do recorded steps of the real engine (golden `retract_p1`).

/// managers/schedule_batch.py: `_get_decode_retraction_order` sorts by outputs and prompt, stable, and
/// `retract_decode` takes from the end: of equals the one that stands last in the batch, b. Printed was the
/// first, a.
const LAST_OF_EQUALS: &str = "of requests with equal outputs and prompts the last is retracted";
/// managers/schedule_batch.py: `prepare_for_decode` allocates for the token that the pass before sampled. So
/// the 6 free pages last three decodes, until 16, and not two; and c, which ends with its second token and
/// never needs a slot for it, is not retracted at 34.
const SLOT_IN_NEXT_PASS: &str = "a sampled token gets its slot in the next decode";
/// mem_cache/common.py: `release_kv_cache` enters the slots that the request has, and its last token never
/// gets one. Of 8 + 4 tokens 11 are found.
const WITHOUT_THE_LAST: &str = "the last output token has no slot and is not cached";

fn sglang_probes() -> Vec<Probe> {
    let eight: Vec<u32> = (0..8).collect();
    vec![
        Probe {
            name: "03 as 02: prefill holds decodes up",
            settings: &[],
            requests: unlike(&[(0.0, 8, 6), (11.0, 8, 3)]),
            printed: &[(0.0, 10.0, 30.0, 6, 0, 1), (12.0, 22.0, 26.0, 3, 0, 1)],
            metrics: &[
                ("duration_ms", 30.0),
                ("mean_ttft_ms", 10.5),
                ("mean_tpot_ms", 3.0),
                ("mean_itl_ms", 3.4285714285714284),
                ("committed_prefill_tokens", 16.0),
            ],
            differences: &[],
        },
        Probe {
            name: "07 as 06: the same 8 tokens at 0 and 100",
            settings: &[],
            requests: same([0.0, 100.0], [eight.clone(), eight.clone()], [2, 2]),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (100.0, 110.0, 112.0, 2, 7, 1)],
            metrics: &[
                ("duration_ms", 112.0),
                ("mean_ttft_ms", 10.0),
                ("prefix_cache_reused_ratio", 0.4375),
                ("first_admission_prefix_cache_reused_ratio", 0.4375),
                ("committed_prefill_tokens", 9.0),
            ],
            differences: &[],
        },
        Probe {
            name: "13 20 pages, conservativeness 0, two 8→8",
            settings: &[
                "engine.workers.aggregated.kv_cache.capacity.blocks=20",
                "engine.workers.aggregated.scheduler.schedule_conservativeness=0",
            ],
            requests: unlike(&[(0.0, 8, 8), (0.0, 8, 8)]),
            printed: &[(0.0, 10.0, 24.0, 8, 0, 1), (24.0, 34.0, 48.0, 8, 0, 1)],
            metrics: &[
                ("duration_ms", 48.0),
                ("mean_ttft_ms", 22.0),
                ("mean_tpot_ms", 2.0),
                ("mean_itl_ms", 2.0),
                ("committed_prefill_tokens", 16.0),
            ],
            differences: &[],
        },
        Probe {
            name: "31 22 pages, conservativeness 0, clip 1: a and b 8→8 at 0, c 8→2 at 1",
            settings: &[
                "engine.workers.aggregated.kv_cache.capacity.blocks=22",
                "engine.workers.aggregated.scheduler.schedule_conservativeness=0",
                "engine.workers.aggregated.scheduler.clip_max_new_tokens=1",
            ],
            requests: unlike(&[(0.0, 8, 8), (0.0, 8, 8), (1.0, 8, 2)]),
            printed: &[(0.0, 10.0, 52.0, 8, 0, 2), (0.0, 10.0, 24.0, 8, 0, 1), (24.0, 34.0, 46.0, 2, 8, 2)],
            metrics: &[
                ("duration_ms", 52.0),
                ("mean_ttft_ms", 17.666666666666668),
                ("first_admission_prefix_cache_reused_ratio", 0.0),
                // There 8 + 8 + 8, a's 11 again and one of c's again; here 8 + 8 + 8 and b's 12 again.
                ("committed_prefill_tokens", 36.0),
            ],
            differences: &[
                Difference::Request { request: 0, ours: (0.0, 10.0, 24.0, 8, 0, 1), rule: LAST_OF_EQUALS },
                Difference::Request { request: 1, ours: (0.0, 10.0, 52.0, 8, 0, 2), rule: LAST_OF_EQUALS },
                Difference::Request {
                    request: 2,
                    ours: (24.0, 34.0, 36.0, 2, 0, 1),
                    rule: SLOT_IN_NEXT_PASS,
                },
                Difference::Metric {
                    metric: "mean_tpot_ms",
                    printed: 6.666666666666667,
                    ours: 10.0 / 3.0,
                    rule: SLOT_IN_NEXT_PASS,
                },
                Difference::Metric {
                    metric: "mean_itl_ms",
                    printed: 4.533333333333332,
                    ours: 58.0 / 15.0,
                    rule: SLOT_IN_NEXT_PASS,
                },
                Difference::Metric {
                    metric: "prefix_cache_reused_ratio",
                    printed: 1.0 / 3.0,
                    ours: 0.0,
                    rule: SLOT_IN_NEXT_PASS,
                },
            ],
        },
        Probe {
            name: "33 chunks of 8, a 4→2 and b 8→2",
            settings: &["engine.workers.aggregated.scheduler.chunked_prefill_size=8"],
            requests: unlike(&[(0.0, 4, 2), (0.0, 8, 2)]),
            printed: &[(0.0, 10.0, 22.0, 2, 0, 1), (0.0, 20.0, 22.0, 2, 0, 1)],
            metrics: &[
                ("duration_ms", 22.0),
                ("mean_ttft_ms", 15.0),
                ("mean_tpot_ms", 7.0),
                ("mean_itl_ms", 7.0),
                ("committed_prefill_tokens", 12.0),
            ],
            differences: &[],
        },
        Probe {
            name: "37 lpm and one seat: a, b with another prompt behind it, c with a longer one",
            settings: &[
                "engine.workers.aggregated.scheduler.max_sequences=1",
                "engine.workers.aggregated.scheduler.schedule_policy=lpm",
            ],
            requests: vec![asked(0.0, 0..8, 3), asked(1.0, 100..108, 1), asked(2.0, (0..8).chain([50]), 1)],
            printed: &[(0.0, 10.0, 14.0, 3, 0, 1), (24.0, 34.0, 34.0, 1, 0, 1), (14.0, 24.0, 24.0, 1, 8, 1)],
            metrics: &[
                ("duration_ms", 34.0),
                ("mean_ttft_ms", 21.666666666666668),
                ("mean_tpot_ms", 2.0),
                ("mean_itl_ms", 2.0),
                ("prefix_cache_reused_ratio", 0.32),
                ("first_admission_prefix_cache_reused_ratio", 0.32),
                ("committed_prefill_tokens", 17.0),
            ],
            differences: &[],
        },
        Probe {
            name: "38 prefill_decode_interval 2, b comes during the first decode",
            settings: &["engine.workers.aggregated.scheduler.prefill_decode_interval=2"],
            requests: unlike(&[(0.0, 8, 6), (1.0, 8, 2)]),
            printed: &[(0.0, 10.0, 30.0, 6, 0, 1), (14.0, 24.0, 26.0, 2, 0, 1)],
            metrics: &[
                ("duration_ms", 30.0),
                ("mean_ttft_ms", 16.5),
                ("mean_tpot_ms", 3.0),
                ("mean_itl_ms", 3.6666666666666665),
                ("committed_prefill_tokens", 16.0),
            ],
            differences: &[],
        },
        Probe {
            name: "44 as 43: a second turn",
            settings: &[],
            requests: second_turn(),
            printed: &[(0.0, 10.0, 16.0, 4, 0, 1), (50.0, 60.0, 60.0, 1, 12, 1)],
            metrics: &[("duration_ms", 60.0), ("mean_ttft_ms", 10.0)],
            differences: &[
                Difference::Request {
                    request: 1,
                    ours: (50.0, 60.0, 60.0, 1, 11, 1),
                    rule: WITHOUT_THE_LAST,
                },
                Difference::Metric {
                    metric: "prefix_cache_reused_ratio",
                    printed: 12.0 / 22.0,
                    ours: 11.0 / 22.0,
                    rule: WITHOUT_THE_LAST,
                },
                Difference::Metric {
                    metric: "first_admission_prefix_cache_reused_ratio",
                    printed: 12.0 / 22.0,
                    ours: 11.0 / 22.0,
                    rule: WITHOUT_THE_LAST,
                },
                Difference::Metric {
                    metric: "committed_prefill_tokens",
                    printed: 10.0,
                    ours: 11.0,
                    rule: WITHOUT_THE_LAST,
                },
            ],
        },
    ]
}

fn trtllm_probes() -> Vec<Probe> {
    let eight: Vec<u32> = (0..8).collect();
    vec![
        Probe {
            name: "08 as 06: the same 8 tokens at 0 and 100, found whole",
            settings: &[],
            requests: same([0.0, 100.0], [eight.clone(), eight], [2, 2]),
            printed: &[(0.0, 10.0, 12.0, 2, 0, 1), (100.0, 102.0, 104.0, 2, 8, 1)],
            metrics: &[
                ("duration_ms", 104.0),
                ("mean_ttft_ms", 6.0),
                ("mean_tpot_ms", 2.0),
                ("mean_itl_ms", 2.0),
                ("prefix_cache_reused_ratio", 0.5),
                ("first_admission_prefix_cache_reused_ratio", 0.5),
                ("committed_prefill_tokens", 8.0),
            ],
            differences: &[],
        },
        Probe {
            name: "12 as 10: five blocks, two 8→8, nothing is preempted",
            settings: &["engine.workers.aggregated.kv_cache.capacity.blocks=5"],
            requests: unlike(&[(0.0, 8, 8), (0.0, 8, 8)]),
            printed: &[(0.0, 10.0, 24.0, 8, 0, 1), (24.0, 34.0, 48.0, 8, 0, 1)],
            metrics: &[
                ("duration_ms", 48.0),
                ("mean_ttft_ms", 22.0),
                ("mean_tpot_ms", 2.0),
                ("mean_itl_ms", 2.0),
                ("prefix_cache_reused_ratio", 0.0),
                ("first_admission_prefix_cache_reused_ratio", 0.0),
                ("committed_prefill_tokens", 16.0),
                ("preemptions", 0.0),
            ],
            differences: &[],
        },
    ]
}

/// P14: speedup 0 means "unscaled" there, although its help says infinite. P19: a request without output
/// completes after its prefill there; vLLM's sampling parameters refuse `max_tokens` 0. P30: without chunked
/// prefill, a prompt of 20 and a budget of 8 end the run with "effect-free zero-duration pass" there; vLLM
/// (0.33.0, config/scheduler.py) refuses a budget below the context length.
#[test]
fn what_aisimulate_takes_and_a_real_engine_would_not() {
    let refusal = |settings: &[&str]| match load(settings, &unlike(&[(0.0, 20, 2)])) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("not refused"),
    };
    let p14 = refusal(&["engine.workers.aggregated.timing.speedup_ratio=0"]);
    assert!(p14.contains("engine.workers.aggregated.timing.speedup_ratio: got 0; "), "{p14}");
    let p30 = refusal(&[
        "engine.enable_chunked_prefill=false",
        "engine.workers.aggregated.scheduler.max_batched_tokens=8",
    ]);
    assert!(p30.contains("max_batched_tokens: 8 must be at least context_length"), "{p30}");

    let p19 = load(&[], &unlike(&[(0.0, 8, 0)])).unwrap().try_run(Stepper::Fast);
    let p19 = p19.err().unwrap().to_string();
    assert!(p19.ends_with("line 1: max_tokens: got 0; allowed is an integer from 1 to 16777216"), "{p19}");
}
