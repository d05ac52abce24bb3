//! Synthetic workloads: sizes, counts, and the times of each kind of arrival.

use windtunnel_engine::Content;
use windtunnel_traffic::{Arrival, Arrivals, Synthetic, TrafficError, WorkloadSource};

fn workload(requests: u64, arrivals: Arrivals) -> Result<Vec<Arrival>, TrafficError> {
    WorkloadSource::Synthetic(Synthetic {
        input_tokens: 1024,
        output_tokens: 128,
        shortest_share: None,
        length_seed: 42,
        requests,
        arrivals,
    })
    .open()?
    .collect()
}

fn times(requests: u64, arrivals: Arrivals) -> Vec<u64> {
    workload(requests, arrivals).unwrap().iter().map(|arrival| arrival.at.0).collect()
}

#[test]
fn requests_are_equal_and_private() {
    let all = workload(3, Arrivals::AtOnce).unwrap();
    for (ordinal, arrival) in (0..).zip(&all) {
        let request = &arrival.request;
        assert_eq!((request.id.0, request.tie, arrival.at.0), (ordinal, ordinal, 0));
        assert_eq!((request.prompt_tokens, request.output.max_tokens), (1024, 128));
        assert_eq!((&request.content, &request.output.tokens), (&Content::Private, &None));
        assert_eq!(request.arrival, arrival.at);
    }
    assert_eq!(all.len(), 3);
}

#[test]
fn a_constant_rate_is_not_a_sum_of_rounded_gaps() {
    let rate = Arrivals::Constant { requests_per_second: 3.0 };
    let got = times(4, rate);
    assert_eq!(got, [0, 333_333_333, 666_666_667, 1_000_000_000]);
    assert_eq!(times(3_000_001, rate).last(), Some(&1_000_000_000_000_000));
}

#[test]
fn poisson_arrivals_are_a_function_of_the_seed() {
    let poisson = |seed| Arrivals::Poisson { requests_per_second: 50.0, seed };
    let first = times(5, poisson(42));
    assert_eq!(first[0], 0, "the first arrival is at 0");
    assert_eq!(first, POISSON_42);
    assert_ne!(first[1], times(2, poisson(43))[1]);
    assert_eq!(times(3, poisson(42)), first[..3]);
}

/// Recorded once: a change of these numbers changes every Poisson workload.
const POISSON_42: [u64; 5] = [0, 7_657_557, 8_677_626, 25_672_878, 34_997_556];

#[test]
fn poisson_gaps_have_the_mean_and_deviation_of_an_exponential() {
    let n = 200_000u64;
    let got = times(n, Arrivals::Poisson { requests_per_second: 50.0, seed: 7 });
    let gaps: Vec<f64> = got.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
    assert!((mean - 20.0).abs() < 0.2, "{mean}");
    assert!((deviation - 20.0).abs() < 0.3, "{deviation}");
    let longer = gaps.iter().filter(|&&gap| gap > 20.0).count() as f64 / gaps.len() as f64;
    assert!((longer - (-1.0f64).exp()).abs() < 0.005, "{longer}");
}

#[test]
fn settings_without_meaning_are_refused() {
    let refusal = |plan: Synthetic| WorkloadSource::Synthetic(plan).open().unwrap_err().to_string();
    let plan = Synthetic {
        input_tokens: 8,
        output_tokens: 4,
        shortest_share: None,
        length_seed: 42,
        requests: 2,
        arrivals: Arrivals::AtOnce,
    };
    assert_eq!(
        refusal(Synthetic { input_tokens: 0, ..plan.clone() }),
        "input_tokens: 0 must be from 1 to 16777216"
    );
    assert_eq!(
        refusal(Synthetic { output_tokens: u32::MAX, ..plan.clone() }),
        "output_tokens: 4294967295 must be from 1 to 16777216"
    );
    assert_eq!(refusal(Synthetic { requests: 0, ..plan.clone() }), "requests: 0 must be at least 1");
    for rate in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let arrivals = Arrivals::Constant { requests_per_second: rate };
        let expected = format!("requests_per_second: {rate} must be a finite number above 0");
        assert_eq!(refusal(Synthetic { arrivals, ..plan.clone() }), expected);
    }
    let slow = workload(3, Arrivals::Constant { requests_per_second: 1e-10 }).unwrap_err().to_string();
    assert_eq!(
        slow,
        "traffic.stop.requests: 3 are too many: at traffic.load.requests_per_second 1e-10 request 1 would \
         arrive after the longest run of 292 years"
    );
}
