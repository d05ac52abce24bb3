//! One rank of whichever engine: what a driver needs of it, and nothing that only one engine has.

use crate::error::ConfigError;
use crate::event::{KvEventScope, KvEvents};
use crate::pass::{DecodeSet, KvLoad, Outcome, Scheduled, Slot};
use crate::request::{Rejection, Request, RequestId};
use crate::token_pass::LoadFailure;
use crate::{sglang, trtllm, vllm};

/// How passes are computed. The results are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepper {
    /// Every pass visits every running request, as the engine does.
    Plain,
    /// A pass visits the requests for which something changes.
    Fast,
}

/// The coming passes of a rank, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// How many passes are certain; at least 1.
    pub passes: u64,
    /// The decode set of the first of them. In each following pass every context is one longer.
    pub decode: DecodeSet,
}

/// Counters of a rank. Tokens and events since the start; the rest as of now. A block is a page where
/// the engine says page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankStats {
    /// Requests in the running list.
    pub running: usize,
    /// Requests in the waiting queue.
    pub waiting: usize,
    /// Of those, the ones that were passed over because of what they themselves wait for (vLLM `deferred_waiting`).
    pub deferred: usize,
    /// Blocks with an owner.
    pub used_blocks: u32,
    /// Most blocks with an owner at any time, also inside a pass.
    pub peak_used_blocks: u32,
    /// Blocks that can hold tokens.
    pub usable_blocks: u32,
    /// Distinct identities in the prefix cache.
    pub cached_blocks: u32,
    /// Cached blocks handed out again.
    pub evictions: u64,
    /// Preemptions (SGLang: retractions, TensorRT-LLM: pauses).
    pub preemptions: u64,
    /// Prompt tokens looked up at first admissions (vLLM `prefix_cache_queries`).
    pub prefix_queries: u64,
    /// Of those, found (vLLM `prefix_cache_hits`).
    pub prefix_hits: u64,
    /// Blocks that the tier in the host's memory can hold.
    pub host_blocks: u32,
    /// Of those, blocks that are there or on their way.
    pub host_used_blocks: u32,
    /// Tokens that requests had loaded from there.
    pub host_hits: u64,
    /// Blocks on the disk behind it.
    pub disk_used_blocks: u64,
    /// Tokens that came from there to the host.
    pub disk_hits: u64,
    /// Where hand-offs stand (SGLang).
    pub hand_offs: HandOffQueues,
}

/// Requests in the queues of hand-offs between SGLang's ranks that serve prompts and those that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandOffQueues {
    /// A rank that serves prompts: those for whose KV the other side has no room yet (`bootstrap_queue`).
    pub bootstrapping: usize,
    /// Those whose prompt is computed and whose KV has not been read (`inflight_queue`).
    pub sending: usize,
    /// A rank that goes on: those for whose KV there is no room yet (`prealloc_queue`).
    pub preallocating: usize,
    /// Those whose KV is on its way (`transfer_queue`).
    pub receiving: usize,
    /// Tokens of the pages that are reserved for it (`pre_allocated_token_counts`).
    pub reserved_tokens: u64,
    /// Those that were retracted (`retracted_queue`).
    pub retracted: usize,
}

/// The settings of one rank, and with them which engine it is.
#[derive(Clone, Debug, PartialEq)]
pub enum RankConfig {
    /// vLLM.
    Vllm(vllm::Config),
    /// SGLang.
    Sglang(sglang::Config),
    /// TensorRT-LLM.
    Trtllm(trtllm::Config),
}

