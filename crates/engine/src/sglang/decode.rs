//! The running batch: its next decode pass, and retraction when the pool is too small for it
//! (managers/scheduler.py `update_running_batch`, managers/schedule_batch.py).

use super::batch::{Member, Pass};
use super::kv::evict_for;
use super::rank::Rank;
use super::sequence::State;
use super::view::{Mode, Retraction};
use crate::pass::{DecodeSet, Slot};
use crate::rank::Stepper;
use crate::request::FinishReason;
use std::cmp::Reverse;

impl Rank {
    /// `update_running_batch`: makes the pass a decode pass, unless nobody is left or the pool is full for
    /// the moment.
    pub(super) fn decode(&mut self) {
        let before = self.running.len();
        let finishing = self.drain_finishing();
        if self.running.is_empty() {
            self.full = false;
            return;
        }
        if self.decode_fits() {
            self.ratio.decay_step();
        } else if finishing {
            // The pass in flight frees what the finishing requests hold; the others decode then.
            self.full = false;
            return;
        } else {
            self.retract_decode();
        }
        if self.running.len() < before {
            self.full = false;
        }
        if self.running.is_empty() {
            return;
        }
        self.prepare_decode();
        self.last.mode = Some(Mode::Decode);
    }

    /// Lets the running requests decode beside the prefills of a mixed batch, if they fit.
    pub(super) fn mix_decodes(&mut self) {
        if self.drain_finishing() {
            self.full = false;
        }
        if self.running.is_empty() || !self.decode_fits() {
            return;
        }
        self.prepare_decode();
        self.last.mode = Some(Mode::Mixed);
        self.last.prefill_only = false;
        self.prefill_only = false;
        self.running_chunked = None;
        self.last.decodes = std::mem::take(&mut self.running);
    }

    /// Takes those out of the running batch whose pass in flight gives their last token by length
    /// (`_reqs_finishing_inflight`). True if there was one.
    fn drain_finishing(&mut self) -> bool {
        self.detach_due();
        // The loop of a rank that receives KV does not know of it, and schedules one token behind the last one.
        if self.visited == 0 || !self.config.overlap || (self.receives() && !self.hands_over_at_once()) {
            return false;
        }
        let finishes = |slot: &u32| {
            let s = &self.sequences[*slot as usize];
            s.state == State::Running && s.planned > s.outputs && s.ends_after(s.outputs + 1)
        };
        let finishing: Vec<u32> = self.running.iter().copied().filter(finishes).collect();
        for &slot in &finishing {
            self.leave_running(slot);
            self.sequences[slot as usize].state = State::Draining;
        }
        !finishing.is_empty()
    }

    /// Pages that the next decode pass starts (`new_tokens_required_next_decode`).
    fn pages_to_start(&self) -> u64 {
        let page = self.config.page_size;
        let named = if self.visited == 0 {
            0
        } else {
            let starts = |slot: &&u32| {
                let s = &self.sequences[**slot as usize];
                s.state == State::Running && s.committed.is_multiple_of(page)
            };
            self.running.iter().filter(starts).count() as u64
        };
        named + u64::from(self.starts.in_pass(self.decoders.next_pass()))
    }

    /// Whether the pool has room for the next decode pass, after evicting (`check_decode_mem`).
    fn decode_fits(&mut self) -> bool {
        let needed = self.pages_to_start() * u64::from(self.config.page_size);
        evict_for(&mut self.radix, needed);
        self.radix.free() >= needed
    }

