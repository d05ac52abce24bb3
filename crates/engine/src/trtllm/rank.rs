//! One TensorRT-LLM rank: its requests, lists and counters, and how requests come and go from outside.

use super::config::Config;
use super::hand_off::HandOffs;
use super::sequence::{Sequence, State};
use crate::calendar::Due;
use crate::decode_set::Decoders;
use crate::error::ConfigError;
use crate::event::KvEvents;
use crate::flight::Flight;
use crate::growth::Growth;
use crate::identity::{BlockKey, Keys};
use crate::kv::BlockTree;
use crate::pass::{Outcome, Scheduled, Slot};
use crate::rank::{RankStats, Stepper};
use crate::request::{HandOff, Rejection, Request, RequestId};
use crate::token_pass::Pass;
use std::collections::{HashSet, VecDeque};

/// Scheduler and KV cache of one rank. The driver's protocol is that of [`crate::vllm::Rank`].
pub struct Rank {
    pub(super) config: Config,
    pub(super) stepper: Stepper,
    pub(super) tree: BlockTree,
    pub(super) sequences: Vec<Sequence>,
    vacant: Vec<u32>,
    next_serial: u32,
    next_private_key: u64,
    next_ticket: u64,
    /// Requests outside the scheduler, first come, first served (py_executor.py, `waiting_queue`).
    pub(super) queue: VecDeque<u32>,
    /// `active_requests`, by ticket, which is the order of their coming.
    pub(super) active: Vec<u32>,
    /// Those of them that compute their prompt (`State::Context`), by ticket.
    pub(super) contexts: Vec<u32>,
    /// Those of them whose last token is scheduled (`State::Draining`), by ticket.
    pub(super) draining: Vec<u32>,
    /// Active requests in `State::Generating`.
    pub(super) visited: usize,
    /// Active requests that hold blocks.
    pub(super) running: usize,
    /// Blocks that requests past their prompt may still take.
    pub(super) reserved: u64,
    pub(super) hand_offs: HandOffs,
    pub(super) flight: Flight<Pass>,
    pub(super) decoders: Decoders,
    /// When its members start blocks.
    pub(super) growth: Growth,
    /// The last pass has left everything that decides on prompts as it found it, and nothing has changed since:
    /// the next pass decides the same.
    pub(super) quiet: bool,
    /// Look-ups of the last pass.
    pub(super) quiet_lookups: u32,
    /// Period of the reuse tree in which look-ups are remembered.
    pub(super) look_up_period: u64,
    pub(super) stats: RankStats,
    pub(super) scheduled: Scheduled,
    pub(super) outcome: Outcome,
    /// Scratch: members of the decode set for which something is due: ticket, slot, serial.
    pub(super) due: Vec<(u64, u32, u32)>,
    /// Scratch: calendar entries as they were taken.
    pub(super) taken: Vec<Due>,
    /// Scratch: requests that have their blocks, in the order in which they may get tokens.
    pub(super) fitting: Vec<u32>,
    /// Scratch: prompts of this pass, with their share of the token budget.
    pub(super) chunks: Vec<(u32, u32)>,
    /// Scratch: first new blocks of prompts of this pass and of prompts begun.
    pub(super) contributed: HashSet<BlockKey>,
    /// Scratch.
    pub(super) keys: Vec<BlockKey>,
    /// Scratch.
    pub(super) hits: Vec<u32>,
}