impl RankConfig {
    /// What the engine refuses about the settings.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            RankConfig::Vllm(config) => config.validate(),
            RankConfig::Sglang(config) => config.validate(),
            RankConfig::Trtllm(config) => config.validate(),
        }
    }

    /// Passes that may be in flight.
    pub fn depth(&self) -> usize {
        match self {
            RankConfig::Vllm(config) => config.depth(),
            RankConfig::Sglang(config) => config.depth(),
            RankConfig::Trtllm(config) => config.depth(),
        }
    }

    /// Name of the engine, and the version whose behaviour is reproduced.
    pub fn engine(&self) -> (&'static str, &'static str) {
        match self {
            RankConfig::Vllm(_) => ("vllm", vllm::VERSION),
            RankConfig::Sglang(_) => ("sglang", sglang::VERSION),
            RankConfig::Trtllm(_) => ("trtllm", trtllm::VERSION),
        }
    }

    /// Passes without tokens in a row after which a rank does nothing until a request comes: as many as
    /// can be in flight, one by which prefill was put off, and one that shows that nothing changed.
    pub fn idle_passes(&self) -> u32 {
        match self {
            RankConfig::Vllm(_) | RankConfig::Trtllm(_) => 3,
            RankConfig::Sglang(_) => 4,
        }
    }

    /// Tokens of a block, or page.
    pub fn block_size(&self) -> u32 {
        match self {
            RankConfig::Vllm(config) => config.block_size,
            RankConfig::Sglang(config) => config.page_size,
            RankConfig::Trtllm(config) => config.block_size,
        }
    }

    /// Blocks that can hold tokens.
    pub fn usable_blocks(&self) -> u32 {
        match self {
            RankConfig::Vllm(config) => config.usable_blocks(),
            RankConfig::Sglang(config) => config.usable_pages(),
            RankConfig::Trtllm(config) => config.usable_blocks(),
        }
    }

    /// The token budget of a pass: what a pass with prefill computes at most, but for a few tokens.
    pub fn pass_tokens(&self) -> u32 {
        match self {
            RankConfig::Vllm(config) => config.max_num_batched_tokens,
            RankConfig::Sglang(config) => config.chunked_prefill_size.unwrap_or(config.max_prefill_tokens),
            RankConfig::Trtllm(config) => config.max_num_tokens,
        }
    }

    /// Most requests that run at once.
    pub fn seats(&self) -> u64 {
        match self {
            RankConfig::Vllm(config) => config.max_num_seqs.into(),
            RankConfig::Sglang(config) => config.max_running_requests.into(),
            RankConfig::Trtllm(config) => config.max_batch_size.into(),
        }
    }

    /// Takes out the prefill cadence of vLLM, so that a rank group can keep it for all its ranks
    /// (vLLM 0.33.0, `local_prefill_interval`: 1 on a rank that steps with others). 1 where there is none.
    pub fn take_prefill_interval(&mut self) -> u32 {
        match self {
            RankConfig::Vllm(config) => std::mem::replace(&mut config.prefill_schedule_interval, 1),
            RankConfig::Sglang(_) | RankConfig::Trtllm(_) => 1,
        }
    }

    /// Which events of the prefix cache are kept, and how many tokens their blocks have: those of the engine's
    /// blocks, for SGLang a multiple of its pages.
    pub fn set_kv_events(&mut self, scope: KvEventScope, block_size: u32) {
        match self {
            RankConfig::Vllm(config) => config.kv_events = scope,
            RankConfig::Sglang(config) => {
                (config.kv_events, config.kv_event_tokens) = (scope, block_size);
            }
            RankConfig::Trtllm(config) => config.kv_events = scope,
        }
    }
}

/// Scheduler and KV cache of one rank of one of the engines. The driver's protocol is that of
/// [`vllm::Rank`].
pub enum Rank {
    /// vLLM.
    Vllm(Box<vllm::Rank>),
    /// SGLang.
    Sglang(Box<sglang::Rank>),
    /// TensorRT-LLM.
    Trtllm(Box<trtllm::Rank>),
}

/// The same call on whichever rank it is.
macro_rules! each {
    ($self:ident, $rank:ident => $call:expr) => {
        match $self {
            Rank::Vllm($rank) => $call,
            Rank::Sglang($rank) => $call,
            Rank::Trtllm($rank) => $call,
        }
    };
}

impl Rank {
    /// An empty rank.
    pub fn new(config: RankConfig, stepper: Stepper) -> Result<Rank, ConfigError> {
        Ok(match config {
            RankConfig::Vllm(config) => Rank::Vllm(Box::new(vllm::Rank::new(config, stepper)?)),
            RankConfig::Sglang(config) => Rank::Sglang(Box::new(sglang::Rank::new(config, stepper)?)),
            RankConfig::Trtllm(config) => Rank::Trtllm(Box::new(trtllm::Rank::new(config, stepper)?)),
        })
    }

