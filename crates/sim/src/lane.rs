//! One rank in virtual time: its scheduler, its parts of the passes in flight, and the requests it serves.
//!
//! A lane does not know when anything is due: its rank group has the clock, and tells it the instants.

mod elastic;

use crate::disk::DiskLanes;
use crate::group::GroupOptions;
use crate::host::{HostCopies, Launch, jobs_of};
use crate::observer::EventBuffer;
use std::collections::VecDeque;
use windtunnel_engine::{
    ConfigError, DecodeSet, FinishReason, Finished, KvEventScope, KvLoad, Nanos, Outcome, Rank, RankConfig,
    RankStats, Request, RequestId, Scheduled, Shape, Slot, Steady,
};
use windtunnel_perf::TimingModel;
use windtunnel_report::{Collector, DiskRow, HostRow, RankRow, Refusal, RequestRecord, Role, Routing};
use windtunnel_router::{NewsBook, RankLoad, WorkerLoad};
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
    /// What copies from and to the host mean for it.
    pub(crate) copies: Launch,
    /// Requests preempt each other without end and without a token.
    pub(crate) fruitless: bool,
    /// The engine would have died of it.
    pub(crate) fatal: bool,
    /// Requests that ended with the call.
    pub(crate) ended: u64,
}

/// A request on its way to a rank.
pub(crate) struct Sending {
    pub(crate) arrival: Arrival,
    /// When it came to the router.
    pub(crate) came: Nanos,
    /// What the router knew of its prompt.
    pub(crate) routing: Option<Routing>,
    /// How often it was sent before, to workers that crashed.
    pub(crate) retries: u32,
}

impl Sending {
    /// One that no router was asked about.
    pub(crate) fn unrouted(arrival: Arrival) -> Sending {
        Sending { came: arrival.request.arrival, arrival, routing: None, retries: 0 }
    }
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

/// What of a request's KV has moved, or may, for which others wait.
pub(crate) enum LaneMove {
    /// A prompt is computed, and its blocks are held.
    Handed(Slot, Box<RequestRecord>),
    /// A request's load has started.
    Started(RequestId, KvLoad),
    /// A loaded request may run (AISimulate 0.13).
    Activated(RequestId, Slot),
}

/// How far the load of a request is that is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    /// Nothing is to be loaded.
    Nothing,
    /// There is no room for it yet.
    Awaited,
    /// There is room, and it may be on its way there.
    Begun,
}

/// The number of a request on a rank that goes on with it though nobody waits for it.
const NOBODY: RequestId = RequestId(u64::MAX);

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
    /// And a disk behind it.
    disk: Option<DiskLanes>,
    /// What others wait for.
    moves: Vec<LaneMove>,
    /// Requests whose load is to start here.
    unloaded: usize,
    /// Transfers that have ended and are not reported: loads, and blocks that were held.
    loaded: Vec<Slot>,
    sent: Vec<Slot>,
    pub(crate) row: RankRow,
    events: Option<EventBuffer>,
    news: Option<NewsBook>,
    /// Preemptions since the last output token.
    fruitless_preemptions: u64,
    /// Requests that got their first token, and Σ of their TTFT in nanoseconds.
    first_tokens: (u64, u128),
    /// Running and waiting requests, as told to the balancer last.
    reported: (usize, usize),
}

impl Lane {
    pub(crate) fn new(
        role: Role,
        worker: u32,
        index: u32,
        mut config: RankConfig,
        options: &GroupOptions,
    ) -> Result<Lane, ConfigError> {
        let block_size = config.block_size();
        let (scope, tokens) = options.telling.scope(block_size);
        let log_events = options.log_events;
        config.set_kv_events(if log_events { KvEventScope::All } else { scope }, tokens);
        let usable = u64::from(config.usable_blocks());
        Ok(Lane {
            flying: VecDeque::with_capacity(config.depth()),
            rank: Rank::new(config, options.stepper)?,
            last_end: Nanos::ZERO,
            next_pass: 0,
            live: Vec::new(),
            charged: Charged::All,
            host: None,
            disk: None,
            moves: Vec::new(),
            unloaded: 0,
            loaded: Vec::new(),
            sent: Vec::new(),
            row: RankRow::new(role, worker, index, usable),
            events: log_events.then(EventBuffer::default),
            news: options.telling.book().map(|book| book.of(worker, index)),
            fruitless_preemptions: 0,
            first_tokens: (0, 0),
            reported: (0, 0),
        })
    }