impl Rank {
    /// An empty rank.
    pub fn new(config: Config, stepper: Stepper) -> Result<Rank, ConfigError> {
        config.validate()?;
        Ok(Rank {
            stepper,
            tree: BlockTree::new(config.num_blocks, config.block_reuse, config.kv_events),
            sequences: Vec::new(),
            vacant: Vec::new(),
            next_serial: 0,
            next_private_key: 0,
            next_ticket: 0,
            queue: VecDeque::new(),
            active: Vec::new(),
            contexts: Vec::new(),
            draining: Vec::new(),
            visited: 0,
            running: 0,
            reserved: 0,
            hand_offs: HandOffs::default(),
            flight: Flight::default(),
            decoders: Decoders::default(),
            growth: Growth::new(config.block_size),
            quiet: false,
            quiet_lookups: 0,
            look_up_period: 0,
            stats: RankStats { usable_blocks: config.usable_blocks(), ..RankStats::default() },
            scheduled: Scheduled::default(),
            outcome: Outcome::default(),
            due: Vec::new(),
            taken: Vec::new(),
            fitting: Vec::new(),
            chunks: Vec::new(),
            contributed: HashSet::new(),
            keys: Vec::new(),
            hits: Vec::new(),
            config,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Puts a request at the end of the queue.
    pub fn submit(&mut self, mut request: Request) -> Result<Slot, Rejection> {
        let max_tokens = self.check(&request)?;
        let plan = &mut request.output;
        plan.max_tokens = max_tokens;
        plan.stop_after = plan.stop_after.filter(|&n| n <= max_tokens);
        let keys = Keys::new(&mut request, self.config.block_size, &mut self.next_private_key);
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        let slot = self.vacant.pop().unwrap_or(self.sequences.len() as u32);
        let blocks = match self.sequences.get_mut(slot as usize) {
            Some(old) => std::mem::take(&mut old.blocks),
            None => Vec::new(),
        };
        let sequence = Sequence {
            state: State::Queued,
            serial,
            ticket: 0,
            id: request.id,
            prompt: request.prompt_tokens,
            max_tokens,
            output: request.output,
            hand_off: request.hand_off,
            keys,
            blocks,
            started: false,
            computed: 0,
            known: request.prompt_tokens,
            placeholders: 0,
            pauses: 0,
            found: None,
            joined: 0,
            due: 0,
        };
        match self.sequences.get_mut(slot as usize) {
            Some(old) => *old = sequence,
            None => self.sequences.push(sequence),
        }
        self.queue.push_back(slot);
        Ok(Slot(slot))
    }

    /// Refuses what could never be served, and tells how many output tokens the request may have.
    fn check(&self, request: &Request) -> Result<u32, Rejection> {
        let config = &self.config;
        let prompt_tokens = request.prompt_tokens;
        if prompt_tokens == 0 {
            return Err(Rejection::EmptyPrompt);
        }
        if request.output.max_tokens == 0 {
            return Err(Rejection::NoOutput);
        }
        // executor/base_worker.py, _deduce_max_tokens: no room for an output is an error, more output than
        // there is room for is cut.
        if prompt_tokens >= config.max_seq_len {
            return Err(Rejection::PromptTooLong {
                prompt_tokens,
                max_model_len: config.max_seq_len,
                longest: config.max_seq_len - 1,
            });
        }
        let mut max_tokens = request.output.max_tokens.min(config.max_seq_len - prompt_tokens);
        // llmapi/llm.py, _check_arguments.
        let here = request.hand_off != HandOff::Pull;
        if here && !config.chunked_prefill && prompt_tokens > config.max_num_tokens {
            let max_num_tokens = config.max_num_tokens;
            return Err(Rejection::PromptExceedsBudget { prompt_tokens, max_num_tokens });
        }
        let (size, usable_blocks) = (u64::from(config.block_size), u64::from(config.num_blocks));
        let pool = usable_blocks * size;
        if config.clamp_output_to_pool {
            let room = pool.saturating_sub(u64::from(prompt_tokens)).min(u64::from(u32::MAX)) as u32;
            max_tokens = max_tokens.min(room.max(1));
        }
        // resource_manager.py, get_request_kv_block_budget: required blocks above those of the pool are
        // refused at once.
        let needed_blocks = (u64::from(prompt_tokens) + u64::from(max_tokens)).div_ceil(size);
        if needed_blocks > usable_blocks {
            return Err(Rejection::LargerThanPool { needed_blocks, usable_blocks });
        }
        Ok(max_tokens)
    }

    /// Ends a request at once, wherever it is, which is what `true` says; a pass in flight that computes
    /// it gives no token for it. The slot must be that of a live request.
    pub fn cancel(&mut self, slot: Slot) -> bool {
        let slot = slot.0;
        match self.sequences.get(slot as usize).map(|s| s.state) {
            None | Some(State::Vacant) => return true,
            Some(State::Queued) => self.queue.retain(|&s| s != slot),
            // It has ended, but for its blocks.
            Some(State::Held) => return false,
            Some(_) => self.leave(slot),
        }
        self.vacate(slot);
        true
    }

    /// There is something to schedule.
    pub fn has_work(&self) -> bool {
        self.unfinished() > 0 || self.hand_offs.are_due()
    }

    /// Requests waiting or running.
    pub fn unfinished(&self) -> usize {
        self.active.len() + self.queue.len()
    }

    /// Output tokens that a live request has given so far.
    pub fn outputs(&self, slot: Slot) -> u32 {
        self.known(slot.0) - self.sequences[slot.0 as usize].prompt
    }

    /// The requests waiting or running, in no order.
    pub fn unfinished_requests(&self) -> Vec<RequestId> {
        self.active.iter().chain(&self.queue).map(|&slot| self.sequences[slot as usize].id).collect()
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
        self.tree.events()
    }

    /// Forgets events that were read.
    pub fn clear_events(&mut self) {
        self.tree.clear_events();
    }

    /// Counters.
    pub fn stats(&self) -> RankStats {
        RankStats {
            running: self.running - self.hand_offs.loading,
            waiting: self.unfinished() + self.hand_offs.loading - self.running,
            used_blocks: self.tree.used(),
            peak_used_blocks: self.tree.peak_used(),
            cached_blocks: self.tree.cached(),
            evictions: self.tree.evictions(),
            ..self.stats
        }
    }

    // ---- moving between lists; used by the other parts of this module ----

    /// Lets requests in while there is room (py_executor.py, `_fetch_new_requests`: at most
    /// `max_num_active_requests`, which is `max_batch_size`).
    pub(super) fn activate(&mut self) {
        while self.active.len() < self.config.max_batch_size as usize
            && let Some(&slot) = self.queue.front()
            && !self.waits_for_driver(slot)
        {
            self.queue.pop_front();
            self.enlist(slot);
        }
    }

    /// A request becomes the last active one.
    pub(super) fn enlist(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        s.state = State::Context;
        s.ticket = self.next_ticket;
        self.next_ticket += 1;
        self.active.push(slot);
        self.contexts.push(slot);
        self.quiet = false;
    }

    fn position(list: &[u32], sequences: &[Sequence], slot: u32) -> usize {
        let ticket = sequences[slot as usize].ticket;
        list.partition_point(|&s| sequences[s as usize].ticket < ticket)
    }

    pub(super) fn insert(list: &mut Vec<u32>, sequences: &[Sequence], slot: u32) {
        let at = Self::position(list, sequences, slot);
        list.insert(at, slot);
    }

    pub(super) fn remove(list: &mut Vec<u32>, sequences: &[Sequence], slot: u32) {
        let at = Self::position(list, sequences, slot);
        if list.get(at) == Some(&slot) {
            list.remove(at);
        }
    }

    /// Takes an active request out of the list of its state, with its blocks.
    pub(super) fn stop(&mut self, slot: u32) {
        self.leave_list(slot);
        self.release(slot);
    }

    /// Takes an active request out of the list of its state.
    fn leave_list(&mut self, slot: u32) {
        self.detach(slot);
        self.quiet = false;
        match self.sequences[slot as usize].state {
            State::Context => Self::remove(&mut self.contexts, &self.sequences, slot),
            State::Draining => Self::remove(&mut self.draining, &self.sequences, slot),
            State::Generating => self.visited -= 1,
            State::Loading => self.hand_offs.forget(slot),
            State::Vacant | State::Queued | State::Attached | State::Held => {}
        }
        let s = &self.sequences[slot as usize];
        if s.is_generation() {
            self.reserved -= u64::from(s.total_blocks(self.config.block_size)) - s.blocks.len() as u64;
        }
        self.running -= usize::from(s.started);
    }

    /// Takes an active request out of every list, with its blocks.
    pub(super) fn leave(&mut self, slot: u32) {
        self.leave_lists(slot);
        self.release(slot);
    }

    /// Takes an active request out of every list.
    pub(super) fn leave_lists(&mut self, slot: u32) {
        self.leave_list(slot);
        Self::remove(&mut self.active, &self.sequences, slot);
    }

    /// The prompt of an active request will be computed to its end in the pass being scheduled.
    pub(super) fn end_context(&mut self, slot: u32) {
        Self::remove(&mut self.contexts, &self.sequences, slot);
        let s = &mut self.sequences[slot as usize];
        s.state = State::Generating;
        self.reserved += u64::from(s.total_blocks(self.config.block_size)) - s.blocks.len() as u64;
        self.visited += 1;
    }

    /// Gives back a request's blocks, after making those reusable that are full of known, computed tokens
    /// (kvCacheManager.cpp, `WindowBlockManager::releaseBlocks`: of the tokens all but the last). The
    /// engine does so too with blocks of a prompt that was not computed to its end; those stay outside here.
    pub(super) fn release(&mut self, slot: u32) {
        let s = &self.sequences[slot as usize];
        if !s.started {
            return;
        }
        self.store(slot, s.computed.min(s.known - 1));
        let s = &mut self.sequences[slot as usize];
        self.tree.release(&s.blocks);
        s.blocks.clear();
        s.started = false;
    }

    /// Makes the full blocks among a request's first `tokens` tokens reusable.
    pub(super) fn store(&mut self, slot: u32, tokens: u32) {
        let s = &mut self.sequences[slot as usize];
        let full = tokens / self.config.block_size;
        if full == 0 || !self.tree.reuse() {
            return;
        }
        self.keys.clear();
        s.keys.extend(0..full, s.output.tokens.as_deref(), &mut self.keys);
        self.tree.store(s.id, &s.blocks[..full as usize], &self.keys);
        self.quiet = false;
    }

    /// Frees the slot of a request that has left every list.
    pub(super) fn vacate(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        s.state = State::Vacant;
        s.output.tokens = None;
        // A later request in this slot has another serial, so that passes in flight do not take one
        // for the other.
        s.serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        self.vacant.push(slot);
    }
}
