//! Three SGLang ranks with the same settings, given the same calls: one visits every running request in
//! every pass, one visits those for which something changes, and one of the second kind also takes many
//! steady passes at once. They must agree at every instant; what all of them must obey is checked on the
//! first.
//!
//! Time is the number of passes completed, empty ones included. A stamp that is one pass off shows.

use super::checks::agreement;
use super::plan::{ContentPlan, Plan};
use super::stamps::{Stamps, Tokens};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use windtunnel_engine::sglang::{Config, HostTier, Policy, Priority, Rank, WritePolicy};
use windtunnel_engine::{
    BlockKey, FinishReason, HostJob, KvEvent, KvEventScope, Nanos, Request, Slot, Stepper, Tier,
};

/// Turns in a row that compute nothing, with requests unfinished, after which a rank is stuck.
const STUCK: u32 = 50;

/// One thing that happens to a rank.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request, and whether it asks not to end early.
    Submit(Plan, bool),
    /// Of the live requests, the one at this place (counted round).
    Cancel(u16),
    /// So many calls of `schedule` or `complete`.
    Work(u16),
}

/// Settings, what happens, and after how many steady passes to look again.
#[derive(Clone, Debug)]
pub struct Case {
    pub config: Config,
    pub events: Vec<Event>,
    pub leaps: Vec<u8>,
}

/// What was met, to show that the cases are worth something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub cases: u64,
    pub passes: u64,
    pub finished: u64,
    pub aborted: u64,
    pub retractions: u64,
    pub evictions: u64,
    pub hit_tokens: u64,
    pub leapt_passes: u64,
    pub mixed: u64,
    pub refused: u64,
    pub faults: u64,
    pub starved: u64,
    /// Copies to the host, those of them that were waited for, and loads.
    pub stores: u64,
    pub awaited: u64,
    pub loads: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.cases += other.cases;
        self.passes += other.passes;
        self.finished += other.finished;
        self.aborted += other.aborted;
        self.retractions += other.retractions;
        self.evictions += other.evictions;
        self.hit_tokens += other.hit_tokens;
        self.leapt_passes += other.leapt_passes;
        self.mixed += other.mixed;
        self.refused += other.refused;
        self.faults += other.faults;
        self.starved += other.starved;
        self.stores += other.stores;
        self.awaited += other.awaited;
        self.loads += other.loads;
    }
}

