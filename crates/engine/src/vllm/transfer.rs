//! KV that moves: prompts that are loaded from elsewhere, blocks that are held for somebody else to read, and
//! blocks that may not go back to the pool yet (vllm/v1/core/sched/scheduler.py and
//! distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py, version 0.33.0).
//!
//! Who copies, and how long that takes, is the driver's affair. It reports what has ended with the pass that was
//! scheduled last, since the engine's worker is asked when it launches a pass; the scheduler reads the report when
//! that pass is processed.

use super::config::KvLoadFailurePolicy;
use super::rank::Rank;
use super::sequence::State;
use crate::pass::{Finished, Slot};
use crate::request::{FinishReason, HandOff, RequestId};
use crate::token_pass::{LoadFailure, Report};
use std::collections::VecDeque;

/// Blocks of an ended request that passes in flight may still write.
#[derive(Debug)]
struct Parked {
    /// Passes with tokens that have to be processed before.
    fence: u64,
    blocks: Vec<u32>,
    promoted: u32,
}

/// A rank's part in transfers.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    /// Requests that ended and still hold blocks.
    pub(super) held: usize,
    /// Ended requests whose blocks are to be sent from the next pass on.
    sends: Vec<u32>,
    /// Requests that ended before their load was asked for: the other side is told with the next pass.
    unread: Vec<RequestId>,
    /// Requests whose prompt is not computed whole, chunked ones and loads: they need blocks still.
    unfinished_prefills: Vec<u32>,
    parked: VecDeque<Parked>,
    /// Blocks in `parked`.
    parked_blocks: u32,
}

impl Transfers {
    /// Something of it changes with the next pass.
    pub(super) fn is_due(&self) -> bool {
        !self.sends.is_empty() || !self.unread.is_empty() || !self.parked.is_empty()
    }
}

impl Rank {
    /// The worker reports, with the pass scheduled last, that a load has ended. The request may run after that pass
    /// is processed.
    pub fn kv_loaded(&mut self, slot: Slot) {
        self.report(Report::Loaded { slot: slot.0, failure: None });
    }

    /// The same of a load that has failed.
    pub fn kv_failed(&mut self, slot: Slot, failure: LoadFailure) {
        self.report(Report::Loaded { slot: slot.0, failure: Some(failure) });
    }

    /// The worker reports, with the pass scheduled last, that the blocks of a request that ended here have been
    /// read. They are free when that pass is processed.
    pub fn kv_sent(&mut self, slot: Slot) {
        self.report(Report::Sent { slot: slot.0 });
    }

    /// A load has ended, and that is known at once (AISimulate 0.13).
    pub fn kv_loaded_at_once(&mut self, slot: Slot) {
        self.read_reports(&[Report::Loaded { slot: slot.0, failure: None }]);
    }

    /// Held blocks have been read, and are free at once (AISimulate 0.13).
    pub fn kv_sent_at_once(&mut self, slot: Slot) {
        self.read_reports(&[Report::Sent { slot: slot.0 }]);
    }

    fn report(&mut self, report: Report) {
        if let Some(pass) = self.flight.iter_mut().next_back() {
            pass.reports.push(report);
        }
    }

    /// It takes part in transfers as the side that loads.
    pub(super) fn consumes(&self) -> bool {
        self.config.kv_role.is_some_and(|role| role.consumes())
    }

    /// It takes part in transfers as the side that is read from.
    pub(super) fn produces(&self) -> bool {
        self.config.kv_role.is_some_and(|role| role.produces())
    }

    /// What a request had in flight when it was preempted is not delivered: the blocks that it could hand over are
    /// gone (vLLM `requires_kv_delivery`).
    pub(super) fn drops_stale_output(&self) -> bool {
        // The offload does its best; nobody counts on it.
        self.produces() && self.offload.is_none()
    }

