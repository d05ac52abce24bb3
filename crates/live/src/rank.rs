//! One rank in logical time: its scheduler, its parts of the passes in flight, and the requests it serves.
//!
//! It does not know when anything is due: its rank group has the clock. What it tells goes to its observer
//! first; the requests' streams get it later, when asked, so that whoever has seen a token finds it counted.

mod hand_off;

use crate::kv_transfer::KvMove;
use crate::observer::{
    EndReason, Ended, FirstToken, Lengths, Observers, PassObserver, PassReport, RequestTimes,
};
use crate::stream::{TokenStream, Verdict};
use crate::submission::Submission;
use hand_off::HandOffs;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use windtunnel_engine::{
    FinishReason, KvEvents, Nanos, Outcome, Rank, RankConfig, RankStats, RequestId, Scheduled, Slot, Stepper,
};
use windtunnel_perf::TimingModel;
use windtunnel_router::{NewsBook, RankLoad, Router, WorkerLoad};

/// A rank's part of a pass in flight.
struct Flight {
    /// The rank scheduled something, be it nothing. Otherwise only the others of its group do.
    takes_part: bool,
    number: u64,
    start: Nanos,
    scheduled: Scheduled,
}

/// What a rank adds to a pass of its group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) duration: Nanos,
    pub(crate) tokens: u64,
    pub(crate) prefill_tokens: u64,
}

/// What a client has to be told.
enum News {
    /// So many tokens in all, and prompt tokens that were cached.
    Tokens(u32, u32),
    /// The end.
    End(Verdict),
}

/// A request that the rank has not ended.
struct Live {
    stream: Arc<TokenStream>,
    abort_after: Option<u32>,
    times: RequestTimes,
    /// Its client has been told of its end; the engine has yet to come to it.
    told: bool,
    /// It waits, for the first time or again.
    queued: bool,
}

/// One rank of a group.
pub(crate) struct LiveRank {
    config: RankConfig,
    rank: Rank,
    /// Counters of schedulers that this one has replaced.
    before: RankStats,
    flying: VecDeque<Flight>,
    /// Buffers of passes that ended.
    spare: Vec<Scheduled>,
    next_pass: u64,
    /// By slot.
    live: Vec<Option<Live>>,
    /// The slots that are taken, in order of arrival.
    order: Vec<Slot>,
    slots: HashMap<RequestId, Slot>,
    observers: Observers,
    /// What it has to tell its router, if it has one that wants to know.
    book: Option<NewsBook>,
    /// What others wait for.
    moves: Vec<KvMove>,
    hand_offs: HandOffs,
    /// Running and waiting requests, as told to the balancer last.
    reported: (usize, usize),
    /// Scratch.
    gaps: Vec<(Nanos, u64)>,
    fresh: Vec<Slot>,
    /// What the clients have to be told, once everyone else knows.
    news: Vec<(Arc<TokenStream>, News)>,
}

impl LiveRank {
    pub(crate) fn new(
        config: RankConfig,
        rank: Rank,
        observers: Observers,
        book: Option<NewsBook>,
    ) -> LiveRank {
        let hand_offs = HandOffs::new(&config);
        LiveRank {
            config,
            rank,
            before: RankStats::default(),
            flying: VecDeque::new(),
            spare: Vec::new(),
            next_pass: 0,
            live: Vec::new(),
            order: Vec::new(),
            slots: HashMap::new(),
            observers,
            book,
            moves: Vec::new(),
            hand_offs,
            reported: (0, 0),
            gaps: Vec::new(),
            fresh: Vec::new(),
            news: Vec::new(),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.rank.has_work()
    }

    pub(crate) fn stats(&self) -> RankStats {
        let (own, before) = (self.rank.stats(), self.before);
        RankStats {
            peak_used_blocks: own.peak_used_blocks.max(before.peak_used_blocks),
            evictions: own.evictions + before.evictions,
            preemptions: own.preemptions + before.preemptions,
            prefix_queries: own.prefix_queries + before.prefix_queries,
            prefix_hits: own.prefix_hits + before.prefix_hits,
            ..own
        }
    }

    /// Requests that it has.
    pub(crate) fn unfinished(&self) -> u64 {
        self.rank.unfinished() as u64
    }

    /// It has no request, and no KV of one.
    pub(crate) fn is_idle(&self) -> bool {
        self.rank.unfinished() == 0 && self.hand_offs.is_empty()
    }

    /// Adds what it has to do to the load of its worker.
    pub(crate) fn add_to(&self, load: &mut WorkerLoad) {
        load.add_rank(self.rank.unfinished(), &self.rank.stats());
    }

    /// Tells a router what is known by `now`; `rank` is its number among all. True if requests have got on.
    pub(crate) fn tell(&mut self, rank: u32, now: Nanos, router: &mut dyn Router) -> bool {
        let Some(book) = &mut self.book else { return false };
        let progress = book.has_progress();
        book.tell(rank, now, router);
        progress
    }

    /// What it has done that others wait for.
    pub(crate) fn moves(&mut self) -> impl Iterator<Item = KvMove> + '_ {
        self.moves.drain(..)
    }

