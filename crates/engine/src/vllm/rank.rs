//! One vLLM rank: its requests, queues and counters, and how requests come and go from outside.

use super::config::Config;
use super::offload::Offload;
use super::running::Running;
use super::sequence::{Sequence, State};
use super::transfer::Transfers;
use super::waiting::{Rank as WaitingRank, Waiting};
use crate::calendar::Due;
use crate::decode_set::Decoders;
use crate::error::ConfigError;
use crate::event::{KvEventScope, KvEvents};
use crate::flight::Flight;
use crate::growth::Growth;
use crate::identity::{BlockKey, Keys};
use crate::kv::BlockPool;
use crate::pass::{Outcome, Scheduled, Slot};
use crate::rank::{RankStats, Stepper};
use crate::request::{FinishReason, OutputPlan, Rejection, Request, RequestId};
use crate::token_pass::Pass;

/// A waiting request whose admission failed for want of blocks, and what its look-up found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    pub(super) slot: u32,
    pub(super) serial: u32,
    pub(super) known: u32,
    pub(super) hits: u32,
    pub(super) free_hits: u32,
    /// It was to take blocks for a load of the tokens up to here.
    pub(super) load_end: Option<u32>,
}

/// Scheduler and KV cache of one rank.
///
/// The driver's protocol: `submit` and `cancel` at any time; `schedule` while fewer than
/// [`Config::depth`] passes are in flight and [`has_work`](Rank::has_work); `complete` for the oldest
/// pass in flight when it ends. Slots of finished requests are reused.
///
/// A pass is to be scheduled as soon as one may be. With [`Stepper::Fast`], completing one first would make
/// blocks enter the prefix cache a call later than they do in the engine.
pub struct Rank {
    pub(super) config: Config,
    pub(super) stepper: Stepper,
    pub(super) watermark_blocks: u32,
    pub(super) pool: BlockPool,
    pub(super) sequences: Vec<Sequence>,
    vacant: Vec<u32>,
    next_serial: u32,
    next_private_key: u64,
    pub(super) next_ticket: u64,
    /// In the engine's order: by admission.
    pub(super) running: Running,
    /// Running requests that each pass looks at (`State::Running`).
    pub(super) visited: usize,
    pub(super) waiting: Waiting,
    /// Waiting requests that hold blocks; they come before the others.
    pub(super) holding: Waiting,
    /// Of those, how many are loaded and may run.
    pub(super) loaded: usize,
    pub(super) transfers: Transfers,
    pub(super) offload: Option<Offload>,
    /// Waiting requests that were passed over (vLLM `deferred_waiting`).
    pub(super) deferred: usize,
    pub(super) blocked: Option<Blocked>,
    pub(super) flight: Flight<Pass>,
    pub(super) decoders: Decoders,
    /// When its members start blocks.
    pub(super) growth: Growth,
    /// Requests that ended since the last `schedule`; one more pass announces them.
    unannounced: bool,
    /// Passes with tokens scheduled.
    pub(super) executed_passes: u64,
    /// Passes with tokens processed.
    pub(super) processed_passes: u64,
    pub(super) last_prefill_pass: i64,
    pub(super) prefill_capacity_bound: bool,
    /// Prompt tokens of requests without a first output.
    pub(super) queued_tokens: u64,
    pub(super) stats: RankStats,
    pub(super) scheduled: Scheduled,
    pub(super) outcome: Outcome,
    /// Scratch: calendar entries of the pass being scheduled.
    pub(super) due: Vec<(u64, u32, u32)>,
    /// Scratch: calendar entries as they were taken.
    pub(super) taken: Vec<Due>,
    /// Scratch: blocks found by a look-up.
    pub(super) hits: Vec<u32>,
    /// Scratch: keys of blocks.
    pub(super) keys: Vec<BlockKey>,
    /// Scratch: the key that ended a look-up.
    pub(super) missed: Option<BlockKey>,
}

