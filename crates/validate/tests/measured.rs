//! Measured runs: what their files say, what is wrong with them, and pass times found from them.

mod common;

use common::{file, read, real_run, shared, simulated};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use windtunnel_config::{Experiment, Pace, from_str};
use windtunnel_engine::{Content, Nanos};
use windtunnel_perf::{Law, Linear};
use windtunnel_validate::calibrate::{Fit, FitError, LawKind, fit, read_passes};
use windtunnel_validate::compare::{compare, with_requests};
use windtunnel_validate::measured::{MeasuredRun, Prompts};

/// Arrival, first and last token in milliseconds.
fn times(run: &MeasuredRun) -> Vec<(f64, f64, f64)> {
    let ms = |nanos: Nanos| (nanos.as_ms() * 1e3).round() / 1e3;
    run.requests.iter().map(|r| (ms(r.arrival), ms(r.first_token), ms(r.last_token))).collect()
}

const STAMPS: &str = r#"{"kind": "meta", "run": "a", "engine_kwargs": {}}
{"kind": "request", "run": "a", "request_id": "x", "input_toks": 7, "output_toks": 3, "arrival_time": 1000.5, "queued_ts": 20.75, "scheduled_ts": 21, "first_token_ts": 21.25, "last_token_ts": 22}
{"kind": "request", "run": "a", "request_id": "y", "input_toks": 9, "output_toks": 2, "arrival_time": 1000.25, "queued_ts": 20.375, "scheduled_ts": 21, "first_token_ts": 20.5, "last_token_ts": 21}
{"kind": "request", "run": "a", "request_id": "z", "input_toks": 9, "output_toks": 0, "arrival_time": 1001}
{"kind": "tick", "run": "a", "t": 1, "running": 2}
{"kind": "request", "run": "b", "input_toks": 1, "output_toks": 1, "arrival_time": 5, "first_token_ts": 6, "last_token_ts": 6}
"#;

#[test]
fn two_clocks_become_one() {
    let run = read("stamps.jsonl", STAMPS, Some("a")).unwrap();
    // y came into the queue 980 s before it arrived, by two clocks, and x 979.75 s: so arrivals are moved by 979.875 s,
    // the first of them is 0, and y was queued at once.
    assert_eq!(times(&run), [(0.0, 125.0, 625.0), (250.0, 875.0, 1625.0)]);
    assert_eq!(run.requests.iter().map(|r| r.id.as_deref().unwrap()).collect::<Vec<_>>(), ["y", "x"]);
    assert_eq!((run.failed, run.pace, run.requests[0].input_tokens), (1, Pace::Arrivals, 9));
    assert_eq!(times(&read("stamps.jsonl", STAMPS, Some("b")).unwrap()), [(0.0, 1000.0, 1000.0)]);
}

#[test]
fn lines_that_are_no_measurement_are_named() {
    let said = |text: &str, run| read("m.jsonl", text, run).unwrap_err();
    assert_eq!(said(STAMPS, None), "m.jsonl: holds several runs; there are a, b");
    assert_eq!(said(STAMPS, Some("c")), "m.jsonl: there is no run \"c\"; there are a, b");
    assert!(
        said("", None)
            .starts_with("m.jsonl: holds no measured request; what is read is lines of time stamps")
    );
    assert_eq!(
        said("{\"input_toks\": 1}", None),
        "m.jsonl:1: arrival_time: missing",
        "a line without a time"
    );
    assert!(said("{\"arrival_time\": \"x\"}", None).starts_with("m.jsonl:1: invalid type: string \"x\""));
    assert!(said("[1]", None).starts_with("m.jsonl:1: "));
    let line = |first: f64, last: f64, tokens: u32| {
        format!(
            "{{\"arrival_time\": 5, \"first_token_ts\": {first}, \"last_token_ts\": {last}, \"input_toks\": 3, \
             \"output_toks\": {tokens}}}"
        )
    };
    let early = "m.jsonl:1: request 0: its first token came before it, or after its last one";
    assert_eq!(said(&line(6.0, 5.5, 1), None), early);
    assert_eq!(
        said(&line(4.0, 5.0, 1), None),
        "m.jsonl:1: request 0: first token: got 4, which is no time of this run"
    );
    assert_eq!(
        said(&line(6.0, 7.0, 0), None),
        "m.jsonl:1: request 0: has 0 output tokens; allowed are 1 to 16777216"
    );
}

/// Keys of `vllm bench serve --save-result --save-detailed` (vLLM 0.33.0, benchmarks/serve.py).
const VLLM: &str = r#"{"date": "20261130", "backend": "vllm", "label": null, "request_rate": "inf", "max_concurrency": 2,
 "mean_ttft_ms": 1.0, "input_lens": [10, 20, 30], "output_lens": [3, 1, 0], "ttfts": [0.5, 0.25, 0.0],
 "itls": [[0.125, 0.125], [], []], "start_times": [100.0, 100.125, 101.0], "generated_texts": ["x\": Infinity", "", ""],
 "errors": ["", "", "refused"]}"#;

