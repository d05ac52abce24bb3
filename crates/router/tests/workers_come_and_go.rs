//! Every policy while workers come and go: nothing goes to a worker that has left, one that joins gets its share, and
//! requests that a worker had when it left are forgotten when they end.

use proptest::prelude::*;
use std::num::NonZeroU32;
use windtunnel_engine::{Content, HandOff, Nanos, OutputPlan, Request, RequestId};
use windtunnel_router::{
    CacheAwareSettings, Choice, Fleet, Incoming, KvRouterSettings, News, Policy, PrefixHashSettings,
    QueuePolicy, QueueSettings, Router, Scorer, ScorerKind, Verdict, WorkerLoad, Workers,
};

const RANKS: u32 = 2;

/// Workers with as many unfinished requests as they got.
struct Here {
    numbers: Vec<u32>,
    unfinished: Vec<u64>,
}

impl Workers for Here {
    fn count(&self) -> NonZeroU32 {
        NonZeroU32::new(self.numbers.len() as u32).unwrap()
    }

    fn number(&self, place: u32) -> u32 {
        self.numbers[place as usize]
    }

    fn load(&mut self, place: u32) -> WorkerLoad {
        let unfinished = self.unfinished[self.number(place) as usize];
        WorkerLoad {
            unfinished,
            waiting: unfinished,
            usable_blocks: 100,
            used_blocks: unfinished,
            running: 0,
        }
    }
}

fn policies() -> Vec<Policy> {
    let scorer = |kind| Scorer { kind, weight: 1.0 };
    let kv = KvRouterSettings { block_size: 16, ..KvRouterSettings::default() };
    let queue = QueueSettings { threshold: 0.1, max_batched_tokens: 1000, policy: QueuePolicy::Fcfs };
    vec![
        Policy::RoundRobin,
        Policy::Random { seed: 1 },
        Policy::LeastRequests { seed: 1 },
        Policy::LeastKv { seed: 1 },
        Policy::PowerOfTwo { seed: 1 },
        Policy::PrefixHash(PrefixHashSettings { block_size: 16, prefix_blocks: 2, load_factor: None }),
        Policy::PrefixHash(PrefixHashSettings { block_size: 16, prefix_blocks: 2, load_factor: Some(1.25) }),
        Policy::Session { seed: 1 },
        Policy::CacheAware(CacheAwareSettings {
            block_size: 16,
            cache_threshold: 0.3,
            balance_abs_threshold: 2,
            balance_rel_threshold: 1.5,
            max_tree_tokens: 4000,
            seed: 1,
        }),
        Policy::Scorers {
            scorers: [ScorerKind::PrefixCache, ScorerKind::Queue, ScorerKind::Session].map(scorer).to_vec(),
            block_size: 16,
            seed: 1,
        },
        Policy::KvRouter(kv),
        Policy::KvRouter(KvRouterSettings { temperature: 0.5, overlap_score_credit_decay: 1.0, ..kv }),
        Policy::KvRouter(KvRouterSettings { queue: Some(queue), ..kv }),
    ]
}

fn request(id: u64, beginning: u64) -> Request {
    let ids = (0..4).map(|block| beginning * 4 + block).collect();
    Request {
        id: RequestId(id),
        arrival: Nanos::ZERO,
        prompt_tokens: 64,
        content: Content::Prefixes { ids, id_tokens: 16 },
        output: OutputPlan::of_length(1),
        priority: None,
        tie: id,
        hand_off: HandOff::None,
    }
}

/// A router with its workers, and which requests they have.
struct Deployment {
    router: Box<dyn Router>,
    here: Here,
    live: Vec<(RequestId, u32)>,
    held: usize,
    next: u64,
    now: Nanos,
}

impl Deployment {
    fn new(policy: &Policy, workers: u32) -> Deployment {
        let fleet =
            Fleet { workers: NonZeroU32::new(workers).unwrap(), ranks: NonZeroU32::new(RANKS).unwrap() };
        let here = Here { numbers: (0..workers).collect(), unfinished: vec![0; workers as usize] };
        let router = policy.router(fleet, None);
        Deployment { router, here, live: Vec::new(), held: 0, next: 0, now: Nanos::ZERO }
    }

    fn takes(&mut self, id: RequestId, choice: Choice) -> u32 {
        let worker = choice.worker;
        assert!(self.here.numbers.contains(&worker), "{worker} of {:?}", self.here.numbers);
        self.here.unfinished[worker as usize] += 1;
        self.live.push((id, worker));
        worker
    }

    /// Sends a request; the worker that takes it, unless the router holds it back.
    fn send(&mut self, beginning: u64) -> Option<u32> {
        self.now = Nanos(self.now.0 + 1_000_000);
        let request = request(self.next, beginning);
        self.next += 1;
        let session = format!("s{beginning}");
        let incoming = Incoming { request: &request, session: Some(&session), dp_rank: None, now: self.now };
        match self.router.route(&incoming, &mut self.here) {
            Verdict::To(choice) => {
                let record = choice.record.unwrap_or_default();
                assert!(record.overlap_tokens <= record.best_overlap_tokens);
                Some(self.takes(request.id, choice))
            }
            Verdict::Held => {
                self.held += 1;
                None
            }
        }
    }

