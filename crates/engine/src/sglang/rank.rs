//! One SGLang rank: its requests, queues and counters, and how requests come and go from outside.

use super::batch::Pass;
use super::config::{Config, Disaggregation, HandOffRules, Policy, Priority};
use super::hand_off::HandOffs;
use super::page_starts::PageStarts;
use super::ratio::Ratio;
use super::sequence::{Sequence, State};
use super::shuffle::Shuffle;
use super::view::{Mode, Retraction};
use crate::calendar::Due;
use crate::decode_set::Decoders;
use crate::error::ConfigError;
use crate::event::KvEvents;
use crate::flight::Flight;
use crate::identity::{BlockKey, Keys};
use crate::kv::{ROOT, Radix, Telling, Text};
use crate::pass::{Finished, Outcome, Scheduled, Slot};
use crate::rank::{RankStats, Stepper};
use crate::request::{Content, FinishReason, OutputPlan, Rejection, Request, RequestId};
use std::collections::VecDeque;
use std::sync::Arc;

/// The prompt that stands in for one that is too long to be served (`set_finish_with_abort`).
const STUB: [u32; 1] = [0];

/// The batch scheduled last, as far as the next `schedule` needs it.
#[derive(Debug, Default)]
pub(super) struct LastBatch {
    pub(super) mode: Option<Mode>,
    /// Requests that it extends, in batch order.
    pub(super) extended: Vec<u32>,
    /// Running requests that decode in it, of a mixed batch.
    pub(super) decodes: Vec<u32>,
    /// The request whose prompt it leaves unfinished (`chunked_req`).
    pub(super) chunked: Option<u32>,
    pub(super) chunked_id: Option<RequestId>,
    /// No request of it may give more than the token of its prefill (`is_prefill_only`).
    pub(super) prefill_only: bool,
}

/// Scheduler and KV cache of one rank.
///
/// The driver's protocol is that of [`vllm::Rank`](crate::vllm::Rank). A `schedule` that finds nothing to do
/// is a pass without tokens: it stands for a turn of the engine's loop without a batch.
pub struct Rank {
    pub(super) config: Config,
    pub(super) stepper: Stepper,
    pub(super) radix: Radix,
    pub(super) sequences: Vec<Sequence>,
    vacant: Vec<u32>,
    next_serial: u32,
    next_private_key: u64,
    next_own: u64,
    next_entry: u64,
    pub(super) next_ticket: u64,
    pub(super) waiting: VecDeque<u32>,
    /// `running_batch`, in order.
    pub(super) running: Vec<u32>,
    /// Running requests that are not in the decode set.
    pub(super) visited: usize,
    /// `batch_is_full` of the running batch.
    pub(super) full: bool,
    /// `chunked_req` of the running batch, as it was when that was a prefill batch. Nothing depends on it.
    pub(super) running_chunked: Option<RequestId>,
    /// `is_prefill_only` of the running batch.
    pub(super) prefill_only: bool,
    /// A running request ended since the last `schedule`, up to which the engine's batch still holds it.
    pub(super) someone_ended: bool,
    /// A request left the running or the last batch since the last `schedule`.
    pub(super) someone_left: bool,
    pub(super) last: LastBatch,
    /// `chunked_req`: its prompt is being computed in chunks.
    pub(super) chunked: Option<u32>,
    /// It is to be aborted.
    pub(super) abort_chunked: bool,
    pub(super) flight: Flight<Pass>,
    pub(super) decoders: Decoders,
    /// When its members start pages.
    pub(super) starts: PageStarts,
    pub(super) ratio: Ratio,
    /// Turns without prefill that are left (`_prefill_decode_interval_remaining`).
    pub(super) interval_left: u32,
    /// The order that policy random gives.
    pub(super) shuffle: Shuffle,
    /// Turns in which prefixes of waiting requests might be touched.
    pub(super) prefix_refreshes: u64,
    /// Requests that have not ended.
    pub(super) live: usize,
    /// Hand-offs between ranks that serve prompts and those that go on.
    pub(super) hand_offs: HandOffs,
    /// Requests with a row in the table of slots (`req_to_token_pool`).
    pub(super) rows: u32,
    /// A batch ran since the engine was idle.
    pub(super) restless: bool,
    /// Members that left the decode set and had their last token with the beat completed last.
    pub(super) parked: Vec<Slot>,
    /// Requests that ended outside a completion.
    pub(super) ended: Vec<Finished>,
    pub(super) fault: Option<&'static str>,
    pub(super) requeued: Vec<(Slot, bool)>,
    pub(super) retractions: Vec<Retraction>,
    pub(super) stats: RankStats,
    pub(super) scheduled: Scheduled,
    pub(super) outcome: Outcome,
    /// Events of a rank that keeps none.
    no_events: KvEvents,
    /// Scratch: calendar entries as they were taken.
    pub(super) taken: Vec<Due>,
    /// Scratch: names of pages.
    pub(super) keys: Vec<BlockKey>,
}

