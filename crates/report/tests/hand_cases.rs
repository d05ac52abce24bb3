//! Cases small enough to compute by hand, each with the wrong answer that some tool has given for it.

mod common;

use common::{finish, metric, ms, report, request};
use windtunnel_engine::{FinishReason, Nanos, Rejection, RequestId};
use windtunnel_report::PercentileMethod::{Linear, NearestRankRound};
use windtunnel_report::{
    Collector, CollectorOptions, Number, Pool, RankRow, Refusal, Report, Role, RunEnd, Sla,
};

#[test]
fn a_stall_shows_in_the_gaps_and_the_mean_gap_of_a_request_is_tpot() {
    // Tokens at 0, 10, 20, 220, 230 ms: gaps 10, 10, 200, 10; (230 − 0)/4 = 57.5.
    let report = report(&[&[0.0, 10.0, 20.0, 220.0, 230.0]], Linear);
    assert_eq!(metric(&report, "mean_tpot_ms"), Some(57.5));
    assert_eq!(metric(&report, "p99_tpot_ms"), Some(57.5));
    assert_eq!(metric(&report, "num_itl_samples"), Some(4.0));
    assert_eq!(metric(&report, "mean_itl_ms"), Some(57.5));
    assert_eq!(metric(&report, "max_itl_ms"), Some(200.0));
    assert_eq!(metric(&report, "median_itl_ms"), Some(10.0));
    // (4 − 1)·0.99 = 2.97 between 10 and 200.
    assert_eq!(metric(&report, "p99_itl_ms"), Some(194.3));
    // Rates 5, 100, 100, 100 tokens/s.
    assert_eq!(metric(&report, "mean_output_token_throughput_per_user"), Some(76.25));
    assert_eq!(metric(&report, "min_output_token_throughput_per_user"), Some(5.0));
    assert_eq!(metric(&report, "median_output_token_throughput_per_user"), Some(100.0));
}

#[test]
fn tpot_weighs_requests_not_tokens() {
    // 2 tokens at 100 ms and 101 tokens at 10 ms: (100 + 10)/2 = 55, not (100 + 100·10)/101 = 10.9.
    let long: Vec<f64> = (0..101).map(|i| 10.0 * f64::from(i)).collect();
    let report = report(&[&[0.0, 100.0], &long], Linear);
    assert_eq!(metric(&report, "mean_tpot_ms"), Some(55.0));
    assert_eq!(metric(&report, "num_tpot_samples"), Some(2.0));
    assert_eq!(metric(&report, "num_itl_samples"), Some(101.0));
}

#[test]
fn the_first_token_has_no_gap() {
    let report = report(&[&[250.0, 260.0, 270.0]], Linear);
    assert_eq!(metric(&report, "max_itl_ms"), Some(10.0));
    assert_eq!(metric(&report, "num_itl_samples"), Some(2.0));
    assert_eq!(metric(&report, "mean_ttft_ms"), Some(250.0));
    assert_eq!(metric(&report, "mean_ttst_ms"), Some(10.0));
}

#[test]
fn without_output_there_is_no_latency_and_no_gap() {
    let mut silent = request(0, &[]);
    silent.terminal = ms(10.0);
    let mut collector = Collector::new(CollectorOptions::default());
    collector.finished(&silent);
    let report = Report::new([collector], &RunEnd::default());
    assert_eq!(report.summary.get("completed_requests"), Number::Integer(1));
    assert_eq!(report.summary.get("duration_ms"), Number::Real(10.0));
    for metric in ["ttft", "ttst", "tpot", "itl", "e2e_latency"] {
        assert_eq!(report.summary.get(&format!("num_{metric}_samples")), Number::Integer(0), "{metric}");
        for statistic in ["mean", "min", "max", "median", "p99", "std"] {
            assert_eq!(report.summary.get(&format!("{statistic}_{metric}_ms")), Number::Null, "{metric}");
        }
    }
}

