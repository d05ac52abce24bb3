//! What must hold for every run: order of latencies, number of gaps, order of percentiles, ratios in
//! [0, 1], and the same bytes however the work was spread over collectors and threads.

mod common;

use common::{metric, request};
use proptest::prelude::*;
use std::collections::BTreeMap;
use windtunnel_engine::{Nanos, Rejection, RequestId};
use windtunnel_report::{
    Collector, CollectorOptions, PercentileMethod, Prediction, RankRow, Refusal, Report, RequestRecord, Role,
    RunEnd, Sla,
};

const SLA: Sla = Sla::Tokens { ttft: Some(Nanos(40_000_000)), itl: Some(Nanos(30_000_000)) };
const OPTIONS: CollectorOptions = CollectorOptions { sla: Some(SLA), capture: true };

/// What a worker tells its collector.
#[derive(Clone, Debug)]
enum Told {
    Gap(Nanos, u64),
    Finished(RequestRecord),
    Cancelled(RequestRecord),
    Rejected(Refusal),
    Rank(RankRow),
}

fn tell(collector: &mut Collector, told: &Told) {
    match told {
        Told::Gap(gap, count) => collector.gap(*gap, *count),
        Told::Finished(request) => collector.finished(request),
        Told::Cancelled(request) => collector.cancelled(request),
        Told::Rejected(refusal) => collector.rejected(refusal),
        Told::Rank(row) => collector.rank(*row),
    }
}

/// Gaps as they occur: often the same one, often zero, sometimes hours.
fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![Just(12_000_000), Just(0), 0u64..100_000_000, 0u64..1 << 43]
}

/// A request with consistent stamps, and its gaps.
fn lifetime(id: u64) -> impl Strategy<Value = (RequestRecord, Vec<u64>)> {
    let stamps = (0u64..1 << 40, 0u64..1 << 35, 0u64..1 << 36);
    (stamps, prop::collection::vec(gap(), 0..6), 0u32..100, 0u32..100).prop_map(
        move |((arrival, queued, computed), gaps, reused, more)| {
            let admitted = arrival + queued;
            let first = admitted + computed;
            let last = first + gaps.iter().sum::<u64>();
            let record = RequestRecord {
                arrival: Nanos(arrival),
                dispatched: Nanos(arrival),
                first_admit: Some(Nanos(admitted)),
                first_token: Some(Nanos(first)),
                second_token: gaps.first().map(|gap| Nanos(first + gap)),
                last_token: Some(Nanos(last)),
                terminal: Nanos(last),
                input_tokens: 60,
                output_tokens: gaps.len() as u32 + 1,
                first_admission_reused_tokens: reused.min(59),
                reused_tokens: reused.min(59) + more,
                ..request(id, &[])
            };
            (record, gaps)
        },
    )
}

fn lifetimes() -> impl Strategy<Value = Vec<(RequestRecord, Vec<u64>)>> {
    (0usize..12).prop_flat_map(|n| (0..n as u64).map(lifetime).collect::<Vec<_>>())
}

fn told(id: u64) -> impl Strategy<Value = Told> {
    let row =
        (0u32..3, 0u32..2, 0u64..1000, 1u64..50, 0u64..50).prop_map(|(worker, rank, n, usable, used)| {
            Told::Rank(RankRow {
                passes: n,
                prefill_tokens: 3 * n,
                prefix_cache_queries: n,
                prefix_cache_hits: n / 2,
                peak_kv_blocks: used.min(usable),
                busy: Nanos(n),
                ..RankRow::new(Role::Aggregated, worker, rank, usable)
            })
        });
    prop_oneof![
        6 => (gap(), 1u64..300).prop_map(|(gap, count)| Told::Gap(Nanos(gap), count)),
        4 => lifetime(id).prop_map(|(record, _)| Told::Finished(record)),
        1 => lifetime(id).prop_map(|(record, _)| Told::Cancelled(record)),
        1 => Just(Told::Rejected(Refusal {
            id: RequestId(id),
            name: Some("late".into()),
            placed: Some((1, 0)),
            arrival: Nanos(id),
            refused: Nanos(id),
            input_tokens: 9,
            requested_output_tokens: 1,
            reason: Rejection::QueueFull { max_num_queued_reqs: 4 },
        })),
        1 => row,
    ]
}

/// What is told, and to which collector.
fn stories() -> impl Strategy<Value = Vec<(Told, usize)>> {
    (0usize..80).prop_flat_map(|n| (0..n as u64).map(|id| (told(id), 0usize..4)).collect::<Vec<_>>())
}

fn method() -> impl Strategy<Value = PercentileMethod> {
    prop_oneof![Just(PercentileMethod::Linear), Just(PercentileMethod::NearestRankRound)]
}

/// Everything that is written of a run.
fn bytes(collectors: Vec<Collector>, percentiles: PercentileMethod) -> Vec<u8> {
    let report = Report::new(collectors, &RunEnd { percentiles, ..RunEnd::default() });
    let (versions, config) = (BTreeMap::new(), serde_json::Value::Null);
    let prediction = Prediction::new(&report, &versions, "native", &config);
    let mut bytes = serde_json::to_vec(&prediction).unwrap();
    report.write_requests(&mut bytes).unwrap();
    bytes.extend(windtunnel_report::table(&report, false).into_bytes());
    bytes
}

