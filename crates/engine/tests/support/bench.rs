//! A rank on the bench: requests by number, passes one after the other, and a note of everything that came
//! out. For cases small enough to be followed by hand, of either engine.

use std::collections::BTreeMap;
use windtunnel_engine::{
    Admission, Chunk, Content, FinishReason, HandOff, KvEventScope, Nanos, Outcome, OutputPlan, Rejection,
    Request, RequestId, Scheduled, Slot, Stepper, sglang, vllm,
};

/// What the bench needs of a rank, whichever engine's it is.
pub trait Benched {
    type Config;
    fn plain(config: Self::Config) -> Self;
    fn submit(&mut self, request: Request) -> Result<Slot, Rejection>;
    fn schedule(&mut self);
    fn scheduled(&self) -> &Scheduled;
    fn complete(&mut self) -> &Outcome;
    fn unfinished(&self) -> usize;
    fn id(&self, slot: Slot) -> RequestId;
    fn batch(&self) -> Vec<(Slot, u32)>;
    fn waiting(&self) -> Vec<Slot>;
    fn running(&self) -> Vec<Slot>;
}

macro_rules! benched {
    ($engine:ident) => {
        impl Benched for $engine::Rank {
            type Config = $engine::Config;
            fn plain(config: $engine::Config) -> Self {
                $engine::Rank::new(config, Stepper::Plain).expect("settings that the engine accepts")
            }
            fn submit(&mut self, request: Request) -> Result<Slot, Rejection> {
                self.submit(request)
            }
            fn schedule(&mut self) {
                self.schedule();
            }
            fn scheduled(&self) -> &Scheduled {
                self.scheduled()
            }
            fn complete(&mut self) -> &Outcome {
                self.complete()
            }
            fn unfinished(&self) -> usize {
                self.unfinished()
            }
            fn id(&self, slot: Slot) -> RequestId {
                self.id(slot)
            }
            fn batch(&self) -> Vec<(Slot, u32)> {
                self.batch()
            }
            fn waiting(&self) -> Vec<Slot> {
                self.waiting().collect()
            }
            fn running(&self) -> Vec<Slot> {
                self.running().collect()
            }
        }
    };
}

benched!(vllm);
benched!(sglang);

pub type VllmBench = Bench<vllm::Rank>;
pub type SglangBench = Bench<sglang::Rank>;

/// What one pass did, requests by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Tokens of each request, in batch order.
    pub batch: Vec<(u64, u32)>,
    /// The prefill part of the shape.
    pub prefill: Vec<Chunk>,
    /// Requests in the decode part of the shape.
    pub decodes: u64,
    /// (request, hit tokens, known tokens, resumed).
    pub admitted: Vec<(u64, u32, u32, bool)>,
    pub preempted: Vec<u64>,
}

/// A rank, synchronous unless its settings say otherwise.
pub struct Bench<R> {
    pub rank: R,
    next_id: u64,
    slots: BTreeMap<u64, Slot>,
    /// Ordinals of the tokens of each request, in order.
    pub tokens: BTreeMap<u64, Vec<u32>>,
    /// Reason and output tokens of requests that ended.
    pub finished: BTreeMap<u64, (FinishReason, u32)>,
}

/// Settings of a small synchronous rank: this many blocks that hold tokens, and limits that do not bind.
pub fn small(usable_blocks: u32, block_size: u32) -> vllm::Config {
    vllm::Config {
        async_scheduling: false,
        kv_events: KvEventScope::All,
        max_num_batched_tokens: 8192,
        ..vllm::Config::new(usable_blocks + 1, block_size, 100_000)
    }
}

/// A request whose content nobody shares.
pub fn request(prompt_tokens: u32, outputs: u32) -> Request {
    Request {
        id: RequestId(0),
        arrival: Nanos::ZERO,
        prompt_tokens,
        content: Content::Private,
        output: OutputPlan::of_length(outputs),
        priority: None,
        tie: 0,
        hand_off: HandOff::None,
    }
}

