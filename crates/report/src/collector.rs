//! Gathers what happens while a run goes on: one collector per worker, filled by whichever thread
//! advances that worker, merged in worker order at the end.
//!
//! Only sums, a histogram and four numbers per finished request are kept, unless every request was
//! asked for. What the numbers mean for users is made elsewhere.

use crate::gaps::Gaps;
use crate::rank::RankRow;
use crate::record::{Captured, Refusal, RequestRecord};
use crate::samples::Samples;
use crate::sla::Sla;
use std::collections::BTreeMap;
use windtunnel_engine::{FinishReason, Nanos};

/// Why an engine gives up a request that it took: SGLang, when it had to take back the memory of all that run, and
/// the last one does not fit even alone.
const GIVEN_UP: &str = "the engine gave it up: the KV cache has no room for it, even alone";

/// Why an engine ends a request that waited for KV (vLLM `kv_load_failure_policy: fail`).
const LOAD_FAILED: &str = "its KV could not be loaded";

/// What a collector keeps. The same for every collector of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorOptions {
    /// Count goodput by this promise.
    pub sla: Option<Sla>,
    /// Keep every request for requests.jsonl.
    pub capture: bool,
}

/// Everything the report will need to know of one worker.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    pub(crate) options: CollectorOptions,
    pub(crate) gaps: Gaps,
    pub(crate) latencies: Latencies,
    pub(crate) counts: Counts,
    /// Rejected requests by [`windtunnel_engine::Rejection::kind`].
    pub(crate) rejections: BTreeMap<&'static str, u64>,
    pub(crate) ranks: Vec<RankRow>,
    pub(crate) captured: Vec<Captured>,
}

/// Sums over what was collected up to now: what differs between two instants happened between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoFar {
    /// Completed requests.
    pub completed: u64,
    /// Their prompt tokens.
    pub input_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// Their prompt tokens that were found in the cache.
    pub reused_tokens: u64,
    /// Gaps between two tokens of a request.
    pub gaps: u64,
    /// Their sum, in nanoseconds.
    pub gap_time: u128,
}

/// Exact values of completed requests: 32 bytes each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    /// Nanoseconds.
    pub ttft: Samples,
    /// Nanoseconds.
    pub ttst: Samples,
    /// Picoseconds.
    pub tpot: Samples,
    /// Nanoseconds.
    pub e2e: Samples,
}

/// Requests and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub completed: u64,
    pub rejected: u64,
    pub cancelled: u64,
    pub failed: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub reused_tokens: u64,
    pub first_admission_reused_tokens: u64,
    /// What the router knew of prompts, where it looked: all their tokens, those cached where it sent them, and
    /// where most were.
    pub routed: [u64; 3],
    /// Completed requests that the router held back.
    pub held: u64,
    /// For how long, in nanoseconds.
    pub held_time: u128,
    /// Completed requests whose engine cut their outputs before it began, and that gave fewer for it.
    pub cut: u64,
    /// Ended requests whose worker crashed before, and how often in all.
    pub retried: u64,
    pub retries: u64,
    pub good: u64,
    pub good_output_tokens: u64,
    /// End of the completed request that ended last.
    pub last_completed: Option<Nanos>,
}

impl Collector {
    /// An empty collector.
    pub fn new(options: CollectorOptions) -> Collector {
        Collector { options, ..Collector::default() }
    }

    /// `count` requests gave a token `gap` after their previous one. The first token of a request has no
    /// gap. About 10 ns; less when the gap equals that of the call before.
    #[inline]
    pub fn gap(&mut self, gap: Nanos, count: u64) {
        self.gaps.add(gap, count);
    }

    /// Sums up to now.
    pub fn so_far(&self) -> SoFar {
        let (gaps, gap_time) = self.gaps.so_far();
        let Counts { completed, input_tokens, output_tokens, reused_tokens, .. } = self.counts;
        SoFar { completed, input_tokens, output_tokens, reused_tokens, gaps, gap_time }
    }

