//! Three ranks with the same settings, given the same calls: one visits every active request in every pass,
//! one visits those for which something changes, and one of the second kind also takes many steady passes
//! at once. They must agree at every instant.

use super::case::Case;
use super::checks::{self, Mirror};
use crate::support::checks::agreement;
use crate::support::plan::{Event, Plan};
use crate::support::stamps::{Stamps, Tokens};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use windtunnel_engine::trtllm::{Config, Rank};
use windtunnel_engine::{FinishReason, KvEventScope, Nanos, Slot, Steady, Stepper};

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
    /// Output tokens that it may have.
    pub max_tokens: u32,
    /// Output tokens delivered.
    pub outputs: u32,
    /// Tokens that its prompt phase had to bring into the cache when it started last.
    pub context: u32,
    pub tokens: Tokens,
}

impl Tracked {
    pub fn known(&self) -> u32 {
        self.plan.prompt + self.outputs
    }

    /// Output tokens that it gives if nobody cancels it.
    pub fn last(&self) -> u32 {
        self.max_tokens.min(self.plan.stop_after.unwrap_or(u32::MAX))
    }
}

/// What was met in a case, to show that the cases are worth something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub cases: u64,
    pub passes: u64,
    pub refused: u64,
    pub cancelled: u64,
    pub finished: u64,
    pub pauses: u64,
    pub evictions: u64,
    pub hit_tokens: u64,
    pub skips: u64,
    pub chunks: u64,
    pub leapt_passes: u64,
    /// Cases that ended because a prompt that has begun stood behind one that did not fit.
    pub deadlocks: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.cases += other.cases;
        self.passes += other.passes;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
        self.finished += other.finished;
        self.pauses += other.pauses;
        self.evictions += other.evictions;
        self.hit_tokens += other.hit_tokens;
        self.skips += other.skips;
        self.chunks += other.chunks;
        self.leapt_passes += other.leapt_passes;
        self.deadlocks += other.deadlocks;
    }
}

/// A rank under test and what a report would note of its tokens.
pub struct Subject {
    pub rank: Rank,
    stamps: Stamps,
}

impl Subject {
    fn new(config: &Config, stepper: Stepper) -> Subject {
        let rank = Rank::new(config.clone(), stepper).expect("the cases have settings that are accepted");
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
    /// Tokens of each pass in flight.
    flights: VecDeque<u64>,
    pub cache: Mirror,
    shared: agreement::SharedEvents,
    passes_without_progress: u64,
    now: u64,
    digest: DefaultHasher,
    pub tally: Tally,
}

impl<'a> World<'a> {
    /// Runs a case to its end. Returns what was met, and a number that stands for everything that was
    /// decided and delivered.
    pub fn run(case: &'a Case) -> (Tally, u64) {
        // Whoever does not tell events with their pass need not stop where there is one.
        let shared = KvEventScope::Shared { timed: false };
        let kv_events = if case.leaps.len().is_multiple_of(2) { KvEventScope::All } else { shared };
        let leaper = Config { kv_events, ..case.config.clone() };
        let mut world = World {
            case,
            plain: Subject::new(&case.config, Stepper::Plain),
            others: [Subject::new(&case.config, Stepper::Fast), Subject::new(&leaper, Stepper::Fast)],
            next_leap: 0,
            requests: Vec::new(),
            flights: VecDeque::new(),
            cache: Mirror::default(),
            shared: agreement::SharedEvents::default(),
            passes_without_progress: 0,
            now: 0,
            digest: DefaultHasher::new(),
            tally: Tally { cases: 1, ..Tally::default() },
        };
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
            // Invariant 13: between two tokens there are no more passes than tokens to compute, some twice.
            let tokens: u64 = world.live().map(|(_, request)| u64::from(request.known())).sum();
            if world.passes_without_progress > 2 * tokens + 8 {
                checks::assert_known_deadlock(&world);
                world.tally.deadlocks += 1;
                return world.end();
            }
        }
        assert!(world.requests.iter().all(|request| request.fate != Fate::Live));
        assert_eq!(world.plain.rank.stats().used_blocks, 0);
        world.end()
    }

    fn end(mut self) -> (Tally, u64) {
        let stats = self.plain.rank.stats();
        self.tally.pauses = stats.preemptions;
        self.tally.evictions = stats.evictions;
        self.tally.hit_tokens = stats.prefix_hits;
        (self.tally, self.digest.finish())
    }

    pub fn number(&self, slot: Slot) -> usize {
        self.plain.rank.id(slot).0 as usize
    }

    pub fn live(&self) -> impl Iterator<Item = (usize, &Tracked)> {
        self.requests.iter().enumerate().filter(|(_, request)| request.fate == Fate::Live)
    }

    fn subjects(&mut self) -> impl Iterator<Item = &mut Subject> {
        std::iter::once(&mut self.plain).chain(&mut self.others)
    }