    /// The prompt is to be loaded from elsewhere, and that was not asked for yet.
    pub(super) fn wants_load(&self, slot: u32) -> bool {
        self.consumes() && self.sequences[slot as usize].hand_off == HandOff::Pull
    }

    /// Whether a request's blocks can go back to the pool now. A load is not ordered against the passes in flight,
    /// so what these may still write is not handed out (vLLM `defer_block_free`).
    pub(super) fn blocks_can_be_freed(&self, slot: u32) -> bool {
        !(self.config.async_scheduling && self.consumes()) || self.in_flight_tokens(slot) == 0
    }

    /// Blocks that unfinished prefills still need: a load must leave them
    /// (vLLM `_inflight_prefill_reserved_blocks`).
    pub fn reserved_blocks(&self) -> u32 {
        let missing = |&slot: &u32| {
            let s = &self.sequences[slot as usize];
            s.known.div_ceil(self.config.block_size).saturating_sub(s.blocks.len() as u32)
        };
        self.transfers.unfinished_prefills.iter().map(missing).sum()
    }

    /// Requests whose prompt is not computed whole, in no order (vLLM `_inflight_prefills`).
    pub fn unfinished_prefills(&self) -> impl Iterator<Item = Slot> + '_ {
        self.transfers.unfinished_prefills.iter().map(|&slot| Slot(slot))
    }

    /// Blocks of ended requests that passes in flight may still write.
    pub fn parked_blocks(&self) -> u32 {
        self.transfers.parked_blocks
    }

    /// A request's prompt is not computed whole. Only loads ask for that.
    pub(super) fn note_unfinished_prefill(&mut self, slot: u32) {
        if self.config.kv_role.is_some() && !self.transfers.unfinished_prefills.contains(&slot) {
            self.transfers.unfinished_prefills.push(slot);
        }
    }

    pub(super) fn forget_unfinished_prefill(&mut self, slot: u32) {
        if let Some(at) = self.transfers.unfinished_prefills.iter().position(|&other| other == slot) {
            self.transfers.unfinished_prefills.swap_remove(at);
        }
    }

    /// A request that waits takes its blocks for the tokens that are loaded, and waits on for them.
    pub(super) fn await_load(&mut self, slot: u32) {
        self.note_unfinished_prefill(slot);
        let s = &mut self.sequences[slot as usize];
        s.hand_off = HandOff::None;
        s.state = State::Loading;
    }

    /// The load of a waiting request has ended and the scheduler comes to it: its blocks enter the prefix cache, and
    /// at least one token is left to compute (vLLM `_update_waiting_for_remote_kv`).
    pub(super) fn take_load(&mut self, slot: u32) {
        let s = &mut self.sequences[slot as usize];
        let failed = std::mem::take(&mut s.load_failed);
        s.state = if s.preemptions > 0 { State::Preempted } else { State::Waiting };
        let computed = s.computed;
        if computed == 0 {
            self.release_blocks(slot);
            return;
        }
        self.promote(slot, computed);
        let s = &mut self.sequences[slot as usize];
        if !failed && s.computed == s.known {
            s.computed = s.known - 1;
        }
    }

    /// Gives the blocks of a request back, now or when no pass in flight can write them any more.
    pub(super) fn give_blocks_back(&mut self, slot: u32) {
        if self.blocks_can_be_freed(slot) {
            self.release_blocks(slot);
            return;
        }
        let s = &mut self.sequences[slot as usize];
        let (blocks, promoted) = (std::mem::take(&mut s.blocks), std::mem::take(&mut s.promoted));
        self.transfers.parked_blocks += blocks.len() as u32;
        self.transfers.parked.push_back(Parked { fence: self.executed_passes, blocks, promoted });
    }

    /// A pass with tokens was processed: what it could have written is free.
    pub(super) fn drain_parked(&mut self) {
        let processed = self.processed_passes;
        while let Some(parked) = self.transfers.parked.pop_front_if(|parked| parked.fence <= processed) {
            self.transfers.parked_blocks -= parked.blocks.len() as u32;
            self.pool.release(&parked.blocks, parked.promoted);
        }
    }

    /// Whether another rank is to read the blocks of a request that ends.
    pub(super) fn hands_over(&self, slot: u32, reason: FinishReason) -> bool {
        self.produces()
            && self.sequences[slot as usize].hand_off == HandOff::Hold
            && matches!(reason, FinishReason::Length | FinishReason::Stop)
    }

    /// A request has left its queue: gives its blocks back, unless another rank is to read them.
    pub(super) fn part_with_blocks(&mut self, slot: u32, reason: FinishReason) {
        self.note_ended(slot, reason);
        if self.hands_over(slot, reason) {
            self.transfers.sends.push(slot);
            self.hold(slot);
        } else {
            self.give_blocks_back(slot);
            self.vacate(slot);
        }
    }

    /// A request that has left its queue keeps its blocks until the worker reports.
    pub(super) fn hold(&mut self, slot: u32) {
        self.retire(slot);
        self.sequences[slot as usize].state = State::Held;
        self.transfers.held += 1;
    }

    /// A request ends that is not running.
    pub(super) fn end_waiting(&mut self, slot: u32) {
        self.leave_waiting(slot);
        self.note_ended(slot, FinishReason::Abort);
        if self.wants_load(slot) {
            let id = self.sequences[slot as usize].id;
            self.transfers.unread.push(id);
        }
        if self.sequences[slot as usize].state == State::Loading {
            // Its blocks are being written.
            self.hold(slot);
        } else {
            self.give_blocks_back(slot);
            self.vacate(slot);
        }
    }

    /// Names in the pass being scheduled what starts with it.
    pub(super) fn name_transfers(&mut self) {
        self.scheduled.sends.extend(self.transfers.sends.drain(..).map(Slot));
        self.scheduled.unread.append(&mut self.transfers.unread);
    }

    /// The failures among a pass's reports, which are read before its tokens.
    pub(super) fn read_failures(&mut self, reports: &[Report]) {
        for &report in reports {
            let Report::Loaded { slot, failure: Some(failure) } = report else { continue };
            let s = &mut self.sequences[slot as usize];
            if s.state != State::Loading {
                continue;
            }
            // Blocks that were cached here have an identity; those that are loaded follow them.
            let valid = match failure {
                LoadFailure::Whole => 0,
                LoadFailure::FromBlock(block) => s.promoted.saturating_add(block) * self.config.block_size,
            };
            if valid < s.computed {
                s.computed = valid;
                s.load_failed = true;
            }
        }
    }

    /// The rest of what a pass's reports say: who ends, who may run, whose blocks are free.
    pub(super) fn read_reports(&mut self, reports: &[Report]) {
        if self.config.kv_load_failure_policy == KvLoadFailurePolicy::Fail {
            reports.iter().for_each(|&report| self.end_failed(report));
        }
        for &report in reports {
            let (Report::Loaded { slot, .. } | Report::Sent { slot }) = report;
            match self.sequences[slot as usize].state {
                State::Held => {
                    self.transfers.held -= 1;
                    self.release_blocks(slot);
                    self.free_slot(slot);
                }
                State::Loading => {
                    self.sequences[slot as usize].state = State::Loaded;
                    self.loaded += 1;
                }
                _ => {}
            }
        }
    }

    /// A request whose load has failed ends.
    fn end_failed(&mut self, report: Report) {
        let Report::Loaded { slot, .. } = report else { return };
        let s = &self.sequences[slot as usize];
        if s.state == State::Loading && s.load_failed {
            let (id, output_tokens) = (s.id, s.outputs());
            let reason = FinishReason::Error;
            self.end_waiting(slot);
            let slot = Slot(slot);
            self.outcome.finished.push(Finished { slot, id, reason, output_tokens, held: false });
        }
    }
}