    fn end(&mut self, at: usize) {
        let (id, worker) = self.live.swap_remove(at % self.live.len());
        self.here.unfinished[worker as usize] -= 1;
        self.now = Nanos(self.now.0 + 1_000_000);
        for news in [News::FirstToken(id), News::Ended(id)] {
            self.router.tell(worker * RANKS, self.now, news);
        }
        self.release();
    }

    fn release(&mut self) {
        while let Some((id, choice)) = self.router.release(self.now) {
            self.held -= 1;
            self.takes(id, choice);
        }
    }

    fn leave(&mut self, worker: u32) {
        self.here.numbers.retain(|&other| other != worker);
        self.router.left(worker);
        self.release();
    }

    /// The first worker that is not here, or a new one, joins.
    fn join(&mut self) -> u32 {
        let worker = (0..).find(|number| !self.here.numbers.contains(number)).unwrap();
        // A number is used again only when its worker has ended everything.
        while let Some(at) = self.live.iter().position(|&(_, of)| of == worker) {
            self.end(at);
        }
        self.here.numbers.push(worker);
        self.here.numbers.sort_unstable();
        self.here.unfinished.resize(self.here.unfinished.len().max(worker as usize + 1), 0);
        self.router.joined(worker);
        self.release();
        worker
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u64),
    End(usize),
    Leave(usize),
    Join,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..12).prop_map(Step::Send),
        6 => (0usize..1000).prop_map(Step::End),
        1 => (0usize..100).prop_map(Step::Leave),
        1 => Just(Step::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn nothing_goes_to_who_is_not_here(steps in prop::collection::vec(step(), 1..300), workers in 1u32..6) {
        for policy in policies() {
            let mut deployment = Deployment::new(&policy, workers);
            for &step in &steps {
                match step {
                    Step::Send(beginning) if !deployment.here.numbers.is_empty() => {
                        deployment.send(beginning);
                    }
                    Step::End(at) if !deployment.live.is_empty() => deployment.end(at),
                    Step::Leave(at) if !deployment.here.numbers.is_empty() => {
                        let worker = deployment.here.numbers[at % deployment.here.numbers.len()];
                        deployment.leave(worker);
                    }
                    Step::Join => {
                        deployment.join();
                    }
                    _ => {}
                }
            }
            if deployment.here.numbers.is_empty() {
                deployment.join();
            }
            // Who is held back comes to a worker when the others have ended.
            while !deployment.live.is_empty() {
                deployment.end(0);
            }
            prop_assert_eq!(deployment.held, 0, "{}", policy.name());
        }
    }
}

/// A worker that joins gets requests, and after it has left none; its number is above all, or one that was left.
#[test]
fn a_worker_that_joins_gets_its_share() {
    for policy in policies() {
        let name = policy.name();
        let mut deployment = Deployment::new(&policy, 3);
        let send = |deployment: &mut Deployment, first: u64| {
            let mut takers = Vec::new();
            for beginning in first..first + 200 {
                takers.extend(deployment.send(beginning));
                while deployment.live.len() > 12 {
                    takers.push(deployment.live.last().unwrap().1);
                    deployment.end(0);
                }
            }
            while !deployment.live.is_empty() {
                deployment.end(0);
            }
            takers
        };
        let new = deployment.join();
        assert_eq!(new, 3);
        let takers = send(&mut deployment, 1000);
        assert!(takers.iter().filter(|&&taker| taker == new).count() > 10, "{name}: {takers:?}");
        deployment.leave(1);
        assert!(!send(&mut deployment, 2000).contains(&1), "{name}");
        assert_eq!(deployment.join(), 1, "{name}");
        assert!(send(&mut deployment, 3000).contains(&1), "{name}");
    }
}

/// Consistent hashing: of 300 beginnings only those move that the fifth of five workers takes, about 60; when it leaves,
/// they go back to where they were.
#[test]
fn a_ring_moves_few_beginnings() {
    let policy =
        Policy::PrefixHash(PrefixHashSettings { block_size: 16, prefix_blocks: 2, load_factor: None });
    let mut deployment = Deployment::new(&policy, 4);
    let takers = |deployment: &mut Deployment| (0..300).map(|of| deployment.send(of)).collect::<Vec<_>>();
    let before = takers(&mut deployment);
    deployment.join();
    let with = takers(&mut deployment);
    let moved = before.iter().zip(&with).filter(|(one, other)| one != other).count();
    assert!((30..100).contains(&moved), "{moved}");
    assert!(before.iter().zip(&with).all(|(one, other)| one == other || *other == Some(4)));
    deployment.leave(4);
    assert_eq!(takers(&mut deployment), before);
}