    /// A request came to its end. One that its engine gave up has failed.
    pub fn finished(&mut self, request: &RequestRecord) {
        match request.finish_reason {
            FinishReason::Abort => return self.failed(request, GIVEN_UP),
            FinishReason::Error => return self.failed(request, LOAD_FAILED),
            FinishReason::Length | FinishReason::Stop => {}
        }
        self.retried(request);
        self.latencies.ttft.add(request.ttft().map(|time| time.0));
        self.latencies.ttst.add(request.ttst().map(|time| time.0));
        self.latencies.tpot.add(request.tpot_picos());
        self.latencies.e2e.add(request.e2e().map(|time| time.0));
        let counts = &mut self.counts;
        counts.completed += 1;
        counts.input_tokens += u64::from(request.input_tokens);
        counts.output_tokens += u64::from(request.output_tokens);
        counts.reused_tokens += u64::from(request.reused_prompt_tokens());
        counts.first_admission_reused_tokens += u64::from(request.first_admission_reused_prompt_tokens());
        if let Some(routing) = request.routing {
            let known = [request.input_tokens, routing.overlap, routing.best_overlap];
            counts.routed.iter_mut().zip(known).for_each(|(sum, tokens)| *sum += u64::from(tokens));
        }
        let held = request.dispatched.since(request.arrival);
        counts.held += u64::from(held > Nanos::ZERO);
        counts.held_time += u128::from(held.0);
        counts.last_completed = counts.last_completed.max(Some(request.terminal));
        counts.cut += u64::from(
            request.finish_reason == FinishReason::Length
                && request.output_tokens < request.requested_output_tokens,
        );
        if self.options.sla.is_some_and(|sla| sla.kept_by(request)) {
            counts.good += 1;
            counts.good_output_tokens += u64::from(request.output_tokens);
        }
        self.capture(|| Captured::Completed(request.clone()));
    }

    fn retried(&mut self, request: &RequestRecord) {
        self.counts.retried += u64::from(request.retries > 0);
        self.counts.retries += u64::from(request.retries);
    }

    /// A request was cancelled from outside. It is counted and listed, and enters no distribution; the
    /// gaps of tokens it gave before do.
    pub fn cancelled(&mut self, request: &RequestRecord) {
        self.counts.cancelled += 1;
        self.retried(request);
        self.capture(|| Captured::Cancelled(request.clone()));
    }

    /// A request could not be carried to its end. Counted and listed like a cancelled one.
    pub fn failed(&mut self, request: &RequestRecord, cause: &str) {
        self.counts.failed += 1;
        self.retried(request);
        self.capture(|| Captured::Failed(request.clone(), cause.into()));
    }

    /// The same of a request that no worker had yet that would have given its tokens.
    pub fn failed_unplaced(&mut self, request: &RequestRecord, cause: &str) {
        self.counts.failed += 1;
        self.retried(request);
        self.capture(|| Captured::Unplaced(request.clone(), cause.into()));
    }

    /// A request was refused.
    pub fn rejected(&mut self, refusal: &Refusal) {
        self.counts.rejected += 1;
        *self.rejections.entry(refusal.reason.kind()).or_default() += 1;
        self.capture(|| Captured::Refused(refusal.clone()));
    }

    /// Hands over a rank's counters. Rows of the same rank are added up.
    pub fn rank(&mut self, row: RankRow) {
        self.ranks.push(row);
    }

    /// Takes in everything another collector of the same run has.
    pub fn merge(&mut self, mut other: Collector) {
        self.gaps.merge(other.gaps);
        self.latencies.ttft.merge(other.latencies.ttft);
        self.latencies.ttst.merge(other.latencies.ttst);
        self.latencies.tpot.merge(other.latencies.tpot);
        self.latencies.e2e.merge(other.latencies.e2e);
        self.counts.merge(&other.counts);
        for (kind, count) in other.rejections {
            *self.rejections.entry(kind).or_default() += count;
        }
        self.ranks.append(&mut other.ranks);
        self.captured.append(&mut other.captured);
    }

    fn capture(&mut self, request: impl FnOnce() -> Captured) {
        if self.options.capture {
            self.captured.push(request());
        }
    }
}

impl Counts {
    fn merge(&mut self, other: &Counts) {
        self.completed += other.completed;
        self.rejected += other.rejected;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.reused_tokens += other.reused_tokens;
        self.first_admission_reused_tokens += other.first_admission_reused_tokens;
        self.routed.iter_mut().zip(other.routed).for_each(|(sum, tokens)| *sum += tokens);
        self.held += other.held;
        self.held_time += other.held_time;
        self.cut += other.cut;
        self.retried += other.retried;
        self.retries += other.retries;
        self.good += other.good;
        self.good_output_tokens += other.good_output_tokens;
        self.last_completed = self.last_completed.max(other.last_completed);
    }
}
