//! A rank group in virtual time: the ranks that start their passes together, one or several.
//!
//! The group has the clock of its ranks: they choose their batches independently at the same instant, and
//! the pass of all of them ends with that of the slowest. A group of one is a rank on its own clock. Who
//! sends it requests, and up to when it may run, the run decides; it tells the run when it next does
//! something.

use crate::disk::DiskLanes;
use crate::host::HostCopies;
use crate::lane::{Charged, Lane, LaneMove, Loading, Sending};
use crate::planner::Totals;
use crate::stretch::{self, Leap, Limits, Strider};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use windtunnel_config::{Deployment, Placement, Semantics};
use windtunnel_engine::{ConfigError, KvLoad, MAX_NANOS, Nanos, RequestId, Slot, Stepper};
use windtunnel_perf::TimingModel;
use windtunnel_report::{Collector, CollectorOptions, Refusal, RequestRecord, Role};
use windtunnel_router::{GroupStep, LoadReport, Telling};
use windtunnel_traffic::Arrival;

/// What every group of a run is made with.
#[derive(Clone)]
pub(crate) struct GroupOptions {
    pub(crate) stepper: Stepper,
    pub(crate) collector: CollectorOptions,
    pub(crate) log_events: bool,
    pub(crate) telling: Telling,
    pub(crate) interrupt: Arc<AtomicBool>,
}

/// What a group has done that others wait for.
pub(crate) enum Move {
    /// A prompt is computed here, and its blocks are held.
    Handed { lane: usize, slot: Slot, record: Box<RequestRecord> },
    /// A request's load has started.
    Started { id: RequestId, load: KvLoad },
    /// A loaded request may run (AISimulate 0.13).
    Activated { lane: usize, slot: Slot, id: RequestId },
}

/// Ranks of one worker that step together.
pub(crate) struct Group<L> {
    worker: u32,
    lanes: L,
    timing: TimingModel,
    /// Whether prefills, and decodes, lay outside of what a timing was measured for that holds no more.
    outside: [bool; 2],
    depth: usize,
    /// The instant reached: of the last pass end or arrival.
    now: Nanos,
    /// When `schedule` is due. Arrivals of that instant come first.
    due: Option<Nanos>,
    /// End of the newest pass in flight.
    busy_until: Nanos,
    /// Until then a scheduler waits for a copy, and processes no result.
    held: Nanos,
    empty_passes: u32,
    /// Passes without tokens in a row, at one instant, after which it is idle until something arrives.
    idle_passes: u32,
    /// Counts the calls of `schedule`, and begins anew whenever all ranks are done.
    step: GroupStep,
    /// Of vLLM, for several ranks: prefill begins only at steps that are multiples of this.
    prefill_interval: u64,
    collector: Collector,
    /// Requests ended since the run last asked.
    ended: u64,
    /// What the ranks have told the balancer and it has not taken, where there is one.
    reports: Option<Vec<LoadReport>>,
    /// Transfers are known of at once, as in AISimulate 0.13, where they are any.
    at_once: bool,
    /// Stops the run: raised from outside, or here when a pass would end beyond all time.
    interrupt: Arc<AtomicBool>,
    endless: Option<Nanos>,
    /// The router may hold requests back, and lets them go when others get on.
    attentive: bool,
    /// Scratch: the lanes that take part in a stretch.
    stretch: Vec<Strider>,
}

/// The lanes of a group, at least one. A group of one is compiled for itself: it costs no more than a rank.
pub(crate) trait Lanes: AsRef<[Lane]> + AsMut<[Lane]> + IntoIterator<Item = Lane> + Sized {
    /// `count` lanes, from rank `first` on.
    fn make<E>(first: u32, count: u32, lane: impl Fn(u32) -> Result<Lane, E>) -> Result<Self, E>;
}

impl Lanes for [Lane; 1] {
    fn make<E>(first: u32, _: u32, lane: impl Fn(u32) -> Result<Lane, E>) -> Result<Self, E> {
        Ok([lane(first)?])
    }
}

impl Lanes for Vec<Lane> {
    fn make<E>(first: u32, count: u32, lane: impl Fn(u32) -> Result<Lane, E>) -> Result<Self, E> {
        (first..first + count).map(lane).collect()
    }
}