/// A request with these tokens as its prompt.
pub fn prompt(tokens: impl IntoIterator<Item = u32>, outputs: u32) -> Request {
    let tokens: Box<[u32]> = tokens.into_iter().collect();
    Request { content: Content::Tokens(tokens.clone()), ..request(tokens.len() as u32, outputs) }
}

impl<R: Benched> Bench<R> {
    pub fn new(config: R::Config) -> Bench<R> {
        Bench {
            rank: R::plain(config),
            next_id: 0,
            slots: BTreeMap::new(),
            tokens: BTreeMap::new(),
            finished: BTreeMap::new(),
        }
    }

    /// Submits a request that arrives at the instant of its number, which is the count of those before.
    pub fn submit(&mut self, request: Request) -> Result<u64, Rejection> {
        self.submit_at(self.next_id, request)
    }

    fn submit_at(&mut self, arrival: u64, request: Request) -> Result<u64, Rejection> {
        let id = self.next_id;
        let stamped = Request { id: RequestId(id), arrival: Nanos(arrival), tie: id, ..request };
        let slot = self.rank.submit(stamped)?;
        self.next_id += 1;
        self.slots.insert(id, slot);
        Ok(id)
    }

    /// Submits a request that the rank must take.
    pub fn add(&mut self, request: Request) -> u64 {
        self.add_at(self.next_id, request)
    }

    /// Submits one after the other.
    pub fn add_all(&mut self, requests: impl IntoIterator<Item = Request>) {
        requests.into_iter().for_each(|request| _ = self.add(request));
    }

    /// The same as `add`, with another arrival stamp.
    pub fn add_at(&mut self, arrival: u64, request: Request) -> u64 {
        self.submit_at(arrival, request).expect("the case has requests that fit")
    }

    /// The place of a live request.
    pub fn slot(&self, id: u64) -> Slot {
        self.slots[&id]
    }

    /// Schedules a pass.
    pub fn schedule(&mut self) -> Pass {
        self.rank.schedule();
        let (rank, scheduled) = (&self.rank, self.rank.scheduled());
        let id = |slot: Slot| rank.id(slot).0;
        let admission = |a: &Admission| (id(a.slot), a.hit_tokens, a.known_tokens, a.resumed);
        Pass {
            batch: rank.batch().into_iter().map(|(slot, tokens)| (id(slot), tokens)).collect(),
            prefill: scheduled.prefill.clone(),
            decodes: scheduled.decode.count,
            admitted: scheduled.admitted.iter().map(admission).collect(),
            preempted: scheduled.preempted.iter().copied().map(id).collect(),
        }
    }

    /// Completes a pass. Returns the requests that ended.
    pub fn complete(&mut self) -> Vec<u64> {
        let outcome = self.rank.complete().clone();
        for token in &outcome.tokens {
            self.tokens.entry(self.rank.id(token.slot).0).or_default().push(token.ordinal);
        }
        for f in &outcome.finished {
            self.finished.insert(f.id.0, (f.reason, f.output_tokens));
        }
        outcome.finished.iter().map(|f| f.id.0).collect()
    }

    /// One synchronous pass.
    pub fn pass(&mut self) -> Pass {
        let pass = self.schedule();
        self.complete();
        pass
    }

    /// So many passes.
    pub fn passes(&mut self, count: usize) -> Vec<Pass> {
        (0..count).map(|_| self.pass()).collect()
    }

    /// Passes until every request has ended, without the last one, which only announces ends.
    pub fn run(&mut self) -> Vec<Pass> {
        let mut passes = Vec::new();
        while self.rank.unfinished() > 0 {
            passes.push(self.pass());
            assert!(passes.len() < 100_000, "the case comes to an end");
        }
        passes
    }

    /// Ids in the waiting queue, in order.
    pub fn waiting(&self) -> Vec<u64> {
        self.rank.waiting().into_iter().map(|slot| self.rank.id(slot).0).collect()
    }

    /// Ids in the running list, in order.
    pub fn running(&self) -> Vec<u64> {
        self.rank.running().into_iter().map(|slot| self.rank.id(slot).0).collect()
    }
}
