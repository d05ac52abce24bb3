//! A rank group in logical time: the ranks that start their passes together, one or several.
//!
//! The same instants and the same order as in virtual time: pass ends, arrivals, schedule calls, pass starts.
//! It is told how far it may go and by whom it is asked; clocks, threads and sockets are not known here.

use crate::kv_transfer::{KvMove, Let, Loaded};
use crate::rank::LiveRank;
use crate::submission::Submission;
use std::collections::VecDeque;
use windtunnel_config::Deployment;
use windtunnel_engine::{MAX_NANOS, Nanos, RankConfig, RankStats, RequestId};
use windtunnel_perf::TimingModel;
use windtunnel_router::{GroupStep, LoadReport, Router, WorkerLoad};

/// What a group is made with, apart from its ranks.
#[derive(Clone, Debug)]
pub(crate) struct GroupSettings {
    /// The settings of each rank, those of a group taken out.
    pub(crate) engine: RankConfig,
    /// Of vLLM, for several ranks: prefill begins only at steps that are multiples of this.
    pub(crate) prefill_interval: u64,
    pub(crate) timing: TimingModel,
    /// Passes take the time of the law divided by this; with 0 they take none, and begin when they can.
    pub(crate) speed: f64,
    /// Ranks tell a balancer their load.
    pub(crate) reports: bool,
}

impl GroupSettings {
    /// Those of a worker of a deployment.
    pub(crate) fn new(deployment: &Deployment, speed: f64) -> GroupSettings {
        let ranks = deployment.ranks.get();
        let mut engine = deployment.engine.clone();
        let lockstep = ranks > 1 && deployment.barrier;
        let prefill_interval = if lockstep { u64::from(engine.take_prefill_interval()) } else { 1 };
        GroupSettings {
            engine,
            prefill_interval,
            timing: deployment.timing.clone(),
            speed,
            reports: ranks > 1,
        }
    }
}

/// A pass in flight.
#[derive(Clone, Copy, Debug)]
struct GroupPass {
    end: Nanos,
}

/// Ranks of one worker that step together.
pub(crate) struct RankGroup {
    /// The first rank's number in its worker.
    first: u32,
    ranks: Vec<LiveRank>,
    settings: GroupSettings,
    depth: usize,
    flying: VecDeque<GroupPass>,
    now: Nanos,
    /// When `schedule` is due. Arrivals of that instant come first.
    due: Option<Nanos>,
    /// End of the newest pass in flight.
    busy_until: Nanos,
    empty_passes: u32,
    idle_passes: u32,
    step: GroupStep,
    reports: Vec<LoadReport>,
    dead: Option<&'static str>,
}

impl RankGroup {
    pub(crate) fn new(first: u32, ranks: Vec<LiveRank>, settings: GroupSettings) -> RankGroup {
        RankGroup {
            first,
            ranks,
            depth: settings.engine.depth(),
            idle_passes: settings.engine.idle_passes(),
            settings,
            flying: VecDeque::new(),
            now: Nanos::ZERO,
            due: None,
            busy_until: Nanos::ZERO,
            empty_passes: 0,
            step: GroupStep::default(),
            reports: Vec::new(),
            dead: None,
        }
    }