#[test]
fn results_of_the_benchmark_of_vllm() {
    let run = read("openai.json", VLLM, None).unwrap();
    assert_eq!(times(&run), [(0.0, 500.0, 750.0), (125.0, 375.0, 375.0)]);
    assert_eq!((run.name.as_str(), run.failed, run.pace), ("openai", 1, Pace::Arrivals));
    let said = |text: String| read("openai.json", &text, None).unwrap_err();
    assert_eq!(
        said(VLLM.replace("[3, 1, 0]", "[3, 1]")),
        "openai.json: output_lens: has 2 entries; ttfts has 3"
    );
    assert_eq!(
        said("{\"mean_ttft_ms\": 1.0}".into()),
        "openai.json: result 0: no times of single requests (ttfts); vllm bench serve needs --save-detailed, SGLang's \
         bench_serving --output-details"
    );
}

#[test]
fn results_of_the_benchmark_of_sglang() {
    // One a line, no start times (SGLang 0.5.23, benchmark/serving.py).
    let result = |rate: &str, concurrency: &str| {
        format!(
            "{{\"tag\": null, \"backend\": \"sglang\", \"request_rate\": {rate}, \"max_concurrency\": {concurrency}, \
             \"input_lens\": [8, 8], \"output_lens\": [2, 2], \"ttfts\": [0.5, 0.25], \"itls\": [[0.25], [0.5]]}}\n"
        )
    };
    let closed = read("s.jsonl", &result("Infinity", "4"), None).unwrap();
    assert_eq!(closed.pace, Pace::Concurrency(4.try_into().unwrap()));
    assert_eq!(times(&closed), [(0.0, 500.0, 750.0), (0.0, 250.0, 750.0)]);
    assert_eq!(read("s.jsonl", &result("Infinity", "null"), None).unwrap().pace, Pace::Arrivals);
    let open = read("s.jsonl", &result("4.0", "null"), None).unwrap_err();
    assert!(open.starts_with("s.jsonl: start_times: missing, and request_rate is finite; "), "{open}");
    let two = result("Infinity", "4").repeat(2);
    assert_eq!(read("s.jsonl", &two, None).unwrap_err(), "s.jsonl: holds several runs; there are s, s-1");
    assert_eq!(read("s.jsonl", &two, Some("s-1")).unwrap().requests.len(), 2);
}

#[test]
fn prompts_are_those_of_the_same_request() {
    let run = read("stamps.jsonl", STAMPS, Some("a")).unwrap();
    // Blocks of four tokens; the rows stand in another order than the requests.
    let rows = |x: u32| {
        format!(
            "{{\"request_id\": \"x\", \"input_length\": {x}, \"output_length\": 3, \"hash_ids\": [0, 1]}}\n\
             {{\"request_id\": \"y\", \"input_length\": 9, \"output_length\": 2, \"hash_ids\": [0, 2, 3]}}\n"
        )
    };
    let kept = file("prompts.jsonl", &rows(7));
    let requests = run.workload(Some(&Prompts::read(&kept.path).unwrap())).unwrap();
    let prompt = |i: usize| match &requests[i].request.content {
        Content::Prefixes { ids, id_tokens } => (ids.to_vec(), *id_tokens),
        other => panic!("{other:?}"),
    };
    let (y, x) = (prompt(0), prompt(1));
    assert_eq!((y.0.len(), x.0.len(), y.1), (3, 2, 4));
    assert_eq!(x.0[0], y.0[0], "they begin alike");

    let said = |text: &str| {
        let kept = file("prompts.jsonl", text);
        let prompts = Prompts::read(&kept.path).and_then(|prompts| run.workload(Some(&prompts)).map(drop));
        prompts.unwrap_err().to_string().rsplit('/').next().unwrap().to_owned()
    };
    assert_eq!(
        said(&rows(8)),
        "prompts.jsonl: request 0: its prompt has 8 tokens here, 7 in the measured run"
    );
    assert!(
        said("{\"input_length\": 9, \"output_length\": 1, \"hash_ids\": [0, 1, 2, 3, 4, 5]}\n").contains(
            "hash_ids: with none of the block sizes 512, 16, 64, 32, 128, 256, 1024, 8, 4 a row has one id"
        )
    );
    assert!(said("x\n").contains("prompts.jsonl, line 1: "));
}

fn deployment(scheduler: &str, blocks: u32) -> Experiment {
    let text = format!(
        "engine:\n  model: m\n  hardware: h\n  workers:\n    aggregated:\n      scheduler: {scheduler}\n      kv_cache: \
         {{block_size: 16, capacity: {{type: fixed, blocks: {blocks}}}}}\n      timing: {{type: fixed, prefill_ms: 1, \
         decode_ms: 1}}\n"
    );
    from_str("case.yaml", &text, &[]).unwrap()
}

