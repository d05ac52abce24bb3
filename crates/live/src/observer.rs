//! What a worker tells of itself, and whom: the seam between the engine cores and everything that watches
//! them, such as KV-event sockets and metrics.
//!
//! One observer belongs to one rank and is called on the thread that drives it, before any client sees the
//! tokens of the pass: what a client has seen, a scrape after it shows. So it must be quick and never wait.

use crate::clock::WallClock;
use crate::kv_events::hash::Adapter;
use crate::kv_transfer::Moved;
use crate::traces::Traced;
use std::sync::Arc;
use windtunnel_engine::{
    FinishReason, KvEvents, Nanos, Outcome, RankStats, Rejection, Request, RequestId, Scheduled,
};
use windtunnel_router::RoutingRecord;

/// What is known of a request when it is handed to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// Its number in this process, as in passes and KV events.
    pub id: RequestId,
    /// Its name on the wire, such as `cmpl-…`.
    pub name: String,
    /// The prompt.
    pub prompt: Arc<[u32]>,
    /// The tokens that it will give: as many as it can give, the stop token included.
    pub output: Arc<[u32]>,
    /// `max_tokens` in effect: what the client asked for, and no more than the context has room for.
    pub max_tokens: u32,
    /// `max_tokens` as the client gave it, if it did.
    pub asked_max_tokens: Option<u32>,
    /// Choices that its client asked for; this request is one of them.
    pub choices: u32,
    /// The client reads tokens as they come.
    pub streaming: bool,
    /// LoRA adapter.
    pub lora: Option<Arc<Adapter>>,
    /// Requests with different salts share no block.
    pub cache_salt: Option<Arc<str>>,
    /// Priority, if the client gave one.
    pub priority: Option<i32>,
    /// What only its span says, where spans are made.
    pub traced: Option<Arc<Traced>>,
    /// What the router of this process did with it before, if it looked.
    pub routed: Option<Routed>,
}

/// What a router did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// When it came to the router.
    pub came: Nanos,
    /// What the router knew of its prompt.
    pub record: Option<RoutingRecord>,
}

/// What has happened to a request so far, in logical time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// It reached the worker.
    pub arrival: Nanos,
    /// When it came to the waiting queue, if it waited for the other side of a hand-off before that (SGLang).
    pub queued: Option<Nanos>,
    /// Start of the pass that admitted it first.
    pub first_admit: Option<Nanos>,
    /// End of the pass that gave its first token.
    pub first_token: Option<Nanos>,
    /// End of the pass that gave its second token.
    pub second_token: Option<Nanos>,
    /// End of the pass that gave its last token so far.
    pub last_token: Option<Nanos>,
    /// Output tokens given.
    pub output_tokens: u32,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub cached_tokens: u32,
    /// Prompt tokens whose KV was loaded from another worker.
    pub loaded_tokens: u32,
    /// As `cached_tokens`, the largest over all admissions.
    pub reused_tokens: u32,
    /// Times that it joined a running list.
    pub admissions: u32,
    /// Times that it lost its blocks.
    pub preemptions: u32,
}

impl RequestTimes {
    /// How long it was in the waiting queue before it was admitted.
    pub fn queued_for(&self) -> Nanos {
        let since = self.queued.unwrap_or(self.arrival);
        self.first_admit.unwrap_or(since).since(since)
    }

    /// Prompt tokens that were not computed.
    pub fn known_tokens(&self) -> u32 {
        self.cached_tokens + self.loaded_tokens
    }
}

impl RequestInfo {
    /// What is known of a request that has no client: its tokens are not told, but for their number.
    pub(crate) fn of(request: &Request) -> RequestInfo {
        RequestInfo {
            id: request.id,
            name: String::new(),
            prompt: vec![0; request.prompt_tokens as usize].into(),
            output: Arc::default(),
            max_tokens: request.output.max_tokens,
            asked_max_tokens: Some(request.output.max_tokens),
            choices: 1,
            streaming: false,
            lora: None,
            cache_salt: None,
            priority: request.priority,
            traced: None,
            routed: None,
        }
    }
}

/// A request's first token.
#[derive(Clone, Copy, Debug)]
pub struct FirstToken<'a> {
    /// The request.
    pub info: &'a RequestInfo,
    /// Its times; `first_token` is the end of this pass.
    pub times: &'a RequestTimes,
}

/// Why a request left its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The engine ended it, or a stop string did (then `Stop`).
    Finished(FinishReason),
    /// Its client is gone, or asked for its end.
    Cancelled,
    /// The engine died.
    Failed,
}

impl EndReason {
    /// vLLM's `finished_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            EndReason::Finished(reason) => reason.as_str(),
            EndReason::Cancelled => "abort",
            EndReason::Failed => "error",
        }
    }
}

/// A request that left its worker.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The request.
    pub info: &'a RequestInfo,
    /// Its times at its end.
    pub times: &'a RequestTimes,
    /// Why it ended.
    pub reason: EndReason,
    /// When.
    pub at: Nanos,
}

/// Number, sum and sum of squares of some lengths, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The sum of their squares.
    pub squares: u128,
}

impl Lengths {
    /// One more.
    pub fn add(&mut self, length: u64) {
        self.count += 1;
        self.sum += length;
        self.squares += u128::from(length) * u128::from(length);
    }