    pub(crate) fn set_host(&mut self, host: HostCopies) {
        self.host = Some(host);
    }

    pub(crate) fn set_disk(&mut self, disk: DiskLanes) {
        self.disk = Some(disk);
    }

    /// When the next copy from or to the host or the disk behind it ends or can start.
    pub(crate) fn next_copy(&self) -> Nanos {
        let host = self.host.as_ref().map_or(Nanos::NEVER, HostCopies::next_end);
        host.min(self.disk.as_ref().map_or(Nanos::NEVER, DiskLanes::next_end))
    }

    pub(crate) fn set_charged(&mut self, charged: Charged) {
        self.charged = charged;
    }

    /// Takes over a request at `now`. None if it was refused, which is entered in `collector`.
    pub(crate) fn submit(&mut self, sending: Sending, now: Nanos, collector: &mut Collector) -> Option<Slot> {
        let Sending { arrival: Arrival { at: _, request, name, .. }, came, routing, retries } = sending;
        let record = RequestRecord {
            id: request.id,
            name,
            worker: self.row.worker,
            rank: self.row.rank,
            prefill_worker: None,
            routing,
            arrival: came,
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
            retries,
            finish_reason: FinishReason::Length,
        };
        self.take_over(request, record, now, collector)
    }

    /// Takes over a request whose prompt another worker computes: room for its KV is to be made first. None if it was
    /// refused.
    pub(crate) fn receive(
        &mut self,
        sending: Sending,
        now: Nanos,
        collector: &mut Collector,
    ) -> Option<Slot> {
        let taken = self.submit(sending, now, collector);
        self.unloaded += usize::from(taken.is_some());
        taken
    }

    /// Another worker has computed the prompt of a request here: what is known of that.
    pub(crate) fn note_prefill(&mut self, slot: Slot, prefill: &RequestRecord) {
        let record = &mut self.live[slot.0 as usize];
        record.prefill_worker = Some(prefill.worker);
        record.routing = prefill.routing;
        record.first_admit = prefill.first_admit;
        record.admissions = prefill.admissions;
        record.preemptions += prefill.preemptions;
        record.reused_tokens = prefill.reused_tokens;
        record.first_admission_reused_tokens = prefill.first_admission_reused_tokens;
    }

    /// Takes a request back that does not run yet.
    pub(crate) fn withdraw(&mut self, slot: Slot, loading: Loading, at_once: bool, now: Nanos) {
        self.rank.cancel(slot);
        self.unloaded -= usize::from(loading == Loading::Awaited);
        if loading == Loading::Begun && matches!(self.rank, Rank::Vllm(_)) {
            // It keeps the blocks until it hears that nobody writes them any more.
            self.load_ended(slot, at_once);
        }
        self.disown(slot, now);
    }

    /// A request here is nobody's any more. The rank goes on with it, and hands its blocks over to nobody.
    pub(crate) fn disown(&mut self, slot: Slot, now: Nanos) {
        let record = &mut self.live[slot.0 as usize];
        let id = std::mem::replace(&mut record.id, NOBODY);
        if let Some(news) = &mut self.news {
            news.ended(now, id);
        }
    }

    /// Takes over a request whose prompt another worker has computed, with what is known of it. None if it was
    /// refused.
    pub(crate) fn hand_over(
        &mut self,
        arrival: Arrival,
        record: RequestRecord,
        now: Nanos,
        collector: &mut Collector,
    ) -> Option<Slot> {
        let Arrival { at: _, request, name, .. } = arrival;
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
        self.unloaded += usize::from(taken.is_some());
        taken
    }

