//! Enters what a rank does in the report's collector, as a prediction does.

use crate::observer::{EndReason, Ended, PassObserver, PassReport, RequestInfo, RequestTimes};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windtunnel_engine::{FinishReason, Nanos, RankStats, Rejection, RequestId};
use windtunnel_report::{Collector, RankRow, Refusal, RequestRecord, Role, Routing};
use windtunnel_router::RoutingRecord;

/// What prefill workers have done for requests that others go on with.
#[derive(Clone, Default)]
pub(crate) struct Prefilled(Arc<Mutex<HashMap<RequestId, PromptRecord>>>);

/// What is known of a request whose prompt is computed.
pub(crate) struct PromptRecord {
    /// By which worker.
    pub(crate) worker: u32,
    /// When the request came.
    pub(crate) arrival: Nanos,
    /// What the router knew of its prompt.
    pub(crate) routing: Option<RoutingRecord>,
    /// Its times there.
    pub(crate) times: RequestTimes,
}

impl Prefilled {
    fn all(&self) -> MutexGuard<'_, HashMap<RequestId, PromptRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, id: RequestId, record: PromptRecord) {
        self.all().insert(id, record);
    }
}

/// Records one rank.
pub(crate) struct Recorder {
    collector: Arc<Mutex<Collector>>,
    row: RankRow,
    role: Role,
    prefilled: Prefilled,
}

impl Recorder {
    /// For a rank of a worker, whose cache has so many blocks.
    pub(crate) fn new(
        collector: Arc<Mutex<Collector>>,
        (role, worker, rank): (Role, u32, u32),
        usable: u64,
        prefilled: &Prefilled,
    ) -> Recorder {
        let row = RankRow::new(role, worker, rank, usable);
        Recorder { collector, row, role, prefilled: prefilled.clone() }
    }

    fn collector(&self) -> MutexGuard<'_, Collector> {
        self.collector.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&mut self, stats: &RankStats) {
        self.row.prefix_cache_queries = stats.prefix_queries;
        self.row.prefix_cache_hits = stats.prefix_hits;
        self.row.peak_kv_blocks = u64::from(stats.peak_used_blocks);
        self.row.preemptions = stats.preemptions;
        self.row.evicted_blocks = stats.evictions;
    }

    fn record(&self, ended: &Ended<'_>) -> RequestRecord {
        let (info, times) = (ended.info, ended.times);
        let record = RequestRecord {
            id: info.id,
            name: name(info),
            worker: self.row.worker,
            rank: self.row.rank,
            prefill_worker: None,
            routing: info.routed.and_then(|routed| routed.record).map(routing),
            arrival: info.routed.map_or(times.arrival, |routed| routed.came),
            dispatched: times.arrival,
            first_admit: times.first_admit,
            first_token: times.first_token,
            second_token: times.second_token,
            last_token: times.last_token,
            terminal: ended.at,
            input_tokens: u32::try_from(info.prompt.len()).unwrap_or(u32::MAX),
            requested_output_tokens: info.asked_max_tokens.unwrap_or(info.max_tokens),
            output_tokens: times.output_tokens,
            first_admission_reused_tokens: times.cached_tokens,
            reused_tokens: times.reused_tokens,
            admissions: times.admissions,
            preemptions: times.preemptions,
            retries: 0,
            finish_reason: match ended.reason {
                EndReason::Finished(reason) => reason,
                EndReason::Cancelled | EndReason::Failed => FinishReason::Abort,
            },
        };
        match self.prefilled.all().remove(&info.id) {
            Some(prompt) if self.role == Role::Decode => prompt.before(record),
            _ => record,
        }
    }
}

impl PromptRecord {
    /// A record of the worker that went on, with what the first one did.
    fn before(self, record: RequestRecord) -> RequestRecord {
        RequestRecord {
            prefill_worker: Some(self.worker),
            routing: self.routing.map(routing),
            arrival: self.arrival,
            dispatched: self.times.arrival,
            first_admit: self.times.first_admit,
            first_admission_reused_tokens: self.times.cached_tokens,
            reused_tokens: self.times.reused_tokens.max(record.reused_tokens),
            admissions: self.times.admissions + record.admissions,
            preemptions: self.times.preemptions + record.preemptions,
            ..record
        }
    }
}

fn routing(record: RoutingRecord) -> Routing {
    Routing {
        overlap: record.overlap_tokens,
        best_overlap: record.best_overlap_tokens,
        below: record.below.map(|below| (below.host, below.disk)),
    }
}

fn name(info: &RequestInfo) -> Option<Box<str>> {
    (!info.name.is_empty()).then(|| info.name.as_str().into())
}

impl PassObserver for Recorder {
    fn rejected(&mut self, info: &RequestInfo, reason: Rejection, at: Nanos) {
        self.collector().rejected(&Refusal {
            id: info.id,
            name: name(info),
            placed: Some((self.row.worker, self.row.rank)),
            arrival: info.routed.map_or(at, |routed| routed.came),
            refused: at,
            input_tokens: u32::try_from(info.prompt.len()).unwrap_or(u32::MAX),
            requested_output_tokens: info.asked_max_tokens.unwrap_or(info.max_tokens),
            reason,
        });
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        let (tokens, prefill) = (pass.scheduled.tokens, pass.scheduled.prefill_tokens);
        if tokens > 0 {
            self.row.passes += 1;
            self.row.prefill_passes += u64::from(prefill > 0);
            self.row.decode_passes += u64::from(tokens > prefill);
            self.row.prefill_tokens += prefill;
            self.row.decode_tokens += tokens - prefill;
            self.row.busy += pass.end.since(pass.start);
        }
        self.count(pass.stats);
        // Of prompts that others go on with, those tell the end.
        let ended = if self.role == Role::Prefill { &[] } else { pass.ended };
        let records: Vec<RequestRecord> = ended.iter().map(|ended| self.record(ended)).collect();
        let mut collector = self.collector();
        pass.gaps.iter().for_each(|&(gap, count)| collector.gap(gap, count));
        records.iter().for_each(|record| collector.finished(record));
    }

    fn ended(&mut self, ended: &Ended<'_>, _stats: &RankStats) {
        // With a schedule call, of a decode worker. Nothing is cancelled here but prompts that no decode worker takes.
        if self.role == Role::Decode {
            let record = self.record(ended);
            self.collector().finished(&record);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let row = self.row;
        self.collector().rank(row);
    }
}
