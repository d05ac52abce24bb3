//! Three ranks with the same settings, given the same calls: one visits every running request in every pass,
//! one visits those for which something changes, and one of the second kind also takes many steady passes
//! at once (in half of the cases telling shared identities only, when a stretch ends). They must agree at every instant; what all of them
//! must obey is checked on the first.
//!
//! Time is the number of passes completed, empty ones included. A stamp that is one pass off shows.

use super::checks::cache::Mirror;
use super::checks::progress::Progress;
use super::checks::{self, agreement};
use super::plan::{Case, Event, Plan};
use super::stamps::{Stamps, Tokens};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use windtunnel_engine::vllm::{Config, Rank};
use windtunnel_engine::{FinishReason, KvEventScope, Nanos, Outcome, Slot, Steady, Stepper};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Live,
    Refused,
    Cancelled,
    Finished(FinishReason),
}

/// A request and what was seen of it.
#[derive(Clone, Debug)]
pub struct Tracked {
    pub plan: Plan,
    pub fate: Fate,
    /// Meaningful while it lives.
    pub slot: Slot,
    /// Output tokens delivered.
    pub outputs: u32,
    /// Tokens computed, as of the last schedule call.
    pub computed: u32,
    /// Its last scheduled chunk left part of it uncomputed.
    pub mid_prefill: bool,
    pub preemptions: u32,
    /// Passes in flight that computed it when it was preempted.
    pub stale: u32,
    /// When its tokens came.
    pub tokens: Tokens,
}

impl Tracked {
    /// Prompt and output tokens known.
    pub fn known(&self) -> u32 {
        self.plan.prompt + self.outputs
    }
}

/// A pass in flight.
#[derive(Clone, Debug)]
pub struct Flown {
    pub tokens: u64,
    /// Request, tokens, and whether it gives an output token, in batch order.
    pub batch: Vec<(usize, u32, bool)>,
}

/// What was met in a case, to show that the cases are worth something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub cases: u64,
    pub passes: u64,
    pub submitted: u64,
    pub refused: u64,
    pub cancelled: u64,
    pub finished: u64,
    pub preemptions: u64,
    pub evictions: u64,
    pub hit_tokens: u64,
    pub stale: u64,
    pub leaps: u64,
    pub leapt_passes: u64,
    /// Cases that ended because requests took each other's blocks without end.
    pub livelocks: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.cases += other.cases;
        self.passes += other.passes;
        self.submitted += other.submitted;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
        self.finished += other.finished;
        self.preemptions += other.preemptions;
        self.evictions += other.evictions;
        self.hit_tokens += other.hit_tokens;
        self.stale += other.stale;
        self.leaps += other.leaps;
        self.leapt_passes += other.leapt_passes;
        self.livelocks += other.livelocks;
    }
}

/// A rank under test and what a report would note of its tokens.
pub struct Subject {
    pub rank: Rank,
    stamps: Stamps,
}

impl Subject {
    fn new(config: &Config, stepper: Stepper) -> Subject {
        let rank = Rank::new(config.clone(), stepper).expect("the cases have settings that vLLM accepts");
        Subject { rank, stamps: Stamps::default() }
    }
}

/// The ranks, the requests, and the passes in flight.
pub struct World<'a> {
    pub case: &'a Case,
    pub plain: Subject,
    /// The fast one, and the fast one that takes steady passes at once.
    others: [Subject; 2],
    next_leap: usize,
    pub requests: Vec<Tracked>,
    pub flights: VecDeque<Flown>,
    pub cache: Mirror,
    shared: agreement::SharedEvents,
    progress: Progress,
    /// Passes completed.
    now: u64,
    digest: DefaultHasher,
    tally: Tally,
}

impl<'a> World<'a> {
    /// Runs a case to its end. Returns what was met, and a number that stands for everything that was
    /// decided and delivered.
    pub fn run(case: &'a Case) -> (Tally, u64) {
        let mut world = World::new(case);
        for event in &case.events {
            match event {
                Event::Submit(plan) => world.submit(plan),
                Event::Cancel(place) => world.cancel(*place),
                Event::Work(calls) => (0..*calls).for_each(|_| {
                    world.work();
                }),
            }
        }
        while world.work() {
            if !world.progress.is_being_made(&world) {
                checks::progress::assert_known_livelock(&world);
                world.tally.livelocks += 1;
                return world.end();
            }
        }
        checks::conservation::at_rest(&world);
        world.end()
    }