    fn take_over(
        &mut self,
        request: Request,
        record: RequestRecord,
        now: Nanos,
        collector: &mut Collector,
    ) -> Option<Slot> {
        match self.rank.submit(request) {
            Err(reason) => {
                if let Some(news) = &mut self.news {
                    news.ended(now, record.id);
                }
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
                None
            }
            Ok(slot) => {
                if record.retries > 0 {
                    // It may have been here before.
                    let before = self.live.iter_mut().filter(|old| old.id == record.id);
                    before.for_each(|old| old.id = NOBODY);
                }
                match self.live.get_mut(slot.0 as usize) {
                    Some(old) => *old = record,
                    None => self.live.push(record),
                }
                Some(slot)
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
        collector: &mut Collector,
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
        let mut reported = false;
        if let Some(host) = &mut self.host {
            reported |= host.report(&mut self.rank, now);
        }
        if let Some(disk) = &mut self.disk {
            reported |= disk.report(&mut self.rank, now);
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
            self.moves.push(LaneMove::Started(self.live[load.slot.0 as usize].id, load));
        }
        for token in &scheduled.given {
            let record = &mut self.live[token.slot.0 as usize];
            (record.first_token, record.last_token) = (Some(now), Some(now));
            self.first_tokens.0 += 1;
            self.first_tokens.1 += u128::from(now.since(record.arrival).0);
            if let Some(news) = &mut self.news {
                news.first_token(now, record.id);
            }
        }
        for finished in &scheduled.finished {
            let (live, news) = (&mut self.live, self.news.as_mut());
            note_end(finished, live, now, collector, news, &mut self.moves);
        }
        let ended = scheduled.finished.len() as u64;
        if let Some(events) = &mut self.events {
            for slot in &scheduled.preempted {
                events.preempted(flying.number, self.live[slot.0 as usize].id);
            }
        }
        let preempted = scheduled.preempted.len() as u64;
        let mut copies = Launch::default();
        if let Some(host) = &mut self.host {
            let (jobs, flush) = jobs_of(scheduled);
            if let Some(disk) = &mut self.disk {
                disk.start(&scheduled.disk_jobs, now);
            }
            copies = host.launch(&mut self.rank, jobs, &flush, (now, start));
            copies.reported |= reported;
        }
        // The worker is asked when a pass is launched (vLLM).
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
            copies,
            fruitless: preempted > 0 && self.fruitless(),
            ended,
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
        if let Some(host) = &mut self.host {
            let busy_until = self.flying.back().map_or(pass.end, |launched| launched.end);
            host.completed(&outcome.host_jobs, now, busy_until);
        }
        if let Some(disk) = &mut self.disk {
            disk.start(&outcome.disk_jobs, now);
        }
        let ended = outcome.finished.iter().filter(|finished| !finished.held).count() as u64;
        if outcome.steady_tokens > 0 || !outcome.tokens.is_empty() {
            self.fruitless_preemptions = 0;
        }
        note_completed(
            outcome,
            &mut self.live,
            (now, self.last_end),
            collector,
            self.news.as_mut(),
            &mut self.moves,
            &mut self.first_tokens,
        );
        if outcome.beat {
            self.last_end = now;
        }
        if pass.tokens() > 0 {
            count(&pass, &mut self.row);
        }
        if let Some(events) = &mut self.events {
            events.published(now, pass.number, self.rank.events());
        }
        if let Some(news) = &mut self.news {
            news.cache_changed(now, self.rank.events());
        }
        self.rank.clear_events();
        ended
    }

    /// Passes of a stretch were told, the last of which ended at `now`.
    pub(crate) fn hear_stretch(&mut self, now: Nanos) {
        if let Some(news) = &mut self.news {
            news.cache_changed(now, self.rank.events());
            self.rank.clear_events();
        }
    }

    /// What it has to tell the router, if anything ever.
    pub(crate) fn news(&mut self) -> Option<&mut NewsBook> {
        self.news.as_mut()
    }

    /// When the router can know something that is on its way.
    pub(crate) fn next_known_news(&self) -> Nanos {
        self.news.as_ref().map_or(Nanos::NEVER, NewsBook::next_known)
    }

    /// It knows something that the router could know, too.
    pub(crate) fn has_untold_news(&self) -> bool {
        self.news.as_ref().is_some_and(NewsBook::has_untold)
    }

    /// Requests have got on, and the router does not know.
    pub(crate) fn has_progress(&self) -> bool {
        self.news.as_ref().is_some_and(NewsBook::has_progress)
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
    pub(crate) fn load_ended(&mut self, slot: Slot, at_once: bool) {
        match at_once || self.rank.hears_with_passes() {
            true => self.loaded.push(slot),
            false => self.rank.kv_loaded(slot),
        }
    }

    /// Blocks that were held here have been read.
    pub(crate) fn send_ended(&mut self, slot: Slot, at_once: bool) {
        match at_once || self.rank.hears_with_passes() {
            true => self.sent.push(slot),
            false => self.rank.kv_sent(slot),
        }
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
            self.moves.push(LaneMove::Activated(self.live[slot.0 as usize].id, slot));
            self.start_load();
        }
    }

    /// Starts the load of the request whose turn it is, if it can be.
    pub(crate) fn start_load(&mut self) {
        if self.unloaded > 0
            && let Some(load) = self.rank.start_load()
        {
            self.unloaded -= 1;
            self.moves.push(LaneMove::Started(self.live[load.slot.0 as usize].id, load));
        }
    }

    /// A load is to start here, or its end to be told.
    pub(crate) fn is_awaited(&self) -> bool {
        self.unloaded > 0 || self.has_reports()
    }

    pub(crate) fn moves(&mut self) -> &mut Vec<LaneMove> {
        &mut self.moves
    }

    pub(crate) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
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

    /// Adds what it has to do to the load of its worker.
    pub(crate) fn add_to(&self, load: &mut WorkerLoad) {
        load.add_rank(self.rank.unfinished(), &self.rank.stats());
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
        if let Some(host) = &self.host {
            let [to_host, from_host] = host.bytes();
            row.host = Some(HostRow {
                blocks: u64::from(stats.host_blocks),
                used_blocks: u64::from(stats.host_used_blocks),
                hit_tokens: stats.host_hits,
                bytes_to_host: to_host,
                bytes_from_host: from_host,
            });
        }
        if let Some(disk) = &self.disk {
            let [read, written] = disk.bytes();
            row.disk = Some(DiskRow {
                blocks: disk.blocks(),
                used_blocks: stats.disk_used_blocks,
                hit_tokens: stats.disk_hits,
                bytes_written: written,
                bytes_read: read,
            });
        }
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
    (now, last_end): (Nanos, Nanos),
    collector: &mut Collector,
    mut news: Option<&mut NewsBook>,
    moves: &mut Vec<LaneMove>,
    first_tokens: &mut (u64, u128),
) {
    park(&outcome.parked, live, last_end);
    if outcome.steady_tokens > 0 {
        collector.gap(now.since(last_end), outcome.steady_tokens);
    }
    for token in &outcome.tokens {
        let record = &mut live[token.slot.0 as usize];
        match record.last_token {
            Some(previous) => collector.gap(now.since(previous), 1),
            None => {
                record.first_token = Some(now);
                first_tokens.0 += 1;
                first_tokens.1 += u128::from(now.since(record.arrival).0);
                if let Some(news) = &mut news {
                    news.first_token(now, record.id);
                }
            }
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
        note_end(finished, live, now, collector, news.as_deref_mut(), moves);
    }
}

/// Enters the end of a request.
fn note_end(
    finished: &Finished,
    live: &mut [RequestRecord],
    now: Nanos,
    collector: &mut Collector,
    news: Option<&mut NewsBook>,
    moves: &mut Vec<LaneMove>,
) {
    let record = &mut live[finished.slot.0 as usize];
    record.output_tokens = finished.output_tokens;
    record.finish_reason = finished.reason;
    record.terminal = now;
    if finished.held {
        moves.push(LaneMove::Handed(finished.slot, Box::new(record.clone())));
    } else {
        collector.finished(record);
    }
    if let Some(news) = news {
        news.ended(now, record.id);
    }
}