const LATENCIES: [&str; 5] = ["ttft_ms", "ttst_ms", "tpot_ms", "itl_ms", "e2e_latency_ms"];

proptest! {
    #[test]
    fn every_request_waits_before_it_gives_a_token_and_ends_after_it((record, _) in lifetime(0)) {
        prop_assert!(record.e2e() >= record.ttft());
        prop_assert!(record.ttft() >= record.queue_time());
    }

    #[test]
    fn a_run_is_consistent(lifetimes in lifetimes(), percentiles in method()) {
        let mut collector = Collector::new(OPTIONS);
        for (record, gaps) in &lifetimes {
            gaps.iter().for_each(|&gap| collector.gap(Nanos(gap), 1));
            collector.finished(record);
        }
        let report = Report::new([collector], &RunEnd { percentiles, ..RunEnd::default() });
        let get = |name: String| metric(&report, &name);

        // One gap fewer than tokens, for each request.
        let gaps: u32 = lifetimes.iter().map(|(record, _)| record.output_tokens - 1).sum();
        prop_assert_eq!(get("num_itl_samples".into()), Some(f64::from(gaps)));

        // A request's E2E is never below its TTFT, so no statistic of order is.
        for statistic in ["mean", "min", "max", "median", "p75", "p90", "p95", "p99"] {
            let (e2e, ttft) = (format!("{statistic}_e2e_latency_ms"), format!("{statistic}_ttft_ms"));
            prop_assert!(get(e2e) >= get(ttft), "{statistic}");
        }

        for name in LATENCIES.into_iter().chain(["output_token_throughput_per_user"]) {
            let ascending: Vec<f64> = ["min", "median", "p75", "p90", "p95", "p99", "max"]
                .iter()
                .filter_map(|statistic| get(format!("{statistic}_{name}")))
                .collect();
            prop_assert!(ascending.is_sorted(), "{name}: {ascending:?}");
            prop_assert!(ascending.is_empty() || ascending.len() == 7, "all or none of {name}");
            if let (Some(min), Some(mean), Some(max)) =
                (get(format!("min_{name}")), get(format!("mean_{name}")), get(format!("max_{name}")))
            {
                prop_assert!(min <= mean && mean <= max, "{name}: {min} <= {mean} <= {max}");
                let std = get(format!("std_{name}"));
                prop_assert!(std.is_some_and(|std| std >= 0.0 && std <= max - min), "{name}: {std:?}");
            }
        }

        for ratio in ["prefix_cache_reused_ratio", "first_admission_prefix_cache_reused_ratio"] {
            let share = metric(&report, ratio);
            prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
            prop_assert_eq!(share.is_none(), lifetimes.is_empty());
        }
        let good = get("goodput_completed_requests".into());
        prop_assert!(good <= get("completed_requests".into()));
    }

    #[test]
    fn bytes_do_not_depend_on_who_counted(stories in stories(), percentiles in method()) {
        let mut all = Collector::new(OPTIONS);
        let mut spread = vec![Collector::new(OPTIONS); 4];
        for (told, worker) in &stories {
            tell(&mut all, told);
            tell(&mut spread[*worker], told);
        }
        let mut reversed = spread.clone();
        reversed.reverse();
        let one = bytes(vec![all], percentiles);
        prop_assert_eq!(&one, &bytes(spread, percentiles));
        prop_assert_eq!(&one, &bytes(reversed, percentiles), "not even on the order of the merge");
    }

    #[test]
    fn the_histogram_reads_percentiles_of_gaps_within_its_error(
        mut gaps in prop::collection::vec(gap(), 1..100),
        percentiles in method(),
    ) {
        let mut collector = Collector::new(CollectorOptions::default());
        gaps.iter().for_each(|&gap| collector.gap(Nanos(gap), 1));
        let report = Report::new([collector], &RunEnd { percentiles, ..RunEnd::default() });
        gaps.sort_unstable();
        for (name, p) in [("median", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0)] {
            let position = (gaps.len() - 1) as f64 * p / 100.0;
            let exact = match percentiles {
                PercentileMethod::NearestRankRound => gaps[position.round() as usize] as f64,
                PercentileMethod::Linear => {
                    let (low, high) = (gaps[position.floor() as usize], gaps[position.ceil() as usize]);
                    low as f64 + (high - low) as f64 * position.fract()
                }
            };
            let got = metric(&report, &format!("{name}_itl_ms")).unwrap() * 1e6;
            prop_assert!((got - exact).abs() <= exact / 1024.0 + 1e-3, "{name}: {got} for {exact}");
        }
    }
}

#[test]
fn threads_fill_collectors_and_leave_no_trace() {
    let fill = |worker: u64| {
        let mut collector = Collector::new(OPTIONS);
        for i in 0..1000 {
            let id = i * 4 + worker;
            let first = 5.0 + (id % 17) as f64;
            common::finish(&mut collector, &[first, first + 12.0, first + 24.0 + worker as f64], id);
        }
        collector
    };
    let alone: Vec<Collector> = (0..4).map(fill).collect();
    let together: Vec<Collector> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|worker| scope.spawn(move || fill(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(bytes(alone, PercentileMethod::Linear), bytes(together, PercentileMethod::Linear));
}