    fn submit(&mut self, plan: &Plan) {
        let number = self.requests.len();
        let request = plan.request(number, Nanos(number as u64), self.case.id_tokens);
        let expected = checks::refusal(&self.case.config, plan);
        let mut slot = Slot(u32::MAX);
        for subject in self.subjects() {
            match (subject.rank.submit(request.clone()), &expected) {
                (Ok(given), Ok(max_tokens)) => {
                    assert_eq!(subject.rank.max_tokens(given), *max_tokens);
                    subject.stamps.begin(given);
                    slot = given;
                }
                (given, expected) => assert_eq!(given.err(), expected.err()),
            }
        }
        self.tally.refused += u64::from(expected.is_err());
        self.requests.push(Tracked {
            plan: plan.clone(),
            fate: if expected.is_err() { Fate::Refused } else { Fate::Live },
            slot,
            max_tokens: expected.unwrap_or(0),
            outputs: 0,
            context: 0,
            tokens: Tokens::default(),
        });
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
            assert!(subject.rank.cancel(slot), "at once");
        }
        self.requests[number].fate = Fate::Cancelled;
        self.tally.cancelled += 1;
        self.passes_without_progress = 0;
        self.look(true);
    }

    fn work(&mut self) -> bool {
        let rank = &self.plain.rank;
        let may_schedule = rank.has_work() && rank.in_flight() < self.case.config.depth();
        let may_complete = rank.in_flight() > 0;
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

    fn leap(&mut self) -> Option<(Steady, u64)> {
        assert_eq!(self.plain.rank.steady(), None, "only the fast stepper knows stretches");
        let (told, steady) = (self.others[0].rank.steady(), self.others[1].rank.steady());
        assert!(!self.others[1].rank.config().kv_events.is_timed() || told == steady);
        assert!(told.is_none_or(|told| steady.is_some_and(|steady| told.passes <= steady.passes)));
        let steady = steady?;
        assert!(steady.passes > 0 && told.is_none_or(|told| told.decode == steady.decode));
        let wish = u64::from(self.case.leaps[self.next_leap % self.case.leaps.len()]);
        self.next_leap += 1;
        (wish > 0).then_some((steady, wish.min(steady.passes)))
    }

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
        self.tally.leapt_passes += passes;
        checks::states(&self.plain.rank, &self.others[1].rank);
    }

    fn schedule(&mut self, all: bool) {
        let before = checks::Before::of(self);
        self.plain.rank.schedule();
        self.plain.stamps.scheduled(self.plain.rank.scheduled());
        for other in &mut self.others[..1 + usize::from(all)] {
            other.rank.schedule();
            other.stamps.scheduled(other.rank.scheduled());
            agreement::decisions(self.plain.rank.scheduled(), other.rank.scheduled());
        }
        let scheduled = self.plain.rank.scheduled().clone();
        self.tally.passes += 1;
        self.passes_without_progress += 1;
        self.flights.push_back(scheduled.tokens);
        for admission in &scheduled.admitted {
            let number = self.number(admission.slot);
            self.requests[number].context = admission.known_tokens;
        }
        let batch = self.plain.rank.batch();
        batch.hash(&mut self.digest);
        checks::pass(self, &before, &scheduled, &batch);
        self.look(all);
    }

    fn complete(&mut self, all: bool) -> Vec<u64> {
        self.now += 1;
        let tokens = self.flights.pop_front().expect("the caller has looked");
        let outcome = self.plain.rank.complete().clone();
        let mut gaps = Vec::new();
        for token in &outcome.tokens {
            let number = self.number(token.slot);
            let request = &mut self.requests[number];
            assert_eq!(request.fate, Fate::Live);
            request.outputs += 1;
            // Invariants 4 and 5: numbered without gaps, preempted or not, and never one too many.
            assert_eq!(token.ordinal, request.outputs);
            assert!(request.outputs <= request.last());
            gaps.extend(request.tokens.give(self.now));
            (number, token.ordinal).hash(&mut self.digest);
            self.passes_without_progress = 0;
        }
        gaps.sort_unstable();
        let counts = tokens > 0;
        assert_eq!(self.plain.stamps.completed(&outcome, self.now, counts), gaps);
        for other in &mut self.others[..1 + usize::from(all)] {
            let told = other.rank.complete();
            agreement::outcomes(&outcome, told);
            assert_eq!(other.stamps.completed(told, self.now, counts), gaps, "the same gaps");
        }
        for finished in &outcome.finished {
            let request = &mut self.requests[finished.id.0 as usize];
            assert_eq!((finished.output_tokens, request.outputs), (request.last(), request.last()));
            let stopped = request.plan.stop_after == Some(request.outputs);
            assert_eq!(finished.reason, if stopped { FinishReason::Stop } else { FinishReason::Length });
            request.fate = Fate::Finished(finished.reason);
            self.tally.finished += 1;
            let truth = request.tokens;
            assert_eq!(self.plain.stamps.of(finished.slot), truth);
            for other in &self.others[..1 + usize::from(all)] {
                assert_eq!(other.stamps.of(finished.slot), truth, "stamps of {:?}", finished.id);
            }
        }
        assert!(self.live().all(|(_, request)| request.outputs < request.last()), "nobody outlives its plan");
        self.look(all);
        gaps
    }

    /// Looks at everything that can be seen between two calls.
    fn look(&mut self, all: bool) {
        for other in &self.others[..1 + usize::from(all)] {
            checks::states(&self.plain.rank, &other.rank);
            if other.rank.config().kv_events == KvEventScope::All {
                agreement::events(self.plain.rank.events(), other.rank.events());
            }
        }
        self.shared.note(self.plain.rank.events());
        if all && !self.others[1].rank.config().kv_events.is_timed() {
            self.shared.check(self.others[1].rank.events());
        }
        self.cache.replay(self.plain.rank.events(), &self.requests, self.case);
        for subject in self.subjects().take(2 + usize::from(all)) {
            subject.rank.clear_events();
        }
        self.plain.rank.free_queue().hash(&mut self.digest);
        checks::between_calls(self);
    }
}