    /// Empties the prefix cache of a rank without requests: its scheduler begins anew. True if that was done.
    pub(crate) fn reset_cache(&mut self, at: Nanos) -> bool {
        // The settings made a scheduler before.
        let Ok(fresh) = Rank::new(self.config.clone(), Stepper::Plain) else { return false };
        self.before = self.stats();
        self.rank = fresh;
        // A pass in flight that only announces ends is of the old scheduler, and has nothing to tell.
        self.flying.iter_mut().for_each(|flight| flight.takes_part = false);
        let mut events = KvEvents::default();
        events.cleared();
        self.observers.cache_reset(&events, at);
        if let Some(book) = &mut self.book {
            book.cache_changed(at, &events);
        }
        self.rank.clear_events();
        true
    }

    /// What the engine would have died of, in its words.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        self.rank.fault()
    }

    /// No pass in flight computes a token.
    pub(crate) fn flies_empty(&self) -> bool {
        self.flying.iter().all(|flight| flight.scheduled.tokens == 0)
    }

    pub(crate) fn arm_prefill_decode_interval(&mut self) {
        self.rank.arm_prefill_decode_interval();
    }

    pub(crate) fn end_prefill_deferral(&mut self) {
        self.rank.end_prefill_deferral();
    }

    pub(crate) fn idle(&mut self, at: Nanos) {
        self.observers.idle(at);
    }

    /// Takes over a request that arrived at `at`. False if the engine refused it.
    pub(crate) fn submit(&mut self, submission: Submission, at: Nanos) -> bool {
        let Submission { stream, mut request, abort_after, remote, session: _, came } = submission;
        request.arrival = came.unwrap_or(at);
        self.hand_offs.shorten(&mut request);
        let info = stream.info.clone();
        match self.rank.submit(request) {
            Ok(slot) => {
                let times = RequestTimes { arrival: at, ..RequestTimes::default() };
                let place = slot.0 as usize;
                if self.live.len() <= place {
                    self.live.resize_with(place + 1, || None);
                }
                self.live[place] = Some(Live { stream, abort_after, times, told: false, queued: true });
                self.order.push(slot);
                self.slots.insert(info.id, slot);
                self.moves.extend(self.hand_offs.begin(info.id, remote));
                if self.rank.awaits_hand_off(slot) {
                    self.hand_offs.apart.push((info.id, at));
                }
                self.observers.submitted(&info, at, &self.stats());
                true
            }
            Err(reason) => {
                self.note_end(at, info.id);
                self.observers.rejected(&info, reason, at);
                self.news.push((stream, News::End(Verdict::Rejected(reason))));
                false
            }
        }
    }

    /// Ends a request whose client is gone. Nothing happens if it has ended already.
    pub(crate) fn cancel(&mut self, id: RequestId, at: Nanos) {
        let Some(&slot) = self.slots.get(&id) else { return };
        if self.rank.cancel(slot) {
            self.take_out(slot, EndReason::Cancelled, at);
        } else if let Some(live) = at_mut(&mut self.live, slot)
            && !std::mem::replace(&mut live.told, true)
        {
            let (stream, times) = (live.stream.clone(), live.times);
            self.note_end(at, id);
            let ended = Ended { info: &stream.info, times: &times, reason: EndReason::Cancelled, at };
            self.observers.ended(&ended, &self.stats());
            self.news.push((stream, News::End(Verdict::Ended(EndReason::Cancelled, times))));
        }
    }

    /// Ends every request, because the engine died.
    pub(crate) fn fail_all(&mut self, at: Nanos) {
        for slot in std::mem::take(&mut self.order) {
            if let Some(live) = self.live.get_mut(slot.0 as usize).and_then(Option::take) {
                self.moves.extend(self.hand_offs.end(live.stream.info.id));
                self.tell_end(&live, EndReason::Failed, at);
            }
        }
        self.fail_held(at);
        self.slots.clear();
    }

    /// Ends a request that the scheduler has let go.
    fn take_out(&mut self, slot: Slot, reason: EndReason, at: Nanos) {
        if let Some(live) = self.forget(slot) {
            self.order.retain(|&other| other != slot);
            self.moves.extend(self.hand_offs.end(live.stream.info.id));
            self.tell_end(&live, reason, at);
        }
    }

    fn tell_end(&mut self, live: &Live, reason: EndReason, at: Nanos) {
        if live.told {
            return;
        }
        self.note_end(at, live.stream.info.id);
        self.say_end(live, reason, at);
    }

    /// The same of which its router knows.
    fn say_end(&mut self, live: &Live, reason: EndReason, at: Nanos) {
        let stream = &live.stream;
        let ended = Ended { info: &stream.info, times: &live.times, reason, at };
        self.observers.ended(&ended, &self.stats());
        self.news.push((stream.clone(), News::End(Verdict::Ended(reason, live.times))));
    }

    /// Its router is to know that a request has ended.
    fn note_end(&mut self, at: Nanos, id: RequestId) {
        if let Some(book) = &mut self.book {
            book.ended(at, id);
        }
    }

    /// Takes a request out of the tables, all but `order`.
    fn forget(&mut self, slot: Slot) -> Option<Live> {
        let live = self.live.get_mut(slot.0 as usize)?.take()?;
        self.slots.remove(&live.stream.info.id);
        Some(live)
    }

    /// Schedules, `now`, its part of the pass that starts at `start`, if there is anything to schedule.
    pub(crate) fn schedule(
        &mut self,
        throttle: bool,
        (now, start): (Nanos, Nanos),
        timing: &TimingModel,
    ) -> Part {
        let mut copy = self.spare.pop().unwrap_or_default();
        if !self.rank.has_work() {
            copy.tokens = 0;
            self.flying.push_back(Flight {
                takes_part: false,
                number: self.next_pass,
                start,
                scheduled: copy,
            });
            return Part::default();
        }
        let scheduled = self.rank.schedule_throttled(throttle);
        copy_into(scheduled, &mut copy);
        let duration = timing.pass_duration(&copy.shape());
        let part = Part { duration, tokens: copy.tokens, prefill_tokens: copy.prefill_tokens };
        for admission in &copy.admitted {
            if let Some(live) = at_mut(&mut self.live, admission.slot) {
                live.queued = false;
                let times = &mut live.times;
                if times.first_admit.is_none() {
                    times.first_admit = Some(start);
                    if !admission.loaded {
                        times.cached_tokens = admission.hit_tokens;
                    }
                }
                times.admissions += 1;
                times.reused_tokens = times.reused_tokens.max(admission.hit_tokens);
            }
        }
        for slot in &copy.preempted {
            if let Some(live) = at_mut(&mut self.live, *slot) {
                live.times.preemptions += 1;
                live.queued = true;
            }
        }
        self.transfers(&copy, now);
        self.note_queued(now);
        self.give(&copy, now);
        self.end_sent(now);
        self.flying.push_back(Flight { takes_part: true, number: self.next_pass, start, scheduled: copy });
        self.next_pass += 1;
        part
    }

    /// Completes its part of the oldest pass in flight, which ends at `now`, and tells everyone.
    pub(crate) fn complete(&mut self, now: Nanos) {
        let Some(flight) = self.flying.pop_front() else { return };
        if flight.takes_part {
            self.complete_part(&flight, now);
            self.end_sent(now);
        }
        self.spare.push(flight.scheduled);
    }

    fn complete_part(&mut self, flight: &Flight, now: Nanos) {
        let outcome = self.rank.complete().clone();
        self.gaps.clear();
        self.fresh.clear();
        let mut tokens = 0;
        let mut aborted = Vec::new();
        let finished: HashMap<Slot, (FinishReason, u32)> =
            outcome.finished.iter().map(|f| (f.slot, (f.reason, f.output_tokens))).collect();
        for &slot in &self.order {
            let given = match finished.get(&slot) {
                Some(&(_, output_tokens)) => output_tokens,
                None => self.rank.outputs(slot),
            };
            let Some(live) = at_mut(&mut self.live, slot).filter(|live| !live.told) else { continue };
            let times = &mut live.times;
            if given <= times.output_tokens {
                continue;
            }
            tokens += u64::from(given - times.output_tokens);
            match times.last_token {
                Some(previous) => note_gap(&mut self.gaps, now.since(previous)),
                None => {
                    times.first_token = Some(now);
                    self.fresh.push(slot);
                    if let Some(book) = &mut self.book {
                        book.first_token(now, live.stream.info.id);
                    }
                }
            }
            if given >= 2 && times.second_token.is_none() {
                times.second_token = Some(now);
            }
            times.last_token = Some(now);
            times.output_tokens = given;
            match live.abort_after {
                Some(last) if given >= last => aborted.push(slot),
                _ if finished.contains_key(&slot) => {}
                _ => {
                    let news = News::Tokens(given, times.known_tokens());
                    self.news.push((live.stream.clone(), news));
                }
            }
        }
        let mut gone = Vec::new();
        for finished in &outcome.finished {
            if finished.held && self.hold(finished.slot, now) {
                continue;
            }
            if let Some(live) = self.forget(finished.slot).filter(|live| !live.told) {
                let stopped = aborted.contains(&finished.slot);
                let reason = if stopped { FinishReason::Stop } else { finished.reason };
                gone.push((live, EndReason::Finished(reason)));
            }
        }
        for slot in aborted {
            self.stop_at_string(slot, &mut gone);
        }
        if !gone.is_empty() || !outcome.finished.is_empty() {
            self.order.retain(|slot| self.live[slot.0 as usize].is_some());
        }
        gone.iter().for_each(|(live, _)| self.note_end(now, live.stream.info.id));
        for finished in outcome.finished.iter().filter(|finished| !finished.held) {
            self.moves.extend(self.hand_offs.end(finished.id));
        }
        if let Some(book) = &mut self.book {
            book.cache_changed(now, self.rank.events());
        }
        self.report(flight, &outcome, now, tokens, &gone);
        for (live, reason) in gone {
            let verdict = Verdict::Ended(reason, live.times);
            self.news.push((live.stream, News::End(verdict)));
        }
    }

    /// Tells the clients what has happened since the last time.
    pub(crate) fn deliver(&mut self) {
        for (stream, news) in self.news.drain(..) {
            match news {
                News::Tokens(given, cached) => stream.give(given, cached),
                News::End(verdict) => stream.end(verdict),
            }
        }
    }

    /// Ends a request whose stop string is complete, unless it ended with this pass anyway.
    fn stop_at_string(&mut self, slot: Slot, gone: &mut Vec<(Live, EndReason)>) {
        let reason = EndReason::Finished(FinishReason::Stop);
        if at_mut(&mut self.live, slot).is_none() {
            return;
        }
        if self.rank.cancel(slot) {
            gone.extend(self.forget(slot).map(|live| (live, reason)));
        } else if let Some(live) = at_mut(&mut self.live, slot) {
            live.told = true;
            let told = Live {
                stream: live.stream.clone(),
                abort_after: None,
                times: live.times,
                told: false,
                queued: false,
            };
            gone.push((told, reason));
        }
    }

    fn report(
        &mut self,
        flight: &Flight,
        outcome: &Outcome,
        now: Nanos,
        tokens: u64,
        gone: &[(Live, EndReason)],
    ) {
        let ended: Vec<Ended<'_>> = gone
            .iter()
            .map(|(live, reason)| Ended {
                info: &live.stream.info,
                times: &live.times,
                reason: *reason,
                at: now,
            })
            .collect();
        let first = |live: &'_ Live| live.times.first_token == Some(now);
        let ending = gone.iter().map(|(live, _)| live).filter(|live| first(live));
        let staying = self
            .fresh
            .iter()
            .filter_map(|slot| self.live[slot.0 as usize].as_ref())
            .filter(|live| !live.told);
        let first_tokens: Vec<FirstToken<'_>> = staying
            .chain(ending)
            .map(|live| FirstToken { info: &live.stream.info, times: &live.times })
            .collect();
        let (queued_prefill, queued_decode) = self.queued();
        let stats = self.stats();
        self.observers.pass(&PassReport {
            number: flight.number,
            start: flight.start,
            end: now,
            scheduled: &flight.scheduled,
            outcome,
            events: self.rank.events(),
            stats: &stats,
            tokens,
            gaps: &self.gaps,
            first_tokens: &first_tokens,
            queued_prefill,
            queued_decode,
            ended: &ended,
        });
        self.rank.clear_events();
    }

    /// What waits: requests that never ran, and those that lost their blocks. Of a rank that goes on with what others have
    /// computed (SGLang), those whose KV is not there count with the latter, and others not
    /// (srt/managers/scheduler_components/metrics_reporter.py, 0.5.23).
    fn queued(&self) -> (Lengths, Lengths) {
        let (mut fresh, mut again) = (Lengths::default(), Lengths::default());
        if self.hand_offs.goes_on() {
            let apart = self.order.iter().filter(|&&slot| self.rank.awaits_hand_off(slot));
            let apart = apart.filter_map(|slot| self.live[slot.0 as usize].as_ref());
            // Those that were retracted are in a queue of their own.
            for live in apart.filter(|live| live.times.first_admit.is_none()) {
                again.add(live.stream.info.prompt.len() as u64 + u64::from(live.times.output_tokens));
            }
            return (fresh, again);
        }
        let waiting = self.order.iter().filter_map(|slot| self.live[slot.0 as usize].as_ref());
        for live in waiting.filter(|live| live.queued) {
            let prompt = live.stream.info.prompt.len() as u64;
            match live.times.first_admit {
                None => fresh.add(prompt),
                Some(_) => again.add(prompt + u64::from(live.times.output_tokens)),
            }
        }
        (fresh, again)
    }

    /// What it has to tell the balancer: its load, if its counts have changed since it last did.
    pub(crate) fn take_load(&mut self) -> Option<RankLoad> {
        let stats = self.stats();
        let counts = (stats.running, stats.waiting);
        if std::mem::replace(&mut self.reported, counts) == counts {
            return None;
        }
        let free = f64::from(stats.usable_blocks - stats.used_blocks);
        Some(RankLoad {
            waiting: counts.1 as u64,
            running: counts.0 as u64,
            kv_usage: 1.0 - free / f64::from(stats.usable_blocks),
        })
    }
}

/// The request in a slot.
fn at_mut(live: &mut [Option<Live>], slot: Slot) -> Option<&mut Live> {
    live.get_mut(slot.0 as usize)?.as_mut()
}

/// Adds one gap to the counts. Nearly all gaps of a pass are the same.
fn note_gap(gaps: &mut Vec<(Nanos, u64)>, gap: Nanos) {
    match gaps.iter_mut().find(|(other, _)| *other == gap) {
        Some((_, count)) => *count += 1,
        None => gaps.push((gap, 1)),
    }
}

/// A copy without an allocation, once warm.
fn copy_into(from: &Scheduled, to: &mut Scheduled) {
    (to.tokens, to.prefill_tokens) = (from.tokens, from.prefill_tokens);
    (to.decode, to.lookups) = (from.decode, from.lookups);
    to.prefill.clone_from(&from.prefill);
    to.admitted.clone_from(&from.admitted);
    to.preempted.clone_from(&from.preempted);
    to.parked.clone_from(&from.parked);
    to.loads.clone_from(&from.loads);
    to.unread.clone_from(&from.unread);
    to.given.clone_from(&from.given);
    to.finished.clone_from(&from.finished);
}