fn config() -> impl Strategy<Value = Config> {
    let sizes = (prop_oneof![Just(1u32), Just(2), Just(4), Just(7)], 12u32..160, 1u32..9);
    let budgets = (prop_oneof![Just(None), (1u32..8).prop_map(Some)], 8u32..200, any::<bool>());
    let reserve = (0u32..150, prop_oneof![Just(4096u32), 1u32..30], any::<bool>());
    let policy = prop_oneof![
        4 => Just((Policy::Fcfs, false)),
        2 => Just((Policy::Lpm, false)),
        1 => Just((Policy::DfsWeight, false)),
        1 => Just((Policy::Lof, false)),
        2 => Just((Policy::Fcfs, true)),
    ];
    let rest = (policy, prop_oneof![Just(None), (0i32..3).prop_map(Some)], 0u32..4, any::<bool>());
    let mostly = || prop_oneof![4 => Just(true), 1 => Just(false)];
    let write_policy = prop_oneof![
        Just(WritePolicy::WriteThrough),
        Just(WritePolicy::WriteThroughSelective),
        Just(WritePolicy::WriteBack)
    ];
    let host = (1u32..80, write_policy).prop_map(|(pages, write_policy)| HostTier { pages, write_policy });
    let host = prop_oneof![1 => Just(None), 1 => host.prop_map(Some)];
    (sizes, budgets, reserve, rest, (mostly(), mostly(), host)).prop_map(
        |(
            (page, tokens, seats),
            (chunk, prefill, overlap),
            (hundredths, clip, mixed),
            rest,
            (radix, refuses, host),
        )| {
            let ((schedule_policy, priority), threshold, interval, low_first) = rest;
            let chunked_prefill_size =
                chunk.map(|pages| (pages * page).max(seats.next_multiple_of(page) + page));
            Config {
                max_running_requests: seats,
                max_prefill_tokens: prefill,
                chunked_prefill_size,
                mixed_chunk: mixed && chunked_prefill_size.is_some(),
                schedule_policy,
                priority: priority
                    .then_some(Priority { low_values_first: low_first, preemption_threshold: threshold }),
                schedule_conservativeness: f64::from(hundredths) / 100.0,
                clip_max_new_tokens: clip,
                radix_cache: radix,
                host: host.filter(|_| radix),
                overlap,
                prefill_decode_interval: interval.saturating_sub(2),
                kv_events: KvEventScope::All,
                refuse_unservable: refuses,
                ..Config::new(tokens.max(4 * page), page, 140)
            }
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let content = prop_oneof![
        Just(ContentPlan::Private),
        (0u32..3, 0u32..8).prop_map(|(family, shared_ids)| ContentPlan::Prefixes { family, shared_ids }),
        (0u32..3, 0u32..60).prop_map(|(family, shared_tokens)| ContentPlan::Tokens { family, shared_tokens }),
    ];
    (1u32..70, 1u32..40, prop_oneof![3 => Just(None), 1 => (1u32..30).prop_map(Some)], content, 0i32..4)
        .prop_map(|(prompt, max_tokens, stop_after, content, priority)| Plan {
            prompt,
            max_tokens,
            stop_after: stop_after.filter(|&stop| stop <= max_tokens),
            content,
            known_outputs: priority % 2 == 0,
            priority,
            same_arrival: false,
        })
}

pub fn case() -> impl Strategy<Value = Case> {
    let event = prop_oneof![
        6 => (plan(), any::<bool>()).prop_map(|(plan, eos)| Event::Submit(plan, eos)),
        1 => any::<u16>().prop_map(Event::Cancel),
        4 => (1u16..25).prop_map(Event::Work),
    ];
    (config(), prop::collection::vec(event, 1..40), prop::collection::vec(0u8..30, 1..8))
        .prop_map(|(config, events, leaps)| Case { config, events, leaps })
}

struct Subject {
    rank: Rank,
    stamps: Stamps,
}

/// A live request as the test sees it.
#[derive(Clone, Debug)]
struct Tracked {
    slot: Slot,
    outputs: u32,
    most: u32,
    tokens: Tokens,
}

pub struct World<'a> {
    case: &'a Case,
    subjects: [Subject; 3],
    live: HashMap<u64, Tracked>,
    /// Who gets a token from each pass in flight, by request.
    flights: Vec<Vec<u64>>,
    /// On the device, and on the host.
    cached: [BTreeSet<BlockKey>; 2],
    /// Copies under way: when they end, in order of their lanes, and their numbers.
    copies: Vec<(u64, u64)>,
    lanes: [u64; 2],
    shared: agreement::SharedEvents,
    submitted: u64,
    now: u64,
    quiet: u32,
    next_leap: usize,
    tally: Tally,
}

impl<'a> World<'a> {
    pub fn run(case: &'a Case) -> Tally {
        let subject = |stepper, kv_events| Subject {
            rank: Rank::new(Config { kv_events, ..case.config.clone() }, stepper)
                .expect("settings that SGLang accepts"),
            stamps: Stamps::default(),
        };
        // Whoever does not tell events with their pass need not stop where there is one.
        let shared = KvEventScope::Shared { timed: false };
        let told = if case.leaps.len().is_multiple_of(2) { KvEventScope::All } else { shared };
        let mut world = World {
            case,
            subjects: [
                subject(Stepper::Plain, KvEventScope::All),
                subject(Stepper::Fast, KvEventScope::All),
                subject(Stepper::Fast, told),
            ],
            live: HashMap::new(),
            flights: Vec::new(),
            cached: Default::default(),
            copies: Vec::new(),
            lanes: [0; 2],
            shared: agreement::SharedEvents::default(),
            submitted: 0,
            now: 0,
            quiet: 0,
            next_leap: 0,
            tally: Tally { cases: 1, ..Tally::default() },
        };
        for event in &case.events {
            match event {
                Event::Submit(plan, ignore_eos) => world.submit(plan, *ignore_eos),
                Event::Cancel(place) => world.cancel(*place),
                Event::Work(calls) => (0..*calls).for_each(|_| {
                    world.work();
                }),
            }
        }
        while world.work() {}
        let faulty = world.subjects[0].rank.fault().is_some();
        world.tally.faults += u64::from(faulty);
        if faulty || world.tally.starved > 0 {
            return world.tally;
        }
        assert!(world.live.is_empty(), "every request ends");
        let plain = &world.subjects[0].rank;
        let total = case.config.usable_pages() * case.config.page_size;
        assert_eq!(plain.available_tokens() + plain.evictable_tokens(), total, "nothing is lost");
        let stats = plain.stats();
        world.tally.retractions = stats.preemptions;
        world.tally.evictions = stats.evictions;
        world.tally.hit_tokens = stats.prefix_hits;
        world.tally
    }

    fn submit(&mut self, plan: &Plan, ignore_eos: bool) {
        let number = self.submitted;
        self.submitted += 1;
        let mut request: Request = plan.request(number as usize, Nanos(number), 8);
        request.output.ignore_eos = Some(ignore_eos);
        let given = self.subjects.each_mut().map(|subject| subject.rank.submit(request.clone()));
        assert!(given.iter().all(|other| *other == given[0]));
        let Ok(slot) = given[0] else {
            self.tally.refused += 1;
            return;
        };
        self.subjects.iter_mut().for_each(|subject| subject.stamps.begin(slot));
        let stop = plan.stop_after.filter(|_| !ignore_eos).unwrap_or(u32::MAX);
        let most = plan.max_tokens.min(stop);
        self.live.insert(number, Tracked { slot, outputs: 0, most, tokens: Tokens::default() });
        self.quiet = 0;
    }

    fn cancel(&mut self, place: u16) {
        let mut live: Vec<u64> = self.live.keys().copied().collect();
        live.sort_unstable();
        if live.is_empty() {
            return;
        }
        let number = live[usize::from(place) % live.len()];
        let slot = self.live[&number].slot;
        let ended = self.subjects.each_mut().map(|subject| subject.rank.cancel(slot));
        assert!(ended.iter().all(|&e| e == ended[0]));
        if ended[0] {
            self.live.remove(&number);
            self.tally.aborted += 1;
        }
        self.agree(3);
    }

    /// Schedules or completes one pass, or takes some steady passes at once. False if there is nothing to do.
    fn work(&mut self) -> bool {
        let plain = &self.subjects[0].rank;
        if plain.fault().is_some() {
            return false;
        }
        assert_eq!(plain.steady(), None, "only the fast stepper knows stretches");
        let stuck = self.quiet >= STUCK;
        if self.flights.len() < self.case.config.depth() && plain.has_work() && !stuck {
            let (told, steady) = (self.subjects[1].rank.steady(), self.subjects[2].rank.steady());
            assert!(!self.subjects[2].rank.config().kv_events.is_timed() || told == steady);
            assert!(told.is_none_or(|told| {
                steady.is_some_and(|steady| told.passes <= steady.passes && told.decode == steady.decode)
            }));
            match steady {
                Some(steady) => {
                    let wish = u64::from(self.case.leaps[self.next_leap % self.case.leaps.len()]);
                    self.next_leap += 1;
                    if wish == 0 {
                        self.schedule(3);
                        return true;
                    }
                    let (mut decode, passes) = (steady.decode, wish.min(steady.passes));
                    for _ in 0..passes {
                        self.schedule(2);
                        let scheduled = self.subjects[0].rank.scheduled();
                        assert_eq!(scheduled.decode, decode, "as promised");
                        assert!(scheduled.prefill.is_empty() && scheduled.preempted.is_empty());
                        let gaps = self.complete(2);
                        let promised = self.subjects[2].stamps.steady(decode.count, self.now);
                        assert_eq!(gaps, promised, "every member gives a token, and nobody else does");
                        decode.grow();
                    }
                    self.subjects[2].rank.advance_steady(passes);
                    self.tally.leapt_passes += passes;
                    self.agree(3);
                }
                None => self.schedule(3),
            }
            return true;
        }
        if self.flights.is_empty() {
            // Without a cache, one that asks for all its outputs can become too large for the pool when it
            // is preempted: the engine starves, too. So it does on one that it should have refused.
            let config = &self.case.config;
            let starves = !config.refuse_unservable
                || !config.radix_cache && self.subjects[0].rank.stats().preemptions > 0;
            assert!(!stuck || self.live.is_empty() || starves, "requests wait for ever: {:?}", self.live);
            self.tally.starved += u64::from(stuck && !self.live.is_empty());
            return false;
        }
        self.complete(3);
        true
    }

    /// Copies start: each takes some passes, one after the other in its direction.
    fn start(&mut self, jobs: &[HostJob], awaited: &[u64]) {
        for job in jobs {
            assert!(job.tokens > 0 && job.tokens.is_multiple_of(self.case.config.page_size));
            let lane = &mut self.lanes[usize::from(job.load)];
            *lane = (*lane).max(self.now) + job.job % 4;
            match (job.load, awaited.contains(&job.job)) {
                (true, awaited) => {
                    assert!(!awaited, "nobody waits for a load");
                    self.tally.loads += 1;
                }
                (false, true) => self.tally.awaited += 1,
                (false, false) => self.tally.stores += 1,
            }
            if !awaited.contains(&job.job) {
                self.copies.push((*lane, job.job));
            }
        }
    }

    fn schedule(&mut self, subjects: usize) {
        let now = self.now;
        let ended: Vec<(u64, u64)> = self.copies.extract_if(.., |&mut (end, _)| end <= now).collect();
        assert!(ended.is_empty() || subjects == 3, "no stretch with copies under way");
        for subject in &mut self.subjects[..subjects] {
            ended.iter().for_each(|&(_, job)| subject.rank.job_done(job));
            subject.rank.schedule();
            subject.stamps.scheduled(subject.rank.scheduled());
        }
        self.tally.passes += 1;
        let computes = self.subjects[0].rank.scheduled().tokens > 0;
        self.quiet = if computes { 0 } else { self.quiet + 1 };
        let plain = &self.subjects[0].rank;
        let batch = plain.batch();
        let chunked = plain.chunked();
        let receivers =
            batch.iter().filter(|(slot, _)| Some(*slot) != chunked).map(|&(slot, _)| plain.id(slot).0);
        self.flights.push(receivers.collect());
        self.tally.mixed += u64::from(plain.mixed_decodes() > 0);
        let (jobs, awaited) = (plain.scheduled().host_jobs.clone(), plain.scheduled().flush.clone());
        self.start(&jobs, &awaited);
        let plain = &self.subjects[0].rank;
        let config = &self.case.config;
        assert_eq!(batch.iter().map(|&(_, n)| u64::from(n)).sum::<u64>(), plain.scheduled().tokens);
        assert!(plain.running().count() <= config.max_running_requests as usize);
        for other in &self.subjects[1..subjects] {
            let (a, b) = (plain.scheduled(), other.rank.scheduled());
            assert_eq!((&a.prefill, a.decode, a.tokens), (&b.prefill, b.decode, b.tokens));
            assert_eq!((&a.admitted, &a.preempted), (&b.admitted, &b.preempted));
            assert_eq!((&a.host_jobs, &a.flush), (&b.host_jobs, &b.flush));
            assert_eq!(batch, other.rank.batch());
            assert_eq!(plain.prefix_lens(), other.rank.prefix_lens());
            assert_eq!(plain.seq_lens(), other.rank.seq_lens());
            assert_eq!(plain.retractions(), other.rank.retractions());
            assert_eq!(plain.requeued(), other.rank.requeued());
        }
        self.agree(subjects);
    }

    fn complete(&mut self, subjects: usize) -> Vec<u64> {
        let ids: HashMap<Slot, u64> = self.live.iter().map(|(&id, tracked)| (tracked.slot, id)).collect();
        let receivers = self.flights.remove(0);
        self.now += 1;
        let now = self.now;
        let [plain, others @ ..] = &mut self.subjects;
        let outcome = plain.rank.complete().clone();
        let gaps = plain.stamps.completed(&outcome, now, outcome.beat);
        assert_eq!(outcome.steady_tokens, 0);
        for token in &outcome.tokens {
            let id = ids[&token.slot];
            assert!(receivers.contains(&id), "only the batch gives tokens");
            let tracked = self.live.get_mut(&id).expect("live");
            tracked.outputs += 1;
            tracked.tokens.give(now);
            assert_eq!(token.ordinal, tracked.outputs);
        }
        for other in &mut others[..subjects - 1] {
            let theirs = other.rank.complete().clone();
            assert_eq!(outcome.finished, theirs.finished);
            assert_eq!(outcome.beat, theirs.beat);
            assert_eq!(outcome.host_jobs, theirs.host_jobs);
            assert_eq!(outcome.tokens.len() as u64, theirs.tokens.len() as u64 + theirs.steady_tokens);
            assert_eq!(other.stamps.completed(&theirs, now, theirs.beat), gaps);
        }
        for finished in &outcome.finished {
            let tracked =
                self.live.remove(&finished.id.0).unwrap_or_else(|| panic!("{finished:?} is not live"));
            assert_eq!(tracked.outputs, finished.output_tokens);
            match finished.reason {
                FinishReason::Abort | FinishReason::Error => self.tally.aborted += 1,
                FinishReason::Length | FinishReason::Stop => {
                    assert!(tracked.outputs <= tracked.most.max(1));
                    self.tally.finished += 1;
                }
            }
            for subject in &self.subjects[..subjects] {
                assert_eq!(subject.stamps.of(finished.slot), tracked.tokens, "{finished:?}");
            }
        }
        self.start(&outcome.host_jobs, &[]);
        self.agree(subjects);
        self.replay_events(subjects);
        gaps
    }

    /// Replaying all events gives exactly the cached set.
    fn replay_events(&mut self, subjects: usize) {
        let events = |rank: &Rank| rank.events().iter().map(|event| format!("{event:?}")).collect::<Vec<_>>();
        let plain = events(&self.subjects[0].rank);
        for other in &self.subjects[1..subjects] {
            if other.rank.config().kv_events == KvEventScope::All {
                assert_eq!(plain, events(&other.rank));
            }
        }
        self.shared.note(self.subjects[0].rank.events());
        if subjects == 3 && !self.subjects[2].rank.config().kv_events.is_timed() {
            self.shared.check(self.subjects[2].rank.events());
        }
        for event in self.subjects[0].rank.events().iter() {
            match event {
                KvEvent::Cleared => self.cached = Default::default(),
                KvEvent::Stored { tier, parent, blocks, .. } => {
                    let [device, host] = &mut self.cached;
                    let known =
                        |parent| device.contains(&parent) || tier == Tier::Host && host.contains(&parent);
                    assert!(parent.is_none_or(known), "parent before child");
                    let cached = if tier == Tier::Host { host } else { device };
                    blocks.iter().for_each(|&key| assert!(cached.insert(key), "stored twice"));
                }
                KvEvent::Removed { tier, blocks } => {
                    let cached = &mut self.cached[usize::from(tier == Tier::Host)];
                    blocks.iter().for_each(|key| assert!(cached.remove(key), "removed what was absent"));
                }
            }
        }
        assert!(self.cached[0].iter().copied().eq(self.subjects[0].rank.cached_keys()));
        assert!(self.cached[1].iter().copied().eq(self.subjects[0].rank.host_keys()));
        self.subjects[..subjects].iter_mut().for_each(|subject| subject.rank.clear_events());
    }

    fn agree(&self, subjects: usize) {
        let state = |rank: &Rank| {
            let running: Vec<Slot> = rank.running().collect();
            let waiting: Vec<Slot> = rank.waiting().collect();
            let outputs: Vec<u32> = running.iter().map(|&slot| rank.outputs(slot)).collect();
            let pool = (rank.available_tokens(), rank.evictable_tokens(), rank.protected_tokens());
            let ratio = rank.new_token_ratio().to_bits();
            let pool = (pool, rank.host_tokens(), rank.host_transfers());
            (running, waiting, outputs, pool, ratio, rank.batch_is_full(), rank.stats(), rank.has_work())
        };
        let plain = state(&self.subjects[0].rank);
        let ((free, evictable, protected), ..) = plain.3;
        let total = self.case.config.usable_pages() * self.case.config.page_size;
        assert!(free + evictable + protected <= total);
        for other in &self.subjects[1..subjects] {
            assert_eq!(plain, state(&other.rank));
        }
    }
}
