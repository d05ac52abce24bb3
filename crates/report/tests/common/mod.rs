//! Requests and runs for the tests of this crate: the shortest way to write a case down.
#![allow(dead_code)] // Each test binary uses its own part.

use windtunnel_engine::{FinishReason, Nanos, RequestId};
use windtunnel_report::{Collector, CollectorOptions, PercentileMethod, Report, RequestRecord, RunEnd};

pub fn ms(ms: f64) -> Nanos {
    Nanos::from_ms(ms).unwrap()
}

/// A request that arrived at 0 and gave its tokens at `tokens_ms`.
pub fn request(id: u64, tokens_ms: &[f64]) -> RequestRecord {
    let at = |i: usize| tokens_ms.get(i).copied().map(ms);
    let last = tokens_ms.last().copied().map(ms);
    RequestRecord {
        id: RequestId(id),
        name: None,
        worker: 0,
        rank: 0,
        prefill_worker: None,
        routing: None,
        arrival: Nanos::ZERO,
        dispatched: Nanos::ZERO,
        first_admit: Some(Nanos::ZERO),
        first_token: at(0),
        second_token: at(1),
        last_token: last,
        terminal: last.unwrap_or(Nanos::ZERO),
        input_tokens: 8,
        requested_output_tokens: tokens_ms.len() as u32,
        output_tokens: tokens_ms.len() as u32,
        first_admission_reused_tokens: 0,
        reused_tokens: 0,
        admissions: 1,
        preemptions: 0,
        retries: 0,
        finish_reason: FinishReason::Length,
    }
}

/// Enters a request and each of its gaps.
pub fn finish(collector: &mut Collector, tokens_ms: &[f64], id: u64) {
    for pair in tokens_ms.windows(2) {
        collector.gap(ms(pair[1]).since(ms(pair[0])), 1);
    }
    collector.finished(&request(id, tokens_ms));
}

/// The report of requests that gave tokens at these times.
pub fn report(requests: &[&[f64]], percentiles: PercentileMethod) -> Report {
    let mut collector = Collector::new(CollectorOptions::default());
    for (id, tokens_ms) in requests.iter().enumerate() {
        finish(&mut collector, tokens_ms, id as u64);
    }
    Report::new([collector], &RunEnd { percentiles, ..RunEnd::default() })
}

/// A metric, none where it is null.
pub fn metric(report: &Report, name: &str) -> Option<f64> {
    report.summary.get(name).as_f64()
}
