//! One rank in virtual time: its scheduler, its parts of the passes in flight, and the requests it serves.
//!
//! A lane does not know when anything is due: its rank group has the clock, and tells it the instants.

use crate::host::HostCopies;
use crate::observer::EventBuffer;
use std::collections::VecDeque;
use windtunnel_engine::{
    ConfigError, DecodeSet, FinishReason, KvLoad, Nanos, Outcome, Rank, RankConfig, RankStats, Request,
    RequestId, Scheduled, Shape, Slot, Steady, Stepper,
};
use windtunnel_perf::TimingModel;
use windtunnel_report::{Collector, RankRow, Refusal, RequestRecord, Role};
use windtunnel_router::RankLoad;
use windtunnel_traffic::Arrival;

/// Preemptions without an output token in between, beyond two for each request, after which a run is
/// given up: no schedule that gets anywhere needs so many.
const FRUITLESS_PREEMPTIONS: u64 = 10_000;

/// A rank's part of a pass in flight, and what it adds to the counters when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    /// The rank scheduled something, be it nothing. Otherwise only the others of its group do.
    pub(crate) takes_part: bool,
    /// Among the rank's own passes.
    pub(crate) number: u64,
    /// Of the group's pass.
    pub(crate) start: Nanos,
    /// Of the group's pass.
    pub(crate) end: Nanos,
    pub(crate) prefill_tokens: u64,
    pub(crate) decode_tokens: u64,
}

impl Flying {
    pub(crate) fn tokens(&self) -> u64 {
        self.prefill_tokens + self.decode_tokens
    }
}

/// What a rank adds to a pass of its group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) duration: Nanos,
    pub(crate) tokens: u64,
    pub(crate) prefill_tokens: u64,
    /// When it can start, if it has to wait for a copy.
    pub(crate) ready: Nanos,
    /// Requests preempt each other without end and without a token.
    pub(crate) fruitless: bool,
    /// The engine would have died of it.
    pub(crate) fatal: bool,
}

/// What of a pass takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    All,
    /// Of a prefill worker of AISimulate 0.13.
    Prefill,
    /// Of a decode worker of AISimulate 0.13.
    Decode,
}

impl Charged {
    fn part(self, shape: Shape<'_>) -> Shape<'_> {
        match self {
            Charged::All => shape,
            Charged::Prefill => Shape { decode: DecodeSet::default(), ..shape },
            Charged::Decode => Shape { prefill: &[], ..shape },
        }
    }
}

/// What a rank has done that others wait for.
pub(crate) enum LaneNews {
    /// A prompt is computed, and its blocks are held.
    Handed(Slot, Box<RequestRecord>),
    /// A request's load has started.
    Started(RequestId, KvLoad),
    /// A loaded request may run (AISimulate 0.13).
    Activated(RequestId),
}

/// One rank of a group.
pub(crate) struct Lane {
    pub(crate) rank: Rank,
    /// As many entries as its group has passes in flight.
    pub(crate) flying: VecDeque<Flying>,
    /// End of the beat completed last.
    pub(crate) last_end: Nanos,
    pub(crate) next_pass: u64,
    /// Records of live requests, by slot.
    live: Vec<RequestRecord>,
    /// What of a pass takes time.
    charged: Charged,
    /// Where there is a tier in the host's memory.
    host: Option<HostCopies>,
    /// What others wait for.
    news: Vec<LaneNews>,
    /// Requests whose load is to start here.
    unloaded: usize,
    /// Transfers that have ended and are not reported: loads, and blocks that were held.
    loaded: Vec<Slot>,
    sent: Vec<Slot>,
    pub(crate) row: RankRow,
    events: Option<EventBuffer>,
    /// Preemptions since the last output token.
    fruitless_preemptions: u64,
    /// Running and waiting requests, as told to the balancer last.
    reported: (usize, usize),
}

impl Lane {
    pub(crate) fn new(
        role: Role,
        worker: u32,
        index: u32,
        mut config: RankConfig,
        stepper: Stepper,
        log_events: bool,
    ) -> Result<Lane, ConfigError> {
        config.set_kv_events(log_events);
        let usable = u64::from(config.usable_blocks());
        Ok(Lane {
            flying: VecDeque::with_capacity(config.depth()),
            rank: Rank::new(config, stepper)?,
            last_end: Nanos::ZERO,
            next_pass: 0,
            live: Vec::new(),
            charged: Charged::All,
            host: None,
            news: Vec::new(),
            unloaded: 0,
            loaded: Vec::new(),
            sent: Vec::new(),
            row: RankRow::new(role, worker, index, usable),
            events: log_events.then(EventBuffer::default),
            fruitless_preemptions: 0,
            reported: (0, 0),
        })
    }