#[test]
fn one_token_has_a_first_token_and_nothing_more() {
    let report = report(&[&[10.0]], Linear);
    assert_eq!(metric(&report, "mean_ttft_ms"), Some(10.0));
    assert_eq!(metric(&report, "mean_e2e_latency_ms"), Some(10.0));
    assert_eq!(metric(&report, "mean_ttst_ms"), None);
    assert_eq!(metric(&report, "mean_tpot_ms"), None);
    assert_eq!(metric(&report, "mean_itl_ms"), None);
}

#[test]
fn four_latencies_under_both_methods() {
    let four: [&[f64]; 4] = [&[12.0], &[14.0], &[16.0], &[18.0]];
    let nearest = report(&four, NearestRankRound);
    assert_eq!(metric(&nearest, "mean_e2e_latency_ms"), Some(15.0));
    assert_eq!(metric(&nearest, "median_e2e_latency_ms"), Some(16.0));
    assert_eq!(metric(&nearest, "p75_e2e_latency_ms"), Some(16.0));
    assert_eq!(metric(&nearest, "p90_e2e_latency_ms"), Some(18.0));
    assert_eq!(format!("{:.5}", metric(&nearest, "std_e2e_latency_ms").unwrap()), "2.23607");
    assert_eq!(nearest.summary.get("percentile_method"), Number::Word("nearest_rank_round"));

    let linear = report(&four, Linear);
    assert_eq!(metric(&linear, "median_e2e_latency_ms"), Some(15.0));
    assert_eq!(metric(&linear, "p75_e2e_latency_ms"), Some(16.5));
    assert_eq!(metric(&linear, "p90_e2e_latency_ms"), Some(17.4));
}

#[test]
fn tokens_at_one_instant_make_gaps_of_zero_without_a_rate() {
    // Two accepted drafts per pass: tokens at 10, 20, 20, 20, 30, 30, 30.
    let report = report(&[&[10.0, 20.0, 20.0, 20.0, 30.0, 30.0, 30.0]], Linear);
    assert_eq!(metric(&report, "num_itl_samples"), Some(6.0));
    assert_eq!(metric(&report, "min_itl_ms"), Some(0.0));
    assert_eq!(metric(&report, "median_itl_ms"), Some(0.0));
    assert_eq!(metric(&report, "max_itl_ms"), Some(10.0));
    assert_eq!(metric(&report, "max_output_token_throughput_per_user"), Some(100.0));
    assert_eq!(metric(&report, "min_output_token_throughput_per_user"), Some(100.0));
    assert_eq!(metric(&report, "std_output_token_throughput_per_user"), Some(0.0));
}

#[test]
fn a_hit_rate_counts_tokens() {
    // A prompt of 40 tokens in blocks of 16, one block cached: 16/40, not 1/3.
    let mut collector = Collector::new(CollectorOptions::default());
    let row = RankRow::new(Role::Aggregated, 0, 0, 100);
    collector.rank(RankRow { prefix_cache_queries: 40, prefix_cache_hits: 16, ..row });
    let report = Report::new([collector], &RunEnd::default());
    assert_eq!(metric(&report, "prefix_cache_hit_rate"), Some(0.4));
}

#[test]
fn reuse_never_exceeds_the_prompt() {
    // Resumed after a preemption, a request of 8 prompt tokens finds 12 of its own.
    let mut collector = Collector::new(CollectorOptions::default());
    collector.finished(&windtunnel_report::RequestRecord { reused_tokens: 12, ..request(0, &[10.0]) });
    collector.finished(&request(1, &[10.0]));
    let report = Report::new([collector], &RunEnd::default());
    assert_eq!(metric(&report, "prefix_cache_reused_ratio"), Some(0.5));
    assert_eq!(metric(&report, "first_admission_prefix_cache_reused_ratio"), Some(0.0));
}