    /// Puts a request in the waiting queue.
    pub fn submit(&mut self, request: Request) -> Result<Slot, Rejection> {
        each!(self, rank => rank.submit(request))
    }

    /// Ends a live request. True if it ended at once; false if it ends with a later pass, in whose
    /// outcome it then stands.
    pub fn cancel(&mut self, slot: Slot) -> bool {
        each!(self, rank => rank.cancel(slot))
    }

    /// There is something to schedule.
    pub fn has_work(&self) -> bool {
        each!(self, rank => rank.has_work())
    }

    /// Requests waiting or running.
    pub fn unfinished(&self) -> usize {
        each!(self, rank => rank.unfinished())
    }

    /// Output tokens that a live request has given so far.
    pub fn outputs(&self, slot: Slot) -> u32 {
        each!(self, rank => rank.outputs(slot))
    }

    /// The requests waiting or running, in no order.
    pub fn unfinished_requests(&self) -> Vec<RequestId> {
        each!(self, rank => rank.unfinished_requests())
    }

    /// Decides on the next pass.
    pub fn schedule(&mut self) -> &Scheduled {
        each!(self, rank => rank.schedule())
    }

    /// The same for a rank of a rank group. `throttle` holds prefill back ([`vllm::Rank::schedule_throttled`]);
    /// the other engines have no such call and do not heed it.
    pub fn schedule_throttled(&mut self, throttle: bool) -> &Scheduled {
        match self {
            Rank::Vllm(rank) => rank.schedule_throttled(throttle),
            Rank::Sglang(rank) => rank.schedule(),
            Rank::Trtllm(rank) => rank.schedule(),
        }
    }

    /// Nothing computes, here or on the ranks that it steps with, so that the turns by which prefill is put off
    /// (SGLang) pass in no time: prefill may begin.
    pub fn end_prefill_deferral(&mut self) {
        if let Rank::Sglang(rank) = self {
            rank.end_prefill_deferral();
        }
    }

    /// Some rank of this one's rank group computed prefill in the last pass. SGLang counts its
    /// `prefill_decode_interval` from there; the others have nothing of the kind.
    pub fn arm_prefill_decode_interval(&mut self) {
        match self {
            Rank::Vllm(_) | Rank::Trtllm(_) => {}
            Rank::Sglang(rank) => rank.arm_prefill_decode_interval(),
        }
    }

    /// Processes the oldest pass in flight.
    pub fn complete(&mut self) -> &Outcome {
        each!(self, rank => rank.complete())
    }

    /// The stretch of steady passes that begins with the next `schedule`, if there is one.
    pub fn steady(&self) -> Option<Steady> {
        each!(self, rank => rank.steady())
    }

    /// Of the passes of that stretch, the first ones that certainly make no event.
    pub fn quiet(&self, steady: &Steady) -> u64 {
        each!(self, rank => rank.quiet(steady))
    }

    /// Passes `passes` of the stretch that [`steady`](Self::steady) promised: as many `schedule` calls
    /// and as many `complete` calls.
    pub fn advance_steady(&mut self, passes: u64) {
        each!(self, rank => rank.advance_steady(passes));
    }

    /// When the ends of transfers are told: with the pass scheduled last, since the worker is asked when it is
    /// launched (vLLM); or when they come, to be heard in the next turn of its own loop (SGLang).
    pub fn hears_with_passes(&self) -> bool {
        matches!(self, Rank::Vllm(_))
    }

    /// A load has ended ([`vllm::Rank::kv_loaded`], [`sglang::Rank::kv_loaded`]).
    pub fn kv_loaded(&mut self, slot: Slot) {
        match self {
            Rank::Vllm(rank) => rank.kv_loaded(slot),
            Rank::Sglang(rank) => rank.kv_loaded(slot),
            Rank::Trtllm(rank) => rank.kv_loaded(slot),
        }
    }

    /// The worker reports, with the pass scheduled last, that a load has failed ([`vllm::Rank::kv_failed`]).
    pub fn kv_failed(&mut self, slot: Slot, failure: LoadFailure) {
        if let Rank::Vllm(rank) = self {
            rank.kv_failed(slot, failure);
        }
    }

