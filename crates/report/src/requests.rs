//! requests.jsonl: one compact object per request that ended, in the order of the workload. Every line
//! has the same fields; what is undefined for a request is null. The latencies themselves are defined
//! with the record.

use crate::json_line;
use crate::ratio::ratio;
use crate::record::{Captured, Refusal, RequestRecord};
use crate::report::Report;
use serde::Serialize;
use std::io::{self, Write};
use windtunnel_engine::{FinishReason, Nanos};

impl Report {
    /// Writes requests.jsonl. Nothing is written unless requests were captured.
    pub fn write_requests(&self, out: &mut impl Write) -> io::Result<()> {
        for request in self.requests.iter().flatten() {
            json_line::write(out, &Line::new(request))?;
        }
        Ok(())
    }

    /// Whether requests were captured.
    pub fn has_requests(&self) -> bool {
        self.requests.is_some()
    }
}

#[derive(Debug, Default, Serialize)]
struct Line<'a> {
    request_index: u64,
    request_id: Option<&'a str>,
    arrival_time_ms: f64,
    dispatched_at_ms: Option<f64>,
    first_admit_ms: Option<f64>,
    terminal_time_ms: f64,
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    ttft_ms: Option<f64>,
    ttst_ms: Option<f64>,
    e2e_latency_ms: Option<f64>,
    itl_ms: Option<f64>,
    input_length: u32,
    requested_output_length: u32,
    output_length: u32,
    reused_input_tokens: u32,
    first_admission_reused_input_tokens: u32,
    prefill_worker_idx: Option<u32>,
    decode_worker_idx: Option<u32>,
    dp_rank: Option<u32>,
    router_overlap_tokens: Option<u32>,
    router_best_overlap_tokens: Option<u32>,
    router_regret_tokens: Option<u32>,
    #[serde(flatten)]
    below: Option<BelowLine>,
    admission_count: u32,
    readmission_count: u32,
    preemption_count: u32,
    retry_count: u32,
    finish_reason: Option<&'static str>,
    terminal_status: &'static str,
    reject_reason: Option<&'static str>,
    detail: Option<String>,
}

/// What there is more of a request that was routed by lower tiers, too.
#[derive(Debug, Serialize)]
struct BelowLine {
    router_host_overlap_tokens: u32,
    router_disk_overlap_tokens: u32,
}

impl<'a> Line<'a> {
    fn new(request: &'a Captured) -> Line<'a> {
        match request {
            Captured::Completed(record) => Line {
                finish_reason: Some(record.finish_reason.as_str()),
                terminal_status: "completed",
                ..Line::of(record)
            },
            Captured::Cancelled(record) => Line {
                finish_reason: Some(FinishReason::Abort.as_str()),
                terminal_status: "canceled",
                ..Line::of(record)
            },
            Captured::Failed(record, cause) => {
                Line { terminal_status: "failed", detail: Some(cause.to_string()), ..Line::of(record) }
            }
            Captured::Unplaced(record, cause) => Line {
                terminal_status: "failed",
                detail: Some(cause.to_string()),
                decode_worker_idx: None,
                dp_rank: None,
                ..Line::of(record)
            },
            Captured::Refused(refusal) => Line::of_refusal(refusal),
        }
    }

    fn of(record: &'a RequestRecord) -> Line<'a> {
        let ms = |time: Option<Nanos>| time.map(Nanos::as_ms);
        Line {
            request_index: record.id.0,
            request_id: record.name.as_deref(),
            arrival_time_ms: record.arrival.as_ms(),
            dispatched_at_ms: Some(record.dispatched.as_ms()),
            first_admit_ms: ms(record.first_admit),
            terminal_time_ms: record.terminal.as_ms(),
            first_token_ms: ms(record.first_token),
            last_token_ms: ms(record.last_token),
            ttft_ms: ms(record.ttft()),
            ttst_ms: ms(record.ttst()),
            e2e_latency_ms: ms(record.e2e()),
            itl_ms: record.tpot_picos().and_then(|picos| ratio(picos.into(), 1_000_000_000)),
            input_length: record.input_tokens,
            requested_output_length: record.requested_output_tokens,
            output_length: record.output_tokens,
            reused_input_tokens: record.reused_prompt_tokens(),
            first_admission_reused_input_tokens: record.first_admission_reused_prompt_tokens(),
            prefill_worker_idx: record.prefill_worker,
            decode_worker_idx: Some(record.worker),
            dp_rank: Some(record.rank),
            router_overlap_tokens: record.routing.map(|routing| routing.overlap),
            router_best_overlap_tokens: record.routing.map(|routing| routing.best_overlap),
            router_regret_tokens: record.routing.map(|routing| routing.regret()),
            below: record.routing.and_then(|routing| routing.below).map(|(host, disk)| BelowLine {
                router_host_overlap_tokens: host,
                router_disk_overlap_tokens: disk,
            }),
            admission_count: record.admissions,
            readmission_count: record.admissions.saturating_sub(1),
            preemption_count: record.preemptions,
            retry_count: record.retries,
            ..Line::default()
        }
    }

    fn of_refusal(refusal: &'a Refusal) -> Line<'a> {
        Line {
            request_index: refusal.id.0,
            request_id: refusal.name.as_deref(),
            arrival_time_ms: refusal.arrival.as_ms(),
            // An engine refuses a request at the instant at which it is placed.
            dispatched_at_ms: refusal.placed.map(|_| refusal.refused.as_ms()),
            terminal_time_ms: refusal.refused.as_ms(),
            input_length: refusal.input_tokens,
            requested_output_length: refusal.requested_output_tokens,
            decode_worker_idx: refusal.placed.map(|(worker, _)| worker),
            dp_rank: refusal.placed.map(|(_, rank)| rank),
            terminal_status: "rejected",
            reject_reason: Some(refusal.reason.kind()),
            detail: Some(refusal.reason.to_string()),
            ..Line::default()
        }
    }
}