    fn new(case: &'a Case) -> World<'a> {
        let shared = KvEventScope::Shared { timed: false };
        let kv_events = if case.leaper_is_silent { shared } else { KvEventScope::All };
        let leaper = Config { kv_events, ..case.config.clone() };
        World {
            case,
            plain: Subject::new(&case.config, Stepper::Plain),
            others: [Subject::new(&case.config, Stepper::Fast), Subject::new(&leaper, Stepper::Fast)],
            next_leap: 0,
            requests: Vec::new(),
            flights: VecDeque::new(),
            cache: Mirror::default(),
            shared: agreement::SharedEvents::default(),
            progress: Progress::default(),
            now: 0,
            digest: DefaultHasher::new(),
            tally: Tally { cases: 1, ..Tally::default() },
        }
    }

    fn end(mut self) -> (Tally, u64) {
        let stats = self.plain.rank.stats();
        self.tally.preemptions = stats.preemptions;
        self.tally.evictions = stats.evictions;
        self.tally.hit_tokens = stats.prefix_hits;
        (self.tally, self.digest.finish())
    }

    /// The live request in a slot.
    pub fn number(&self, slot: Slot) -> usize {
        self.plain.rank.id(slot).0 as usize
    }

    /// Requests that have not ended.
    pub fn live(&self) -> impl Iterator<Item = (usize, &Tracked)> {
        self.requests.iter().enumerate().filter(|(_, request)| request.fate == Fate::Live)
    }

    fn subjects(&mut self) -> impl Iterator<Item = &mut Subject> {
        std::iter::once(&mut self.plain).chain(&mut self.others)
    }

    // ---- calls ----

    fn submit(&mut self, plan: &Plan) {
        let number = self.requests.len();
        let earlier = self.requests.iter().filter(|r| !r.plan.same_arrival).count() as u64;
        let arrival = Nanos(earlier + u64::from(!plan.same_arrival));
        let request = plan.request(number, arrival, self.case.id_tokens);
        let expected = checks::refusals::expected(self, plan);
        let mut slot = Slot(u32::MAX);
        for subject in self.subjects() {
            match (subject.rank.submit(request.clone()), &expected) {
                (Ok(given), None) => {
                    subject.stamps.begin(given);
                    slot = given;
                }
                (given, expected) => assert_eq!(given.err(), *expected),
            }
        }
        self.tally.submitted += 1;
        self.tally.refused += u64::from(expected.is_some());
        self.requests.push(Tracked {
            plan: plan.clone(),
            fate: if expected.is_some() { Fate::Refused } else { Fate::Live },
            slot,
            outputs: 0,
            computed: 0,
            mid_prefill: false,
            preemptions: 0,
            stale: 0,
            tokens: Tokens::default(),
        });
        self.progress.renew();
        self.look(true);
    }

    fn cancel(&mut self, place: u16) {
        let live: Vec<usize> = self.live().map(|(number, _)| number).collect();
        if live.is_empty() {
            return;
        }
        let number = live[usize::from(place) % live.len()];
        let slot = self.requests[number].slot;
        for subject in self.subjects() {
            assert!(subject.rank.cancel(slot));
        }
        self.requests[number].fate = Fate::Cancelled;
        self.tally.cancelled += 1;
        self.progress.renew();
        self.look(true);
    }

    /// Schedules or completes one pass, or takes some steady passes at once. False if there is nothing to do.
    fn work(&mut self) -> bool {
        let may_schedule = self.flights.len() < self.case.config.depth() && self.plain.rank.has_work();
        let may_complete = !self.flights.is_empty();
        if may_schedule {
            match self.leap() {
                Some((steady, passes)) => self.take(steady, passes),
                None => self.schedule(true),
            }
        } else if may_complete {
            self.complete(true);
        }
        may_schedule || may_complete
    }

    /// Whether to take steady passes at once now, and how many.
    fn leap(&mut self) -> Option<(Steady, u64)> {
        assert_eq!(self.plain.rank.steady(), None, "only the fast stepper knows stretches");
        let (told, steady) = (self.others[0].rank.steady(), self.others[1].rank.steady());
        // Whoever tells events stops where there is one.
        assert_eq!(
            told,
            told.and(steady).map(|steady| Steady { passes: told.map_or(0, |t| t.passes), ..steady })
        );
        assert!(self.case.leaper_is_silent || told == steady);
        let steady = steady?;
        assert!(steady.passes > 0 && told.is_none_or(|told| told.passes <= steady.passes));
        let wish = u64::from(self.case.leaps[self.next_leap % self.case.leaps.len()]);
        self.next_leap += 1;
        (wish > 0).then_some((steady, wish.min(steady.passes)))
    }

    /// Takes steady passes: one rank at once, the others one by one.
    fn take(&mut self, steady: Steady, passes: u64) {
        let mut decode = steady.decode;
        for _ in 0..passes {
            self.schedule(false);
            let scheduled = self.plain.rank.scheduled();
            assert_eq!(scheduled.decode, decode, "as promised");
            assert!(scheduled.prefill.is_empty() && scheduled.admitted.is_empty());
            assert!(scheduled.preempted.is_empty());
            let gaps = self.complete(false);
            let promised = self.others[1].stamps.steady(decode.count, self.now);
            assert_eq!(gaps, promised, "every member gives a token, and nobody else does");
            decode.grow();
        }
        self.others[1].rank.advance_steady(passes);
        self.tally.leaps += 1;
        self.tally.leapt_passes += passes;
        agreement::states(&self.plain.rank, &self.others[1].rank);
    }

    fn schedule(&mut self, all: bool) {
        let live_before = self.plain.rank.unfinished();
        self.plain.rank.schedule();
        self.plain.stamps.scheduled(self.plain.rank.scheduled());
        for other in &mut self.others[..1 + usize::from(all)] {
            other.rank.schedule();
            other.stamps.scheduled(other.rank.scheduled());
            agreement::decisions(self.plain.rank.scheduled(), other.rank.scheduled());
        }
        self.tally.passes += 1;
        self.note_preempted();
        let flown = Flown { tokens: self.plain.rank.scheduled().tokens, batch: self.batch() };
        checks::shape::check(self, &flown.batch);
        checks::limits::check(self, &flown.batch, live_before);
        for &(number, _, samples) in &flown.batch {
            let request = &mut self.requests[number];
            request.computed = self.plain.rank.computed_tokens(request.slot);
            request.mid_prefill = !samples;
        }
        flown.batch.hash(&mut self.digest);
        self.progress.scheduled();
        self.flights.push_back(flown);
        self.look(all);
        checks::admission::check(self);
    }

    fn note_preempted(&mut self) {
        let preempted: Vec<usize> =
            self.plain.rank.scheduled().preempted.iter().map(|&slot| self.number(slot)).collect();
        for number in preempted {
            let in_flight = self.flights.iter().filter(|f| f.batch.iter().any(|m| m.0 == number)).count();
            let request = &mut self.requests[number];
            request.preemptions += 1;
            request.computed = 0;
            request.stale = in_flight as u32;
            self.tally.stale += u64::from(request.stale > 0);
        }
    }

    fn batch(&self) -> Vec<(usize, u32, bool)> {
        let rank = &self.plain.rank;
        let member = |(slot, tokens)| (self.number(slot), tokens, !rank.is_prefill_chunk(slot));
        rank.batch().into_iter().map(member).collect()
    }

    /// Completes the oldest pass. Returns the gaps of its tokens, in ascending order.
    fn complete(&mut self, all: bool) -> Vec<u64> {
        self.now += 1;
        let flown = self.flights.pop_front().expect("the caller has looked");
        let outcome = self.plain.rank.complete().clone();
        checks::outputs::check(self, &flown, &outcome);
        let gaps = self.note_delivered(&flown, &outcome);
        let (now, counts) = (self.now, flown.tokens > 0);
        assert_eq!(self.plain.stamps.completed(&outcome, now, counts), gaps);
        for other in &mut self.others[..1 + usize::from(all)] {
            let told = other.rank.complete();
            agreement::outcomes(&outcome, told);
            assert_eq!(other.stamps.completed(told, now, counts), gaps, "the same gaps");
        }
        for finished in &outcome.finished {
            let number = finished.id.0 as usize;
            let truth = self.requests[number].tokens;
            self.requests[number].fate = Fate::Finished(finished.reason);
            self.tally.finished += 1;
            assert_eq!(self.plain.stamps.of(finished.slot), truth);
            for other in &self.others[..1 + usize::from(all)] {
                assert_eq!(other.stamps.of(finished.slot), truth, "stamps of request {number}");
            }
        }
        self.look(all);
        gaps
    }

    /// Enters delivered tokens in the books of their requests.
    fn note_delivered(&mut self, flown: &Flown, outcome: &Outcome) -> Vec<u64> {
        for &(number, _, _) in &flown.batch {
            let request = &mut self.requests[number];
            request.stale = request.stale.saturating_sub(1);
        }
        let mut gaps = Vec::new();
        for token in &outcome.tokens {
            // A finished request's slot is vacant by now; its number is still there to read.
            let number = self.number(token.slot);
            let request = &mut self.requests[number];
            request.outputs += 1;
            gaps.extend(request.tokens.give(self.now));
            (number, token.ordinal).hash(&mut self.digest);
            self.progress.renew();
        }
        gaps.sort_unstable();
        gaps
    }

    /// Looks at everything that can be seen between two calls.
    fn look(&mut self, all: bool) {
        for other in &self.others[..1 + usize::from(all)] {
            agreement::states(&self.plain.rank, &other.rank);
        }
        let events = self.plain.rank.events();
        for other in &self.others[..1 + usize::from(all)] {
            if other.rank.config().kv_events == KvEventScope::All {
                agreement::events(events, other.rank.events());
            }
        }
        self.shared.note(events);
        if all && !self.others[1].rank.config().kv_events.is_timed() {
            self.shared.check(self.others[1].rank.events());
        }
        self.cache.replay(events, &self.requests, self.case);
        for subject in self.subjects().take(2 + usize::from(all)) {
            subject.rank.clear_events();
        }
        self.plain.rank.free_queue().hash(&mut self.digest);
        checks::conservation::check(self);
        checks::blocks::check(self);
        checks::cache::check(self);
    }
}