    /// Blocks that were held for another rank have been read ([`vllm::Rank::kv_sent`], [`sglang::Rank::kv_sent`]).
    pub fn kv_sent(&mut self, slot: Slot) {
        match self {
            Rank::Vllm(rank) => rank.kv_sent(slot),
            Rank::Sglang(rank) => rank.kv_sent(slot),
            Rank::Trtllm(rank) => rank.kv_sent(slot),
        }
    }

    /// Another rank has made room for the KV of a request ([`sglang::Rank::kv_wanted`]). The others compute prompts
    /// without asking.
    pub fn kv_wanted(&mut self, slot: Slot) {
        if let Rank::Sglang(rank) = self {
            rank.kv_wanted(slot);
        }
    }

    /// A request has yet to come to the waiting queue, because of the other side of its hand-off
    /// ([`sglang::Rank::awaits_hand_off`]). With the others, such a request is in that queue.
    pub fn awaits_hand_off(&self, slot: Slot) -> bool {
        matches!(self, Rank::Sglang(rank) if rank.awaits_hand_off(slot))
    }

    /// A copy from or to the host has ended ([`vllm::Rank::job_done`], [`sglang::Rank::job_done`]).
    pub fn job_done(&mut self, job: u64) {
        match self {
            Rank::Vllm(rank) => rank.job_done(job),
            Rank::Sglang(rank) => rank.job_done(job),
            Rank::Trtllm(_) => {}
        }
    }

    /// The disk behind the host has done something ([`vllm::Rank::disk_done`]).
    pub fn disk_done(&mut self, job: u64) {
        if let Rank::Vllm(rank) = self {
            rank.disk_done(job);
        }
    }

    /// Numbers of the blocks that a request has, or that are held for it: what another rank is told to read. Only
    /// vLLM's are told by number.
    pub fn blocks(&self, slot: Slot) -> &[u32] {
        match self {
            Rank::Vllm(rank) => rank.blocks(slot),
            Rank::Sglang(_) | Rank::Trtllm(_) => &[],
        }
    }

    /// The slot of a request whose KV is being loaded.
    pub fn slot_of(&self, id: RequestId) -> Option<Slot> {
        match self {
            Rank::Vllm(rank) => rank.slot_of(id),
            Rank::Sglang(_) | Rank::Trtllm(_) => None,
        }
    }

    /// A load has ended, by the rules of AISimulate 0.13: it is known at once.
    pub fn kv_loaded_at_once(&mut self, slot: Slot) {
        match self {
            Rank::Vllm(rank) => rank.kv_loaded_at_once(slot),
            Rank::Sglang(rank) => rank.kv_loaded_at_once(slot),
            Rank::Trtllm(rank) => rank.kv_loaded(slot),
        }
    }

    /// Held blocks have been read, by the rules of AISimulate 0.13: they are free at once.
    pub fn kv_sent_at_once(&mut self, slot: Slot) {
        match self {
            Rank::Vllm(rank) => rank.kv_sent_at_once(slot),
            Rank::Sglang(rank) => rank.kv_sent_at_once(slot),
            Rank::Trtllm(rank) => rank.kv_sent_at_once(slot),
        }
    }

    /// Starts the load of the first waiting request, by the rules of AISimulate 0.13 ([`vllm::Rank::start_load`],
    /// [`sglang::Rank::start_load`]).
    pub fn start_load(&mut self) -> Option<KvLoad> {
        match self {
            Rank::Vllm(rank) => rank.start_load(),
            Rank::Sglang(rank) => rank.start_load(),
            Rank::Trtllm(rank) => rank.start_load(),
        }
    }

    /// The events that became visible with the last `complete`. They stay until `clear_events`.
    pub fn events(&self) -> &KvEvents {
        each!(self, rank => rank.events())
    }

    /// Forgets events that were read.
    pub fn clear_events(&mut self) {
        each!(self, rank => rank.clear_events());
    }

    /// What the engine would have died of by now, in its words.
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            Rank::Vllm(_) | Rank::Trtllm(_) => None,
            Rank::Sglang(rank) => rank.fault(),
        }
    }

    /// Counters.
    pub fn stats(&self) -> RankStats {
        each!(self, rank => rank.stats())
    }
}