#[test]
fn requests_that_did_not_complete_are_counted_and_measured_nowhere() {
    let mut collector = Collector::new(CollectorOptions::default());
    finish(&mut collector, &[10.0, 20.0], 0);
    collector.rejected(&Refusal {
        id: RequestId(1),
        name: None,
        placed: None,
        arrival: Nanos::ZERO,
        refused: ms(5000.0),
        input_tokens: 0,
        requested_output_tokens: 1,
        reason: Rejection::EmptyPrompt,
    });
    collector.cancelled(&request(2, &[9000.0]));
    // Nobody but its engine gave this one up.
    let aborted = FinishReason::Abort;
    collector.finished(&windtunnel_report::RequestRecord { finish_reason: aborted, ..request(3, &[9000.0]) });
    collector.failed(&request(4, &[9000.0]), "the decode worker was removed");
    let run = RunEnd { end: ms(10_000.0), unfinished: 2, ..RunEnd::default() };
    let report = Report::new([collector], &run);
    for (name, want) in [
        ("num_requests", 7.0),
        ("completed_requests", 1.0),
        ("rejected_requests", 1.0),
        ("cancelled_requests", 1.0),
        ("failed_requests", 2.0),
        ("unfinished_requests", 2.0),
        ("num_ttft_samples", 1.0),
        ("total_output_tokens", 2.0),
        ("duration_ms", 20.0),
        ("output_throughput_tok_s", 100.0),
    ] {
        assert_eq!(metric(&report, name), Some(want), "{name}");
    }
}

#[test]
fn goodput_keeps_every_bound_that_is_set() {
    let tokens = |ttft: Option<f64>, itl: Option<f64>| Sla::Tokens { ttft: ttft.map(ms), itl: itl.map(ms) };
    // TTFT 10 and gaps of 5 and 15 (mean 10); TTFT 30 and one token; no token at all, ended at 10.
    let good = |sla: Sla| {
        let mut collector = Collector::new(CollectorOptions { sla: Some(sla), capture: false });
        collector.finished(&request(0, &[10.0, 15.0, 30.0]));
        collector.finished(&request(1, &[30.0]));
        let silent = request(2, &[]);
        collector.finished(&windtunnel_report::RequestRecord { terminal: ms(10.0), ..silent });
        metric(&Report::new([collector], &RunEnd::default()), "goodput_completed_requests").unwrap()
    };
    assert_eq!(good(tokens(Some(10.0), None)), 1.0);
    assert_eq!(good(tokens(Some(30.0), None)), 2.0);
    assert_eq!(good(tokens(None, Some(10.0))), 2.0, "one token has no gap to fail by");
    assert_eq!(good(tokens(None, Some(9.999_999))), 1.0);
    assert_eq!(good(tokens(Some(10.0), Some(9.999_999))), 0.0);
    assert_eq!(good(Sla::E2e(ms(30.0))), 3.0, "without a token only an E2E bound can be kept");
    assert_eq!(good(Sla::E2e(ms(29.0))), 1.0);
}

#[test]
fn provisioned_time_becomes_gpu_hours() {
    // Half an hour of two prefill workers with one GPU and of one decode worker with four.
    let half_hour = 1_800_000_000_000u128;
    let run = RunEnd {
        prefill: Pool { worker_time: 2 * half_hour, gpus_per_worker: 1 },
        decode: Pool { worker_time: half_hour, gpus_per_worker: 4 },
        ..RunEnd::default()
    };
    let report = Report::new([], &run);
    assert_eq!(metric(&report, "prefill_worker_seconds"), Some(3600.0));
    assert_eq!(metric(&report, "decode_worker_seconds"), Some(1800.0));
    assert_eq!(metric(&report, "gpu_hours"), Some(3.0));
}

#[test]
fn whole_nanoseconds_print_exactly() {
    let report = report(&[&[169.136918]], Linear);
    let json = serde_json::to_string(&report.summary).unwrap();
    assert!(json.contains(r#""mean_ttft_ms":169.136918,"#), "{json}");
    assert!(json.contains(r#""p99_e2e_latency_ms":169.136918,"#), "{json}");
    assert!(json.contains(r#""duration_ms":169.136918,"#), "{json}");
}
