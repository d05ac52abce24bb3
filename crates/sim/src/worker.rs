//! One worker in virtual time: its rank, the passes it has in flight, and the requests it serves.
//!
//! The worker knows its own instants only. Who sends it requests, and up to when it may run, the run
//! decides; it tells the run when it next does something.

use crate::observer::EventBuffer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use windtunnel_config::Deployment;
use windtunnel_engine::{
    ConfigError, FinishReason, MAX_NANOS, Nanos, Outcome, Rank, RankStats, Scheduled, Shape, Stepper,
};
use windtunnel_perf::TimingModel;
use windtunnel_report::{Collector, CollectorOptions, RankRow, Refusal, RequestRecord, Role};
use windtunnel_traffic::Arrival;

/// Passes without tokens in a row, at one instant, after which a rank is idle until something arrives:
/// as many as can be in flight, plus one that shows that nothing changed.
const EMPTY_PASSES: u32 = 3;

/// Preemptions without an output token in between, beyond two for each request, after which a run is
/// given up: no schedule that gets anywhere needs so many.
const FRUITLESS_PREEMPTIONS: u64 = 10_000;

/// A pass in flight, and what it adds to the counters when it ends.
#[derive(Clone, Copy, Debug)]
struct Flying {
    number: u64,
    start: Nanos,
    end: Nanos,
    prefill_tokens: u64,
    decode_tokens: u64,
}

impl Flying {
    fn tokens(&self) -> u64 {
        self.prefill_tokens + self.decode_tokens
    }
}

/// One worker of one rank.
pub(crate) struct Worker {
    index: u32,
    rank: Rank,
    timing: TimingModel,
    depth: usize,
    /// The instant reached: of the last pass end or arrival.
    now: Nanos,
    /// When `schedule` is due. Arrivals of that instant come first.
    due: Option<Nanos>,
    flying: VecDeque<Flying>,
    /// End of the newest pass in flight.
    busy_until: Nanos,
    /// End of the beat completed last.
    last_end: Nanos,
    empty_passes: u32,
    next_pass: u64,
    /// Records of live requests, by slot.
    live: Vec<RequestRecord>,
    row: RankRow,
    collector: Collector,
    /// Requests ended since the run last asked.
    ended: u64,
    events: Option<EventBuffer>,
    /// Stops the run: raised from outside, or here when a pass would end beyond all time.
    interrupt: Arc<AtomicBool>,
    endless: Option<Nanos>,
    /// Preemptions since the last output token.
    fruitless_preemptions: u64,
}

impl Worker {
    pub(crate) fn new(
        index: u32,
        deployment: &Deployment,
        stepper: Stepper,
        options: CollectorOptions,
        log_events: bool,
        interrupt: Arc<AtomicBool>,
    ) -> Result<Worker, ConfigError> {
        let mut config = deployment.engine.clone();
        config.set_kv_events(log_events);
        let usable = u64::from(config.usable_blocks());
        let depth = config.depth();
        Ok(Worker {
            index,
            rank: Rank::new(config, stepper)?,
            timing: deployment.timing,
            depth,
            now: Nanos::ZERO,
            due: None,
            flying: VecDeque::with_capacity(depth),
            busy_until: Nanos::ZERO,
            last_end: Nanos::ZERO,
            empty_passes: 0,
            next_pass: 0,
            live: Vec::new(),
            row: RankRow::new(Role::Aggregated, index, 0, usable),
            collector: Collector::new(options),
            ended: 0,
            events: log_events.then(EventBuffer::default),
            interrupt,
            endless: None,
            fruitless_preemptions: 0,
        })
    }

    /// When it next does something, [`Nanos::NEVER`] if nothing is due.
    pub(crate) fn next_instant(&self) -> Nanos {
        self.due.unwrap_or_else(|| self.flying.front().map_or(Nanos::NEVER, |pass| pass.end))
    }