    pub(crate) fn set_host(&mut self, host: HostCopies) {
        self.host = Some(host);
    }

    /// When the next copy from or to the host ends or can start.
    pub(crate) fn next_copy(&self) -> Nanos {
        self.host.as_ref().map_or(Nanos::NEVER, HostCopies::next_end)
    }

    pub(crate) fn set_charged(&mut self, charged: Charged) {
        self.charged = charged;
    }

    /// Takes over a request at `now`. False if it was refused, which is entered in `collector`.
    pub(crate) fn submit(&mut self, arrival: Arrival, now: Nanos, collector: &mut Collector) -> bool {
        let Arrival { at: _, request, name, dp_rank: _ } = arrival;
        let record = RequestRecord {
            id: request.id,
            name,
            worker: self.row.worker,
            rank: self.row.rank,
            prefill_worker: None,
            arrival: now,
            dispatched: now,
            first_admit: None,
            first_token: None,
            second_token: None,
            last_token: None,
            terminal: now,
            input_tokens: request.prompt_tokens,
            requested_output_tokens: request.output.max_tokens,
            output_tokens: 0,
            first_admission_reused_tokens: 0,
            reused_tokens: 0,
            admissions: 0,
            preemptions: 0,
            finish_reason: FinishReason::Length,
        };
        self.take_over(request, record, now, collector)
    }

    /// Takes over a request whose prompt another worker has computed, with what is known of it. False if it was
    /// refused.
    pub(crate) fn hand_over(
        &mut self,
        arrival: Arrival,
        record: RequestRecord,
        now: Nanos,
        collector: &mut Collector,
    ) -> bool {
        let Arrival { at: _, request, name, dp_rank: _ } = arrival;
        let record = RequestRecord {
            name,
            worker: self.row.worker,
            rank: self.row.rank,
            requested_output_tokens: request.output.max_tokens,
            output_tokens: 0,
            first_token: None,
            last_token: None,
            ..record
        };
        let taken = self.take_over(request, record, now, collector);
        self.unloaded += usize::from(taken);
        taken
    }

    fn take_over(
        &mut self,
        request: Request,
        record: RequestRecord,
        now: Nanos,
        collector: &mut Collector,
    ) -> bool {
        match self.rank.submit(request) {
            Err(reason) => {
                collector.rejected(&Refusal {
                    id: record.id,
                    name: record.name,
                    placed: Some((record.worker, record.rank)),
                    arrival: record.arrival,
                    refused: now,
                    input_tokens: record.input_tokens,
                    requested_output_tokens: record.requested_output_tokens,
                    reason,
                });
                false
            }
            Ok(slot) => {
                match self.live.get_mut(slot.0 as usize) {
                    Some(old) => *old = record,
                    None => self.live.push(record),
                }
                true
            }
        }
    }