    /// What the engine died of, if it did.
    pub(crate) fn dead(&self) -> Option<&'static str> {
        self.dead
    }

    /// The instant reached.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// When it next does something, [`Nanos::NEVER`] if nothing is due.
    pub(crate) fn next_instant(&self) -> Nanos {
        self.due.or_else(|| self.flying.front().map(|pass| pass.end)).unwrap_or(Nanos::NEVER)
    }

    /// Counters of its ranks.
    pub(crate) fn stats(&self) -> impl Iterator<Item = RankStats> + '_ {
        self.ranks.iter().map(LiveRank::stats)
    }

    /// Hands a request to one of its ranks, which arrived at `at`, or now if that is over.
    /// False if it was refused.
    pub(crate) fn submit(&mut self, rank: usize, submission: Submission, at: Nanos) -> bool {
        let at = self.reach(at);
        let taken = self.ranks[rank].submit(submission, at);
        if taken {
            self.empty_passes = 0;
            self.wake(at);
        }
        taken
    }

    /// A schedule call is due, before the next pass end.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Requests that its ranks have.
    pub(crate) fn unfinished(&self) -> u64 {
        self.unfinished_by_rank().sum()
    }

    /// The same, of each.
    pub(crate) fn unfinished_by_rank(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranks.iter().map(LiveRank::unfinished)
    }

    /// Whether prefills, and decodes, lay outside of what their timing was measured for.
    pub(crate) fn outside_of_profile(&self) -> [bool; 2] {
        let outside = self.settings.timing.outside();
        [outside.prefill(), outside.decode()]
    }

    /// Ends a request, wherever it is.
    pub(crate) fn cancel(&mut self, id: RequestId, at: Nanos) {
        let at = self.reach(at);
        self.ranks.iter_mut().for_each(|rank| rank.cancel(id, at));
        // The next pass tells of the end, also when nothing else is to be done.
        if self.ranks.iter().any(LiveRank::has_work) {
            self.empty_passes = 0;
            self.wake(at);
        }
    }

    /// The load of a request of the rank `lane` has ended; without success where nothing is said of it.
    pub(crate) fn load_ended(&mut self, lane: usize, id: RequestId, loaded: Option<Loaded>, at: Nanos) {
        let at = self.reach(at);
        self.ranks[lane].load_ended(id, loaded, at);
        self.news_came(at);
    }

    /// Blocks held on the rank `lane` no longer have to be.
    pub(crate) fn send_ended(&mut self, lane: usize, id: RequestId, why: Let, at: Nanos) {
        let at = self.reach(at);
        self.ranks[lane].send_ended(id, why);
        self.news_came(at);
    }

    /// Another worker has made room for the KV of a request of the rank `lane`.
    pub(crate) fn kv_wanted(&mut self, lane: usize, id: RequestId, at: Nanos) {
        let at = self.reach(at);
        self.ranks[lane].kv_wanted(id);
        self.news_came(at);
    }

    /// No other worker has the other part of a request of the rank `lane`, or no longer.
    pub(crate) fn give_up(&mut self, lane: usize, id: RequestId, at: Nanos) {
        let at = self.reach(at);
        self.ranks[lane].give_up(id, at);
        self.news_came(at);
    }

    fn news_came(&mut self, at: Nanos) {
        self.empty_passes = 0;
        self.wake(at);
    }

    /// Adds what its ranks have to do to the load of their worker.
    pub(crate) fn add_to(&self, load: &mut WorkerLoad) {
        self.ranks.iter().for_each(|rank| rank.add_to(load));
    }

    /// Tells a router what is known by `now`. The first rank is number `first` among all. True if requests have got on.
    pub(crate) fn tell(&mut self, first: u32, now: Nanos, router: &mut dyn Router) -> bool {
        let told = self.ranks.iter_mut().zip(first..).map(|(rank, number)| rank.tell(number, now, router));
        told.fold(false, |any, one| any | one)
    }

    /// Takes what its ranks have done that others wait for.
    pub(crate) fn take_moves(&mut self, mut take: impl FnMut(usize, KvMove)) {
        for (lane, rank) in self.ranks.iter_mut().enumerate() {
            rank.moves().for_each(|step| take(lane, step));
        }
    }

    fn reach(&mut self, at: Nanos) -> Nanos {
        self.now = self.now.max(at);
        self.now
    }

    fn wake(&mut self, at: Nanos) {
        if self.flying.is_empty() && self.due.is_none() {
            self.due = Some(at);
        }
    }

    /// Does what is due next, at `now`, which is not before [`next_instant`](Self::next_instant).
    pub(crate) fn advance(&mut self, now: Nanos) {
        if self.dead.is_some() {
            self.due = None;
            self.flying.clear();
            return;
        }
        match self.due {
            Some(due) => {
                let at = if self.no_delay() { now } else { due };
                self.report(at, self.step);
                self.schedule(at);
            }
            None => {
                let Some(pass) = self.flying.pop_front() else { return };
                let at = if self.no_delay() { now } else { pass.end };
                self.complete(at);
            }
        }
    }

    fn schedule(&mut self, now: Nanos) {
        self.now = now;
        let interval = self.settings.prefill_interval;
        let throttle = interval > 1 && !self.step.step.is_multiple_of(interval);
        let start = now.max(self.busy_until);
        let (mut longest, mut tokens, mut prefill_tokens) = (Nanos::ZERO, 0, 0);
        for rank in &mut self.ranks {
            let part = rank.schedule(throttle, (now, start), &self.settings.timing);
            longest = longest.max(part.duration);
            tokens += part.tokens;
            prefill_tokens += part.prefill_tokens;
        }
        let end = start + self.hastened(longest);
        self.flying.push_back(GroupPass { end });
        if prefill_tokens > 0 && self.ranks.len() > 1 {
            self.ranks.iter_mut().for_each(LiveRank::arm_prefill_decode_interval);
        }
        if tokens == 0 && self.ranks.iter().all(LiveRank::flies_empty) {
            self.ranks.iter_mut().for_each(LiveRank::end_prefill_deferral);
        }
        if let Some(words) = self.ranks.iter().find_map(LiveRank::fault) {
            self.die(words);
            return;
        }
        if end.0 >= MAX_NANOS {
            self.die("a pass would end later than 292 years after the start");
            return;
        }
        let step = self.step;
        self.step.step += 1;
        self.busy_until = end;
        self.empty_passes = if tokens == 0 { self.empty_passes + 1 } else { 0 };
        let another = self.flying.len() < self.depth && self.has_work() && !self.idles();
        self.due = another.then_some(now);
        if another {
            self.report(now, step);
        }
    }

    fn no_delay(&self) -> bool {
        self.settings.speed == 0.0
    }

    /// How long a pass takes that the law gives so much time.
    fn hastened(&self, duration: Nanos) -> Nanos {
        match self.settings.speed {
            0.0 => Nanos::ZERO,
            1.0 => duration,
            speed => Nanos((duration.0 as f64 / speed).round() as u64),
        }
    }

    /// Changes the speed of the passes scheduled from now on.
    pub(crate) fn set_speed(&mut self, speed: f64) {
        self.settings.speed = speed;
    }

    /// Empties the prefix caches of all ranks, unless one has a request. True if that was done.
    pub(crate) fn reset_cache(&mut self, at: Nanos) -> bool {
        let at = self.reach(at);
        if self.ranks.iter().any(|rank| !rank.is_idle()) {
            return false;
        }
        self.ranks.iter_mut().all(|rank| rank.reset_cache(at))
    }

    fn die(&mut self, words: &'static str) {
        self.dead = Some(words);
        self.due = None;
        self.flying.clear();
        let now = self.now;
        self.ranks.iter_mut().for_each(|rank| rank.fail_all(now));
    }

    fn has_work(&self) -> bool {
        self.ranks.iter().any(LiveRank::has_work)
    }

    /// Empty passes would follow each other for ever: those in flight end, and a request has to come first.
    fn idles(&self) -> bool {
        self.empty_passes >= self.idle_passes
    }

    /// Completes the oldest pass in flight, which ends at `now`.
    fn complete(&mut self, now: Nanos) {
        self.now = now;
        self.ranks.iter_mut().for_each(|rank| rank.complete(now));
        let step = GroupStep { step: self.step.step.saturating_sub(1), ..self.step };
        self.report(now, step);
        if self.has_work() {
            if !self.idles() {
                self.due = Some(now);
            }
        } else if self.flying.is_empty() {
            self.step = GroupStep { wave: self.step.wave + 1, step: 0 };
        }
    }

    /// Tells the clients what has happened since the last time.
    pub(crate) fn deliver(&mut self) {
        self.ranks.iter_mut().for_each(LiveRank::deliver);
    }

    /// Nothing has happened for a while.
    pub(crate) fn idle(&mut self, at: Nanos) {
        self.ranks.iter_mut().for_each(|rank| rank.idle(at));
    }

    /// Lets the ranks tell the balancer, if there is one, what has changed.
    fn report(&mut self, time: Nanos, step: GroupStep) {
        if !self.settings.reports {
            return;
        }
        for (rank, number) in self.ranks.iter_mut().zip(self.first..) {
            if let Some(load) = rank.take_load() {
                self.reports.push(LoadReport { time, rank: number, step, load });
            }
        }
    }

    /// What the ranks have told the balancer since it last asked.
    pub(crate) fn take_reports(&mut self) -> Vec<LoadReport> {
        std::mem::take(&mut self.reports)
    }
}