impl<L: Lanes> Group<L> {
    /// `ranks` ranks of `worker`, from rank `first` on.
    pub(crate) fn new(
        role: Role,
        worker: u32,
        first: u32,
        ranks: u32,
        deployment: &Deployment,
        options: &GroupOptions,
    ) -> Result<Group<L>, ConfigError> {
        let mut config = deployment.engine.clone();
        let prefill_interval = if ranks > 1 { u64::from(config.take_prefill_interval()) } else { 1 };
        let depth = config.depth();
        let lane = |index| Lane::new(role, worker, index, config.clone(), options);
        let at_once = role != Role::Aggregated && deployment.semantics == Semantics::Aisimulate013;
        let mut lanes = L::make(first, ranks, lane)?;
        if at_once {
            let charged = if role == Role::Prefill { Charged::Prefill } else { Charged::Decode };
            lanes.as_mut().iter_mut().for_each(|lane| lane.set_charged(charged));
        }
        if let Some(offload) = deployment.host_offload {
            lanes.as_mut().iter_mut().for_each(|lane| lane.set_host(HostCopies::new(offload)));
        }
        if let Some(disk) = deployment.disk_offload {
            lanes.as_mut().iter_mut().for_each(|lane| lane.set_disk(DiskLanes::new(disk)));
        }
        let reports = deployment.ranks.get() > 1 && deployment.placement == Placement::VllmBalancer;
        Ok(Group {
            worker,
            lanes,
            timing: deployment.timing.clone(),
            outside: [false; 2],
            depth,
            now: Nanos::ZERO,
            due: None,
            busy_until: Nanos::ZERO,
            held: Nanos::ZERO,
            empty_passes: 0,
            idle_passes: deployment.engine.idle_passes(),
            step: GroupStep::default(),
            prefill_interval,
            collector: Collector::new(options.collector),
            ended: 0,
            reports: reports.then(Vec::new),
            at_once,
            interrupt: options.interrupt.clone(),
            endless: None,
            attentive: deployment.router.needs().holds,
            stretch: Vec::new(),
        })
    }

    fn in_flight(&self) -> usize {
        self.lanes.as_ref()[0].flying.len()
    }

    /// When the oldest pass in flight is processed: when it ends, or a scheduler is there again.
    fn next_end(&self) -> Option<Nanos> {
        self.lanes.as_ref()[0].flying.front().map(|pass| pass.end.max(self.held))
    }

    fn has_work(&self) -> bool {
        self.lanes.as_ref().iter().any(|lane| lane.rank.has_work())
    }

    /// When it next does something, [`Nanos::NEVER`] if nothing is due.
    pub(crate) fn next_instant(&self) -> Nanos {
        self.due.or_else(|| self.next_end()).unwrap_or(Nanos::NEVER)
    }

    /// Hands over a request to the lane `lane` at `now`, to which the group has been advanced. A refused
    /// request is recorded and has ended.
    /// Where it stands, if it was taken.
    pub(crate) fn submit(&mut self, lane: usize, sending: Sending, now: Nanos) -> Option<Slot> {
        self.now = now;
        let taken = self.lanes.as_mut()[lane].submit(sending, now, &mut self.collector);
        self.wake_or_end(taken.is_some(), now);
        taken
    }

    /// The same of a request whose prompt another worker computes when there is room for its KV here.
    pub(crate) fn receive(&mut self, lane: usize, sending: Sending, now: Nanos) -> Option<Slot> {
        self.now = now;
        let taken = self.lanes.as_mut()[lane].receive(sending, now, &mut self.collector);
        self.wake_or_end(taken.is_some(), now);
        self.start_load_at_once(lane, taken);
        taken
    }

    /// Room is made at once if nothing runs (AISimulate 0.13).
    fn start_load_at_once(&mut self, lane: usize, taken: Option<Slot>) {
        if taken.is_some() && self.at_once && self.in_flight() == 0 {
            self.lanes.as_mut()[lane].start_load();
        }
    }

    /// Another worker has made room for the KV of a request in the lane `lane`, at `now`, to which the group has been
    /// advanced.
    pub(crate) fn kv_wanted(&mut self, lane: usize, slot: Slot, now: Nanos) {
        self.lanes.as_mut()[lane].rank.kv_wanted(slot);
        self.now = now;
        self.wake(now);
    }

    /// Another worker has computed the prompt of a request in the lane `lane`.
    pub(crate) fn note_prefill(&mut self, lane: usize, slot: Slot, prefill: &RequestRecord) {
        self.lanes.as_mut()[lane].note_prefill(slot, prefill);
    }