    /// Schedules its part of the pass that starts at `start`, if there is anything to schedule. When the
    /// pass ends, the group says later, for it lasts as long as its longest part.
    pub(crate) fn schedule(
        &mut self,
        throttle: bool,
        now: Nanos,
        start: Nanos,
        timing: &TimingModel,
    ) -> Part {
        let mut flying = Flying {
            takes_part: false,
            number: self.next_pass,
            start,
            end: start,
            prefill_tokens: 0,
            decode_tokens: 0,
        };
        if !self.rank.has_work() {
            self.flying.push_back(flying);
            return Part::default();
        }
        let scheduled = self.rank.schedule_throttled(throttle);
        let duration = timing.pass_duration(&self.charged.part(scheduled.shape()));
        flying.takes_part = true;
        flying.prefill_tokens = scheduled.prefill_tokens;
        flying.decode_tokens = scheduled.tokens - scheduled.prefill_tokens;
        note_scheduled(scheduled, &mut self.live, start, self.last_end);
        if self.host.is_some() {
            note_host_loads(scheduled, &mut self.live);
        }
        let from_others = if self.host.is_none() { &scheduled.loads[..] } else { &[] };
        for &load in from_others {
            self.unloaded -= 1;
            self.news.push(LaneNews::Started(self.live[load.slot.0 as usize].id, load));
        }
        if let Some(events) = &mut self.events {
            for slot in &scheduled.preempted {
                events.preempted(flying.number, self.live[slot.0 as usize].id);
            }
        }
        let preempted = scheduled.preempted.len() as u64;
        let mut ready = start;
        if let Some(host) = &mut self.host {
            let (jobs, flush) = (scheduled.host_jobs.clone(), scheduled.flush.clone());
            ready = ready.max(host.launch(&mut self.rank, jobs, &flush, now));
        }
        // The worker is asked when a pass is launched.
        self.loaded.drain(..).for_each(|slot| self.rank.kv_loaded(slot));
        self.sent.drain(..).for_each(|slot| self.rank.kv_sent(slot));
        self.fruitless_preemptions += preempted;
        self.next_pass += 1;
        self.flying.push_back(flying);
        Part {
            fatal: self.rank.fault().is_some(),
            duration,
            tokens: flying.tokens(),
            prefill_tokens: flying.prefill_tokens,
            ready,
            fruitless: preempted > 0 && self.fruitless(),
        }
    }

    /// The pass scheduled last starts at `start` and ends at `end`.
    #[inline]
    pub(crate) fn set_span(&mut self, start: Nanos, end: Nanos) {
        if let Some(pass) = self.flying.back_mut() {
            (pass.start, pass.end) = (start, end);
        }
    }

    /// Completes its part of the oldest pass in flight, which ends at `now`. Returns how many requests
    /// ended with it.
    pub(crate) fn complete(&mut self, now: Nanos, collector: &mut Collector) -> u64 {
        let Some(pass) = self.flying.pop_front().filter(|pass| pass.takes_part) else { return 0 };
        let outcome = self.rank.complete();
        let ended = outcome.finished.iter().filter(|finished| !finished.held).count() as u64;
        if outcome.steady_tokens > 0 || !outcome.tokens.is_empty() {
            self.fruitless_preemptions = 0;
        }
        note_completed(outcome, &mut self.live, now, self.last_end, collector, &mut self.news);
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
        ended
    }

    /// Nothing to schedule and nothing in flight.
    pub(crate) fn is_idle(&self) -> bool {
        !self.rank.has_work() && self.flying.iter().all(|pass| !pass.takes_part)
    }

    /// The coming steady passes, if there are any that nobody has to look at one by one.
    pub(crate) fn steady(&self) -> Option<Steady> {
        // What happened between two passes is told with the next one.
        let untold = |events: &EventBuffer| events.is_waiting() || !self.rank.events().is_empty();
        if self.events.as_ref().is_some_and(untold) || self.has_reports() {
            return None;
        }
        self.rank.steady()
    }

    /// The load of a request here has ended.
    pub(crate) fn load_ended(&mut self, slot: Slot) {
        self.loaded.push(slot);
    }

    /// Blocks that were held here have been read.
    pub(crate) fn send_ended(&mut self, slot: Slot) {
        self.sent.push(slot);
    }

    /// Transfers have ended, and it is not told yet.
    fn has_reports(&self) -> bool {
        !self.loaded.is_empty() || !self.sent.is_empty()
    }

    /// Between two passes, by the rules of AISimulate 0.13: loads and holds that have ended are over at once, and
    /// with the end of a pass, and with each load, one more load may start.
    pub(crate) fn transfer_at_once(&mut self, pass_ended: bool) {
        if pass_ended {
            self.start_load();
        }
        for slot in std::mem::take(&mut self.sent) {
            self.rank.kv_sent_at_once(slot);
        }
        for slot in std::mem::take(&mut self.loaded) {
            self.rank.kv_loaded_at_once(slot);
            self.news.push(LaneNews::Activated(self.live[slot.0 as usize].id));
            self.start_load();
        }
    }