impl Rank {
    /// An empty rank.
    pub fn new(config: Config, stepper: Stepper) -> Result<Rank, ConfigError> {
        config.validate()?;
        let pages = config.usable_pages();
        let telling = Telling { scope: config.kv_events, block: config.kv_event_tokens };
        let mut radix = Radix::new(pages, config.page_size, config.radix_cache, telling);
        if let Some(tier) = config.host {
            radix.set_host(tier);
        }
        Ok(Rank {
            stepper,
            radix,
            sequences: Vec::new(),
            vacant: Vec::new(),
            next_serial: 0,
            next_private_key: 0,
            next_own: 0,
            next_entry: 0,
            next_ticket: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            visited: 0,
            full: false,
            running_chunked: None,
            prefill_only: false,
            someone_ended: false,
            someone_left: false,
            last: LastBatch::default(),
            chunked: None,
            abort_chunked: false,
            flight: Flight::default(),
            decoders: Decoders::default(),
            starts: PageStarts::new(config.page_size),
            ratio: Ratio::new(config.schedule_conservativeness),
            interval_left: 0,
            shuffle: Shuffle::new(match config.schedule_policy {
                Policy::Random { seed } => seed,
                _ => 0,
            }),
            prefix_refreshes: 0,
            live: 0,
            hand_offs: HandOffs::default(),
            rows: 0,
            restless: false,
            parked: Vec::new(),
            ended: Vec::new(),
            fault: None,
            requeued: Vec::new(),
            retractions: Vec::new(),
            stats: RankStats { usable_blocks: pages, ..RankStats::default() },
            scheduled: Scheduled::default(),
            outcome: Outcome::default(),
            no_events: KvEvents::default(),
            keys: Vec::new(),
            taken: Vec::new(),
            config,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Puts a request at the end of the waiting queue. What is done with one that cannot be served,
    /// `refuse_unservable` says.
    pub fn submit(&mut self, mut request: Request) -> Result<Slot, Rejection> {
        if request.prompt_tokens == 0 {
            return Err(Rejection::EmptyPrompt);
        }
        if request.output.max_tokens == 0 {
            return Err(Rejection::NoOutput);
        }
        let max_new = self.max_new_tokens(&request);
        let too_long = request.prompt_tokens >= self.config.max_req_input_len();
        let refuses = self.config.refuse_unservable;
        if refuses && too_long && self.config.context_length <= self.config.pool_tokens() {
            return Err(Rejection::PromptTooLong {
                prompt_tokens: request.prompt_tokens,
                max_model_len: self.config.context_length,
                longest: self.config.max_req_input_len() - 1,
            });
        }
        if refuses && (too_long || !self.fits_alone(&request, max_new)) {
            let page = u64::from(self.config.page_size);
            let tokens = u64::from(request.prompt_tokens) + u64::from(max_new);
            return Err(Rejection::LargerThanPool {
                needed_blocks: tokens.div_ceil(page) + 1,
                usable_blocks: u64::from(self.config.usable_pages()),
            });
        }
        if too_long {
            request.prompt_tokens = STUB.len() as u32;
            request.content = Content::Tokens(STUB.into());
        }
        let priority = self.priority_of(&request);
        if !self.queue_takes(priority) {
            let limit = self.config.max_queued_requests.unwrap_or(0);
            return Err(Rejection::QueueFull { max_num_queued_reqs: limit });
        }
        request.output.max_tokens = max_new;
        let own = self.next_own;
        self.next_own += 1;
        let keys = self.radix.scope().is_on().then(|| {
            // One output more than planned: a prompt without room for any still gives one.
            let output = OutputPlan::of_length(max_new + 1);
            let mut copy = Request { content: request.content.clone(), output, ..request };
            Box::new(Keys::new(&mut copy, self.config.kv_event_tokens, &mut self.next_private_key))
        });
        let OutputPlan { stop_after, ignore_eos, .. } = request.output;
        let ignore_eos = ignore_eos == Some(true);
        let text = Arc::new(Text::new(&mut request, own));
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        let slot = self.vacant.pop().unwrap_or(self.sequences.len() as u32);
        let sequence = Sequence {
            state: State::Waiting,
            serial,
            ticket: 0,
            id: request.id,
            priority,
            entered: 0,
            prompt: request.prompt_tokens,
            max_new,
            stop_after: stop_after.filter(|_| !ignore_eos),
            ignore_eos,
            text,
            keys,
            outputs: 0,
            planned: 0,
            fill_len: 0,
            prefix_len: 0,
            extend_end: 0,
            committed: 0,
            protected_len: 0,
            entered_len: 0,
            last_node: ROOT,
            best_node: ROOT,
            host_len: 0,
            lock: None,
            matched: 0,
            middle_chunks: 0,
            retracted: false,
            stained: false,
            to_finish: too_long,
            joined: 0,
            answered: false,
        };
        match self.sequences.get_mut(slot as usize) {
            Some(old) => *old = sequence,
            None => self.sequences.push(sequence),
        }
        self.live += 1;
        match (self.config.disaggregation, self.config.hand_off_rules) {
            (Disaggregation::Prefill, HandOffRules::InTurns) => self.await_room(slot),
            (Disaggregation::Decode { .. }, _) => self.await_kv(slot),
            (Disaggregation::Off | Disaggregation::Prefill, _) => self.enqueue(slot),
        }
        Ok(Slot(slot))
    }

    /// What may be generated, cut to the context and to an empty pool (`init_req_max_new_tokens`,
    /// `max_new_tokens_for_memory`).
    fn max_new_tokens(&self, request: &Request) -> u32 {
        let input = i64::from(request.prompt_tokens);
        let page = i64::from(self.config.page_size);
        let paged_input = (input + page - 1) / page * page;
        let by_context = i64::from(self.config.max_req_len()) - input - 1;
        let by_pool = i64::from(self.config.pool_tokens()) - paged_input - page - 1;
        i64::from(request.output.max_tokens).min(by_context).min(by_pool).max(0) as u32
    }

    /// Whether an empty pool admits a request. The engine lets one that does not fit wait for ever, and all
    /// behind it.
    fn fits_alone(&self, request: &Request, max_new: u32) -> bool {
        let (pool, page) = (i64::from(self.config.pool_tokens()), i64::from(self.config.page_size));
        let prompt = i64::from(request.prompt_tokens);
        if let Disaggregation::Decode { reserved_tokens, .. } = self.config.disaggregation {
            return match self.config.hand_off_rules {
                HandOffRules::InTurns => {
                    let paged = (prompt + page - 1) / page * page;
                    let whole = prompt + i64::from(max_new.min(self.config.clip_max_new_tokens));
                    (paged + i64::from(reserved_tokens)).max(whole) <= pool
                }
                HandOffRules::AtOnce => prompt <= pool,
            };
        }
        if request.output.ignore_eos == Some(true) && !self.radix.enabled() {
            let paged = (prompt + page - 1) / page * page + page;
            return paged <= pool && (max_new == 0 || pool - paged - i64::from(max_new) > 1);
        }
        prompt + i64::from(max_new.min(self.config.clip_max_new_tokens)) + page < pool
    }

    /// A request's priority; without one of its own, less urgent than any other can be.
    fn priority_of(&self, request: &Request) -> i64 {
        const BEYOND: i64 = 1 << 40;
        if self.config.priority.is_none() {
            return 0;
        }
        let least_urgent = if self.urgency_sign() > 0 { BEYOND } else { -BEYOND };
        request.priority.map_or(least_urgent, i64::from)
    }

    /// Whether a request of this priority may join the waiting queue. A less urgent one that waits has to
    /// leave a full queue for it (`_abort_on_queued_limit`).
    pub(super) fn queue_takes(&mut self, priority: i64) -> bool {
        let Some(limit) = self.config.max_queued_requests else { return true };
        if self.waiting.len() < limit as usize {
            return true;
        }
        if self.config.priority.is_none() {
            return false;
        }
        let sign = self.urgency_sign();
        let least = |&&slot: &&u32| {
            let s = &self.sequences[slot as usize];
            (s.priority * sign, s.entered)
        };
        let Some(&slot) = self.waiting.iter().max_by_key(least) else { return false };
        if priority * sign >= self.sequences[slot as usize].priority * sign {
            return false;
        }
        self.waiting.retain(|&other| other != slot);
        self.end_early(slot, FinishReason::Abort);
        true
    }

    /// Puts a request at the end of the waiting queue (`_add_request_to_queue`).
    pub(super) fn enqueue(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        s.state = State::Waiting;
        s.entered = self.next_entry;
        self.next_entry += 1;
        self.waiting.push_back(slot);
    }

    /// Aborts a request (`abort_request`): at once if it waits, which is what `true` says; else when its
    /// next result is processed, or its prompt's next chunk would be scheduled. The slot must be that of a
    /// live request.
    pub fn cancel(&mut self, slot: Slot) -> bool {
        let slot = slot.0;
        match self.sequences[slot as usize].state {
            // It may have ended already without having been told.
            State::Vacant => return !self.ended.iter().any(|finished| finished.slot.0 == slot),
            State::Waiting => {
                self.waiting.retain(|&waiting| waiting != slot);
                self.withdraw(slot);
                self.vacate(slot);
                return true;
            }
            State::Bootstrapping | State::Preallocating | State::Receiving => {
                self.withdraw(slot);
                self.vacate(slot);
                return true;
            }
            // No batch that the engine searches holds it; it ends by length with the pass in flight. Or it has ended,
            // but for its KV.
            State::Draining | State::Sending => return false,
            State::Prefilling | State::Running | State::Attached => {}
        }
        if self.chunked == Some(slot) {
            self.abort_chunked = true;
        }
        self.detach(slot);
        self.sequences[slot as usize].to_finish = true;
        false
    }

    /// There is something to schedule: unfinished requests, or a turn of the loop that finds the engine
    /// idle.
    pub fn has_work(&self) -> bool {
        self.restless || self.live > 0 || self.hand_offs.unheard > 0 || self.radix.host_is_busy()
    }

    /// Requests waiting or running.
    pub fn unfinished(&self) -> usize {
        self.live
    }

    /// The requests waiting or running, in no order.
    pub fn unfinished_requests(&self) -> Vec<RequestId> {
        let live = |s: &&Sequence| !matches!(s.state, State::Vacant | State::Sending);
        self.sequences.iter().filter(live).map(|s| s.id).collect()
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
        self.radix.events().unwrap_or(&self.no_events)
    }

    /// Forgets events that were read.
    pub fn clear_events(&mut self) {
        self.radix.clear_events();
    }

    /// Counters. Blocks are pages.
    pub fn stats(&self) -> RankStats {
        let page = u64::from(self.config.page_size);
        let pages = |tokens: u64| tokens.div_ceil(page) as u32;
        let (host_free, host_total) = self.radix.host_tokens().unwrap_or_default();
        RankStats {
            running: self.live - self.waiting.len() - self.hand_offs.waiting(),
            waiting: self.waiting.len() + self.hand_offs.waiting(),
            used_blocks: pages(self.radix.used()),
            peak_used_blocks: pages(self.radix.peak_used()),
            cached_blocks: pages(self.radix.evictable() + self.radix.protected()),
            evictions: self.radix.evicted_tokens() / page,
            hand_offs: self.hand_offs.counts(self.tokens_to_receive()),
            host_blocks: pages(host_total),
            host_used_blocks: pages(host_total - host_free),
            ..self.stats
        }
    }

    /// A running request may be preempted for one that waits.
    pub(super) fn preempts(&self) -> bool {
        matches!(self.config.priority, Some(Priority { preemption_threshold: Some(_), .. }))
    }

    /// What the engine would have died of by now, in its words: it admits more than fits where settings
    /// make it reserve too little. What the rank does after that means nothing.
    pub fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    /// Frees the slot of a request that has left every queue and batch.
    pub(super) fn vacate(&mut self, slot: u32) {
        self.forget(slot);
        self.vacant.push(slot);
    }

    /// Frees the slot of a request that ended before, when its KV was read.
    pub(super) fn vacate_ended(&mut self, slot: u32) {
        self.live += 1;
        self.vacate(slot);
    }

    fn forget(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        s.state = State::Vacant;
        s.keys = None;
        // A later request in this slot has another serial, so that passes in flight do not take one for
        // the other.
        s.serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        self.live -= 1;
    }

    pub(super) fn finished(&self, slot: u32, reason: FinishReason) -> Finished {
        let s = &self.sequences[slot as usize];
        Finished { slot: Slot(slot), id: s.id, reason, output_tokens: s.outputs, held: false }
    }

    /// A request that has given back its memory ends with the pass being completed.
    pub(super) fn end(&mut self, slot: u32, reason: FinishReason) {
        let finished = self.finished(slot, reason);
        self.outcome.finished.push(finished);
        self.vacate(slot);
    }

    /// A request that has given back its memory ends while a pass is scheduled. The next outcome tells it;
    /// until then its slot is nobody's.
    pub(super) fn end_early(&mut self, slot: u32, reason: FinishReason) {
        let finished = self.finished(slot, reason);
        self.ended.push(finished);
        self.forget(slot);
    }

    /// Tells of those that ended early.
    pub(super) fn report_ended(&mut self) {
        self.vacant.extend(self.ended.iter().map(|finished| finished.slot.0));
        self.outcome.finished.append(&mut self.ended);
    }
}