    /// Takes back a request in the lane `lane` that does not run yet, at `now`, to which the group has been advanced.
    /// When all are taken back that are, [`Group::go_on`] is to be called.
    pub(crate) fn withdraw(&mut self, lane: usize, slot: Slot, loading: Loading, now: Nanos) {
        let at_once = self.at_once;
        self.lanes.as_mut()[lane].withdraw(slot, loading, at_once, now);
    }

    /// A request in the lane `lane` is nobody's any more, at `now`.
    pub(crate) fn disown(&mut self, lane: usize, slot: Slot, now: Nanos) {
        self.lanes.as_mut()[lane].disown(slot, now);
    }

    /// What is known of a request in the lane `lane` that is lost at `now`.
    pub(crate) fn record_of(&self, lane: usize, slot: Slot, now: Nanos) -> RequestRecord {
        self.lanes.as_ref()[lane].record_of(slot, now)
    }

    /// Requests were taken back at `now`: others may have room.
    pub(crate) fn go_on(&mut self, now: Nanos) {
        self.now = now;
        if self.at_once && self.in_flight() == 0 {
            self.lanes.as_mut().iter_mut().for_each(|lane| {
                lane.transfer_at_once(false);
                lane.start_load();
            });
        }
        self.wake(now);
    }

    /// The same of a request whose prompt another worker has computed.
    pub(crate) fn hand_over(
        &mut self,
        lane: usize,
        arrival: Arrival,
        record: RequestRecord,
        now: Nanos,
    ) -> Option<Slot> {
        self.now = now;
        let taken = self.lanes.as_mut()[lane].hand_over(arrival, record, now, &mut self.collector);
        self.wake_or_end(taken.is_some(), now);
        self.start_load_at_once(lane, taken);
        taken
    }

    fn wake_or_end(&mut self, taken: bool, now: Nanos) {
        if taken {
            self.wake(now);
        } else {
            self.ended += 1;
        }
    }

    /// Something has come that it may have waited for.
    fn wake(&mut self, now: Nanos) {
        self.empty_passes = 0;
        if self.in_flight() == 0 && self.due.is_none_or(|due| due > now) {
            self.due = Some(now);
        }
    }

    /// The load of a request in the lane `lane` has ended at `now`, to which the group has been advanced.
    pub(crate) fn load_ended(&mut self, lane: usize, slot: Slot, now: Nanos) {
        let at_once = self.at_once;
        self.lanes.as_mut()[lane].load_ended(slot, at_once);
        self.transfer_ended(lane, now);
    }

    /// Blocks held in the lane `lane` have been read at `now`, to which the group has been advanced.
    pub(crate) fn send_ended(&mut self, lane: usize, slot: Slot, now: Nanos) {
        let at_once = self.at_once;
        self.lanes.as_mut()[lane].send_ended(slot, at_once);
        self.transfer_ended(lane, now);
    }

    fn transfer_ended(&mut self, lane: usize, now: Nanos) {
        self.now = now;
        if self.at_once && self.in_flight() == 0 {
            self.lanes.as_mut()[lane].transfer_at_once(false);
        }
        self.wake(now);
    }

    /// Takes what others wait for.
    pub(crate) fn take_moves(&mut self, into: &mut Vec<Move>) {
        for (lane, of) in self.lanes.as_mut().iter_mut().enumerate().filter(|(_, of)| of.has_moves()) {
            into.extend(of.moves().drain(..).map(|moved| match moved {
                LaneMove::Handed(slot, record) => Move::Handed { lane, slot, record },
                LaneMove::Started(id, load) => Move::Started { id, load },
                LaneMove::Activated(id, slot) => Move::Activated { lane, slot, id },
            }));
        }
    }

    fn has_moves(&self) -> bool {
        self.lanes.as_ref().iter().any(Lane::has_moves)
    }

    /// A load is to start in it, or its end to be told.
    pub(crate) fn is_awaited(&self) -> bool {
        self.lanes.as_ref().iter().any(Lane::is_awaited)
    }

    /// Does all that it does up to and at `instant`.
    pub(crate) fn settle(&mut self, instant: Nanos) {
        self.run_until(instant, false);
        while self.schedule_at(instant) {
            self.run_until(instant, false);
        }
    }