    /// Takes memory away from running requests until the others fit (`retract_decode`): from the one with
    /// the fewest outputs, of several the one with the longest prompt. The others stay in that order.
    fn retract_decode(&mut self) {
        for at in 0..self.running.len() {
            self.detach(self.running[at]);
        }
        let available_before = self.radix.free() as u32;
        let sign = if self.config.retract_by_priority { self.urgency_sign() } else { 0 };
        let key = |slot: &u32| {
            let s = &self.sequences[*slot as usize];
            Reverse((-s.priority * sign, i64::from(s.outputs), -i64::from(s.prompt)))
        };
        let mut kept = std::mem::take(&mut self.running);
        kept.sort_by_key(key);
        let (mut retracted, mut aborted) = (Vec::new(), Vec::new());
        while kept.len() > 1 && (retracted.is_empty() || !self.fits(&kept)) {
            let Some(slot) = kept.pop() else { break };
            self.retract(slot, kept.len());
            retracted.push(slot);
        }
        if kept.len() == 1 && !self.fits(&kept) {
            aborted.append(&mut kept);
            for &slot in &aborted {
                self.retract(slot, 0);
            }
        }
        for &slot in &kept {
            self.sequences[slot as usize].ticket = self.next_ticket;
            self.next_ticket += 1;
        }
        self.visited = kept.len();
        self.running = kept;
        let sum = |of: fn(&super::sequence::Sequence) -> u32| {
            self.running.iter().map(|&slot| u64::from(of(&self.sequences[slot as usize]))).sum()
        };
        let (outputs, max_new) = (sum(|s| s.outputs), sum(|s| s.max_new));
        self.ratio.estimate(outputs, max_new, self.running.len() as u64);
        let ids = |slots: &[u32]| slots.iter().map(|&slot| self.sequences[slot as usize].id).collect();
        self.retractions.push(Retraction {
            retracted: ids(&retracted),
            new_ratio: self.ratio.current,
            aborted: ids(&aborted),
            available_before,
            available_after: self.radix.free() as u32,
        });
        for slot in aborted {
            self.end_early(slot, FinishReason::Abort);
        }
        for slot in retracted {
            self.scheduled.preempted.push(Slot(slot));
            self.stats.preemptions += 1;
            self.requeue(slot, true);
        }
    }

    /// Whether a decode pass of these requests, none of them in the decode set, has room after evicting.
    fn fits(&mut self, slots: &[u32]) -> bool {
        let page = self.config.page_size;
        let starts = |slot: &&u32| self.sequences[**slot as usize].committed.is_multiple_of(page);
        let needed = slots.iter().filter(starts).count() as u64 * u64::from(page);
        evict_for(&mut self.radix, needed);
        self.radix.free() >= needed
    }

    /// Gives every running request the slot of its next token (`prepare_for_decode`).
    fn prepare_decode(&mut self) {
        let page = u64::from(self.config.page_size);
        let pages = self.pages_to_start();
        if page > 1 {
            // The engine makes room for a page of each.
            evict_for(&mut self.radix, self.running.len() as u64 * page);
        }
        if !self.radix.take(pages * page) {
            self.fault.get_or_insert("Decode out of memory");
        }
        self.scheduled.decode = self.decoders.members;
        let ahead = self.token_ahead();
        if self.visited > 0 {
            for &slot in &self.running {
                let s = &mut self.sequences[slot as usize];
                if s.state == State::Running {
                    s.committed += 1;
                    self.scheduled.decode.add(s.committed - ahead);
                }
            }
        }
        self.scheduled.tokens += self.running.len() as u64;
    }

    /// Notes who decodes in a pass, and lets those join the decode set that may.
    pub(super) fn launch_decodes(&mut self, pass: &mut Pass) {
        let DecodeSet { count, .. } = self.decoders.members;
        self.decoders.advance(1);
        pass.decode_number = self.decoders.scheduled;
        pass.uniform = count;
        if self.visited == 0 {
            return;
        }
        let mixed = self.last.mode == Some(Mode::Mixed);
        let decoding = std::mem::take(if mixed { &mut self.last.decodes } else { &mut self.running });
        for &slot in &decoding {
            let s = &mut self.sequences[slot as usize];
            if s.state == State::Running {
                s.planned += 1;
                pass.members.push(Member { slot, serial: s.serial, ticket: s.ticket, extend_end: None });
                if self.stepper == Stepper::Fast {
                    self.attach(slot);
                }
            }
        }
        *(if mixed { &mut self.last.decodes } else { &mut self.running }) = decoding;
    }
}