    /// Starts the load of the request whose turn it is, if it can be.
    pub(crate) fn start_load(&mut self) {
        if self.unloaded > 0
            && let Some(load) = self.rank.start_load()
        {
            self.unloaded -= 1;
            self.news.push(LaneNews::Started(self.live[load.slot.0 as usize].id, load));
        }
    }

    /// A load is to start here, or its end to be told.
    pub(crate) fn is_awaited(&self) -> bool {
        self.unloaded > 0 || self.has_reports()
    }

    pub(crate) fn news(&mut self) -> &mut Vec<LaneNews> {
        &mut self.news
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// What it has to tell the balancer: its load, if its counts have changed since it last did
    /// (vLLM `_maybe_publish_request_counts`).
    pub(crate) fn take_report(&mut self) -> Option<RankLoad> {
        let stats = self.rank.stats();
        let counts = (stats.running, stats.waiting);
        if std::mem::replace(&mut self.reported, counts) == counts {
            return None;
        }
        // As vLLM computes it.
        let free = f64::from(stats.usable_blocks - stats.used_blocks);
        Some(RankLoad {
            waiting: counts.1 as u64,
            running: counts.0 as u64,
            kv_usage: 1.0 - free / f64::from(stats.usable_blocks),
        })
    }

    pub(crate) fn stats(&self) -> RankStats {
        self.rank.stats()
    }

    /// Counters so far.
    pub(crate) fn row(&self) -> &RankRow {
        &self.row
    }

    /// Time with a pass running that computes a token here, until `at`, which no completed pass lies behind.
    pub(crate) fn busy(&self, at: Nanos) -> Nanos {
        let running = |pass: &Flying| at.min(pass.end).since(pass.start);
        let passes = self.flying.iter().filter(|pass| pass.tokens() > 0);
        passes.fold(self.row.busy, |busy, pass| busy + running(pass))
    }

    /// The requests that have not ended, in order of their numbers.
    pub(crate) fn unfinished_requests(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.rank.unfinished_requests().into_iter().map(|id| id.0).collect();
        ids.sort_unstable();
        ids
    }

    /// Requests preempt each other without end and without a token.
    pub(crate) fn fruitless(&self) -> bool {
        self.fruitless_preemptions > FRUITLESS_PREEMPTIONS + 2 * self.rank.unfinished() as u64
    }

    pub(crate) fn events(&mut self) -> Option<&mut EventBuffer> {
        self.events.as_mut()
    }

    /// The counters when the run ends at `end`.
    pub(crate) fn into_row(mut self, end: Nanos) -> RankRow {
        let stats = self.rank.stats();
        self.row.busy = self.busy(end);
        let mut row = self.row;
        row.prefix_cache_queries = stats.prefix_queries;
        row.prefix_cache_hits = stats.prefix_hits;
        row.peak_kv_blocks = u64::from(stats.peak_used_blocks);
        row.preemptions = stats.preemptions;
        row.evicted_blocks = stats.evictions;
        row
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
            // What was loaded was noted when that began.
            let hit = admission.hit_tokens;
            record.first_admission_reused_tokens = record.first_admission_reused_tokens.max(hit);
        }
        record.admissions += 1;
        record.reused_tokens = record.reused_tokens.max(admission.hit_tokens);
    }
    for slot in &scheduled.preempted {
        live[slot.0 as usize].preemptions += 1;
    }
}

/// Enters what comes back from the host in the records: it was reused.
fn note_host_loads(scheduled: &Scheduled, live: &mut [RequestRecord]) {
    for load in &scheduled.loads {
        let record = &mut live[load.slot.0 as usize];
        let reused = load.hit_tokens + load.tokens;
        record.reused_tokens = record.reused_tokens.max(reused);
        if record.admissions == 0 {
            record.first_admission_reused_tokens = reused;
        }
    }
}

/// Requests whose last token came with the beat completed last, if they had one.
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
    news: &mut Vec<LaneNews>,
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
        if finished.held {
            news.push(LaneNews::Handed(finished.slot, Box::new(record.clone())));
        } else {
            collector.finished(record);
        }
    }
}