    /// Records a request that none of the worker's ranks was asked to take.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) {
        self.now = refusal.refused;
        self.collector.rejected(refusal);
        if let Some(news) = self.lanes.as_mut()[0].news() {
            news.ended(refusal.refused, refusal.id);
        }
        self.ended += 1;
    }

    /// Runs up to `horizon`: completes the passes that end by then, and schedules those whose instant
    /// lies before it, for at that instant others may still have something to say. If `until_end` is set, returns
    /// early after a pass with which a request ended, or got on in a way that the router or another worker waits
    /// for; and always when the run is interrupted.
    pub(crate) fn run_until(&mut self, horizon: Nanos, until_end: bool) {
        while !self.interrupt.load(Ordering::Relaxed) {
            match self.due {
                Some(now) if now < horizon => {
                    self.report(now, self.step);
                    if !self.run_stretch(now, horizon) {
                        self.schedule(now);
                        if until_end && (self.ended > 0 || self.has_moves()) {
                            return;
                        }
                    }
                }
                Some(_) => return,
                None => match self.next_end() {
                    Some(end) if end <= horizon => {
                        self.complete(end);
                        if until_end && (self.ended > 0 || self.has_moves() || self.has_awaited_news()) {
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
                self.report(due, self.step);
                self.schedule(due);
                true
            }
            _ => false,
        }
    }

    fn schedule(&mut self, now: Nanos) {
        let throttle = self.prefill_interval > 1 && !self.step.step.is_multiple_of(self.prefill_interval);
        let start = now.max(self.busy_until);
        let (mut longest, mut ready, mut loaded) = (Nanos::ZERO, start, Nanos::ZERO);
        let (mut tokens, mut prefill_tokens, mut hopeless, mut reported) = (0, 0, false, false);
        self.lanes.as_mut().iter_mut().for_each(|lane| {
            let part = lane.schedule(throttle, now, start, &self.timing, &mut self.collector);
            self.ended += part.ended;
            ready = ready.max(part.copies.ready);
            loaded = loaded.max(part.copies.loaded);
            self.held = self.held.max(part.copies.held);
            longest = longest.max(part.duration);
            tokens += part.tokens;
            prefill_tokens += part.prefill_tokens;
            hopeless |= part.fruitless || part.fatal;
            reported |= part.copies.reported;
        });
        let end = loaded.max(ready + longest);
        self.lanes.as_mut().iter_mut().for_each(|lane| lane.set_span(ready, end));
        if prefill_tokens > 0 && self.lanes.as_ref().len() > 1 {
            self.lanes.as_mut().iter_mut().for_each(|lane| lane.rank.arm_prefill_decode_interval());
        }
        let lanes = self.lanes.as_mut();
        if tokens == 0 && lanes.iter().flat_map(|lane| &lane.flying).all(|pass| pass.tokens() == 0) {
            lanes.iter_mut().for_each(|lane| lane.rank.end_prefill_deferral());
        }
        if end.0 >= MAX_NANOS {
            self.endless = Some(longest);
        }
        if hopeless || self.endless.is_some() {
            self.interrupt.store(true, Ordering::Relaxed);
        }
        let step = self.step;
        self.step.step += 1;
        self.busy_until = end;
        // What a copy's end changes shows in a later pass.
        self.empty_passes = if tokens == 0 && !reported { self.empty_passes + 1 } else { 0 };
        let another = self.in_flight() < self.depth && self.has_work() && !self.idles();
        self.due = another.then_some(now.max(self.held));
        if another {
            self.report(now, step);
        }
    }

    /// Empty passes would follow each other for ever: those in flight end, and a request has to come first.
    fn idles(&self) -> bool {
        self.empty_passes >= self.idle_passes
    }

    /// When idle ranks are to ask again: at the end of the next copy from or to a host.
    fn next_copy(&mut self, now: Nanos) -> Option<Nanos> {
        let next = self.lanes.as_ref().iter().map(Lane::next_copy).min().unwrap_or(Nanos::NEVER);
        if next == Nanos::NEVER || self.in_flight() > 0 {
            return None;
        }
        self.empty_passes = 0;
        Some(next.max(now))
    }

    /// Completes the oldest pass in flight, which ends at `now`.
    fn complete(&mut self, now: Nanos) {
        self.now = now;
        let ran = self.lanes.as_ref().iter().any(|lane| lane.flying.front().is_some_and(|p| p.tokens() > 0));
        self.lanes.as_mut().iter_mut().for_each(|lane| self.ended += lane.complete(now, &mut self.collector));
        if self.at_once {
            // A pass in which nothing runs is none there.
            self.lanes.as_mut().iter_mut().for_each(|lane| lane.transfer_at_once(ran));
        }
        let step = GroupStep { step: self.step.step.saturating_sub(1), ..self.step };
        self.report(now, step);
        if self.has_work() {
            if !self.idles() {
                self.due = Some(now);
            } else if let Some(next) = self.next_copy(now) {
                self.due = Some(next);
            }
        } else if self.in_flight() == 0 {
            self.step = GroupStep { wave: self.step.wave + 1, step: 0 };
        }
    }

    /// Lets the ranks tell the balancer, if there is one, what has changed.
    fn report(&mut self, time: Nanos, step: GroupStep) {
        let Some(reports) = &mut self.reports else { return };
        self.lanes.as_mut().iter_mut().for_each(|lane| {
            if let Some(load) = lane.take_report() {
                reports.push(LoadReport { time, rank: lane.row.rank, step, load });
            }
        });
    }

    /// Runs steady passes in one go, as far as they end by `horizon`. True if there was one.
    fn run_stretch(&mut self, now: Nanos, horizon: Nanos) -> bool {
        let Some(most) = self.open_stretch() else { return false };
        // Start of the pass that is completed first; each of the others starts when the one before it ends.
        let first_start = match self.lanes.as_ref()[0].flying.front() {
            Some(pass) => pass.start,
            None => now.max(self.busy_until),
        };
        let begin = Leap { passes: 0, now, busy_until: self.busy_until };
        let limits = Limits { depth: self.depth, most, horizon };
        let leap = stretch::leap(&mut self.stretch, begin, limits, &self.timing, &mut self.collector);
        let Leap { passes, now, busy_until } = leap;
        if passes == 0 {
            return false;
        }
        for strider in &self.stretch {
            let lane = &mut self.lanes.as_mut()[strider.lane];
            lane.rank.advance_steady(passes);
            lane.row.passes += passes;
            lane.row.decode_passes += passes;
            lane.row.decode_tokens += passes * strider.decode.count;
            lane.row.busy += now.since(first_start);
            lane.next_pass += passes;
            lane.last_end = now;
            lane.hear_stretch(now);
        }
        self.lanes.as_mut().iter_mut().for_each(|lane| {
            if let Some(pass) = lane.flying.front_mut() {
                pass.number = lane.next_pass.wrapping_sub(1);
                (pass.start, pass.end) = (now, busy_until);
            }
        });
        self.step.step += passes;
        self.busy_until = busy_until;
        self.now = now;
        self.due = Some(now);
        true
    }

    /// Finds out which lanes decode steadily from now on, and for how many passes all of them do. None if
    /// another lane does something else, or nobody anything.
    fn open_stretch(&mut self) -> Option<u64> {
        // The cadence counts passes; where it is on, each of them is scheduled on its own.
        if self.prefill_interval > 1 {
            return None;
        }
        self.stretch.clear();
        let mut most = u64::MAX;
        for (index, lane) in self.lanes.as_ref().iter().enumerate() {
            match lane.steady() {
                Some(steady) => {
                    most = most.min(steady.passes);
                    self.stretch.push(Strider {
                        lane: index,
                        decode: steady.decode,
                        last_end: lane.last_end,
                    });
                }
                None if self.lanes.as_ref().len() > 1 && lane.is_idle() => {}
                None => return None,
            }
        }
        (!self.stretch.is_empty()).then_some(most)
    }

    /// An instant before which it has nothing to tell the router that it has not told.
    pub(crate) fn next_news(&self) -> Nanos {
        if self.lanes.as_ref().iter().any(Lane::has_untold_news) {
            return self.now;
        }
        let on_the_way = self.lanes.as_ref().iter().map(Lane::next_known_news).min();
        self.next_observable().min(on_the_way.unwrap_or(Nanos::NEVER))
    }

    /// An instant before which no request gets its first token or ends, and no event is made.
    fn next_observable(&self) -> Nanos {
        let Some(due) = self.due else { return self.next_end().unwrap_or(Nanos::NEVER) };
        let next_end = self.next_end();
        let mut duration = Nanos::ZERO;
        let mut quiet = u64::MAX;
        for lane in self.lanes.as_ref() {
            match lane.steady() {
                Some(steady) => {
                    quiet = quiet.min(lane.rank.quiet(&steady));
                    duration = duration.max(self.timing.least_duration(steady.decode));
                }
                None if self.lanes.as_ref().len() > 1 && lane.is_idle() => {}
                None => return next_end.unwrap_or(due),
            }
        }
        if quiet == u64::MAX {
            return next_end.unwrap_or(due);
        }
        // The pass in flight is one of them, where there is one.
        let begin = if next_end.is_some() { self.busy_until } else { due.max(self.busy_until) };
        Nanos(begin.0.saturating_add(duration.0.saturating_mul(quiet)).min(MAX_NANOS))
    }

    fn has_awaited_news(&self) -> bool {
        self.attentive && self.lanes.as_ref().iter().any(Lane::has_progress)
    }

    /// Requests that ended, or were refused, since the last call.
    pub(crate) fn take_ended(&mut self) -> u64 {
        std::mem::take(&mut self.ended)
    }

    /// What the ranks have told the balancer since the last call, in order of time.
    pub(crate) fn take_reports(&mut self) -> impl Iterator<Item = LoadReport> + '_ {
        self.reports.iter_mut().flat_map(|reports| reports.drain(..))
    }

    /// Passes scheduled from now on take as long as this says.
    pub(crate) fn set_timing(&mut self, timing: TimingModel) {
        let outside = self.outside_of_profile();
        self.timing = timing;
        self.outside = outside;
    }

    /// The requests that have not ended are lost at `now`.
    pub(crate) fn lose(&mut self, now: Nanos) -> Vec<RequestRecord> {
        self.lanes.as_mut().iter_mut().flat_map(|lane| lane.lose(now)).collect()
    }

    /// What has happened here since it began, but for what arrived.
    pub(crate) fn totals(&self) -> Totals {
        let so_far = self.collector.so_far();
        let mut totals = Totals {
            gaps: so_far.gaps,
            gap_time: so_far.gap_time,
            completed: so_far.completed,
            input_tokens: so_far.input_tokens,
            output_tokens: so_far.output_tokens,
            reused_tokens: so_far.reused_tokens,
            ..Totals::default()
        };
        for (count, time) in self.lanes.as_ref().iter().map(Lane::first_tokens) {
            totals.first_tokens += count;
            totals.ttft += time;
        }
        totals
    }

    /// Batches of KV events that the router never heard of.
    pub(crate) fn lost_batches(&self) -> u64 {
        self.lanes.as_ref().iter().map(Lane::lost_batches).sum()
    }

    /// Requests that have not ended.
    pub(crate) fn unfinished(&self) -> usize {
        self.lanes.as_ref().iter().map(|lane| lane.rank.unfinished()).sum()
    }

    /// Those of one lane.
    pub(crate) fn unfinished_of(&self, lane: usize) -> usize {
        self.lanes.as_ref()[lane].rank.unfinished()
    }

    /// The first rank with requests that have not ended, and which.
    pub(crate) fn stuck(&self) -> Option<(u32, Vec<u64>)> {
        let lane = self.lanes.as_ref().iter().find(|lane| lane.rank.unfinished() > 0)?;
        Some((lane.row.rank, lane.unfinished_requests()))
    }

    /// The instant reached.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    pub(crate) fn worker(&self) -> u32 {
        self.worker
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        self.lanes.as_ref()
    }

    pub(crate) fn lanes_mut(&mut self) -> &mut [Lane] {
        self.lanes.as_mut()
    }

    /// The rank on which requests preempt each other without end and without a token, if there is one, and
    /// its unfinished requests.
    pub(crate) fn fruitless(&self) -> Option<(u32, Vec<u64>)> {
        let lane = self.lanes.as_ref().iter().find(|lane| lane.fruitless())?;
        Some((lane.row.rank, lane.unfinished_requests()))
    }

    /// What the engine would have died of on one of the ranks, if on any: the rank, and its words.
    pub(crate) fn fault(&self) -> Option<(u32, &'static str)> {
        self.lanes.as_ref().iter().find_map(|lane| lane.rank.fault().map(|words| (lane.row.rank, words)))
    }

    /// Whether prefills, and decodes, lay outside of what their timing was measured for.
    pub(crate) fn outside_of_profile(&self) -> [bool; 2] {
        let [prefill, decode] = self.outside;
        [prefill | self.timing.outside().prefill(), decode | self.timing.outside().decode()]
    }

    /// The duration of a pass that would end beyond all time, if there is one.
    pub(crate) fn endless(&self) -> Option<Nanos> {
        self.endless
    }

    /// The counters and what was collected, when the run ends at `end`.
    pub(crate) fn into_collector(self, end: Nanos) -> Collector {
        let mut collector = self.collector;
        self.lanes.into_iter().for_each(|lane| collector.rank(lane.into_row(end)));
        collector
    }
}