impl Rank {
    /// An empty rank.
    pub fn new(config: Config, stepper: Stepper) -> Result<Rank, ConfigError> {
        config.validate()?;
        let pool = BlockPool::new(config.num_blocks, config.prefix_caching, config.kv_events);
        Ok(Rank {
            // The offload looks at every request in every pass.
            stepper: if config.host_blocks.is_some() { Stepper::Plain } else { stepper },
            watermark_blocks: (config.watermark * f64::from(config.num_blocks)) as u32,
            pool,
            sequences: Vec::new(),
            vacant: Vec::new(),
            next_serial: 0,
            next_private_key: 0,
            next_ticket: 0,
            running: Running::default(),
            visited: 0,
            waiting: Waiting::new(config.policy),
            holding: Waiting::new(config.policy),
            loaded: 0,
            transfers: Transfers::default(),
            offload: config.host_blocks.map(|n| {
                Offload::new((n, config.disk), config.block_size, config.prefix_caching, config.kv_events)
            }),
            deferred: 0,
            blocked: None,
            flight: Flight::default(),
            decoders: Decoders::default(),
            growth: Growth::new(config.block_size),
            unannounced: false,
            executed_passes: 0,
            processed_passes: 0,
            last_prefill_pass: -i64::from(config.prefill_schedule_interval),
            prefill_capacity_bound: false,
            queued_tokens: 0,
            stats: RankStats { usable_blocks: config.usable_blocks(), ..RankStats::default() },
            scheduled: Scheduled::default(),
            outcome: Outcome::default(),
            due: Vec::new(),
            taken: Vec::new(),
            hits: Vec::new(),
            keys: Vec::new(),
            missed: None,
            config,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Puts a request at the end of the waiting queue (or where its priority belongs).
    pub fn submit(&mut self, mut request: Request) -> Result<Slot, Rejection> {
        self.check(&request)?;
        let room = self.config.max_model_len - request.prompt_tokens;
        let plan = &mut request.output;
        plan.max_tokens = plan.max_tokens.min(room);
        plan.stop_after = plan.stop_after.filter(|&n| n <= plan.max_tokens);
        let keys = Keys::new(&mut request, self.config.block_size, &mut self.next_private_key);
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        let slot = self.vacant.pop().unwrap_or(self.sequences.len() as u32);
        let (blocks, mut kept) = match self.sequences.get_mut(slot as usize) {
            Some(old) => (std::mem::take(&mut old.blocks), std::mem::take(&mut old.kept)),
            None => Default::default(),
        };
        kept.clear();
        let sequence = Sequence {
            state: State::Waiting,
            serial,
            ticket: 0,
            id: request.id,
            arrival: request.arrival,
            priority: request.priority.unwrap_or(0),
            tie: request.tie,
            prompt: request.prompt_tokens,
            max_tokens: request.output.max_tokens,
            output: request.output,
            keys,
            blocks,
            kept,
            promoted: 0,
            computed: 0,
            known: request.prompt_tokens,
            placeholders: 0,
            in_flight: 0,
            stale: 0,
            prefill_chunk: false,
            preemptions: 0,
            hand_off: request.hand_off,
            holding: false,
            load_failed: false,
            deferred: false,
            joined: 0,
            due: 0,
        };
        let rank = Self::waiting_rank(&sequence);
        self.queued_tokens += u64::from(sequence.prompt);
        match self.sequences.get_mut(slot as usize) {
            Some(old) => *old = sequence,
            None => self.sequences.push(sequence),
        }
        self.waiting.push_last(slot, rank);
        Ok(Slot(slot))
    }

    fn check(&self, request: &Request) -> Result<(), Rejection> {
        let config = &self.config;
        if request.prompt_tokens == 0 {
            return Err(Rejection::EmptyPrompt);
        }
        if request.output.max_tokens == 0 {
            return Err(Rejection::NoOutput);
        }
        if request.prompt_tokens >= config.max_model_len {
            return Err(Rejection::PromptTooLong {
                prompt_tokens: request.prompt_tokens,
                max_model_len: config.max_model_len,
                longest: config.max_model_len - 1,
            });
        }
        // The last output token is never computed, so it takes no slot. A real engine checks at start-up
        // that one request of the full context length fits; here the pool may be smaller than that.
        let OutputPlan { max_tokens, stop_after, .. } = request.output;
        let outputs =
            max_tokens.min(stop_after.unwrap_or(u32::MAX)).min(config.max_model_len - request.prompt_tokens);
        let slots = u64::from(request.prompt_tokens) + u64::from(outputs) - 1;
        let needed_blocks = slots.div_ceil(u64::from(config.block_size));
        let usable_blocks = u64::from(config.usable_blocks());
        if needed_blocks > usable_blocks {
            return Err(Rejection::LargerThanPool { needed_blocks, usable_blocks });
        }
        let unfinished = self.unfinished();
        if let Some(limit) = config.max_num_queued_reqs
            && unfinished >= limit as usize
        {
            return Err(Rejection::QueueFull { max_num_queued_reqs: limit });
        }
        if let Some(limit) = config.max_num_queued_tokens
            && self.queued_tokens >= limit
        {
            return Err(Rejection::QueuedTokensFull { max_num_queued_tokens: limit });
        }
        Ok(())
    }

    /// Ends a request at once, wherever it is, which is what `true` says; a pass in flight that computes
    /// it gives no token for it. The slot must be that of a live request.
    pub fn cancel(&mut self, slot: Slot) -> bool {
        let slot = slot.0;
        match self.sequences[slot as usize].state {
            State::Vacant | State::Held => {}
            State::Waiting | State::Preempted | State::Loading | State::Loaded => self.end_waiting(slot),
            State::Running | State::Attached | State::Draining => {
                self.leave_running(slot);
                self.part_with_blocks(slot, FinishReason::Abort);
            }
        }
        true
    }

    /// There is something to schedule: unfinished requests, ended ones not yet announced to the workers, or ended
    /// ones that still hold blocks, or copies under way (vLLM `has_requests`).
    pub fn has_work(&self) -> bool {
        self.unannounced || self.unfinished() > 0 || self.transfers.held > 0 || self.copies()
    }

    /// Blocks are on their way from or to the host.
    fn copies(&self) -> bool {
        self.offload.as_ref().is_some_and(Offload::is_busy)
    }

    /// Requests waiting or running.
    pub fn unfinished(&self) -> usize {
        self.running.len() + self.waiting.len() + self.holding.len()
    }

    /// Output tokens that a live request has given so far.
    pub fn outputs(&self, slot: Slot) -> u32 {
        self.known(slot.0) - self.sequences[slot.0 as usize].prompt
    }

    /// The requests waiting or running, in no order.
    pub fn unfinished_requests(&self) -> Vec<RequestId> {
        self.running().chain(self.waiting()).chain(self.holding()).map(|slot| self.id(slot)).collect()
    }

    /// Passes scheduled and not completed.
    pub fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// What the last `schedule` decided.
    pub fn scheduled(&self) -> &Scheduled {
        &self.scheduled
    }

    /// The events that became visible with the last `complete`. They stay until `clear_events`.
    pub fn events(&self) -> &KvEvents {
        self.pool.events()
    }

    /// Forgets events that were read.
    pub fn clear_events(&mut self) {
        self.pool.clear_events();
    }

    /// Counters.
    pub fn stats(&self) -> RankStats {
        RankStats {
            running: self.running.len(),
            waiting: self.waiting.len() + self.holding.len(),
            deferred: self.deferred,
            used_blocks: self.pool.used(),
            peak_used_blocks: self.pool.peak_used(),
            cached_blocks: self.pool.cached(),
            evictions: self.pool.evictions(),
            host_blocks: self.config.host_blocks.unwrap_or(0),
            host_used_blocks: self.host_blocks() as u32,
            disk_used_blocks: self.disk_blocks() as u64,
            disk_hits: self.disk_hits(),
            ..self.stats
        }
    }

    // ---- moving between queues; used by the other parts of this module ----

    pub(super) fn waiting_rank(sequence: &Sequence) -> WaitingRank {
        (sequence.priority, sequence.arrival, sequence.tie)
    }

    pub(super) fn leave_running(&mut self, slot: u32) {
        self.detach(slot);
        let sequence = &self.sequences[slot as usize];
        self.visited -= usize::from(sequence.state == State::Running);
        let at = self.running.position(sequence.ticket);
        self.running.remove(at);
        self.forget_unfinished_prefill(slot);
    }

    pub(super) fn leave_waiting(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        self.deferred -= usize::from(std::mem::take(&mut sequence.deferred));
        let rank = Self::waiting_rank(sequence);
        self.loaded -= usize::from(sequence.holding && sequence.state != State::Loading);
        match std::mem::take(&mut sequence.holding) {
            true => self.holding.remove(slot, rank),
            false => self.waiting.remove(slot, rank),
        }
        self.forget_unfinished_prefill(slot);
    }

    pub(super) fn release_blocks(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        self.pool.release(&sequence.blocks, sequence.promoted);
        sequence.blocks.clear();
        sequence.promoted = 0;
    }

    /// Frees the slot of a request that has left every queue and holds no blocks.
    pub(super) fn vacate(&mut self, slot: u32) {
        self.retire(slot);
        self.free_slot(slot);
    }

    /// A request that has left every queue has ended.
    pub(super) fn retire(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        if sequence.outputs() == 0 {
            self.queued_tokens -= u64::from(sequence.prompt);
        }
        sequence.output.tokens = None;
        // Passes in flight take it for another from now on, as they do a later request in this slot.
        sequence.serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        self.unannounced = true;
    }

    /// The slot of a request that has ended and holds no blocks is free.
    pub(super) fn free_slot(&mut self, slot: u32) {
        self.sequences[slot as usize].state = State::Vacant;
        self.vacant.push(slot);
    }

    pub(super) fn announce(&mut self) {
        self.unannounced = false;
    }

    /// Enters the request's full blocks among its first `tokens` tokens in the prefix cache
    /// (vLLM `cache_blocks`). All these tokens must be known.
    pub(super) fn promote(&mut self, slot: u32, tokens: u32) {
        let full = tokens / self.config.block_size;
        if full > self.sequences[slot as usize].promoted && self.pool.caching() {
            self.promote_to(slot, full);
        }
    }

    /// Enters the first `full` blocks of a request in the prefix cache, of which at least the last is not there.
    pub(super) fn promote_to(&mut self, slot: u32, full: u32) {
        let sequence = &mut self.sequences[slot as usize];
        let Sequence { keys, output, blocks, promoted, id, .. } = sequence;
        let tokens = output.tokens.as_deref();
        let mut at = *promoted as usize;
        let pool = &mut self.pool;
        keys.runs(*promoted..full, tokens, |run| {
            let end = at + run.count as usize;
            pool.promote(&blocks[at..end], run);
            at = end;
            true
        });
        if pool.scope().is_on() {
            let told = if pool.scope() == KvEventScope::All { full } else { full.min(keys.shared()) };
            if told > *promoted {
                self.keys.clear();
                keys.extend(*promoted..told, tokens, &mut self.keys);
                pool.announce(*id, blocks, *promoted, &mut self.keys);
            }
        }
        *promoted = full;
    }
}