    /// Of all of them, not estimated from a sample. In integers up to the one division.
    pub fn variance(&self) -> f64 {
        let count = u128::from(self.count);
        if count == 0 {
            return 0.0;
        }
        let sum = u128::from(self.sum);
        (count * self.squares - sum * sum) as f64 / (count * count) as f64
    }
}

/// A completed pass of a rank. Everything in it is borrowed from the rank: what is needed later is copied.
#[derive(Clone, Copy, Debug)]
pub struct PassReport<'a> {
    /// Among the rank's own passes, from 0.
    pub number: u64,
    /// When it began.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// What its schedule call decided.
    pub scheduled: &'a Scheduled,
    /// What its completion made visible.
    pub outcome: &'a Outcome,
    /// Changes of the prefix cache that became visible with it, where they are kept.
    pub events: &'a KvEvents,
    /// Counters after it.
    pub stats: &'a RankStats,
    /// Output tokens that it gave.
    pub tokens: u64,
    /// Distances of these tokens to those before them, with how often each occurred. First tokens have none.
    pub gaps: &'a [(Nanos, u64)],
    /// Requests that got their first token.
    pub first_tokens: &'a [FirstToken<'a>],
    /// Requests that wait for their first admission, by the lengths of their prompts.
    pub queued_prefill: Lengths,
    /// Requests that wait after having lost their blocks, by the tokens that they have; of an SGLang rank that goes on with
    /// what others have computed, those whose KV is not there.
    pub queued_decode: Lengths,
    /// Requests that ended, in batch order; a stop string ends its request with the pass that completes it.
    pub ended: &'a [Ended<'a>],
}

/// What has happened to KV that moves between workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvTransfer {
    /// There is room for what a request will load, which has waited so long for that.
    Reserved(Nanos),
    /// It was read from another worker.
    Read(Moved),
    /// It could not be.
    ReadFailed,
    /// A request has come to the waiting queue, so long after it came here, or after there was room for what it loads.
    Queued(Nanos),
    /// A prompt was computed, and so long after that the scheduler heard that it was read.
    Sent {
        /// So long.
        took: Nanos,
        /// So many bytes, if another worker has read it.
        bytes: Option<u64>,
        /// How long it had waited for the other side to have room.
        waited: Nanos,
    },
    /// A computed prompt was held until nobody was to ask for it any more.
    Expired,
}

/// Watches one rank.
pub trait PassObserver: Send {
    /// The rank starts, and this clock shows its time.
    fn started(&mut self, _clock: &WallClock) {}

    /// A request was handed to the rank, whose counters are now `stats`.
    fn submitted(&mut self, _info: &Arc<RequestInfo>, _at: Nanos, _stats: &RankStats) {}

    /// The rank refused a request.
    fn rejected(&mut self, _info: &RequestInfo, _reason: Rejection, _at: Nanos) {}

    /// A pass ended.
    fn pass(&mut self, pass: &PassReport<'_>);

    /// A request got a first token that another worker sampled, or gave one away to another worker, outside a pass.
    fn handed_over(&mut self, _first: &FirstToken<'_>, _at: Nanos) {}

    /// KV has moved, or has not.
    fn kv_transfer(&mut self, _transfer: &KvTransfer) {}

    /// A request ended outside a pass: its client is gone, the engine died, or another worker has its KV.
    fn ended(&mut self, _ended: &Ended<'_>, _stats: &RankStats) {}

    /// The prefix cache was emptied on request, at once.
    fn cache_reset(&mut self, _events: &KvEvents, _at: Nanos) {}

    /// The rank has had nothing to do since it was last told anything, for about a second.
    fn idle(&mut self, _at: Nanos) {}
}

/// Several observers as one, called in order.
#[derive(Default)]
pub struct Observers(Vec<Box<dyn PassObserver>>);

impl Observers {
    /// One more.
    pub fn push(&mut self, observer: Box<dyn PassObserver>) {
        self.0.push(observer);
    }
}

impl PassObserver for Observers {
    fn started(&mut self, clock: &WallClock) {
        self.0.iter_mut().for_each(|observer| observer.started(clock));
    }

    fn submitted(&mut self, info: &Arc<RequestInfo>, at: Nanos, stats: &RankStats) {
        self.0.iter_mut().for_each(|observer| observer.submitted(info, at, stats));
    }

    fn rejected(&mut self, info: &RequestInfo, reason: Rejection, at: Nanos) {
        self.0.iter_mut().for_each(|observer| observer.rejected(info, reason, at));
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        self.0.iter_mut().for_each(|observer| observer.pass(pass));
    }

    fn handed_over(&mut self, first: &FirstToken<'_>, at: Nanos) {
        self.0.iter_mut().for_each(|observer| observer.handed_over(first, at));
    }

    fn kv_transfer(&mut self, transfer: &KvTransfer) {
        self.0.iter_mut().for_each(|observer| observer.kv_transfer(transfer));
    }

    fn ended(&mut self, ended: &Ended<'_>, stats: &RankStats) {
        self.0.iter_mut().for_each(|observer| observer.ended(ended, stats));
    }

    fn cache_reset(&mut self, events: &KvEvents, at: Nanos) {
        self.0.iter_mut().for_each(|observer| observer.cache_reset(events, at));
    }

    fn idle(&mut self, at: Nanos) {
        self.0.iter_mut().for_each(|observer| observer.idle(at));
    }
}