fn fitted(experiment: &Experiment, run: &MeasuredRun, kind: LawKind, first: usize) -> Result<Fit, FitError> {
    let requests = run.workload(None).unwrap();
    fit(experiment, run, &requests, kind, first, &Arc::new(AtomicBool::new(false)))
}

#[test]
fn pass_times_are_found_again() {
    let experiment = deployment("{max_batched_tokens: 512, max_sequences: 16}", 2_000);
    let law = Linear {
        base_ms: 9.0,
        per_new_token_ms: 0.06,
        per_new_times_context_ms: 2e-6,
        per_sequence_ms: 0.05,
        per_context_token_ms: 1e-4,
    };
    let run = simulated(&experiment, Law::Linear(law));
    for kind in [LawKind::Linear, LawKind::Table] {
        let fit = fitted(&experiment, &run, kind, 30).unwrap();
        let held_out = fit.held_out.unwrap();
        assert_eq!((fit.fitted.requests, held_out.requests), (30, 30));
        // Thirty requests do not tell the coefficients apart to the last digit; the times that follow they do.
        for (part, bound) in [(&fit.fitted, 1.0), (&held_out, 3.0)] {
            for name in ["mean_ttft_ms", "mean_tpot_ms", "mean_e2e_latency_ms", "duration_ms"] {
                let metric = part.get(name).unwrap();
                assert!(metric.error_pct.unwrap().abs() < bound, "{kind:?} {metric:?}");
            }
        }
    }
    let unanswered = fitted(&deployment("{max_batched_tokens: 512}", 40), &run, LawKind::Linear, 30);
    assert_eq!(
        unanswered.unwrap_err().to_string(),
        "request 3 was answered in the measured run, and is not in the simulated one: compare context length, capacity \
         and limits of the deployment with those of the engine"
    );
}

#[test]
fn passes_are_read_and_heartbeats_are_not() {
    let pass = |ms: f64, decodes: u32| {
        format!(
            "{{\"version\": 1, \"wall_time\": {}, \"scheduled_requests\": {{\"num_prefill_requests\": 0, \
             \"sum_prefill_tokens\": 0, \"num_decode_requests\": {decodes}, \"sum_decode_kv_tokens\": 90}}}}\n",
            ms / 1e3
        )
    };
    let text = pass(5.0, 3) + &pass(0.0, 0) + &pass(6.0, 4);
    let kept = file("passes.jsonl", &text);
    let passes = read_passes(&kept.path).unwrap();
    assert_eq!(
        passes.iter().map(|p| (p.ms, p.tokens, p.context)).collect::<Vec<_>>(),
        [(5.0, 3.0, 90.0), (6.0, 4.0, 90.0)]
    );
    let said = |text: &str| {
        let kept = file("passes.jsonl", text);
        read_passes(&kept.path).unwrap_err().to_string().rsplit('/').next().unwrap().to_owned()
    };
    assert_eq!(said(&pass(5.0, 3)), "passes.jsonl: holds 1 passes with a time; at least 2 are needed");
    assert_eq!(
        said(&pass(-5.0, 3)),
        "passes.jsonl:1: wall_time: got -0.005; allowed is a number of at least 0"
    );
    assert!(said("{}\n").starts_with("passes.jsonl:1: missing field `wall_time`"));
}

#[test]
fn a_real_run_is_predicted_from_its_first_hundred_requests() {
    let Some(datasets) = shared() else { return };
    // Settings and KV blocks as the runs' meta lines give them. The bounds are 5 % and 3 %.
    let cases = [
        ("RTX4090/Llama-3.1-8B", "{max_batched_tokens: 2048, max_sequences: 256}", 2_588),
        ("RTXPRO6000/Llama-3.1-8B", "{max_batched_tokens: 2048, max_sequences: 128}", 30_000),
    ];
    for (name, scheduler, blocks) in cases {
        let (run, prompts) = real_run(&datasets, name);
        let experiment = deployment(scheduler, blocks);
        let requests = run.workload(Some(&prompts)).unwrap();
        let interrupt = Arc::new(AtomicBool::new(false));
        let fit = fit(&experiment, &run, &requests, LawKind::Linear, 100, &interrupt).unwrap();
        let held_out = fit.held_out.unwrap();
        assert_eq!(held_out.requests, 200);
        for (metric, bound) in [("mean_ttft_ms", 5.0), ("mean_tpot_ms", 3.0)] {
            let metric = held_out.get(metric).unwrap();
            println!("{name} {metric:?}");
            assert!(metric.error_pct.unwrap().abs() < bound, "{name} {metric:?}");
        }
        let mut all = with_requests(&experiment, &run, &requests);
        all.deployment.timing =
            windtunnel_perf::TimingModel::new(fit.law, None, windtunnel_perf::Speedup::NONE).unwrap();
        let makespan = compare(&all, &run, &interrupt).unwrap().get("duration_ms").unwrap().clone();
        assert!(makespan.error_pct.unwrap().abs() < 2.0, "{name} {makespan:?}");
    }
}