    /// Hands over a request at `now`, to which the worker has been advanced. A refused request is
    /// recorded and has ended.
    pub(crate) fn submit(&mut self, arrival: Arrival, now: Nanos) {
        self.now = now;
        let Arrival { at: _, request, name } = arrival;
        let (id, input, output) = (request.id, request.prompt_tokens, request.output.max_tokens);
        match self.rank.submit(request) {
            Err(reason) => self.refuse(Refusal {
                id,
                name,
                placed: Some((self.index, 0)),
                arrival: now,
                refused: now,
                input_tokens: input,
                requested_output_tokens: output,
                reason,
            }),
            Ok(slot) => {
                let record = RequestRecord {
                    id,
                    name,
                    worker: self.index,
                    rank: 0,
                    prefill_worker: None,
                    arrival: now,
                    dispatched: now,
                    first_admit: None,
                    first_token: None,
                    second_token: None,
                    last_token: None,
                    terminal: now,
                    input_tokens: input,
                    requested_output_tokens: output,
                    output_tokens: 0,
                    first_admission_reused_tokens: 0,
                    reused_tokens: 0,
                    admissions: 0,
                    preemptions: 0,
                    finish_reason: FinishReason::Length,
                };
                match self.live.get_mut(slot.0 as usize) {
                    Some(old) => *old = record,
                    None => self.live.push(record),
                }
                self.empty_passes = 0;
                if self.flying.is_empty() && self.due.is_none() {
                    self.due = Some(now);
                }
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.collector.rejected(&refusal);
        self.ended += 1;
    }

    /// Runs up to `horizon`: completes the passes that end by then, and schedules those whose instant
    /// lies before it, for at that instant others may still have something to say. Returns early after
    /// a pass with which a request ended if `until_end` is set, and when the run is interrupted.
    pub(crate) fn run_until(&mut self, horizon: Nanos, until_end: bool) {
        while !self.interrupt.load(Ordering::Relaxed) {
            match self.due {
                Some(now) if now < horizon => {
                    if !self.run_stretch(now, horizon) {
                        self.schedule(now);
                    }
                }
                Some(_) => return,
                None => match self.flying.front() {
                    Some(pass) if pass.end <= horizon => {
                        self.complete();
                        if until_end && self.ended > 0 {
                            return;
                        }
                    }
                    _ => return,
                },
            }
        }
    }

    /// Takes the schedule call that is due at `now`, if one is. True if so.
    pub(crate) fn schedule_at(&mut self, now: Nanos) -> bool {
        match self.due {
            Some(due) if due <= now => {
                self.schedule(due);
                true
            }
            _ => false,
        }
    }

    fn schedule(&mut self, now: Nanos) {
        let scheduled = self.rank.schedule();
        let duration = self.timing.pass_duration(&scheduled.shape());
        let start = now.max(self.busy_until);
        let pass = Flying {
            number: self.next_pass,
            start,
            end: start + duration,
            prefill_tokens: scheduled.prefill_tokens,
            decode_tokens: scheduled.tokens - scheduled.prefill_tokens,
        };
        note_scheduled(scheduled, &mut self.live, start, self.last_end);
        if let Some(events) = &mut self.events {
            for slot in &scheduled.preempted {
                events.preempted(pass.number, self.live[slot.0 as usize].id);
            }
        }
        if !scheduled.preempted.is_empty() {
            self.fruitless_preemptions += scheduled.preempted.len() as u64;
            if self.fruitless() {
                self.interrupt.store(true, Ordering::Relaxed);
            }
        }
        if pass.end.0 >= MAX_NANOS {
            self.endless = Some(duration);
            self.interrupt.store(true, Ordering::Relaxed);
        }
        self.next_pass += 1;
        self.busy_until = pass.end;
        self.flying.push_back(pass);
        self.empty_passes = if pass.tokens() == 0 { self.empty_passes + 1 } else { 0 };
        let another = self.flying.len() < self.depth && self.rank.has_work();
        self.due = another.then_some(now);
    }

    fn complete(&mut self) {
        let Some(pass) = self.flying.pop_front() else { return };
        let now = pass.end;
        self.now = now;
        let outcome = self.rank.complete();
        self.ended += outcome.finished.len() as u64;
        if outcome.steady_tokens > 0 || !outcome.tokens.is_empty() {
            self.fruitless_preemptions = 0;
        }
        note_completed(outcome, &mut self.live, now, self.last_end, &mut self.collector);
        if outcome.beat {
            self.last_end = now;
        }
        if pass.tokens() > 0 {
            count(&pass, &mut self.row);
        }
        if let Some(events) = &mut self.events {
            events.published(now, pass.number, self.rank.events());
            self.rank.clear_events();
        }
        // With nothing in flight, empty passes would follow each other for ever.
        let idle = self.flying.is_empty() && self.empty_passes >= EMPTY_PASSES;
        if self.rank.has_work() && !idle {
            self.due = Some(now);
        }
    }

    /// Runs steady passes in one go, as far as they end by `horizon`. True if there was one.
    fn run_stretch(&mut self, mut now: Nanos, horizon: Nanos) -> bool {
        let Some(mut steady) = self.rank.steady() else { return false };
        let count = steady.decode.count;
        let mut passes = 0;
        // Start of the pass that is completed first; each of the others starts when the one before it ends.
        let first_start = match self.flying.front() {
            Some(pass) => pass.start,
            None => now.max(self.busy_until),
        };
        let mut busy_until = self.busy_until;
        while passes < steady.passes && now < horizon {
            let duration = self.timing.pass_duration(&Shape { prefill: &[], decode: steady.decode });
            let end = now.max(busy_until) + duration;
            // Synchronous: this pass ends before the next is scheduled. Asynchronous: the one before it.
            let completed = if self.depth == 1 { end } else { busy_until };
            if completed > horizon || end.0 >= MAX_NANOS {
                break;
            }
            self.collector.gap(completed.since(self.last_end), count);
            self.last_end = completed;
            busy_until = end;
            now = completed;
            steady.decode.grow();
            passes += 1;
        }
        if passes == 0 {
            return false;
        }
        self.rank.advance_steady(passes);
        self.row.passes += passes;
        self.row.decode_passes += passes;
        self.row.decode_tokens += passes * count;
        self.row.busy += now.since(first_start);
        self.next_pass += passes;
        self.busy_until = busy_until;
        if let Some(pass) = self.flying.front_mut() {
            *pass = Flying { number: self.next_pass - 1, start: now, end: busy_until, ..*pass };
        }
        self.now = now;
        self.due = Some(now);
        true
    }

    /// Requests that ended, or were refused, since the last call.
    pub(crate) fn take_ended(&mut self) -> u64 {
        std::mem::take(&mut self.ended)
    }

    /// Requests that have not ended.
    pub(crate) fn unfinished(&self) -> usize {
        self.rank.unfinished()
    }

    /// The requests that have not ended, in order of their numbers.
    pub(crate) fn unfinished_requests(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.rank.unfinished_requests().iter().map(|id| id.0).collect();
        ids.sort_unstable();
        ids
    }

    /// The instant reached.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn stats(&self) -> RankStats {
        self.rank.stats()
    }

    /// Counters so far.
    pub(crate) fn row(&self) -> &RankRow {
        &self.row
    }

    /// Time with a pass running until `at`, which no completed pass lies behind.
    pub(crate) fn busy(&self, at: Nanos) -> Nanos {
        let running = |pass: &Flying| at.min(pass.end).since(pass.start);
        self.flying.iter().fold(self.row.busy, |busy, pass| busy + running(pass))
    }

    /// Requests preempt each other without end and without a token.
    pub(crate) fn fruitless(&self) -> bool {
        self.fruitless_preemptions > FRUITLESS_PREEMPTIONS + 2 * self.rank.unfinished() as u64
    }

    /// The duration of a pass that would end beyond all time, if there is one.
    pub(crate) fn endless(&self) -> Option<Nanos> {
        self.endless
    }

    pub(crate) fn events(&mut self) -> Option<&mut EventBuffer> {
        self.events.as_mut()
    }

    /// The counters and what was collected, when the run ends at `end`.
    pub(crate) fn into_collector(mut self, end: Nanos) -> Collector {
        let stats = self.rank.stats();
        self.row.busy = self.busy(end);
        let row = &mut self.row;
        row.prefix_cache_queries = stats.prefix_queries;
        row.prefix_cache_hits = stats.prefix_hits;
        row.peak_kv_blocks = u64::from(stats.peak_used_blocks);
        row.preemptions = stats.preemptions;
        row.evicted_blocks = stats.evictions;
        self.collector.rank(self.row);
        self.collector
    }
}

/// Enters a completed pass in the counters.
fn count(pass: &Flying, row: &mut RankRow) {
    row.passes += 1;
    row.prefill_passes += u64::from(pass.prefill_tokens > 0);
    row.decode_passes += u64::from(pass.decode_tokens > 0);
    row.prefill_tokens += pass.prefill_tokens;
    row.decode_tokens += pass.decode_tokens;
    row.busy += pass.end.since(pass.start);
}

/// Enters what a schedule call decided in the records.
fn note_scheduled(scheduled: &Scheduled, live: &mut [RequestRecord], start: Nanos, last_end: Nanos) {
    park(&scheduled.parked, live, last_end);
    for admission in &scheduled.admitted {
        let record = &mut live[admission.slot.0 as usize];
        if record.admissions == 0 {
            record.first_admit = Some(start);
            record.first_admission_reused_tokens = admission.hit_tokens;
        }
        record.admissions += 1;
        record.reused_tokens = record.reused_tokens.max(admission.hit_tokens);
    }
    for slot in &scheduled.preempted {
        live[slot.0 as usize].preemptions += 1;
    }
}

/// Requests whose last token came with the pass completed last, if they had one.
fn park(slots: &[windtunnel_engine::Slot], live: &mut [RequestRecord], last_end: Nanos) {
    for slot in slots {
        live[slot.0 as usize].last_token = Some(last_end);
    }
}

/// Enters what a completed pass made visible in the records and the collector.
fn note_completed(
    outcome: &Outcome,
    live: &mut [RequestRecord],
    now: Nanos,
    last_end: Nanos,
    collector: &mut Collector,
) {
    park(&outcome.parked, live, last_end);
    if outcome.steady_tokens > 0 {
        collector.gap(now.since(last_end), outcome.steady_tokens);
    }
    for token in &outcome.tokens {
        let record = &mut live[token.slot.0 as usize];
        match record.last_token {
            Some(previous) => collector.gap(now.since(previous), 1),
            None => record.first_token = Some(now),
        }
        if token.ordinal == 2 {
            record.second_token = Some(now);
        }
        record.last_token = Some(now);
    }
    for slot in &outcome.second {
        live[slot.0 as usize].second_token = Some(now);
    }
    for finished in &outcome.finished {
        let record = &mut live[finished.slot.0 as usize];
        record.output_tokens = finished.output_tokens;
        record.finish_reason = finished.reason;
        record.terminal = now;
        collector.finished(record);
    }
}
